"""Fine-tuning at test time: a fresh linear head, or any few parameters, trained on a support as a whole."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.base import bce, full_precision
from fewtag.research.types import Logits, Targets


class Head(NamedTuple):
    """A linear layer: one score for each label."""

    weight: Float[Tensor, "labels size"]
    bias: Float[Tensor, "labels"]

    def __call__(self, features: Float[Tensor, "images size"]) -> Logits:
        with full_precision(features):  # half precision would tie many scores
            return features.float() @ self.weight.T + self.bias


def fit_head(
    features: Float[Tensor, "images size"],
    targets: Targets,
    *,
    epochs: int,
    learning_rate: float,
    weight_decay: float,
) -> Head:
    """A head trained by AdamW on all images at once, from zero: the order of images and of labels has no say."""
    features, labels = features.detach().float(), targets.shape[1]
    weight = torch.zeros(labels, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(labels, device=features.device, requires_grad=True)
    head = Head(weight, bias)
    descend(lambda: bce(head(features), targets), head, epochs=epochs, rate=learning_rate, weight_decay=weight_decay)
    return Head(weight.detach(), bias.detach())


def descend(
    loss: Callable[[], Float[Tensor, ""]],
    parameters: Sequence[Tensor],
    *,
    epochs: int,
    rate: float,
    weight_decay: float = 0.0,
) -> None:
    """AdamW in these parameters alone, also where gradients are off, and in full precision."""
    fused = parameters[0].device.type in ("cpu", "cuda")
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay, fused=fused)
    with torch.enable_grad(), full_precision(parameters[0]):
        for _ in range(epochs):
            optimizer.zero_grad()
            torch.autograd.backward(loss(), inputs=list(parameters))
            optimizer.step()
