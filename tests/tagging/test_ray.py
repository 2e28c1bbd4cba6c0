"""`fewtag tag --engine ray`: the local engine's rows, by workers that may die."""

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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tiny import draw

from fewtag.errors import InputError
from fewtag.tagging.ray_engine import Allocation, allocate, check_address, finish_on_ray, open_cluster
from fewtag.tagging.run import Cluster, Options, Summary, Work, tag
from fewtag.tagging.sources import Shard
from fewtag.tagging.tables import Counts, Parts

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]
SECONDS = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster for all, since it takes seconds to start; the engine uses the one that is there."""
    with open_cluster(None):
        yield


def run(*arguments: Any) -> Summary:
    """Gives up rather than hanging for ever."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(tag, *arguments, ray=Cluster(workers=1)).result(timeout=SECONDS)


def rows(table: Path | str) -> list[dict[str, Any]]:
    """A row a picture by name, so that one which is there twice shows."""
    return sorted(pyarrow.parquet.read_table(table).to_pylist(), key=lambda row: row["image"])


def processes(title: bytes) -> list[int]:
    """Of this test's own cluster, by what they call themselves."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(title) and descends(int(path.name)):
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
                    for process in processes(b"ray::Worker"):
                        os.kill(process, signal.SIGKILL)
                    return
                super().do_GET()

        super().__init__(("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder)))
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_it_listens_on_the_loopback_alone() -> None:
    """This must be the first import of Ray in the process, which decides where it listens."""
    psutil = pytest.importorskip("psutil", reason="Ray brings one of its own")
    found = {
        (process.name(), socket.laddr.ip)
        for process in psutil.Process().children(recursive=True)
        for socket in process.net_connections(kind="inet")
        if socket.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}
    assert {address for _, address in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, found


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_local_engines_rows_and_failures_and_nothing_twice(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / 'sub/"q"\n.JPG').write_bytes(b"no picture")
    (photos / "dangling.png").symlink_to("nowhere.png")
    shutil.copy(photos / "z.webp", os.fsencode(photos) + b"/z\xff.png")
    local = ("tag", bank, photos, "--scores", "--no-cache", "--out")
    assert cli(*local, "local.parquet").code == cli(*local, "local.csv").code == 1
    command = ("tag", bank, photos, "--out", "tags", "--scores", "--no-cache", "--engine", "ray", "--json")
    said = cli(*command, "--shard", 2, "--workers", 2)
    assert said.code == 1
    assert said.err.splitlines()[-1] == "3 pictures could not be read: see tags.failures.csv"
    summary = json.loads(said.out)
    assert summary.pop("seconds") > 0
    assert summary.pop("startup_seconds") > 0
    counts = {"pictures": 6, "tagged": 3, "failed": 3, "cached": 0, "shards": 3, "out": "tags"}
    assert summary == counts | {"workers": 2, "finished_before": 0}
    assert rows("tags") == rows("local.parquet")
    for name in ("tags", "local.parquet"):
        with Path(f"{name}.failures.csv").open(encoding="utf-8", newline="") as file:
            assert [row["image"] for row in csv.DictReader(file)] == ["dangling.png", 'sub/"q"\n.JPG', "z\\udcff.png"]
    before = {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr("fewtag.tagging.ray_engine.open_cluster", None)  # none is needed
        said = cli(*command)
    assert said.code == 1
    summary = json.loads(said.out)
    assert summary.pop("startup_seconds") > 0
    assert summary == counts | {"workers": 0, "finished_before": 3, "seconds": 0}
    assert {path: path.stat().st_mtime_ns for path in Path("tags").iterdir()} == before
    # a table, and the cache: the same bytes as the local engine's
    assert cli("tag", bank, photos, "--out", "ray.csv", "--scores", "--engine", "ray", "--workers", 1).code == 1
    assert Path("ray.csv").read_bytes() == Path("local.csv").read_bytes()
    again = cli("tag", bank, photos, "--out", "ray.csv", "--scores", "--engine", "ray", "--workers", 1, "--json")
    assert json.loads(again.out)["cached"] == 3
    assert Path("ray.csv").read_bytes() == Path("local.csv").read_bytes()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_workers_use_the_shares_that_were_estimated_before_them(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their processes a sample is as large as ever: an estimate of their own would find too few pictures."""
    monkeypatch.setattr("fewtag.tagging.run.SMALLEST_PRIOR_SAMPLE", 2)
    assert cli("tag", bank, photos, "--out", "here.csv", "--scores").code == 0
    assert cli("tag", bank, photos, "--out", "there.csv", "--scores", "--engine", "ray", "--workers", 1).code == 0
    here, there = (json.loads(Path(f"{name}.csv.run.json").read_text())["shares"] for name in ("here", "there"))
    assert there == here != {}
    assert Path("there.csv").read_bytes() == Path("here.csv").read_bytes()
    assert cli("tag", bank, photos, "--out", "usual.csv", "--scores", "--prior", "bank").code == 0
    assert Path("usual.csv").read_bytes() != Path("here.csv").read_bytes()


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_and_repeats_nothing(cli: Cli, bank: Path, tmp_path: Path) -> None:
    folder = tmp_path / "forty"
    folder.mkdir()
    pictures = [f"{number:02d}.png" for number in range(40)]
    for number, name in enumerate(pictures):
        draw(number, ["dog", "cat", "sofa"][number % 3]).save(folder / name)
    server = Deadly(folder)
    pyarrow.parquet.write_table(pyarrow.table({"path": [f"{server.url}/{name}" for name in pictures]}), "list.parquet")
    # shards of ten: one dies in the middle once, another whenever it is tried
    server.deadly.update({pictures[15]: 1, pictures[25]: 100})
    options = Options(batch=2, max_attempts=2, shard=10)
    with pytest.raises(InputError) as refused:
        run(bank, ["list.parquet"], "tags", options)
    sentence = "1 of 4 shards could not be tagged, the first is part-00002.parquet: its worker died 2 times"
    assert sentence in str(refused.value)
    assert server.asked[pictures[25]] == 2
    assert [len(rows(f"tags/part-0000{number}.parquet")) for number in (0, 1, 3)] == [10, 10, 10]
    server.deadly.clear()
    before = Counter(server.asked)
    done = run(bank, ["list.parquet"], "tags", options)
    assert (done.pictures, done.tagged, done.failed, done.shards, done.finished_before) == (40, 40, 0, 4, 3)
    # those of the finished shards were not read again
    assert {name: server.asked[name] - before[name] for name in pictures} == {
        name: int(20 <= number < 30) for number, name in enumerate(pictures)
    }
    assert cli("tag", bank, folder, "--out", "local.parquet").code == 0
    local = {row["image"]: row["tags"] for row in rows("local.parquet")}
    assert [(row["image"].removeprefix(f"{server.url}/"), row["tags"]) for row in rows("tags")] == list(local.items())
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at --address 127.0.0.1:9 "),
        ("nowhere", "give HOST:PORT"),
        ("ray://127.0.0.1:10001", "Ray's client is not for this"),
    ],
)
def test_an_address_where_no_cluster_answers_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        check_address(address)
    assert sentence in str(refused.value)
    check_address("auto")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("photos", "--out", "tags", "--address", "127.0.0.1:9"), "no Ray cluster answers"),
        (("gone", "--out", "tags"), "there is no folder or picture gone"),
    ],
)
@pytest.mark.usefixtures("photos")
def test_what_is_refused_leaves_nothing(cli: Cli, bank: Path, arguments: tuple[str, ...], sentence: str) -> None:
    said = cli("tag", bank, *arguments, "--engine", "ray")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert sentence in said.err
    assert not list(Path().glob("tags*"))


def test_without_ray_the_extra_is_named(cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = cli("tag", bank, photos, "--out", "tags", "--engine", "ray")
    assert (said.code, 'pip install "fewtag[ray]"' in said.err) == (2, True)
    assert not Path("tags").exists()


def test_parts_that_workers_wrote_elsewhere_are_missed(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewtag.tagging.ray_engine.open_cluster", lambda _: nullcontext([{"CPU": 1.0}]))
    wrote = lambda shards, *_: (0.0, {shard.number: Counts(shard.size, 0) for shard in shards})  # noqa: E731
    monkeypatch.setattr("fewtag.tagging.ray_engine.finish_on_ray", wrote)
    said = cli("tag", bank, photos, "--out", "tags", "--engine", "ray")
    assert (said.code, "--out must lie at the same path on every machine" in said.err) == (2, True)


def test_a_worker_has_its_share_of_one_machine() -> None:
    assert allocate([{"CPU": 2.0}], None) == Allocation(workers=2, cores=1.0, gpu=False)
    assert allocate([{"CPU": 8.0}], 2) == Allocation(workers=2, cores=4.0, gpu=False)
    assert allocate([{"CPU": 2.0}], 4) == Allocation(workers=4, cores=0.5, gpu=False)
    assert allocate([{"CPU": 16.0}, {"CPU": 4.0}], 3) == Allocation(workers=3, cores=5.0, gpu=False)
    assert allocate([{"CPU": 32.0, "GPU": 4.0}, {"CPU": 64.0}], None) == Allocation(workers=4, cores=8.0, gpu=True)
    with pytest.raises(InputError, match="--workers 5, but there are 4 GPUs"):
        allocate([{"CPU": 32.0, "GPU": 4.0}], 5)


def test_a_share_is_one_that_the_machines_have() -> None:
    three = [{"CPU": 1.0}] * 3
    assert allocate(three, 4) == Allocation(workers=4, cores=0.5, gpu=False)
    assert allocate([{"CPU": 1.0}], 10) == Allocation(workers=10, cores=0.1, gpu=False)
    assert allocate([{"CPU": 1.0, "GPU": 4.0}, {"CPU": 64.0}], None) == Allocation(workers=4, cores=0.25, gpu=True)
    with pytest.raises(InputError, match="no machine of the cluster has cores for them"):
        allocate([{"GPU": 1.0}, {"CPU": 4.0}], None)


def four_shards(*, workers: int) -> tuple[list[Shard], Work, Allocation, Callable[[int], None]]:
    work = Work(b"", None, Options(), Parts("parts", "jsonl"), {})
    return [Shard(number, "", 1) for number in range(4)], work, Allocation(workers, 1.0, gpu=False), lambda _count: None


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_of_another_version_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.tagging.ray_engine.__version__", "other")  # here alone, not in the worker
    with pytest.raises(InputError, match="this is other; install the same one on every machine"):
        finish_on_ray(*four_shards(workers=1))


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_workers_that_die_before_their_first_picture_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stillborn:
        def open(self, *_: object) -> str:
            os._exit(1)

    monkeypatch.setattr("fewtag.tagging.ray_engine.Worker", Stillborn)
    with pytest.raises(InputError, match="the workers cannot go on: 3 died before their first picture"):
        finish_on_ray(*four_shards(workers=1))


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_without_room_keeps_no_shard_and_one_bad_shard_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    class Simple:
        def open(self, *_: object) -> str:
            return ""

        def finish(self, shard: Shard) -> Counts:
            if shard.size > 1:
                raise MemoryError("too large")
            return Counts(shard.number, 0)

    monkeypatch.setattr("fewtag.tagging.ray_engine.Worker", Simple)
    shards, work, share, advance = four_shards(workers=2)
    cores = sum(node["Resources"].get("CPU", 0) for node in ray.nodes())
    # each wants more than half: there is never room for the second
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(finish_on_ray, shards, work, Allocation(2, 0.6 * cores, gpu=False), advance)
        _, finished = done.result(timeout=SECONDS)
    assert finished == {number: Counts(number, 0) for number in range(4)}
    told: list[int] = []
    with pytest.raises(InputError, match=r"1 of 5 shards .* MemoryError: too large"):
        finish_on_ray([Shard(9, "", 2), *shards], work, share, told.append)
    assert told == [1, 1, 1, 1], "the others are finished"
