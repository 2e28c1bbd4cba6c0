"""Inference: batch-norm fusion, chunks of pictures over a CPU's cores, and CUDA streams beside the network."""

import copy
import functools
import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fewtag.research.features.backbone import Backbone
from fewtag.research.features.weights import Network

Pixels = UInt8[np.ndarray, "images 3 size size"]
HalfMaps = Float16[np.ndarray, "images channels rows columns"]

TOLERANCE = 1e-3
"""Of the greatest number in the maps; what fusion rounds otherwise is a hundred times less."""

AT_ONCE = 4
"""Pictures that a core works on: so few that what a layer makes of them stays in its cache."""


def fuse_batch_norms(backbone: Backbone) -> Backbone:
    """Batch-norm fusion: the same maps in less time, not for training; itself where no layer can be fused.

    A layer that follows a convolution in a module need not follow it in the network, so the outcome is compared.
    """
    if not fusable(backbone.network):
        return backbone
    faster = copy.copy(backbone)
    # a copy of a module shares its table of parts: it needs one of its own
    faster._modules = dict(backbone._modules)
    faster.network = _fuse_in_place(copy.deepcopy(backbone.network)).to(memory_format=torch.channels_last)
    faster.eval()
    faster.known_as = backbone.fingerprint
    return faster if _agree(backbone, faster) else backbone


def fusable(network: Network) -> list[tuple[nn.Module, str, str]]:
    """The modules in which a batch-norm follows a convolution, with the names of both."""
    return [
        (module, name, next_name)
        for module in network.modules()
        for (name, part), (next_name, following) in itertools.pairwise(module.named_children())
        if isinstance(part, nn.Conv2d) and isinstance(following, nn.BatchNorm2d) and following.track_running_stats
    ]


def _fuse_in_place(network: Network) -> Network:
    """In place; an activation that timm keeps in the batch-norm stays in its stead."""
    network.eval()
    for module, name, next_name in fusable(network):
        convolution, following = getattr(module, name), getattr(module, next_name)
        setattr(module, name, fuse_conv_bn_eval(convolution, following))
        setattr(module, next_name, getattr(following, "act", nn.Identity()))
    return network


@torch.inference_mode()
def _agree(backbone: Backbone, faster: Backbone) -> bool:
    was_training = backbone.training
    backbone.eval()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (1, 3, backbone.size, backbone.size), dtype=torch.uint8, generator=generator)
    expected, fused = (each(noise.to(backbone.mean.device)) for each in (backbone, faster))
    backbone.train(was_training)
    return bool((fused - expected).abs().max() <= TOLERANCE * expected.abs().max())


def map_chunks_over_cores(
    work: Callable[[Tensor], Tensor], pixels: UInt8[Tensor, "images 3 size size"]
) -> Float[Tensor, "images ..."]:
    """A network's output, without gradients, a few pictures on each core rather than all cores at every layer.

    Cores that share a layer wait for the slowest one at each of them, which costs most where other programs are busy.
    """
    threads = torch.get_num_threads()
    chunks = pixels.split(max(1, min(AT_ONCE, math.ceil(len(pixels) / threads))))  # type: ignore[no-untyped-call]

    def forward(chunk: Tensor) -> Tensor:
        with torch.inference_mode():  # each thread has a mode of its own
            return work(chunk)

    if threads == 1:
        return torch.cat([forward(chunk) for chunk in chunks])
    return torch.cat(list(_cores(threads, os.getpid()).map(forward, chunks)))


@functools.cache
def _cores(threads: int, process: int) -> ThreadPoolExecutor:
    """One thread a core, each with no other to wait for; a process that was forked needs threads of its own."""
    name = f"fewtag-{process}"
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,))


def precision_of(backbone: Backbone) -> torch.dtype:
    """What the network computes in: tensor cores round to bfloat16, a CPU keeps all digits."""
    return torch.bfloat16 if backbone.mean.device.type == "cuda" else torch.float32


def start(backbone: Backbone, pixels: Pixels) -> Callable[[], HalfMaps]:
    """Begins one pass of the network in evaluation mode; calling what comes back waits for its maps.

    A GPU goes on with this batch while the caller fetches the next one or keeps the last one's maps.
    """
    device = backbone.mean.device
    was_training = backbone.training
    backbone.eval()
    batch = torch.from_numpy(pixels)
    if device.type == "cuda":
        with torch.inference_mode(), torch.autocast("cuda", precision_of(backbone)):
            maps = backbone(_upload(batch, device)).half().contiguous()
    else:
        maps = map_chunks_over_cores(backbone, batch).half().contiguous()
    backbone.train(was_training)
    return _download(maps) if device.type == "cuda" else maps.numpy


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """One for what comes and one for what goes: in the network's own, copies and layers would wait for each other."""
    coming, going = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    return coming, going


def _upload(batch: Tensor, device: torch.device) -> Tensor:
    """To the GPU, on a stream beside the network's."""
    coming, _ = _streams(device)
    with torch.cuda.stream(coming):
        there = batch.pin_memory().to(device, non_blocking=True)  # from other memory a copy holds the caller up
    network = torch.cuda.current_stream(device)
    network.wait_stream(coming)
    there.record_stream(network)
    return there


def _download(maps: Tensor) -> Callable[[], HalfMaps]:
    """To the host's memory, on a stream of its own once the network has got so far."""
    _, going = _streams(maps.device)
    going.wait_stream(torch.cuda.current_stream(maps.device))
    home = torch.empty(maps.shape, dtype=maps.dtype, pin_memory=True)
    with torch.cuda.stream(going):
        home.copy_(maps, non_blocking=True)
        arrived = going.record_event()
    maps.record_stream(going)

    def finish() -> HalfMaps:
        arrived.synchronize()
        return home.numpy()

    return finish
