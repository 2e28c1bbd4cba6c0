"""The posterior: a logistic regression for each label whose prior is the label's prototype of words and pictures.

A picture is seen as a whole and pooled with attention to the places that look like the prototype p:

    logit(x) = kappa (score(x, p) - offset) + w · [whole(x), focused(x)] + b,    w, b ~ Normal(0, 1 / penalty)

With no example it is the prototype's own score; every yes and no moves it from there, and the prior gives way by
itself. The fit is convex and solved in the span of the examples (kernel logistic regression with a linear kernel), so
that it takes milliseconds; what it finds is two vectors and a number for each label.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.core.closed_form import LABELS_AT_ONCE, Places, Scores, Strengths, Vectors, pooled_length, softmax, unit

NEWTON_STEPS = 50
TOLERANCE = 1e-8
"""Of the dual weights, in a Newton step: where it stops."""


class Pictures(NamedTuple):
    """Examples ready to be attended to: their places, the places' lengths, and each one as a whole."""

    places: Places
    """images × places × space"""
    lengths: NDArray[np.float32]
    """images × places"""
    whole: NDArray[np.float32]
    """images × space, unit vectors"""

    @classmethod
    def of(cls, places: Places) -> "Pictures":
        return cls(places, place_lengths(places), unit(places.mean(axis=1)))

    def attend(self, guide: NDArray[np.float32], focus: float) -> NDArray[np.float32]:
        """Attention pooling of each picture to the places that look like the guide: images × space, unit vectors."""
        attention = softmax((self.places @ guide) / np.maximum(self.lengths, 1e-12) * focus, axis=1)
        return unit(np.matmul(attention[:, None], self.places)[:, 0])


class Fitted(NamedTuple):
    """One label's classifier, and how far its pictures bear its name out."""

    guide: NDArray[np.float32]
    """The prototype: where attention looks, and the prior's mean."""
    whole: NDArray[np.float32]
    """Weights of the picture as a whole."""
    focused: NDArray[np.float32]
    """Weights of what attention found."""
    bias: float
    trust: float = 1.0
    """The probability that the name means what the examples show; one without examples."""
    noes: float = 0.0
    """Weight of the pictures that do not show it."""


@dataclass(frozen=True, eq=False)
class Classifiers:
    """Several labels' classifiers, a row each."""

    guides: Vectors
    whole: Vectors
    focused: Vectors
    bias: NDArray[np.float32]

    @classmethod
    def of(cls, fitted: Sequence[Fitted]) -> "Classifiers":
        guides, whole, focused = (np.stack(rows) for rows in zip(*(each[:3] for each in fitted), strict=True))
        return cls(guides, whole, focused, np.array([each.bias for each in fitted], np.float32))

    def logits(self, places: Places, strengths: Strengths) -> Scores:
        """images × labels"""
        lengths = np.maximum(place_lengths(places), 1e-12)[..., None]
        whole = unit(places.mean(axis=1))
        found = []
        for first in range(0, len(self.guides), LABELS_AT_ONCE):
            some = slice(first, first + LABELS_AT_ONCE)
            alike = (places @ self.guides[some].T) / lengths
            # a softmax but for its sum, by which both what is pooled and its length would be divided
            attention = np.exp(strengths.query_focus * (alike - alike.max(axis=1, keepdims=True)))
            along = (attention * (places @ self.focused[some].T)).sum(axis=1)
            found.append(along / pooled_length(places, attention) + whole @ self.whole[some].T + self.bias[some])
        return np.concatenate(found, axis=1)


def place_lengths(places: Places) -> NDArray[np.float32]:
    """images × places; quicker than numpy's norm, which takes the absolute values first."""
    return np.sqrt(np.einsum("ips,ips->ip", places, places))


@dataclass(frozen=True)
class NameEvidence:
    """How alike pictures are to their label's name when it means what they show, and when it means something else.

    Scores of right and of wrong names with a label's pictures are taken for normal, with one variance between labels
    and one between the pictures of a label: the probability that a name is right is then a logistic curve.
    """

    right: float = 0.24
    """Mean score of a picture with its label's name."""
    wrong: float = 0.05
    between: float = 0.07
    """Standard deviation between labels."""
    within: float = 0.07
    """Standard deviation between pictures of one label."""
    prior: float = 0.5
    """The share of names that are right, before any picture: private ones ("Rex") are as common as words."""

    def trust(self, scores: NDArray[np.float32]) -> float:
        """The probability that a name is right whose pictures score so."""
        if not len(scores):
            return 1.0
        variance = self.between**2 + self.within**2 / len(scores)
        middle = (self.right + self.wrong) / 2
        evidence = (self.right - self.wrong) * (float(scores.mean()) - middle) / variance
        odds = evidence + math.log(self.prior / (1 - self.prior))
        return float(np.float32(0.5 + 0.5 * math.tanh(odds / 2)))  # as a bank keeps it


def fit_label(
    pictures: Pictures,
    shown: NDArray[np.bool_],
    weights: NDArray[np.float32],
    word: NDArray[np.float32] | None,
    strengths: Strengths,
    evidence: NameEvidence,
) -> Fitted:
    """One label's classifier from pictures that show it or do not, each with its weight, and what its name suggests."""
    yes = Pictures(*(part[shown] for part in pictures))
    guide, trust = prototype(yes, word, strengths, evidence)
    fitted = prior(guide, strengths)
    if not len(shown):
        return fitted._replace(trust=trust)
    local = strengths.query_local
    focused = pictures.attend(guide, strengths.query_focus)
    before = pictures.whole @ fitted.whole + focused @ fitted.focused + fitted.bias
    gram = (1 - local) * (pictures.whole @ pictures.whole.T) + local * (focused @ focused.T) + strengths.bias
    dual = map_logistic(gram / strengths.penalty, before, shown, weights) / strengths.penalty
    return Fitted(
        guide,
        fitted.whole + ((1 - local) * (dual @ pictures.whole)).astype(np.float32),
        fitted.focused + (local * (dual @ focused)).astype(np.float32),
        fitted.bias + strengths.bias * float(dual.sum()),
        trust,
        float(weights[~shown].sum()),
    )


def prior(guide: NDArray[np.float32], strengths: Strengths) -> Fitted:
    """The classifier of a prototype alone."""
    scaled = np.float32(strengths.kappa) * guide
    local = np.float32(strengths.query_local)
    return Fitted(guide, (1 - local) * scaled, local * scaled, -strengths.kappa * strengths.offset)


def prototype(
    examples: Pictures, word: NDArray[np.float32] | None, strengths: Strengths, evidence: NameEvidence
) -> tuple[NDArray[np.float32], float]:
    """Attended examples with the word mixed in, the less the more there are and the less they bear it out."""
    count = len(examples.places)
    if word is None:
        # guided by nothing, all places count alike
        return unit(examples.whole.sum(axis=0)), 1.0
    if not count:
        return word, 1.0
    local = np.float32(strengths.query_local)
    focused = examples.attend(word, strengths.query_focus)
    trust = evidence.trust((1 - local) * (examples.whole @ word) + local * (focused @ word))
    visual = unit(examples.attend(np.float32(trust) * word, strengths.support_focus).sum(axis=0))
    weight = trust * strengths.word_weight * count**-strengths.word_decay
    return unit(visual + np.float32(weight) * word), trust


def map_logistic(
    gram: NDArray[np.floating],
    before: NDArray[np.floating],
    shown: NDArray[np.bool_],
    weights: NDArray[np.floating],
) -> NDArray[np.float64]:
    """Dual weights of the likeliest logistic regression with a Gaussian prior, by damped Newton steps.

    `gram` holds the prior's covariances of the logits, `before` their means. A logit is then its mean before plus its
    row of the covariances times these weights.
    """
    covariances, before = gram.astype(np.float64), before.astype(np.float64)
    weights, targets = weights.astype(np.float64), shown.astype(np.float64)
    dual = np.zeros(len(before))
    moved = np.zeros(len(before))

    def loss(dual: NDArray[np.float64], moved: NDArray[np.float64]) -> float:
        logits = before + moved
        misfit = weights @ (np.logaddexp(0, logits) - targets * logits)
        return float(misfit + 0.5 * dual @ moved)

    now = loss(dual, moved)
    for _ in range(NEWTON_STEPS):
        chances = 0.5 + 0.5 * np.tanh((before + moved) / 2)  # the logistic function, without overflow
        curvature = weights * chances * (1 - chances)
        root = np.sqrt(curvature)
        wanted = curvature * moved + weights * (targets - chances)
        inner = np.eye(len(root)) + root[:, None] * covariances * root
        step = wanted - root * np.linalg.solve(inner, root * (covariances @ wanted)) - dual
        shift = covariances @ step
        length = 1.0
        # convex: a step that is short enough gains, up to rounding
        while (after := loss(dual + length * step, moved + length * shift)) > now + 1e-9 * abs(now) and length > 1e-4:
            length /= 2
        dual, moved, now = dual + length * step, moved + length * shift, after
        if np.abs(length * step).max() < TOLERANCE:
            break
    return dual
