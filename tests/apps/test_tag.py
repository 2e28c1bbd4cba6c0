"""`fewtag tag`: a row a picture, and failures beside it."""

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def left() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.is_file())


def test_a_row_a_picture_in_every_format(cli: Cli, bank: Path, photos: Path) -> None:
    tagger = Tagger.load(bank)
    tags = [list(found) for found in tagger.predict([photos / name for name in NAMES])]
    probabilities = tagger.predict_proba([photos / name for name in NAMES])
    scores = [dict(zip(tagger.classes_, row.tolist(), strict=True)) for row in probabilities]
    for name in ("tags.csv", "tags.jsonl", "new/tags.parquet"):
        assert cli("tag", bank, photos, "--out", name, "--scores").code == 0
    rows: list[dict[str, Any]] = read_csv("tags.csv")
    assert list(rows[0]) == ["image", "tags", "arrow", "heart", "moon"]
    assert [row["image"] for row in rows] == NAMES
    assert [row["tags"].split(";") for row in rows] == tags
    lines = [json.loads(line) for line in Path("tags.jsonl").read_text().splitlines()]
    table = pyarrow.parquet.read_table("new/tags.parquet").to_pylist(maps_as_pydicts="strict")
    for found in (lines, table):
        assert [list(row) for row in found] == [["image", "tags", "scores"]] * 4
        assert [(row["image"], row["tags"]) for row in found] == list(zip(NAMES, tags, strict=True))
    csv_scores = [{label: float(row[label]) for label in tagger.classes_} for row in rows]
    for found in (csv_scores, [row["scores"] for row in lines], [row["scores"] for row in table]):
        for row, expected in zip(found, scores, strict=True):
            assert row == pytest.approx(expected, abs=2e-5)
            assert row == {label: round(value, 6) for label, value in row.items()}
    assert left() == ["pets.fewtag", "tags.csv", "tags.jsonl"]


def test_without_scores_there_are_two_columns(cli: Cli, bank: Path, photos: Path) -> None:
    for name in ("tags.csv", "tags.jsonl", "tags.parquet"):
        assert cli("tag", bank, photos, "--out", name).code == 0
    assert list(read_csv("tags.csv")[0]) == ["image", "tags"]
    assert list(json.loads(Path("tags.jsonl").read_text().splitlines()[0])) == ["image", "tags"]
    assert pyarrow.parquet.read_schema("tags.parquet").names == ["image", "tags"]


def test_a_threshold_of_ones_own(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos, "--out", "all.jsonl", "--threshold", "0").code == 0
    assert {len(json.loads(line)["tags"]) for line in Path("all.jsonl").read_text().splitlines()} == {3}
    assert cli("tag", bank, photos, "--out", "none.csv", "--threshold", "1").code == 0
    assert cli("tag", bank, photos, "--out", "tags.csv", "--threshold", "2").code == 2


def test_one_picture_may_be_tagged_and_the_table_may_lie_among_them(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos / "z.webp", "--out", "one.csv").code == 0
    assert [row["image"] for row in read_csv("one.csv")] == ["z.webp"]
    for _ in range(2):
        assert cli("tag", bank, photos, "--out", photos / "sub" / "tags.csv").code == 0
        assert [row["image"] for row in read_csv(photos / "sub" / "tags.csv")] == NAMES


def test_unreadable_pictures_are_listed_apart_and_the_exit_code_is_1(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / 'sub/"q"\n.JPG').write_bytes(b"no picture")
    (photos / "dangling.png").symlink_to("nowhere.png")
    shutil.copy(photos / "z.webp", os.fsencode(photos) + b"/z\xff.png")
    said = cli("tag", bank, photos, "--out", "tags.csv", "--json")
    assert said.code == 1
    summary = json.loads(said.out)
    assert summary.pop("seconds") >= 0
    assert summary == {"pictures": 6, "tagged": 3, "failed": 3, "cached": 0, "out": "tags.csv"}
    assert said.err.splitlines()[-1] == "3 pictures could not be read: see tags.csv.failures.csv"
    assert [row["image"] for row in read_csv("tags.csv")] == ["b, c.png", "sub/deep/ä.png", "z.webp"]
    failures = {row["image"]: row["reason"] for row in read_csv("tags.csv.failures.csv")}
    assert list(failures) == ["dangling.png", 'sub/"q"\n.JPG', "z\\udcff.png"]
    assert "there is no such file" in failures["dangling.png"]
    assert "cannot be decoded" in failures['sub/"q"\n.JPG']
    assert "no UTF-8" in failures["z\\udcff.png"]
    for name in (b"dangling.png", b'sub/"q"\n.JPG', b"z\xff.png"):
        os.unlink(os.fsencode(photos) + b"/" + name)  # noqa: PTH108 — no Path of bytes
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    assert left() == ["pets.fewtag", "tags.csv"]


def test_links_are_followed_but_not_in_circles(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "sub" / "up").symlink_to("..")
    (photos / "again").symlink_to("sub/deep")
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    assert [row["image"] for row in read_csv("tags.csv")] == ["again/ä.png", *NAMES]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gone", "--out", "tags.csv"), "there is no folder or picture gone"),
        (("empty", "--out", "tags.csv"), "the folder empty holds no picture (.avif, "),
        (("photos", "--out", "tags.txt"), "--out tags.txt ends in none of .csv, .jsonl, .parquet"),
        (("photos", "--out", "photos.csv"), "--out photos.csv is a folder"),
        (("photos", "--out", "pets.fewtag/tags.csv"), "cannot make the folder pets.fewtag"),
    ],
)
@pytest.mark.usefixtures("photos")
def test_what_is_refused_leaves_nothing(cli: Cli, bank: Path, arguments: tuple[str, ...], sentence: str) -> None:
    Path("empty").mkdir()
    Path("photos.csv").mkdir()
    said = cli("tag", bank, *arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert sentence in said.err
    assert left() == ["pets.fewtag"]


def test_a_label_called_image_cannot_be_a_column(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("define", bank, "image", "--like", "moon").code == 0
    said = cli("tag", bank, photos, "--out", "tags.csv", "--scores")
    assert (said.code, "label 'image' would be a second column of that name" in said.err) == (2, True)
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0


def test_a_label_with_a_semicolon_from_python_needs_another_format(cli: Cli, bank: Path, photos: Path) -> None:
    Tagger.load(bank).define("moon;ring", like=["moon"]).save(bank)
    said = cli("tag", bank, photos, "--out", "tags.csv")
    assert (said.code, "label 'moon;ring' contains \";\"" in said.err) == (2, True)
    assert cli("tag", bank, photos, "--out", "tags.jsonl").code == 0
