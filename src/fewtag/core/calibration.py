"""Calibration: logistic curves from scores to probabilities, which hold for new labels with any number of examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Counts = NDArray[np.int64]
"""labels: the number of examples that each was learnt from."""
Priors = NDArray[np.float32]
"""labels: the prior of each, which is the share of pictures that show it."""


ANSWERS = 400
"""The most examples of each kind, yes and no, that a label is fitted to, in milliseconds: more barely change it."""
SLACK = 0.01
"""F1 that a model's thresholds give up for precision: its maximum is flat, and wrong tags cost people time."""

RARE, COMMON = 0.02, 0.06
"""Priors between which the fit to common labels is blended into the corrections for rare ones."""
EASE = 0.8
"""Factor on a model's threshold for common labels.

Probabilities of new labels are less spread than those of the labels that thresholds were fitted on, so that the slack
costs more there; for rare labels the precision is worth it. Chosen on the validation labels."""
STEEPER = (1, 5), (1.2, 1.0)
"""Numbers of examples, and the factors by which a rare label's curve is steeper than the model's with so many."""
PLAIN = 6.0
"""Change of the logarithm of that factor per unit of coherence above the model's. Chosen on the validation labels."""

ALONE, MANY = 0.4, 20
"""Increase of the log-odds of a label that is known by its name alone, per log(1 + weight of its 'no's) beyond so many.

Without it such a label would be given far too seldom in a bank of hundreds of complete pictures. Chosen on the
validation labels, of both models."""


@dataclass(frozen=True)
class Calibration:
    """Logistic curves and thresholds for several numbers of examples, interpolated in between.

    The curves hold for a label that `share` of the pictures show. For another prior the log-odds shift by the
    difference of the priors' log-odds (prior shift), and the thresholds follow.
    """

    examples: tuple[int, ...] = (0,)
    """Numbers of examples that labels had when each curve was fitted, ascending."""
    slopes: tuple[float, ...] = (1.0,)
    offsets: tuple[float, ...] = (0.0,)
    share: float = 0.5
    """The prior that the curves were fitted with; also the default where none is known."""
    shares: tuple[float, ...] = (0.5,)
    """Priors for which thresholds are known, ascending."""
    thresholds: tuple[tuple[float, ...], ...] = ((0.5,),)
    """Probabilities from which a label is given, for the best F1 less some slack: a row for each number of examples."""
    noes: float = 0.0
    """Increase of the log-odds per log(1 + weight of the 'no's). It corrects the fit's intercept, which 'no's push down
    as if they were as common among pictures as among examples."""
    noes_slope: float = 0.0
    """Increase of the slope per log(1 + weight of the 'no's)."""
    coherence: float = 0.0
    """Mean coherence of the pictures that labels were learnt from when the curves were fitted; 0 if unknown."""

    def curves(
        self,
        counts: Counts,
        noes: NDArray[np.float32],
        priors: Priors,
        coherence: NDArray[np.float32] | float = 0.0,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Slope and offset of each label's curve, given its number of examples, the weight of its 'no's and its prior.

        `coherence` is that of the pictures that it was learnt from.
        """
        seen, steeper = np.log1p(noes), steepness(self.steeper(counts, coherence), priors)
        # the fit's intercept grows with the examples, also beyond the most that curves were fitted for
        fitted_to = np.minimum(counts, ANSWERS)
        offsets = _at(self.examples, self.offsets, fitted_to, beyond=True) + seen * np.float32(self.noes)
        offsets += (counts == 0) * np.float32(ALONE) * np.maximum(seen - np.float32(math.log1p(MANY)), 0)
        slopes = _at(self.examples, self.slopes, counts) + seen * np.float32(self.noes_slope)
        offsets = steeper * (offsets - log_odds(np.array(self.share))) + log_odds(priors)
        return (steeper * slopes).astype(np.float32), offsets.astype(np.float32)

    def evidence(
        self,
        logits: NDArray[np.floating],
        counts: Counts,
        noes: NDArray[np.float32],
        coherence: NDArray[np.float32] | float,
    ) -> NDArray[np.float32]:
        """Log-likelihood ratios: calibrated log-odds less the log-odds of the prior that they hold for."""
        usual = np.full(len(counts), self.share, np.float32)
        slopes, offsets = self.curves(counts, noes, usual, coherence)
        return (slopes * logits + offsets - log_odds(usual)).astype(np.float32)

    def steeper(self, counts: Counts, coherence: NDArray[np.float32] | float = 0.0) -> NDArray[np.float32]:
        """The factor by which a rare label's curve is steeper than the model's, which was fitted to common labels.

        The model's curve is flattened by the differences between labels, most of all with one example, which matters
        for rare labels. In crowded pictures a rare label is harder to tell from others, and the pictures that it was
        learnt from indicate how crowded later ones will be.
        """
        known = np.greater(coherence, 0) & (self.coherence > 0)
        plain = np.exp(PLAIN * np.where(known, coherence - self.coherence, 0))
        return (_at(*STEEPER, counts) * plain).astype(np.float32)

    def threshold(self, counts: Counts, priors: Priors) -> NDArray[np.float32]:
        rows = np.stack([_at(self.examples, column, counts) for column in zip(*self.thresholds, strict=True)])
        known, wanted = log_odds(np.array(self.shares)), log_odds(priors)
        found = [np.interp(each, known, row) for each, row in zip(wanted, rows.T, strict=True)]
        return (np.array(found) * _by_prior(priors, 1.0, EASE)).astype(np.float32)


def _at(
    examples: Sequence[int], values: Sequence[float], counts: Counts, *, beyond: bool = False
) -> NDArray[np.float32]:
    """Linear interpolation over log(1 + number of examples): the fifth example changes less than the first.

    More examples than the last number have its value or, `beyond` it, one on the line through the last two.
    """
    known, wanted = np.log1p(examples), np.log1p(counts)
    found = np.interp(wanted, known, values)
    if beyond and len(known) > 1:
        found += np.maximum(wanted - known[-1], 0) * (values[-1] - values[-2]) / (known[-1] - known[-2])
    return found.astype(np.float32)


def _by_prior(priors: NDArray[np.floating], rare: NDArray[np.float32] | float, common: float) -> NDArray[np.float32]:
    """Linear interpolation, over the log-odds of the priors, between values for rare and for common labels."""
    least, most = log_odds(np.array([RARE, COMMON]))
    part = np.clip((log_odds(priors) - least) / (most - least), 0, 1)
    return (rare + part * (common - rare)).astype(np.float32)


def steepness(steeper: NDArray[np.float32], priors: NDArray[np.floating]) -> NDArray[np.float32]:
    """The factors by which curves are steeper at these priors; `steeper` are the factors for rare labels."""
    return _by_prior(priors, steeper, 1.0)


def log_odds(probabilities: NDArray[np.floating]) -> NDArray[np.float32]:
    """The logit, log(p / (1 - p)); finite even for those that single precision rounds to 0 or 1."""
    single = np.finfo(np.float32)
    inside = np.clip(probabilities, single.tiny, 1 - single.epsneg)
    return np.asarray(np.log(inside / (1 - inside)), np.float32)


GUESS, LEAN = 0.02, 0.025
"""The share of pictures that show a label, as it is guessed, and that guess's weight beside the mean of the evidence.

The weight is the same however large the sample is: what is wrong is mostly the curve, which more pictures do not mend.
Chosen by log-loss on the validation labels of both models, at shares from 0.005 to 0.4."""


def estimate_priors(evidence: NDArray[np.float32], *, steps: int = 50) -> Priors:
    """The share of pictures that show each label: the most probable one, given a sample's log-likelihood ratios.

    `evidence` is images × labels: calibrated log-odds less those of the prior that they held for. Beforehand the
    logarithm of a share is normally distributed around that of `GUESS`.
    """
    usual = float(log_odds(np.array(GUESS)))
    low, high = np.full((2, evidence.shape[1]), [[usual - 10], [usual + 10]])
    for _ in range(steps):  # bisection over the log-odds, to where the gradient changes its sign
        middle = (low + high) / 2
        share = sigmoid(middle)
        over = sigmoid(evidence + middle).mean(axis=0) - share - LEAN * np.log(share / GUESS) * (1 - share)
        low, high = np.where(over > 0, middle, low), np.where(over > 0, high, middle)
    return sigmoid((low + high) / 2).astype(np.float32)


OFFSET_SPREAD = 1.0
"""Standard deviation between labels of the error of a curve's offset; chosen by log-loss on validation labels."""


def match_priors(
    evidence: NDArray[np.float32],
    steeper: NDArray[np.float32],
    said: Priors,
    *,
    shown: float | None = None,
    steps: int = 50,
) -> Priors:
    """Priors under which a sample's probabilities agree with the stated share of pictures that show each label.

    One curve cannot know how hard a label is, nor how crowded an archive. If the share is known, the sum of the
    probabilities tells: each label's log-odds are shifted by the most probable offset, given that sum and a normal
    prior. The result is a prior, since an offset is equivalent to a prior shift. `evidence` is as in `estimate_priors`,
    `steeper` as in `Calibration`. `shown` is how many pictures of the sample show the label, if a person has looked:
    the sample may then be selected by score, which says nothing about what each picture shows beyond its score.
    """
    usual, wanted = log_odds(said).astype(np.float64), len(evidence) * said if shown is None else shown
    low, high = usual - 10, usual + 10
    for _ in range(steps):  # bisection: apart from the steepness, the gradient rises with the log-odds
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
    """A label's logits for pictures that it was not learnt from, and which of these show it."""

    examples: int
    noes: float
    """Total weight of the 'no's that the label was learnt from."""
    logits: NDArray[np.float32]
    shown: NDArray[np.bool_]


def calibrate(pairs: Sequence[Pairs], share: float, shares: Sequence[float]) -> Calibration:
    """Curves of maximum likelihood, and thresholds of the best F1, over labels never seen in fitting.

    Every label has the same weight, distributed as if `share` of its pictures showed it.
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
    # the weights already make the curves those of `share`, so no prior shift is needed
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
    """Weights of a label's pictures that sum to one, `share` of it on those that show the label."""
    return np.where(shown, share / max(shown.sum(), 1), (1 - share) / max((~shown).sum(), 1))


def _threshold(pairs: Sequence[Pairs], curves: Calibration, share: float) -> float:
    """The best threshold for labels with the same number of examples, each shown by `share` of the pictures."""
    priors = np.array([share], np.float32)
    said = []
    for each in pairs:
        counts, noes = np.array([each.examples]), np.array([each.noes], np.float32)
        slope, offset = curves.curves(counts, noes, priors)
        said.append(sigmoid(slope * each.logits + offset))
    shown = np.concatenate([each.shown for each in pairs])
    weights = np.concatenate([_weights(each.shown, share) for each in pairs])
    return round(best_threshold(np.concatenate(said), shown, weights, slack=SLACK), 4)


def fit_logistic(
    inputs: NDArray[np.float64], shown: NDArray[np.bool_], weights: NDArray[np.float64], steps: int = 100
) -> NDArray[np.float64]:
    """Weighted logistic regression with a negligible penalty, by damped Newton steps."""
    found = np.zeros(inputs.shape[1])
    ridge = 1e-9 * np.eye(inputs.shape[1]) * weights.sum()
    for _ in range(steps):
        chances = sigmoid(inputs @ found)
        gradient = inputs.T @ (weights * (chances - shown))
        curvature = weights * np.maximum(chances * (1 - chances), 1e-9)
        step = np.linalg.solve((inputs * curvature[:, None]).T @ inputs + ridge, gradient)
        found = found - step / max(1.0, float(np.abs(step).max()) / 2)  # damped: no leaps from a flat start
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
    """The highest threshold whose F1 over all pairs of image and label is within `slack` of the best.

    It lies halfway between two neighbouring probabilities: equal ones are given together or not at all.
    """
    order = np.argsort(-probabilities, kind="stable")
    each = np.ones(len(order)) if weights is None else weights[order]
    ranked, right = probabilities[order].astype(np.float64), np.cumsum(each * shown[order])
    f1 = 2 * right / (np.cumsum(each) + right[-1])
    ends = np.flatnonzero(np.diff(ranked, append=-np.inf))
    best = int(ends[f1[ends] >= f1[ends].max() - slack][0])
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)


def reliability(chances: NDArray[np.float32], shown: NDArray[np.bool_], bins: int) -> list[tuple[float, float, int]]:
    """Mean probability, frequency and number of pairs in each bin of equal width that has any."""
    bin_of = np.clip((chances.astype(np.float64) * bins).astype(np.int64), 0, bins - 1)
    each = (bin_of == number for number in range(bins))
    return [(float(chances[some].mean()), float(shown[some].mean()), int(some.sum())) for some in each if some.any()]


def calibration_error(probabilities: NDArray[np.float32], shown: NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error: the mean gap between probability and frequency, in bins of equal width."""
    return sum(abs(said - true) * pairs for said, true, pairs in reliability(probabilities, shown, bins)) / len(shown)
