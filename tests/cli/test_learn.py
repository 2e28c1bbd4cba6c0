"""`fewtag learn`: tables as people write them, a folder per label, pictures with --label."""

import gzip
import io
import json
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from PIL import Image
from tiny import draw

from fewtag.cli import banks
from fewtag.tagger.model import Model
from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Six pictures: dogs, cats and sofas."""
    folder = tmp_path / "album"
    folder.mkdir()
    for number, label in enumerate(["dog", "cat", "sofa"] * 2):
        draw(number, label).save(folder / f"{label}{number}.png")
    return folder


@pytest.fixture
def learn(cli: Cli, tiny_model: Path) -> Cli:
    """learn(table) makes new.fewtag."""
    return lambda *arguments: cli("learn", "new.fewtag", *arguments, "--model", tiny_model)


def known(bank: Path | str = "new.fewtag") -> dict[str, int]:
    """How many examples of each label a bank has."""
    return dict(Tagger.load(bank).counts_)


def refused(said: Any, sentence: str) -> bool:
    """One sentence on standard error, after bars at most."""
    last = said.err.rstrip("\n").split("\n")[-1]
    assert last.startswith("fewtag: "), said.err
    assert sentence in last
    return said.code == 2 and said.out == "" and "Traceback" not in said.err


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


ROWS = [("dog0.png", "dog"), ("cat1.png", "cat"), ("dog3.png", "dog;sofa")]
PLAIN = "image,labels\n" + "".join(f"{image},{labels}\n" for image, labels in ROWS)
TABLES = {
    "plain": PLAIN.encode(),
    "semicolons, as Excel has them": b'image;labels\r\ndog0.png;dog\r\ncat1.png;cat\r\ndog3.png;"dog;sofa"\r\n',
    "capital letters": PLAIN.replace("image,labels", "Image,Labels").encode(),
    "blanks in the header": PLAIN.replace("image,labels", "image, labels").encode(),
    "one label": PLAIN.replace("image,labels", "image,label").encode(),
    "another word for image": PLAIN.replace("image,", "filename,").encode(),
    "more columns": PLAIN.replace("\n", ",x\n").replace("labels,x", "labels,note").encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "a separator that Excel is told": b'sep=;\nimage;labels\ndog0.png;dog\ncat1.png;cat\ndog3.png;"dog;sofa"\n',
    "empty lines first": b"\r\n\n" + PLAIN.encode(),
    "UTF-16": PLAIN.replace(",", "\t").encode("utf-16"),
    "tabs": PLAIN.replace(",", "\t").encode(),
    "old Mac": PLAIN.encode().replace(b"\n", b"\r\n"),
    "backslashes": PLAIN.replace("dog0", ".\\dog0").encode(),
    "a line for each label": b"image,labels\ndog0.png,dog\ndog3.png,dog\ncat1.png,cat\n./dog3.png,sofa\ndog0.png,dog\n",
    "lines of nothing": PLAIN.encode() + b",\n\n , \n",
    "a spare separator": PLAIN.replace("sofa", "sofa; ").encode(),
    "a column for each label": b"image,cat,dog,sofa,cow\ndog0.png,,1,,0\ncat1.png,x,,,no\ndog3.png,,true,1.0,\n",
}
COLUMNS = ["File Name,Class", "file_path,category", "SourceFile,Keywords", "IMAGE_ID,class_name", "Photo,Species"]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_read_as_it_was_meant(learn: Cli, album: Path, kind: str) -> None:
    (album / "labels.csv").write_bytes(TABLES[kind])
    said = learn(album / "labels.csv")
    assert (said.code, said.out) == (0, "new.fewtag: 3 pictures learnt; 3 labels, 3 of them new\n"), said.err
    assert known() == {"cat": 1, "dog": 2, "sofa": 1}


def test_a_column_for_a_label_is_one_label_whatever_is_in_its_name(learn: Cli, album: Path) -> None:
    (album / "labels.tsv").write_text("image\ttench, Tinca tinca\tdog\t\t\ndog0.png\t1\t0\t\t\ncat1.png\t\tx\t\t\n")
    assert learn(album / "labels.tsv").code == 0
    assert known() == {"tench, Tinca tinca": 1, "dog": 1}


@pytest.mark.parametrize("columns", COLUMNS)
def test_columns_are_known_by_the_names_that_people_give_them(learn: Cli, album: Path, columns: str) -> None:
    (album / "labels.csv").write_text(PLAIN.replace("image,labels", columns))
    lines = [json.dumps(dict(zip(columns.split(","), row, strict=True))) for row in ROWS]
    (album / "labels.jsonl").write_text("\n".join(lines))
    for name in ("labels.csv", "labels.jsonl"):
        said = learn(album / name)
        assert (said.code, known()) == (0, {"cat": 1, "dog": 2, "sofa": 1}), said.err


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_table_with_a_line_for_each_label_teaches_what_one_with_a_line_a_picture_does(
    learn: Cli, album: Path, ending: str
) -> None:
    """With --complete, too: what none of a picture's lines names is absent."""
    several, one = album / f"several.{ending}", album / f"one.{ending}"
    rows = [("dog0.png", ["dog"]), ("dog3.png", ["dog", "sofa", "!cat"]), ("cat1.png", ["cat"])]
    for table, said in ((one, rows), (several, [(image, [name]) for image, names in rows for name in names])):
        lines = [f"{image},{';'.join(names)}" for image, names in said]
        if ending == "jsonl":
            lines = [json.dumps({"image": image, "labels": names}) for image, names in said]
        table.write_text("\n".join([*(["image,labels"] if ending == "csv" else []), *lines]))
    banks = []
    for table in (one, several):
        Path("new.fewtag").unlink(missing_ok=True)
        assert learn(table, "--complete").out == "new.fewtag: 3 pictures learnt; 3 labels, 3 of them new\n"
        banks.append(Path("new.fewtag").read_bytes())
    assert banks[0] == banks[1]
    assert (known(), absents()) == ({"cat": 1, "dog": 2, "sofa": 1}, {"cat": 1})


def test_a_table_of_timelapse_has_folder_and_file_apart(learn: Cli, album: Path) -> None:
    (album / "site 1/cam2").mkdir(parents=True)
    (album / "cat1.png").rename(album / "site 1/cam2/cat1.png")
    (album / "labels.csv").write_text(
        "RootFolder,File,RelativePath,Species\nx,dog0.png,,dog\nx,cat1.png,site 1\\cam2,cat\nx,dog3.png,,dog\n"
    )
    said = learn(album / "labels.csv")
    assert (said.code, known()) == (0, {"cat": 1, "dog": 2}), said.err


def test_a_column_for_each_label_says_what_pictures_do_not_show(learn: Cli, album: Path) -> None:
    """A label that no picture shows is left out: nothing is known of it."""
    (album / "labels.csv").write_text("filename;dog;cat;cow\ndog0.png;1;0;0\ncat1.png;0;1;0\nsofa2.png;0;;0\n")
    said = learn(album / "labels.csv")
    assert (said.code, known(), absents()) == (0, {"cat": 1, "dog": 1}, {"cat": 1, "dog": 2}), said.err


def test_several_labels_that_became_one_by_a_comma_are_told_of(learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_text('image,labels\ndog0.png,"dog, sofa"\ndog3.png,"dog, cat"\ncat1.png,cat\n')
    said = learn(album / "labels.csv")
    assert said.code == 0
    assert "'dog, cat' is one label (2 names with a comma); several are joined by \";\"" in said.err


def test_packed_tables_and_tabs_by_their_ending(learn: Cli, album: Path) -> None:
    (album / "labels.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    (album / "more.tsv").write_text("image\tlabels\nsofa2.png\tsofa,cat\n")
    assert learn(album / "labels.csv.gz", album / "more.tsv").code == 0
    assert known() == {"cat": 2, "dog": 2, "sofa": 2}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "image,labels,labels\ndog0.png,dog,cat\n",
            "2 columns for the labels, 'labels' and 'labels'; keep one of them",
        ),
        ("image,tags,Labels\ndog0.png,dog,cat\n", "2 columns for the labels, 'tags' and 'Labels'; keep one of them"),
        ("path,file,tags\n.,dog0.png,dog\n", "has 2 columns for the image, 'path' and 'file'; keep one of them"),
        ('image,labels\ndog0.png,"dog,cat"\n', 'several labels are joined by ";", as in "dog;sofa"'),
        ("image,labels\ndog0.png,dog|cat\n", "line 2: label 'dog|cat' contains \"|\"; several labels are joined by"),
        ("image,dog,cat\ndog0.png,1,0\ncat1.png,0,?\n", "a column of 1 and 0, which 'cat' is not: line 3 has '?'"),
        ("image,dog,dog\ndog0.png,1,0\n", "has two columns 'dog'; keep one of them"),
        ("image,a;b\ndog0.png,1\n", "line 2: label 'a;b' contains \";\", which separates labels"),
        ("image,!dog\ndog0.png,1\n", "has a column '!dog', which no label is called"),
        ("image\ndog0.png\n", "call one so, or add it, with a picture's labels joined by"),
        ("dog0.png,dog\n", "labels.csv names a picture, not its columns; put a line image,labels above it"),
        ("image,labels\ndog0.png,dog,cat\n", 'line 2 has 3 cells, the header 2; several labels are joined by ";"'),
        ("name,labels\ndog0.png,dog\n", "lacks the column 'image': its header has 'name', 'labels'"),
        ("image,labels\n", "has a header and no row"),
        ("image,labels\n,dog\n", "line 2 names no image"),
        ("image,labels\ndog0.png,\n", "no row of"),
        ("image,labels\ndog0.png,dog;;cat\n", "line 2 has an empty label in 'dog;;cat'"),
        ("image;labels\ndog0.png;dog;cat\n", 'several labels are joined by ";" and in quotes, as in "dog;sofa"'),
        (
            "image,labels\ndog0.png,dog\ndog0.png,cat\n./dog0.png,!dog\n",
            "says in line 2 that 'dog0.png' shows 'dog' and in line 4 that it does not; choose",
        ),
        ("image,labels\nhttps://example.com/a.jpg,dog\n", "names an address, 'https://example.com/a.jpg'"),
    ],
)
def test_what_a_table_cannot_mean_is_one_sentence(learn: Cli, album: Path, content: str, sentence: str) -> None:
    (album / "labels.csv").write_text(content)
    assert refused(learn(album / "labels.csv"), sentence)
    assert not Path("new.fewtag").exists()


def test_text_of_another_encoding_is_refused(learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_bytes(b"image,labels\ndog0.png,L\xf6ffel\n")
    assert refused(learn(album / "labels.csv"), 'is not UTF-8 text; save it as UTF-8 (in Excel as "CSV UTF-8")')


def test_labels_that_differ_in_case_alone_are_told_of(learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_text("image,labels\ndog0.png,Dog\ndog3.png,dog\n")
    said = learn(album / "labels.csv")
    assert (said.code, "'Dog' and 'dog' are two labels, which differ in case alone" in said.err) == (0, True)


def test_a_folder_per_label_with_folders_of_its_own(learn: Cli, album: Path) -> None:
    for name in ("dog/dog0.png", "dog/2021/may/dog3.png", "cat/cat1.png", "cat/dog0.png"):
        Path("sorted", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(album / Path(name).name, Path("sorted", name))
    said = learn("sorted")
    assert said.out == "new.fewtag: 3 pictures learnt; 2 labels, 2 of them new\n"
    assert known() == {"cat": 2, "dog": 2}, "a picture in two folders shows both"
    for other in ("__MACOSX/dog/._dog0.png", "@eaDir/dog0.png"):
        Path("sorted", other).parent.mkdir(parents=True)
        shutil.copy(album / "dog0.png", Path("sorted", other))
    assert learn("sorted").code == 0
    assert known() == {"cat": 2, "dog": 2}, "an archive's or a device's own folder is no label"
    Path("sorted/empty").mkdir()
    assert refused(learn("sorted"), "label 'empty' has no image")
    Path("sorted/empty").rmdir()
    shutil.copy(album / "dog0.png", "sorted")
    assert refused(learn("sorted"), "1 images lie in sorted itself, the first is 'dog0.png'")


def test_the_parts_of_a_data_set_are_no_labels(learn: Cli, album: Path) -> None:
    for name in ("train/dog/dog0.png", "train/cat/cat1.png", "valid/dog/dog3.png"):
        Path("set", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(album / Path(name).name, Path("set", name))
    part = Path("set/train")
    assert refused(learn("set"), f"set holds the parts of a data set; give the one to take, such as {part}")
    assert learn(part).code == 0
    assert known() == {"cat": 1, "dog": 1}
    Path("toys/train").mkdir(parents=True)
    shutil.copy(album / "sofa2.png", "toys/train")
    assert learn("toys").code == 0
    assert known() == {"cat": 1, "dog": 1, "train": 1}, "a train may be one on rails"


def test_pictures_that_are_not_read_for_their_kind_are_refused_by_name(learn: Cli, album: Path) -> None:
    Path("sorted/dog").mkdir(parents=True)
    shutil.copy(album / "dog0.png", "sorted/dog")
    Path("sorted/dog/raw.CR2").write_bytes(b"raw")
    assert refused(learn("sorted"), "raw.CR2 is of a kind that is not read (.cr2)")
    assert refused(learn("sorted/dog/raw.CR2", "--label", "dog"), "raw.CR2 is of a kind that is not read (.cr2)")
    assert learn("sorted", "--skip-bad").code == 0


def test_a_raw_file_beside_its_picture_is_one_with_it(learn: Cli, album: Path) -> None:
    Path("sorted/dog").mkdir(parents=True)
    shutil.copy(album / "dog0.png", "sorted/dog")
    Path("sorted/dog/dog0.CR2").write_bytes(b"raw")
    assert learn("sorted").code == 0


def test_pictures_by_path_with_one_label_or_several(learn: Cli, album: Path) -> None:
    assert learn(album / "dog0.png", album / "dog3.png", "--label", "dog", "--label", "pet").code == 0
    assert learn(album, "--label", "thing").code == 0
    assert known() == {"dog": 2, "pet": 2, "thing": 6}
    assert refused(learn(album / "dog0.png"), "nothing says what it shows; to learn it, add --label NAME")
    for several in ("dog;cat", "dog,cat", "dog|cat"):
        told = f"{several!r} looks like several labels; give each by itself: --label dog --label sofa"
        assert refused(learn(album / "dog0.png", "--label", several), told)
    assert refused(learn("gone.png", "--label", "dog"), "there is no table, folder or picture gone.png")


def test_a_slip_in_a_table_is_told_with_its_line_before_the_model_is_looked_for(learn: Cli, album: Path) -> None:
    (album / "slip.csv").write_text('image,labels\ndog0.png,dog\ncat1.png,"cat,sofa"\n')
    assert refused(learn(album / "slip.csv", "--model", "gone"), "slip.csv line 3: label 'cat,sofa' contains a comma")
    (album / "slip.xlsx").write_bytes(b"PK")
    assert refused(learn(album / "slip.xlsx", "--model", "gone"), "save it as CSV")


def test_words_that_are_not_there_are_missed_before_a_picture_is_read(learn: Cli, album: Path) -> None:
    (album / "bad.png").write_bytes(b"no picture")
    sentence = "there is no file of word vectors 'gone.txt'"
    assert refused(learn(album / "bad.png", "--label", "dog", "--words", "gone.txt"), sentence)


def test_a_path_of_labels_is_one_however_it_is_written(learn: Cli, album: Path) -> None:
    for number, name in ((0, "pets/dog"), (3, " pets / dog/")):
        assert learn(album / f"dog{number}.png", "--label", name).code == 0
    assert known() == {"pets/dog": 2}


def test_a_bank_that_stands_where_the_examples_do_is_told_so(cli: Cli, bank: Path, album: Path) -> None:
    told = f"{bank} is a bank, which comes before the examples; change the order"
    assert refused(cli("learn", album / "dog0.png", bank, "--label", "dog"), told)
    assert refused(cli("check", "truth.csv", bank), told)
    for first in (album / "dog0.png", "new.jpg"):
        said = cli("learn", first, album / "dog3.png", "--label", "dog")
        assert refused(said, f"{first} is a picture's name, and the bank comes before the examples: fewtag learn")
    assert not Path("new.jpg").exists()


def test_a_root_of_the_tables_paths(learn: Cli, album: Path) -> None:
    Path("labels.csv").write_text(PLAIN)
    assert refused(learn("labels.csv"), "dog0.png: there is no such file")
    assert learn("labels.csv", "--root", album).code == 0
    assert known() == {"cat": 1, "dog": 2, "sofa": 1}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_of_a_table_that_tag_wrote_the_rows_are_learnt_that_a_person_changed(
    cli: Cli, bank: Path, album: Path, ending: str
) -> None:
    """Others are the tagger's own guesses, until somebody says that they were looked at."""
    table = Path("elsewhere", f"tags.{ending}")
    table.parent.mkdir()
    assert cli("tag", bank, album, "--out", table, "--scores").code == 0
    assert refused(cli("learn", bank, table), "nothing but 6 rows as `fewtag tag` wrote them")
    assert refused(cli("check", bank, table), "nothing but 6 rows as `fewtag tag` wrote them")
    assert cli("check", bank, table, "--all-rows").code == 0
    _mend(table)
    checked = cli("check", bank, table, "--json")
    assert (checked.code, json.loads(checked.out)["pictures"]) == (0, 1), "its own guesses are no truth"
    assert checked.err.startswith("fewtag: left out 5 rows as `fewtag tag` wrote them; --all-rows")
    assert json.loads(cli("check", bank, table, "--all-rows", "--json").out)["pictures"] == 6
    said = cli("learn", bank, table)
    assert said.out == f"{bank}: 1 picture learnt; 4 labels, 1 of them new\n"
    assert said.err.startswith("fewtag: left out 5 rows as `fewtag tag` wrote them; --all-rows")
    assert known(bank)["tiger"] == 1
    assert cli("learn", bank, table, "--complete").out == f"{bank}: 1 picture learnt; 4 labels, 0 of them new\n"
    assert cli("learn", bank, table, "--all-rows").out == f"{bank}: 6 pictures learnt; 4 labels, 0 of them new\n"
    assert cli("tag", bank, album, "--out", table).code == 2, "and is not overwritten"


def test_a_tag_that_a_person_took_out_of_a_table_of_tags_is_a_no(cli: Cli, bank: Path, album: Path) -> None:
    """Unless the bank does not know the label: nobody has written that it is absent."""
    assert cli("tag", bank, album, "--out", "tags.csv").code == 0
    written = Path("tags.csv").read_text()
    assert "cat1.png,cat\n" in written
    Path("tags.csv").write_text(written.replace("cat1.png,cat\n", "cat1.png,cat;!sofa\n"))
    assert cli("learn", shutil.copy(bank, "copy.fewtag"), "tags.csv").out.startswith("copy.fewtag: 1 picture learnt;")
    Path("tags.csv").write_text(written.replace("cat1.png,cat\n", "cat1.png,\n"))
    said = cli("learn", bank, "tags.csv")
    assert said.out == f"{bank}: 1 picture learnt; 3 labels, 0 of them new\n"
    assert "1 tag of `tag` that you took out: learnt as a 'no'" in said.err
    Path("tags.csv").write_text(written.replace("cat1.png,cat\n", "cat1.png,Cat\n"))
    assert "took out" not in cli("learn", shutil.copy(bank, "copy.fewtag"), "tags.csv").err
    assert Tagger.load(bank).predict(album / "cat1.png") == [()]
    assert cli("check", bank, "tags.csv", "--root", album, "--all-rows").code == 0


@pytest.mark.parametrize("labels", [{"dog": 1, "cat": 0}, [{"label": "dog"}], [None]])
@pytest.mark.parametrize("column", ["labels", "absent"])
def test_labels_that_are_no_list_of_names_are_refused(cli: Cli, bank: Path, labels: Any, column: str) -> None:
    """Of a mapping all would be learnt, those too that are not shown."""
    Path("rows.jsonl").write_text(json.dumps({"image": "album/dog0.png", "labels": ["dog"]} | {column: labels}))
    assert refused(cli("learn", bank, "rows.jsonl"), "rows.jsonl line 1 has labels that are no list of names")


def test_labels_that_another_process_taught_meanwhile_are_not_told_as_new(
    cli: Cli, bank: Path, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taught_by_two(tagger: Tagger, *arguments: Any, **options: Any) -> None:
        Tagger.load(bank).define("zebra").save(bank)
        teach(tagger, *arguments, **options)

    teach = banks.teach
    monkeypatch.setattr(banks, "teach", taught_by_two)
    said = cli("learn", bank, album / "dog0.png", "--label", "tiger", "--json")
    assert json.loads(said.out)["new"] == ["tiger"]
    assert {"tiger", "zebra"} <= set(known(bank))


def test_rows_whose_accents_a_program_spelt_otherwise_are_as_tag_wrote_them(cli: Cli, bank: Path, album: Path) -> None:
    for number in (1, 4):
        (album / f"cat{number}.png").rename(album / unicodedata.normalize("NFD", f"é{number}.png"))
    assert cli("tag", bank, album, "--out", "tags.csv").code == 0
    written = unicodedata.normalize("NFC", Path("tags.csv").read_text("utf-8"))
    assert "é1.png,cat\n" in written
    Path("tags.csv").write_text(written.replace("é1.png,cat\n", "é1.png,\n"), "utf-8")
    said = cli("learn", bank, "tags.csv")
    assert said.out.startswith(f"{bank}: 1 picture learnt;")
    assert "1 tag of `tag` that you took out: learnt as a 'no'" in said.err


def test_tags_that_a_spreadsheet_opened_in_a_wrong_encoding_are_not_learnt(cli: Cli, bank: Path, album: Path) -> None:
    """Else each would be a new label, and the true one taken out."""
    Tagger.load(bank).rename("cat", "Kätzchen").save(bank)
    assert cli("tag", bank, album, "--out", "tags.csv").code == 0
    table = Path("tags.csv")
    table.write_bytes(table.read_bytes().decode("cp1252").encode("utf-8-sig"))
    said = cli("learn", bank, table)
    assert refused(
        said, "tags.csv line 2 has 'KÃ¤tzchen', which is 'Kätzchen' opened in a wrong encoding; open the table"
    )


def test_a_tag_that_was_taken_out_says_nothing_to_a_bank_without_that_label(
    cli: Cli, bank: Path, album: Path, tiny_model: str
) -> None:
    assert cli("tag", bank, album, "--out", "tags.csv").code == 0
    Path("tags.csv").write_text(Path("tags.csv").read_text().replace("cat1.png,cat\n", "cat1.png,tiger\n"))
    said = cli("learn", "other.fewtag", "tags.csv", "--model", tiny_model)
    assert said.out == "other.fewtag: 1 picture learnt; 1 label, 1 of them new\n"
    assert "took out" not in said.err


def _mend(table: Path) -> None:
    """One row says more, as a spreadsheet would save it: in another order, numbers otherwise."""
    if table.suffix == ".csv":
        header, first, *others = table.read_text().splitlines()
        assert first.startswith("cat1.png,cat,")
        rows = [first.replace(",cat,", ",tiger;cat,", 1), *others]
        lines = [header, *(re.sub(r"0+(?=,|$)", "", row) for row in reversed(rows))]
        table.write_text("\ufeff" + "\r\n".join(lines).replace(",", "\t"), newline="")
        return
    if table.suffix == ".jsonl":
        records = [json.loads(line) for line in table.read_text().splitlines()]
    else:
        records = pyarrow.parquet.read_table(table).to_pylist()
    assert records[0]["tags"] == ["cat"]
    records[0]["tags"] = ["tiger", "cat"]
    if table.suffix == ".jsonl":
        table.write_text("\n".join(map(json.dumps, records)))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), table)


def test_a_table_is_never_learnt_against_other_pictures_once_the_folder_has_moved(
    cli: Cli, bank: Path, album: Path
) -> None:
    Path("out").mkdir()
    assert cli("tag", bank, album, "--out", "out/tags.csv").code == 0
    draw(99, "sofa").save("dog0.png")  # beside the folder, of the same name
    album.rename("moved")
    said = cli("learn", bank, "out/tags.csv", "--all-rows")
    assert refused(said, "there is no such file")
    assert "--root names the folder of a table's pictures" in said.err
    assert cli("learn", bank, "out/tags.csv", "--all-rows", "--root", "moved").code == 0
    shutil.copy("out/tags.csv", "moved")
    shutil.copy("out/tags.csv.run.json", "moved")
    assert cli("learn", bank, "moved/tags.csv", "--all-rows").code == 0, "it went along"


def test_a_table_of_several_folders_is_learnt_from_where_it_was_tagged(
    cli: Cli, bank: Path, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out").mkdir()
    Path("more").mkdir()
    draw(99, "sofa").save("more/99.png")
    assert cli("tag", bank, album.name, "more", "--out", "out/tags.csv").code == 0
    table = Path("out/tags.csv").absolute()
    table.write_text("image,labels\nmore/99.png,couch\nalbum/dog0.png,puppy\n")
    monkeypatch.chdir("out")
    assert cli("learn", bank, table).code == 0
    assert (known(bank)["couch"], known(bank)["puppy"]) == (1, 1)


def test_options_that_would_say_nothing_are_refused(cli: Cli, bank: Path, album: Path) -> None:
    for name in ("set.json", "set.csv"):
        Path(name).write_text("[]")
        for option in ("--label", "--absent"):
            assert refused(cli("learn", bank, name, option, "dog"), f"{option} is for pictures")
    pictures = ((album / "dog0.png", "--label", "dog"), (album, "--label", "dog"), ("examples",))
    for given in pictures:
        assert refused(cli("learn", bank, *given, "--root", album), "--root is for a table, and none is learnt now")
        assert refused(cli("learn", bank, *given, "--all-rows"), "--all-rows is for a table")


def absents(bank: Path | str = "new.fewtag") -> dict[str, int]:
    """Of how many pictures someone said that they do not show each label."""
    return {label: count for label, count in Tagger.load(bank).absent_counts_.items() if count}


NOES = {
    "JSON lines": '{"file_name": "dog0.png", "labels": "dog;!cat"}\n{"image": "cat1.png", "tags": ["cat"]}\n\n'
    '{"image": "sofa2.png", "labels": ["!dog"], "absent": ["cat"]}\n',
    "a mark in the cell": "image,labels\ndog0.png,dog;!cat\ncat1.png,cat\nsofa2.png,!dog; ! cat\n",
    "a column": "image,labels,absent\ndog0.png,dog,cat\ncat1.png,cat,\nsofa2.png,,dog;cat\n",
    "a column of another case": "image,labels, Absent\ndog0.png,dog,cat\ncat1.png,cat,\nsofa2.png,,dog;cat\n",
    "both": "image,labels,absent\ndog0.png,dog;!cat,cat\ncat1.png,cat,\nsofa2.png,!dog,cat\n",
    "semicolons": 'image;labels;absent\ndog0.png;dog;cat\ncat1.png;cat;\nsofa2.png;;"dog;cat"\n',
    "tabs": "image\tlabels\tabsent\ndog0.png\tdog\tcat\ncat1.png\tcat\t\nsofa2.png\t\tdog;cat\n",
}


@pytest.mark.parametrize("kind", NOES)
def test_a_table_says_what_a_picture_does_not_show(learn: Cli, album: Path, kind: str) -> None:
    table = album / f"labels.{'jsonl' if kind == 'JSON lines' else 'csv'}"
    table.write_text(NOES[kind])
    said = learn(table)
    assert (said.code, said.out) == (0, "new.fewtag: 3 pictures learnt; 2 labels, 2 of them new\n"), said.err
    assert (known(), absents()) == ({"cat": 1, "dog": 1}, {"cat": 2, "dog": 1})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("image,labels\ndog0.png,dog;!dog\n", "line 2 says both that 'dog0.png' shows 'dog' and that it does not"),
        (
            "image,labels,absent\ndog0.png,dog,dog\n",
            "line 2 says both that 'dog0.png' shows 'dog' and that it does not",
        ),
        ("image,labels\ndog0.png,dog;!\n", "line 2 has an empty label in 'dog;!'"),
        ("image,labels,absent\ndog0.png,dog,!cat\n", "label '!cat' begins with \"!\""),
        ("image,labels\ndog0.png,!!cat\n", "label '!cat' begins with \"!\""),
        ("image,labels\ndog0.png,dog;!cta\n", "label 'cta' is said to be absent, but it is not known; known: 'dog'"),
    ],
)
def test_a_no_that_cannot_be_meant_is_one_sentence(learn: Cli, album: Path, content: str, sentence: str) -> None:
    (album / "labels.csv").write_text(content)
    said = learn(album / "labels.csv")
    assert refused(said, sentence)
    assert "--skip-bad" not in said.err, "that would not help"
    assert not Path("new.fewtag").exists()


def test_pictures_by_path_that_do_not_show_a_label(cli: Cli, bank: Path, album: Path) -> None:
    draw(77, "sofa").save(album / "other.png")
    before = known(bank)
    assert cli("learn", bank, album / "other.png", "--absent", "dog", "--absent", "cat").code == 0
    assert (known(bank), absents(bank)) == (before, {"cat": 1, "dog": 1})
    rows = json.loads(cli("labels", bank, "--json").out)
    assert [rows[label]["absent"] for label in ("cat", "dog", "sofa")] == [1, 1, 0]
    said = cli("learn", bank, album / "other.png", "--absent", "dgo")
    assert refused(said, "label 'dgo' is said to be absent, but it is not known; did you mean 'dog'?")
    assert refused(cli("learn", bank, album / "other.png", "--absent", "dog", "--label", "dog"), "and not to show it")
    assert cli("forget", bank, "dog", "--image", album / "other.png").code == 0
    assert absents(bank) == {"cat": 1}
    assert cli("forget", bank, "cat", "--example", "other.png").code == 0
    assert absents(bank) == {}


def test_in_a_complete_table_an_empty_row_shows_nothing(cli: Cli, learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_text("image,labels\ndog0.png,dog\ncat1.png,\nsofa2.png,\n")
    assert learn(album / "labels.csv").out == "new.fewtag: 1 picture learnt; 1 label, 1 of them new\n"
    assert learn(album / "labels.csv", "--complete").out == "new.fewtag: 3 pictures learnt; 1 label, 0 of them new\n"
    examples = Tagger.load("new.fewtag").bank_.examples.values()
    assert sorted((sorted(each.labels), each.complete) for each in examples) == [
        ([], True),
        ([], True),
        (["dog"], True),
    ]
    assert cli("learn", "new.fewtag", album / "sofa2.png", "--label", "sofa").code == 0
    said = Tagger.load("new.fewtag").bank_.fit_set("sofa")
    assert (len(said.yes), len(said.complete), len(said.unnamed)) == (1, 2, 0), "a label of the future"


def test_a_wrong_tag_in_a_table_that_tag_wrote_is_mended_by_a_mark(cli: Cli, bank: Path, album: Path) -> None:
    draw(0, "dog", "cat").save(album / "both.png")
    command = ("tag", bank, album, "--out", "tags.csv", "--scores", "--threshold", 0.02)
    assert cli(*command).code == 0
    lines = Path("tags.csv").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("both.png,")]
    cells = lines[number].split(",")
    assert "cat" in cells[1].split(";")
    cells[1] = ";".join(f"!{tag}" if tag == "cat" else tag for tag in cells[1].split(";"))
    Path("tags.csv").write_text("\n".join([lines[0], ",".join(cells)]) + "\n")
    assert cli("learn", bank, "tags.csv").code == 0
    assert absents(bank) == {"cat": 1}
    assert cli(*command, "--force").code == 0
    mended = {line.split(",")[0]: line.split(",") for line in Path("tags.csv").read_text().splitlines()}
    assert "cat" not in mended["both.png"][1].split(";"), "it is never given to this picture again"
    assert float(mended["both.png"][2]) == 0


def test_a_name_that_the_pictures_contradict_is_told_of(cli: Cli, learn: Cli, album: Path) -> None:
    said = learn(album / "dog0.png", album / "dog3.png", "--label", "dog")
    assert (said.code, "what its name suggests" in said.err) == (0, False)
    said = learn(*(album / f"sofa{number}.png" for number in (2, 5)), "--label", "cat")
    assert said.code == 0
    (line,) = [line for line in said.err.splitlines() if "what its name suggests" in line]
    trust = Tagger.load("new.fewtag").trusts_["cat"]
    assert trust < 0.5
    assert line == (
        "fewtag: the pictures of 'cat' do not look like what its name suggests, so the name counts for "
        f"{trust:.0%} of what it could; say what it is like: fewtag define new.fewtag cat --like WORDS, or --no-words"
    )
    assert cli("define", "new.fewtag", "cat", "--no-words").code == 0
    said = cli("learn", "new.fewtag", album / "cat1.png", "--label", "cat")
    assert "what its name suggests" not in said.err


def test_what_is_known_stays_and_labels_add_up(cli: Cli, album: Path, bank: Path) -> None:
    said = cli("learn", bank, album / "dog0.png", "--label", "pet", "--json")
    assert json.loads(said.out) == {"bank": str(bank), "pictures": 1, "skipped": 0, "new": ["pet"], "labels": 4}
    assert known(bank) == {"cat": 2, "dog": 2, "pet": 1, "sofa": 2}
    assert cli("learn", bank, album / "dog0.png", "--label", "animal").code == 0
    assert Tagger.load(bank).bank_.find("pet")


def test_learning_the_same_again_changes_no_byte(cli: Cli, bank: Path, tmp_path: Path) -> None:
    before = bank.read_bytes()
    for _ in range(3):
        assert cli("learn", bank, tmp_path / "examples").code == 0
        assert bank.read_bytes() == before


def test_more_examples_than_a_batch_keep_their_labels(learn: Cli, tmp_path: Path) -> None:
    rows = []
    for number in range(75):
        labels = [label for place, label in enumerate(["dog", "cat", "sofa"]) if (number % 7 + 1) >> place & 1]
        draw(number, *labels).save(tmp_path / f"{number}.png")
        rows.append((f"{number}.png", labels))
    (tmp_path / "40.png").write_bytes(b"no picture")
    text = "".join(f"{name},{';'.join(labels)}\n" for name, labels in rows)
    (tmp_path / "many.csv").write_text(f"image,labels\n{text}")
    assert learn(tmp_path / "many.csv", "--skip-bad").code == 0
    assert known() == Counter(label for name, labels in rows if name != "40.png" for label in labels)


@pytest.mark.parametrize("spoil", [truncate, Path.unlink])
def test_a_bad_picture_is_refused_by_name_and_changes_nothing(
    cli: Cli, learn: Cli, bank: Path, album: Path, spoil: Callable[[Path], object]
) -> None:
    (album / "labels.csv").write_text(PLAIN)
    before = bank.read_bytes()
    spoil(album / "cat1.png")
    assert refused(cli("learn", bank, album / "labels.csv"), "cat1.png")
    assert refused(learn(album / "labels.csv"), "--skip-bad leaves out what cannot be read)")
    assert bank.read_bytes() == before
    assert not Path("new.fewtag").exists()


def test_what_is_refused_leaves_no_folder_and_no_lock(cli: Cli, album: Path, tiny_model: Path) -> None:
    truncate(album / "cat1.png")
    said = cli("learn", "new/folder/b.fewtag", album / "cat1.png", "--label", "cat", "--model", tiny_model)
    assert refused(said, "cat1.png")
    assert not Path("new").exists()


def test_skip_bad_leaves_bad_pictures_out_and_names_and_counts_them(learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_text(PLAIN)
    truncate(album / "dog0.png")
    (album / "cat1.png").unlink()
    said = learn(album / "labels.csv", "--skip-bad")
    assert said.out == "new.fewtag: 1 picture learnt, 2 skipped; 2 labels, 2 of them new\n"
    skipped = [line for line in said.err.splitlines() if line.startswith("skipped: ")]
    assert ["dog0.png" in skipped[0], "cat1.png" in skipped[1]] == [True, True]
    assert known() == {"dog": 1, "sofa": 1}
    (album / "dog3.png").unlink()
    Path("new.fewtag").unlink()
    assert refused(learn(album / "labels.csv", "--skip-bad"), "there is no picture to learn from")
    assert not Path("new.fewtag").exists()


@pytest.mark.slow
def test_no_words_and_unknown_ones_mean_pictures_only(learn: Cli, album: Path) -> None:
    assert learn(album / "dog0.png", "--label", "Rex", "--no-words").code == 0
    said = learn(album / "cat1.png", "--label", "zzqxv flurbish")
    assert said.code == 0
    assert "label 'zzqxv flurbish' is no known word" in said.err
    meanings = {label: str(meaning) for label, meaning in Tagger.load("new.fewtag").definitions_.items()}
    assert meanings == {"Rex": "pictures only", "zzqxv flurbish": "pictures only"}


def test_names_of_other_languages_are_told_in_english(learn: Cli, album: Path) -> None:
    (album / "labels.csv").write_text("image,labels\ndog0.png,Hund;Tiere/狗;dog\n", encoding="utf-8")
    said = learn(album / "labels.csv")
    assert "read as English: Hund = dog, Tiere/狗 = dog; if one is wrong: fewtag define new.fewtag LABEL" in said.err
    assert "English" not in learn(album / "labels.csv").err, "they are known by now"


def test_hundreds_of_names_that_say_nothing_are_one_sentence(learn: Cli, album: Path) -> None:
    """Signs that are no letters are names, too."""
    for names, told in (
        ("🐶;zzqxv 1;zzqxv 2;zzqxv 3;狗", "labels 'zzqxv 1', 'zzqxv 2', 'zzqxv 3' and 1 other are no known words"),
        ("🐶", "label '🐶' is no known word: it is learnt from its pictures alone"),
    ):
        (album / "labels.csv").write_text(f"image,labels\ndog0.png,{names}\n")
        Path("new.fewtag").unlink(missing_ok=True)
        said = learn(album / "labels.csv")
        assert (said.code, said.err.count("no known word")) == (0, 1)
        assert told in said.err
        assert set(known()) == set(names.split(";"))


@pytest.mark.slow
def test_many_names_that_do_not_suit_their_pictures_are_not_told_one_by_one(
    learn: Cli, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewtag.cli.banks.DOUBTFUL", 1.1)
    monkeypatch.setattr("fewtag.cli.banks.MOST_TOLD", 1)
    (album / "labels.csv").write_text(PLAIN)
    said = learn(album / "labels.csv")
    assert said.err.count("do not look like what its name suggests") == 1
    assert "so it is with 2 other labels: fewtag labels new.fewtag shows how far each name is trusted" in said.err


def test_pictures_that_are_missing_are_counted_before_any_work(learn: Cli, cli: Cli, bank: Path, album: Path) -> None:
    (album / "dog0.png").rename(album / "Dog0.webp")
    (album / "sofa2.png").unlink()
    table = album / "labels.csv"
    table.write_text("image,labels\ncat1.png,cat\ndog0.png,dog\nsofa2.png,sofa\n")
    told = "dog0.png: there is no such file, but 'Dog0.webp', and 1 more of 3 pictures is missing; check the path ("
    assert refused(learn(table, "--model", "gone"), told)
    assert refused(cli("check", bank, table), told)
    assert learn(table, "--skip-bad").out.startswith("new.fewtag: 1 picture learnt, 2 skipped;")


def test_a_path_from_home_in_a_table(learn: Cli, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(album))
    monkeypatch.setenv("USERPROFILE", str(album))
    Path("labels.csv").write_text(PLAIN.replace("dog0", "~/dog0").replace("cat1", "~/cat1").replace("dog3", "~/dog3"))
    assert learn("labels.csv").code == 0
    assert known() == {"cat": 1, "dog": 2, "sofa": 1}


def test_no_pictures_keeps_no_copies_then_and_later(cli: Cli, learn: Cli, album: Path) -> None:
    assert learn(album / "dog0.png", "--label", "dog", "--no-pictures").code == 0
    assert cli("learn", "new.fewtag", album / "cat1.png", "--label", "cat").code == 0
    assert [example.picture for example in Tagger.load("new.fewtag").bank_.examples.values()] == [b"", b""]


def test_no_pictures_holds_for_these_pictures_where_others_have_copies(cli: Cli, learn: Cli, album: Path) -> None:
    assert learn(album / "dog0.png", "--label", "dog").code == 0
    assert cli("learn", "new.fewtag", album / "cat1.png", "--label", "cat", "--no-pictures").code == 0
    tagger = Tagger.load("new.fewtag")
    assert {name: bool(each.picture) for each in tagger.bank_.examples.values() for name in each.labels} == {
        "dog": True,
        "cat": False,
    }


def test_a_bank_that_cannot_be_written_is_found_out_before_the_work(
    cli: Cli, album: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "encode", lambda *_: pytest.fail("a picture went through the network"))
    Path("file").touch()
    said = cli("learn", "file/new.fewtag", album, "--label", "thing", "--model", tiny_model)
    assert refused(said, "cannot write file/new.fewtag: Not a directory")
    Path("folder.fewtag").mkdir()
    assert refused(cli("learn", "folder.fewtag", album, "--label", "thing"), "is a folder, not a bank")


def test_a_bank_keeps_its_model(cli: Cli, bank: Path, tiny_model: Path, tmp_path: Path) -> None:
    before = bank.read_bytes()
    words = tmp_path / "words.txt"
    words.write_text("dog 1 0 0\ncat 0 1 0\nsofa 0 0 1\n")
    said = cli("define", bank, "zebra", "--words", words)
    assert refused(said, f"bank {bank} was made with another model 'tiny'")
    assert bank.read_bytes() == before
    assert cli("define", bank, "zebra", "--model", tiny_model).code == 0


def test_the_small_copies_carry_no_metadata(learn: Cli, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (48.0, 8.0, 0.0)}  # where it was taken
    draw(0, "dog", size=(400, 300)).save(tmp_path / "dog.jpg", exif=exif, icc_profile=b"a profile of colours")
    assert learn("dog.jpg", "--label", "dog").code == 0
    (example,) = Tagger.load("new.fewtag").bank_.examples.values()
    with Image.open(io.BytesIO(example.picture)) as copy:
        assert (copy.size, copy.info.keys() & {"exif", "icc_profile", "xmp"}) == ((336, 252), set())


def test_a_pil_image_of_ones_own_is_left_as_it_was(tiny_model: Path) -> None:
    image = draw(0, "dog")
    image.info["mine"] = "kept"
    Tagger(str(tiny_model)).fit([image], [["dog"]]).predict(image)
    assert image.info == {"mine": "kept"}
