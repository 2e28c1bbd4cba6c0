"""PLA (Yazici et al., "Orderless Recurrent Models for Multi-label Classification", CVPR 2020).

An LSTM with attention over an image emits its labels one at a time, until it emits a stop token. The targets are a set
without an order: a true label that the network emits by itself keeps its step, and the others are assigned to the
remaining steps so that the cross-entropy is least; the stop token follows the last. The first stage trains only the
encoder, as a plain classifier. New labels get a fresh output layer and fresh embeddings, trained on the support, as in
the few-shot comparison of Yan et al. (AAAI 2022).
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import field
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Episode, Precoded, Support, options
from fewtag.research.methods.linear import Head, descend
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words, bce, full_precision, places, pool

StepLogits = Float[Tensor, "images steps tokens"]
"""The score of each label and, last, of the stop token at each step."""

Sequences = Int[Tensor, "images steps"]
"""The token that each step should emit, or `NONE`."""

NONE = -1


def alignment_loss(logits: StepLogits, targets: Targets) -> Float[Tensor, ""]:
    """Mean cross-entropy of the steps with the tokens that they are assigned."""
    return F.cross_entropy(logits.float().flatten(0, 1), align(logits, targets).flatten(), ignore_index=NONE)


@torch.no_grad()
def align(logits: StepLogits, targets: Targets) -> Sequences:
    """The assigned tokens: every true label once, as far as the steps suffice, then the stop token, then `NONE`."""
    steps, stop = torch.arange(logits.shape[1], device=logits.device), logits.shape[2] - 1
    counts = targets.sum(dim=1, keepdim=True)
    predicted = logits.argmax(dim=-1)
    kept = first_correct_emission(predicted, targets) & (steps < counts)
    placed = (F.one_hot(predicted, stop + 1).bool() & kept[:, :, None]).any(dim=1)[:, :stop]
    open_pairs = ((steps < counts) & ~kept)[:, :, None] & (targets & ~placed)[:, None, :]
    costs = -logits.float().log_softmax(dim=-1)[:, :, :stop]
    # the only transfer from the device; pairs that must not be matched have infinite cost
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
    from scipy.optimize import linear_sum_assignment  # imported here: it takes longer than all methods

    matched = np.full(costs.shape[:2], NONE)
    finite = np.isfinite(costs)
    step_is_open, label_is_open = finite.any(axis=2), finite.any(axis=1)
    for image in np.flatnonzero(step_is_open.any(axis=1)):
        steps, labels = np.flatnonzero(step_is_open[image]), np.flatnonzero(label_is_open[image])
        rows, columns = linear_sum_assignment(costs[image][np.ix_(steps, labels)])
        matched[image, steps[rows]] = labels[columns]
    return matched


def best_logits(logits: StepLogits) -> Logits:
    """The logit of each label's highest probability over the steps up to the one that emits the stop token."""
    stop = logits.shape[2] - 1
    likeliest = logits.argmax(dim=-1, keepdim=True)
    log_probabilities = logits.log_softmax(dim=-1)
    # only the likeliest token can exceed one half; its 1 - p would round to 0, so the sum of the others is used instead
    odds = log_probabilities - torch.log1p(-log_probabilities.exp().clamp_max(0.5))
    others = logits.scatter(2, likeliest, -math.inf).logsumexp(dim=-1, keepdim=True)
    odds = odds.scatter(2, likeliest, logits.gather(2, likeliest) - others)
    stopped = (likeliest[:, :, 0] == stop).cumsum(dim=1)[:, :-1] > 0
    over = F.pad(stopped, (1, 0))[:, :, None]
    return odds[:, :, :stop].masked_fill(over, -math.inf).amax(dim=1)


Embeddings = Float[Tensor, "labels embedding"]


class View(NamedTuple):
    """Images as the decoder sees them: their places, and the attention's keys."""

    places: Float[Tensor, "images places joint"]
    keys: Float[Tensor, "images places joint"]

    def take(self, images: slice | Int[Tensor, "some"]) -> "View":
        return View(self.places[images], self.keys[images])


@options
class PLA(Precoded):
    """PLA with learnt label embeddings: trained on the base labels, and from zero on a support.

    The first `encoder_episodes` of training teach only the encoder: the backbone, if it is trained, and the projection
    of places that the decoder attends to.
    """

    base_stage = "labels"

    embeds_words: ClassVar[bool] = False

    joint: int = 512
    embedding: int = 256
    dropout: float = 0.5
    steps: int = 10
    finetune_epochs: int = 40
    finetune_rate: float = 1e-3
    tune_decoder: bool = True
    encoder_episodes: int = 0
    output: nn.Linear = field(init=False)
    embed: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2:
            raise InputError(f"steps = {self.steps}: to emit a label and to stop takes at least 2")
        self.base_labels: tuple[str, ...] = ()
        self.visual = nn.Linear(self.channels, self.joint)
        self.drop = nn.Dropout(self.dropout)
        self.key = nn.Linear(self.joint, self.joint)
        self.decoder = Decoder(self.joint, self.embedding)

    def prepare(self, base: Base) -> None:
        """Creates the output layer and the embeddings of the base labels."""
        self.base_labels = base.labels
        self.output = nn.Linear(self.joint, len(base.labels) + 1)
        self.embed = (
            nn.Linear(self.dimensions, self.embedding)
            if self.embeds_words
            else nn.Embedding(len(base.labels), self.embedding)
        )
        if self.encoder_episodes:
            self.base_classifier = nn.Linear(self.joint, len(base.labels))

    def encoder_loss(self, episode: Episode) -> Float[Tensor, ""]:
        """Binary cross-entropy of a linear classifier on the mean of the places, without the decoder."""
        maps, targets = episode.base_batch(self.base_labels)
        return bce(self.base_classifier(self.visual(pool(maps))), targets)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        maps, targets = episode.base_batch(self.base_labels)
        local = self.drop(self.visual(places(maps)))
        view = View(local.float(), self.key(local).float())
        # in full precision: the recurrent part is small, and the alignment compares probabilities
        with full_precision(local):
            order, running = sort_by_length(targets, self.steps)
            output = Head(self.output.weight, self.output.bias)
            words = episode.support.words
            told = self.embed(words if self.embeds_words else torch.arange(len(words), device=words.device))
            logits = self.decoder(view.take(order), told, output, running)
            return alignment_loss(logits, targets[order])

    @torch.no_grad()
    def encode(self, maps: Maps) -> Encoded:
        """The places as the decoder attends to them at test time."""
        with full_precision(maps):
            local = self.visual(places(maps.float()))
            return local.transpose(1, 2).reshape(len(maps), self.joint, *maps.shape[2:])

    def adapt_encoded(self, support: Support) -> Classifier:
        support.need_images()
        # ties are broken by the order of the labels: sorted by name, so that their given order does not matter
        order = sorted(range(len(support.labels)), key=support.labels.__getitem__)
        back = sorted(range(len(order)), key=order.__getitem__)
        decode = self.tune(self.view(support.maps), support.words[order], support.targets[:, order])
        steps = min(self.steps, int(support.targets.sum(dim=1).max()) + 1)

        def classify(maps: Encoded) -> Logits:
            with full_precision(maps):
                return best_logits(decode(self.view(maps), running=[len(maps)] * steps))[:, back]

        return classify

    @torch.no_grad()
    def view(self, maps: Encoded) -> View:
        """Encoded images, with their keys."""
        with full_precision(maps):
            local = places(maps).contiguous()
            return View(local, self.key(local))

    def tune(self, view: View, words: Words, targets: Targets) -> partial[StepLogits]:
        """A copy of the decoder with a fresh output layer and fresh embeddings, trained on all images at once."""
        tokens, like = targets.shape[1] + 1, view.places
        with full_precision(like), torch.no_grad():
            zeros = like.new_zeros(len(words), self.embedding)
            embeddings = self.embed(words.float()).clone() if self.embeds_words else zeros
        output = Head(like.new_zeros(tokens, self.joint), like.new_zeros(tokens))
        decoder = deepcopy(self.decoder).requires_grad_(False)
        trained = [embeddings, *output, *(decoder.parameters() if self.tune_decoder else ())]
        for tensor in trained:
            tensor.requires_grad_()
        order, running = sort_by_length(targets, self.steps)
        view, targets = view.take(order), targets[order]
        decode = partial(decoder, embeddings=embeddings, output=output)

        def loss() -> Float[Tensor, ""]:
            return alignment_loss(decode(view, running=running), targets)

        descend(loss, trained, epochs=self.finetune_epochs, rate=self.finetune_rate)
        for tensor in trained:
            tensor.requires_grad_(False)
        return decode


class WordPLA(PLA):
    """PLA (GloVe): the labels' embeddings are their projected word vectors; those of new labels start there."""

    embeds_words = True


class Decoder(nn.Module):
    """An LSTM with additive attention over an image's places; its input is the token that it emitted last."""

    def __init__(self, joint: int, embedding: int) -> None:
        super().__init__()
        self.first_hidden = nn.Linear(joint, joint)
        self.first_cell = nn.Linear(joint, joint)
        self.query = nn.Linear(joint, joint, bias=False)  # the keys have a bias
        self.relevance = nn.Linear(joint, 1, bias=False)  # a softmax ignores a constant
        self.gate = nn.Linear(joint, joint)
        self.lstm = nn.LSTMCell(embedding + joint, joint)
        self.start = nn.Parameter(torch.zeros(embedding))
        self.stop = nn.Parameter(torch.zeros(embedding))

    def forward(self, view: View, embeddings: Embeddings, output: Head, running: Sequence[int]) -> StepLogits:
        """The scores of all tokens at each step; the input of a step is the likeliest token of the step before it.

        Only the first `running[step]` images take part in a step, so images are sorted by number of steps, longest
        first; the others score 0 there.
        """
        summary = view.places.mean(dim=1)
        hidden, cell = self.first_hidden(summary), self.first_cell(summary)
        tokens = torch.cat([embeddings, self.stop[None]])
        emitted, logits = self.start.expand(len(summary), -1), []
        for images in running:
            hidden, cell, emitted = hidden[:images], cell[:images], emitted[:images]
            seen = self.gate(hidden).sigmoid() * self.attend(hidden, view.take(slice(images)))
            hidden, cell = self.lstm(torch.cat([emitted, seen], dim=1), (hidden, cell))
            logits.append(F.linear(hidden, output.weight, output.bias))
            emitted = F.embedding(logits[-1].argmax(dim=1), tokens)
        return torch.stack([F.pad(step, (0, 0, 0, len(summary) - len(step))) for step in logits], dim=1)

    def attend(self, hidden: Float[Tensor, "images joint"], view: View) -> Float[Tensor, "images joint"]:
        """Additive attention: each image's places, weighted by how well their keys match the state's query."""
        scores = self.relevance(F.relu(view.keys + self.query(hidden)[:, None]))[:, :, 0]
        return torch.einsum("ip,ipj->ij", scores.softmax(dim=1), view.places)


def sort_by_length(targets: Targets, most: int) -> tuple[Int[Tensor, "images"], list[int]]:
    """Images by descending number of labels, and how many have a token to emit at each step: labels, then the stop.

    A later step has no target and teaches nothing, so it is skipped.
    """
    counts, order = targets.sum(dim=1).sort(descending=True, stable=True)
    running = (counts >= torch.arange(most, device=counts.device)[:, None]).sum(dim=1)
    return order, [images for images in running.tolist() if images]
