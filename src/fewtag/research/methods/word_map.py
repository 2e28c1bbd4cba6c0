"""Methods solved by `fewtag.core` on the base labels: tensors are handed over as arrays, and no gradient flows through.

The base images span a whitened space, and ridge regression leads from word vectors to prototypes in it: what a word
suggests that an image of it looks like.
"""

from dataclasses import field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fewtag.core import posterior as core
from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Method, Precoded, Support, options
from fewtag.research.methods.linear import LogisticRegression, fit_logistic
from fewtag.research.types import Encoded, Logits, Maps, Words, places, pool


@options
class WordMapped(Method):
    """A method that solves for a whitened feature space and for a linear map from words into it.

    `parts` are the channels of each network where several are joined: each has its own principal directions.
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

    def base_prototypes(self, projected: core.Features, targets: NDArray[np.bool_]) -> core.Vectors:
        """The base labels' mean images in the whitened space, as unit vectors."""
        # sums serve as means: only their direction counts, and a label without image has none
        return core.unit(targets.T.astype(np.float64) @ projected).astype(np.float32)

    def word_cosines(self, features: Float[Tensor, "images channels"], words: Words) -> Logits:
        """Cosine of each image with what each word alone suggests."""
        prototypes = self.word_map_.prototypes(to_array(words.float()))
        return to_tensor(core.unit(self.space_.project(to_array(features))) @ prototypes.T, features)


@options
class WordOnly(WordMapped):
    """The word alone: cosine with what ridge regression on the base labels expects for it; no support image counts.

    A measure of how much of a result comes from the words: whatever learns from pictures should beat it.
    """

    serves_words_alone = True
    uses_images = False

    scale: float = 20.0

    def adapt(self, support: Support) -> Classifier:
        return lambda maps: self.scale * self.word_cosines(pool(maps.float()), support.words)


class Whitened(Precoded):
    """A rival in the closed form's own space: maps are projected place by place, the rest is left to its method."""

    base_stage = "features"
    differentiable = False

    space_: core.Space
    strengths = core.Strengths()

    def __init__(self, method: Method, channels: int, *, shrinkage: float) -> None:
        super().__init__(channels, method.dimensions)
        self.method, self.shrinkage = method, shrinkage
        self.serves_words_alone, self.uses_images = method.serves_words_alone, method.uses_images
        self.uses_names = method.uses_names
        self.stacks_episodes = isinstance(method, Precoded) and method.stacks_episodes

    def prepare(self, base: Base) -> None:
        """Solves for the space; the method's own base stage then sees the base pictures in it."""
        features = to_array(base.features.float())
        self.space_ = core.fit_space(features, self.method.channels, self.shrinkage)
        projected = to_tensor(self.space_.project(features), base.features)
        self.method.prepare(base._replace(global_features=projected))

    def local(self, maps: Maps) -> core.Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def guides(self, words: Words) -> core.Vectors:
        """None: a rival in this space learns from answers alone."""
        return np.zeros((len(words), self.space_.size), np.float32)

    def encode(self, maps: Maps) -> Encoded:
        """Maps of the same grid in the whitened space, as the method encodes them."""
        local = to_tensor(self.local(maps), maps)
        projected = local.transpose(1, 2).reshape(len(maps), -1, *maps.shape[2:])
        return self.method.encode(projected) if isinstance(self.method, Precoded) else projected

    def adapt_encoded(self, support: Support) -> Classifier:
        if isinstance(self.method, Precoded):
            return self.method.adapt_encoded(support)
        return self.method.adapt(support)

    def fit_answers(self, pictures: core.Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> core.Fitted:
        """One label's logistic regression on whole pictures of unit length; its name plays no part."""
        if not isinstance(self.method, LogisticRegression) or not self.method.unit_length:
            raise InputError(
                "of the rivals only logistic-regression with unit_length = true learns from single answers"
            )
        whole, targets = torch.from_numpy(pictures.whole), torch.from_numpy(shown)[:, None]
        head = fit_logistic(whole, targets, penalty=self.method.penalty, balanced=self.method.balanced)
        nothing = np.zeros_like(guide)
        return core.Fitted(nothing, to_array(head.weight)[0], nothing, float(head.bias[0]))


def to_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's numbers, for the core; shared, not copied, where they are on the processor."""
    return tensor.detach().cpu().numpy()


def to_tensor(array: NDArray[np.float32], like: Tensor) -> Tensor:
    """What the core made of it, on the device of what it was given."""
    return torch.from_numpy(array).to(like.device)
