"""Word-guided prototypes in closed form, and the posterior: logistic regressions with the prototypes as their prior.

The base pictures span a whitened space; the base labels' prototypes in it give, by ridge regression on their word
vectors, a prototype for any word. An example is pooled with attention to the places that look like its label's word,
and the word itself is mixed in, the less the more examples there are: words as a prior on the prototype p. A picture is
seen as a whole and pooled with attention to the places that look like the prototype:

    logit(x) = kappa (score(x, p) - offset) + w · [whole(x), focused(x)] + b,    w, b ~ Normal(0, 1 / penalty)

With no example it is the prototype's own score; every yes and no moves it from there, and the prior gives way by
itself. The fit is convex and solved in the span of the examples (kernel logistic regression with a linear kernel), so
that it takes milliseconds; what it finds is two vectors and a number for each label.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Places = NDArray[np.float32]
"""images × places × space: the places of a feature map, in the whitened space."""
Vectors = NDArray[np.float32]
"""labels × space (prototypes) or labels × dimensions (words)."""
Scores = NDArray[np.float32]
"""images × labels: log-odds."""
Features = NDArray[np.float32]
"""images × channels: global features."""

LABELS_AT_ONCE = 1000
"""With more, what lies between places and scores leaves the processor's cache, and a label takes twice as long."""
COMPARED = 0.75
"""Part of the variance within a label that is left when pictures are compared with others (by validation labels)."""
NEWTON_STEPS = 50
TOLERANCE = 1e-8
"""Of the dual weights, in a Newton step: where it stops."""


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Hyper-parameters that the validation labels chose; they travel with a model."""

    shrinkage: float = 5.0
    separation: float = 200.0
    ridge: float = 3.0
    class_weight: float = 0.3
    """Of a class's name beside a base label's, in the word map."""
    word_weight: float = 1.0
    word_decay: float = 0.75
    support_focus: float = 8.0
    query_focus: float = 48.0
    query_local: float = 0.6
    kappa: float = 6.0
    """The posterior's: how steep the prior's logit is in the prototype's score,"""
    offset: float = 0.3
    """the score at which it is even,"""
    penalty: float = 0.2
    """how firmly examples are held to the prior,"""
    bias: float = 0.3
    """the prior's variance of the intercept, as part of the kernel,"""
    unnamed: float = 0.25
    """and how much a picture counts as a 'no' to a label that it does not name."""


@dataclass(frozen=True, eq=False)
class Space:
    """A whitened space: principal directions of the base pictures' features, the weak ones whitened less."""

    mean: NDArray[np.float32]
    """channels"""
    basis: NDArray[np.float32]
    """channels × space"""

    @property
    def size(self) -> int:
        return int(self.basis.shape[1])

    def project(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features, channels last, in the whitened space."""
        centred: NDArray[np.float32] = features - self.mean
        return centred @ self.basis


@dataclass(frozen=True, eq=False)
class WordMap:
    """Ridge regression from word vectors to prototypes."""

    mean: NDArray[np.float32]
    """dimensions: of the base labels' words"""
    matrix: NDArray[np.float32]
    """dimensions × space"""

    def prototypes(self, words: Vectors) -> Vectors:
        """What the words alone suggest; unit vectors."""
        centred: Vectors = words - self.mean
        return unit(unit(centred) @ self.matrix)


def unit(vectors: NDArray[Floats]) -> NDArray[Floats]:
    """L2 normalisation along the last axis; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def fit_space(features: Features, size: int, shrinkage: float) -> Space:
    """Whitens by the strongest principal directions, each divided by its spread, the weak ones less so."""
    doubles = features.astype(np.float64)
    centred = doubles - doubles.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    variances, directions = variances[-size:], directions[:, -size:]
    basis = directions / np.sqrt(variances + shrinkage * variances.mean())
    return Space(doubles.mean(axis=0).astype(np.float32), basis.astype(np.float32))


def base_prototypes(projected: Features, targets: NDArray[np.bool_], separation: float) -> Vectors:
    """The base labels' prototypes by least squares, not by means: labels that occur together are told apart."""
    shown = targets.astype(np.float64)
    together = shown.T @ shown + separation * np.eye(shown.shape[1])
    return unit(np.linalg.solve(together, shown.T @ projected.astype(np.float64))).astype(np.float32)


def fit_words(words: Vectors, prototypes: Vectors, ridge: float, weights: NDArray[np.float32] | None = None) -> WordMap:
    """Ridge regression from names' words to their prototypes; `weights` are those of names that are no base labels.

    Words are centred at the base labels' mean and of unit length. The names with weights come last.
    """
    extra = np.zeros(0) if weights is None else weights
    labels = len(words) - len(extra)
    mean = words[:labels].astype(np.float64).mean(axis=0).astype(np.float32)
    root = np.sqrt(np.concatenate([np.ones(labels), extra]))[:, None]
    inputs = root * unit(words - mean).astype(np.float64)
    outputs = root * prototypes.astype(np.float64)
    if len(inputs) <= inputs.shape[1]:  # the smaller of the two systems, with one solution
        matrix = inputs.T @ np.linalg.solve(inputs @ inputs.T + ridge * np.eye(len(inputs)), outputs)
    else:
        matrix = np.linalg.solve(inputs.T @ inputs + ridge * np.eye(inputs.shape[1]), inputs.T @ outputs)
    return WordMap(mean, matrix.astype(np.float32))


def class_prototypes(projected: Features, chances: NDArray[np.float32]) -> Vectors:
    """Prototypes of a classifier's classes: base pictures weighted by how much it takes them for each (soft labels)."""
    return unit(chances.T.astype(np.float64) @ projected).astype(np.float32)


def pooled_length(places: Places, attention: NDArray[np.float32]) -> NDArray[np.float32]:
    """Length of each attention pooling, images × labels.

    For many labels it follows from the places' inner products, and the pooled vectors are never made.
    """
    turned = attention.transpose(0, 2, 1)
    if attention.shape[2] <= places.shape[1]:
        return np.maximum(np.linalg.norm(turned @ places, axis=-1), 1e-6)
    gram = places @ places.transpose(0, 2, 1)
    squares = np.einsum("ilp,ilp->il", turned @ gram, turned)
    return np.sqrt(np.maximum(squares, 1e-12))


def softmax(values: NDArray[np.floating], axis: int) -> NDArray[np.float32]:
    """Exponentials that sum to one along an axis."""
    powers: NDArray[np.float32]
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


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

    def take(self, rows: slice | NDArray[np.bool_] | NDArray[np.int64]) -> "Pictures":
        return Pictures(*(part[rows] for part in self))

    def coherence(self) -> NDArray[np.float32]:
        """How much alike the places of each picture are, from 0 to 1: those of crowded pictures are less so."""
        lengths = np.maximum(self.lengths.mean(axis=1), 1e-12)
        return np.asarray(np.linalg.norm(self.places.mean(axis=1), axis=-1) / lengths, np.float32)

    def attend(self, guide: NDArray[np.float32], focus: float) -> NDArray[np.float32]:
        """Attention pooling of each picture to the places that look like the guide: images × space, unit vectors."""
        attention = softmax((self.places @ guide) / np.maximum(self.lengths, 1e-12) * focus, axis=1)
        return unit(np.matmul(attention[:, None], self.places)[:, 0])

    def scores(self, word: NDArray[np.float32], strengths: Strengths) -> NDArray[np.float32]:
        """How alike each picture is to what a word suggests, as a prototype's score."""
        local = np.float32(strengths.query_local)
        return (1 - local) * (self.whole @ word) + local * (self.attend(word, strengths.query_focus) @ word)


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
    coherence: float = 0.0
    """Of the pictures that it was fitted to (`Pictures.coherence`), on average; 0 where that is not known."""
    left_out: NDArray[np.float64] | None = None
    """Each picture's logit by the others, where that was asked for."""


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
    """L2 norms, images × places; quicker than numpy's, which takes the absolute values first."""
    return np.sqrt(np.einsum("ips,ips->ip", places, places))


@dataclass(frozen=True)
class NameEvidence:
    """How alike pictures are to their label's name when it means what they show, and when it means something else.

    What counts is by how much a label's pictures score higher with its name than pictures that do not show it (score
    normalisation by impostors): a wrong name suits all of them alike. The difference is taken for normal, so that the
    probability that a name is right is a logistic curve.
    """

    right: float = 0.24
    """Mean score of a picture with its label's name,"""
    wrong: float = 0.05
    """and with another name."""
    between: float = 0.07
    """Standard deviation between labels."""
    within: float = 0.07
    """Standard deviation between pictures of one label."""
    prior: float = 0.5
    """The share of names that are right, before any picture: private ones ("Rex") are as common as words."""

    def trust(self, scores: NDArray[np.float32], others: NDArray[np.float32], weights: NDArray[np.float32]) -> float:
        """The probability that a name is right with which a label's pictures and others, of such weights, score so."""
        usual = (float(weights @ others) + self.wrong) / (float(weights.sum()) + 1)  # with one more, of a wrong name
        variance = self.between**2 + COMPARED * self.within**2 / len(scores)
        gap = self.right - self.wrong
        evidence = gap * (float(scores.mean()) - usual - gap / 2) / variance
        odds = evidence + math.log(self.prior / (1 - self.prior))
        return float(np.float32(0.5 + 0.5 * math.tanh(odds / 2)))  # as a bank keeps it


def fit_label(
    pictures: Pictures,
    shown: NDArray[np.bool_],
    weights: NDArray[np.float32],
    word: NDArray[np.float32] | None,
    strengths: Strengths,
    evidence: NameEvidence,
    compared: NDArray[np.bool_] | None = None,
    *,
    leave_out: bool = False,
) -> Fitted:
    """One label's classifier from pictures that show it or do not, each with its weight, and what its name suggests.

    The name is judged by how much better it suits the pictures that show the label than those that are `compared`: all
    others, where nothing is said.
    """
    first = slice(int(shown.sum()))  # where those that show it come first, nothing need be copied
    yes = pictures.take(first if shown[first].all() else shown)
    trust = 1.0
    if word is not None and len(yes.places):
        others = np.flatnonzero(~shown if compared is None else compared)
        scores = pictures.take(others).scores(word, strengths)
        trust = evidence.trust(yes.scores(word, strengths), scores, weights[others])
    guide = prototype(yes, word, trust, strengths)
    fitted = prior(guide, strengths)
    if not len(shown):
        return fitted._replace(trust=trust)
    local = strengths.query_local
    focused = pictures.attend(guide, strengths.query_focus)
    before = pictures.whole @ fitted.whole + focused @ fitted.focused + fitted.bias
    gram = (1 - local) * (pictures.whole @ pictures.whole.T) + local * (focused @ focused.T) + strengths.bias
    covariances = gram / strengths.penalty
    weighted = map_logistic(covariances, before, shown, weights)
    dual = weighted / strengths.penalty
    return Fitted(
        guide,
        fitted.whole + ((1 - local) * (dual @ pictures.whole)).astype(np.float32),
        fitted.focused + (local * (dual @ focused)).astype(np.float32),
        fitted.bias + strengths.bias * float(dual.sum()),
        trust,
        float(weights[~shown].sum()),
        left_out=leave_one_out(covariances, before + covariances @ weighted, shown, weights) if leave_out else None,
    )


def prior(guide: NDArray[np.float32], strengths: Strengths) -> Fitted:
    """The classifier of a prototype alone."""
    scaled = np.float32(strengths.kappa) * guide
    local = np.float32(strengths.query_local)
    return Fitted(guide, (1 - local) * scaled, local * scaled, -strengths.kappa * strengths.offset)


def prototype(
    examples: Pictures, word: NDArray[np.float32] | None, trust: float, strengths: Strengths
) -> NDArray[np.float32]:
    """Attended examples with the word mixed in, the less the more there are and the less it is trusted."""
    count = len(examples.places)
    if word is None:
        # guided by nothing, all places count alike
        return unit(examples.whole.sum(axis=0))
    if not count:
        return word
    visual = unit(examples.attend(np.float32(trust) * word, strengths.support_focus).sum(axis=0))
    weight = trust * strengths.word_weight * count**-strengths.word_decay
    return unit(visual + np.float32(weight) * word)


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


def leave_one_out(
    covariances: NDArray[np.floating],
    logits: NDArray[np.floating],
    shown: NDArray[np.bool_],
    weights: NDArray[np.floating],
) -> NDArray[np.float64]:
    """Each logit of a fit by `map_logistic` as it were without that picture: a Newton step from the fit to all of them.

    The prior's means stay, though a prototype would be another without one of its examples.
    """
    chances = 0.5 + 0.5 * np.tanh(logits.astype(np.float64) / 2)
    curvature = np.maximum(weights * chances * (1 - chances), 1e-9)
    root = np.sqrt(curvature)
    alone = np.diag(np.linalg.inv(np.eye(len(root)) + root[:, None] * covariances * root))
    return np.asarray(logits - weights * (shown - chances) * (1 - alone) / (curvature * alone), np.float64)
