"""Calibration: logistic curves from score to probability, for labels never seen in fitting, from one example upward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Counts = NDArray[np.int64]
"""labels: examples that each was learnt from."""
Shares = NDArray[np.float32]
"""labels: which part of the pictures shows each."""


@dataclass(frozen=True)
class Calibration:
    """Logistic curves, one for each of some numbers of examples, and thresholds, interpolated between.

    The curves hold where a label is on `share` of the pictures. Elsewhere the log-odds move by the difference of the
    shares' own (prior shift), and the thresholds follow.
    """

    examples: tuple[int, ...] = (0,)
    """Numbers of examples a label had when each curve was fitted, rising."""
    slopes: tuple[float, ...] = (1.0,)
    offsets: tuple[float, ...] = (0.0,)
    share: float = 0.5
    """Of the pictures that showed a label when the curves were fitted; also what is taken where nothing is known."""
    shares: tuple[float, ...] = (0.5,)
    """For which thresholds are known, rising."""
    thresholds: tuple[tuple[float, ...], ...] = ((0.5,),)
    """The probability from which a label is given, for the best F1: a row for each number of examples."""

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "Calibration":
        """From what JSON makes of one."""
        lists = {key: tuple(facts[key]) for key in ("examples", "slopes", "offsets", "shares")}
        rows = tuple(tuple(float(value) for value in row) for row in facts["thresholds"])
        return cls(**lists, share=float(facts["share"]), thresholds=rows)

    def curves(self, counts: Counts, shares: Shares) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Slope and offset of each label's curve, for so many examples and for such a share of the pictures."""
        shift = log_odds(shares) - log_odds(np.array(self.share))
        return _at(self.examples, self.slopes, counts), _at(self.examples, self.offsets, counts) + shift

    def threshold(self, counts: Counts, shares: Shares) -> NDArray[np.float32]:
        rows = np.stack([_at(self.examples, column, counts) for column in zip(*self.thresholds, strict=True)])
        known, wanted = log_odds(np.array(self.shares)), log_odds(shares)
        return np.array([np.interp(each, known, row) for each, row in zip(wanted, rows.T, strict=True)], np.float32)


def _at(examples: Sequence[int], values: Sequence[float], counts: Counts) -> NDArray[np.float32]:
    """In a line over log(1 + number of examples): the fifth example changes less than the first."""
    return np.interp(np.log1p(counts), np.log1p(examples), values).astype(np.float32)


def log_odds(shares: NDArray[np.floating]) -> NDArray[np.float32]:
    """The logarithm of how much likelier something is than not."""
    return np.asarray(np.log(shares / (1 - shares)), np.float32)


def estimate_shares(
    evidence: NDArray[np.float32], start: Shares, *, steps: int = 200, guess: float = 0.01, weight: float = 20.0
) -> Shares:
    """The share of pictures that show each label, from a sample's log-likelihood ratios, by expectation maximisation.

    `evidence` is images × labels: calibrated log-odds without the share that they held for. A sample in which nothing
    is found says little of what is rare, so a guess counts as so many pictures more (a Beta prior).
    """
    found = start.astype(np.float64)
    for _ in range(steps):
        sure = sigmoid(evidence + np.log(found / (1 - found))).sum(axis=0)
        found = (sure + guess * weight) / (len(evidence) + weight)
    return found.astype(np.float32)


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
