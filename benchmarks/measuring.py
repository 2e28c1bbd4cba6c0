"""Measuring: contenders in turns, their medians, and what a process took of time, processor and memory."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Figure:
    """One line of the page: what was measured, and what was promised where something was."""

    what: str
    value: float
    unit: str = ""
    promise: str = ""
    """≥ or ≤, a blank, a number; nothing where the figure is only reported."""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    """What the value follows from."""

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        if not self.promise:
            return None
        sign, limit = self.promise.split()
        return self.value >= float(limit) if sign == "≥" else self.value <= float(limit)

    def as_dict(self) -> dict[str, Any]:
        """With the commit and the machine's load average of now: to be asked for as soon as it is measured."""
        return asdict(self) | {"kept": self.kept, "commit": commit(), "load": os.getloadavg()[0]}


@cache
def commit() -> str:
    """Of the working tree, `-dirty` where it holds more than other rows."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
        return ran.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


class Usage(NamedTuple):
    """Of a process and its children: seconds on the clock and of the processor, and the peak of its memory."""

    seconds: float
    processor: float
    megabytes: float
    output: str


class FailedError(Exception):
    """A contender that did not do its work cannot be timed."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Usage:
    """The command to its end; one that fails is an error with what it said."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        since = time.perf_counter()
        process = subprocess.Popen(command, env=dict(environment or os.environ), stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - since
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise FailedError(f"{' '.join(command)}: {errors.read().decode()[-2000:]}")
        return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read().decode())


def peak_megabytes(command: Sequence[str]) -> float:
    """Of memory; run by a small process, since Linux counts the memory of whoever starts a program as its own."""
    return answer(run([sys.executable, __file__, *command]))["megabytes"]


def answer(usage: Usage) -> dict[str, Any]:
    """The JSON that a command printed last."""
    return json.loads(usage.output.strip().splitlines()[-1])


def in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each contender answers, taken in turns, so that other load on the machine hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(contender())
    return {name: statistics.median(values) for name, values in found.items()}


def seconds_of(work: Callable[[], object]) -> Callable[[], float]:
    """The work, to be timed whenever it is called."""

    def timed() -> float:
        since = time.perf_counter()
        work()
        return time.perf_counter() - since

    return timed


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1:])._asdict()))
