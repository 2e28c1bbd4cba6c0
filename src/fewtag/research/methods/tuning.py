"""Training at test time, on a support as a whole."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def descend(
    loss: Callable[[], Float[Tensor, ""]],
    parameters: Sequence[Tensor],
    *,
    epochs: int,
    rate: float,
    weight_decay: float = 0.0,
) -> None:
    """Lowers the loss by Adam in these parameters alone, also where gradients are off, and in full precision."""
    device = parameters[0].device.type
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay, fused=device in ("cpu", "cuda"))
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        for _ in range(epochs):
            optimizer.zero_grad()
            torch.autograd.backward(loss(), inputs=list(parameters))
            optimizer.step()
