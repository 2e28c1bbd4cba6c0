"""Deliveries: the tables of `fewtag tag`, with a person's word first."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from album import answer_page, digests, say
from tiny import draw

from fewtag.errors import InputError, MissingError
from fewtag.studio.studio import Studio


def read(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["image"]: [tag for tag in row["tags"].split(";") if tag] for row in csv.DictReader(file)}


def test_a_table_says_what_the_library_shows(studio: Studio) -> None:
    for label in ("dog", "cat"):
        studio.define(label)
        answer_page(studio, label, size=20)
    told: list[tuple[int, int]] = []
    delivery = studio.deliver("csv", progress=lambda done, total: told.append((done, total)))
    assert delivery.file is not None
    table = read(studio.delivery(delivery.file))
    shown = studio.search(limit=1000, stacked=False).pictures
    for cell in shown:
        assert set(table[cell.name]) == {tag.label for tag in cell.tags if tag.state != "no"}
    assert told[-1] == (120, 120)
    assert delivery.rows == 120


def test_a_persons_word_comes_first(studio: Studio) -> None:
    names = digests(studio)
    first, second, *_ = names
    studio.define("dog")
    studio.set_threshold("dog", 1.0)
    studio.answer([say(names[first], "dog", "yes"), say(names[second], "dog", "no")])
    delivery = studio.deliver("jsonl", scores=True)
    rows = [json.loads(line) for line in studio.delivery(str(delivery.file)).read_text().splitlines()]
    by_name = {row["image"]: row for row in rows}
    assert (by_name[first]["tags"], by_name[first]["scores"]) == (["dog"], {"dog": 1.0})
    assert (by_name[second]["tags"], by_name[second]["scores"]) == ([], {"dog": 0.0})
    studio.set_threshold("dog", 0.0)
    confirmed = studio.deliver("csv", confirmed_only=True)
    assert [name for name, tags in read(studio.delivery(str(confirmed.file))).items() if tags] == [first]


def test_a_dry_run_writes_nothing_and_counts_what_would_change(studio: Studio) -> None:
    studio.define("dog")
    dry = studio.deliver("csv", dry_run=True)
    assert (dry.changes, dry.file) == (120, None)
    assert not (studio.folder / "deliveries").exists()
    assert studio.deliver("csv").changes == 120
    assert studio.deliver("csv", dry_run=True).changes == 0
    with studio.project.writing() as connection:  # one that is not there any more
        connection.execute("INSERT INTO delivered VALUES ('csv', 'gone.png', '')")
    assert studio.deliver("csv", dry_run=True).changes == 1
    assert studio.deliver("csv").changes == 1
    studio.set_threshold("dog", studio.label("dog").threshold)
    before = studio.deliver("csv", dry_run=True, confirmed_only=True).changes
    refused = studio.search("dog").pictures[0]
    studio.answer([say(refused.digest, "dog", "yes")])
    assert studio.deliver("csv", dry_run=True, confirmed_only=True).changes == before - 1


def test_the_sample_of_a_dry_run_begins_with_what_is_tagged(studio: Studio) -> None:
    studio.define("dog")
    studio.set_threshold("dog", 1.0)
    names = digests(studio)
    last = max(names)
    studio.answer([say(names[last], "dog", "yes")])
    sample = studio.deliver("csv", dry_run=True).sample
    assert (sample[0]["image"], sample[0]["tags"]) == (last, ["dog"])
    assert len(sample) == 20


def test_a_delivery_that_is_stopped_leaves_nothing(studio: Studio) -> None:
    studio.define("dog")

    def stop(_done: int, _total: int) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        studio.deliver("csv", progress=stop)
    assert list((studio.folder / "deliveries").iterdir()) == []


def test_deliveries_that_begin_in_the_same_second_are_two_files(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda _form: "2026-01-01-000000")
    other: list[str] = []

    def begin_another(_done: int, _total: int) -> None:
        if not other:
            other.append("")
            other[0] = str(studio.deliver("csv").file)

    assert studio.deliver("csv", progress=begin_another).file not in other


def test_a_dry_run_takes_no_name(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda _form: "2026-01-01-000000")
    studio.deliver("jsonl", dry_run=True)
    assert studio.deliver("jsonl").file == "tags-2026-01-01-000000.jsonl"


def test_a_delivery_is_of_one_state_though_labels_and_folders_change_meanwhile(
    open_studio: Callable[..., Studio], album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = open_studio(album)
    picture = next(iter(digests(studio).values()))
    studio.teach("dog", [picture])
    made = studio.scorer

    def slowly(*of: Any) -> Any:
        found = made(*of)
        if studio.project.fold.get("dog"):
            draw(900, "sofa").save(album / "new.png")
            studio.rescan()
            assert studio.wait(300)
            studio.rename("dog", "hound")
        return found

    monkeypatch.setattr(studio, "scorer", slowly)
    delivery = studio.deliver("fiftyone")
    content = json.loads((studio.folder / "deliveries" / str(delivery.file) / "labels.json").read_text("utf-8"))
    assert (delivery.rows, content["classes"]) == (120, ["dog"])
    assert all(Path(path).is_file() for path in content["labels"])
    monkeypatch.undo()
    assert studio.deliver("csv", dry_run=True).rows == 121


def test_parquet_too(studio: Studio) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    studio.define("dog")
    delivery = studio.deliver("parquet", scores=True)
    table = parquet.read_table(studio.delivery(str(delivery.file)))
    assert table.num_rows == 120
    assert set(table.column_names) == {"image", "tags", "scores"}


def test_a_project_without_labels_delivers_its_pictures(studio: Studio) -> None:
    assert studio.deliver("csv").rows == 120


def test_two_folders_are_told_apart(open_studio: Callable[..., Studio], drawn_album: Path) -> None:
    studio = open_studio(drawn_album / "2023", drawn_album / "2024")
    names = set(digests(studio))
    assert {name.split("/")[0] for name in names} == {"2023", "2024"}
    delivery = studio.deliver("csv")
    assert set(read(studio.delivery(str(delivery.file)))) == names


@pytest.mark.parametrize("name", ["../studio.sqlite", "", ".", "tags.csv", "/etc/passwd"])
def test_a_delivery_is_known_by_its_name_alone(studio: Studio, name: str) -> None:
    studio.deliver("csv")
    with pytest.raises(MissingError):
        studio.delivery(name)


def test_other_formats_are_refused(studio: Studio) -> None:
    with pytest.raises(InputError, match="no format 'exe'"):
        studio.deliver("exe")


def test_sidecars_are_written_and_taken_back_to_the_byte(open_studio: Callable[..., Studio], album: Path) -> None:
    studio = open_studio(album)
    names = digests(studio)
    first = next(iter(names))
    own = album / f"{first}.xmp"
    own.write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag>'
        "<rdf:li>mine</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    before = {path: path.read_bytes() for path in album.rglob("*") if path.is_file()}
    studio.teach("animals/dog", [names[first]])
    dry = studio.deliver("xmp", confirmed_only=True, dry_run=True)
    assert (dry.changes, dry.rows) == (1, 120)
    assert "dog" in dry.sample[0]["diff"]
    assert (dry.sample[0]["added"], dry.sample[0]["removed"]) == (["animals/dog"], [])
    assert {path: path.read_bytes() for path in album.rglob("*") if path.is_file()} == before
    assert studio.deliver("xmp", confirmed_only=True).changes == 1
    assert b"mine" in own.read_bytes()
    assert b"dog" in own.read_bytes()
    assert studio.deliver("xmp", confirmed_only=True, dry_run=True).changes == 0
    studio.rename("animals/dog", "animals/hound")
    assert studio.deliver("xmp", confirmed_only=True).changes == 1
    assert (b"dog" in own.read_bytes(), b"hound" in own.read_bytes()) == (False, True)
    studio.forget("animals/hound")
    assert studio.deliver("xmp", confirmed_only=True).changes == 1
    assert (b"hound" in own.read_bytes(), b"mine" in own.read_bytes()) == (False, True)
    studio.undo()
    assert studio.deliver("xmp", confirmed_only=True).changes == 1
    assert studio.take_back_sidecars().changes == 1
    assert {path: path.read_bytes() for path in album.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_data_sets_of_other_programs_say_what_the_table_says(studio: Studio) -> None:
    studio.define("dog")
    answer_page(studio, "dog", size=20)
    table = read(studio.delivery(str(studio.deliver("csv").file)))
    paths = {name: studio.library.files_of[digest][0].path for name, digest in digests(studio).items()}

    def delivered(form: str, file: str, **options: bool) -> tuple[Path, Any]:
        dry = studio.deliver(form, dry_run=True, **options)
        assert (dry.rows, dry.changes, dry.file) == (120, 120, None)
        done = studio.deliver(form, **options)
        folder = studio.folder / "deliveries" / str(done.file)
        text = (folder / file).read_text()
        return folder, json.loads(text) if file.endswith(".json") else [json.loads(line) for line in text.splitlines()]

    coco = delivered("coco", "annotations.json")[1]
    names = {image["id"]: image["file_name"] for image in coco["images"]}
    assert sorted(names.values()) == sorted(table)
    assert {names[each["image_id"]] for each in coco["annotations"]} == {name for name, tags in table.items() if tags}
    fiftyone = delivered("fiftyone", "labels.json")[1]["labels"]
    assert {path: [each["label"] for each in labels] for path, labels in fiftyone.items()} == {
        paths[name]: tags for name, tags in table.items()
    }
    tasks = delivered("label-studio", "tasks.json", scores=True)[1]
    assert len(tasks) == 120
    assert all("score" in task["predictions"][0] for task in tasks)
    folder, lines = delivered("imagefolder", "metadata.jsonl")
    assert {line["file_name"]: line["labels"] for line in lines} == table
    assert all((folder / name).read_bytes() == Path(path).read_bytes() for name, path in paths.items())


def test_the_bank_is_delivered_as_a_graph(studio: Studio) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(InputError, match="no label yet"):
        studio.deliver("onnx")
    studio.define("dog")
    dry = studio.deliver("onnx", dry_run=True)
    assert (dry.rows, dry.sample, dry.file) == (1, ({"label": "dog", "examples": 0},), None)
    done = studio.deliver("onnx")
    assert {path.name for path in (studio.folder / "deliveries" / str(done.file)).iterdir()} == {
        "tagger.onnx",
        "labels.npz",
    }
