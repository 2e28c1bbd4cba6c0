"""Prototypical networks (Snell et al., 2017) for several labels an image, on raw and on centred features.

A label's prototype is the mean of its images' global features, with which images are compared by cosine.
"""

import torch
from torch import Tensor

from fewtag.research.methods.base import (
    Base,
    Classifier,
    Precoded,
    Support,
    cosine,
    full_precision,
    pool,
    refuse_labels_without_image,
)
from fewtag.research.types import Encoded, Maps


class ProtoNet(Precoded):
    """Mean features as prototypes. Nothing to learn but, end to end, the backbone."""

    stacks_episodes = True

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions)
        self.scale = scale

    def encode(self, maps: Maps) -> Encoded:
        """Global features: images × channels."""
        return pool(maps.float())

    def adapt_encoded(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        shows = support.targets.mT.float()
        with full_precision(shows):
            prototypes = shows @ support.maps  # sums serve as means: a cosine does not see their length
        return lambda features: self.scale * cosine(features, prototypes)


class CentredProtoNet(ProtoNet):
    """ProtoNet on features from the mean of all base images, after SimpleShot (Wang et al., 2019).

    What all pictures have in common tells no label from another, yet fills most of the cosine of two raw features.
    """

    base_stage = "features"

    mean: Tensor

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions, scale=scale)
        self.register_buffer("mean", torch.zeros(channels))

    def prepare(self, base: Base) -> None:
        """Takes the mean of all base images."""
        self.mean.copy_(base.features.double().mean(dim=0))

    def encode(self, maps: Maps) -> Encoded:
        return super().encode(maps) - self.mean
