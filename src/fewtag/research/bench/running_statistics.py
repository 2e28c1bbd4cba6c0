"""Batch-norm's running statistics where several processes train together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Layer(NamedTuple):
    """What one batch-norm layer has seen."""

    mean: Float[Tensor, "channels"]
    variance: Float[Tensor, "channels"]
    batches: Int[Tensor, ""]
    momentum: float


class RunningStatistics:
    """Keeps them the same in all processes, and what one process would have that saw all episodes in turn.

    A layer that starts at `r` and sees `n` batches ends at `(1 - momentum)^n r + seen`. So each process's `seen`
    is known from where it ends, and all of them are put one after the other by a single sum over the processes.
    """

    def __init__(self, fabric: Fabric, method: nn.Module) -> None:
        self._fabric = fabric
        self._layers = [] if fabric.world_size == 1 else layers(method)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around the episodes of one step."""
        if not self._layers:
            yield
            return
        processes, later = self._fabric.world_size, self._fabric.world_size - 1 - self._fabric.global_rank
        begun, counts = self._values(), [layer.batches.clone() for layer in self._layers]
        yield
        saw = [layer.batches - count for layer, count in zip(self._layers, counts, strict=True)]
        kept = torch.cat(
            [
                ((1 - layer.momentum) ** batches.double()).expand(2 * len(layer.mean))
                for layer, batches in zip(self._layers, saw, strict=True)
            ]
        )
        total = self._fabric.all_reduce(kept**later * (self._values() - kept * begun), reduce_op="sum")
        assert isinstance(total, Tensor)
        ended = kept**processes * begun + total
        for layer, count, batches in zip(self._layers, counts, saw, strict=True):
            mean, variance, ended = ended.tensor_split([len(layer.mean), 2 * len(layer.mean)])
            layer.mean.copy_(mean)
            layer.variance.copy_(variance)
            layer.batches.copy_(count + processes * batches)

    def _values(self) -> Float[Tensor, "values"]:
        """All means and variances in a row."""
        return torch.cat([values for layer in self._layers for values in (layer.mean, layer.variance)]).double()


def layers(method: nn.Module) -> list[Layer]:
    """The batch-norm layers that keep running statistics with a momentum."""
    return [
        Layer(each.running_mean, each.running_var, each.num_batches_tracked, each.momentum)
        for each in method.modules()
        if isinstance(each, _BatchNorm)
        and each.running_mean is not None
        and each.running_var is not None
        and each.num_batches_tracked is not None
        and each.momentum is not None
    ]
