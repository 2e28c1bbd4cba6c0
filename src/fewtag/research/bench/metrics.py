"""The paper's eight numbers, and Student's intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtrit

from fewtag.core.metrics import average_precision, average_precisions

METRICS = tuple(f"{scope}_{name}" for scope in ("micro", "macro") for name in ("precision", "recall", "f1", "ap"))


def episode_metrics(
    probabilities: Float[np.ndarray, "images labels"],
    targets: Bool[np.ndarray, "images labels"],
    threshold: float = 0.5,
) -> dict[str, float]:
    """Precision, recall, F1 and AP, micro and macro, of one episode's query images.

    Macro-F1 is the harmonic mean of macro-precision and macro-recall, as in the paper, not the mean of the labels' F1.
    AP is not interpolated. A label that nothing is tagged with has precision 0, one that no image shows AP 0.
    """
    predicted = probabilities > threshold
    right, tagged, shown = (np.sum(each, axis=0) for each in (predicted & targets, predicted, targets))
    values = {
        "micro_precision": right.sum() / max(tagged.sum(), 1),
        "micro_recall": right.sum() / max(shown.sum(), 1),
        "micro_ap": np.nan_to_num(average_precision(probabilities.ravel(), targets.ravel())),
        "macro_precision": np.mean(right / np.maximum(tagged, 1)),
        "macro_recall": np.mean(right / np.maximum(shown, 1)),
        "macro_ap": np.mean(label_aps(probabilities, targets)),
    }
    for scope in ("micro", "macro"):
        precision, recall = values[f"{scope}_precision"], values[f"{scope}_recall"]
        values[f"{scope}_f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {name: float(values[name]) for name in METRICS}


def label_aps(
    probabilities: Float[np.ndarray, "images labels"], targets: Bool[np.ndarray, "images labels"]
) -> list[float]:
    """The average precision of each label, whose mean is macro-AP."""
    return [float(value) for value in np.nan_to_num(average_precisions(probabilities.T, targets.T))]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean over episodes, seeds or labels and the half width of its 95 % interval by Student's t.

    >>> mean_and_interval([1.0, 2.0, 3.0])
    (2.0, 2.48...)
    """
    if len(values) < 2:
        return fmean(values), math.nan
    return fmean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
