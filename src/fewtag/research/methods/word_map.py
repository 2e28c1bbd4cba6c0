"""Methods solved by `fewtag.core` on the base labels: tensors are handed over as arrays, and no gradient flows through.

The base images span a whitened space, and ridge regression leads from word vectors to prototypes in it: what a word
suggests that an image of it looks like.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fewtag.core.posterior import (
    Features,
    Space,
    Vectors,
    WordMap,
    class_prototypes,
    fit_space,
    fit_words,
    unit,
)
from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Method, Support, pool
from fewtag.research.types import Logits, Words


class WordMapped(Method):
    """A method that solves for a whitened feature space and for a linear map from words into it.

    `parts` are the channels of each network where several are joined: each has its own principal directions.
    """

    base_stage = "features"
    differentiable = False
    uses_names = True

    space_: Space
    word_map_: WordMap

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        ridge: float,
        shrinkage: float,
        space: int = 512,
        parts: Sequence[int] | None = None,
    ) -> None:
        super().__init__(channels, dimensions)
        self.ridge, self.shrinkage, self.space = ridge, shrinkage, space
        self.parts = tuple(parts or [channels])
        if sum(self.parts) != channels:
            joined = " + ".join(str(part) for part in self.parts)
            raise InputError(f"parts {joined} are {sum(self.parts)} channels, the maps have {channels}; name them all")

    def prepare(self, base: Base) -> None:
        """Solves for the space, then for the map from words to prototypes, of base labels and of class names."""
        features, targets = to_array(base.features.float()), to_array(base.targets)
        self.space_ = self.fit_space(features)
        projected = self.space_.project(features)
        words, prototypes, weights = to_array(base.words.float()), self.base_prototypes(projected, targets), None
        if (names := base.names) is not None:
            words = np.concatenate([words, to_array(names.words.float())])
            prototypes = np.concatenate([prototypes, class_prototypes(projected, to_array(names.chances.float()))])
            weights = np.full(len(names.words), names.weight, np.float32)
        self.word_map_ = fit_words(words, prototypes, self.ridge, weights)

    def fit_space(self, features: Features) -> Space:
        """The whitened spaces of the networks, side by side."""
        parts = np.split(features, np.cumsum(self.parts)[:-1], axis=1)
        spaces = [fit_space(part, self.space, self.shrinkage) for part in parts]
        basis = torch.block_diag(*(torch.from_numpy(space.basis) for space in spaces))  # type: ignore[no-untyped-call]
        return Space(np.concatenate([space.mean for space in spaces]), basis.numpy())

    def base_prototypes(self, projected: Features, targets: NDArray[np.bool_]) -> Vectors:
        """The base labels' mean images in the whitened space, as unit vectors."""
        # sums serve as means: only their direction counts, and a label without image has none
        return unit(targets.T.astype(np.float64) @ projected).astype(np.float32)

    def word_cosines(self, features: Float[Tensor, "images channels"], words: Words) -> Logits:
        """Cosine of each image with what each word alone suggests."""
        prototypes = self.word_map_.prototypes(to_array(words.float()))
        return to_tensor(unit(self.space_.project(to_array(features))) @ prototypes.T, features)


class WordOnly(WordMapped):
    """The word alone: cosine with what ridge regression on the base labels expects for it; no support image counts.

    A measure of how much of a result comes from the words: whatever learns from pictures should beat it.
    """

    serves_words_alone = True
    uses_images = False

    def __init__(
        self, channels: int, dimensions: int, *, ridge: float = 0.3, shrinkage: float = 1.0, scale: float = 20.0
    ) -> None:
        super().__init__(channels, dimensions, ridge=ridge, shrinkage=shrinkage)
        self.scale = scale

    def adapt(self, support: Support) -> Classifier:
        return lambda maps: self.scale * self.word_cosines(pool(maps.float()), support.words)


def to_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's numbers, for the core; shared, not copied, where they are on the processor."""
    return tensor.detach().cpu().numpy()


def to_tensor(array: NDArray[np.float32], like: Tensor) -> Tensor:
    """What the core made of it, on the device of what it was given."""
    return torch.from_numpy(array).to(like.device)
