"""Prefetching: reading in threads, ahead of the network; and the types of progress callbacks."""

import itertools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[..., None]
"""Called with the number of items done since the last call, and perhaps with facts by name (loss=0.3)."""
Begin = Callable[[str, int], Advance]
"""Called with a task and its number of items before it starts; returns the function that reports progress."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""In a container: the microseconds of processor time that it may use in each period, and the period."""


def unwatched(_task: str, _total: int) -> Advance:
    """A `Begin` for progress that nobody watches."""
    return lambda _count, **_facts: None


def prefetch(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    most: int,
    threads: int | None = None,
    *,
    give_way: bool = True,
) -> Iterator[Result]:
    """Results in order; threads, one per core, work on the next `most` items while the caller is busy with this one.

    They have a lower priority than the network's threads, unless `give_way` is off, as for work that those wait for.
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads or usable_cores(), initializer=lower_priority if give_way else None)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # without joining: the garbage collector may close an abandoned generator while a thread is being started, which
        # holds the lock that a join takes
        pool.shutdown(wait=False, cancel_futures=True)


def usable_cores() -> int:
    """The number of processor cores that this process may use: those of its affinity, and of its container's quota.

    More threads than a quota allows would spend it early in each tenth of a second, and stand still for the rest.
    """
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    try:
        quota, period = map(int, QUOTA.read_text().split())
        return min(cores, max(1, math.ceil(quota / period)))
    except (OSError, ValueError, ZeroDivisionError):  # not in a container, or one without a limit: "max 100000"
        return cores


def lower_priority() -> None:
    """Lowers this thread's priority below the network's threads, which wait for one another: one delay delays all."""
    if sys.platform == "linux" and hasattr(os, "setpriority"):  # where priorities are per thread
        thread = threading.get_native_id()
        # relative to the present one: only root may raise a priority that was lowered before, as Ray's workers' is
        os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + 10, 19))


def batches(items: Iterator[Item], size: int) -> Iterator[Sequence[Item]]:
    """Batches of `size` items, the last one perhaps shorter."""
    while batch := list(itertools.islice(items, size)):
        yield batch
