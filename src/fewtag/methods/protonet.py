"""ProtoNet (Snell et al., 2017) for several labels an image: a label is the mean of its images' global features."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fewtag.methods.base import Batched, Classifier, Classifiers, Support, Supports, pool, refuse_labels_without_image
from fewtag.types import Encoded, Maps

SHORT = 1e-12  # of vectors so short the direction does not count


class ProtoNet(Batched):
    """Compares images with the labels' mean features by cosine. Nothing to learn but, end to end, the backbone."""

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions)
        self.scale = scale

    def encode(self, maps: Maps) -> Encoded:
        return pool(maps.float())[:, :, None, None]

    def meet(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        sums = label_sums(support.maps.flatten(-3), support.targets)
        return lambda maps: self.scale * cosines(maps.flatten(-3), sums)

    def meet_each(self, supports: Supports) -> Classifiers:
        refuse_labels_without_image(supports)
        sums = label_sums(supports.maps.flatten(-3), supports.targets)
        return lambda maps: self.scale * cosines(maps.flatten(-3), sums)


def label_sums(
    features: Float[Tensor, "*episodes images channels"], targets: Bool[Tensor, "*episodes images labels"]
) -> Float[Tensor, "*episodes labels channels"]:
    """Over the images that show each label; a sum serves as a mean where the direction alone counts."""
    with torch.autocast(features.device.type, enabled=False):
        return targets.mT.to(features.dtype) @ features


def cosines(
    features: Float[Tensor, "*episodes images channels"], sums: Float[Tensor, "*episodes labels channels"]
) -> Float[Tensor, "*episodes images labels"]:
    """Of each image with each label; divided by the lengths last, which spares a copy of every feature."""
    with torch.autocast(features.device.type, enabled=False):
        lengths = features.norm(dim=-1)[..., :, None] * sums.norm(dim=-1)[..., None, :]
        return features @ sums.mT / lengths.clamp_min(SHORT)
