"""Other programs' data sets: written as those read them, and read as those write them."""

import json
import re
import subprocess
import sys
import tarfile
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from tiny import draw, same_classifiers

from fewtag import Tagger
from fewtag.interop.datasets import read_set
from fewtag.pictures.decode import pixel_digest
from fewtag.tagger import export as exporting
from fewtag.tagging.examples import read_table
from fewtag.tagging.sources import open_source

Cli = Callable[..., Any]


@pytest.fixture
def tagged(cli: Cli, bank: Path, photos: Path) -> dict[str, dict[str, Any]]:
    """tags.jsonl with all scores: its rows by picture."""
    assert cli("tag", bank, photos, "--out", "tags.jsonl", "--scores").code == 0
    rows = [json.loads(line) for line in Path("tags.jsonl").read_text().split("\n") if line]
    assert any(row["tags"] for row in rows)
    return {row["image"]: row for row in rows}


def exported(cli: Cli, form: str, *more: object) -> Any:
    said = cli("export", "tags.jsonl", "out", "--as", form, "--json", *more)
    assert said.code == 0, said.err
    return json.loads(Path(json.loads(said.out)["files"][0]).read_text())


def test_imagefolder_is_beside_copies_of_the_pictures(cli: Cli, tagged: dict[str, Any], photos: Path) -> None:
    assert cli("export", "tags.jsonl", "out", "--as", "imagefolder").code == 0
    lines = [json.loads(line) for line in Path("out/metadata.jsonl").read_text().splitlines()]
    assert {line["file_name"]: line["labels"] for line in lines} == {name: row["tags"] for name, row in tagged.items()}
    assert all(line["scores"] == tagged[line["file_name"]]["scores"] for line in lines)
    assert all((Path("out") / name).read_bytes() == (photos / name).read_bytes() for name in tagged)
    before = set(photos.rglob("*"))
    assert cli("export", "tags.jsonl", photos, "--as", "imagefolder").code == 0
    assert set(photos.rglob("*")) - before == {photos / "metadata.jsonl", photos / ".fewtag-export.json"}


@pytest.mark.usefixtures("tagged")
def test_a_copy_that_was_cut_short_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a kill or a full disk: half a picture would be taken for another file by the next run."""

    def cut_short(source: Path, target: Path, **_: object) -> None:
        target.write_bytes(source.read_bytes()[:100])
        raise KeyboardInterrupt

    def never(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", cut_short)
        patch.setattr(Path, "replace", never)
        assert cli("export", "tags.jsonl", "out", "--as", "imagefolder").code == 130
    assert cli("export", "tags.jsonl", "out", "--as", "imagefolder").code == 0


def test_an_export_that_fails_leaves_no_empty_folder(cli: Cli) -> None:
    Path("own.jsonl").write_text(json.dumps({"image": "gone.jpg", "tags": ["dog"]}))
    said = cli("export", "own.jsonl", "out", "--as", "imagefolder")
    assert (said.code, "cannot copy image" in said.err, Path("out").exists()) == (2, True, False)


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("imagefolder", "metadata.jsonl"),
        ("fiftyone", "labels.json"),
        ("label-studio", "interface.xml"),
        ("label-studio", "tasks.json"),
        ("coco", "annotations.json"),
    ],
)
def test_a_file_that_a_person_made_or_changed_is_not_replaced_without_force(cli: Cli, form: str, name: str) -> None:
    Path("out").mkdir()
    mine = Path("out", name)
    mine.write_text("mine")
    said = cli("export", "tags.jsonl", "out", "--as", form)
    assert (said.code, list(Path("out").iterdir())) == (2, [mine]), "nothing else is written, nor a picture copied"
    assert f"{mine} exists and is not what fewtag wrote there" in said.err
    assert cli("export", "tags.jsonl", "out", "--as", form, "--force").code == 0
    first = mine.read_bytes()
    rows = Path("tags.jsonl").read_text().splitlines(keepends=True)
    Path("fewer.jsonl").write_text("".join(rows[1:]).replace("sofa", "settee"))
    fewer = cli("export", "fewer.jsonl", "out", "--as", form, "--root", "photos")
    assert (fewer.code, mine.read_bytes() != first) == (0, True), "what nobody changed is exported anew"
    mine.write_bytes(corrected := mine.read_bytes() + b" ")
    assert cli("export", "tags.jsonl", "out", "--as", form).code == 2
    assert mine.read_bytes() == corrected
    Path("out/.fewtag-export.json").write_text("[1]")
    assert cli("export", "tags.jsonl", "out", "--as", form).code == 2


def test_imagefolder_writes_neither_outside_nor_over_another_file(cli: Cli, photos: Path) -> None:
    own = Path("out/b, c.png")
    own.parent.mkdir()
    own.write_bytes(b"mine")
    Path("own.jsonl").write_text(json.dumps({"image": "b, c.png", "tags": ["dog"]}))
    said = cli("export", "own.jsonl", "out", "--as", "imagefolder", "--root", photos)
    assert (said.code, "is there and is another file" in said.err, own.read_bytes()) == (2, True, b"mine")
    for name in ("../z.webp", str(photos.parent / "z.webp")):
        Path("own.jsonl").write_text(json.dumps({"image": name, "tags": ["dog"]}))
        said = cli("export", "own.jsonl", "out", "--as", "imagefolder", "--root", photos)
        assert (said.code, "lies outside of" in said.err) == (2, True)
    Path("own.jsonl").write_text(json.dumps({"image": str(photos / "z.webp"), "tags": ["dog"]}))
    for _ in range(2):
        assert cli("export", "own.jsonl", "out", "--as", "imagefolder", "--root", photos).code == 0
    assert json.loads(Path("out/metadata.jsonl").read_text())["file_name"] == "z.webp"


def test_fiftyone_finds_pictures_by_their_full_path(cli: Cli, tagged: dict[str, Any], photos: Path) -> None:
    found = exported(cli, "fiftyone")
    assert found["classes"] == ["cat", "dog", "sofa"]
    assert found["labels"] == {
        str(photos / name): [{"label": tag, "confidence": row["scores"][tag]} for tag in row["tags"]]
        for name, row in tagged.items()
    }


def test_labels_that_no_picture_was_given_are_exported_with_their_probabilities(
    cli: Cli, bank: Path, photos: Path
) -> None:
    assert cli("tag", bank, photos, "--out", "tags.jsonl", "--scores", "--threshold", 1).code == 0
    assert exported(cli, "fiftyone")["classes"] == ["cat", "dog", "sofa"]
    assert cli("export", "tags.jsonl", "out", "--as", "imagefolder").code == 0
    rows = [json.loads(line) for line in Path("tags.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in Path("out/metadata.jsonl").read_text().splitlines()]
    assert [line["scores"] for line in lines] == [row["scores"] for row in rows]


def test_label_studio_gets_predictions_and_an_interface(cli: Cli, tagged: dict[str, Any]) -> None:
    tasks = exported(cli, "label-studio")
    assert len(tasks) == len(tagged)
    interface = ElementTree.fromstring(Path("out/interface.xml").read_text())
    choices = interface.find("Choices")
    assert choices is not None
    assert [choice.get("value") for choice in choices] == ["cat", "dog", "sofa"]
    for task, row in zip(tasks, tagged.values(), strict=True):
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        for result in prediction["result"]:
            assert (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName"))
            assert result["value"] == {"choices": row["tags"]}
        assert task["data"]["image"].startswith("/data/local-files/?d=")


def test_coco_has_no_box_unless_it_is_asked_for(cli: Cli, tagged: dict[str, Any], photos: Path) -> None:
    found = exported(cli, "coco")
    names = {each["id"]: each["name"] for each in found["categories"]}
    files = {each["id"]: each for each in found["images"]}
    shown: dict[str, list[str]] = {name: [] for name in tagged}
    for each in found["annotations"]:
        assert "bbox" not in each
        shown[files[each["image_id"]]["file_name"]].append(names[each["category_id"]])
    assert shown == {name: row["tags"] for name, row in tagged.items()}
    for image in files.values():
        assert (image["width"], image["height"]) == Image.open(photos / image["file_name"]).size
    boxed = exported(cli, "coco", "--boxes")["annotations"][0]
    assert boxed["bbox"] == [0, 0, 48, 40]


def test_cocos_sizes_and_boxes_are_those_of_the_picture_as_it_is_shown(cli: Cli) -> None:
    """Viewers and loaders turn it by its EXIF orientation; some refuse a picture whose size is not the file's."""
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(1, "dog", size=(48, 40)).save("turned.jpg", exif=exif)
    Path("tags.jsonl").write_text('{"image": "turned.jpg", "tags": ["dog"]}\n')
    found = exported(cli, "coco", "--boxes")
    assert (found["images"][0]["width"], found["images"][0]["height"]) == (40, 48)
    assert found["annotations"][0]["bbox"] == [0, 0, 40, 48]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("form", ["imagefolder", "fiftyone", "label-studio", "coco"])
def test_what_is_written_is_learnt_again_and_checked_by(cli: Cli, tiny_model: Path, form: str) -> None:
    content = exported(cli, form) if form != "imagefolder" else cli("export", "tags.jsonl", "out", "--as", form)
    source = {"imagefolder": "metadata.jsonl", "fiftyone": "labels.json", "coco": "annotations.json"}.get(
        form, "tasks.json"
    )
    if form == "label-studio":  # a person accepts each prediction
        for task in content:
            task["annotations"] = [{"result": task["predictions"][0]["result"]}]
        Path("out/tasks.json").write_text(json.dumps(content))
    said = cli("learn", "again.fewtag", Path("out") / source, "--root", "photos", "--model", tiny_model)
    assert said.code == 0, said.err
    assert cli("learn", "table.fewtag", "tags.jsonl", "--all-rows", "--model", tiny_model).code == 0
    assert same_classifiers(Tagger.load("again.fewtag"), Tagger.load("table.fewtag"))
    checked = cli("check", "again.fewtag", Path("out") / source, "--root", "photos", "--json")
    assert json.loads(checked.out)["pictures"] == len(Path("tags.jsonl").read_text().splitlines())


def test_what_fiftyone_exports_itself_is_learnt(cli: Cli, tiny_model: Path) -> None:
    """Pictures in data/, named without ending, and labels by their number."""
    Path("set/data/sub").mkdir(parents=True)
    draw(1, "dog").save("set/data/one.png")
    draw(2, "cat").save("set/data/sub/two.jpg")
    labels = {"one": 1, "sub/two": [{"label": "cat"}, {"label": "sofa"}], "gone": None}
    Path("set/labels.json").write_text(json.dumps({"classes": ["cat", "dog"], "labels": labels}))
    said = cli("learn", "new.fewtag", "set/labels.json", "--model", tiny_model)
    assert said.code == 0, said.err
    assert dict(Tagger.load("new.fewtag").counts_) == {"cat": 1, "dog": 1, "sofa": 1}


SETS: dict[str, Any] = {
    "coco": {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "categories": [{"id": 3, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 3}],
    },
    "fiftyone": {"classes": ["dog"], "labels": {"a.png": ["dog"], "b.png": None}},
    "label-studio": [
        {"data": {"image": "a.png"}, "annotations": [{"result": [{"type": "choices", "value": {"choices": ["dog"]}}]}]},
        {"data": {"image": "b.png"}, "annotations": [{"result": []}]},
        {"data": {"image": "nobody-looked-at.png"}, "annotations": [{"result": [], "was_cancelled": True}]},
    ],
}


@pytest.mark.parametrize("form", SETS)
def test_in_a_complete_set_a_picture_without_labels_shows_none(cli: Cli, tiny_model: Path, form: str) -> None:
    draw(1, "dog").save("a.png")
    draw(2, "cat").save("b.png")
    Path("set.json").write_text(json.dumps(SETS[form]))
    assert cli("learn", "new.fewtag", "set.json", "--model", tiny_model).code == 0
    assert len(Tagger.load("new.fewtag").bank_.examples) == 1
    assert cli("learn", "new.fewtag", "set.json", "--complete").code == 0
    said = [each.annotation for each in Tagger.load("new.fewtag").bank_.examples.values()]
    assert sorted((sorted(each.labels), each.complete) for each in said) == [([], True), (["dog"], True)]


@pytest.mark.usefixtures("tagged")
def test_predictions_are_nobodys_word(cli: Cli, tiny_model: Path) -> None:
    exported(cli, "label-studio")
    said = cli("learn", "again.fewtag", "out/tasks.json", "--root", "photos", "--model", tiny_model)
    assert (said.code, "no picture of out/tasks.json has a label" in said.err) == (2, True)


def test_a_task_may_have_other_texts_and_nested_choices(tmp_path: Path) -> None:
    result = {"type": "choices", "value": {"choices": ["dog", ["cats", "Manx"]]}}
    data = {"title": "My dog, at home", "picture": "/data/local-files/?d=rex.jpg"}
    tasks = [{"data": data, "annotations": [{"result": [result]}]}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    (shown,) = read_set(tmp_path / "tasks.json")
    assert (shown.picture.path, shown.labels) == (tmp_path / "rex.jpg", {"dog", "cats", "Manx"})


DETECTIONS = {
    "info": {"format_version": "1.6", "detector": "MDV5A"},
    "detection_categories": {"1": "animal", "2": "person"},
    "images": [
        {
            "file": "two.png",
            "detections": [
                {"category": "1", "conf": 0.9, "bbox": [0.0, 0.0, 0.5, 1.0]},
                {"category": "1", "conf": "0.8", "bbox": [0.5, 0.0, 0.5, 1.0]},
                {"category": "1", "conf": 0.1, "bbox": [0.2, 0.2, 0.1, 0.1]},
            ],
        },
        {"file": "gone.png", "failure": "Failure image access", "detections": None},
        {"file": "empty.png", "detections": []},
    ],
}


def test_tags_of_a_csv_keep_their_order(cli: Cli, photos: Path) -> None:
    tags = ["zebra", "cat", "sofa", "ball", "dog", "apple", "moon", "ring"]
    Path("tags.csv").write_text(f"image,tags\nz.webp,{';'.join([*tags, '!lamp', 'cat'])}\n")
    assert cli("export", "tags.csv", "out", "--as", "imagefolder", "--root", photos).code == 0
    assert json.loads(Path("out/metadata.jsonl").read_text())["labels"] == tags


def test_boxes_of_a_detector_are_tagged_as_pictures_and_go_back(cli: Cli, bank: Path) -> None:
    left, right = draw(70, "dog", size=(60, 40)), draw(71, "cat", size=(60, 40))
    both = Image.new("RGB", (120, 40))
    both.paste(left, (0, 0))
    both.paste(right, (60, 0))
    both.save("two.png")
    Path("detections.json").write_text(json.dumps(DETECTIONS))
    assert cli("tag", bank, "detections.json", "--out", "tags.jsonl", "--scores", "--prior", "bank").code == 0
    rows = {row["image"]: row for row in map(json.loads, Path("tags.jsonl").read_text().splitlines())}
    assert list(rows) == ["two.png#1", "two.png#2"]
    expected = Tagger.load(bank).predict_proba([left, right])
    for row, scores in zip(rows.values(), expected, strict=True):
        assert list(row["scores"].values()) == pytest.approx(scores.tolist(), abs=1e-5)
    found = exported(cli, "megadetector")
    names = found["classification_categories"]
    first, second, unsure = found["images"][0]["detections"]
    assert [names[number] for number, _ in first["classifications"]] == rows["two.png#1"]["tags"]
    assert [names[number] for number, _ in second["classifications"]] == rows["two.png#2"]["tags"]
    assert "classifications" not in unsure
    assert found["images"][1:] == DETECTIONS["images"][1:]  # type: ignore[index]
    assert found["info"]["format_version"] == "1.6"


def test_what_a_detector_wrote_on_windows_is_read_and_goes_back(cli: Cli, bank: Path) -> None:
    Path("cam").mkdir()
    draw(70, "dog", size=(60, 40)).save("cam/two.png")
    first = {**DETECTIONS["images"][0], "file": "cam\\two.png"}  # type: ignore[index,dict-item]
    Path("detections.json").write_text(json.dumps({**DETECTIONS, "images": [first]}), encoding="utf-8-sig")
    said = cli("tag", bank, "detections.json", "--out", "tags.jsonl", "--scores", "--threshold", "0.001")
    assert said.code == 0, said.err
    image = exported(cli, "megadetector")["images"][0]
    assert image["file"] == "cam\\two.png"
    assert [bool(each.get("classifications")) for each in image["detections"]] == [True, True, False]


def test_a_data_set_and_a_list_may_have_the_separators_of_windows(tmp_path: Path) -> None:
    (tmp_path / "cam").mkdir()
    draw(70, "dog").save(tmp_path / "cam" / "a.png")
    images, categories = [{"id": 1, "file_name": "cam\\a.png"}], [{"id": 7, "name": "dog"}]
    coco = {"images": images, "categories": categories, "annotations": [{"image_id": 1, "category_id": 7}]}
    (tmp_path / "coco.json").write_text(json.dumps(coco), encoding="utf-8-sig")
    (shown,) = read_set(tmp_path / "coco.json")
    assert (shown.picture.path, shown.labels) == (tmp_path / "cam" / "a.png", {"dog"})
    (tmp_path / "list.txt").write_text("cam\\a.png\n" + "cam\\" + 300 * "b" + ".png\n")
    there, gone = open_source([str(tmp_path / "list.txt")]).entries
    assert (there.name, there.location, gone.stamp) == ("cam\\a.png", str(tmp_path / "cam" / "a.png"), None)


def test_a_mended_table_of_boxes_or_of_an_archive_teaches_these(cli: Cli, bank: Path) -> None:
    """Rows that name no file: they are looked for in the source that was tagged."""
    left, right = draw(70, "dog", size=(60, 40)), draw(71, "cat", size=(60, 40))
    both = Image.new("RGB", (120, 40))
    both.paste(left, (0, 0))
    both.paste(right, (60, 0))
    both.save("two.png")
    Path("detections.json").write_text(json.dumps(DETECTIONS))
    with tarfile.open("two.tar", "w") as archive:
        archive.add("two.png", "in/two.png")
    for source, mended, shown in (("detections.json", "two.png#2", right), ("two.tar", "in/two.png", both)):
        assert cli("tag", bank, source, "--out", "tags.csv", "--force").code == 0
        rows = [line for line in Path("tags.csv").read_text().splitlines() if not line.startswith(mended)]
        Path("tags.csv").write_text("\n".join([*rows, f"{mended},sofa;!dog"]) + "\n")
        assert cli("learn", bank, "tags.csv").code == 0
        for form in ("fiftyone", "label-studio"):
            said = cli("export", "tags.csv", "out", "--as", form)
            told = "no files that a data set could name" in said.err
            assert (said.code, Path("out").exists(), told) == (2, False, True)
        example = Tagger.load(bank).bank_.examples[pixel_digest(shown)]
        assert (example.name, example.labels) == (Path(mended).name, {"sofa"})
        assert json.loads(cli("check", bank, "tags.csv", "--json", "--prior", "bank").out)["pictures"] == 1
        Path(source).unlink()
        assert f"{Path(mended).name}: there is no such file" in cli("learn", bank, "tags.csv").err


def test_a_tables_record_names_no_address_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.tagging.sources.file_system", lambda url: pytest.fail(f"asked {url}"))
    (tmp_path / "tags.csv").write_text("image,tags\na.jpg,dog\n")
    record = {"source": ["https://example.org/pictures.tar"], "labels": ["dog"], "rows": ""}
    (tmp_path / "tags.csv.run.json").write_text(json.dumps(record))
    assert [each.picture.path for each in read_table(tmp_path / "tags.csv")] == [tmp_path / "a.jpg"]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "tags.jsonl", "out", "--as", "yolo"), "there is no format 'yolo'"),
        (("export", "tags.jsonl", "out", "--as", "coco", "--int8"), "--int8 is for a bank's graph"),
        (("export", "tags.jsonl", "out", "--as", "fiftyone", "--boxes"), "--boxes goes with --as coco"),
        (("export", "tags.jsonl", "out", "--as", "megadetector"), "tags.jsonl is not of a MegaDetector file"),
        (("export", "gone.jsonl", "out", "--as", "coco"), "cannot read the table gone.jsonl"),
        (("export", "pets.fewtag", "out", "--root", "photos"), "--root is for a table"),
        (("export", "pets.fewtag", "out", "--as", "onnx-fixed", "--int8"), "--int8 does not go with"),
        (("learn", "new.fewtag", "odd.json"), "odd.json is no data set of COCO, FiftyOne or Label Studio"),
        (("learn", "new.fewtag", "torn.json"), "the data set torn.json is no JSON"),
        (("learn", "new.fewtag", "half.json"), "the data set half.json is not whole"),
        (("learn", "new.fewtag", "bare.json"), "the data set bare.json is not whole"),
        (("learn", "new.fewtag", "min.json"), "of Label Studio's exports take JSON, not JSON-MIN"),
        (("learn", "new.fewtag", "min.json"), "write rows of your own as .jsonl"),
        (("learn", "new.fewtag", "row.json"), "row.json is no data set of COCO, FiftyOne or Label Studio"),
        (("learn", "new.fewtag", "number.json"), "number.json is no data set of COCO, FiftyOne or Label Studio"),
        (("tag", "pets.fewtag", "odd.json"), "odd.json is no file in MegaDetector's format"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    Path("odd.json").write_text("{}")
    Path("torn.json").write_text("{")
    Path("row.json").write_text('{"image": "dog.jpg", "labels": ["dog"]}')
    Path("number.json").write_text("5")
    Path("bare.json").write_text('[{"data": {"number": 1}, "annotations": []}]')
    Path("min.json").write_text('[{"image": "/data/upload/1/0a-dog.jpg", "id": 1, "shown": {"choices": ["Dog"]}}]')
    Path("half.json").write_text('{"annotations": [{"image_id": 1}], "categories": [], "images": []}')
    outcome = cli(*arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome.err
    assert said in outcome.err


def test_a_graph_with_its_labels_inside_tags_as_the_tagger_does(cli: Cli, bank: Path, photos: Path) -> None:
    assert cli("export", bank, "fixed", "--as", "onnx-fixed", "--check", photos).code == 0
    session = onnxruntime.InferenceSession("fixed/fixed.onnx")
    assert [each.name for each in session.get_inputs()] == ["pixels"]
    assert [each.name for each in session.get_outputs()] == ["probabilities"]
    tagger, size = Tagger.load(bank), session.get_inputs()[0].shape[2]
    assert Path("fixed/labels.txt").read_text().splitlines() == list(tagger.classes_)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["thresholds"]) == pytest.approx(list(tagger.thresholds_.values()))
    pictures = [photos / "b, c.png", photos / "z.webp"]
    squares = [
        np.array(Image.open(path).convert("RGB").resize((size, size), 2)).transpose(2, 0, 1) for path in pictures
    ]
    (found,) = session.run(None, {"pixels": np.stack(squares)})
    assert found == pytest.approx(tagger.predict_proba(pictures), abs=1e-3)


@pytest.mark.processes
def test_the_twenty_lines_of_the_docs_tag_as_the_tagger_does(cli: Cli, bank: Path, photos: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.S | re.M)
    assert len([line for line in example.splitlines() if line]) <= 20
    assert "fewtag" not in example
    assert cli("export", bank, "pets-fixed", "--as", "onnx-fixed").code == 0
    pictures = sorted(photos.rglob("*.png"))
    done = subprocess.run([sys.executable, "-c", example, *pictures], capture_output=True, text=True, check=True)
    expected = Tagger.load(bank).predict(pictures)
    for line, path, tags in zip(done.stdout.splitlines(), pictures, expected, strict=True):
        assert line == f"{path} {sorted(tags)}"
    assert any(expected)


def test_a_fixed_graph_that_disagrees_is_refused(cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = exporting.session
    monkeypatch.setattr(exporting, "session", lambda graph: lambda pixels, labels: right(graph)(pixels, labels) + 0.01)
    said = cli("export", bank, "fixed", "--as", "onnx-fixed")
    assert (said.code, "disagrees with the tagger" in said.err, Path("fixed").exists()) == (2, True, False)


def cvat_stand_in() -> types.ModuleType:
    """The four names of cvat_sdk.auto_annotation that are used, with the arguments that those take."""
    module = types.ModuleType("cvat_sdk.auto_annotation")
    module.label_spec = lambda name, number, **more: SimpleNamespace(name=name, id=number, **more)  # type: ignore[attr-defined]
    module.DetectionFunctionSpec = lambda *, labels: SimpleNamespace(labels=labels)  # type: ignore[attr-defined]
    module.tag = lambda label_id, **more: SimpleNamespace(label_id=label_id, **more)  # type: ignore[attr-defined]
    return module


def test_cvat_gets_tags_of_a_frame(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import cvat_sdk.auto_annotation  # noqa: F401
    except ImportError:
        package = types.ModuleType("cvat_sdk")
        package.auto_annotation = cvat_stand_in()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cvat_sdk", package)
        monkeypatch.setitem(sys.modules, "cvat_sdk.auto_annotation", package.auto_annotation)
    from fewtag.interop.cvat import create

    function, tagger = create(str(bank)), Tagger.load(bank)
    names = {each.id: each.name for each in function.spec.labels}
    assert list(names.values()) == list(tagger.classes_)
    assert {each.type for each in function.spec.labels} == {"tag"}
    for threshold in (None, 0.0, 1.0):
        found = function.detect(SimpleNamespace(conf_threshold=threshold), draw(5, "dog"))
        assert [names[each.label_id] for each in found] == list(tagger.predict(draw(5, "dog"), threshold)[0])
