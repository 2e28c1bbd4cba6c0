"""Kill harness of the studio: a process that answers is killed (SIGKILL) at random moments; no word is lost or doubled.

    python tests/support/studio_kills.py --count 200

Each round a process opens the project and answers twenty times a second, now and then taking something back; it names
each change once it is acknowledged. After the kill every named one is there, once, and the project and its bank are
whole. Whatever was on its way may be there too: its page would send it again, under the same id.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tiny import draw, write_tiny_model

from fewtag import Tagger
from fewtag.studio.project import Project
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer

PICTURES = 24
RATE = 20.0
_ANSWER = """
import random, sys, time, uuid
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer
folder, cache, rate, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
studio, lot = Studio.open(folder, cache=cache, index=False), random.Random(seed)
pictures = list(studio.library.digests)
print("ready", flush=True)
while True:
    since = time.monotonic()
    if lot.random() < 0.15 and studio.overview().can_undo:
        done = [studio.undo().id]
    else:
        words = [(lot.choice(pictures), lot.choice(["yes", "no", "unknown"])) for _ in range(lot.choice([1, 1, 1, 5]))]
        answers = [Answer(str(uuid.UUID(int=lot.getrandbits(128))), picture, "dog", word) for picture, word in words]
        done = studio.answer(answers).acknowledged
    print(*done, flush=True)
    time.sleep(max(0.0, 1 / rate - (time.monotonic() - since)))
"""


class LostError(AssertionError):
    """What a kill cost."""


def make_project(folder: Path) -> Path:
    """A small album, indexed, with one label."""
    model = write_tiny_model(folder / "model")
    album = folder / "album"
    album.mkdir()
    for number in range(PICTURES):
        draw(number, "dog" if number % 2 else "cat").save(album / f"{number}.png")
    with Studio.open(folder / "project", [album], model=str(model), cache=folder / "cache") as studio:
        if not studio.wait(60):
            raise LostError("the album was not indexed")
        studio.define("dog")
        studio.answer([Answer(str(_uuid(0)), studio.library.digests[0], "dog", "yes")])
    return folder / "project"


def _uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def kill(folder: Path, after: float, seed: int, rate: float = RATE) -> list[str]:
    """What a process that is killed so many seconds after its first word had been told was safe."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", _ANSWER, folder, folder.parent / "cache", str(rate), str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise LostError("the project cannot be opened after a kill")
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read()
    process.wait()
    # a line that was cut off was not heard to its end
    return [name for line in said.splitlines(keepends=True) if line.endswith("\n") for name in line.split()]


def verify(folder: Path, acknowledged: list[str]) -> None:
    project = Project(folder)
    try:
        kept = [answer[0] for change in project.log.changes.values() for answer in change.answers]
        kept += [change.op for change in project.log.changes.values() if change.undoes is not None]
        if missing := set(acknowledged) - set(kept):
            raise LostError(f"{len(missing)} acknowledged changes are gone")
        if len(set(kept)) != len(kept):
            raise LostError("a change is there twice")
        if problems := project.check():
            raise LostError("; ".join(problems))
        Tagger.load(folder / "bank.fewtag")
    finally:
        project.close()


def run(count: int, seed: int, rate: float = RATE) -> int:
    """So many kills of one project; how many words were acknowledged."""
    lot, acknowledged = Random(seed), []
    with tempfile.TemporaryDirectory() as place:
        folder = make_project(Path(place))
        for number in range(count):
            acknowledged += kill(folder, lot.uniform(0, 1.0), seed * 1_000_003 + number, rate)
            verify(folder, acknowledged)
        with Studio.open(folder, cache=folder.parent / "cache", index=False) as studio:
            studio.wait(30)
            if problems := studio.check().problems:
                raise LostError("; ".join(problems))
    return len(acknowledged)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    said = run(arguments.count, arguments.seed)
    print(f"{arguments.count} kills: {said} acknowledged changes, each there once")


if __name__ == "__main__":
    main()
