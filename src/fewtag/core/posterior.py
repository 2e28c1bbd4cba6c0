"""Word-guided prototypes in closed form, and labels' classifiers: logistic regressions with a prototype as prior.

The base pictures span a whitened space; ridge regression from the base labels' word vectors to their prototypes in it
gives a prototype for any word. An example is pooled with attention to the places that look like its label's word, and
the word itself is mixed in, with less weight the more examples there are: words are a prior on the prototype p. A
picture is represented by its mean and by attention pooling to the places that look like the prototype ("attended"):

    logit(x) = kappa (score(x, p) - offset) + w · [mean(x), attended(x)] + b,    w, b ~ Normal(0, 1 / penalty)

Without examples it is the prototype's own score; every yes and no moves it from there, and the prior loses influence by
itself. The fit is convex and solved in the span of the examples (kernel logistic regression with a linear kernel), so
that it takes milliseconds; its result is two vectors and a number for each label.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Places = NDArray[np.float32]
"""images × places × space: whitened feature vectors at the places (spatial positions) of a feature map."""
Vectors = NDArray[np.float32]
"""labels × space (prototypes) or labels × dimensions (words)."""
Scores = NDArray[np.float32]
"""images × labels: log-odds."""
Features = NDArray[np.float32]
"""images × channels: global features."""

LABELS_AT_ONCE = 1000
"""With more, the intermediate arrays leave the processor's cache, and a label takes twice as long."""
VARIANCE_LEFT = 0.75
"""Share of the variance within a label that remains in a comparison with others (chosen on validation labels)."""
NEWTON_STEPS = 50
TOLERANCE = 1e-8
"""Newton's method stops when no dual weight changes by more than this."""


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Hyper-parameters chosen on the validation labels; they are stored with a model."""

    shrinkage: float = 5.0
    separation: float = 200.0
    ridge: float = 3.0
    class_weight: float = 0.3
    """Weight of a classifier's class name relative to a base label's, in the word map."""
    word_weight: float = 1.0
    word_decay: float = 0.75
    support_focus: float = 8.0
    query_focus: float = 48.0
    query_local: float = 0.6
    kappa: float = 6.0
    """Slope of the prior's logit in the prototype's score."""
    offset: float = 0.3
    """The prototype's score at which the prior's probability is one half."""
    penalty: float = 0.2
    """Strength of the prior: how firmly examples are held to it."""
    bias: float = 0.3
    """Prior variance of the intercept, as part of the kernel."""
    unnamed: float = 0.25
    """Weight of a picture as a 'no' to a label that it does not name."""


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
        """Features, channels last, projected to the whitened space."""
        centred: NDArray[np.float32] = features - self.mean
        return centred @ self.basis


@dataclass(frozen=True, eq=False)
class WordMap:
    """Ridge regression from word vectors to prototypes."""

    mean: NDArray[np.float32]
    """dimensions: mean of the base labels' word vectors"""
    matrix: NDArray[np.float32]
    """dimensions × space"""

    def prototypes(self, words: Vectors) -> Vectors:
        """The prototypes that the words alone suggest; unit vectors."""
        centred: Vectors = words - self.mean
        return unit(unit(centred) @ self.matrix)


def unit(vectors: NDArray[Floats]) -> NDArray[Floats]:
    """L2 normalisation along the last axis; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def fit_space(features: Features, size: int, shrinkage: float) -> Space:
    """Whitens by the strongest principal directions, divided by their standard deviations, the weak ones less so."""
    doubles = features.astype(np.float64)
    centred = doubles - doubles.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    variances, directions = variances[-size:], directions[:, -size:]
    basis = directions / np.sqrt(variances + shrinkage * variances.mean())
    return Space(doubles.mean(axis=0).astype(np.float32), basis.astype(np.float32))


def base_prototypes(projected: Features, targets: NDArray[np.bool_], separation: float) -> Vectors:
    """The base labels' prototypes by least squares rather than by means, which separates labels that occur together."""
    shown = targets.astype(np.float64)
    together = shown.T @ shown + separation * np.eye(shown.shape[1])
    return unit(np.linalg.solve(together, shown.T @ projected.astype(np.float64))).astype(np.float32)


def fit_words(words: Vectors, prototypes: Vectors, ridge: float, weights: NDArray[np.float32] | None = None) -> WordMap:
    """Ridge regression from names' word vectors to their prototypes; `weights` are for names that are no base labels.

    Word vectors are centred at the base labels' mean and scaled to unit length. The names with weights come last.
    """
    extra = np.zeros(0) if weights is None else weights
    labels = len(words) - len(extra)
    mean = words[:labels].astype(np.float64).mean(axis=0).astype(np.float32)
    root = np.sqrt(np.concatenate([np.ones(labels), extra]))[:, None]
    inputs = root * unit(words - mean).astype(np.float64)
    outputs = root * prototypes.astype(np.float64)
    if len(inputs) <= inputs.shape[1]:  # primal or dual, whichever system is smaller: the solution is the same
        matrix = inputs.T @ np.linalg.solve(inputs @ inputs.T + ridge * np.eye(len(inputs)), outputs)
    else:
        matrix = np.linalg.solve(inputs.T @ inputs + ridge * np.eye(inputs.shape[1]), inputs.T @ outputs)
    return WordMap(mean, matrix.astype(np.float32))


def class_prototypes(projected: Features, chances: NDArray[np.float32]) -> Vectors:
    """Prototypes of a classifier's classes: base pictures weighted by their class probabilities (soft labels)."""
    return unit(chances.T.astype(np.float64) @ projected).astype(np.float32)


def pooled_length(places: Places, attention: NDArray[np.float32]) -> NDArray[np.float32]:
    """Lengths of the attention-pooled vectors, images × labels.

    For many labels they are computed from the places' inner products, without the pooled vectors.
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
    """Examples prepared for attention: their places, the places' lengths, and each picture's normalised mean."""

    places: Places
    """images × places × space"""
    lengths: NDArray[np.float32]
    """images × places"""
    means: NDArray[np.float32]
    """images × space, unit vectors"""

    @classmethod
    def of(cls, places: Places) -> "Pictures":
        return cls(places, place_lengths(places), unit(places.mean(axis=1)))

    def take(self, rows: slice | NDArray[np.bool_] | NDArray[np.int64]) -> "Pictures":
        return Pictures(*(part[rows] for part in self))

    def coherence(self) -> NDArray[np.float32]:
        """How similar the places of each picture are, from 0 to 1: lower for crowded pictures."""
        lengths = np.maximum(self.lengths.mean(axis=1), 1e-12)
        return np.asarray(np.linalg.norm(self.places.mean(axis=1), axis=-1) / lengths, np.float32)

    def attend(self, query: NDArray[np.float32], focus: float) -> NDArray[np.float32]:
        """Attention pooling of each picture's places that look like the query: images × space, unit vectors."""
        attention = softmax((self.places @ query) / np.maximum(self.lengths, 1e-12) * focus, axis=1)
        return unit(np.matmul(attention[:, None], self.places)[:, 0])

    def scores(self, word: NDArray[np.float32], strengths: Strengths) -> NDArray[np.float32]:
        """Each picture's score with the prototype that a word suggests."""
        local = np.float32(strengths.query_local)
        return (1 - local) * (self.means @ word) + local * (self.attend(word, strengths.query_focus) @ word)


class Fitted(NamedTuple):
    """One label's classifier, and how far its pictures support its name."""

    prototype: NDArray[np.float32]
    """The query of the attention, and the prior's mean."""
    mean_weights: NDArray[np.float32]
    """Weights of the picture's normalised mean; in files `whole`."""
    attended_weights: NDArray[np.float32]
    """Weights of the attention-pooled vector; in files `focused`."""
    bias: float
    trust: float = 1.0
    """The probability that the name means what the examples show; 1 without examples."""
    noes: float = 0.0
    """Total weight of the pictures that do not show the label."""
    coherence: float = 0.0
    """Mean coherence of the pictures that it was fitted to (`Pictures.coherence`); 0 if unknown."""
    left_out: NDArray[np.float64] | None = None
    """Leave-one-out logit of each picture, if asked for."""


@dataclass(frozen=True, eq=False)
class Classifiers:
    """Several labels' classifiers, one row each."""

    prototypes: Vectors
    mean_weights: Vectors
    attended_weights: Vectors
    bias: NDArray[np.float32]

    @classmethod
    def of(cls, fitted: Sequence[Fitted]) -> "Classifiers":
        prototypes, on_mean, on_attended = (np.stack(rows) for rows in zip(*(each[:3] for each in fitted), strict=True))
        return cls(prototypes, on_mean, on_attended, np.array([each.bias for each in fitted], np.float32))

    def logits(self, places: Places, strengths: Strengths) -> Scores:
        """images × labels"""
        lengths = np.maximum(place_lengths(places), 1e-12)[..., None]
        means = unit(places.mean(axis=1))
        found = []
        for first in range(0, len(self.prototypes), LABELS_AT_ONCE):
            some = slice(first, first + LABELS_AT_ONCE)
            alike = (places @ self.prototypes[some].T) / lengths
            # an unnormalised softmax: its sum would cancel between the pooled vector and its length
            attention = np.exp(strengths.query_focus * (alike - alike.max(axis=1, keepdims=True)))
            along = (attention * (places @ self.attended_weights[some].T)).sum(axis=1)
            on_mean = means @ self.mean_weights[some].T
            found.append(along / pooled_length(places, attention) + on_mean + self.bias[some])
        return np.concatenate(found, axis=1)


def place_lengths(places: Places) -> NDArray[np.float32]:
    """L2 norms, images × places; faster than numpy's, which takes absolute values first."""
    return np.sqrt(np.einsum("ips,ips->ip", places, places))


@dataclass(frozen=True)
class NameEvidence:
    """A test of whether a label's name means what its pictures show, by their scores with the name.

    What counts is by how much the label's pictures score higher with its name than pictures that do not show it (score
    normalisation by impostors): a wrong name scores alike with all of them. The difference is modelled as normal, so
    that the probability that a name is right is a logistic curve.
    """

    right: float = 0.24
    """Mean score of a picture with its label's name."""
    wrong: float = 0.05
    """Mean score of a picture with another name."""
    between: float = 0.07
    """Standard deviation between labels."""
    within: float = 0.07
    """Standard deviation between pictures of one label."""
    prior: float = 0.5
    """Prior probability that a name is right: private names ("Rex") are as common as words."""

    def trust(self, scores: NDArray[np.float32], others: NDArray[np.float32], weights: NDArray[np.float32]) -> float:
        """The probability that a name is right, by the scores of the label's pictures and weighted ones of others."""
        usual = (float(weights @ others) + self.wrong) / (float(weights.sum()) + 1)  # plus one pseudo-observation
        variance = self.between**2 + VARIANCE_LEFT * self.within**2 / len(scores)
        gap = self.right - self.wrong
        evidence = gap * (float(scores.mean()) - usual - gap / 2) / variance
        odds = evidence + math.log(self.prior / (1 - self.prior))
        return float(np.float32(0.5 + 0.5 * math.tanh(odds / 2)))  # in the precision of a bank file


def fit_label(
    pictures: Pictures,
    shown: NDArray[np.bool_],
    weights: NDArray[np.float32],
    word: NDArray[np.float32] | None,
    strengths: Strengths,
    evidence: NameEvidence,
    impostors: NDArray[np.bool_] | None = None,
    *,
    leave_out: bool = False,
) -> Fitted:
    """Fits one label's classifier to weighted pictures that show it or do not, and to its name's prototype.

    The name is judged by how much better it matches the pictures that show the label than the `impostors`, by default
    all others.
    """
    first = slice(int(shown.sum()))  # if the pictures that show it come first, nothing is copied
    yes = pictures.take(first if shown[first].all() else shown)
    trust = 1.0
    if word is not None and len(yes.places):
        others = np.flatnonzero(~shown if impostors is None else impostors)
        scores = pictures.take(others).scores(word, strengths)
        trust = evidence.trust(yes.scores(word, strengths), scores, weights[others])
    prototype = support_prototype(yes, word, trust, strengths)
    fitted = prototype_classifier(prototype, strengths)
    if not len(shown):
        return fitted._replace(trust=trust)
    local = strengths.query_local
    means, attended = pictures.means, pictures.attend(prototype, strengths.query_focus)
    before = means @ fitted.mean_weights + attended @ fitted.attended_weights + fitted.bias
    gram = (1 - local) * (means @ means.T) + local * (attended @ attended.T) + strengths.bias
    covariances = gram / strengths.penalty
    weighted = map_logistic(covariances, before, shown, weights)
    dual = weighted / strengths.penalty
    return Fitted(
        prototype,
        fitted.mean_weights + ((1 - local) * (dual @ means)).astype(np.float32),
        fitted.attended_weights + (local * (dual @ attended)).astype(np.float32),
        fitted.bias + strengths.bias * float(dual.sum()),
        trust,
        float(weights[~shown].sum()),
        left_out=leave_one_out(covariances, before + covariances @ weighted, shown, weights) if leave_out else None,
    )


def prototype_classifier(prototype: NDArray[np.float32], strengths: Strengths) -> Fitted:
    """The classifier given by a prototype alone."""
    scaled = np.float32(strengths.kappa) * prototype
    local = np.float32(strengths.query_local)
    return Fitted(prototype, (1 - local) * scaled, local * scaled, -strengths.kappa * strengths.offset)


def support_prototype(
    examples: Pictures, word: NDArray[np.float32] | None, trust: float, strengths: Strengths
) -> NDArray[np.float32]:
    """Attention-pooled examples plus the word, which counts less with more examples and with less trust."""
    count = len(examples.places)
    if word is None:
        # without a query all places count alike
        return unit(examples.means.sum(axis=0))
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
    """Dual weights of the MAP logistic regression under a Gaussian prior, by damped Newton steps.

    `gram` holds the prior's covariances of the logits, `before` their means. The fitted logits are the means plus the
    covariances times these weights.
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
        # the loss is convex: a step that is short enough lowers it, up to rounding
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
    """Approximate leave-one-out logits of a fit by `map_logistic`: one Newton step from the fit to all pictures.

    The prior's means are kept, though a prototype would differ without one of its examples.
    """
    chances = 0.5 + 0.5 * np.tanh(logits.astype(np.float64) / 2)
    curvature = np.maximum(weights * chances * (1 - chances), 1e-9)
    root = np.sqrt(curvature)
    alone = np.diag(np.linalg.inv(np.eye(len(root)) + root[:, None] * covariances * root))
    return np.asarray(logits - weights * (shown - chances) * (1 - alone) / (curvature * alone), np.float64)
