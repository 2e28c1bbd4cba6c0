"""Methods that `fewtag.core` solves: tensors are passed to it as arrays, and no gradient flows through.

The base images span a whitened space, and ridge regression maps word vectors to prototypes in it: what images of a word
are expected to look like. The closed form and the posterior, which is the tagger's own, use that as a prior on the
prototype, rather than as the query of a learnt attention.
"""

from dataclasses import field, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fewtag.core import posterior as core
from fewtag.core.posterior import NameEvidence, Pictures, Places, Vectors
from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Method, Precoded, Support, options
from fewtag.research.methods.linear import LogisticRegression, fit_logistic
from fewtag.research.types import Encoded, Logits, Maps, Words, places, pool

Vector = NDArray[np.float32]
"""space"""
Shown = NDArray[np.bool_]
"""images, or images × labels"""
ENOUGH = 8
"""Rejected pictures after which a prototype has moved as far as it ever will; with fewer, in proportion."""


@options
class WordMapped(Method):
    """A method that solves for a whitened feature space and for a linear map from words into it.

    `parts` are the numbers of channels of the networks, if several are joined: each has its own principal directions.
    """

    base_stage = "features"
    differentiable = False
    uses_names = True

    ridge: float = 0.3
    shrinkage: float = 1.0
    space: int = field(init=False, default=512)
    parts: list[int] | None = field(init=False, default=None)
    space_: core.Space = field(init=False)
    word_map_: core.WordMap = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts and sum(self.parts) != self.channels:
            joined = f"{' + '.join(map(str, self.parts))} are {sum(self.parts)} channels"
            raise InputError(f"parts {joined}, the maps have {self.channels}; name them all")

    def prepare(self, base: Base) -> None:
        """Solves for the space, then for the map from words to prototypes, of base labels and of class names."""
        features, targets = to_array(base.features.float()), to_array(base.targets)
        self.space_ = self.fit_space(features)
        projected = self.space_.project(features)
        words, prototypes, weights = to_array(base.words.float()), self.base_prototypes(projected, targets), None
        if (names := base.names) is not None:
            words = np.concatenate([words, to_array(names.words.float())])
            prototypes = np.concatenate([prototypes, core.class_prototypes(projected, to_array(names.chances.float()))])
            weights = np.full(len(names.words), names.weight, np.float32)
        self.word_map_ = core.fit_words(words, prototypes, self.ridge, weights)

    def fit_space(self, features: core.Features) -> core.Space:
        """The whitened spaces of the networks, side by side."""
        parts = np.split(features, np.cumsum(self.parts or [self.channels])[:-1], axis=1)
        spaces = [core.fit_space(part, self.space, self.shrinkage) for part in parts]
        basis = torch.block_diag(*(torch.from_numpy(space.basis) for space in spaces))  # type: ignore[no-untyped-call]
        return core.Space(np.concatenate([space.mean for space in spaces]), basis.numpy())

    def base_prototypes(self, projected: core.Features, targets: Shown) -> Vectors:
        """The base labels' mean images in the whitened space, as unit vectors."""
        # sums instead of means: only their direction counts, and a label without images has no mean
        return core.unit(targets.T.astype(np.float64) @ projected).astype(np.float32)

    def word_cosines(self, features: Float[Tensor, "images channels"], words: Words) -> Logits:
        """Cosine of each image with the prototype that each word alone suggests."""
        return to_tensor(core.unit(self.space_.project(to_array(features))) @ self.word_prototypes(words).T, features)

    def word_prototypes(self, words: Words) -> Vectors:
        """The prototypes that the words alone suggest."""
        return self.word_map_.prototypes(to_array(words.float()))


@options
class WordOnly(WordMapped):
    """Words only: cosine with the prototype that ridge regression predicts for a word; support images are ignored.

    It measures how much of a result comes from the words: any method that learns from pictures should beat it.
    """

    serves_words_alone = True

    scale: float = 20.0

    def adapt(self, support: Support) -> Classifier:
        return lambda maps: self.scale * self.word_cosines(pool(maps.float()), support.words)


@options
class ClosedForm(WordMapped, Precoded):
    """The closed form: `prepare` solves, `adapt` builds prototypes. Strengths default to the validation's choice.

    `parts` are the numbers of channels of the networks, if several are joined.
    """

    serves_words_alone = True

    space: int = 512
    shrinkage: float = 5.0
    separation: float = 200.0
    ridge: float = 3.0
    word_weight: float = 1.0
    word_decay: float = 0.75
    support_focus: float = 8.0
    query_focus: float = 48.0
    query_local: float = 0.6
    scale: float = 20.0
    parts: list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = {each.name: getattr(self, each.name) for each in fields(core.Strengths) if hasattr(self, each.name)}
        self.strengths = core.Strengths(**chosen)

    def base_prototypes(self, projected: core.Features, targets: Shown) -> Vectors:
        """Prototypes by least squares rather than by means, which separates labels that occur together."""
        return core.base_prototypes(projected, targets, self.strengths.separation)

    def local(self, maps: Maps) -> Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def encode(self, maps: Maps) -> Encoded:
        """images × places × space"""
        return to_tensor(self.local(maps), maps)

    def adapt_encoded(self, support: Support) -> Classifier:
        classifiers = self.classifiers(
            to_array(support.maps), to_array(support.targets), self.word_prototypes(support.words)
        )
        return lambda encoded: to_tensor(classifiers.logits(to_array(encoded), self.strengths), encoded)

    def classifiers(self, local: Places, shown: Shown, word_prototypes: Vectors) -> core.Classifiers:
        """The labels' classifiers, from the places of images that show them and from what their words suggest."""
        pictures = Pictures.of(local)
        return core.Classifiers.of([self.fit(pictures, *label) for label in zip(shown.T, word_prototypes, strict=True)])

    def fit(self, pictures: Pictures, shown: Shown, word: Vector) -> core.Fitted:
        """One label's classifier: the cosine with its prototype, scaled."""
        scaled = replace(self.strengths, kappa=self.scale, offset=0.0)
        return core.prototype_classifier(self.prototype(pictures, shown, word), scaled)

    def prototype(self, pictures: Pictures, shown: Shown, word: Vector) -> Vector:
        """The mean of the images' attended features, with what the word suggests mixed in."""
        return core.support_prototype(pictures.take(shown), word, 1.0, self.strengths)

    def fit_answers(self, pictures: Pictures, shown: Shown, word: Vector) -> core.Fitted:
        """One label's classifier from pictures that a person said show it or not; the latter are ignored."""
        return core.prototype_classifier(self.prototype(pictures, shown, word), self.strengths)


@options
class Posterior(ClosedForm):
    """MAP logistic regression whose prior is the word-and-picture prototype; the strengths are those of the core.

    With `complete` supports a label that a picture does not name is absent; otherwise it counts as a 'no' only with
    weight `unnamed`. The options that begin with `name` are those of `NameEvidence`; a data set's labels have the prior
    that a bank gives words for things.
    """

    scale: float = field(init=False, default=1.0)
    shrinkage: float = 2.0
    ridge: float = 0.5
    word_weight: float = 3.0
    word_decay: float = 0.5
    support_focus: float = 16.0
    query_local: float = 0.8
    kappa: float = 6.0
    offset: float = 0.3
    penalty: float = 0.2
    bias: float = 0.3
    unnamed: float = 0.25
    complete: bool = True
    name_right: float = NameEvidence.right
    name_wrong: float = NameEvidence.wrong
    name_between: float = NameEvidence.between
    name_within: float = NameEvidence.within
    name_prior: float = 0.93

    def __post_init__(self) -> None:
        super().__post_init__()
        self.evidence = NameEvidence(
            self.name_right, self.name_wrong, self.name_between, self.name_within, self.name_prior
        )

    def fit(self, pictures: Pictures, shown: Shown, word: Vector) -> core.Fitted:
        weights = np.where(shown, 1.0, 1.0 if self.complete else self.strengths.unnamed).astype(np.float32)
        return core.fit_label(pictures, shown, weights, word, self.strengths, self.evidence)

    def fit_answers(self, pictures: Pictures, shown: Shown, word: Vector) -> core.Fitted:
        """One label's classifier from pictures that a person said show it or not, each with full weight."""
        ones = np.ones(len(shown), np.float32)
        return core.fit_label(pictures, shown, ones, word, self.strengths, self.evidence, impostors=ones == 0)


@options
class Rocchio(ClosedForm):
    """Relevance feedback after Rocchio (1971): prototypes move away from the pictures that do not show their label.

    They are the closed form's, less `rejection` times the normalised attended mean of those pictures.
    """

    rejection: float = 0.4

    def prototype(self, pictures: Pictures, shown: Shown, word: Vector) -> Vector:
        before = super().prototype(pictures, shown, word)
        rejected = pictures.take(~shown).attend(before, self.strengths.query_focus)
        away: Vector = core.unit(rejected.sum(axis=0)) * np.float32(self.rejection * min(len(rejected) / ENOUGH, 1))
        return core.unit(before - away)


class Whitened(Precoded):
    """A rival in the closed form's own space: maps are projected place by place, and passed to the wrapped method."""

    base_stage = "features"
    differentiable = False

    space_: core.Space
    strengths = core.Strengths()

    def __init__(self, method: Method, channels: int, *, shrinkage: float) -> None:
        super().__init__(channels, method.dimensions)
        self.method, self.shrinkage = method, shrinkage
        self.serves_words_alone, self.uses_names = method.serves_words_alone, method.uses_names
        self.stacks_episodes = isinstance(method, Precoded) and method.stacks_episodes

    def prepare(self, base: Base) -> None:
        """Solves for the space; the method's own base stage then gets the base pictures in it."""
        features = to_array(base.features.float())
        self.space_ = core.fit_space(features, self.method.channels, self.shrinkage)
        projected = to_tensor(self.space_.project(features), base.features)
        self.method.prepare(base._replace(global_features=projected))

    def local(self, maps: Maps) -> Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def word_prototypes(self, words: Words) -> Vectors:
        """Zeros: a rival in this space learns only from answers."""
        return np.zeros((len(words), self.space_.size), np.float32)

    def encode(self, maps: Maps) -> Encoded:
        """Maps on the same grid in the whitened space, encoded by the method."""
        local = to_tensor(self.local(maps), maps)
        projected = local.transpose(1, 2).reshape(len(maps), -1, *maps.shape[2:])
        return self.method.encode(projected) if isinstance(self.method, Precoded) else projected

    def adapt_encoded(self, support: Support) -> Classifier:
        if isinstance(self.method, Precoded):
            return self.method.adapt_encoded(support)
        return self.method.adapt(support)

    def fit_answers(self, pictures: Pictures, shown: Shown, word: Vector) -> core.Fitted:
        """One label's logistic regression on pictures' normalised means; its name is not used."""
        if not isinstance(self.method, LogisticRegression) or not self.method.unit_length:
            raise InputError(
                "of the rivals only logistic-regression with unit_length = true learns from single answers"
            )
        whole, targets = torch.from_numpy(pictures.means), torch.from_numpy(shown)[:, None]
        head = fit_logistic(whole, targets, penalty=self.method.penalty, balanced=self.method.balanced)
        nothing = np.zeros_like(word)
        return core.Fitted(nothing, to_array(head.weight)[0], nothing, float(head.bias[0]))


def to_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor as an array, for the core; memory is shared if it is on the CPU."""
    return tensor.detach().cpu().numpy()


def to_tensor(array: NDArray[np.float32], like: Tensor) -> Tensor:
    """An array of the core as a tensor, on the device of `like`."""
    return torch.from_numpy(array).to(like.device)
