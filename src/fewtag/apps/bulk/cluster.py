"""The Ray cluster: one's own for this run, or an existing one by its address."""

import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fewtag.errors import InputError
from fewtag.pictures.prefetch import usable_cores

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
Nodes = Sequence[Mapping[str, float]]
"""What each machine has: CPU, GPU."""


@dataclass(frozen=True)
class Share:
    """How many workers there are, and what each one has for itself."""

    workers: int
    cores: float
    gpu: bool

    @property
    def threads(self) -> int:
        return max(1, int(self.cores))


@contextmanager
def cluster(address: str | None) -> Iterator[Nodes]:
    """Its machines; a cluster that was started here ends with the run."""
    ray = _import_ray()
    # Ray prints the deaths of workers on standard output, where --json is for machines
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        ours = not ray.is_initialized()
        if ours:
            connect(address)
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
        finally:
            if ours:
                ray.shutdown()


def connect(address: str | None) -> None:
    """To an existing cluster, or to one that is started here."""
    ray = _import_ray()
    try:
        with _hushed():
            ray.init(
                address=address or "local",
                num_cpus=None if address else usable_cores(),
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster answers at --address {address}" if address else "Ray cannot start here"
        said = " ".join(str(error).split())
        what_to_do = "if it asks for a token set RAY_AUTH_MODE=token, and " if address else ""
        raise InputError(f"{where}: {said[:300]}; {what_to_do}look at it with: ray status") from error


def _import_ray() -> ModuleType:
    """Quiet, if this is the first import of it."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError('--engine ray needs Ray, which is not installed; run: pip install "fewtag[ray]"') from error
    return ray


@contextmanager
def _hushed() -> Iterator[None]:
    """Without standard error: Ray's core writes there, past Python's, that it was told to be quiet."""
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


def share(nodes: Nodes, workers: int | None) -> Share:
    """As many workers as there are GPUs, or else cores; fewer have more cores each, but never those of two machines.

    >>> share([{"CPU": 16.0}, {"CPU": 4.0}], workers=3)
    Share(workers=3, cores=5.0, gpu=False)
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    cores = sum(node.get("CPU", 0) for node in nodes)
    if workers is None:
        workers = gpus or max(int(cores), 1)
    if gpus and workers > gpus:
        raise InputError(f"--workers {workers}, but there are {gpus} GPUs, one for each worker; give at most {gpus}")

    for each in range(math.floor(cores / workers), 0, -1):
        if sum(_fit(node, each, gpus > 0) for node in nodes) >= workers:
            return Share(workers, float(each), gpus > 0)
    # more workers than cores: Ray counts in ten thousandths of a core
    return Share(workers, math.floor(1e4 * cores / workers) / 1e4, gpus > 0)


def _fit(node: Mapping[str, float], cores: int, gpu: bool) -> int:
    by_cores = int(node.get("CPU", 0) // cores)
    return min(by_cores, int(node.get("GPU", 0))) if gpu else by_cores
