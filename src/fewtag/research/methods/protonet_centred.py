"""ProtoNet on centred features (after Wang et al., "SimpleShot", 2019): the base images' mean is subtracted first.

What all pictures have in common tells no label from another, yet fills most of the cosine of two raw features.
"""

import torch
from torch import Tensor

from fewtag.research.methods.base import Base, Solved
from fewtag.research.methods.protonet import ProtoNet
from fewtag.research.types import Encoded, Maps


class CentredProtoNet(ProtoNet, Solved):
    """A label is the mean of its images' centred features, compared by cosine. Learns one vector, the base mean."""

    mean: Tensor

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions, scale=scale)
        self.register_buffer("mean", torch.zeros(channels))

    def fit(self, base: Base) -> "CentredProtoNet":
        """Takes the mean of all base images."""
        self.mean.copy_(base.features.double().mean(dim=0))
        return self

    def encode(self, maps: Maps) -> Encoded:
        return super().encode(maps) - self.mean[:, None, None]
