"""Several processes at one run: what they deal out, what they tell each other, and how they refuse as one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed
from lightning_fabric import Fabric

from fewtag.errors import InputError, LonelyError
from fewtag.research.bench.progress import Reporter
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.rows import Rows

Item = TypeVar("Item")


def share(fabric: Fabric, items: Sequence[Item]) -> Sequence[Item]:
    """This process's part: dealt out in turn, so that the parts differ by one at most."""
    return items[fabric.global_rank :: fabric.world_size]


def gather(fabric: Fabric, mine: Item) -> list[Item]:
    """What each process has, the first one's first."""
    if fabric.world_size == 1:
        return [mine]
    found: list[Item] = [mine] * fabric.world_size
    torch.distributed.all_gather_object(found, mine)
    return found


def in_order(shares: Sequence[Sequence[Item]]) -> list[Item]:
    """What `share` dealt out, as it was before.

    >>> in_order([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    return [shares[number % len(shares)][number // len(shares)] for number in range(sum(map(len, shares)))]


@contextmanager
def as_one(fabric: Fabric) -> Iterator[None]:
    """What one process refuses all refuse, in its words; so none waits for one that is gone.

    Within, the processes must not wait for each other.
    """
    refused: InputError | None = None
    try:
        yield
    except InputError as error:
        refused = error
    reasons = gather(fabric, refused and str(refused))
    if refused is not None:
        raise refused
    if others := [reason for reason in reasons if reason is not None]:
        raise InputError(others[0])


@contextmanager
def alone() -> Iterator[None]:
    """Where the others are waiting already: the process that refuses has to say so itself."""
    try:
        yield
    except InputError as error:
        raise LonelyError(str(error)) from error


def by_first(fabric: Fabric, work: Callable[[], Item]) -> Item:
    """What the first process makes of it, told to all: it alone reads and writes the folders of runs and results."""
    made: list[Item] = []
    with as_one(fabric):
        if fabric.is_global_zero:
            made.append(work())
    return fabric.broadcast(made)[0]


def read_rows_together(
    fabric: Fabric, images: LabelledImages, read: Callable[[LabelledImages], Rows], report: Reporter, what: str
) -> Rows:
    """The rows of all images, which `read` keeps in the cache: each process reads its part, then finds all there.

    Processes that do not see each other's cache read the rest as well.
    """
    if fabric.world_size > 1:
        mine = images.select(share(fabric, range(len(images))))
        report.start(f"reading a part of the {what} pictures", len(mine))
        with as_one(fabric):
            if len(mine):
                read(mine)
    report.start(f"reading the {what} pictures", len(images))
    with as_one(fabric):
        return read(images)
