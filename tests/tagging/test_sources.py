"""What is to be tagged: folders, lists, archives, tables and locations, cut into shards."""

import http.server
import io
import shutil
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.files import encoded_bytes
from fewtag.tagger.stream import Item
from fewtag.tagging import parquet, sources
from fewtag.tagging.sources import Entry, Source, open_source

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]


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
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def write(table: Path, **columns: object) -> Path:
    table.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), table, row_group_size=3)
    return table


def items(source: Source, size: int = 2) -> list[Item]:
    return [item for shard in source.shards(size) for item in shard.items(2)]


def names(source: Source) -> list[str]:
    return [item.name for item in items(source)]


def failure(item: Item) -> str:
    """Why it cannot be had; nothing if it can."""
    try:
        if isinstance(item.image, InputError):
            raise item.image
        assert encoded_bytes(item.image, item.name)
    except InputError as error:
        return str(error)
    return ""


def all_read(source: Source) -> bool:
    return not any(failure(item) for item in items(source))


def test_a_folder_by_path_or_address(photos: Path) -> None:
    assert names(open_source([str(photos)])) == names(open_source([f"file://{photos}"])) == NAMES
    assert all_read(open_source([str(photos)]))


def test_a_web_page_has_the_pictures_of_its_folder(web: str) -> None:
    found = open_source([web])
    assert names(found) == NAMES
    assert all_read(found)
    for address in (f"{web}/z.webp", f"{web}/z.webp?signature=a/b=="):
        found = open_source([address])
        assert names(found) == ["z.webp"]
        assert all_read(found)


def test_a_web_page_is_tagged_by_the_local_engine(cli: Cli, bank: Path, photos: Path, web: str) -> None:
    assert cli("tag", bank, photos, "--out", "here.csv", "--scores").code == 0
    assert cli("tag", bank, web, "--out", "there.csv", "--scores", "--no-cache").code == 0
    assert Path("there.csv").read_bytes() == Path("here.csv").read_bytes()


def test_archives_and_pages_are_judged_as_folders_are(photos: Path, web: str, tmp_path: Path) -> None:
    shutil.copy(photos / "z.webp", photos / "_MG_1.JPG")
    for name in ("_MG_1.CR2", "_MG_2.CR2"):
        (photos / name).write_bytes(b"raw")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photos, arcname=".")
    sources = (str(photos), str(tmp_path / "photos.tar"), web)
    judged = [{item.name: bool(failure(item)) for item in items(open_source([source]))} for source in sources]
    assert judged == [{**dict.fromkeys(NAMES, False), "_MG_1.JPG": False, "_MG_2.CR2": True}] * 3


def test_a_raw_file_is_told_apart_from_a_damaged_picture(photos: Path) -> None:
    (photos / "sub" / "_MG_1.CR2").write_bytes(b"raw")
    [reason] = filter(None, map(failure, items(open_source([str(photos)]))))
    assert reason.startswith("image sub/_MG_1.CR2 is of a kind that is not read")
    [alone] = items(open_source([str(photos / "sub" / "_MG_1.CR2")]))
    assert "is of a kind that is not read" in failure(alone)


def test_a_list_has_a_path_or_address_a_line(photos: Path, web: str) -> None:
    listed = ["z.webp", "sub/deep/ä.png", f"{web}/b,%20c.png", str(photos / "z.webp")]
    for encoding in ("utf-8-sig", "utf-16"):  # as PowerShell's > writes it
        (photos / "list.txt").write_text("# mine\n\n" + "\n".join(listed) + "\n", encoding=encoding)
        found = open_source([str(photos / "list.txt")])
        assert names(found) == listed
    assert all_read(found)
    (photos / "list.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the list"):
        open_source([str(photos / "list.txt")])


def test_a_tar_archive_is_read_where_it_lies(photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photos, arcname=".")
    found = open_source([str(tmp_path / "photos.tar")])
    assert sorted(names(found)) == NAMES
    assert all_read(found)
    shutil.copy(tmp_path / "photos.tar", tmp_path / "other.tar")
    both = open_source([str(tmp_path / "photos.tar"), str(tmp_path / "other.tar")])
    assert f"{tmp_path}/other.tar:z.webp" in names(both)
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as archive:
        archive.add(photos, arcname=".")
    with pytest.raises(InputError, match="as an uncompressed tar archive"):
        open_source([str(tmp_path / "packed.tar")])


def test_a_table_lists_paths_of_its_own_folder_and_addresses(web: str, photos: Path) -> None:
    listed = ["z.webp", str(photos / "b, c.png"), f"{web}/sub/deep/%C3%A4.png", None, "", "gone.png", f"{web}/gone.png"]
    for column in ("path", "image"):
        table = write(photos / "list.parquet", **{column: listed})
        found = open_source([str(table)])
        assert names(found) == [*listed[:3], "list.parquet#3", "list.parquet#4", *listed[5:]]
        reasons = [failure(item) for item in items(found, 4)]
        assert reasons[:3] == ["", "", ""]
        assert all("empty cell" in reason for reason in reasons[3:5])
        assert all("there is no such file" in reason for reason in reasons[5:])


def test_a_folder_of_tables_holds_bytes(photos: Path, tmp_path: Path) -> None:
    data = (photos / "z.webp").read_bytes()
    write(tmp_path / "lists" / "a.parquet", bytes=[data] * 4)
    write(tmp_path / "lists" / "b.parquet", bytes=[data] * 2, image=["mine.webp", ""])
    rows = [{"bytes": data, "path": path} for path in ("hugging.webp", "")]
    rows.append({"bytes": None, "path": str(photos / "z.webp")})
    write(tmp_path / "lists" / "c.parquet", image=rows)
    write(tmp_path / "lists" / "d.parquet", image=[data, data])  # as pandas writes pictures that were read
    write(tmp_path / "lists" / "e.parquet", path=["mine.webp"], image=[data])
    turned = pyarrow.struct({"path": pyarrow.string(), "bytes": pyarrow.large_binary()})
    images = pyarrow.array([{"bytes": data, "path": "a.webp"}], turned)
    write(tmp_path / "lists" / "f.parquet", path=["x"], image=images)
    write(tmp_path / "lists" / "_notes" / "g.parquet", bytes=[data])
    found = open_source([str(tmp_path / "lists")])
    assert len(found) == 13
    assert names(found) == [
        *(f"a.parquet#{row}" for row in range(4)),
        "mine.webp",
        "b.parquet#1",
        "hugging.webp",
        "c.parquet#1",
        str(photos / "z.webp"),
        *("d.parquet#0", "d.parquet#1", "mine.webp", "a.webp"),
    ]
    assert all_read(found)


def test_a_sample_is_drawn_by_chance_and_the_same_each_time(tmp_path: Path) -> None:
    """The one of shards of a picture each, as tables in the world have it in their records."""
    source = Source([Entry(f"{number:02}.png", f"{number}.png") for number in range(100)])
    chosen = np.random.default_rng(0).choice(100, 16, replace=False)
    assert [item.name for item in source.sample(16, 4)] == [f"{number:02}.png" for number in sorted(chosen)]
    assert Source(source.entries[::-1]).sample(16, 4) == source.sample(16, 4), "as archives may have them"
    assert len(Source(source.entries[:5]).sample(16, 4)) == 5
    table = open_source([str(write(tmp_path / "list.parquet", path=[f"{row}.png" for row in range(100)]))])
    assert [item.name for item in table.sample(16, 4)] == [item.name for item in table.sample(16, 3)]
    assert len(table.sample(16, 4)) == 16


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
def test_every_row_is_in_one_shard_whatever_its_size(size: int, tmp_path: Path) -> None:
    table = write(tmp_path / "list.parquet", path=[f"{row}.png" for row in range(20)])
    shards = open_source([str(table)]).shards(size)
    assert [item.name for shard in shards for item in shard.items(2)] == [f"{row}.png" for row in range(20)]
    assert all(0 < shard.size <= size for shard in shards)


def test_shards_of_whole_row_groups_are_not_read_twice(tmp_path: Path) -> None:
    table = write(tmp_path / "list.parquet", path=[f"{row}.png" for row in range(20)])
    cuts = [(shard.first, shard.size) for shard in open_source([str(table)]).shards(7)]
    assert cuts == [(0, 6), (6, 6), (12, 6), (18, 2)]
    assert [(shard.first, shard.size) for shard in open_source([str(table)]).shards(2)][:3] == [(0, 2), (2, 1), (3, 2)]


def test_a_shard_changes_with_its_pictures_and_with_nothing_else(photos: Path) -> None:
    first, second = open_source([str(photos)]).shards(2)
    shutil.copy(photos / "b, c.png", photos / "z.webp")
    again, changed = open_source([str(photos)]).shards(2)
    assert (again.digest, [entry.name for entry in again.entries]) == (first.digest, NAMES[:2])
    assert [entry.name for entry in changed.entries] == [entry.name for entry in second.entries]
    assert changed.digest != second.digest


def test_a_picture_far_away_is_tried_again(web: str, photos: Path) -> None:
    shutil.copy(photos / "z.webp", photos / "away.png")
    assert all_read(open_source([str(write(photos / "list.parquet", path=[f"{web}/away.png"]))]))


def test_a_folder_of_a_page_that_does_not_answer_is_not_passed_over(web: str, photos: Path) -> None:
    (photos / "gone").mkdir()
    with pytest.raises(InputError, match="cannot list http"):
        open_source([web])
    assert len(open_source([web])) == 4


def test_two_pictures_of_one_name_are_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{photos}/z.webp\n")
    (photos / "list.txt").write_text("z.webp\n")
    (tmp_path / "z.webp").write_bytes(b"another")
    (tmp_path / "other.txt").write_text("z.webp\n")
    with pytest.raises(InputError, match=r"two pictures are called 'z\.webp'"):
        open_source([str(photos / "list.txt"), str(tmp_path / "other.txt")])


def test_archives_whose_pictures_share_names_are_told_apart_when_they_are_given_themselves(tmp_path: Path) -> None:
    archives = [tmp_path / "shards" / f"{number}.tar" for number in range(2)]
    archives[0].parent.mkdir()
    (tmp_path / "0.png").write_bytes(b"a picture")
    for path in archives:
        with tarfile.open(path, "w") as archive:
            archive.add(tmp_path / "0.png", "0.png")
    with pytest.raises(InputError, match=r"called '0\.png', in .*0\.tar and .*1\.tar; give the archives themselves"):
        open_source([str(archives[0].parent)])
    names = [entry.name for entry in open_source(list(map(str, archives))).entries]
    assert names == [f"{path.as_posix()}:0.png" for path in archives]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("gone", "there is no folder or picture gone"),
        ("rows.csv", "rows.csv is a table, no picture; give a folder, or a .txt list"),
        ("photos.zip", "photos.zip is a packed archive, which is not read; unpack it"),
        ("photos.tar.GZ", "photos.tar.GZ is a packed archive, which is not read; unpack it"),
        ("empty", "empty: there is no picture"),
        ("broken.parquet", "cannot read the table"),
        ("other.parquet", "has neither a column path (or image) nor bytes, but name"),
        ("nothing.parquet", "its tables have no row"),
        ("broken.tar", "cannot read broken.tar as an uncompressed tar archive"),
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
    for name in ("photos.zip", "photos.tar.GZ"):
        Path(name).write_bytes(b"packed")
    Path("empty").mkdir()
    Path("broken.parquet").write_bytes(b"PAR1 no table PAR1")
    Path("broken.tar").write_bytes(b"no archive" * 100)
    Path("rows.csv").write_text("image,tags\n")
    write(Path("other.parquet"), name=["a"])
    write(Path("nothing.parquet"), path=pyarrow.array([], pyarrow.string()))
    with pytest.raises(InputError) as refused:
        open_source([source])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pictures_and_tables_do_not_mix(photos: Path) -> None:
    write(photos / "list.parquet", path=["z.webp"])
    with pytest.raises(InputError, match="give them to a run each"):
        open_source([str(photos), str(photos / "list.parquet")])


def test_a_table_damaged_in_the_middle_is_one_sentence(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(picture, "png")
    table = write(tmp_path / "list.parquet", bytes=[picture.getvalue() + bytes([row]) for row in range(9)])
    content = bytearray(table.read_bytes())
    content[4:200] = bytes(196)
    table.write_bytes(content)
    shards = open_source([str(table)]).shards(3)
    with pytest.raises(InputError, match=r"cannot read the table .*list\.parquet"):
        list(shards[0].items(2))
    assert len(list(shards[2].items(2))) == 3


@pytest.mark.parametrize("box", [(1, 1, 0, 0), (0.999, 0.5, 0.5, 0.5), (0, 0, 0.001, 0.001), (0, 0, 1, 1)])
def test_a_box_on_the_very_edge_is_at_least_a_pixel(box: tuple[float, ...], tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    content = sources.Entry("a.png", str(tmp_path / "a.png"), box=tuple(map(float, box))).read()
    width, height = Image.open(io.BytesIO(content)).size
    assert 1 <= width <= 40
    assert 1 <= height <= 30


def test_windows_paths_are_read_as_windows_does(monkeypatch: pytest.MonkeyPatch) -> None:
    nturl2path = pytest.importorskip("nturl2path")
    monkeypatch.setattr("urllib.request.url2pathname", nturl2path.url2pathname)
    assert str(sources.local_path("file:///C:/my%20photos/x.jpg")) == r"C:\my photos\x.jpg"
    monkeypatch.setattr(parquet, "PurePath", PureWindowsPath)
    near, far = parquet._rows(r"C:\lists\t.parquet", {"path": ["a.jpg", r"D:\b.jpg"]}, 0)
    assert [str(item.image.path) for item in (near, far)] == ["C:/lists/a.jpg", r"D:\b.jpg"]  # type: ignore[attr-defined]
    assert parquet._rows(r"C:\lists\t.parquet", {"bytes": [b"x"]}, 3)[0].name == "t.parquet#3"


def test_an_address_of_a_file_is_unescaped(photos: Path) -> None:
    assert open_source([(photos / "b, c.png").as_uri()]).entries[0].name == "b, c.png"
