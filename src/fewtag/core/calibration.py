"""Calibration: logistic curves from score to probability, for labels never seen in fitting, from one example upward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Counts = NDArray[np.int64]
"""labels: examples that each was learnt from."""
Shares = NDArray[np.float32]
"""labels: which part of the pictures shows each."""


SLACK = 0.01
"""Of F1, given away by a model's thresholds for precision: the curve is flat there, and a wrong tag costs a person."""

RARE, COMMON = 0.02, 0.06
"""Shares between which what is fitted for common labels gives way to what rare ones need."""
EASE = 0.8
"""The part of a model's threshold that is asked for where labels are common.

Probabilities of new labels are spread less than those of the labels that thresholds were fitted on, so that the slack
costs more there; of rare labels the precision is worth it. Chosen on the validation labels."""
STEEPER = (1, 5), (1.2, 1.0)
"""Examples, and how much steeper than the model's the curve of a rare label is that has so many."""
PLAIN = 6.0
"""How much steeper, as a logarithm, that is for pictures more coherent by one. Chosen on the validation labels."""


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
    """The probability from which a label is given, for the best F1 but for some slack: a row for each number of
    examples."""
    noes: float = 0.0
    """By how much the log-odds rise for log(1 + weight of the 'no's): these push the fit's intercept down, as if 'no'
    were the rule among pictures as it is among examples;"""
    noes_slope: float = 0.0
    """and by how much the slope does."""
    coherence: float = 0.0
    """Mean of the pictures that labels were learnt from when the curves were fitted; 0 where that is not known."""

    def curves(
        self,
        counts: Counts,
        noes: NDArray[np.float32],
        shares: Shares,
        coherence: NDArray[np.float32] | float = 0.0,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Slope and offset of each label's curve: of so many examples, 'no's of such a weight, such a share.

        `coherence` is that of the pictures it was learnt from.
        """
        seen, steeper = np.log1p(noes), steepness(self.steeper(counts, coherence), shares)
        offsets = _at(self.examples, self.offsets, counts) + seen * np.float32(self.noes)
        slopes = _at(self.examples, self.slopes, counts) + seen * np.float32(self.noes_slope)
        offsets = steeper * (offsets - log_odds(np.array(self.share))) + log_odds(shares)
        return (steeper * slopes).astype(np.float32), offsets.astype(np.float32)

    def evidence(
        self,
        logits: NDArray[np.floating],
        counts: Counts,
        noes: NDArray[np.float32],
        coherence: NDArray[np.float32] | float,
    ) -> NDArray[np.float32]:
        """Log-likelihood ratios: calibrated log-odds without the share that they hold for."""
        usual = np.full(len(counts), self.share, np.float32)
        slopes, offsets = self.curves(counts, noes, usual, coherence)
        return (slopes * logits + offsets - log_odds(usual)).astype(np.float32)

    def steeper(self, counts: Counts, coherence: NDArray[np.float32] | float = 0.0) -> NDArray[np.float32]:
        """How much steeper the curve of a rare label is than the model's, which is fitted where labels are common.

        That one is flattened by how much labels differ, most of all with one example; among rare ones it is seen. In
        crowded pictures a rare label is told from others less surely, and those it was learnt from tell of those to
        come.
        """
        known = np.greater(coherence, 0) & (self.coherence > 0)
        plain = np.exp(PLAIN * np.where(known, coherence - self.coherence, 0))
        return (_at(*STEEPER, counts) * plain).astype(np.float32)

    def threshold(self, counts: Counts, shares: Shares) -> NDArray[np.float32]:
        rows = np.stack([_at(self.examples, column, counts) for column in zip(*self.thresholds, strict=True)])
        known, wanted = log_odds(np.array(self.shares)), log_odds(shares)
        found = [np.interp(each, known, row) for each, row in zip(wanted, rows.T, strict=True)]
        return (np.array(found) * _by_share(shares, 1.0, EASE)).astype(np.float32)


def _at(examples: Sequence[int], values: Sequence[float], counts: Counts) -> NDArray[np.float32]:
    """Linear interpolation over log(1 + number of examples): the fifth example changes less than the first."""
    return np.interp(np.log1p(counts), np.log1p(examples), values).astype(np.float32)


def _by_share(shares: NDArray[np.floating], rare: NDArray[np.float32] | float, common: float) -> NDArray[np.float32]:
    """Linear interpolation, over the log-odds of the shares, between what holds for rare labels and for common ones."""
    least, most = log_odds(np.array([RARE, COMMON]))
    part = np.clip((log_odds(shares) - least) / (most - least), 0, 1)
    return (rare + part * (common - rare)).astype(np.float32)


def steepness(steeper: NDArray[np.float32], shares: NDArray[np.floating]) -> NDArray[np.float32]:
    """How much steeper curves are at these shares; `steeper` says how much where labels are rare."""
    return _by_share(shares, steeper, 1.0)


def log_odds(shares: NDArray[np.floating]) -> NDArray[np.float32]:
    """The logit: the logarithm of how much likelier something is than not."""
    return np.asarray(np.log(shares / (1 - shares)), np.float32)


def estimate_shares(
    evidence: NDArray[np.float32], start: Shares, *, steps: int = 200, guess: float = 0.01, weight: float = 100.0
) -> Shares:
    """The share of pictures that show each label, from a sample's log-likelihood ratios, by expectation maximisation.

    `evidence` is images × labels: calibrated log-odds without the share that they held for. A sample in which nothing
    is found says little of what is rare, so a guess counts as so many pictures more (a Beta prior).
    """
    found = start.astype(np.float64)
    against = np.exp(-np.clip(evidence.astype(np.float64), -300, 300))
    for _ in range(steps):
        # the logistic function of evidence and log-odds, with one exponential for all steps
        sure = (found / (found + (1 - found) * against)).sum(axis=0)
        found, before = (sure + guess * weight) / (len(evidence) + weight), found
        if np.abs(found - before).max(initial=0) < 1e-9:
            break
    return found.astype(np.float32)


OFFSET_SPREAD = 1.0
"""Standard deviation, between labels, of what a curve's offset is off by; chosen by log-loss on validation labels."""


def match_shares(
    evidence: NDArray[np.float32],
    steeper: NDArray[np.float32],
    said: Shares,
    *,
    shown: float | None = None,
    steps: int = 50,
) -> Shares:
    """Shares by which a sample's probabilities agree with the part of the pictures that is said to show each label.

    One curve cannot know how hard a label is, nor how crowded an archive. Where the share is known, the sum of the
    probabilities tells: each label's log-odds are moved by the likeliest offset, given that sum and a normal prior.
    What comes back is a share, since an offset and a prior shift are one. `evidence` is that of `estimate_shares`,
    `steeper` that of a `Calibration`.
    `shown` is how many of the sample show the label, where a person has looked: its pictures may then be chosen by
    their scores, which says nothing of what each shows beyond its score.
    """
    usual, wanted = log_odds(said).astype(np.float64), len(evidence) * said if shown is None else shown
    low, high = usual - 10, usual + 10
    for _ in range(steps):  # the gradient rises with the log-odds but for the steepness, so halving finds a zero of it
        middle = (low + high) / 2
        steep = steepness(steeper, sigmoid(middle))
        over = sigmoid(steep * evidence + middle).sum(axis=0) - wanted
        over += (middle - usual) / OFFSET_SPREAD**2
        low, high = np.where(over < 0, middle, low), np.where(over < 0, high, middle)
    return sigmoid((low + high) / 2).astype(np.float32)


def sigmoid(logits: NDArray[Floats]) -> NDArray[Floats]:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(np.zeros((), logits.dtype), -logits))


class Pairs(NamedTuple):
    """A label's logits for pictures it was not learnt from, and which of these show it."""

    examples: int
    noes: float
    """Weight of the 'no's that it was learnt from."""
    logits: NDArray[np.float32]
    shown: NDArray[np.bool_]


def calibrate(pairs: Sequence[Pairs], share: float, shares: Sequence[float]) -> Calibration:
    """The likeliest curves, and the thresholds of the best F1, over labels never seen in fitting.

    Every label counts alike, and as if a part `share` of its pictures showed it.
    """
    numbers = sorted({each.examples for each in pairs})
    rows = []
    for each in pairs:
        inputs = np.zeros((len(each.logits), 2 * len(numbers) + 2))
        at, seen = 2 * numbers.index(each.examples), math.log1p(each.noes)
        inputs[:, at], inputs[:, at + 1], inputs[:, -2], inputs[:, -1] = each.logits, 1, seen, seen * each.logits
        rows.append(inputs)
    shown = np.concatenate([each.shown for each in pairs])
    weights = np.concatenate([_weights(each.shown, share) for each in pairs])
    # the curves are those of the share by their weights: no number for it is needed
    found = fit_logistic(np.concatenate(rows), shown, weights)
    slopes, offsets = (tuple(round(float(value), 4) for value in found[side:-2:2]) for side in (0, 1))
    noes, noes_slope = (round(float(value), 4) for value in found[-2:])
    curves = Calibration(tuple(numbers), slopes, offsets, share, noes=noes, noes_slope=noes_slope)
    thresholds = tuple(
        tuple(_threshold([each for each in pairs if each.examples == number], curves, wanted) for wanted in shares)
        for number in numbers
    )
    return replace(curves, shares=tuple(shares), thresholds=thresholds)


def _weights(shown: NDArray[np.bool_], share: float) -> NDArray[np.float64]:
    """Of a label's pictures, one in all, so that a part `share` of the weight shows it."""
    return np.where(shown, share / max(shown.sum(), 1), (1 - share) / max((~shown).sum(), 1))


def _threshold(pairs: Sequence[Pairs], curves: Calibration, share: float) -> float:
    """The best threshold of labels with one number of examples, where a part `share` of the pictures shows each."""
    shares = np.array([share], np.float32)
    said = []
    for each in pairs:
        counts, noes = np.array([each.examples]), np.array([each.noes], np.float32)
        slope, offset = curves.curves(counts, noes, shares)
        said.append(sigmoid(slope * each.logits + offset))
    shown = np.concatenate([each.shown for each in pairs])
    weights = np.concatenate([_weights(each.shown, share) for each in pairs])
    return round(best_threshold(np.concatenate(said), shown, weights, slack=SLACK), 4)


def fit_logistic(
    inputs: NDArray[np.float64], shown: NDArray[np.bool_], weights: NDArray[np.float64], steps: int = 100
) -> NDArray[np.float64]:
    """Weighted logistic regression without a penalty to speak of, by damped Newton steps."""
    found = np.zeros(inputs.shape[1])
    ridge = 1e-9 * np.eye(inputs.shape[1]) * weights.sum()
    for _ in range(steps):
        chances = sigmoid(inputs @ found)
        gradient = inputs.T @ (weights * (chances - shown))
        curvature = weights * np.maximum(chances * (1 - chances), 1e-9)
        step = np.linalg.solve((inputs * curvature[:, None]).T @ inputs + ridge, gradient)
        found = found - step / max(1.0, float(np.abs(step).max()) / 2)  # no leaps from a flat start
        if np.abs(step).max() < 1e-9:
            break
    return found


def best_threshold(
    probabilities: NDArray[np.float32],
    shown: NDArray[np.bool_],
    weights: NDArray[np.float64] | None = None,
    *,
    slack: float = 0.0,
) -> float:
    """The highest threshold whose F1 over all pairs of image and label is the best, but for some slack.

    Halfway between two neighbours: what is equally likely is given together or not at all.
    """
    order = np.argsort(-probabilities, kind="stable")
    each = np.ones(len(order)) if weights is None else weights[order]
    ranked, right = probabilities[order].astype(np.float64), np.cumsum(each * shown[order])
    f1 = 2 * right / (np.cumsum(each) + right[-1])
    ends = np.flatnonzero(np.diff(ranked, append=-np.inf))
    best = int(ends[f1[ends] >= f1[ends].max() - slack][0])
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
