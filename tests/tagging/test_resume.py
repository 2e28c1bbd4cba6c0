"""A tagging run that was killed loses and repeats nothing, without the help of the cache."""

import csv
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from tiny import count_encoded, draw

from fewtag.errors import InputError
from fewtag.files import locked
from fewtag.tagger.model import Model

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]
ONE = ("--batch", 1, "--shard", 1, "--no-cache")


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stop_after(pictures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run breaks off in the picture after these."""
    encode, calls = Model.encode, iter(range(pictures))

    def breaking(model: Model, pixels: np.ndarray) -> Any:
        if next(calls, None) is None:
            raise InputError("broken off")
        return encode(model, pixels)

    monkeypatch.setattr(Model, "encode", breaking)


def broken_off(cli: Cli, *arguments: object, pictures: int) -> None:
    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        stop_after(pictures, patch)
        assert "broken off" in cli(*arguments).err
        gc.collect()  # the error kept the run's pictures, and so the threads that prepare them
        # a batch that was begun goes on for a while, and would be counted with those of the next run
        for thread in set(threading.enumerate()) - before:
            if not thread.name.startswith("fewtag-network"):
                thread.join(60)


def test_a_run_broken_off_goes_on_with_what_is_missing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "a.png").write_bytes(b"no picture")
    command = ("tag", bank, photos, "--scores", *ONE, "--out")
    assert cli(*command, "whole.csv").code == 1
    broken_off(cli, *command, "tags.csv", pictures=2)
    assert not Path("tags.csv").exists()
    parts = sorted(Path("tags.csv.parts").glob("part-*"))
    assert len(parts) == 3  # a failure, two pictures
    parts[1].write_bytes(parts[1].read_bytes()[:-10])  # torn by a power cut
    sizes = count_encoded(monkeypatch)
    said = cli(*command, "tags.csv")
    assert (said.code, sizes) == (1, [1, 1, 1])
    assert "(2 done before)" in said.err
    assert Path("tags.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert [row["image"] for row in read_csv("tags.csv.failures.csv")] == ["a.png"]
    assert not Path("tags.csv.parts").exists()


def test_pictures_that_came_went_or_changed_meanwhile(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "a.png").write_bytes(b"no picture")
    command = ("tag", bank, photos, *ONE, "--out")
    broken_off(cli, *command, "tags.csv", pictures=3)
    draw(200, "cat").save(photos / "a.png")
    draw(201, "sofa").save(photos / "aa.png")
    draw(202, "dog").save(photos / "z.webp")
    (photos / "b, c.png").unlink()
    assert cli(*command, "tags.csv").code == 0
    assert [row["image"] for row in read_csv("tags.csv")] == ["a.png", "aa.png", *NAMES[1:]]
    assert [row["tags"] for row in read_csv("tags.csv")] == ["cat", "sofa", "cat", "dog;sofa", "dog"]


def test_another_bank_or_other_options_begin_a_table_anew(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv", *ONE)
    broken_off(cli, *command, pictures=2)
    broken_off(cli, *command, "--scores", pictures=2)
    assert cli("define", bank, "zebra").code == 0
    sizes = count_encoded(monkeypatch)
    assert (cli(*command, "--scores").code, sizes) == (0, [1] * 4)
    assert list(read_csv("tags.csv")[0]) == ["image", "tags", "cat", "dog", "sofa", "zebra"]
    assert (cli(*command, "--scores").code, sizes) == (0, [1] * 8)  # finished: all anew


def test_a_folder_of_parts_goes_on_and_refuses_another_command(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tag", bank, photos, "--out", "tags", *ONE)
    broken_off(cli, *command, pictures=2)
    assert len(list(Path("tags").glob("part-*.parquet"))) == 2
    said = cli(*command, "--threshold", 0.5)
    assert (said.code, "was begun with another --threshold (none, now 0.5)" in said.err) == (2, True)
    sizes = count_encoded(monkeypatch)
    assert (cli(*command).code, sizes) == (0, [1, 1])
    assert pyarrow.parquet.read_table("tags")["image"].to_pylist() == NAMES
    before = {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()}
    assert (cli(*command).code, sizes) == (0, [1, 1]), "all is finished: nothing is done again"
    assert {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()} == before
    assert cli("define", bank, "zebra").code == 0
    said = cli(*command)
    assert (said.code, "was begun with another bank; name another --out" in said.err) == (2, True)


def test_what_somebody_put_among_the_parts_is_refused_not_removed(cli: Cli, bank: Path, photos: Path) -> None:
    Path("tags.csv.parts").mkdir()
    Path("tags.csv.parts/thesis.tex").write_text("mine")
    said = cli("tag", bank, photos, "--out", "tags.csv")
    assert (said.code, "holds other files, such as thesis.tex" in said.err) == (2, True)
    assert Path("tags.csv.parts/thesis.tex").read_text() == "mine"


def test_what_somebody_puts_among_finished_parts_stays(cli: Cli, bank: Path, photos: Path) -> None:
    command = ("tag", bank, photos, "--out", "tags", *ONE)
    assert cli(*command).code == 0
    mine = ["README.md", "part-time.jpg", "film.mkv.part", "notes/todo.txt"]
    for name in mine:
        Path("tags", name).parent.mkdir(exist_ok=True)
        Path("tags", name).write_text("mine")
    Path("tags/part-00007.parquet").write_bytes(b"of a picture that is gone")
    Path("tags/part-00002.parquet.77.part").write_bytes(b"of a run that was killed")
    assert cli(*command).code == 0
    assert [Path("tags", name).read_text() for name in mine] == ["mine"] * 4
    assert sorted(path.name for path in Path("tags").glob("part-*.p*")) == [f"part-0000{n}.parquet" for n in range(4)]


def test_a_folder_called_like_a_part_is_one_sentence(cli: Cli, bank: Path, photos: Path) -> None:
    command = ("tag", bank, photos, "--out", "tags", *ONE)
    assert cli(*command).code == 0
    Path("tags/part-00007.parquet").mkdir()
    said = cli(*command)
    assert (said.code, "cannot remove" in said.err, "move it away" in said.err) == (2, True, True)


@pytest.mark.parametrize("moment", ["the table takes its place", "the parts go", "the manifest goes"])
def test_killed_at_the_very_end_it_goes_on_too(cli: Cli, bank: Path, photos: Path, moment: str) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv", *ONE)
    assert cli(*command, "--threshold", 0).code == 0  # an earlier table of ours, which is replaced
    replace, remove = Path.replace, Path.unlink

    def break_off() -> None:
        raise KeyboardInterrupt

    def replacing(path: Path, target: Path) -> Any:
        return break_off() if target.name == "tags.csv" else replace(path, target)

    def removing(path: Path, missing_ok: bool = False) -> None:
        last = "_fewtag.json" if moment == "the manifest goes" else "part-00002.jsonl"
        return break_off() if path.name == last else remove(path, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace" if "table" in moment else "unlink", replacing if "table" in moment else removing)
        assert cli(*command).code == 130
    assert cli(*command).code == 0
    assert [row["tags"] for row in read_csv("tags.csv")] == ["dog", "cat", "dog;sofa", ""]
    assert not Path("tags.csv.parts").exists()


@pytest.mark.parametrize("out", ["tags.csv", "tags"])
def test_two_runs_to_the_same_place_do_not_mix(cli: Cli, bank: Path, photos: Path, out: str) -> None:
    with locked(Path(out)):
        said = cli("tag", bank, photos, "--out", out)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"{out} is in use by another process; try again when that is done" in said.err


def test_a_full_disk_is_a_sentence_and_keeps_what_is_finished(cli: Cli, bank: Path, photos: Path) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv", *ONE)
    write, calls = Path.write_bytes, iter(range(3))  # the manifest, two parts

    def full(path: Path, content: bytes) -> int:
        if next(calls, None) is not None:
            return write(path, content)
        write(path, content[:20])
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        said = cli(*command)
    assert (said.code, "No space left on device; name another folder or free some room" in said.err) == (2, True)
    assert not list(Path("tags.csv.parts").glob("*.part"))
    said = cli(*command)
    assert (said.code, "(2 done before)" in said.err) == (0, True)
    assert [row["image"] for row in read_csv("tags.csv")] == NAMES


KILLED = """
import os, signal
from fewtag.tagging.tables import Parts
written, write = [], Parts.write
def counting(*arguments):
    written.append(write(*arguments))
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return written[-1]
Parts.write = counting
from fewtag.cli.main import main
main()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_loses_and_repeats_nothing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tag", str(bank), str(photos), "--out", "tags.csv", *map(str, ONE))
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr
    sizes = count_encoded(monkeypatch)
    assert (cli(*command).code, sizes) == (0, [1])
    assert [row["image"] for row in read_csv("tags.csv")] == NAMES


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_only_be_read_is_one_sentence(cli: Cli, bank: Path, photos: Path) -> None:
    Path("closed").mkdir()
    Path("closed").chmod(0o555)
    said = cli("tag", bank, photos, "--out", "closed/tags.csv")
    assert (said.code, said.err.count("\n")) == (2, 1)
    shutil.rmtree("closed")
