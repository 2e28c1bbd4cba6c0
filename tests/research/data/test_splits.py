import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.splits import Split

TINY = {
    "name": "tiny",
    "groups": {"base": ["car", "bus"], "novel": ["dog", "tvmonitor"]},
    "phases": {
        "train": {"labels": ["base"], "must_not_show": ["novel"]},
        "test": {"labels": ["novel"]},
        "mixed": {"labels": ["novel"], "must_show": ["base"]},
    },
    "words": {"tvmonitor": "tv monitor"},
    "aliases": {"tv": "tvmonitor"},
}

EMPTY = {"must_not_show": [], "must_show": []}


@pytest.fixture
def load(tmp_path):
    def write(**changes):
        path = tmp_path / "tiny.json"
        path.write_text(json.dumps(TINY | changes))
        return Split.load(str(path))

    return write


def images(*shown: str) -> LabelledImages:
    """images("car dog", "bus"): one image each, named by its place."""
    labels = sorted({label for text in shown for label in text.split()})
    targets = np.array([[label in text.split() for label in labels] for text in shown])
    ids = tuple(str(number) for number in range(len(shown)))
    return LabelledImages(ids, tuple(Picture(Path(name)) for name in ids), tuple(labels), targets)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("coco", {"train": 52, "val": 12, "test": 16}),
        ("voc", {"train": 8, "val": 6, "test": 6}),
        ("laso", {"train": 64, "test": 16}),
    ],
)
def test_the_papers_splits_have_the_papers_sizes_and_share_no_label(name, sizes):
    split = Split.load(name)
    phases = [split.phases[phase] for phase in sizes]
    assert [len(phase.labels) for phase in phases] == list(sizes.values())
    assert all(set(one.labels).isdisjoint(other.labels) for one, other in combinations(phases, 2))
    assert len(split.labels) == len(set(split.labels)) == sum(sizes.values())


def test_laso_and_the_paper_have_the_same_novel_labels():
    coco, laso = Split.load("coco"), Split.load("laso")
    assert coco.phases["test"].labels == laso.phases["test"].labels
    assert set(laso.phases["train"].labels) == {*coco.phases["train"].labels, *coco.phases["val"].labels}


def test_training_never_shows_what_is_tested():
    for name in ("coco", "voc", "laso-novel-free"):
        phases = Split.load(name).phases
        assert set(phases["test"].labels) <= set(phases["train"].must_not_show)


def test_by_lasos_rule_base_pictures_may_show_novel_objects_whose_labels_are_withheld():
    shown = images("dog", "dog fork", "fork", "car")
    for name, kept in (("laso", ["0", "1", "3"]), ("laso-novel-free", ["0", "3"])):
        split = Split.load(name)
        few = split.phases["train"].model_copy(update={"labels": ["dog", "car"]})
        small = split.model_copy(update={"phases": {"train": few}})
        served = small.phase(shown, "train")
        assert (list(served.ids), served.labels) == (kept, ("dog", "car"))


def test_any_picture_with_a_novel_label_is_test_and_mixed_together():
    coco = Split.load("coco").phases
    assert coco["any"].labels == coco["test"].labels
    assert not coco["any"].must_show
    assert not coco["any"].must_not_show


def test_words_spell_a_label_out():
    split = Split.load("voc")
    assert [split.spelt(label) for label in ("tvmonitor", "pottedplant", "dog")] == [
        "tv monitor",
        "potted plant",
        "dog",
    ]


def test_a_phase_keeps_the_images_its_rules_allow(load):
    data = images("car", "car dog", "dog tvmonitor", "bus", "bus tvmonitor")
    split = load()
    assert split.phase(data, "train").ids == ("0", "3")
    assert split.phase(data, "test").ids == ("1", "2", "4")
    assert split.phase(data, "mixed").ids == ("1", "4")
    assert split.phase(data, "train").labels == ("car", "bus")
    assert split.phase(data, "test").targets.tolist() == [[True, False], [True, True], [False, True]]


def test_an_empty_list_of_groups_is_no_rule(load):
    data = images("car", "car dog", "bus", "dog tvmonitor")
    said, unsaid = (load(phases={"train": {"labels": ["base"]} | rule}).phase(data, "train") for rule in (EMPTY, {}))
    assert said.ids == unsaid.ids == ("0", "1", "2")


def test_aliases_join_two_spellings_in_one_column(load):
    test = load().phase(images("tv", "tvmonitor", "dog"), "test")
    assert test.targets.tolist() == [[False, True], [False, True], [True, False]]


def test_a_label_the_split_does_not_know_is_refused_or_ignored(load):
    data = images("car doog", "bus", "doog")
    with pytest.raises(InputError, match="does not know the data set's label 'doog'; did you mean 'dog'"):
        load().phase(data, "train")
    assert load().phase(data, "train", other_labels="ignore").ids == ("0", "1")


def test_a_phase_label_without_an_image_is_named(load):
    with pytest.raises(InputError, match=r"1 of the 2 labels of phase 'train' have no image .* the first is 'bus'"):
        load().phase(images("car", "bus dog"), "train")


def test_an_unknown_name_is_refused_with_the_nearest(load):
    with pytest.raises(InputError, match="no phase 'tets'; did you mean 'test'"):
        load().phase(images("car"), "tets")
    with pytest.raises(InputError, match="no split 'cocoo', and no such file; did you mean 'coco'"):
        Split.load("cocoo")
    with pytest.raises(InputError, match=r"cannot read the split gone\.json"):
        Split.load("gone.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aliasses": {}}, "unknown key, 'aliasses'; did you mean 'aliases'"),
        ({"name": ""}, "wrong at 'name'"),
        ({"groups": {"base": []}}, "wrong at 'groups → base' .*at least 1 item"),
        ({"groups": {"base": ["car"], "novel": ["car"]}}, "'car' is in group 'base' and again in 'novel'"),
        ({"phases": {}}, "wrong at 'phases' .*at least 1 item"),
        ({"phases": {"train": {"labels": []}}}, "wrong at 'phases → train → labels' .*at least 1 item"),
        (
            {"phases": {"train": {"labels": ["bsae"]}}},
            "phase 'train': 'labels' has an unknown group, 'bsae'; did you mean 'base'",
        ),
        (
            {"phases": {"train": {"labels": ["base"], "must_show": "novel"}}},
            "phases → train → must_show' .*valid array",
        ),
        ({"phases": {"train": {"label": ["base"]}}}, "wrong at 'phases → train → labels' .*required"),
        (
            {"phases": {"train": {"labels": ["base"], "must_not": ["novel"]}}},
            "unknown key, 'phases → train → must_not'; did you mean 'must_not_show'",
        ),
        ({"phases": {"train": {"labels": ["base"], "must_not_show": ["base"]}}}, "forbids and wants group 'base'"),
        ({"words": {"tv": "tv"}}, "unknown label, 'tv'"),
        ({"aliases": {"tv": "television"}}, "leads to an unknown label, 'television'"),
        ({"aliases": {"car": "bus"}}, "'car' is both a label and an alias"),
    ],
)
def test_a_bad_split_is_refused(load, changes, message):
    with pytest.raises(InputError, match=message):
        load(**changes)


def test_what_is_no_json_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        Split.load(str(tmp_path / "x.json"))
