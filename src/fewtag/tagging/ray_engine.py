"""The Ray engine: shards tagged by the workers of a cluster, either started for this run or an existing one."""

import logging
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from fewtag import __version__
from fewtag.cache import ArrayRows
from fewtag.errors import InputError, import_extra
from fewtag.pictures.prefetch import Advance, usable_cores
from fewtag.tagger.stream import Scorer, cached_places
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.run import Work, finish_shards
from fewtag.tagging.sources import Shard
from fewtag.tagging.tables import Counts

# disables multi-node clusters (Ray's default on macOS and Windows), so that no other machine can join and Ray listens
# on the loopback only. A node address of 127.0.0.1 does not do it: Ray replaces that by one that others can reach
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_ANSWERS_WITHIN = 3.0
# Ray divides a core into this many parts
_SMALLEST_PARTS = 10_000
# offline, private and quiet: what matters to a person is reported in one sentence
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # as in the local engine; with Ray's default of 15 workers get no time if another program is busy
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True)
class Allocation:
    """The number of workers, and what each one has to itself."""

    workers: int
    cores: float
    gpu: bool


def allocate(nodes: Sequence[Mapping[str, float]], workers: int | None) -> Allocation:
    """As many workers as there are GPUs, or else cores; fewer get more cores each, but never from two machines.

    >>> allocate([{"CPU": 16.0}, {"CPU": 4.0}], 3)
    Allocation(workers=3, cores=5.0, gpu=False)
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    cores = sum(node.get("CPU", 0) for node in nodes)
    if workers is None:
        workers = gpus or max(int(cores), 1)
    if gpus and workers > gpus:
        raise InputError(f"--workers {workers}, but there are {gpus} GPUs, one for each; give at most {gpus}")
    whole = (Fraction(each) for each in range(math.floor(cores / workers), 0, -1))
    parts = (Fraction(1, each) for each in range(2, _SMALLEST_PARTS + 1))
    for each in chain(whole, parts):
        fit = (min(Fraction(node.get("CPU", 0)) // each, node.get("GPU", 0) if gpus else math.inf) for node in nodes)
        if sum(fit) >= workers:
            return Allocation(workers, math.floor(each * _SMALLEST_PARTS) / _SMALLEST_PARTS, gpus > 0)
    raise InputError(f"--workers {workers}, but no machine of the cluster has cores for them; give fewer")


@contextmanager
def open_cluster(address: str | None) -> Iterator[list[Mapping[str, float]]]:
    """Yields the CPUs and GPUs of each machine; a cluster started here is on the loopback, and ends with the run."""
    if address is not None:
        check_address(address)
    for name, value in (_QUIET | (_LOOPBACK if address is None else {})).items():  # before Ray is imported
        os.environ.setdefault(name, value)
    ray = import_extra("ray", "--engine ray", "ray")
    # Ray reports the deaths of workers on standard output, which --json reserves for machines
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, address)
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
        finally:
            if ours:
                ray.shutdown()


def _connect(ray: ModuleType, address: str | None) -> None:
    local: dict[str, Any] = {"num_cpus": usable_cores(), "include_dashboard": False}
    try:
        with _without_stderr():
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **({} if address else local),
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster answers at --address {address}" if address else "Ray cannot start here"
        said = " ".join(str(error).split())
        what_to_do = "if it asks for a token set RAY_AUTH_MODE=token, and " if address else ""
        raise InputError(f"{where}: {said[:300]}; {what_to_do}look at it with: ray status") from error


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Silences file descriptor 2: Ray's core writes there, bypassing Python, although told to be quiet."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_address(address: str) -> None:
    """Refuses an address where nobody listens at once, where Ray itself would wait for minutes."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise InputError(
            f"--address {address}: Ray's client is not for this; run fewtag on a machine of the cluster with --address "
            "auto, or send it there with: ray job submit -- fewtag tag ..."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--address {address} is none; give HOST:PORT such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at --address {address} ({error}); start one with: ray start --head, "
            "or leave --address out to use this machine"
        ) from error


class Worker:
    """A Ray actor: opened once, then given shard after shard. Errors are returned, so that it stays alive."""

    _tagger: Tagger
    _scorer: Scorer
    _space: ArrayRows | None

    def open(self, work: Work, allocation: Allocation, version: str) -> str:
        """Prepares the worker; returns why it cannot work, or an empty string."""
        self._work = work
        try:
            if version != __version__:
                raise InputError(
                    f"a worker has fewtag {__version__}, this is {version}; install the same one on every machine"
                )
            self._tagger, self._scorer = work.open("cuda" if allocation.gpu else "cpu", max(1, int(allocation.cores)))
            self._cache = cached_places(self._tagger.model, work.options.cache)
            self._space = self._cache.__enter__()  # left open for as long as this process lives
        except InputError as error:
            return str(error)
        return ""

    def finish(self, shard: Shard) -> Counts | str:
        """Tags a shard; returns its counts, or why it could not be finished."""
        try:
            return finish_shards(self._tagger.model, self._scorer, [shard], self._work, self._space)[shard.number]
        except InputError as error:
            return str(error)


def finish_on_ray(
    shards: Sequence[Shard], work: Work, allocation: Allocation, advance: Advance
) -> tuple[float, dict[int, Counts]]:
    """When the first worker was ready, and the counts of each shard; raises InputError if some failed."""
    ready, finished, refusals = math.inf, dict[int, Counts](), dict[int, str]()
    for shard, answer in _answers(shards, work, allocation):
        if shard is None:
            ready = min(ready, time.time())
        elif isinstance(answer, str):
            refusals[shard.number] = answer
        else:
            finished[shard.number] = answer
            advance(shard.size)
    if refusals:
        number, why = min(refusals.items())
        raise InputError(
            f"{len(refusals)} of {len(shards)} shards could not be tagged, the first is {work.parts.name(number)}: "
            f"{why} (the others are finished: the same command goes on from there)"
        )
    return ready, finished


def _answers(
    shards: Sequence[Shard], work: Work, allocation: Allocation
) -> Iterator[tuple[Shard | None, Counts | str]]:
    """The actor pool: yields shards with their worker's answer as they are done, and None when a worker is ready.

    A worker gets a shard only once it has started, so that one for which the cluster has no room holds none up. For the
    same reason dead workers are replaced here rather than restarted by Ray: their shard goes to the first that is free.
    """
    import ray
    from ray.exceptions import RayActorError, RayError

    actor = ray.remote(num_cpus=allocation.cores, num_gpus=int(allocation.gpu))(Worker)
    shipped, most = ray.put(work), work.options.max_attempts
    calls = dict[Any, tuple[Any, Shard | None]]()  # each worker at work, with its shard; without one it is starting
    waiting, left, deaths, stillborn = deque(shards), len(shards), Counter[int](), 0

    def hire() -> None:
        worker: Any = actor.remote()
        calls[worker.open.remote(shipped, allocation, __version__)] = worker, None

    for _ in range(min(allocation.workers, len(shards))):
        hire()
    while left:
        if not calls:
            raise _cannot_go_on(f"{stillborn} died before their first picture")
        [done], _ = ray.wait([*calls])
        worker, shard = calls.pop(done)
        try:
            answer = ray.get(done)
        except RayActorError:
            if shard is None:
                stillborn += 1
                if stillborn < most:
                    hire()
                continue
            ray.kill(worker)  # it may merely be unreachable
            hire()
            deaths[shard.number] += 1
            if deaths[shard.number] < most:
                waiting.appendleft(shard)
                continue
            left -= 1
            yield (
                shard,
                f"its worker died {most} times: too little memory, or a picture that kills its reader; "
                "give it fewer --workers, or move the pictures away that are suspect",
            )
            continue
        except RayError as error:
            answer = str(error).strip().splitlines()[-1]
            if shard is None:
                raise _cannot_go_on(answer) from error
        if shard is None and answer:
            raise InputError(f"{answer} (finished shards are kept: the same command goes on from there)")
        if waiting:
            following = waiting.popleft()
            calls[worker.finish.remote(following)] = worker, following
        left -= shard is not None
        yield shard, answer


def _cannot_go_on(why: str) -> InputError:
    return InputError(
        f"the workers cannot go on: {why}; see that fewtag {__version__} is installed on every machine, then run the "
        "same command again: finished shards are kept"
    )
