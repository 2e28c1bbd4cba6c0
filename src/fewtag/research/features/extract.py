"""Maps at the speed of the network: on a GPU, pictures come and maps go while it works on others."""

import functools
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float16, UInt8
from torch import Tensor

from fewtag.research.features.backbone import Backbone
from fewtag.research.features.spread import spread

Pixels = UInt8[np.ndarray, "images 3 size size"]
Maps = Float16[np.ndarray, "images channels rows columns"]


def precision_of(backbone: Backbone) -> torch.dtype:
    """What the network computes in: tensor cores round to bfloat16, a CPU keeps all digits."""
    return torch.bfloat16 if backbone.mean.device.type == "cuda" else torch.float32


def start(backbone: Backbone, pixels: Pixels) -> Callable[[], Maps]:
    """Begins one pass of the network in evaluation mode; calling what comes back waits for its maps.

    A GPU goes on with this batch while the caller fetches the next one or keeps the last one's maps.
    """
    device = backbone.mean.device
    was_training = backbone.training
    backbone.eval()
    batch = torch.from_numpy(pixels)
    if device.type == "cuda":
        with torch.inference_mode(), torch.autocast("cuda", precision_of(backbone)):
            maps = backbone(_come(batch, device)).half().contiguous()
    else:
        maps = spread(backbone, batch).half().contiguous()
    backbone.train(was_training)
    return _go(maps) if device.type == "cuda" else maps.numpy


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """One for what comes and one for what goes: in the network's own, copies and layers would wait for each other."""
    coming, going = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    return coming, going


def _come(batch: Tensor, device: torch.device) -> Tensor:
    """To the GPU, beside what the network is at."""
    coming, _ = _streams(device)
    with torch.cuda.stream(coming):
        there = batch.pin_memory().to(device, non_blocking=True)  # from other memory a copy holds the caller up
    network = torch.cuda.current_stream(device)
    network.wait_stream(coming)
    there.record_stream(network)
    return there


def _go(maps: Tensor) -> Callable[[], Maps]:
    """To the computer's memory, once the network has got so far."""
    _, going = _streams(maps.device)
    going.wait_stream(torch.cuda.current_stream(maps.device))
    home = torch.empty(maps.shape, dtype=maps.dtype, pin_memory=True)
    with torch.cuda.stream(going):
        home.copy_(maps, non_blocking=True)
        arrived = going.record_event()
    maps.record_stream(going)

    def finish() -> Maps:
        arrived.synchronize()
        return home.numpy()

    return finish
