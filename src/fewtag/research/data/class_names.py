"""A classifier's classes by name, and which of them overlap the new labels of a split (kept as data, with reasons)."""

import json
from importlib.resources import files
from typing import NamedTuple

from timm.data.imagenet_info import ImageNetInfo

from fewtag.errors import InputError, nearest

_LISTS = files("fewtag.research.data") / "overlaps"


class Overlap(NamedTuple):
    """Classes that are, contain, are a kind of or are called by a validation or novel label."""

    label: str
    reason: str
    classes: dict[int, str]
    """The classes' first names by number."""


def class_names(classes: str) -> list[str]:
    """The names of all classes, synonyms joined by commas: "tench, Tinca tinca"."""
    try:
        info = ImageNetInfo(classes)
    except AssertionError as error:
        raise InputError(f"timm knows no classes {classes!r}; write classes = 'imagenet-1k' in [names]") from error
    number = info.num_classes()  # type: ignore[no-untyped-call]
    return [info.index_to_description(each) for each in range(number)]


def overlaps(classes: str, split: str) -> list[Overlap]:
    """What a clean list of names leaves out for a split; the splits that have one come with the package."""
    known = {file.name.removesuffix(".json"): file for file in _LISTS.iterdir() if file.name.endswith(".json")}
    name = f"{classes}-{split}"
    if name not in known:
        raise InputError(
            f"there is no list of the classes of {classes!r} that overlap split {split!r}; "
            f"{nearest(name, known)} or write variant = 'all' in [names]"
        )
    content = json.loads(known[name].read_text(encoding="utf-8"))
    return [
        Overlap(each["label"], each["reason"], {int(number): first for number, first in each["classes"].items()})
        for each in content["overlaps"]
    ]
