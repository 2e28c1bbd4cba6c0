"""PASCAL VOC's devkit: lists of images and an XML file each."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages, from_shown


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
    found = []
    for year, images in listed.items():
        for image in images:
            shown = _shown(year / "Annotations" / f"{image}.xml", keep_difficult)
            if shown:
                path = year / "JPEGImages" / f"{image}.jpg"
                name = image if times[image] == 1 else f"{year.name}/{image}"
                found.append((name, Picture(path, name=str(path)), shown))
    return from_shown(found, sorted(set().union(*(shown for _, _, shown in found))))


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


def _shown(path: Path, keep_difficult: bool) -> set[str]:
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
