"""`fewtag tag --engine ray`: the local engine's rows, from workers that may die."""

import csv
import http.server
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fewtag.apps.bulk.cluster import connect
from fewtag.apps.bulk.manifest import Options
from fewtag.apps.bulk.run import Summary, tag_archive

from fewtag.errors import InputError

Cli = Callable[..., Any]
SECONDS = 300.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all, since it takes seconds to start; the engine uses the one that is there."""
    import ray

    connect(None)
    yield
    ray.shutdown()


def run(*arguments: Any, **options: Any) -> Summary:
    """Gives up rather than hanging for ever."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(tag_archive, *arguments, **options).result(timeout=SECONDS)


def rows(table: Path | str) -> list[dict[str, Any]]:
    """A row a picture by name, so that one which is there twice shows."""
    found = pyarrow.parquet.read_table(table).to_pylist(maps_as_pydicts="strict")
    return sorted(found, key=lambda row: row["image"])


def workers() -> list[int]:
    """The processes of this test's own cluster that tag."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_bytes()
            if name.startswith(b"ray::MapWorker") and descends(int(path.name)):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def descends(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


class Deadly(http.server.ThreadingHTTPServer):
    """Serves pictures, and kills whoever asks for one of these."""

    def __init__(self, folder: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.deadly: Counter[str] = Counter()
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                server.asked[self.path.lstrip("/")] += 1
                if server.deadly[self.path.lstrip("/")] > 0:
                    server.deadly[self.path.lstrip("/")] -= 1
                    for process in workers():
                        os.kill(process, signal.SIGKILL)
                    return
                super().do_GET()

        super().__init__(("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder)))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.mark.usefixtures("cluster")
def test_the_local_engines_rows_and_failures_and_nothing_twice(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / 'sub/"q"\n.JPG').write_bytes(b"no picture")
    (photos / "dangling.png").symlink_to("nowhere.png")
    shutil.copy(photos / "z.webp", os.fsencode(photos) + b"/z\xff.png")
    assert cli("tag", bank, photos, "--out", "local.parquet", "--scores").code == 1
    command = ("tag", bank, photos, "--out", "tags", "--scores", "--engine", "ray", "--json")
    said = cli(*command, "--shard", 2, "--workers", 2)
    assert said.code == 1
    assert said.err.splitlines()[-1] == "3 pictures could not be read: see tags.failures"
    summary = json.loads(said.out)
    assert summary.pop("seconds") > 0
    assert summary.pop("startup_seconds") > 0
    counts = {"pictures": 6, "tagged": 3, "failed": 3, "shards": 3, "out": "tags"}
    assert summary == counts | {"workers": 2, "finished_before": 0}
    local, found = rows("local.parquet"), rows("tags")
    assert [(row["image"], row["tags"]) for row in found] == [(row["image"], row["tags"]) for row in local]
    for row, expected in zip(found, local, strict=True):
        assert row["scores"] == pytest.approx(expected["scores"], abs=1e-4)
    failures = {row["image"]: row["reason"] for row in rows("tags.failures")}
    with Path("local.parquet.failures.csv").open(encoding="utf-8", newline="") as file:
        assert failures == {row["image"]: row["reason"] for row in csv.DictReader(file)}
    before = {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()}
    said = cli(*command)
    assert said.code == 1
    assert json.loads(said.out) == counts | {"workers": 0, "finished_before": 3, "seconds": 0, "startup_seconds": 0}
    assert {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()} == before
    said = cli(*command, "--threshold", 0.5)
    assert (said.code, "was begun with another --threshold (none, now 0.5)" in said.err) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_and_repeats_nothing(cli: Cli, bank: Path, shapes: Path) -> None:
    pictures = sorted(path.name for path in (shapes / "images").iterdir())[:40]
    server = Deadly(shapes / "images")
    table = pyarrow.table({"path": [f"{server.url}/{name}" for name in pictures]})
    pyarrow.parquet.write_table(table, "list.parquet")
    # shards of ten: one dies in the middle once, another whenever it is tried
    server.deadly.update({pictures[15]: 1, pictures[25]: 100})
    options = Options(batch=2, deaths=2)
    with pytest.raises(InputError) as refused:
        run(bank, "list.parquet", "tags", options, workers=1, shard=10)
    assert "1 of 4 shards could not be tagged, the first is part-00002.parquet: its worker died 2 times" in str(
        refused.value
    )
    assert [len(rows(f"tags/part-0000{number}.parquet")) for number in (0, 1, 3)] == [10, 10, 10]
    assert server.asked[pictures[15]] == server.asked[pictures[25]] == 2
    server.deadly.clear()
    done = run(bank, "list.parquet", "tags", options, workers=1)
    assert (done.pictures, done.tagged, done.failed, done.shards, done.finished_before) == (40, 40, 0, 4, 3)
    # those of the shards that nobody died of were read once
    assert {server.asked[name] for name in (*pictures[:10], *pictures[30:])} == {1}
    assert cli("tag", bank, shapes / "images", "--out", "local.parquet").code == 0
    local = {row["image"]: row["tags"] for row in rows("local.parquet")}
    found = [(row["image"].removeprefix(f"{server.url}/"), row["tags"]) for row in rows("tags")]
    assert found == [(name, local[name]) for name in pictures]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("photos", "--out", "tags", "--engine", "ray", "--address", "127.0.0.1:9"), "no Ray cluster answers"),
        (("photos", "--out", "tags.csv", "--engine", "ray"), "writes a folder of Parquet shards"),
        (("gone", "--out", "tags", "--engine", "ray"), "there is no folder or picture gone"),
        (("photos", "--out", "tags", "--engine", "spark"), "there is no engine 'spark'"),
        (("photos", "--out", "tags.csv", "--workers", "2"), "--workers is an option of --engine ray"),
        (("s3://bucket/photos", "--out", "tags.csv"), "tag it with --engine ray"),
    ],
)
@pytest.mark.usefixtures("photos")
def test_what_is_refused_leaves_nothing(cli: Cli, bank: Path, arguments: tuple[str, ...], sentence: str) -> None:
    said = cli("tag", bank, *arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert sentence in said.err
    assert not list(Path().glob("tags*"))


def test_without_ray_the_extra_is_named(cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = cli("tag", bank, photos, "--out", "tags", "--engine", "ray")
    assert (said.code, 'pip install "fewtag[ray]"' in said.err) == (2, True)
    assert not Path("tags").exists()
