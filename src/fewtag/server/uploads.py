"""Decoding of uploads in expendable worker processes, limited in memory, processor time and pixels.

A worker gets encoded bytes and returns a square of pixels: it has no token, and neither opens nor writes files. Its
answers are checked like untrusted input and never unpickled, since a picture may have taken it over.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePath
from typing import IO, Any

import numpy as np

from fewtag.errors import InputError
from fewtag.pictures.decode import DRAFT, Decoded, decode, pixel_digest, squash, thumbnail
from fewtag.pictures.prefetch import usable_cores
from fewtag.server import TOKEN_VARIABLE

MEMORY = 3_000_000_000
"""Limit of a worker's address space: 100 megapixels with transparency need half of it."""
SECONDS = 60.0
"""The time limit for one picture."""
SECRETS = frozenset({TOKEN_VARIABLE, "LABEL_STUDIO_API_KEY"})
"""Environment variables that workers do not get."""
_LONGEST_HEADER = 100_000
_LONGEST_THUMBNAIL = 2_000_000


class Decoders:
    """A pool of workers, one per core. Any thread may use it; a worker that dies or hangs is replaced."""

    def __init__(self, count: int | None = None, *, memory: int = MEMORY, seconds: float = SECONDS) -> None:
        self.count, self.memory, self.seconds = count or usable_cores(), memory, seconds
        self.deaths, self._closed = 0, threading.Event()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="fewtag-upload")
        # one for all: a timer for each picture would be a thread for each
        self._watch = threading.Thread(target=self._end_late, daemon=True, name="fewtag-watch")
        self._watch.start()

    def submit(self, data: bytes, name: str, side: int, *, example: bool = False) -> Future[Decoded]:
        """Decodes in a worker; `example` also asks for what a bank keeps, made from all pixels of the picture."""
        return self._threads.submit(self._decode, data, name, side, example)

    def _decode(self, data: bytes, name: str, side: int, example: bool) -> Decoded:
        while True:
            with self._lock:
                if self._closed.is_set():
                    raise CancelledError("the server is closing")
                known = bool(self._idle)
                worker = self._idle.pop() if known else _Worker(self.memory, self.seconds)
                self._busy.add(worker)
            try:
                return worker.decode(data, name, side, example)
            except InputError:
                raise
            except (OSError, ValueError, KeyError, TypeError) as error:  # the worker is dead, or sends garbage
                worker.end()
                # a reused worker may have been killed from outside, or by the previous picture
                if known and not worker.late and not self._closed.is_set():
                    continue
                self.deaths += 1
                raise InputError(
                    f"image {name} cannot be decoded within {self.seconds:g} seconds and "
                    f"{self.memory // 10**6} MB: its decoder died of it; replace it"
                ) from error
            finally:
                with self._lock:
                    self._busy.discard(worker)
                    if worker.lives:
                        self._idle.append(worker)

    def _end_late(self) -> None:
        """Kills the workers whose picture takes too long."""
        while not self._closed.wait(min(1.0, self.seconds / 10)):
            with self._lock:
                for worker in self._busy:
                    worker.end_late()

    @property
    def workers(self) -> list[int]:
        """The process ids of idle workers."""
        return [worker.process.pid for worker in self._idle]

    def close(self) -> None:
        """Ends all workers; pictures that are being decoded are given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed.set()
            for worker in self._busy:
                worker.process.kill()
        self._threads.shutdown()
        self._watch.join()
        while self._idle:
            self._idle.pop().end()


class _Worker:
    """One process, for one picture at a time."""

    def __init__(self, memory: int, seconds: float) -> None:
        self.seconds, self.lives, self.late, self._until = seconds, True, False, math.inf
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        # Ctrl-C reaches all processes of a terminal, but the server ends its workers itself
        command = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        command += f"from fewtag.server.uploads import work; work({memory}, {seconds})"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", command],  # -P: nothing is imported from the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # decoders print messages
            env=environment,
        )

    def decode(self, data: bytes, name: str, side: int, example: bool) -> Decoded:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.late, self._until = False, time.monotonic() + self.seconds  # ended late, but after the picture before
        try:
            _send(self.process.stdin, {"name": name, "side": side, "example": example, "size": len(data)}, data)
            answer, square = _receive(self.process.stdout, 3 * side * side)
        finally:
            self._until = math.inf
        if failure := answer.get("failure"):
            raise InputError(str(failure))
        key, small = str(answer["key"]), bytes.fromhex(answer["thumbnail"])
        if example and (len(key) != 64 or set(key) - set("0123456789abcdef")):
            raise ValueError("no digest")
        pixels = np.frombuffer(square, np.uint8).reshape(side, side, 3).transpose(2, 0, 1)
        return Decoded(pixels, key, PurePath(name).name, small)

    def end_late(self) -> None:
        """Kills the process if its picture takes too long."""
        if time.monotonic() > self._until:
            self.late = True
            self.process.kill()

    def end(self) -> None:
        self.lives = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _send(pipe: IO[bytes], header: dict[str, Any], content: bytes = b"") -> None:
    pipe.write(json.dumps(header).encode() + b"\n")
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes], size: int) -> tuple[dict[str, Any], bytes]:
    line = pipe.readline(_LONGEST_HEADER + 2 * _LONGEST_THUMBNAIL)
    if not line.endswith(b"\n"):
        raise ValueError("the worker ended")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("no answer")
    return answer, b"" if "failure" in answer else pipe.read(size)


def work(memory: int, seconds: float) -> None:
    """The worker's loop: pictures from standard input, pixels to standard output, until the server is gone."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _restrict(memory)
    while line := source.readline():
        asked = json.loads(line)
        data = source.read(asked["size"])
        _allow_seconds(seconds)
        try:
            # an example needs all pixels, for its digest; other JPEGs may be decoded at a smaller size
            picture = decode(data, asked["name"], at_least=None if asked["example"] else DRAFT * asked["side"])
            square = np.ascontiguousarray(squash(picture, asked["side"]).transpose(1, 2, 0))
            key, small = (pixel_digest(picture), thumbnail(picture)) if asked["example"] else ("", b"")
            _send(target, {"key": key, "thumbnail": small.hex()}, square.tobytes())
        except InputError as error:
            _send(target, {"failure": str(error)})
        except MemoryError:
            _send(target, {"failure": f"image {asked['name']} needs too much memory to decode; shrink it"})


def _restrict(memory: int) -> None:
    """Sets resource limits, as far as the system has them: on memory, and against writing files and core dumps.

    The priority is not lowered: on a busy machine such a worker would starve, and with it all who wait for its
    pictures.
    """
    if (resource := _resource()) is None:
        return
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # macOS refuses the first; a stricter limit of the system is kept
            resource.setrlimit(limit, (most, most))


def _resource() -> Any:
    """Python's module for resource limits, which Windows lacks."""
    try:
        return importlib.import_module("resource")
    except ImportError:
        return None


def _allow_seconds(seconds: float) -> None:
    """Limits processor time from now on; the system counts from the process's start."""
    if (resource := _resource()) is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
