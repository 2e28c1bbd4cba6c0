"""The Ray engine: shards finished by the workers of a cluster, one's own for this run or an existing one."""

import logging
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fewtag import __version__
from fewtag.cache import Space
from fewtag.errors import InputError
from fewtag.pictures.prefetch import usable_cores
from fewtag.tagger.stream import Scorer, cached_places
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.run import Advance, Work, finish_shards
from fewtag.tagging.sources import Shard
from fewtag.tagging.tables import Counts

# by Ray's own name, what it does on macOS and Windows: no other machine may join, so that nothing listens to them. An
# address of 127.0.0.1 does not do it: Ray replaces that by one that others can reach
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_ANSWERS_WITHIN = 3.0
# offline and private, and quiet: what matters to a person is told in one sentence
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # as the local engine; Ray's own 15 leaves the workers nothing where another program is busy
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True)
class Share:
    """How many workers there are, and what each one has for itself."""

    workers: int
    cores: float
    gpu: bool


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None) -> Share:
    """As many workers as there are GPUs, or else cores; fewer have more cores each, but never of two machines.

    >>> share_out([{"CPU": 16.0}, {"CPU": 4.0}], 3)
    Share(workers=3, cores=5.0, gpu=False)
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    cores = sum(node.get("CPU", 0) for node in nodes)
    if workers is None:
        workers = gpus or max(int(cores), 1)
    if gpus and workers > gpus:
        raise InputError(f"--workers {workers}, but there are {gpus} GPUs, one for each; give at most {gpus}")
    for each in range(math.floor(cores / workers), 0, -1):
        fit = (min(node.get("CPU", 0) // each, node.get("GPU", 0) if gpus else math.inf) for node in nodes)
        if sum(fit) >= workers:
            return Share(workers, float(each), gpus > 0)
    # more workers than cores: Ray counts in ten thousandths of a core
    return Share(workers, math.floor(1e4 * cores / workers) / 1e4, gpus > 0)


@contextmanager
def open_cluster(address: str | None) -> Iterator[list[Mapping[str, float]]]:
    """What its machines have, CPU and GPU; one that is started here listens on the loopback and ends with the run."""
    if address is not None:
        check_address(address)
    # quiet, and for a cluster of its own on the loopback, if this is the first import of it
    for name, value in (_QUIET | (_LOOPBACK if address is None else {})).items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError('--engine ray needs Ray, which is not installed; run: pip install "fewtag[ray]"') from error
    # Ray prints the deaths of workers on standard output, where --json is for machines
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, address)
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
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
    """Ray's core writes there, past Python's, that it was told to be quiet."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_address(address: str) -> None:
    """Refuses at once an address where nobody listens: Ray itself would wait for minutes."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise InputError(
            f"--address {address}: Ray Data does not work through Ray's client; run fewtag on a machine of the cluster "
            "with --address auto, or send it there with: ray job submit -- fewtag tag ..."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--address {address} is none; give HOST:PORT such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at --address {address} ({error}); start one with: ray start --head, "
            "or leave --address out to use this machine"
        ) from error


class Attempts:
    """How often each shard was begun, kept outside of the workers, since they may die of it."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, shard: int) -> int:
        self._begun[shard] += 1
        return self._begun[shard]


class Worker:
    """Ray Data makes one in each process, and again after a death; a refusal is an answer, never a death."""

    def __init__(self, work: Work, share: Share, attempts: Any, version: str = __version__) -> None:
        self._work, self._attempts = work, attempts
        self._opened: tuple[Tagger, Scorer] | None = None
        self._space: Space | None = None
        self._refusal = ""
        try:
            if version != __version__:
                raise InputError(
                    f"a worker has fewtag {__version__}, this is {version}; install the same one on every machine"
                )
            self._opened = work.open("cuda" if share.gpu else "cpu", max(1, int(share.cores)))
            self._cache = cached_places(self._opened[0].model, work.options.cache)
            self._space = self._cache.__enter__()  # for as long as this process lives
        except InputError as error:
            self._refusal = str(error)
        self._ready = time.time()  # not monotonic: it is compared with another machine's

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """A row for each shard: its counts, or why it could not be finished and whether the others cannot either."""
        answers = [self._finish(Shard.from_json(str(text))) for text in batch["shard"]]
        return {key: [answer[key] for answer in answers] for key in answers[0]}

    def _finish(self, shard: Shard) -> dict[str, Any]:
        import ray

        counts, refusal = Counts(0, 0), self._refusal
        if self._opened is not None:
            tagger, scorer = self._opened
            attempt = ray.get(self._attempts.begin.remote(shard.number))
            try:
                refuse_deadly(attempt, self._work.options.max_attempts)
                counts = finish_shards(tagger.model, scorer, [shard], self._work, self._space)[shard.number]
            except InputError as error:
                refusal = str(error)
        said = {"shard": shard.number, "refusal": refusal, "final": self._opened is None, "ready": self._ready}
        return said | asdict(counts)


def refuse_deadly(attempt: int, most: int) -> None:
    """A shard that its workers keep dying of is not tried for ever."""
    if attempt > most:
        raise InputError(
            f"its worker died {most} times: too little memory, or a picture that kills its reader; "
            "give it fewer --workers, or move the pictures away that are suspect"
        )


def finish_on_ray(
    shards: Sequence[Shard], work: Work, share: Share, advance: Advance
) -> tuple[float, dict[int, Counts]]:
    """When the first worker was ready, and the counts of each shard; refuses if some could not be finished."""
    sizes = {shard.number: shard.size for shard in shards}
    ready, finished, refusals = math.inf, dict[int, Counts](), dict[int, str]()
    for answer in _answers(shards, work, share):
        ready = min(ready, answer["ready"])
        number = int(answer["shard"])
        if not answer["refusal"]:
            finished[number] = Counts(int(answer["tagged"]), int(answer["failed"]), int(answer["cached"]))
            advance(sizes[number])
            continue
        refusals[number] = answer["refusal"]
        if answer["final"]:
            raise InputError(f"{answer['refusal']} (finished shards are kept: the same command goes on from there)")
    if refusals:
        number, why = min(refusals.items())
        raise InputError(
            f"{len(refusals)} of {len(sizes)} shards could not be tagged, the first is {work.parts.name(number)}: "
            f"{why} (the others are finished: the same command goes on from there)"
        )
    assert finished.keys() == sizes.keys(), "Ray Data answers for every shard"
    return ready, finished


def _answers(shards: Sequence[Shard], work: Work, share: Share) -> Iterator[dict[str, Any]]:
    """What the workers say of each shard, as they finish; Ray restarts one that dies and gives its shard out again."""
    import ray
    import ray.data
    from ray.exceptions import RayError

    # Ray Data tries for ever after a death, so we count; its own limit goes with Ray 2.64
    attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    items = [{"shard": shard.to_json()} for shard in shards]
    tagged = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        Worker,
        batch_size=1,
        fn_constructor_args=(work, share, attempts),
        # one at a time: a shard that waits in a worker would die with it
        compute=ray.data.ActorPoolStrategy(
            size=min(share.workers, len(items)), max_tasks_in_flight_per_actor=1, max_concurrent_calls_per_actor=1
        ),
        num_cpus=share.cores,
        num_gpus=1 if share.gpu else None,
    )
    try:
        yield from tagged.iter_rows()
    except RayError as error:
        said = str(error).strip().splitlines()[-1]
        raise InputError(
            f"the workers cannot go on: {said}; see that fewtag {__version__} is installed on every machine, "
            "then run the same command again: finished shards are kept"
        ) from error
