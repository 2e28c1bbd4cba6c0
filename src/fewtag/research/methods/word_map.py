"""What a word suggests that an image of it looks like: ridge regression from word vectors to features.

Solved on the base labels: their images span a whitened space, in which each label's mean image is what its word should
lead to. No gradient anywhere.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.base import Base, cosine
from fewtag.research.types import Logits, Words

SPACE = 512  # principal directions that are kept, as many as the paper's joint space has

Features = Float[Tensor, "images channels"]


class WordMap(nn.Module):
    """Scores global features by words alone."""

    mean: Tensor
    basis: Tensor
    word_mean: Tensor
    matrix: Tensor

    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        space = min(SPACE, channels)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("basis", torch.eye(channels, space))
        self.register_buffer("word_mean", torch.zeros(dimensions))
        self.register_buffer("matrix", torch.zeros(dimensions, space))

    def fit(self, base: Base, *, ridge: float, shrinkage: float) -> None:
        """Whitens the base images, the weak directions less so; regresses the labels' unit means on their words."""
        centred = base.features.double() - base.features.double().mean(dim=0)
        self.mean.copy_(base.features.double().mean(dim=0))
        self.basis.copy_(whitening(centred, self.basis.shape[1], shrinkage))

        shows = base.targets.T.double()
        # sums serve as means: only their direction counts, and a label without image has none
        prototypes = F.normalize(shows @ centred @ self.basis.double(), dim=-1)
        self.word_mean.copy_(base.words.double().mean(dim=0))
        self.matrix.copy_(ridge_regression(self.normalise(base.words), prototypes, ridge))

    def normalise(self, words: Words) -> Words:
        """Centred on the base labels, of unit length."""
        return F.normalize(words.float() - self.word_mean, dim=-1)

    def score(self, centred: Features, words: Words) -> Logits:
        """Cosine, in the whitened space, of features from the base mean with what the words suggest."""
        with torch.autocast(centred.device.type, enabled=False):
            return cosine(centred @ self.basis, self.normalise(words) @ self.matrix)

    def centre(self, features: Features) -> Features:
        """Features from the base mean."""
        return features - self.mean


def whitening(
    centred: Float[Tensor, "images channels"], space: int, shrinkage: float
) -> Float[Tensor, "channels space"]:
    """The strongest principal directions, each divided by its spread, the weak ones less so."""
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    variances, directions = variances[-space:], directions[:, -space:]
    return directions / (variances + shrinkage * variances.mean()).sqrt()


def ridge_regression(
    inputs: Float[Tensor, "labels dimensions"], outputs: Float[Tensor, "labels space"], ridge: float
) -> Float[Tensor, "dimensions space"]:
    """The linear map from inputs to outputs, in double precision."""
    inputs = inputs.double()
    kernel = inputs @ inputs.T  # labels are fewer than dimensions
    kernel.diagonal().add_(ridge)
    return inputs.T @ torch.linalg.solve(kernel, outputs.double())
