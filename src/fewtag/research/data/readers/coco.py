"""COCO's instances_*.json."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.archives import ImageIndex, index_images
from fewtag.research.data.images import LabelledImages, from_shown


def read_coco(annotations: Sequence[Path], images: Sequence[Path]) -> LabelledImages:
    """Image-level labels of one or several annotation files (2014 has two); ids are the images' file names.

    Crowd regions do not count; an image without another label is left out. Labels stand in the order of their ids.
    An image whose file is missing is refused by `check()` or when read, so that callers may skip it.
    """
    if not images:
        raise InputError("the annotations name pictures, and no folder of pictures was given; give one or several")
    indices = [index_images(place) for place in images]
    names: dict[int, str] = {}
    found: list[tuple[str, Picture, set[str]]] = []
    for path in annotations:
        content = _load(path)
        table = _categories(path, content)
        if names and table != names:
            raise InputError(f"{path} and {annotations[0]} list different categories; read them as two data sets")
        names = table
        for file_name, shown in _shown(path, content, names).items():
            found.append((file_name, _find(file_name, indices), shown))
    return from_shown(found, [names[number] for number in sorted(names)])


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the annotations {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); download it again") from error
    wanted = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in wanted):
        raise InputError(f"{path} lacks one of the lists {', '.join(wanted)}; give COCO's instances_*.json")
    return content


def _categories(path: Path, content: dict[str, Any]) -> dict[int, str]:
    names = {int(_field(path, row, "id")): str(_field(path, row, "name")) for row in content["categories"]}
    if len(set(names.values())) < len(content["categories"]):
        raise InputError(f"{path} lists a category's id or name twice; give each category its own")
    return names


def _shown(path: Path, content: dict[str, Any], names: dict[int, str]) -> dict[str, set[str]]:
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
        if file_name in index:
            return index.find(file_name)
        nested = index.place / file_name
        if nested.is_file():  # a file name may hold folders
            return Picture(nested, name=str(nested))
    place = indices[0].place
    nowhere = Path(f"{place}:{file_name}") if place.is_file() else place / file_name
    return Picture(nowhere, name=f"{file_name} (looked in {', '.join(str(index.place) for index in indices)})")
