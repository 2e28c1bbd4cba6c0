"""Predicted label alignment: which label should a network that emits labels one by one have emitted at which step?

The truth is a set, without an order. A true label that the network emits of its own accord keeps its step; the other
true labels go to the other steps in the way that makes the cross-entropy least. The stop token follows the last label.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fewtag.research.types import Logits, Targets

StepLogits = Float[Tensor, "images steps tokens"]
"""At each step a score for each label and, last, for the stop token."""

Sequences = Int[Tensor, "images steps"]
"""The token that each step should emit, or none."""

NONE = -1


def alignment_loss(logits: StepLogits, targets: Targets) -> Float[Tensor, ""]:
    """Mean cross-entropy of the steps with the tokens that they should have emitted."""
    return F.cross_entropy(logits.float().flatten(0, 1), align(logits, targets).flatten(), ignore_index=NONE)


@torch.no_grad()
def align(logits: StepLogits, targets: Targets) -> Sequences:
    """Every true label once, as far as the steps suffice, then the stop token, then nothing."""
    steps, stop = torch.arange(logits.shape[1], device=logits.device), logits.shape[2] - 1
    counts = targets.sum(dim=1, keepdim=True)
    predicted = logits.argmax(dim=-1)
    kept = first_correct_emission(predicted, targets) & (steps < counts)
    placed = (F.one_hot(predicted, stop + 1).bool() & kept[:, :, None]).any(dim=1)[:, :stop]
    open_pairs = ((steps < counts) & ~kept)[:, :, None] & (targets & ~placed)[:, None, :]
    costs = -logits.float().log_softmax(dim=-1)[:, :, :stop]
    # the one transfer from the device; what is not to be matched is infinite
    matched = match(costs.masked_fill(~open_pairs, math.inf).cpu().numpy())
    sequences = torch.where(kept, predicted, torch.from_numpy(matched).to(logits.device))
    return sequences.masked_fill(steps == counts, stop)


def first_correct_emission(predicted: Sequences, targets: Targets) -> Bool[Tensor, "images steps"]:
    """Where a step emits a true label that no earlier step emitted."""
    shown = F.pad(targets, (0, 1))  # the stop token is no label
    repeated = (predicted[:, :, None] == predicted[:, None, :]).tril(diagonal=-1).any(dim=-1)
    return shown.gather(1, predicted) & ~repeated


def match(costs: Float[np.ndarray, "images steps labels"]) -> Int[np.ndarray, "images steps"]:
    """Hungarian matching of labels to steps, image by image, among the pairs of finite cost."""
    from scipy.optimize import linear_sum_assignment  # not above: it takes longer to import than all methods

    matched = np.full(costs.shape[:2], NONE)
    finite = np.isfinite(costs)
    step_is_open, label_is_open = finite.any(axis=2), finite.any(axis=1)
    for image in np.flatnonzero(step_is_open.any(axis=1)):
        steps, labels = np.flatnonzero(step_is_open[image]), np.flatnonzero(label_is_open[image])
        rows, columns = linear_sum_assignment(costs[image][np.ix_(steps, labels)])
        matched[image, steps[rows]] = labels[columns]
    return matched


def best_logits(logits: StepLogits) -> Logits:
    """The logit of each label's highest probability over the steps, up to the one that emits the stop token."""
    stop = logits.shape[2] - 1
    likeliest = logits.argmax(dim=-1, keepdim=True)
    log_probabilities = logits.log_softmax(dim=-1)
    # all but the likeliest have at most one half; of that one, 1 - p would round to 0, the sum of the others does not
    odds = log_probabilities - torch.log1p(-log_probabilities.exp().clamp_max(0.5))
    others = logits.scatter(2, likeliest, -math.inf).logsumexp(dim=-1, keepdim=True)
    odds = odds.scatter(2, likeliest, logits.gather(2, likeliest) - others)
    stopped = (likeliest[:, :, 0] == stop).cumsum(dim=1)[:, :-1] > 0
    over = F.pad(stopped, (1, 0))[:, :, None]
    return odds[:, :, :stop].masked_fill(over, -math.inf).amax(dim=1)
