"""Tensor types with named axes, and the operations on them that most methods share."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Num
from torch import Tensor

Maps = Num[Tensor, "images channels height width"]
"""Local feature maps; pixels are maps with three channels (uint8)."""

Encoded = Num[Tensor, "images *encoded"]
"""A method's encoding of each image by itself, in a shape of its own."""

Targets = Bool[Tensor, "images labels"]
"""Which image shows which label."""

Logits = Float[Tensor, "images labels"]
"""A label's score for an image; its sigmoid is the probability."""

Words = Float[Tensor, "labels dimensions"]
"""The labels' word vectors, one row each."""


def full_precision(like: Tensor) -> torch.autocast:
    """A context without autocast on the tensor's device: half precision would tie scores and spoil small solves."""
    return torch.autocast(like.device.type, enabled=False)


def bce(logits: Logits, targets: Targets) -> Float[Tensor, ""]:
    """Mean binary cross-entropy over images and labels."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets.float())


def pool(maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images channels"]:
    """Global average pooling: the mean over places."""
    return maps.mean(dim=(2, 3))


def unit_features(maps: Maps) -> Float[Tensor, "images channels"]:
    """Global features of unit length, in full precision."""
    return F.normalize(pool(maps.float()), dim=-1)


def places(maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images places channels"]:
    """Local features, a row for each place of the map."""
    return maps.flatten(2).transpose(1, 2)


def cosine(
    left: Float[Tensor, "*episodes images size"], right: Float[Tensor, "*episodes labels size"]
) -> Float[Tensor, "*episodes images labels"]:
    """Cosine similarity of each image with each label, in full precision."""
    with full_precision(left):
        left, right = left.float(), right.float()
        # the products are divided by the lengths, since they are smaller than normalised copies of all images
        lengths = left.norm(dim=-1).clamp_min(1e-12)[..., None] * right.norm(dim=-1).clamp_min(1e-12)[..., None, :]
        return left @ right.mT / lengths
