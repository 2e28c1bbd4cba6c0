"""Work on pictures spread over a CPU's cores: a few pictures each, rather than all cores at every layer."""

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

AT_ONCE = 4
"""Pictures that a core works on: so few that what a layer makes of them stays in its cache."""


def spread(
    work: Callable[[Tensor], Tensor], pixels: UInt8[Tensor, "images 3 size size"]
) -> Float[Tensor, "images ..."]:
    """What a network makes of the pictures, without gradients.

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
