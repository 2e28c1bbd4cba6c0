"""The classes that overlap new labels: real classes, real labels, and none forgotten that bears a label's name."""

import json
import re
from importlib import resources

import pytest

from fewtag.errors import InputError
from fewtag.research.data.splits import Split, class_names, overlapping_classes

SPLITS = ("coco", "voc")


def new_labels(name: str) -> set[str]:
    split = Split.load(name)
    return {label for phase in ("val", "test") for label in split.phases[phase].labels}


def test_the_names_are_timms() -> None:
    names = class_names("imagenet-1k")
    assert (len(names), names[0], names[281]) == (1000, "tench, Tinca tinca", "tabby, tabby cat")


@pytest.mark.parametrize("split", SPLITS)
def test_each_listed_class_is_named_by_its_number_and_has_a_new_label_and_a_reason(split: str) -> None:
    names = class_names("imagenet-1k")
    file = resources.files("fewtag.research.data") / "overlaps" / f"imagenet-1k-{split}.json"
    for overlap in json.loads(file.read_text(encoding="utf-8"))["overlaps"]:
        assert overlap["label"] in new_labels(split)
        assert overlap["reason"]
        assert overlap["classes"]
        assert all(names[int(number)].split(", ")[0] == first for number, first in overlap["classes"].items())


@pytest.mark.parametrize("split", SPLITS)
def test_no_class_that_is_left_bears_the_name_of_a_new_label(split: str) -> None:
    left_out = overlapping_classes("imagenet-1k", split)
    spelt = {Split.load(split).spelt(label).removesuffix("s") for label in new_labels(split)}
    pattern = re.compile(rf"\b({'|'.join(spelt)})s?\b")
    named = [
        (number, name)
        for number, name in enumerate(class_names("imagenet-1k"))
        if number not in left_out and any(pattern.search(synonym) for synonym in name.lower().split(", ")[:3])
    ]
    assert named == []


def test_all_birds_boats_and_bears_are_out_for_coco_and_all_dogs_and_cats_for_voc() -> None:
    coco, voc = (overlapping_classes("imagenet-1k", split) for split in SPLITS)
    assert {*range(7, 25), *range(80, 101), *range(127, 147), 472, 814, 294, 388} <= coco
    assert {*range(151, 269), *range(281, 294), 348, 831, 851} <= voc
    assert 207 not in coco, "a dog is a base label of COCO"


def test_unknown_classes_and_splits_without_a_list_are_refused() -> None:
    with pytest.raises(InputError, match="timm knows no classes 'imagenet-7'"):
        class_names("imagenet-7")
    with pytest.raises(InputError, match=r"no list of the classes .* split 'shapes'; .*variant = 'all'"):
        overlapping_classes("imagenet-1k", "shapes")
