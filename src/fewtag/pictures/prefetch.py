"""Prefetch: reading in threads, ahead of the network; and who is told of progress."""

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[..., None]
"""Told how many more are done, and perhaps of facts by name (loss=0.3)."""
Begin = Callable[[str, int], Advance]
"""Told what is about to be done and of how many; answers with what to tell of each few."""


def unwatched(_task: str, _total: int) -> Advance:
    """Progress that nobody watches."""
    return lambda _count, **_facts: None


def prefetch(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    most: int,
    threads: int | None = None,
    *,
    give_way: bool = True,
) -> Iterator[Result]:
    """Results in order; threads, one a core, work on the next `most` items while the caller is busy with this one.

    They give way to the network's threads, unless they are what these wait for.
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
        # never joined: the garbage collector may close an abandoned generator while a thread starts anywhere, under the
        # lock that a join takes
        pool.shutdown(wait=False, cancel_futures=True)


def usable_cores() -> int:
    """Processor cores that this process may use, which on a shared machine are not all."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def lower_priority() -> None:
    """Lets the network's threads go first: they wait for one another, so one held up by reading holds up all."""
    if sys.platform == "linux" and hasattr(os, "setpriority"):  # where each thread has a priority of its own
        thread = threading.get_native_id()
        # from where it is: only root may take a priority back that was given up before, as Ray's workers do
        os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + 10, 19))


def batches(items: Iterator[Item], size: int) -> Iterator[Sequence[Item]]:
    """Batches of so many items, the last one shorter."""
    while batch := list(itertools.islice(items, size)):
        yield batch
