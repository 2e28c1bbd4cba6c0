"""Calibration: logistic curves from score to probability, for labels never seen in fitting, from one example upward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Counts = NDArray[np.int64]
"""labels: examples that each was learnt from."""


@dataclass(frozen=True)
class Calibration:
    """Logistic curves, one for each of some numbers of examples, interpolated between."""

    examples: tuple[int, ...] = (0,)
    """Numbers of examples a label had when each curve was fitted, rising."""
    slopes: tuple[float, ...] = (20.0,)
    offsets: tuple[float, ...] = (0.0,)
    thresholds: tuple[float, ...] = (0.5,)
    """The probability from which a label is given, for the best F1."""

    def probabilities(self, scores: NDArray[np.float32], counts: Counts) -> NDArray[np.float32]:
        """Of labels that were learnt from so many examples each; a column a label."""
        slopes, offsets = self.curves(counts)
        return sigmoid(scores * slopes + offsets)

    def curves(self, counts: Counts) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Slope and offset of each label's curve."""
        return self._at(self.slopes, counts), self._at(self.offsets, counts)

    def threshold(self, counts: Counts) -> NDArray[np.float32]:
        return self._at(self.thresholds, counts)

    def _at(self, values: Sequence[float], counts: Counts) -> NDArray[np.float32]:
        """In a line over log(1 + number of examples): the fifth example changes less than the first."""
        known = [math.log1p(number) for number in self.examples]
        return np.interp(np.log1p(counts), known, values).astype(np.float32)


def sigmoid(logits: NDArray[Floats]) -> NDArray[Floats]:
    """One over one plus e to the minus x, without overflow."""
    return np.exp(-np.logaddexp(np.zeros((), logits.dtype), -logits))


def fit_curve(scores: NDArray[np.float32], shown: NDArray[np.bool_], steps: int = 50) -> tuple[float, float]:
    """Platt scaling: slope and offset of the likeliest logistic curve, by Newton's method on two numbers."""
    inputs = np.stack([scores.astype(np.float64), np.ones(len(scores))], axis=1)
    # Platt's targets keep the curve finite where the two kinds do not overlap
    positives, negatives = int(shown.sum()), int((~shown).sum())
    targets = np.where(shown, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    curve = np.array([1.0, 0.0])
    for _ in range(steps):
        probabilities = sigmoid(inputs @ curve)
        gradient = inputs.T @ (probabilities - targets)
        weights = np.maximum(probabilities * (1 - probabilities), 1e-9)
        hessian = (inputs * weights[:, None]).T @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        curve = curve - step / max(1.0, float(np.abs(step).max()) / 10)  # no leaps from a flat start
        if np.abs(step).max() < 1e-10:
            break
    return float(curve[0]), float(curve[1])


def best_threshold(probabilities: NDArray[np.float32], shown: NDArray[np.bool_]) -> float:
    """The threshold with the best F1 over all pairs of image and label: halfway between two neighbours."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order].astype(np.float64), np.cumsum(shown[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + shown.sum())
    best = int(f1.argmax())
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)


def calibration_error(probabilities: NDArray[np.float32], shown: NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error: how far, on average, what is said is from what is, in bins of equal width."""
    bin_of = np.clip((probabilities.astype(np.float64) * bins).astype(np.int64), 0, bins - 1)
    error = 0.0
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            error += abs(float(probabilities[inside].mean()) - float(shown[inside].mean())) * float(inside.mean())
    return error
