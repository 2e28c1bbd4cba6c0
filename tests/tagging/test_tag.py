"""`fewtag tag`: a row a picture, and failures beside it."""

import csv
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tiny import draw

from fewtag.errors import InputError
from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]
NAMES = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def left() -> list[str]:
    """What people see there."""
    return sorted(path.name for path in Path().iterdir() if path.is_file() and not path.name.startswith("."))


def test_a_row_a_picture_in_every_format(cli: Cli, bank: Path, photos: Path) -> None:
    tagger = Tagger.load(bank)
    tags = [list(found) for found in tagger.predict([photos / name for name in NAMES])]
    assert tags == [["dog"], ["cat"], ["dog", "sofa"], []], "else the test would not see an empty or a longer list"
    probabilities = tagger.predict_proba([photos / name for name in NAMES])
    scores = [dict(zip(tagger.classes_, row.tolist(), strict=True)) for row in probabilities]
    for name in ("tags.csv", "tags.jsonl", "new/tags.parquet"):
        assert cli("tag", bank, photos, "--out", name, "--scores").code == 0
    rows: list[dict[str, Any]] = read_csv("tags.csv")
    assert list(rows[0]) == ["image", "tags", "cat", "dog", "sofa"]
    assert [row["image"] for row in rows] == NAMES
    assert [row["tags"].split(";") if row["tags"] else [] for row in rows] == tags
    lines = [json.loads(line) for line in Path("tags.jsonl").read_text().splitlines()]
    table = pyarrow.parquet.read_table("new/tags.parquet").to_pylist()
    for found in (lines, table):
        assert [list(row) for row in found] == [["image", "tags", "scores"]] * 4
        assert [(row["image"], row["tags"]) for row in found] == list(zip(NAMES, tags, strict=True))
    csv_scores = [{label: float(row[label]) for label in tagger.classes_} for row in rows]
    for found in (csv_scores, [row["scores"] for row in lines], [row["scores"] for row in table]):
        for row, expected in zip(found, scores, strict=True):
            assert row == pytest.approx(expected, abs=2e-5)
            assert row == {label: round(value, 6) for label, value in row.items()}
    assert left() == ["pets.fewtag", "tags.csv", "tags.csv.run.json", "tags.jsonl", "tags.jsonl.run.json"]


def test_parquet_scores_are_a_struct_with_a_column_a_label(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos, "--out", "tags.parquet", "--scores").code == 0
    schema = pyarrow.parquet.read_schema("tags.parquet")
    assert [schema.field("scores").type.field(number).name for number in range(3)] == ["cat", "dog", "sofa"]
    assert pyarrow.parquet.read_table("tags.parquet").flatten().column_names[2:] == [
        "scores.cat",
        "scores.dog",
        "scores.sofa",
    ]


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
    assert {row["tags"] for row in read_csv("none.csv")} == {""}
    assert cli("tag", bank, photos, "--out", "tags.csv", "--threshold", "2").code == 2


def test_one_picture_may_be_tagged_and_the_table_may_lie_among_them(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos / "z.webp", "--out", "one.csv").code == 0
    assert [row["image"] for row in read_csv("one.csv")] == ["z.webp"]
    for _ in range(2):
        assert cli("tag", bank, photos, "--out", photos / "sub" / "tags.csv").code == 0
        assert [row["image"] for row in read_csv(photos / "sub" / "tags.csv")] == NAMES


def test_several_paths_are_named_as_they_were_given(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, "photos/sub", "photos/z.webp", photos / "b, c.png", "--out", "tags.csv").code == 0
    names = ['photos/sub/"q"\n.JPG', "photos/sub/deep/ä.png", "photos/z.webp", f"{photos}/b, c.png"]
    assert [row["image"] for row in read_csv("tags.csv")] == names
    assert cli("tag", bank, "photos/z.webp", "photos/z.webp", "--out", "once.csv").code == 0
    assert [row["image"] for row in read_csv("once.csv")] == ["photos/z.webp"]


def test_unreadable_pictures_are_listed_apart_and_the_exit_code_is_1(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / 'sub/"q"\n.JPG').write_bytes(b"no picture")
    (photos / "dangling.png").symlink_to("nowhere.png")
    shutil.copy(photos / "z.webp", os.fsencode(photos) + b"/z\xff.png")
    said = cli("tag", bank, photos, "--out", "tags.csv", "--json")
    assert said.code == 1
    summary = json.loads(said.out)
    assert summary.pop("seconds") >= 0
    assert summary.pop("startup_seconds") >= 0
    counts = {"pictures": 6, "tagged": 3, "failed": 3, "cached": 0, "out": "tags.csv"}
    assert summary == counts | {"workers": 1, "shards": 1, "finished_before": 0}
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
    assert left() == ["pets.fewtag", "tags.csv", "tags.csv.run.json"]


def test_kinds_that_are_not_read_are_failures_and_never_left_out(cli: Cli, bank: Path, photos: Path) -> None:
    shutil.copy(photos / "z.webp", photos / "no ending")
    for name in ("RAW_1.CR2", "scan.jp2", "drawing.eps"):
        (photos / name).write_bytes(b"of a kind of its own")
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 1
    assert [row["image"] for row in read_csv("tags.csv")] == ["b, c.png", "no ending", *NAMES[1:]]
    failures = {row["image"]: row["reason"] for row in read_csv("tags.csv.failures.csv")}
    assert list(failures) == ["RAW_1.CR2", "drawing.eps", "scan.jp2"]
    assert failures["RAW_1.CR2"].endswith("is of a kind that is not read (.cr2); convert it to JPEG")


def test_a_raw_file_beside_its_picture_is_no_failure(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "Z.CR2").write_bytes(b"of a kind of its own")
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    assert [row["image"] for row in read_csv("tags.csv")] == NAMES


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
def test_links_are_followed_but_not_in_circles_and_never_hang(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "sub" / "up").symlink_to("..")
    (photos / "again").symlink_to("sub/deep")
    (photos / "selfloop.jpg").symlink_to("selfloop.jpg")
    os.mkfifo(photos.parent / "pipe")
    (photos / "pipe.jpg").symlink_to("../pipe")
    (photos / "zero.jpg").symlink_to("/dev/zero")
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 1
    assert [row["image"] for row in read_csv("tags.csv")] == ["again/ä.png", *NAMES]
    failures = {row["image"]: row["reason"] for row in read_csv("tags.csv.failures.csv")}
    assert list(failures) == ["pipe.jpg", "selfloop.jpg", "zero.jpg"]
    assert "no regular file" in failures["pipe.jpg"]
    assert "no regular file" in failures["zero.jpg"]
    assert "Too many levels" in failures["selfloop.jpg"]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_read_is_one_failure(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "sub" / "deep").chmod(0)
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 1
    assert [row["image"] for row in read_csv("tags.csv.failures.csv")] == ["sub/deep/"]
    (photos / "sub" / "deep").chmod(0o755)


@pytest.mark.slow
def test_no_cell_is_a_formula_to_a_spreadsheet_and_learning_reads_the_same_names(
    cli: Cli, bank: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    names = ["+cmd.jpg", "-dash.jpg", "=1+1.jpg", "@SUM(A1).jpg", "\tcell.png", " lead.png"]
    for number, name in enumerate(names):
        draw(number, "dog").save(folder / name)
    (folder / "=broken.jpg").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="no known word"):
        Tagger.load(bank).rename("dog", "=cmd|' /C calc'!A0").save(bank)
    assert cli("tag", bank, folder, "--out", "tags.csv", "--scores").code == 1
    with Path("tags.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    with Path("tags.csv.failures.csv").open(encoding="utf-8", newline="") as file:
        cells += [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert sorted(row["image"] for row in read_csv("tags.csv")) == sorted(f"./{name}" for name in names)
    before = Tagger.load(bank).classes_
    assert "nothing but 6 rows" in cli("learn", bank, "tags.csv").err
    said = cli("learn", bank, "tags.csv", "--all-rows")
    assert (said.code, Tagger.load(bank).classes_) == (0, before), said.err


def test_to_the_terminal_without_a_table(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    before = left()
    said = cli("tag", bank, photos)
    assert said.code == 1
    lines = said.out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["b, c.png", 'sub/"q"�.JPG', "sub/deep/ä.png", "z.webp"]
    assert [line.partition(": ")[2].split(" ")[0] for line in lines] == ["dog", "cat", "dog", "–"]
    assert said.err.startswith("fewtag: image broken.jpg cannot be decoded")
    assert left() == before
    scored = cli("tag", bank, photos / "z.webp", "--scores")
    assert scored.out.startswith(f"{photos / 'z.webp'}: "), "as it was given, like one of several"
    assert sorted(part.split(" ")[0] for part in scored.out.strip().partition(": ")[2].split(", ")) == [
        "cat",
        "dog",
        "sofa",
    ]


def test_json_to_the_terminal_is_a_line_a_picture(cli: Cli, bank: Path, photos: Path) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    said = cli("tag", bank, photos, "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert (said.code, [row["image"] for row in rows]) == (1, ["b, c.png", "broken.jpg", *NAMES[1:]])
    assert set(rows[1]) == {"image", "failure"}
    assert rows[0]["tags"] == ["dog"]
    assert list(rows[0]["scores"]) == ["cat", "dog", "sofa"]


def test_nothing_in_a_name_steers_the_terminal(cli: Cli, bank: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    draw(0, "dog").save(folder / "a\x1b[31m\x07\u202egpj.png")
    (folder / "b\x1b]0;mine\x07.png").write_bytes(b"no picture")
    tagger = Tagger.load(bank)  # such names are refused now, and older banks have them
    named = tagger.bank_.rename({"dog": "hot\x1b[2J\x07dog"}, {})
    Tagger(tagger.model, bank=named).save(bank)
    skipping = "learn", bank, folder, "--label", "cat", "--skip-bad"
    explain = (
        "explain",
        bank,
        folder / "a\x1b[31m\x07\u202egpj.png",
        "--label",
        "hot\x1b[2J\x07dog",
        "--out",
        "heat.png",
    )
    forget = "forget", bank, "cat", "--image", folder / "a\x1b[31m\x07\u202egpj.png"
    listing = ("tag", bank, folder), ("labels", bank), ("examples", bank, "hot\x1b[2J\x07dog")
    for arguments in (*listing, skipping, explain, forget):
        said = cli(*arguments)
        assert said.code in {0, 1}, said.err
        assert "\x1b" not in said.out + said.err, arguments
        assert "\x07" not in said.out + said.err
        assert "\u202e" not in said.out + said.err
    said = cli("tag", bank, folder, "--out", "tags.csv")
    assert "\x1b[31m" not in said.out + said.err
    said = cli("learn", bank, folder, "--label", "cat")
    assert said.code == 2
    assert "\x1b" not in said.err
    assert cli("rename", bank, "hot\x1b[2J\x07dog", "dog").code == 0, "the way out"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gone", "--out", "tags.csv"), "there is no folder or picture gone"),
        (("empty", "--out", "tags.csv"), "empty: there is no picture (.avif, "),
        (("photos", "--out", "photos.csv"), "--out photos.csv is a folder"),
        (("photos", "--out", "pets.fewtag/tags.csv"), "cannot make the folder pets.fewtag"),
        (("photos", "--out", "tags.csv", "--engine", "spark"), "there is no engine 'spark'"),
        (("photos", "--out", "tags.csv", "--workers", "2"), "--workers is for --engine ray"),
        (("photos", "--engine", "ray"), "--engine ray needs --out"),
        (("photos", "--out", "-"), "leave --out out to have the rows in the terminal, with --json as JSON"),
        (("photos", "--out", "tags.json"), "--out tags.json ends in .json; name a table in .csv, .jsonl or .parquet"),
        (("photos", "--out", "tags.csv.gz"), "--out tags.csv.gz ends in .gz"),
        (("photos", "--out", "tags.txt"), "--out tags.txt ends in .txt"),
        (("photos", "--out", "tags.csv", "--device", "cdua"), "there is no device 'cdua'"),
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
    assert not list(Path().glob("tags*"))


def test_a_folder_of_parts_may_have_a_dot_in_its_name(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos, "--out", "tags.2026/").code == 0
    assert cli("tag", bank, photos, "--out", "tags.2026").code == 0, "it is there"
    assert len(list(Path("tags.2026").glob("part-*.parquet"))) == 1


@pytest.mark.parametrize("label", ["path", "File", "label", "species"])
def test_a_label_called_as_people_call_a_column_is_none_in_a_table_of_tags(
    cli: Cli, bank: Path, photos: Path, label: str
) -> None:
    Tagger.load(bank).define(label, words=False).partial_fit([draw(0, "ball")], [label]).save(bank)
    assert cli("tag", bank, photos, "--out", "tags.csv", "--scores").code == 0
    said = cli("learn", bank, "tags.csv", "--all-rows")
    assert (said.code, "labels, 0 of them new" in said.out) == (0, True), said.err


def test_a_label_called_image_cannot_be_a_column(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("define", bank, "image", "--like", "moon").code == 0
    said = cli("tag", bank, photos, "--out", "tags.csv", "--scores")
    assert (said.code, "label 'image' would be taken for the column of that name" in said.err) == (2, True)
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0


def test_labels_that_a_mended_table_would_take_for_a_no_need_another_format(cli: Cli, bank: Path, photos: Path) -> None:
    Tagger.load(bank).define("absent", like=["moon"]).save(bank)
    said = cli("tag", bank, photos, "--out", "tags.csv", "--scores")
    assert (said.code, "label 'absent' would be taken for the column of that name" in said.err) == (2, True)
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    for name, why in (("!moon", 'begins with "!"'), ("moon;ring", 'contains ";"')):
        with pytest.raises(InputError, match=why):
            Tagger.load(bank).define(name, like=["moon"])


def test_a_bank_without_labels_says_so(cli: Cli, tiny_model: Path, photos: Path) -> None:
    Tagger(str(tiny_model)).save("empty.fewtag")
    assert "0 labels" in cli("labels", "empty.fewtag").out
    said = cli("tag", "empty.fewtag", photos, "--out", "tags.csv")
    assert (said.code, "no label is known yet; learn one from a picture, or define one by its name" in said.err) == (
        2,
        True,
    )


def test_our_own_table_is_replaced_and_any_other_is_not_without_force(cli: Cli, bank: Path, photos: Path) -> None:
    command = ("tag", bank, photos, "--out", "tags.csv")
    assert cli(*command).code == 0
    assert cli(*command, "--scores").code == 0, "unchanged since we wrote it"
    written = Path("tags.csv").read_text()
    Path("tags.csv").write_text(written.replace("cat", "tiger"))
    said = cli(*command)
    sentence = "--out tags.csv exists and is not what fewtag wrote there; name another, or give --force"
    assert (said.code, sentence in said.err) == (2, True)
    assert "tiger" in Path("tags.csv").read_text()
    assert cli(*command, "--scores", "--force").code == 0
    assert Path("tags.csv").read_text() == written
    Path("mine.csv").write_text("somebody's own")
    assert cli("tag", bank, photos, "--out", "mine.csv").code == 2
    assert Path("mine.csv").read_text() == "somebody's own"


def test_a_table_of_another_folder_is_not_replaced_without_force(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    written = Path("tags.csv").read_bytes()
    said = cli("tag", bank, "examples", "--out", "tags.csv")
    assert (said.code, f"--out tags.csv is the table of another run, of {photos}; name another" in said.err) == (
        2,
        True,
    )
    assert Path("tags.csv").read_bytes() == written
    assert cli("define", bank, "moon").code == 0
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0, "the same folder, after teaching"
    assert cli("tag", bank, "examples", "--out", "tags.csv", "--force").code == 0
    assert Path("tags.csv").read_bytes() != written


def test_an_interrupted_run_says_that_the_same_command_goes_on_where_it_does(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    handlers: list[tuple[object, ...]] = []
    monkeypatch.setattr("signal.signal", lambda *given: handlers.append(given))
    monkeypatch.setattr("fewtag.tagging.run.finish_shards", interrupt)
    said = cli("tag", bank, photos, "--out", "tags.csv")
    assert (said.code, "run the same command again, and it goes on from here" in said.err) == (130, True)
    assert handlers == [(signal.SIGINT, signal.SIG_DFL)], "a second Ctrl-C ends it at once, without a traceback"
    monkeypatch.setattr("fewtag.tagger.stream.encode_examples", interrupt)
    monkeypatch.setattr("fewtag.tagging.check.tag_stream", interrupt)
    monkeypatch.setattr("fewtag.tagging.run.tag_stream", interrupt)
    for command in (("learn", bank, "examples"), ("check", bank, "examples"), ("tag", bank, photos)):
        before = bank.read_bytes()
        said = cli(*command)
        assert (said.code, said.err.splitlines()[-1]) == (130, "fewtag: stopped; nothing was changed")
        assert bank.read_bytes() == before
