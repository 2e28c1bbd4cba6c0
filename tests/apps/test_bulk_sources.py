"""What the Ray engine is to tag: folders, tables and locations, cut into shards."""

import http.server
import io
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fewtag.apps.bulk.manifest import Options, check_same, describe
from fewtag.apps.bulk.reading import read_shard
from fewtag.apps.bulk.rows import read_rows
from fewtag.apps.bulk.sources import Shard, Source, open_source
from fewtag.apps.folders import find_pictures
from PIL import Image

from fewtag.errors import InputError


@pytest.fixture
def web(photos: Path) -> Iterator[str]:
    """The photos on a web server that lists its folders."""

    away = ["/away.png", "/away.png", "/gone/"]

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            if self.path not in away:
                return super().do_GET()
            away.remove(self.path)
            return self.send_error(503)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(photos)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def write(table: Path, **columns: object) -> Path:
    table.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), table, row_group_size=3)
    return table


def names(source: Source, size: int = 2) -> list[str]:
    """Of every picture, by reading all shards as a worker does."""
    return [name for shard in source.shards(size) for batch in read_shard(shard, 8, 2) for name, _ in batch]


def all_read(source: Source) -> bool:
    found = [read for shard in source.shards(2) for batch in read_shard(shard, 8, 2) for _, read in batch]
    return all(isinstance(read, np.ndarray) for read in found)


def test_a_folder_has_the_local_engines_pictures(photos: Path) -> None:
    expected = [str(picture) for picture in find_pictures(photos)]
    assert names(open_source(str(photos))) == names(open_source(f"file://{photos}")) == expected
    assert all_read(open_source(str(photos)))


def test_a_web_page_has_the_pictures_of_its_folder(web: str, photos: Path) -> None:
    found = open_source(web)
    assert names(found) == [str(picture) for picture in find_pictures(photos)]
    assert all_read(found)
    assert names(open_source(f"{web}/z.webp")) == ["z.webp"]


def test_a_table_lists_paths_of_its_own_folder_and_urls(web: str, photos: Path) -> None:
    listed = ["z.webp", str(photos / "b, c.png"), f"{web}/sub/deep/%C3%A4.png", None, "gone.png", f"{web}/gone.png"]
    for column in ("path", "image"):
        table = write(photos / "list.parquet", **{column: listed})
        found = open_source(str(table))
        assert names(found) == [*listed[:3], "list.parquet#3", *listed[4:]]
        read = [
            found for shard in open_source(str(table)).shards(4) for batch in read_shard(shard, 8, 2) for found in batch
        ]
        assert [isinstance(pixels, np.ndarray) for _, pixels in read] == [True, True, True, False, False, False]
        assert "empty cell" in str(read[3][1])
        assert all("there is no such file" in str(pixels) for _, pixels in read[4:])


def test_a_folder_of_tables_holds_bytes(photos: Path, tmp_path: Path) -> None:
    data = (photos / "z.webp").read_bytes()
    write(tmp_path / "lists" / "a.parquet", bytes=[data] * 4)
    write(tmp_path / "lists" / "b.parquet", bytes=[data], image=["mine.webp"])
    write(tmp_path / "lists" / "c.parquet", image=[{"bytes": data, "path": "hugging.webp"}])
    write(tmp_path / "lists" / "_notes" / "d.parquet", bytes=[data])
    found = open_source(str(tmp_path / "lists"))
    assert len(found) == 6
    assert names(found) == [*(f"a.parquet#{row}" for row in range(4)), "mine.webp", "hugging.webp"]
    assert all_read(found)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
def test_every_row_is_in_one_shard_whatever_its_size(size: int, tmp_path: Path) -> None:
    table = write(tmp_path / "list.parquet", path=[f"{row}.png" for row in range(20)])
    shards = open_source(str(table)).shards(size)
    rows = [
        row.name for shard in shards for batch in read_rows(shard.table, shard.first, len(shard), 2) for row in batch
    ]
    assert rows == [f"{row}.png" for row in range(20)]
    assert all(0 < len(shard) <= size for shard in shards)


def test_shards_of_whole_row_groups_are_not_read_twice(tmp_path: Path) -> None:
    table = write(tmp_path / "list.parquet", path=[f"{row}.png" for row in range(20)])
    assert [(shard.first, len(shard)) for shard in open_source(str(table)).shards(7)] == [
        (0, 6),
        (6, 6),
        (12, 6),
        (18, 2),
    ]
    assert [(shard.first, len(shard)) for shard in open_source(str(table)).shards(2)][:3] == [(0, 2), (2, 1), (3, 2)]


def test_a_shard_changes_with_its_pictures_and_with_nothing_else(photos: Path) -> None:
    first, second = open_source(str(photos)).shards(2)
    shutil.copy(photos / "b, c.png", photos / "z.webp")
    again, changed = open_source(str(photos)).shards(2)
    assert again == first == Shard.from_json(first.to_json())
    assert changed.pictures == second.pictures
    assert changed.digest != second.digest


def test_a_picture_far_away_is_tried_again(web: str, photos: Path) -> None:
    shutil.copy(photos / "z.webp", photos / "away.png")
    shards = open_source(str(write(photos / "list.parquet", path=[f"{web}/away.png"]))).shards(1)
    assert [isinstance(read, np.ndarray) for _, read in next(read_shard(shards[0], 8, 2))] == [True]


def test_a_folder_of_a_page_that_does_not_answer_is_not_passed_over(web: str, photos: Path) -> None:
    (photos / "gone").mkdir()
    with pytest.raises(InputError, match="cannot list http"):
        open_source(web)
    assert len(open_source(web)) == 4


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("gone", "there is no folder or picture gone"),
        ("empty", "the folder empty holds no picture"),
        ("broken.parquet", "cannot read the table"),
        ("other.parquet", "has neither a column path (or image) nor bytes, but name"),
        ("nothing.parquet", "its tables have no row"),
        ("s3://bucket/photos", "Install s3fs to access S3"),
        ("nonsense://photos", "Protocol not known: nonsense"),
        ("http://127.0.0.1:9/photos", "cannot list http://127.0.0.1:9/photos"),
    ],
)
def test_what_cannot_be_tagged_is_one_sentence(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    Path("empty").mkdir()
    Path("broken.parquet").write_bytes(b"PAR1 no table PAR1")
    write(Path("other.parquet"), name=["a"])
    write(Path("nothing.parquet"), path=pyarrow.array([], pyarrow.string()))
    with pytest.raises(InputError) as refused:
        open_source(source)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_damaged_in_the_middle_is_one_sentence(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(picture, "png")
    table = write(tmp_path / "list.parquet", bytes=[picture.getvalue() + bytes([row]) for row in range(9)])
    content = bytearray(table.read_bytes())
    content[4:200] = bytes(196)
    table.write_bytes(content)
    shards = open_source(str(table)).shards(3)
    with pytest.raises(InputError, match=r"cannot read the table .*list\.parquet"):
        list(read_shard(shards[0], 8, 2))
    assert len([name for batch in read_shard(shards[2], 8, 2) for name, _ in batch]) == 3


def test_another_command_in_the_same_folder_is_told_what_differs() -> None:
    about = describe(b"bank", "photos", Options()) | {"shard": 64}
    check_same(about, dict(about), "tags")
    other = describe(b"other", "photos", Options(scores=True, threshold=0.5)) | {"shard": 64}
    with pytest.raises(InputError) as refused:
        check_same(about, other, "tags")
    assert str(refused.value) == (
        "--out tags was begun with another bank, another --scores (false, now true), "
        "another --threshold (none, now 0.5); name another --out, or delete this one to begin anew"
    )
