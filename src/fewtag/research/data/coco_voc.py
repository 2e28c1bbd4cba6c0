"""Readers of COCO's instances_*.json and of PASCAL VOC's devkit."""

import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewtag.errors import InputError
from fewtag.files import read_json
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages, from_shown
from fewtag.research.data.readers import ImageIndex, index_images


def read_coco(annotations: Sequence[Path], images: Sequence[Path]) -> LabelledImages:
    """Image-level labels of one or several annotation files (2014 has two); ids are the images' file names.

    Crowd regions do not count; an image without another label is left out. Labels stand in the order of their ids.
    An image whose file is missing is refused by `check()` or when read, so that callers may skip it.
    """
    if not images:
        raise InputError("the annotations name pictures, and no folder of pictures was given; give one or several")
    indices = [index_images(place) for place in images]
    names: dict[int, str] = {}
    pictures: list[tuple[str, Picture, set[str]]] = []
    for path in annotations:
        content = _load_annotations(path)
        table = _categories(path, content)
        if names and table != names:
            raise InputError(f"{path} and {annotations[0]} list different categories; read them as two data sets")
        names = table
        for file_name, shown in _coco_labels(path, content, names).items():
            pictures.append((file_name, _find(file_name, indices), shown))
    return from_shown(pictures, [names[number] for number in sorted(names)])


def _load_annotations(path: Path) -> dict[str, Any]:
    content = read_json(path, "file of annotations")
    wanted = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in wanted):
        raise InputError(f"{path} lacks one of the lists {', '.join(wanted)}; give COCO's instances_*.json")
    return content


def _categories(path: Path, content: dict[str, Any]) -> dict[int, str]:
    names = {int(_field(path, row, "id")): str(_field(path, row, "name")) for row in content["categories"]}
    if len(set(names.values())) < len(content["categories"]):
        raise InputError(f"{path} lists a category's id or name twice; give each category its own")
    return names


def _coco_labels(path: Path, content: dict[str, Any], names: dict[int, str]) -> dict[str, set[str]]:
    """The labels each image shows, by file name, in the file's order."""
    labels: dict[int, set[str]] = defaultdict(set)
    for row in content["annotations"]:
        category = _field(path, row, "category_id")
        if category not in names:
            raise InputError(f"{path}: an annotation has category {category!r}, which `categories` lacks; add it there")
        if not row.get("iscrowd"):
            labels[_field(path, row, "image_id")].add(names[category])
    files = {_field(path, row, "id"): str(_field(path, row, "file_name")) for row in content["images"]}
    unknown = labels.keys() - files.keys()
    if unknown:
        raise InputError(f"{path}: an annotation is for image {min(unknown)!r}, which `images` lacks; add it there")
    if len(set(files.values())) < len(content["images"]):
        raise InputError(f"{path} lists an image's id or file name twice; list each image once")
    return {name: labels[number] for number, name in files.items() if number in labels}


def _field(path: Path, row: Any, key: str) -> Any:
    if not isinstance(row, dict) or key not in row:
        raise InputError(f"{path} holds an entry without {key!r}; give COCO's instances_*.json")
    return row[key]


def _find(file_name: str, indices: Sequence[ImageIndex]) -> Picture:
    """The picture in the first place that has it, or one that leads nowhere and says where it was looked for."""
    for index in indices:
        if file_name in index.pictures:
            return index.find(file_name)
        nested = index.place / file_name
        if nested.is_file():  # a file name may hold folders
            return Picture(nested, name=str(nested))
    place = indices[0].place
    nowhere = Path(f"{place}:{file_name}") if place.is_file() else place / file_name
    return Picture(nowhere, name=f"{file_name} (looked in {', '.join(str(index.place) for index in indices)})")


def read_voc(
    devkits: Sequence[Path], sets: Sequence[str] = ("trainval",), keep_difficult: bool = False
) -> LabelledImages:
    """Image-level labels of one or several years; ids are the images' names, after their year's where two share one.

    A year without one of the sets (2012 has no public test) skips it. Objects marked difficult do not count unless
    kept; an image without another object is left out. An image whose file is missing is refused by `check()` or when
    read, so that callers may skip it.
    """
    years = [year for devkit in devkits for year in _years(devkit)]
    listed = {year: _listed(year, sets) for year in years}
    for name in sets:
        if not any(_list_file(year, name).is_file() for year in years):
            searched = ", ".join(str(year) for year in years)
            raise InputError(f"no year has an image set {name!r}; looked for ImageSets/Main/{name}.txt in {searched}")
    times = Counter(image for images in listed.values() for image in images)
    pictures = []
    for year, images in listed.items():
        for image in images:
            shown = _voc_labels(year / "Annotations" / f"{image}.xml", keep_difficult)
            if shown:
                path = year / "JPEGImages" / f"{image}.jpg"
                name = image if times[image] == 1 else f"{year.name}/{image}"
                pictures.append((name, Picture(path, name=str(path)), shown))
    return from_shown(pictures, sorted(set().union(*(shown for _, _, shown in pictures))))


def _years(devkit: Path) -> list[Path]:
    """The devkit's year folders, or the folder itself if it is one."""
    candidates = [devkit, *sorted(devkit.glob("VOC*"))]
    years = [folder for folder in candidates if (folder / "ImageSets" / "Main").is_dir()]
    if not years:
        raise InputError(f"{devkit} is no VOCdevkit: no ImageSets/Main in it or in its VOC* folders; check the path")
    return years


def _list_file(year: Path, name: str) -> Path:
    return year / "ImageSets" / "Main" / f"{name}.txt"


def _listed(year: Path, sets: Sequence[str]) -> list[str]:
    """The images of these sets, each once: "train" is a part of "trainval"."""
    files = [_list_file(year, name) for name in sets]
    lines = [line for file in files if file.is_file() for line in file.read_text(encoding="utf-8").splitlines()]
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _voc_labels(path: Path, keep_difficult: bool) -> set[str]:
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the annotation {path}: {error.strerror}; check the devkit") from error
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not valid XML ({error}); unpack the devkit again") from error
    shown = set()
    for thing in root.findall("object"):
        name = (thing.findtext("name") or "").strip()
        if not name:
            raise InputError(f"{path} holds an object without a name; name it or remove it")
        if keep_difficult or (thing.findtext("difficult") or "0").strip() != "1":
            shown.add(name)
    return shown
