"""Kill harness: fewtag killed at random moments, on disks that fill up or may only be read. Nothing is lost or torn.

    python tests/support/kills.py --count 200

Each round learns, tags, fills a cache or writes sidecars in a process of its own, which is killed (SIGKILL) after a
random time; some write to a disk that is too small. Then the same command runs to its end and must leave what an
undisturbed run left. Small disks and closed ones are tmpfs mounts, where this may mount; else a limit on the size of
files stands for them.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from sidecars import sidecars
from tiny import draw, write_tiny_model

from fewtag.cache import FILE
from fewtag.cache_upkeep import CacheUpkeep
from fewtag.interop.xmp import Packet
from fewtag.tagger.tagger import Tagger

LABELS = ["dog", "cat", "sofa"]
PICTURES = 60
RUN = "from fewtag.cli.main import main; main()"


class TornError(AssertionError):
    """What a kill left behind."""


class Bench:
    """A folder with a model, a bank, pictures, and what undisturbed commands make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_tiny_model(folder / "model")
        for number in range(PICTURES):
            label = LABELS[number % 3]
            (folder / "examples" / label).mkdir(parents=True, exist_ok=True)
            draw(number, label).save(folder / "examples" / label / f"{number}.png")
        shutil.copytree(folder / "examples", folder / "photos")
        (folder / "photos" / "broken.jpg").write_bytes(b"no picture")
        self.bank = folder / "pets.fewtag"
        Tagger(str(self.model)).fit([draw(900, "dog"), draw(901, "cat")], [["dog"], ["cat"]]).save(self.bank)
        self.expected: dict[str, bytes] = {}
        self.seconds: dict[str, float] = {}
        for job in JOBS:
            place = folder / f"undisturbed {job}"
            place.mkdir()
            self.prepare(job, place)
            since = time.monotonic()
            done = self.run(job, place)
            if done.returncode not in (0, 1):
                raise TornError(f"{job}: {done.stderr.decode()}")
            self.seconds[job] = time.monotonic() - since
            self.expected[job] = JOBS[job].result(place)

    def prepare(self, job: str, place: Path) -> None:
        if job == "learn":
            shutil.copy(self.bank, place / "pets.fewtag")
        elif job == "write":
            (place / "album").mkdir()
            for number, content in enumerate(SIDECARS):
                draw(number, size=(24, 24)).save(place / "album" / f"{number}.png")
                if content:
                    (place / "album" / f"{number}.png.xmp").write_bytes(content)
            rows = [f"{number}.png,zebra;birds/heron\n" for number in range(len(SIDECARS))]
            (place / "tags.csv").write_text("image,tags\n" + "".join(rows))

    def command(self, job: str, place: Path) -> list[str]:
        return [sys.executable, "-c", RUN, *map(str, JOBS[job].arguments(self, place))]

    def environment(self, place: Path) -> dict[str, str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        return {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(place), "OMP_NUM_THREADS": "1"}

    def run(self, job: str, place: Path, limit: int | None = None) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            self.command(job, place),
            capture_output=True,
            env=self.environment(place),
            preexec_fn=None if limit is None else partial(_limit_files, limit),
            timeout=600,
        )

    def kill(self, job: str, place: Path, after: float) -> bool:
        """Whether it was still at work."""
        process = subprocess.Popen(
            self.command(job, place),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment(place),
        )
        while job == "write" and process.poll() is None and not _is_begun(place):
            time.sleep(0.005)  # all but its last moments are spent on starting up
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait() == -signal.SIGKILL


class Job:
    """A command, and what it leaves that must be the same whatever happened on the way."""

    def __init__(
        self,
        arguments: Callable[[Bench, Path], list[object]],
        result: Callable[[Path], bytes],
        always: Callable[[Path], None],
    ) -> None:
        self.arguments, self.result, self.always = arguments, result, always


def _limit_files(size: int) -> None:
    import resource  # which Windows lacks

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the limit kills, rather than refuses
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _bank_is_whole(place: Path) -> None:
    """The old one or the new one."""
    tagger = Tagger.load(place / "pets.fewtag")
    if tagger.classes_ not in (("cat", "dog"), ("cat", "dog", "sofa")):
        raise TornError(f"the bank knows {tagger.classes_}")


def _table_is_whole(place: Path) -> None:
    """There is none, or all of it."""
    table = place / "tags.csv"
    if table.exists() and len(table.read_text().splitlines()) != PICTURES + 1:
        raise TornError(f"the table has {len(table.read_text().splitlines())} lines")


def _cache_is_sound(place: Path) -> None:
    if (place / "fewtag" / FILE).exists():
        with closing(CacheUpkeep(place / "fewtag")) as cache:
            if damaged := cache.check():
                raise TornError(f"{damaged} rows of the cache are damaged")


SIDECARS = [each.content for each in sidecars()] + [b""] * 60
"""What other programs left beside each picture, or nothing."""
ALBUM_BYTES = 182 * 4096
"""What the pictures and those sidecars take up, a block or two each."""


def _is_begun(place: Path) -> bool:
    return (place / "album" / "60.png.xmp").exists()  # the first one that has to be made


def _sidecars_are_whole(place: Path) -> None:
    """Each is as it was, or as it shall be; none of a person's tags is lost."""
    for number, before in enumerate(SIDECARS):
        path = place / "album" / f"{number}.png.xmp"
        found = path.read_bytes() if path.exists() else b""
        if found != before and (Packet(found, path.name).without_ours() or b"") != before:
            raise TornError(f"{path.name} is torn")


def _album(place: Path) -> bytes:
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted((place / "album").iterdir()))


JOBS = {
    "learn": Job(
        lambda bench, place: ["learn", place / "pets.fewtag", bench.folder / "examples"],
        lambda place: (place / "pets.fewtag").read_bytes(),
        _bank_is_whole,
    ),
    "tag": Job(
        lambda bench, place: [
            "tag", bench.bank, bench.folder / "photos", "--out", place / "tags.csv", "--scores", "--no-cache",
            "--shard", 4, "--batch", 2,
        ],
        lambda place: (place / "tags.csv").read_bytes() + (place / "tags.csv.failures.csv").read_bytes(),
        _table_is_whole,
    ),
    "cache": Job(
        lambda bench, place: [
            "tag", bench.bank, bench.folder / "photos", "--out", place / "tags.csv", "--scores", "--batch", 2,
        ],
        lambda place: (place / "tags.csv").read_bytes() + (place / "tags.csv.failures.csv").read_bytes(),
        _cache_is_sound,
    ),
    "write": Job(
        lambda _, place: ["write", place / "tags.csv", place / "album"],
        _album,
        _sidecars_are_whole,
    ),
}  # fmt: skip


@contextmanager
def mounted(place: Path, options: str) -> Iterator[bool]:
    """A small file system of its own; False where this may not mount."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True) if shutil.which("mount") else None
    if done is None or done.returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)


def disturb(bench: Bench, number: int, seed: int = 0, job: str | None = None) -> str:
    """One round, of each job in turn unless one is named; answers with what was done."""
    generator = np.random.default_rng([seed, number])
    job = job or list(JOBS)[number % len(JOBS)]
    place = Path(tempfile.mkdtemp(dir=bench.folder))
    trouble = str(generator.choice(["kill", "kill", "kill", "full", "closed"]))
    try:
        done = TROUBLES[trouble](bench, job, place, generator)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return f"{job}: {done}"


def _killed(bench: Bench, job: str, place: Path, generator: np.random.Generator) -> str:
    """Several times, if it likes; then to its end."""
    bench.prepare(job, place)
    kills = 0
    for _ in range(int(generator.integers(1, 4))):
        share = generator.uniform(0.2, 1.1) if job != "write" else generator.uniform(0, 0.3)
        kills += bench.kill(job, place, float(share) * bench.seconds[job])
        JOBS[job].always(place)
    _finish(bench, job, place)
    return f"killed {kills} times"


def _full(bench: Bench, job: str, place: Path, generator: np.random.Generator) -> str:
    size = int(generator.integers(4, 120)) * 4096 + (ALBUM_BYTES if job == "write" else 0)
    with mounted(place, f"size={size}") as small:
        try:
            bench.prepare(job, place)
        except OSError:
            return "no room at all"
        done = bench.run(job, place, None if small else size)
        _is_a_sentence(job, done)
        if small:  # SQLite itself needs some to look at what is there
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        JOBS[job].always(place)
        refused = done.returncode == 2 or (job == "write" and done.returncode == 1)  # which lists what did not fit
        if refused:
            _finish(bench, job, place)
        return "a full disk" + (", refused" if refused else "")


def _closed(bench: Bench, job: str, place: Path, _: np.random.Generator) -> str:
    with mounted(place, "size=64m") as own:
        if not own:
            return "not tried: may not mount"
        bench.prepare(job, place)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        done = bench.run(job, place)
        _is_a_sentence(job, done)
        if done.returncode != 2:
            raise TornError(f"{job} in a closed folder ended with {done.returncode}")
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
        _finish(bench, job, place)
        return "a folder that may only be read"


TROUBLES = {"kill": _killed, "full": _full, "closed": _closed}


def _is_a_sentence(job: str, done: "subprocess.CompletedProcess[bytes]") -> None:
    said = done.stderr.decode()
    if done.returncode not in (0, 1, 2) or "Traceback" in said:
        raise TornError(f"{job} ended with {done.returncode}: {said}")


def _finish(bench: Bench, job: str, place: Path) -> None:
    """The same command again leaves what an undisturbed one leaves, and nothing else."""
    done = bench.run(job, place)
    if done.returncode not in (0, 1):
        raise TornError(f"{job} does not go on: {done.stderr.decode()}")
    JOBS[job].always(place)
    if JOBS[job].result(place) != bench.expected[job]:
        raise TornError(f"{job} left something else than an undisturbed run")
    if left := [path.name for path in place.iterdir() if path.name.endswith(".parts")]:
        raise TornError(f"{job} left {left}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--job", choices=[*JOBS], help="this one alone", default=None)
    given = parser.parse_args()
    since, told, wrong = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for number in range(given.first, given.first + given.count):
            try:
                told[disturb(bench, number, given.seed, given.job)] += 1
            except (TornError, OSError, subprocess.SubprocessError) as error:
                wrong += 1
                print(f"round {number}: {error!r}", flush=True)
    for what, count in sorted(told.items()):
        print(f"{count:5d}  {what}")
    print(f"{given.count} rounds in {time.monotonic() - since:.0f} s, {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
