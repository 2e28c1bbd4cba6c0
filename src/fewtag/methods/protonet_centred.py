"""ProtoNet on centred features (after Wang et al., "SimpleShot", 2019): the base images' mean is subtracted first.

What all pictures have in common tells no label from another, yet fills most of the cosine of two raw features.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.methods.base import Base, Classifier, Solved, Support, cosine, pool, refuse_labels_without_image


class CentredProtoNet(Solved):
    """A label is the mean of its images' centred features, compared by cosine. Learns one vector, the base mean."""

    mean: Tensor

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions)
        self.scale = scale
        self.register_buffer("mean", torch.zeros(channels))

    def fit(self, base: Base) -> "CentredProtoNet":
        """Takes the mean of all base images."""
        self.mean.copy_(base.features.double().mean(dim=0))
        return self

    def centred(self, maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images channels"]:
        """Global features, from the base mean."""
        return pool(maps.float()) - self.mean

    def adapt(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        shows = support.targets.T.float()
        with torch.autocast(shows.device.type, enabled=False):
            prototypes = shows @ self.centred(support.maps) / shows.sum(dim=1, keepdim=True)
        return lambda maps: self.scale * cosine(self.centred(maps), prototypes)
