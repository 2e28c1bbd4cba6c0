"""Word-guided prototypes in closed form: a few matrix products and two small solves, no gradient anywhere.

The base pictures span a whitened space; the base labels' prototypes in it give, by ridge regression on their word
vectors, a prototype for any word. An example is pooled with attention to the places that look like its label's word,
and the word itself is mixed in, the less the more examples there are: words as a prior on the prototype.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=np.floating)
Places = NDArray[np.float32]
"""images × places × space: the places of a feature map, in the whitened space."""
Vectors = NDArray[np.float32]
"""labels × space (prototypes) or labels × dimensions (words)."""
Scores = NDArray[np.float32]
"""images × labels, between −1 and 1."""
Features = NDArray[np.float32]
"""images × channels: global features."""

LABELS_AT_ONCE = 1000
"""With more, what lies between places and scores leaves the processor's cache, and a label takes twice as long."""


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """What the validation labels chose; they travel with a model."""

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
    """Of length one along the last axis; zero stays zero."""
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


def attend(places: Places, guides: Vectors, focus: float) -> NDArray[np.float32]:
    """Attention pooling of each image for each label, to the places that look like its guide.

    Unit vectors, images × labels × space.
    """
    alike = unit(places) @ guides.T
    attention = softmax(focus * alike, axis=1)
    return unit(np.matmul(attention.transpose(0, 2, 1), places))


def mix(visual: Vectors, words: Vectors, counts: NDArray[np.int64], strengths: Strengths) -> Vectors:
    """Visual prototypes of so many examples moved towards the words, less so the more examples there are."""
    weight = strengths.word_weight * np.maximum(counts, 1).astype(np.float32) ** -strengths.word_decay
    mixed = unit(unit(visual) + weight[:, None] * words)
    return np.where((counts > 0)[:, None], mixed, words).astype(np.float32)


def score(places: Places, prototypes: Vectors, strengths: Strengths) -> Scores:
    """Cosine of each prototype with the whole image and with an attention pooling of its places, mixed."""
    lengths = np.sqrt(np.einsum("ips,ips->ip", places, places))[..., None]  # quicker than norm, which takes abs first
    whole = unit(places.mean(axis=1))
    parts = []
    for first in range(0, len(prototypes), LABELS_AT_ONCE):
        some = prototypes[first : first + LABELS_AT_ONCE]
        along = places @ some.T
        attention = softmax(strengths.query_focus * along / np.maximum(lengths, 1e-12), axis=1)
        length = pooled_length(places, attention)
        focused = (attention * along).sum(axis=1) / length
        parts.append((1 - strengths.query_local) * (whole @ some.T) + strengths.query_local * focused)
    return np.concatenate(parts, axis=1) if parts else np.empty((len(places), 0), np.float32)


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
