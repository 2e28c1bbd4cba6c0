"""Ridge regression from word vectors to features: what a word suggests that an image of it looks like.

Solved on the base labels: their images span a whitened space, in which each label's prototype is what its word should
lead to. No gradient anywhere.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Method, Support, cosine, full_precision, pool
from fewtag.research.types import Logits, Maps, Words

Features = Float[Tensor, "images channels"]
Vectors = Float[Tensor, "labels space"]


class WordMapped(Method):
    """A method that solves for a whitened feature space and for a linear map from words into it.

    `parts` are the channels of each network where several are joined: each has its own principal directions.
    """

    base_stage = "features"

    mean: Tensor
    basis: Tensor
    word_mean: Tensor
    word_map: Tensor

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
        self.ridge, self.shrinkage, self.part_space = ridge, shrinkage, space
        self.parts = tuple(parts or [channels])
        if sum(self.parts) != channels:
            joined = " + ".join(str(part) for part in self.parts)
            raise InputError(f"parts {joined} are {sum(self.parts)} channels, the maps have {channels}; name them all")
        self.space = sum(min(space, part) for part in self.parts)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("basis", torch.eye(channels, self.space))
        self.register_buffer("word_mean", torch.zeros(dimensions))
        self.register_buffer("word_map", torch.zeros(dimensions, self.space))

    def prepare(self, base: Base) -> None:
        """Solves for the space, then for the map from words to prototypes."""
        self.fit_space(base.features)
        self.fit_words(base.words, self.base_prototypes(base))

    def fit_space(self, features: Features) -> None:
        """Principal directions of the base images, whitened, the weak ones less so; of each network for itself."""
        mean = features.double().mean(dim=0)
        self.mean.copy_(mean)
        parts = (features.double() - mean).split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        blocks = [whitening(part, self.part_space, self.shrinkage) for part in parts]
        self.basis.copy_(torch.block_diag(*blocks))  # type: ignore[no-untyped-call]

    def base_prototypes(self, base: Base) -> Vectors:
        """The base labels' mean images in the whitened space, as unit vectors."""
        # sums serve as means: only their direction counts, and a label without image has none
        return F.normalize(base.targets.T.double() @ self.whiten(base.features.double()), dim=-1).float()

    def fit_words(self, words: Words, prototypes: Vectors) -> None:
        """Ridge regression from the base labels' words to their prototypes."""
        self.word_mean.copy_(words.mean(dim=0))
        self.word_map.copy_(ridge_regression(self.normalise_words(words), prototypes, self.ridge))

    def whiten(self, features: Float[Tensor, "*several channels"]) -> Float[Tensor, "*several space"]:
        """Features from the base mean, in the whitened space, in the features' precision."""
        return (features - self.mean.to(features.dtype)) @ self.basis.to(features.dtype)

    def normalise_words(self, words: Words) -> Words:
        """Centred on the base labels, of unit length."""
        return F.normalize(words - self.word_mean.to(words), dim=-1)

    def word_prototypes(self, words: Words) -> Vectors:
        """What the words alone suggest, as unit vectors."""
        return F.normalize(self.normalise_words(words) @ self.word_map, dim=-1)


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
        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                prototypes = self.word_prototypes(support.words.float())
                return self.scale * cosine(self.whiten(pool(maps.float())), prototypes)

        return classify


def whitening(centred: Features, space: int, shrinkage: float) -> Float[Tensor, "channels space"]:
    """PCA whitening: the strongest principal directions, each divided by its spread, the weak ones less so."""
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    variances, directions = variances[-space:], directions[:, -space:]
    return directions / (variances + shrinkage * variances.mean()).sqrt()


def ridge_regression(
    inputs: Float[Tensor, "labels dimensions"], outputs: Vectors, ridge: float
) -> Float[Tensor, "dimensions space"]:
    """The linear map from inputs to outputs, in double precision."""
    inputs = inputs.double()
    kernel = inputs @ inputs.T  # labels are fewer than dimensions
    kernel.diagonal().add_(ridge)
    return inputs.T @ torch.linalg.solve(kernel, outputs.double())
