"""Bad input to the tagger: one sentence that names the culprit, and nothing changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fewtag import Tagger
from fewtag.errors import InputError
from fewtag.tagger.inputs import label_name, label_sets, open_image, several

Draw = Callable[..., Image.Image]
GOOD = np.zeros((8, 8, 3), np.uint8)
LEARNING: dict[str, tuple[list[Any], Any, str]] = {
    "lengths": ([GOOD, GOOD], [["dog"]], "found 2 pictures and labels for 1"),
    "none": ([], [], "no picture to learn from"),
    "no label": ([GOOD, GOOD], [["dog"], []], "image number 2 has no label"),
    "empty name": ([GOOD], [["dog", " "]], "label of image number 1 is empty"),
    "a string of labels": ([GOOD], "dog", r"use \[\['dog'\]\]"),
    "unknown word": ([GOOD], [["dog", "zebbra"]], "nearest known words: zebra.*it is like.*a vector.*without words"),
    "missing file": ([GOOD, "no/such.jpg"], ["dog", "dog"], r"cannot read image no/such\.jpg: there is no such file"),
    "floats": ([GOOD, GOOD / 2], ["dog", "dog"], "image number 2 is an array of 8 × 8 × 3 float64"),
    "channels first": ([GOOD.transpose(2, 0, 1)], ["dog"], "array of 3 × 8 × 8 uint8; give height × width × 3"),
    "empty array": ([GOOD[:0]], ["dog"], "array of 0 × 8 × 3"),
}


@pytest.fixture
def taught(tagger: Tagger, draw: Draw) -> Tagger:
    return tagger.fit([draw(1, "dog"), draw(2, "cat")], ["dog", "cat"])


@pytest.mark.parametrize("verb", ["fit", "partial_fit"])
@pytest.mark.parametrize(("images", "labels", "message"), LEARNING.values(), ids=LEARNING)
def test_bad_examples_are_refused_and_change_nothing(
    taught: Tagger, verb: str, images: list[Any], labels: Any, message: str
) -> None:
    before = taught._bank
    with pytest.raises(InputError, match=message) as error:
        getattr(taught, verb)(images, labels)
    assert "\n" not in str(error.value)
    assert taught._bank is before


def test_an_iterator_of_another_length_is_refused_too(taught: Tagger) -> None:
    for count in (1, 3):
        with pytest.raises(InputError, match=f"found {count} pictures and labels for 2"):
            taught.partial_fit((GOOD for _ in range(count)), ["dog", "dog"])


ASKING: dict[str, tuple[Callable[[Tagger], object], str]] = {
    "define twice": (lambda tagger: tagger.define("x", like=["dog"], words=False), "defined in two ways"),
    "define unknown": (lambda tagger: tagger.define("zebbra"), "nearest known words: zebra"),
    "like unknown": (lambda tagger: tagger.define("x", like=["dog", "zebbra"]), "'zebbra' is unknown"),
    "like nothing": (lambda tagger: tagger.define("x", like=[]), "is like nothing"),
    "short vector": (lambda tagger: tagger.define("x", vector=[1.0] * 3), "has 3 numbers, words 'few' have 8"),
    "bad vector": (lambda tagger: tagger.define("x", vector=[np.nan] * 8), "not finite"),
    "no name": (lambda tagger: tagger.define(""), "a label is empty"),
    "forget unknown": (lambda tagger: tagger.forget("dgo"), r"there is no label 'dgo'; did you mean 'dog'\?"),
    "forget no example": (
        lambda tagger: tagger.forget("dog", GOOD),
        "image given is none of the 1 examples of .*'dog'",
    ),
    "explain unknown": (lambda tagger: tagger.explain(GOOD, "cta"), "did you mean 'cat'"),
    "one path": (lambda tagger: tagger.predict("dog.jpg"), "a list of pictures is expected, found a str"),
    "one array": (lambda tagger: tagger.predict_proba(GOOD), "found an array of one picture"),
    "bad file": (lambda tagger: tagger.predict([GOOD, __file__]), r"test_tagger_refuses\.py cannot be decoded"),
}


@pytest.mark.parametrize(("ask", "message"), ASKING.values(), ids=ASKING)
def test_bad_questions_are_refused_and_change_nothing(
    taught: Tagger, ask: Callable[[Tagger], object], message: str
) -> None:
    before = taught._bank
    with pytest.raises(InputError, match=message) as error:
        ask(taught)
    assert "\n" not in str(error.value)
    assert taught._bank is before


def test_nothing_is_known_before_a_label_is(tagger: Tagger) -> None:
    for ask in (tagger.predict, tagger.predict_proba):
        with pytest.raises(InputError, match="no label is known yet"):
            ask([GOOD])
    with pytest.raises(InputError, match="no label 'dog'; none is known yet"):
        tagger.forget("dog")
    tagger.define("dog").define("xyzzy", words=False)
    with pytest.raises(InputError, match="'xyzzy' has neither a word nor an example"):
        tagger.explain(GOOD, "xyzzy")


# these are called by themselves: in tests, beartype refuses wrong types at the tagger's door


@pytest.mark.parametrize("single", [Path("x.jpg"), Image.new("RGB", (2, 2)), GOOD, "x.jpg", 3])
def test_one_picture_is_no_list(single: object) -> None:
    with pytest.raises(InputError, match=r"put it in brackets: \[picture\]"):
        several(single)


def test_a_block_of_pictures_is_a_list() -> None:
    assert len(list(several(np.stack([GOOD, GOOD])))) == 2


def test_what_is_no_picture_is_named() -> None:
    with pytest.raises(InputError, match="image number 4 is a int; give a path"):
        open_image(7, "number 4")


def test_a_damaged_pil_image_is_named(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    with pytest.raises(InputError, match="image number 2 cannot be decoded: it is truncated"):
        open_image(Image.open(tmp_path / "cut.png"), "number 2")


def test_labels_are_names() -> None:
    with pytest.raises(InputError, match="label of image number 2 is 7, a int"):
        label_sets([["dog"], ["dog", 7]])
    with pytest.raises(InputError, match="labels of image number 1 are 7"):
        label_sets([7])
    with pytest.raises(InputError, match="found None"):
        label_sets(None)


def test_one_spelling_of_each_name() -> None:
    assert label_name("  cafe\u0301 \n noir ") == "caf\u00e9 noir"
