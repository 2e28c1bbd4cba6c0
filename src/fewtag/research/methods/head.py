"""Training at test time: a fresh linear head for a support of a few pictures."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.base import bce
from fewtag.research.methods.tuning import descend
from fewtag.research.types import Logits, Targets


class Head(NamedTuple):
    """One linear score for each label."""

    weight: Float[Tensor, "labels size"]
    bias: Float[Tensor, "labels"]

    def __call__(self, features: Float[Tensor, "images size"]) -> Logits:
        with torch.autocast(features.device.type, enabled=False):  # half precision would tie many scores
            return features.float() @ self.weight.T + self.bias


def fit_head(
    features: Float[Tensor, "images size"],
    targets: Targets,
    *,
    epochs: int,
    learning_rate: float,
    weight_decay: float,
) -> Head:
    """Adam on all images at once, from zero: so neither the order of images nor that of labels has a say."""
    features, labels = features.detach().float(), targets.shape[1]
    weight = torch.zeros(labels, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(labels, device=features.device, requires_grad=True)
    head = Head(weight, bias)
    descend(lambda: bce(head(features), targets), head, epochs=epochs, rate=learning_rate, weight_decay=weight_decay)
    return Head(weight.detach(), bias.detach())
