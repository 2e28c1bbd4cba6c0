"""Distributed training and evaluation: one process, or several that torchrun started, through Lightning Fabric."""

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from fewtag.errors import InputError
from fewtag.pictures.prefetch import Begin, unwatched, usable_cores
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.rows import Rows

Item = TypeVar("Item")
Made = TypeVar("Made")

ACCELERATORS = ("auto", "cpu", "gpu")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
TIMEOUT = timedelta(days=30)
"""How long a rank waits for the others: one may be reading pictures for hours."""
FAREWELL = timedelta(seconds=10)
"""How long a rank that refuses waits for the others to refuse as well."""


class Bench(NamedTuple):
    """The environment of a run: the ranks, the folder of the feature cache, and the progress callback."""

    fabric: Fabric
    cache: Path
    begin: Begin = unwatched


def open_fabric(accelerator: str, precision: str) -> Fabric:
    """Joins the ranks that torchrun started, or makes this process the only one."""
    launched = torch.distributed.is_torchelastic_launched()
    if launched:
        _join_ranks()
    with collective_refusal():
        fabric = _fabric(accelerator, precision, launched=launched)
    fabric.launch()
    return fabric


def _join_ranks() -> None:
    """Creates the process group before anything can be refused, so that all ranks refuse together."""
    # Fabric uses this group. Objects and flags travel by gloo on any device; tensors of a GPU by NCCL
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=TIMEOUT)
    if backend == "gloo":
        # otherwise gloo's threads may still run at exit, which aborts the process instead of returning its exit code.
        # NCCL's group is not destroyed: that would wait for the other ranks, which may have crashed
        atexit.register(torch.distributed.destroy_process_group)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    if torch.distributed.get_rank() != 0:
        warnings.simplefilter("ignore")


def _fabric(accelerator: str, precision: str, *, launched: bool) -> Fabric:
    for option, value, known in (("--accelerator", accelerator, ACCELERATORS), ("--precision", precision, PRECISIONS)):
        if value not in known:
            raise InputError(f"{option} {value} is not offered; choose one of {', '.join(known)}")
    gpu = accelerator != "cpu" and torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise InputError("--accelerator gpu, but torch sees no GPU here; use --accelerator cpu")
    here, everywhere = (int(os.environ[key]) if launched else 1 for key in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if everywhere % here:
        raise InputError(
            f"torchrun started {here} of {everywhere} processes on this machine; "
            "start as many on each: the same --nproc-per-node"
        )
    if gpu and here > torch.cuda.device_count():
        raise InputError(
            f"{here} processes need a GPU each, but torch sees {torch.cuda.device_count()} here; "
            "start fewer (torchrun --nproc-per-node), or use --accelerator cpu"
        )
    if gpu:
        torch.set_float32_matmul_precision("high")
    elif here > 1:
        # torchrun sets OMP_NUM_THREADS=1 for each process, however many cores there are
        torch.set_num_threads(max(1, usable_cores() // here))
    chosen: Any = ("bf16-mixed" if gpu else "32-true") if precision == "auto" else precision
    return Fabric(
        accelerator="cuda" if gpu else "cpu",
        devices=here,
        num_nodes=everywhere // here,
        strategy=DDPStrategy(timeout=TIMEOUT) if launched else "auto",
        precision=chosen,
    )


def rank_share(fabric: Fabric, items: Sequence[Item]) -> Sequence[Item]:
    """This rank's part of the items: dealt round-robin, so that the parts differ by at most one."""
    return items[fabric.global_rank :: fabric.world_size]


def share_out(fabric: Fabric, items: Sequence[Item], work: Callable[[Sequence[Item]], list[Made]]) -> list[Made]:
    """The results of `work` for all items, in order: each rank does its part, then all ranks get all results."""
    with collective_refusal():
        mine = work(rank_share(fabric, items))
    shares = [mine] * fabric.world_size
    if fabric.world_size > 1:
        torch.distributed.all_gather_object(shares, mine)
    return [shares[number % len(shares)][number // len(shares)] for number in range(len(items))]


@contextmanager
def collective_refusal() -> Iterator[None]:
    """Makes all ranks raise the InputError that one of them raised, so that none waits for a rank that is gone.

    Within this context, the ranks must not wait for each other.
    """
    refusal: InputError | None = None
    try:
        yield
    except InputError as error:
        if not torch.distributed.is_initialized():
            raise
        refusal = error
    if not torch.distributed.is_initialized():
        return
    # a flag first, which is far cheaper than gathering messages: this happens at every training step
    refused = torch.tensor([refusal is not None], dtype=torch.int32)
    torch.distributed.all_reduce(refused)
    if not refused.item():
        return
    sentences = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(sentences, "" if refusal is None else str(refusal))
    raise refusal or InputError(next(filter(None, sentences)))


def on_rank_zero(fabric: Fabric, work: Callable[[], Item]) -> Item:
    """The result of `work` on rank zero, broadcast: only it reads and writes the folders of runs and results."""
    made: list[Item] = []
    with collective_refusal():
        if fabric.is_global_zero:
            made.append(work())
    return fabric.broadcast(made)[0]


def broadcast_buffers(fabric: Fabric, module: nn.Module) -> None:
    """Gives every rank the buffers of rank zero, above all batch-norm's running statistics.

    DDP does so before each forward pass of training; this is for code that uses them afterwards.
    """
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


def rows_by_all_ranks(bench: Bench, images: LabelledImages, read: Callable[..., Rows], what: str) -> Rows:
    """The rows of all images, which `read` stores in the cache: each rank reads its part, then finds all rows there.

    Ranks that do not share a cache read the rest as well.
    """
    if bench.fabric.world_size > 1:
        mine = images.select(rank_share(bench.fabric, range(len(images))))
        advance = bench.begin(f"reading a part of the {what} pictures", len(mine))
        with collective_refusal():
            if len(mine):
                read(mine, advance=advance)
    advance = bench.begin(f"reading the {what} pictures", len(images))
    with collective_refusal():
        return read(images, advance=advance)


def print_once(sentence: str) -> None:
    """Prints an error on standard error: by rank zero only, if the ranks refused together.

    torchrun ends all ranks once one has exited, so none exits before rank zero has printed.
    """
    if not torch.distributed.is_initialized():
        print(sentence, file=sys.stderr)
        return
    is_zero = torch.distributed.get_rank() == 0
    if is_zero:
        print(sentence, file=sys.stderr, flush=True)
    try:
        meeting = torch.distributed.all_reduce(torch.zeros(1), async_op=True)
        assert meeting is not None
        meeting.wait(FAREWELL)
    except RuntimeError:  # the others did not come: this rank refused alone, and prints the error itself
        if not is_zero:
            print(sentence, file=sys.stderr, flush=True)
