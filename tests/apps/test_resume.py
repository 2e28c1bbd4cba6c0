"""A tagging run that was killed loses and repeats nothing, without the help of the cache."""

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fewtag.apps.journal import Journal
from fewtag.apps.tables import Tagged

from fewtag.errors import InputError
from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def left() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.is_file())


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run breaks off in the batch after these."""
    encode, calls = Tagger.encode_pixels, iter(range(batches))

    def breaking(tagger: Tagger, pixels: np.ndarray) -> Any:
        if next(calls, None) is None:
            raise InputError("broken off")
        return encode(tagger, pixels)

    monkeypatch.setattr(Tagger, "encode_pixels", breaking)


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Will hold the sizes of the batches that the network gets."""
    encode, sizes = Tagger.encode_pixels, []

    def counting(tagger: Tagger, pixels: np.ndarray) -> Any:
        sizes.append(len(pixels))
        return encode(tagger, pixels)

    monkeypatch.setattr(Tagger, "encode_pixels", counting)
    return sizes


def broken_off(cli: Cli, *arguments: object, batches: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(batches, patch)
        assert "broken off" in cli(*arguments, "--batch", 1).err
    assert not Path("tags.csv").exists()


def test_a_run_broken_off_goes_on_with_what_is_missing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "a.png").write_bytes(b"no picture")
    command = ("tag", bank, photos, "--out", "tags.csv", "--scores", "--no-cache")
    assert cli(*command).code == 1
    whole = read_csv("tags.csv")
    Path("tags.csv").unlink()
    broken_off(cli, *command, batches=2)
    part = Path("tags.csv.part.jsonl")
    assert part.read_bytes().count(b"\n") == 4  # what it is about, a failure, two pictures
    part.write_bytes(part.read_bytes() + b'{"image": "z.webp", "tags": ["he')  # torn by a power cut
    sizes = count_encoded(monkeypatch)
    said = cli(*command)
    assert (said.code, sizes) == (1, [2])
    assert "(3 done before)" in said.err
    assert read_csv("tags.csv") == whole
    assert [row["image"] for row in read_csv("tags.csv.failures.csv")] == ["a.png"]
    assert not part.exists()


def test_pictures_that_came_went_or_changed_meanwhile(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "a.png").write_bytes(b"no picture")
    command = ("tag", bank, photos, "--out", "tags.csv", "--no-cache")
    broken_off(cli, *command, batches=3)
    shutil.copy(photos / "z.webp", photos / "a.png")
    shutil.copy(photos / "z.webp", photos / "aa.png")
    (photos / "b, c.png").unlink()
    sizes = count_encoded(monkeypatch)
    assert (cli(*command).code, sizes) == (0, [3])
    assert [row["image"] for row in read_csv("tags.csv")] == ["a.png", "aa.png", *NAMES[1:]]


def test_another_bank_or_other_options_start_over(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv", "--no-cache")
    broken_off(cli, *command, batches=2)
    broken_off(cli, *command, "--scores", batches=2)
    assert cli("define", bank, "ring").code == 0
    sizes = count_encoded(monkeypatch)
    assert (cli(*command, "--scores").code, sizes) == (0, [4])
    assert list(read_csv("tags.csv")[0]) == ["image", "tags", "arrow", "heart", "moon", "ring"]
    assert (cli(*command, "--scores").code, sizes) == (0, [4, 4])  # finished: all anew


def test_two_runs_to_the_same_place_do_not_mix(cli: Cli, bank: Path, photos: Path) -> None:
    with Journal(Path("tags.csv.part.jsonl"), {}):
        said = cli("tag", bank, photos, "--out", "tags.csv")
    assert (said.code, "another fewtag is tagging to the same place" in said.err) == (2, True)


def test_what_is_slow_to_come_is_on_the_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, synced = iter([0.0, 0.0, 0.5, 1.5, 1.5]), list[int]()
    monkeypatch.setattr("fewtag.apps.journal.time.monotonic", lambda: next(times))
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(len(lines)))
    lines = list[int]()
    with Journal(tmp_path / "part.jsonl", {}) as journal:
        for number in range(2):
            lines.append(number)
            journal.add([Tagged(f"{number}.png")], [(1, 2)])
    assert synced == [0, 2], "the first line at once, the second picture after more than a second"


def test_a_full_disk_is_a_sentence_and_keeps_what_is_finished(cli: Cli, bank: Path, photos: Path) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv", "--no-cache")
    write, calls = os.pwrite, iter(range(3))

    def full(file: int, content: bytes, offset: int) -> int:
        return write(file, content if next(calls, None) is not None else content[:20], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        said = cli(*command, "--batch", 1)
    assert (said.code, "No space left on device; free some room or name another --out" in said.err) == (2, True)
    said = cli(*command)
    assert (said.code, "(2 done before)" in said.err) == (0, True)
    assert [row["image"] for row in read_csv("tags.csv")] == NAMES


KILLED = """
import os, signal
written, write = [], os.pwrite
def pwrite(file, content, offset):
    written.append(write(file, content, offset))
    if len(written) == 4:  # what it is about, and three pictures
        os.kill(os.getpid(), signal.SIGKILL)
    return written[-1]
os.pwrite = pwrite
from fewtag.apps.cli import main
main()
"""


def test_a_killed_process_loses_and_repeats_nothing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tag", str(bank), str(photos), "--out", "tags.csv", "--no-cache")
    done = subprocess.run([sys.executable, "-c", KILLED, *command, "--batch", "1"], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert left() == ["pets.fewtag", "tags.csv.part.jsonl"]
    sizes = count_encoded(monkeypatch)
    assert (cli(*command).code, sizes) == (0, [1])
    assert [row["image"] for row in read_csv("tags.csv")] == NAMES
