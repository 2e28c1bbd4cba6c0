"""The paper's eight numbers, and intervals over episodes."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision

from fewtag.types import Targets

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
    metrics = {
        "micro_precision": _ratio(right.sum(), tagged.sum()).item(),
        "micro_recall": _ratio(right.sum(), shown.sum()).item(),
        "macro_precision": _ratio(right, tagged).mean().item(),
        "macro_recall": _ratio(right, shown).mean().item(),
    }
    for scope in ("micro", "macro"):
        precision, recall = metrics[f"{scope}_precision"], metrics[f"{scope}_recall"]
        metrics[f"{scope}_f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        # torchmetrics guesses logits or probabilities by their range, call by call: these are probabilities
        average = multilabel_average_precision(
            probabilities.double(), targets.long(), num_labels=targets.shape[1], average=scope, validate_args=False
        )
        metrics[f"{scope}_ap"] = average.item()
    return {name: metrics[name] for name in METRICS}


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
