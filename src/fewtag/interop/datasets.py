"""Data sets of other programs: Hugging Face, FiftyOne, Label Studio, COCO and MegaDetector; some are read, too."""

import filecmp
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import quoteattr

from fewtag import __version__
from fewtag.errors import InputError
from fewtag.files import digest, read_json, write_atomically
from fewtag.pictures.decode import read_header
from fewtag.pictures.files import Picture, is_image_name
from fewtag.tagger.stream import Tagged
from fewtag.tagging.examples import Shown, clean_label, name_in, read_tagged, tagged_folder
from fewtag.tagging.sources import read_detections
from fewtag.tagging.tables import picture_name, read_record

LOCAL_FILES = "/data/local-files/?d="
"""Label Studio's address of a file below its LOCAL_FILES_DOCUMENT_ROOT."""
RECORD = ".fewtag-export.json"
"""Digests of the files that were exported to a folder, so that a file that a person changed since is not replaced."""


@dataclass(frozen=True)
class Set:
    """Rows of tags, and the locations of their pictures."""

    rows: Sequence[Tagged]
    root: Path
    boxes: bool = False
    """For COCO: whether to add a box around the whole picture, for programs that need one."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Paths of pictures that lie elsewhere, by their names in the rows."""

    @property
    def labels(self) -> list[str]:
        return sorted({label for row in self.rows for label in (*row.tags, *row.scores)})

    def path(self, row: Tagged) -> Path:
        return self.paths.get(row.image, (self.root / row.image).absolute())


def export_set(
    table: Path, folder: Path, form: str, root: Path | None = None, *, boxes: bool = False, force: bool = False
) -> list[Path]:
    """Exports a table that `tag` wrote to another program's format in a folder; returns the files."""
    place = root or tagged_folder(table) or table.parent
    rows = [replace(row, image=name_in(place, row.image)) for row in read_tagged(table)]
    given = Set(rows, place, boxes)
    made = _megadetector(given, table) if form == "megadetector" else form
    return write_set(given, folder, made, force=force)


def write_set(given: Set, folder: Path, form: str | Mapping[str, Any], *, force: bool = False) -> list[Path]:
    """Writes the files of a format, or with these contents, to a folder; returns their paths.

    Refuses to replace a file that was not exported to it, or was changed since, unless `force` is set.
    """
    contents = FORMS[form](given) if isinstance(form, str) else form
    texts = {
        name: (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, indent=1) + "\n").encode()
        for name, each in contents.items()
    }
    sums = _sums_for(folder, texts, force=force)
    if form == "imagefolder" and folder.resolve() != given.root.resolve():
        for row in given.rows:
            _copy(given.path(row), folder / _below(given.root, row.image))
    write_atomically(folder / RECORD, json.dumps(sums, indent=1).encode())
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def _sums_for(folder: Path, texts: Mapping[str, bytes], *, force: bool) -> dict[str, list[str]]:
    """The folder's new record, made before the files are written; refuses to replace somebody else's files."""
    record, noted = folder / RECORD, dict[str, list[str]]()
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        noted = {str(name): list(sums) for name, sums in json.loads(record.read_bytes()).items() if sums}
    for name, text in texts.items():
        path, new = folder / name, digest(text)
        there = digest(path.read_bytes()) if path.exists() else new
        ours = there in (new, *noted.get(name, ()))
        if not ours and not force:
            raise InputError(
                f"{path} exists and is not what fewtag wrote there; name another folder, or replace it by --force"
            )
        noted[name] = list(dict.fromkeys([new, there] if ours else [new]))  # after a kill either may be there
    return noted


def _imagefolder(given: Set) -> dict[str, Any]:
    """For `load_dataset("imagefolder", data_dir=…)`: a line per picture, beside the pictures, copied if need be."""
    lines = []
    for row in given.rows:
        facts: dict[str, Any] = {"file_name": _below(given.root, row.image), "labels": list(row.tags)}
        lines.append(json.dumps(facts | ({"scores": dict(row.scores)} if row.scores else {}), ensure_ascii=False))
    return {"metadata.jsonl": "\n".join(lines) + "\n"}


def _below(root: Path, name: str) -> str:
    """A picture's path relative to the common folder; refuses one outside of it."""
    whole = os.path.normpath(root.absolute() / name)
    try:
        return Path(whole).relative_to(os.path.normpath(root.absolute())).as_posix()
    except ValueError:
        raise InputError(f"image {name} lies outside of {root}; give the folder of all pictures by --root") from None


def _copy(source: Path, target: Path) -> None:
    """Copies a file, whole or not at all, unless it is already there; refuses to replace a different one."""
    try:
        if not target.exists():
            write_atomically(target, source.read_bytes(), sync=False)
            shutil.copystat(source, target)
        elif not filecmp.cmp(source, target, shallow=False):
            raise InputError(f"{target} is there and is another file; name another folder")
    except OSError as error:
        raise InputError(f"cannot copy image {source}: {error.strerror}; check --root") from error


def _fiftyone(given: Set) -> dict[str, Any]:
    """For `fo.Dataset.from_dir(…, fo.types.FiftyOneImageClassificationDataset)`: pictures stay where they are."""
    _check_files(given)
    labels = {
        str(given.path(row)): [
            {"label": tag} | ({"confidence": row.scores[tag]} if tag in row.scores else {}) for tag in row.tags
        ]
        for row in given.rows
    }
    return {"labels.json": {"classes": given.labels, "labels": labels}}


def _check_files(given: Set) -> None:
    """Refuses a data set that names its pictures if none of them is a file."""
    if given.rows and not any(os.path.lexists(given.path(row)) for row in given.rows):
        raise InputError(
            f"there is no {given.path(given.rows[0])}, nor another picture of the table; give their folder by --root "
            "(what lies in an archive, and a detector's boxes, are no files that a data set could name)"
        )


def _label_studio(given: Set) -> dict[str, Any]:
    """Tasks to import, each with its tags as a prediction, and the labelling interface for them."""
    _check_files(given)
    version = f"fewtag {__version__}"
    tasks = []
    for row in given.rows:
        result = {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": list(row.tags)}}
        prediction: dict[str, Any] = {"model_version": version, "result": [result] if row.tags else []}
        if row.scores:  # the data manager can sort by it: the least certain first
            prediction["score"] = round(min(abs(2 * score - 1) for score in row.scores.values()), 6)
        tasks.append({"data": {"image": LOCAL_FILES + quote(row.image)}, "predictions": [prediction]})
    choices = "".join(f"\n    <Choice value={quoteattr(label)}/>" for label in given.labels)
    interface = (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="choice" toName="image" choice="multiple">{choices}\n  </Choices>\n</View>\n'
    )
    return {"tasks.json": tasks, "interface.xml": interface}


def _coco(given: Set) -> dict[str, Any]:
    """Annotations of whole pictures, upright as viewers show them, without a box unless `boxes` is set."""
    numbers = {label: number for number, label in enumerate(given.labels, 1)}
    images, annotations = [], list[dict[str, Any]]()
    for number, row in enumerate(given.rows, 1):
        width, height, _ = read_header(Picture(given.path(row)).read(), row.image)
        images.append({"id": number, "file_name": row.image, "width": width, "height": height})
        for tag in row.tags:
            facts: dict[str, Any] = {"id": len(annotations) + 1, "image_id": number, "category_id": numbers[tag]}
            facts |= {"iscrowd": 0} | ({"score": row.scores[tag]} if tag in row.scores else {})
            facts |= {"bbox": [0, 0, width, height], "area": width * height} if given.boxes else {}
            annotations.append(facts)
    categories = [
        {"id": number, "name": label, "supercategory": label.rpartition("/")[0]} for label, number in numbers.items()
    ]
    info = {"description": f"tagged by fewtag {__version__}"}
    return {"annotations.json": {"info": info, "images": images, "categories": categories, "annotations": annotations}}


def _megadetector(given: Set, table: Path) -> dict[str, Any]:
    """The detections that were tagged, each with its classifications, for Timelapse and AddaxAI."""
    sources = read_record(table).get("source")
    if not isinstance(sources, list) or len(sources) != 1 or not str(sources[0]).endswith(".json"):
        raise InputError(
            f"{table} is not of a MegaDetector file; tag one: fewtag tag BANK detections.json --out {table}"
        )
    found = read_detections(Path(sources[0]))
    numbers = {label: str(number) for number, label in enumerate(given.labels, 1)}
    rows = {picture_name(row.image): row for row in given.rows}
    for image in found["images"]:
        for number, detection in enumerate(image.get("detections") or (), 1):
            row = rows.get(picture_name(f"{image['file']}#{number}"))
            if row is not None:
                scores = {tag: row.scores.get(tag, 1.0) for tag in row.tags}
                ranked = sorted(scores, key=lambda tag: -scores[tag])
                detection["classifications"] = [[numbers[tag], scores[tag]] for tag in ranked]
    found["classification_categories"] = {number: label for label, number in numbers.items()}
    found["info"] |= {"format_version": "1.6", "classifier": f"fewtag {__version__}"}
    return {"detections.json": found}


FORMS: dict[str, Callable[[Set], dict[str, Any]]] = {
    "imagefolder": _imagefolder,
    "fiftyone": _fiftyone,
    "label-studio": _label_studio,
    "coco": _coco,
}
EVERY_FORM = (*FORMS, "megadetector")


def read_set(path: Path, root: Path | None = None, *, complete: bool = False) -> list[Shown]:
    """Reads examples from a JSON file of COCO, FiftyOne or Label Studio.

    Pictures without any label are left out, unless the data set is `complete`; in Label Studio, those that nobody
    annotated always are.
    """
    place, content = root or path.parent, read_json(path, "data set")
    found: Mapping[str, Iterable[str]]
    try:
        if isinstance(content, list):
            if content and "data" not in content[0]:
                raise InputError(
                    f"{path} has no tasks with `data`; of Label Studio's exports take JSON, not JSON-MIN, and write "
                    "rows of your own as .jsonl, each in a line"
                )
            found = _of_tasks(content)
        elif isinstance(content, dict) and "annotations" in content and "categories" in content:
            found = _of_coco(content)
        elif isinstance(content, dict) and isinstance(content.get("labels"), dict):
            found = _of_fiftyone(content, place)
        else:
            raise InputError(
                f"{path} is no data set of COCO, FiftyOne or Label Studio; give one of these, a CSV, or .jsonl with a "
                "row a line"
            )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the data set {path} is not whole ({error!r}); export it again") from error
    shown = [
        Shown(Picture(where, name=str(where)), frozenset(map(clean_label, labels)))
        for where, labels in ((place / name_in(place, name), labels) for name, labels in found.items())
        if labels or complete
    ]
    if not shown:
        raise InputError(f"no picture of {path} has a label; label some, or give another data set")
    return shown


def _of_coco(content: Mapping[str, Any]) -> dict[str, set[str]]:
    """Categories by picture: those of all its annotations."""
    names = {each["id"]: str(each["name"]) for each in content["categories"]}
    files = {each["id"]: str(each["file_name"]) for each in content["images"]}
    found: dict[str, set[str]] = {file: set() for file in files.values()}
    for each in content["annotations"]:
        found[files[each["image_id"]]].add(names[each["category_id"]])
    return found


def _of_tasks(tasks: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The choices that people made in Label Studio, by picture; predictions are ignored."""
    found: dict[str, set[str]] = {}
    for task in tasks:
        texts = [value for value in task["data"].values() if isinstance(value, str)]
        address = next((text for text in texts if is_image_name(_local(text))), texts[0])
        for annotation in task.get("annotations", ()):
            if not annotation.get("was_cancelled"):
                chosen = found.setdefault(_local(address), set())
                for result in annotation["result"]:
                    if result["type"] == "choices":
                        choices = result["value"]["choices"]
                        # a nested choice is given as its path, all of which it says
                        chosen.update(
                            str(name) for each in choices for name in (each if isinstance(each, list) else [each])
                        )
    return found


def _local(address: str) -> str:
    """A file's path from its address: for local storage its full path; for an upload its name, without the prefix."""
    parts = urlsplit(address)
    if "d" in (query := parse_qs(parts.query)):
        return query["d"][0]
    path = unquote(parts.path)
    return PurePosixPath(path).name.partition("-")[2] if "/data/upload/" in path else path


def _of_fiftyone(content: Mapping[str, Any], root: Path) -> dict[str, list[str]]:
    """The labels of each picture, one or several, by name or by index; pictures in data/ are named without ending."""
    files = [path.relative_to(root) for path in (root / "data").rglob("*") if is_image_name(path.name)]
    found = {file.relative_to("data").with_suffix("").as_posix(): file.as_posix() for file in files}
    classes = content.get("classes") or []

    def name(label: Any) -> str:
        plain = label["label"] if isinstance(label, dict) else label
        return str(classes[plain] if isinstance(plain, int) else plain)

    return {
        found.get(key, key): [name(each) for each in (some if isinstance(some, list) else [some]) if each is not None]
        for key, some in content["labels"].items()
    }
