"""`fewtag write`: tags into sidecars and pictures, shown before, taken back after, and never at a person's cost."""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from sidecars import digikam, lightroom, sidecars
from tiny import draw

from fewtag.files import digest, locked, user_cache_folder
from fewtag.interop import write as writing
from fewtag.interop.carried import keywords, read_embedded
from fewtag.interop.keywords import NO_TAGS
from fewtag.interop.write import Options, write_tags
from fewtag.interop.xmp import EMPTY, Packet, Wanted
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer
from fewtag.tagging.tables import MANIFEST

Cli = Callable[..., Any]
needs_exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
needs_exiv2 = pytest.mark.skipif(shutil.which("exiv2") is None, reason="exiv2 is not installed")


def hashes(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file, hidden ones too: content and time of change."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents(folder: Path) -> dict[str, str]:
    return {name: content for name, (content, _) in hashes(folder).items()}


def tags(sidecar: Path, field: str = "digiKam:TagsList") -> list[str]:
    return Packet(sidecar.read_bytes(), str(sidecar)).items(field)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Three pictures and a table of their tags, as `tag` writes it."""
    folder = tmp_path / "album"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["a.jpg", "sub/ä b.png", "c.webp"]):
        draw(number, "dog").save(folder / name)
    (tmp_path / "tags.csv").write_text("image,tags\na.jpg,dog;birds/heron\nsub/ä b.png,cat\nc.webp,\n")
    return folder


def test_sidecars_are_written_and_taken_back(cli: Cli, album: Path) -> None:
    before = hashes(album)
    said = cli("write", "tags.csv", album)
    assert (said.code, said.out) == (0, f"{album}: 2 files written, 1 unchanged\n")
    assert set(contents(album)) - set(before) == {"a.jpg.xmp", "sub/ä b.png.xmp"}
    assert tags(album / "a.jpg.xmp") == ["birds/heron", "dog"]
    assert tags(album / "a.jpg.xmp", "lr:hierarchicalSubject") == ["birds|heron", "dog"]
    assert tags(album / "a.jpg.xmp", "dc:subject") == ["birds", "heron", "dog"]
    once = hashes(album)
    assert cli("write", "tags.csv", album).out == f"{album}: 0 files written, 3 unchanged\n"
    assert hashes(album) == once, "writing twice changes nothing"
    said = cli("write", "tags.csv", album, "--undo")
    assert (said.code, said.out) == (0, f"{album}: 0 files written, 2 removed, 0 unchanged\n")
    assert hashes(album) == before


def test_a_bank_tags_first(cli: Cli, bank: Path, photos: Path) -> None:
    cli("tag", bank, photos, "--out", "tags.jsonl")
    rows = {row["image"]: row["tags"] for row in map(json.loads, Path("tags.jsonl").read_text().splitlines())}
    assert any(rows.values())
    said = cli("write", bank, photos, "--json")
    assert (said.code, json.loads(said.out)["failures"]) == (0, {})
    for name, given in rows.items():
        sidecar = photos / f"{name}.xmp"
        assert (sorted(tags(sidecar)) if sidecar.exists() else []) == sorted(given)
    by_bank = contents(photos)
    cli("write", photos, "--undo")
    cli("write", "tags.jsonl", photos)
    assert contents(photos) == by_bank


def test_thresholds_go_by_the_probabilities_of_the_table(cli: Cli, album: Path) -> None:
    for table, text in {
        "scores.csv": "image,tags,dog,Cat,width\na.jpg,dog,0.9,0.55,640\nc.webp,,0.2,0.1,480\n",
        "decimal-commas.csv": "image;tags;dog;Cat\r\na.jpg;dog;0,9;0,55\r\nc.webp;;0,2;0,1\r\n",
        "no-tags.csv": "image,tags,dog,Cat\na.jpg,,0.9,0.55\n",
        "scores.jsonl": '{"image": "a.jpg", "tags": ["dog"], "scores": {"dog": 0.9, "Cat": 0.55}}\n',
    }.items():
        Path(table).write_text(text)
        assert cli("write", table, album, "--threshold", 0.5).code == 0
        assert tags(album / "a.jpg.xmp") == ["Cat", "dog"]
        assert cli("write", table, album, "--threshold", 0.8).code == 0
        assert tags(album / "a.jpg.xmp") == ["dog"]
        assert cli("write", table, album, "--threshold", 0.95).code == 0
        assert not (album / "a.jpg.xmp").exists()
    Path("no.csv").write_text("image,tags,dog,Cat\na.jpg,Cat,0.000000,0.55\n")
    assert cli("write", "no.csv", album, "--threshold", 0).code == 0
    assert tags(album / "a.jpg.xmp") == ["Cat"], "where a person said no, the probability is 0"
    said = cli("write", "tags.jsonl", album, "--threshold", "nan")
    assert (said.code, "the threshold is nan; give one from 0 to 1" in said.err) == (2, True)
    said = cli("write", "tags.csv", album, "--threshold", 0.5)
    assert (said.code, "has no probabilities" in said.err) == (2, True)


def test_a_threshold_reaches_labels_that_no_picture_was_given(cli: Cli, bank: Path, photos: Path) -> None:
    for table in ("tags.csv", "tags.jsonl"):
        assert cli("tag", bank, photos, "--out", table, "--scores", "--threshold", 1).code == 0
        said = json.loads(cli("write", table, photos, "--threshold", 0, "--dry-run", "--json").out)
        assert said["written"], table


def test_a_threshold_does_not_overrule_a_person(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos, "--out", "tags.csv", "--scores", "--threshold", 0).code == 0
    header, *rows = csv.reader(Path("tags.csv").read_text().splitlines(keepends=True))
    names = {row[0]: row for row in rows}
    assert all(set(row[1].split(";")) == set(header[2:]) for row in rows), "at 0 everything is tagged"
    names["z.webp"][1] = "!dog"  # and everything else taken out
    names["b, c.png"][1] += ";heron"  # put in
    with Path("tags.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*header, "width", "rating"], *([*row, 640, 1] for row in rows)])
    assert cli("write", "tags.csv", photos, "--threshold", 0).code == 0
    assert not (photos / "z.webp.xmp").exists()
    assert sorted(tags(photos / "b, c.png.xmp")) == sorted([*header[2:], "heron"])
    assert sorted(tags(photos / "sub/deep/ä.png.xmp")) == sorted(header[2:]), "no tag is called width or rating"


def test_only_what_a_person_said_with_confirmed(cli: Cli, bank: Path, tmp_path: Path, photos: Path) -> None:
    shutil.copy(tmp_path / "examples" / "dog" / "0.png", photos / "taught.png")
    assert cli("write", bank, photos, "--confirmed").code == 0
    assert [path.name for path in photos.rglob("*.xmp")] == ["taught.png.xmp"]
    assert tags(photos / "taught.png.xmp") == ["dog"]
    assert "--confirmed needs a bank or a project" in cli("write", "tags.csv", photos, "--confirmed").err


def test_a_projects_answers_are_written(
    cli: Cli, album: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "fewtag"
    with Studio.open("project", [album], model=str(tiny_model), cache=cache) as studio:
        studio.wait()
        studio.define("pets/dog")
        studio.set_threshold("pets/dog", 0.0)
        names = {cell.name.rpartition("/")[2]: cell.digest for cell in studio.search(limit=9, stacked=False).pictures}
        studio.answer(
            [
                Answer(str(uuid.uuid4()), names["a.jpg"], "pets/dog", "yes"),
                Answer(str(uuid.uuid4()), names["c.webp"], "pets/dog", "no"),
            ]
        )
    assert cli("write", "project", album, "--confirmed").code == 0
    assert [path.name for path in album.rglob("*.xmp")] == ["a.jpg.xmp"]
    assert tags(album / "a.jpg.xmp", "lr:hierarchicalSubject") == ["pets|dog"]
    assert cli("write", "project", album).code == 0, "the bank's guesses too, but where a person said no"
    assert {path.name for path in album.rglob("*.xmp")} == {"a.jpg.xmp", "ä b.png.xmp"}
    assert cli("write", "project", album, "--threshold", 0).code == 0
    assert {path.name for path in album.rglob("*.xmp")} == {"a.jpg.xmp", "ä b.png.xmp"}
    said = cli("write", "project", album, "--threshold", "nan")
    assert (said.code, "the threshold is nan" in said.err) == (2, True)
    assert cli("write", "project", album, "--threshold", 1).code == 0
    assert [path.name for path in album.rglob("*.xmp")] == ["a.jpg.xmp"]
    said = cli("write", "project", album, "--confirmed", "--threshold", 0)
    assert (said.code, "--confirmed writes no guesses" in said.err) == (2, True)
    said = cli("write", "project", tmp_path / "cache")
    assert (said.code, "has no picture under" in said.err) == (2, True)
    wait = Studio.wait
    monkeypatch.setattr(Studio, "wait", lambda self, seconds=None: wait(self) if seconds is None else False)
    assert "reading the pictures of project, which the cache does not have" in cli("write", "project", album).err


def test_a_dry_run_shows_a_diff_and_changes_nothing(cli: Cli, album: Path) -> None:
    (album / "a.jpg.xmp").write_bytes(digikam([("Oma",)], 0))
    before = hashes(album)
    said = cli("write", "tags.csv", album, "--dry-run")
    assert (said.code, hashes(album)) == (0, before)
    assert f"--- {album / 'a.jpg.xmp'}" in said.out
    assert "+     <rdf:li>birds/heron</rdf:li>" in said.out
    assert f"--- {os.devnull}\n" in said.out
    assert not [line for line in said.out.splitlines() if line.startswith("-") and not line.startswith("--- ")]
    assert "2 files would be written" in said.err
    assert json.loads(cli("write", "tags.csv", album, "--dry-run", "--json").out)["written"] == 2
    cli("write", "tags.csv", album)
    written = hashes(album)
    assert "-     <rdf:li>birds/heron</rdf:li>" in cli("write", album, "--undo", "--dry-run").out
    assert hashes(album) == written


def test_an_existing_sidecar_is_used_by_whichever_name(cli: Cli, album: Path) -> None:
    (album / "a.XMP").write_bytes(lightroom([("Oma",)], 0))
    assert cli("write", "tags.csv", album).code == 0
    assert tags(album / "a.XMP") == ["Oma", "birds/heron", "dog"]
    assert not (album / "a.jpg.xmp").exists()
    cli("write", album, "--undo")
    assert (album / "a.XMP").read_bytes() == lightroom([("Oma",)], 0)


def test_the_sidecar_of_a_raw_twin_stays_and_its_tags_are_not_hidden(cli: Cli, album: Path) -> None:
    (album / "a.CR2").write_bytes(b"raw")
    (album / "a.xmp").write_bytes(lightroom([("Oma",)], 0))
    assert cli("write", "tags.csv", album).code == 0
    assert (album / "a.xmp").read_bytes() == lightroom([("Oma",)], 0)
    assert tags(album / "a.jpg.xmp") == ["Oma", "birds/heron", "dog"]
    assert cli("write", album, "--undo").code == 0
    assert {path.name for path in album.rglob("*.xmp")} == {"a.xmp"}


def test_a_picture_without_an_ending_has_one_sidecar(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    packet = Packet(EMPTY, "it").with_labels({("Oma",): 0}, NO_TAGS)
    draw(3, "dog").save(folder / "scan", "JPEG", xmp=packet.replace(b"urn:fewtag:xmp/1.0/", b"another"))
    Path("tags.csv").write_text("image,tags\nscan,dog\n")
    before = hashes(folder)
    assert cli("write", "tags.csv", folder).code == 0
    assert tags(folder / "scan.xmp") == ["Oma", "dog"]
    said = cli("write", "tags.csv", folder)
    assert (said.code, said.out) == (0, f"{folder}: 0 files written, 1 unchanged\n"), said.err
    assert cli("write", folder, "--undo").code == 0
    assert hashes(folder) == before


def test_adobes_names_are_for_new_sidecars(cli: Cli, album: Path) -> None:
    assert cli("write", "tags.csv", album, "--adobe-names").code == 0
    assert {path.name for path in album.rglob("*.xmp")} == {"a.xmp", "ä b.xmp"}


@pytest.mark.parametrize("twin", ["a.cr2", "a.PNG"])
def test_adobes_names_are_not_taken_from_a_twin(cli: Cli, album: Path, twin: str) -> None:
    draw(5, "dog").save(album / "twin.png")
    (album / "twin.png").rename(album / twin)
    Path("tags.csv").write_text("image,tags\na.jpg,dog\n" + (f"{twin},dog\n" if twin == "a.PNG" else ""))
    wanted = {"a.jpg.xmp", *({"a.PNG.xmp"} if twin == "a.PNG" else ())}
    for _ in range(2):
        assert cli("write", "tags.csv", album, "--adobe-names").code == 0
        assert {path.name for path in album.rglob("*.xmp")} == wanted


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif", "avif"])
def test_tags_inside_a_picture_are_copied_into_a_new_sidecar(cli: Cli, tmp_path: Path, ending: str) -> None:
    packet = digikam([("Tiere", "Vögel"), ("Oma",)], 0)
    image = draw(1, "dog")
    where = {"tiffinfo": {700: packet}} if ending == "tif" else {"xmp": packet}
    if ending == "png":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", packet.decode(), zip=True)
        where = {"pnginfo": info}
    (tmp_path / "in").mkdir()
    image.save(tmp_path / "in" / f"a.{ending}", **where)
    Path("tags.csv").write_text(f"image,tags\na.{ending},zebra\n")
    before = hashes(tmp_path / "in")
    assert cli("write", "tags.csv", "in").code == 0
    assert tags(tmp_path / "in" / f"a.{ending}.xmp") == ["Tiere/Vögel", "Oma", "zebra"]
    assert cli("write", "in", "--undo").code == 0
    assert hashes(tmp_path / "in") == before


def test_iptc_keywords_are_read_by_their_encoding() -> None:
    def record(number: int, dataset: int, value: bytes) -> bytes:
        return bytes([0x1C, number, dataset]) + len(value).to_bytes(2, "big") + value

    assert keywords(record(2, 25, "Köln".encode()) + record(2, 5, b"title") + record(2, 25, b"b")) == ("Köln", "b")
    assert keywords(record(2, 25, "Köln".encode("latin-1"))) == ("Köln",)
    assert keywords(record(2, 25, b"whole")[:-1] + b"\x1c\x02") == ("whol\x1c",)
    assert keywords(b"\x1c\x02\x19\xff\xff") == ()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda album: (album / "a.jpg.xmp").write_text("no xml"), "a.jpg.xmp is no XML"),
        (lambda album: (album / "a.jpg.xmp").write_bytes(b"<a/>"), "a.jpg.xmp is XML, but no XMP"),
        (lambda album: [(album / n).write_bytes(digikam([], 0)) for n in ("a.jpg.xmp", "a.xmp")], "has two sidecars"),
        (lambda album: (album / "a.jpg").unlink(), "there is no picture a.jpg"),
        (lambda album: (album / "a.jpg").write_bytes(b"no picture"), "a.jpg cannot be decoded"),
        (lambda album: (album / "a.jpg.xmp").mkdir(), "cannot read the sidecar"),
    ],
)
def test_a_picture_that_fails_is_listed_and_the_others_are_written(
    cli: Cli, album: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(album)
    before = contents(album)
    outcome = cli("write", "tags.csv", album)
    assert (outcome.code, outcome.err.count("fewtag: "), "Traceback" in outcome.err) == (1, 1, False)
    assert said in outcome.err
    assert {name: content for name, content in contents(album).items() if name in before} == before
    assert set(contents(album)) - set(before) == {"sub/ä b.png.xmp"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.fewtag", "album"), "there is no bank gone.fewtag"),
        (("gone.csv", "album"), "cannot read the table gone.csv"),
        (("tags.csv", "nowhere"), "there is no folder or picture nowhere"),
        (("album", "album"), "album is no project of the studio; give a bank, a project or a table"),
        (("parts", "album"), "parts is a folder of parts that `tag` wrote; tag into one table: --out tags.parquet"),
        (("tags.csv",), "say which pictures"),
        (("odd.jsonl", "album"), "odd.jsonl line 1 is no row with image and tags"),
        (("control.jsonl", "album"), "which XMP cannot; rename it"),
        (("tags.csv", "album/sub/ä b.png"), "has no row of album/sub"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, album: Path, arguments: tuple[str, ...], said: str) -> None:
    Path("parts").mkdir()
    Path("parts", MANIFEST).write_text("{}")
    Path("odd.jsonl").write_text("[1]\n")
    Path("control.jsonl").write_text('{"image": "a.jpg", "tags": ["a\\u0001"]}\n')
    before = contents(album)
    outcome = cli("write", *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome.err
    assert said in outcome.err
    assert contents(album) == before


def test_a_table_with_a_line_for_each_tag_is_written_as_one_with_a_line_a_picture(cli: Cli, album: Path) -> None:
    """What else it says is no tag."""
    Path("long.csv").write_text("file,class,confidence\na.jpg,dog,0.9\na.jpg,birds/heron,0.8\nsub/ä b.png,cat,0.7\n")
    said = cli("write", "long.csv", album, "--threshold", "0.5")
    assert (said.code, "long.csv has no probabilities to compare with" in said.err) == (2, True)
    assert cli("write", "long.csv", album).out == f"{album}: 2 files written, 0 unchanged\n"
    once = contents(album)
    assert cli("write", "tags.csv", album).out == f"{album}: 0 files written, 3 unchanged\n"
    assert contents(album) == once


def test_a_picture_is_one_however_a_table_spells_its_path(cli: Cli, album: Path) -> None:
    whole = (album / "sub/ä b.png").absolute()
    Path("spelt.csv").write_text(f"image,tags\nsub\\ä b.png,cat\n{whole},dog\n./sub/ä b.png,cow\n.\\a.jpg,dog\n")
    assert cli("write", "spelt.csv", album).out == f"{album}: 2 files written, 0 unchanged\n"
    assert tags(album / "sub/ä b.png.xmp") == ["cat", "cow", "dog"]
    assert cli("write", "spelt.csv", album).out == f"{album}: 0 files written, 2 unchanged\n"
    assert cli("export", "spelt.csv", "set", "--as", "imagefolder", "--root", album).code == 0
    assert Path("set/sub/ä b.png").exists()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_found_as_a_mac_writes_them_and_as_others_do(
    cli: Cli, bank: Path, album: Path, form: Literal["NFC", "NFD"]
) -> None:
    other = unicodedata.normalize("NFD" if form == "NFC" else "NFC", "sub/ä b.png")
    (album / "sub/ä b.png").rename(album / unicodedata.normalize(form, "sub/ä b.png"))
    Path("accents.csv").write_text(f"image,tags\n{other},dog\n", encoding="utf-8")
    assert cli("learn", bank, "accents.csv", "--root", album).code == 0
    assert cli("write", "accents.csv", album).out == f"{album}: 1 file written, 0 unchanged\n"


def test_accents_are_found_where_a_mac_wrote_the_picture_and_another_computer_its_folder(
    cli: Cli, bank: Path, album: Path
) -> None:
    (album / "sub").rename(album / unicodedata.normalize("NFC", "été"))
    (album / "été/ä b.png").rename(album / "été" / unicodedata.normalize("NFD", "ä b.png"))
    for form in ("NFC", "NFD"):
        Path("accents.csv").write_text(f"image,tags\n{unicodedata.normalize(form, 'été/ä b.png')},dog\n", "utf-8")
        assert cli("learn", bank, "accents.csv", "--root", album).code == 0
        assert cli("write", "accents.csv", album).code == 0


@pytest.mark.skipif(os.name == "nt", reason="no file of Windows is called so")
def test_a_name_with_a_backslash_of_its_own_is_found(cli: Cli, bank: Path, album: Path) -> None:
    (album / "c.webp").rename(album / "back\\slash.webp")
    Path("own.csv").write_text("image,tags\nback\\slash.webp,dog\n")
    assert cli("write", "own.csv", album).out == f"{album}: 1 file written, 0 unchanged\n"
    assert cli("learn", bank, "own.csv", "--root", album).code == 0


def test_a_name_as_long_as_names_may_be_gets_its_sidecar(cli: Cli, album: Path) -> None:
    name = f"{'夏' * 82}.webp"  # 251 bytes; with .xmp 255
    (album / "c.webp").rename(album / name)
    Path("own.csv").write_text(f"image,tags\n{name},dog\n")
    assert cli("write", "own.csv", album).code == 0
    assert tags(album / f"{name}.xmp") == ["dog"]


def test_two_runs_do_not_write_under_one_folder_at_once(cli: Cli, album: Path) -> None:
    lock = user_cache_folder() / "writing" / digest(str(album.resolve()))[:16]
    with locked(lock):
        said = cli("write", "tags.csv", album)
    assert (said.code, f"{album} is in use by another process; try again" in said.err) == (2, True)
    assert cli("write", "tags.csv", album).code == 0


def test_who_has_no_home_is_told_where_to_name_one(cli: Cli, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(album / "a.jpg"))
    said = cli("write", "tags.csv", album)
    assert (said.code, "let HOME or XDG_CACHE_HOME be a folder of yours" in said.err) == (2, True)


@pytest.mark.parametrize("table", ["tags.csv", "tags.jsonl"])
def test_a_tag_that_no_picture_is_given_any_longer_is_taken_away(
    cli: Cli, bank: Path, photos: Path, table: str
) -> None:
    """Though the table does not name it: what the bank knows is in its record. Another bank's tags stay."""
    before = hashes(photos)
    Path("other.csv").write_text("image,tags\nz.webp,heron\n")
    assert cli("write", "other.csv", photos).code == 0
    assert cli("tag", bank, photos, "--out", table, "--threshold", 0).code == 0
    assert cli("write", table, photos).code == 0
    assert len(tags(photos / "z.webp.xmp")) > 1
    assert cli("tag", bank, photos, "--out", table, "--threshold", 1).code == 0
    assert cli("write", table, photos).code == 0
    assert tags(photos / "z.webp.xmp") == ["heron"]
    assert set(hashes(photos)) - set(before) == {"z.webp.xmp"}


def test_of_a_table_of_several_folders_the_one_to_give_is_told(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, "photos/sub", "photos/z.webp", "--out", "tags.csv", "--threshold", 0).code == 0
    Path("moved").mkdir()
    said = cli("write", "tags.csv", "moved")
    assert (said.code, said.out, "nor another picture of tags.csv" in said.err) == (2, "", True)
    assert f"give the folder of its paths, which was {Path.cwd()}\n" in said.err
    assert cli("write", "tags.csv", ".").code == 0
    assert (photos / "z.webp.xmp").exists()


def test_a_row_outside_of_the_folder_is_a_failure(cli: Cli, album: Path, tmp_path: Path) -> None:
    shutil.copy(album / "a.jpg", tmp_path / "outside.jpg")
    for name in ("../outside.jpg", tmp_path / "outside.jpg", "sub/../../outside.jpg"):
        Path("tags.csv").write_text(f"image,tags\n{name},dog\n")
        assert "lies outside of" in cli("write", "tags.csv", album).err
    assert not (tmp_path / "outside.jpg.xmp").exists()


def test_tags_of_a_detectors_boxes_are_the_pictures(cli: Cli, album: Path) -> None:
    Path("tags.csv").write_text("image,tags\na.jpg#1,dog\na.jpg#2,cat;dog\n")
    assert cli("write", "tags.csv", album).code == 0
    assert tags(album / "a.jpg.xmp") == ["cat", "dog"]


def test_a_folder_that_cannot_be_written_to_is_a_listed_failure(
    cli: Cli, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def closed(path: Path, mode: str = "r", *more: Any, **also: Any) -> Any:
        if "w" in mode and path.parent == album:
            raise PermissionError(13, "Permission denied")
        return real(path, mode, *more, **also)

    monkeypatch.setattr(Path, "open", closed)
    before = contents(album)
    outcome = cli("write", "tags.csv", album)
    assert (outcome.code, "a.jpg.xmp: Permission denied; check the folder" in outcome.err) == (1, True)
    assert set(contents(album)) - set(before) == {"sub/ä b.png.xmp"}


def test_a_sidecar_that_changes_meanwhile_is_left_alone(album: Path) -> None:
    sidecar = album / "a.jpg.xmp"
    sidecar.write_bytes(digikam([], 0))
    late = writing._put(writing.Change("a.jpg", sidecar, b"as it was planned", b"ours"))
    assert "was changed by another program meanwhile" in late.failure
    assert sidecar.read_bytes() == digikam([], 0)


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links are others there")
def test_a_sidecar_keeps_its_mode_and_a_link_stays_one(cli: Cli, album: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.xmp"
    target.write_bytes(digikam([], 0))
    target.chmod(0o640)
    (album / "a.jpg.xmp").symlink_to(target)
    assert cli("write", "tags.csv", album).code == 0
    assert (album / "a.jpg.xmp").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert "dog" in tags(target)


def test_undo_finds_sidecars_whose_picture_is_gone(cli: Cli, album: Path) -> None:
    cli("write", "tags.csv", album)
    (album / "a.jpg").unlink()
    assert cli("write", album, "--undo").code == 0
    assert not list(album.rglob("*.xmp"))


KILLED = """
import os, sys
from pathlib import Path
from fewtag.interop import write
real, left = Path.replace, [int(sys.argv.pop(1))]
def replace(path, target):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
    return real(path, target)
Path.replace = replace
from fewtag.cli.main import main
main()
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 3])
def test_a_kill_leaves_each_sidecar_old_or_new_and_the_next_run_ends_it(cli: Cli, tmp_path: Path, after: int) -> None:
    """At random moments, and many more of them: tests/support/kills.py."""
    folder = tmp_path / "many"
    folder.mkdir()
    rows, examples = ["image,tags"], list(sidecars())[::12]
    for number, sidecar in enumerate(examples):
        draw(number).save(folder / f"{number}.png")
        (folder / f"{number}.png.xmp").write_bytes(sidecar.content)
        rows.append(f"{number}.png,zebra")
    (tmp_path / "tags.csv").write_text("\n".join(rows) + "\n")
    before = contents(folder)
    command = ("write", str(tmp_path / "tags.csv"), str(folder))
    killed = [sys.executable, "-c", KILLED, str(after), *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(killed, env=environment, capture_output=True).returncode == 9
    for number, sidecar in enumerate(examples):
        found = (folder / f"{number}.png.xmp").read_bytes()
        assert Packet(found, "it").without_ours() == sidecar.content
    assert cli(*command).code == 0
    assert all("zebra" in tags(folder / f"{number}.png.xmp") for number in range(len(examples)))
    assert cli(*command, "--undo").code == 0
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.processes
def test_ten_thousand_pictures_take_less_than_a_minute_of_two_cores(tmp_path: Path) -> None:
    """By a twentieth of them, in processor time, without the tests' checks; five times that, for slower machines."""
    draw(0, size=(640, 480)).save(tmp_path / "one.jpg")
    picture, rows = (tmp_path / "one.jpg").read_bytes(), ["image,tags"]
    (tmp_path / "many").mkdir()
    for number in range(500):
        (tmp_path / "many" / f"{number}.jpg").write_bytes(picture)
        rows.append(f"{number}.jpg,dog;birds/heron;sofa")
    (tmp_path / "tags.csv").write_text("\n".join(rows) + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "fewtag", "write", str(tmp_path / "tags.csv"), str(tmp_path / "many")]
    before = os.times()
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    after = os.times()
    assert len(list((tmp_path / "many").glob("*.xmp"))) == 500
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5 * 2 * 60 / 20


@needs_exiftool
@pytest.mark.slow
@pytest.mark.processes
def test_other_tools_see_nothing_but_our_tags_change(cli: Cli, tmp_path: Path) -> None:
    folder, rows = tmp_path / "all", ["image,tags"]
    folder.mkdir()
    for number, sidecar in enumerate(sidecars()):
        draw(0).resize((8, 8)).save(folder / f"{number}.jpg")
        (folder / f"{number}.jpg.xmp").write_bytes(sidecar.content)
        rows.append(f"{number}.jpg,zebra;birds/heron")
    (tmp_path / "tags.csv").write_text("\n".join(rows) + "\n")

    def by_exiftool() -> list[dict[str, Any]]:
        command = ["exiftool", "-j", "-G1", "-a", "-struct", "-ext", "xmp", "-x", "System:all", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return sorted(json.loads(done.stdout), key=lambda facts: facts["SourceFile"])

    ours = ("XMP-dc:Subject", "XMP-lr:HierarchicalSubject", "XMP-digiKam:TagsList")
    before, hashed = by_exiftool(), contents(folder)
    assert len(before) == 60
    assert cli("write", "tags.csv", folder).code == 0
    for old, new in zip(before, by_exiftool(), strict=True):
        assert {key: value for key, value in new.items() if key not in ours and "fewtag" not in key} == {
            key: value for key, value in old.items() if key not in ours and "Warning" not in key
        } | ({"ExifTool:Warning": new["ExifTool:Warning"]} if "ExifTool:Warning" in new else {})
        for key in ours:
            added = "birds/heron" if "Tags" in key else "birds|heron" if "lr" in key else "heron"
            kept = [old[key]] if isinstance(old.get(key), str) and old[key] else old.get(key) or []
            assert set(kept) <= set(new[key])
            assert {"zebra", added} <= set(new[key])
    assert cli("write", "tags.csv", folder, "--undo").code == 0
    assert contents(folder) == hashed


@needs_exiv2
@pytest.mark.slow
@pytest.mark.processes
def test_exiv2_reads_and_rewrites_what_was_written_and_undo_still_finds_it(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    chosen = [each for each in sidecars() if each.program != "Immich"][::7]
    for number, sidecar in enumerate(chosen):
        (folder / f"{number}.jpg.xmp").write_bytes(sidecar.content)
        draw(0).resize((8, 8)).save(folder / f"{number}.jpg")
    (tmp_path / "tags.csv").write_text(
        "image,tags\n" + "".join(f"{number}.jpg,zebra;birds/heron\n" for number in range(len(chosen)))
    )

    def by_exiv2(number: int) -> dict[str, str]:
        path = str(folder / f"{number}.jpg.xmp")
        done = subprocess.run(["exiv2", "-px", "-Pkt", path], capture_output=True, text=True, check=False)
        return dict(
            line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("Xmp.") and " " in line
        )

    before = [by_exiv2(number) for number in range(len(chosen))]
    assert cli("write", "tags.csv", folder).code == 0
    for number, old in enumerate(before):
        new = by_exiv2(number)
        changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        assert {key for key in changed if not key.startswith("Xmp.fewtag")} <= {
            "Xmp.dc.subject", "Xmp.lr.hierarchicalSubject", "Xmp.digiKam.TagsList",
        }  # fmt: skip
        sidecar = str(folder / f"{number}.jpg.xmp")
        subprocess.run(["exiv2", "-M", "set Xmp.dc.subject XmpBag mine", "mo", sidecar], check=True)
    assert cli("write", folder, "--undo").code == 0
    for number, sidecar in enumerate(chosen):
        left = Packet((folder / f"{number}.jpg.xmp").read_bytes(), "it")
        assert left.ledger is None
        assert left.tags().has(("mine",))
        for path in sidecar.paths:
            assert path[-1] in {"Dog", *(part for each in left.tags().every for part in each)}
        assert not left.tags().has(("zebra",))


@needs_exiftool
@pytest.mark.slow
@pytest.mark.processes
def test_what_a_person_edits_in_immich_counts(cli: Cli, album: Path) -> None:
    """Immich tells exiftool the whole list of an asset's tags, which rewrites the sidecar."""
    sidecar = album / "a.jpg.xmp"
    assert cli("write", "tags.csv", album).code == 0
    edited = ["-XMP-digiKam:TagsList=birds/heron", "-XMP-digiKam:TagsList=Shrek"]  # dog is wrong, Shrek is missing
    subprocess.run(["exiftool", "-q", "-overwrite_original", *edited, str(sidecar)], check=True)
    for _ in range(2):
        assert cli("write", "tags.csv", album).code == 0
        assert sorted(tags(sidecar)) == ["Shrek", "birds/heron"]
        assert sorted(tags(sidecar, "dc:subject")) == ["Shrek", "birds", "heron"]
    assert cli("write", album, "--undo").code == 0
    assert tags(sidecar) == ["Shrek"]
    assert "fewtag:" not in sidecar.read_text()


OWN: dict[str, Callable[[Path], list[str]]] = {
    "nothing": lambda _: [],
    "exiftool": lambda _: ["-XMP-dc:Subject=Oma"],
    "digiKam": lambda packet: [f"-XMP<={packet}"],
    "iptc": lambda _: ["-IPTC:Keywords=Oma"],
}
"""What is in a picture before, by what exiftool is told to put there."""


@needs_exiftool
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
def test_tags_are_embedded_and_taken_back_to_the_byte(cli: Cli, tmp_path: Path, ending: str) -> None:
    folder, packet = tmp_path / "in", tmp_path / "p.xmp"
    folder.mkdir()
    packet.write_bytes(digikam([("Oma",)], 0).partition(b"\n")[2])
    pictures = {own: folder / f"ä {own}.{ending}" for own in OWN if (own, ending) != ("iptc", "png")}
    for own, picture in pictures.items():
        draw(3, "dog", size=(200, 160)).save(picture)
        if options := OWN[own](packet):
            subprocess.run(["exiftool", "-q", "-overwrite_original", *options, str(picture)], check=True)
        os.utime(picture, ns=(10**18, 10**18))
    Path("tags.csv").write_text(
        "image,tags\n" + "".join(f"{each.name},dog;birds/heron\n" for each in pictures.values())
    )
    before = hashes(folder)
    pixels = {picture: Image.open(picture).convert("RGB").tobytes() for picture in pictures.values()}
    said = cli("write", "tags.csv", folder, "--embed")
    assert (said.code, said.out) == (0, f"{folder}: {len(pictures)} files written, 0 unchanged\n"), said.err
    assert {path.name for path in folder.iterdir()} == set(before)
    for own, picture in pictures.items():
        found = Packet(read_embedded(picture).packet or b"", own).items("digiKam:TagsList")
        assert found == [*(["Oma"] if own != "nothing" else []), "birds/heron", "dog"]
        assert picture.stat().st_mtime_ns == 10**18
        assert Image.open(picture).convert("RGB").tobytes() == pixels[picture]
    assert cli("write", "tags.csv", folder, "--embed").out.startswith(f"{folder}: 0 files written")
    assert cli("write", folder, "--undo", "--embed").code == 0
    assert hashes(folder) == before


@needs_exiftool
@pytest.mark.slow
@pytest.mark.processes
def test_what_exiftool_could_not_take_back_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(Path(__file__).parents[1] / "data" / "upright.heic", folder / "a.heic")
    draw(3, "dog").save(folder / "b.jpg")
    Path("tags.csv").write_text("image,tags\na.heic,dog\nb.jpg,dog\n")
    before = hashes(folder)
    said = cli("write", "tags.csv", folder, "--embed")
    assert (said.code, "a.heic could not be taken back to the byte" in said.err) == (1, True)
    assert hashes(folder)["a.heic"] == before["a.heic"]
    assert hashes(folder)["b.jpg"] != before["b.jpg"]


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9.jpg"), "line\nbreak.jpg"], ids=["no text", "two lines"])
def test_a_name_that_exiftool_cannot_be_told_is_refused(
    album: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    try:
        (album / "a.jpg").rename(album / name)
    except OSError:
        pytest.skip("no file can be called so here")
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, b"", b"K\xf6ln"))
    wanted = Wanted.among(["dog"])(["dog"])
    rows = [(each, album / each, wanted) for each in (name, "c.webp")]
    failures = write_tags(album, rows, 2, Options(embed=True)).failures
    assert failures[name].endswith(" in its name; rename it")
    assert "K�ln" in failures["c.webp"], "a message in another encoding is no traceback"


@needs_exiftool
@pytest.mark.slow
@pytest.mark.processes
def test_a_picture_whose_tags_could_not_be_found_again_stays_and_each_is_told_its_own_reason(
    cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    draw(3, "dog").save(folder / "a.gif", loop=0)  # Pillow reads no XMP of a GIF
    draw(3, "dog").save(folder / "b.bmp")  # which exiftool does not write, and says so without a name
    draw(3, "dog").save(folder / "c.jpg", "PNG")
    Path("tags.csv").write_text("image,tags\na.gif,dog\nb.bmp,dog\nc.jpg,dog\n")
    before = hashes(folder)
    said = cli("write", "tags.csv", folder, "--embed")
    assert said.code == 1
    reasons = [line for line in said.err.splitlines() if line.startswith("fewtag: ")]
    assert "a.gif could not be found again" in reasons[0]
    assert "b.bmp (this version of it writes no such files)" in reasons[1]
    assert "c.jpg (Error: Not a valid JPG" in reasons[2]
    assert hashes(folder) == before


def test_folders_that_contain_themselves_end(cli: Cli, album: Path) -> None:
    for number in range(9):
        (album / "sub" / f"round{number}").symlink_to(album)
    assert cli("write", "tags.csv", album).code == 0
    (album / "sub" / ".a.jpg.xmp.7.fewtag-part").write_text("left by a kill")
    assert cli("write", album, "--undo").code == 0
    assert not [*album.rglob("*.xmp"), *album.rglob("*fewtag-part*")]


def test_a_picture_under_two_names_is_written_once(cli: Cli, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.interop.write._AT_ONCE", 1)  # as if there were many between the two
    (album / "best").symlink_to(album / "sub")
    Path("tags.csv").write_text("image,tags\nbest/ä b.png,cat\nsub/ä b.png,cat\n")
    for written in (1, 0):
        report = json.loads(cli("write", "tags.csv", album, "--json").out)
        assert (report["pictures"], report["written"], report["failures"]) == (1, written, {})
    assert [path.name for path in (album / "sub").glob("*.xmp")] == ["ä b.png.xmp"]
    report = json.loads(cli("write", album, "--undo", "--json").out)
    assert (report["removed"], report["failures"]) == (1, {})


def test_embedding_without_exiftool_is_refused_with_what_to_install(
    cli: Cli, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    before = hashes(album)
    said = cli("write", "tags.csv", album, "--embed")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "exiftool, which is not installed" in said.err
    assert hashes(album) == before
