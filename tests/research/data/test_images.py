from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages


def labelled(ids: str, labels: str, targets: list[list[int]]) -> LabelledImages:
    pictures = tuple(Picture(Path(name)) for name in ids)
    return LabelledImages(tuple(ids), pictures, tuple(labels), np.array(targets, dtype=bool).reshape(len(ids), -1))


def test_the_digest_ignores_the_order_of_images_and_labels():
    one = labelled("ab", "xy", [[1, 0], [1, 1]])
    assert one.digest == labelled("ba", "yx", [[1, 1], [0, 1]]).digest
    assert one.digest != labelled("ab", "xy", [[1, 1], [1, 1]]).digest
    assert one.digest != labelled("ab", "xz", [[1, 0], [1, 1]]).digest


def test_an_image_listed_twice_is_named():
    with pytest.raises(InputError, match="'a' is listed twice"):
        labelled("aba", "x", [[1], [1], [1]])


def test_an_empty_data_set_is_refused():
    with pytest.raises(InputError, match="empty"):
        LabelledImages((), (), ("x",), np.zeros((0, 1), dtype=bool))


@given(arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 4))), st.integers(1, 4))
def test_a_thinned_data_set_shows_each_label_as_often_as_asked_or_as_all_of_it_does(targets: np.ndarray, most: int):
    names = "abcdefghijkl"[: len(targets)]
    whole = labelled(names, "wxyz"[: targets.shape[1]], targets.tolist())
    if not targets.any():
        return
    part = whole.thin(most)
    assert (part.targets.sum(axis=0) >= np.minimum(targets.sum(axis=0), most)).all()
    assert sorted(part.ids) == list(part.ids)
    for number, name in enumerate(part.ids):  # none is there without need
        before = part.targets[:number].sum(axis=0)
        assert (before[targets[names.index(name)]] < most).any()


def test_rows_and_select_follow_the_order_asked_for():
    images = labelled("abc", "xy", [[1, 0], [1, 1], [0, 1]])
    chosen = images.select(images.rows(["c", "a"]))
    assert (chosen.ids, chosen.labels, chosen.targets.tolist()) == (
        ("c", "a"),
        ("x", "y"),
        [[False, True], [True, False]],
    )
    with pytest.raises(InputError, match="'z' is not in the data set"):
        images.rows(["a", "z"])


def test_check_names_the_first_missing_picture_and_counts(make):
    there = Picture(make("a.jpg"))
    images = LabelledImages(("a", "b"), (there, Picture(Path("gone.jpg"))), ("x",), np.ones((2, 1), dtype=bool))
    with pytest.raises(InputError, match=r"1 of 2 images are missing, the first is gone\.jpg"):
        images.check()
    images.select([0]).check()
