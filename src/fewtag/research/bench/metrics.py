"""The paper's eight numbers, and intervals over episodes."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from fewtag.research.types import Targets

METRICS = tuple(f"{scope}_{name}" for scope in ("micro", "macro") for name in ("precision", "recall", "f1", "ap"))


def episode_metrics(
    probabilities: Float[Tensor, "images labels"], targets: Targets, threshold: float = 0.5
) -> dict[str, float]:
    """Precision, recall, F1 and AP, micro and macro, of one episode's query images.

    Macro-F1 is the harmonic mean of macro-precision and macro-recall, as in the paper, not the mean of the labels' F1.
    AP is not interpolated. A label that nothing is tagged with has precision 0.
    """
    predicted = probabilities > threshold
    right = (predicted & targets).sum(dim=0).double()
    tagged, shown = predicted.sum(dim=0).double(), targets.sum(dim=0).double()
    values = {
        "micro_precision": _ratio(right.sum(), tagged.sum()).item(),
        "micro_recall": _ratio(right.sum(), shown.sum()).item(),
        "micro_ap": average_precision(probabilities.flatten(), targets.flatten()).item(),
        "macro_precision": _ratio(right, tagged).mean().item(),
        "macro_recall": _ratio(right, shown).mean().item(),
        "macro_ap": average_precision(probabilities.T, targets.T).mean().item(),
    }
    for scope in ("micro", "macro"):
        precision, recall = values[f"{scope}_precision"], values[f"{scope}_recall"]
        both = precision + recall
        values[f"{scope}_f1"] = 2 * precision * recall / both if both else 0.0
    return {name: values[name] for name in METRICS}


def average_precision(
    probabilities: Float[Tensor, "*several ranked"], targets: Bool[Tensor, "*several ranked"]
) -> Float[Tensor, "*several"]:
    """The mean, over what is right, of the precision down to its rank; equals share the last rank among them."""
    descending, order = probabilities.sort(dim=-1, descending=True)
    right = targets.gather(-1, order).cumsum(dim=-1)
    ranks = torch.arange(1, right.shape[-1] + 1, device=right.device)
    last_of_equals = pad(descending[..., 1:] != descending[..., :-1], (0, 1), value=True)
    # what was right down to the equals before
    before = pad((right * last_of_equals).cummax(dim=-1).values[..., :-1], (1, 0))
    steps = (right - before) * (right / ranks.double()) * last_of_equals
    return steps.sum(dim=-1) / right[..., -1].clamp_min(1)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean over episodes and the half width of its 95 % interval.

    >>> mean_and_interval([1.0, 2.0, 3.0])
    (2.0, 1.13...)
    """
    numbers = torch.tensor(values, dtype=torch.float64)
    if len(numbers) < 2:
        return numbers.mean().item(), math.nan
    return numbers.mean().item(), 1.96 * numbers.std().item() / math.sqrt(len(numbers))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp_min(1), torch.zeros_like(whole))
