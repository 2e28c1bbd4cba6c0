"""The folder of parts: what is finished is known, and every file in it is whole."""

from pathlib import Path

import pyarrow.parquet
import pytest

from fewtag.errors import InputError
from fewtag.tagger.stream import Tagged
from fewtag.tagging.sources import Shard
from fewtag.tagging.tables import (
    MANIFEST,
    Counts,
    Ending,
    Parts,
    check_same,
    failures_of,
    names_in,
    remove_file,
    write_file,
)

SHARDS = [Shard(number, f"digest {number}", 2) for number in range(3)]
GOOD = Tagged("a.png", ("dog", "sofa"), {"dog": 0.75, "sofa": 0.5})
FAILED = Tagged("z\udcff.png", failure="no picture")
LABELS = ["dog", "sofa"]
BOTH = pytest.mark.parametrize("ending", ["jsonl", "parquet"])


def begun(folder: Path | str, ending: Ending) -> Parts:
    parts = Parts(f"{folder}/tags", ending)
    parts.begin({"shard": 2})
    return parts


@BOTH
def test_a_shard_is_finished_once_its_part_is_there(ending: Ending, tmp_path: Path) -> None:
    parts = begun(tmp_path, ending)
    assert parts.write(SHARDS[0], [GOOD, FAILED], LABELS) == Counts(1, 1)
    assert parts.write(SHARDS[2], [GOOD, GOOD], LABELS) == Counts(2, 0)
    assert parts.finished(SHARDS) == {0: Counts(1, 1), 2: Counts(2, 0)}
    assert parts.manifest() == {"shard": 2}
    assert [row for row in parts.rows([0, 2]) if not row.failure] == [GOOD] * 3
    assert [(row.image, row.failure) for row in parts.failures([0, 2])] == [("z\\udcff.png", "no picture")]


def test_a_folder_of_parquet_parts_is_one_table_to_others(tmp_path: Path) -> None:
    parts = begun(tmp_path, "parquet")
    for shard in SHARDS:
        parts.write(shard, [GOOD, FAILED], LABELS)
    found = pyarrow.parquet.read_table(tmp_path / "tags").to_pylist()
    assert found == [{"image": "a.png", "tags": ["dog", "sofa"], "scores": {"dog": 0.75, "sofa": 0.5}}] * 3


@BOTH
def test_what_is_out_of_date_or_damaged_is_removed(ending: Ending, tmp_path: Path) -> None:
    parts = begun(tmp_path, ending)
    for shard in (*SHARDS, Shard(3, "of a folder that had more pictures", 2)):
        parts.write(shard, [GOOD, FAILED], LABELS)
    folder = tmp_path / "tags"
    whole = (folder / parts.name(1)).read_bytes()
    (folder / parts.name(1)).write_bytes(whole[: len(whole) // 2])
    (folder / f"{parts.name(9)}.1234.part").write_bytes(b"of a worker that was killed")
    assert parts.finished([Shard(0, "other pictures", 2), SHARDS[1]]) == {}
    assert [path.name for path in folder.iterdir()] == [MANIFEST]


@pytest.mark.parametrize(("ending", "syncs"), [("jsonl", 0), ("parquet", 2)])
def test_only_parts_without_a_sum_of_their_rows_wait_for_the_disk(
    ending: Ending, syncs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, synced = begun(tmp_path, ending), list[int]()
    monkeypatch.setattr("os.fsync", synced.append)
    parts.write(SHARDS[0], [GOOD, FAILED], LABELS)
    assert len(synced) == syncs


def test_no_flipped_byte_of_a_line_goes_unseen(tmp_path: Path) -> None:
    parts = begun(tmp_path, "jsonl")
    parts.write(SHARDS[0], [GOOD, FAILED], LABELS)
    path = tmp_path / "tags" / parts.name(0)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert parts.finished(SHARDS) in ({}, {0: Counts(1, 1)})
        if path.exists():
            assert list(parts.rows([0])) == [GOOD, Tagged("z\\udcff.png", failure="no picture")], place


def test_a_part_of_json_nested_too_deep_is_made_again(tmp_path: Path) -> None:
    parts = Parts(str(tmp_path), "jsonl")
    parts.write(SHARDS[0], [GOOD, GOOD], None)
    assert list(parts.finished(SHARDS)) == [0]
    (tmp_path / "part-00000.jsonl").write_text(100_000 * "[")
    assert parts.finished(SHARDS) == {}


def test_other_files_are_never_mixed_with_parts(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files, such as notes\.txt; name a new folder"):
        Parts(str(tmp_path), "parquet").manifest()
    with pytest.raises(InputError, match="is a file; name a folder"):
        Parts(str(tmp_path / "notes.txt"), "parquet").manifest()
    for content in ("{", "[]", "{}", '{"shard": "many"}', "\xff", 100_000 * "["):
        (tmp_path / MANIFEST).write_bytes(content.encode("latin-1"))
        with pytest.raises(InputError, match="is damaged; delete"):
            Parts(str(tmp_path), "parquet").manifest()
    assert Parts(str(tmp_path / "new"), "parquet").manifest() is None


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = begun(tmp_path, "parquet")

    def full(path: Path, _: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"cannot write .*part-00000\.parquet: No space left on device; name another"):
        parts.write(SHARDS[0], [GOOD, GOOD], LABELS)
    assert [path.name for path in (tmp_path / "tags").iterdir()] == [MANIFEST]


@BOTH
def test_a_location_of_fsspecs_is_written_too(ending: Ending) -> None:
    parts = begun(f"memory://{ending}", ending)
    assert Parts(f"memory://{ending}/nothing", ending).manifest() is None
    parts.write(SHARDS[1], [GOOD, FAILED], LABELS)
    assert parts.finished(SHARDS) == {1: Counts(1, 1)}
    assert Parts(f"memory://{ending}/tags/", ending).manifest() == {"shard": 2}
    assert parts.finished([Shard(1, "other pictures", 2)]) == {}


def test_a_list_of_failures_goes_with_the_last_of_them_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (str(tmp_path / "tags"), "memory://failures/tags"):
        write_file(failures_of(place), b"image,reason\n")
        for _ in range(2):
            remove_file(failures_of(place))
            assert "tags.failures.csv" not in names_in(place.rpartition("/")[0])
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "it is open")))
    with pytest.raises(InputError, match=r"cannot remove .*tags\.failures\.csv: it is open; move it away"):
        remove_file(failures_of(str(tmp_path / "tags")))


def test_another_command_in_the_same_folder_is_told_what_differs() -> None:
    about = {"fewtag": "1", "bank": "a", "source": ["photos"], "scores": False, "threshold": None, "shard": 64}
    check_same(about, dict(about), "tags")
    with pytest.raises(InputError) as refused:
        check_same(about, about | {"bank": "b", "source": ["a", "b"], "scores": True, "threshold": 0.5}, "tags")
    assert str(refused.value) == (
        "--out tags was begun with another bank, another source (photos, now a, b), another --scores (false, now "
        "true), another --threshold (none, now 0.5); name another --out, or delete this one to begin anew"
    )
