"""A folder per label."""

from pathlib import Path

from fewtag.errors import InputError
from fewtag.pictures.files import Picture, is_image_name
from fewtag.research.data.images import LabelledImages, from_shown


def read_folders(path: Path) -> LabelledImages:
    """Image "dog/1.jpg" shows "dog"; sub-folders are not descended, hidden files and other endings are skipped."""
    if not path.is_dir():
        raise InputError(f"{path} is no folder; give the folder that holds one folder for each label")
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    loose = [entry.name for entry in entries if entry.is_file() and is_image_name(entry.name)]
    if loose:
        raise InputError(
            f"{len(loose)} images lie in {path} itself, the first is {loose[0]!r}; move them into a label's folder"
        )
    labels = [entry.name for entry in entries if entry.is_dir()]
    if not labels:
        raise InputError(f"{path} holds no label's folder; make one folder for each label and put its images there")
    found = []
    for label in labels:
        images = sorted(file for file in (path / label).iterdir() if file.is_file() and is_image_name(file.name))
        if not images:
            raise InputError(f"label {label!r} has no image: {path / label} holds none; add one or remove the folder")
        found += [(f"{label}/{file.name}", Picture(file, name=str(file)), {label}) for file in images]
    return from_shown(found, labels)
