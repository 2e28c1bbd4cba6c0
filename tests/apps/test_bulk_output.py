"""The folder of Parquet shards: what is finished is known, and every file in it is whole."""

from pathlib import Path

import pyarrow.parquet
import pytest
from fewtag.apps.bulk.cluster import Share, check_address, share
from fewtag.apps.bulk.output import MANIFEST, Counts, Output
from fewtag.apps.bulk.sources import Shard
from fewtag.apps.tables import Tagged, arrow_table

from fewtag.errors import InputError

SHARDS = [Shard(number, f"digest {number}", 2) for number in range(3)]
TABLE = arrow_table([Tagged("a.png", ["dog", "sofa"], {"dog": 0.75, "sofa": 0.5})], ["dog", "sofa"])
FAILED = [Tagged("z\udcff.png", failure="no picture")]


@pytest.fixture
def output(tmp_path: Path) -> Output:
    found = Output(f"{tmp_path}/tags/")
    found.begin({"shard": 2})
    return found


def test_a_shard_is_finished_once_its_part_is_there(output: Output, tmp_path: Path) -> None:
    assert output.write(SHARDS[0], TABLE, FAILED) == Counts(1, 1)
    assert output.write(SHARDS[2], TABLE, []) == Counts(1, 0)
    assert output.finished(SHARDS) == {0: Counts(1, 1), 2: Counts(1, 0)}
    assert output.manifest() == {"shard": 2}
    rows = pyarrow.parquet.read_table(tmp_path / "tags").to_pylist(maps_as_pydicts="strict")
    assert rows == [{"image": "a.png", "tags": ["dog", "sofa"], "scores": {"dog": 0.75, "sofa": 0.5}}] * 2
    failures = pyarrow.parquet.read_table(tmp_path / "tags.failures").to_pylist()
    assert failures == [{"image": "z\\udcff.png", "reason": "no picture"}]


def test_what_is_out_of_date_or_damaged_is_removed(output: Output, tmp_path: Path) -> None:
    for shard in (*SHARDS, Shard(3, "of a folder that had more pictures", 2)):
        output.write(shard, TABLE, FAILED)
    folder = tmp_path / "tags"
    (folder / "part-00001.parquet").write_bytes(b"PAR1 half of it")
    (folder / "_part-00009.parquet.1234.part").write_bytes(b"of a worker that was killed")
    (tmp_path / "tags.failures" / "part-00002.parquet").unlink()
    changed = [Shard(0, "other pictures", 2), *SHARDS[1:]]
    assert output.finished(changed) == {}
    assert [path.name for path in folder.iterdir()] == [MANIFEST]
    assert not list((tmp_path / "tags.failures").iterdir())


def test_other_files_are_never_mixed_with_shards(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files, such as notes\.txt; name a new folder"):
        Output(str(tmp_path)).manifest()
    with pytest.raises(InputError, match="is a file; name a folder"):
        Output(str(tmp_path / "notes.txt")).manifest()
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(InputError, match="is damaged; delete"):
        Output(str(tmp_path)).manifest()
    assert Output(str(tmp_path / "new")).manifest() is None


def test_a_full_disk_is_one_sentence(output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"cannot write .*part-00000\.parquet: No space left on device; name another"):
        output.write(SHARDS[0], TABLE, [])
    assert [path.name for path in (tmp_path / "tags").iterdir()] == [MANIFEST]


def test_a_location_of_fsspecs_is_written_too() -> None:
    output = Output("memory://bucket/tags")
    assert output.manifest() is None
    output.begin({"shard": 2})
    output.write(SHARDS[1], TABLE, FAILED)
    assert output.finished(SHARDS) == {1: Counts(1, 1)}
    assert Output("memory://bucket/tags/").manifest() == {"shard": 2}
    assert output.finished([Shard(1, "other pictures", 2)]) == {}


def test_a_worker_has_its_share_of_one_machine() -> None:
    assert share([{"CPU": 2.0}], None) == Share(workers=2, cores=1.0, gpu=False)
    assert share([{"CPU": 8.0}], 2) == Share(workers=2, cores=4.0, gpu=False)
    assert share([{"CPU": 2.0}], 4) == Share(workers=4, cores=0.5, gpu=False)
    assert share([{"CPU": 16.0}, {"CPU": 4.0}], 3) == Share(workers=3, cores=5.0, gpu=False)
    assert share([{"CPU": 32.0, "GPU": 4.0}, {"CPU": 64.0}], None) == Share(workers=4, cores=8.0, gpu=True)
    with pytest.raises(InputError, match="--workers 5, but there are 4 GPUs"):
        share([{"CPU": 32.0, "GPU": 4.0}], 5)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at --address 127.0.0.1:9 "),
        ("nowhere", "give HOST:PORT"),
        ("ray://127.0.0.1:10001", "does not work through Ray's client"),
    ],
)
def test_an_address_where_no_cluster_answers_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        check_address(address)
    assert sentence in str(refused.value)
    check_address("auto")
