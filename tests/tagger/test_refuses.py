"""Bad input to the tagger: one sentence that names the culprit, and nothing changed."""

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from fewtag import InputError, Tagger
from fewtag.pictures.files import encoded_bytes, open_image, several
from fewtag.tagger.bank import annotations_of, label_name
from fewtag.tagger.model import Model

Draw = Callable[..., Image.Image]
GOOD = np.zeros((8, 8, 3), np.uint8)
LEARNING: dict[str, tuple[list[Any], Any, str]] = {
    "lengths": ([GOOD, GOOD], [["dog"]], "found 2 pictures and labels for 1"),
    "none": ([], [], "no picture to learn from"),
    "no label": ([GOOD, GOOD], [["dog"], []], "image number 2 has no label"),
    "empty name": ([GOOD], [["dog", " "]], "label of image number 1 is empty"),
    "a string of labels": ([GOOD], "dog", r"use \[\['dog'\]\]"),
    "nothing for labels": ([GOOD], None, r"found None; use \[\[\"dog\"\], \[\"cat\", \"sofa\"\]\], say"),
    "labels by numbers": ([GOOD], [{"dog": 1, "cat": 0}], "labels of image number 1 are {'dog': 1, 'cat': 0}; give a"),
    "a mapping": ([GOOD], {"dog": 1}, r"labels are a list with the names of each picture, found {'dog': 1}"),
    "an address": (["https://x.org/a.jpg"], ["dog"], "image https://x.org/a.jpg is an address, and none is fetched"),
    "missing file": ([GOOD, "no/such.jpg"], ["dog", "dog"], r"cannot read image no/such\.jpg: there is no such file"),
    "no picture": ([b"no picture"], ["dog"], "image number 1 cannot be decoded"),
    "floats": ([GOOD, GOOD / 2], ["dog", "dog"], "image number 2 is an array of 8 × 8 × 3 float64"),
    "channels first": ([GOOD.transpose(2, 0, 1)], ["dog"], "array of 3 × 8 × 8 uint8; give height × width × 3"),
    "empty array": ([GOOD[:0]], ["dog"], "array of 0 × 8 × 3"),
    "no pixel": ([GOOD, Image.new("RGB", (0, 5))], ["dog", "dog"], "image number 2 has no pixel: it is 0 × 5"),
    "a set of labels": ([GOOD, GOOD], {"dog", "cat"}, "a set has no order by which pictures have their labels"),
    "a number": ([7], ["dog"], "image number 1 is of type int; give a path"),
    "a number as a label": ([GOOD], [[7]], "label of image number 1 is 7, of type int"),
}


@pytest.mark.parametrize("complete", [[True, False], "no", None, 1])
def test_what_is_complete_is_said_of_all_pictures_at_once(model: Model, complete: Any) -> None:
    """It was taken as it came, and the bank that was saved then could not be read."""
    tagger = Tagger(model=model)
    with pytest.raises(InputError, match="give True or False, which holds for every picture of the call"):
        tagger.fit([GOOD, GOOD + 1], [["dog"], ["cat"]], complete=complete)
    assert tagger.fit([GOOD], [["dog"]], complete=np.bool_(True)).examples_("dog")


@pytest.fixture
def taught(tagger: Tagger, draw: Draw) -> Tagger:
    return tagger.fit([draw(1, "dog"), draw(2, "cat")], ["dog", "cat"])


@pytest.mark.parametrize("verb", ["fit", "partial_fit"])
@pytest.mark.parametrize(("images", "labels", "message"), LEARNING.values(), ids=LEARNING)
def test_bad_examples_are_refused_and_change_nothing(
    taught: Tagger, verb: str, images: list[Any], labels: Any, message: str
) -> None:
    before = taught.bank_
    with pytest.raises(InputError, match=message) as error:
        getattr(taught, verb)(images, labels)
    assert_fits_python(error.value)
    assert taught.bank_ is before


def assert_fits_python(error: InputError) -> None:
    """One sentence, without the flags of the command line."""
    assert "\n" not in str(error)
    assert "--" not in str(error)


def test_a_set_of_pictures_is_refused_and_one_of_a_pictures_labels_is_not(taught: Tagger) -> None:
    with pytest.raises(InputError, match="a set has no order"):
        taught.fit({"a.jpg", "b.jpg"}, ["dog", "cat"])
    assert taught.fit(GOOD, {"dog", "cat"}).fit([GOOD], [{"dog", "cat"}]).classes_ == ("cat", "dog")


def test_an_iterator_of_another_length_is_refused_too(taught: Tagger) -> None:
    for count in (1, 3):
        with pytest.raises(InputError, match=f"found {count} pictures? and labels for 2"):
            taught.partial_fit((GOOD for _ in range(count)), ["dog", "dog"])


ASKING: dict[str, tuple[Callable[[Tagger], object], str]] = {
    "define twice": (lambda tagger: tagger.define("x", like=["dog"], words=False), "defined in two ways"),
    "define unknown": (
        lambda tagger: tagger.define("zzqxv flurbish"),
        "'zzqxv flurbish' is unknown.*it is like.*a vector of your own.*without words",
    ),
    "define near": (lambda tagger: tagger.define("zebbra"), "nearest known words: zebra"),
    "like unknown": (lambda tagger: tagger.define("x", like=["dog", "zebbra"]), "'zebbra' is unknown"),
    "like nothing": (lambda tagger: tagger.define("x", like=[]), "is like nothing"),
    "like commas": (lambda tagger: tagger.define("x", like=" , "), "is like nothing"),
    "short vector": (lambda tagger: tagger.define("x", vector=[1.0] * 3), "has 3 numbers, words 'pieces' have 384"),
    "bad vector": (lambda tagger: tagger.define("x", vector=[np.nan] * 384), "not finite"),
    "no name": (lambda tagger: tagger.define(""), "a label is empty"),
    "forget unknown": (lambda tagger: tagger.forget("dgo"), r"there is no label 'dgo'; did you mean 'dog'\?"),
    "forget no example": (
        lambda tagger: tagger.forget("dog", GOOD),
        "image given is no example of label 'dog', which has 1",
    ),
    "forget no number": (lambda tagger: tagger.forget("dog", example=2), "has examples 1 to 1, there is no number 2"),
    "forget number 0": (lambda tagger: tagger.forget("dog", example=0), "has examples 1 to 1, there is no number 0"),
    "forget no such name": (lambda tagger: tagger.forget("dog", example="x.jpg"), "no example of .* is called 'x.jpg'"),
    "forget twice": (lambda tagger: tagger.forget("dog", GOOD, example=1), "named twice"),
    "rename unknown": (lambda tagger: tagger.rename("dgo", "x"), "did you mean 'dog'"),
    "rename known": (lambda tagger: tagger.rename("dog", "cat"), "there is a label 'cat' already"),
    "threshold unknown": (lambda tagger: tagger.set_thresholds({"dgo": 0.5}), "did you mean 'dog'"),
    "threshold over one": (lambda tagger: tagger.set_thresholds({"dog": 1.5}), "is 1.5; give one from 0 to 1"),
    "threshold of a word": (lambda tagger: tagger.set_thresholds({"dog": cast(float, "high")}), "is 'high'; give one"),
    "share of a word": (lambda tagger: tagger.set_priors({"dog": cast(float, "rare")}), "is 'rare'; give one between"),
    "predict over a word": (lambda tagger: tagger.predict(GOOD, cast(float, "0.5")), "threshold is '0.5'; give one"),
    "explain unknown": (lambda tagger: tagger.explain(GOOD, "cta"), "did you mean 'cat'"),
    "examples unknown": (lambda tagger: tagger.examples_("cta"), "did you mean 'cat'"),
    "predict over one": (lambda tagger: tagger.predict(GOOD, threshold=1.5), "threshold is 1.5; give one from 0 to 1"),
    "predict over no number": (
        lambda tagger: tagger.predict(GOOD, threshold=float("nan")),
        "threshold is nan; give one from 0 to 1, or none to take each label's own",
    ),
    "tag below zero": (lambda tagger: list(tagger.tag(GOOD, threshold=-1.0)), "threshold is -1.0"),
    "bad file": (lambda tagger: tagger.predict([GOOD, __file__]), r"test_refuses\.py cannot be decoded"),
    "missing file": (lambda tagger: tagger.predict_proba("dog.jpg"), r"dog\.jpg: there is no such file"),
}


@pytest.mark.parametrize(("ask", "message"), ASKING.values(), ids=ASKING)
def test_bad_questions_are_refused_and_change_nothing(
    taught: Tagger, ask: Callable[[Tagger], object], message: str
) -> None:
    before = taught.bank_
    with pytest.raises(InputError, match=message) as error:
        ask(taught)
    assert_fits_python(error.value)
    assert taught.bank_ is before


def test_nothing_is_known_before_a_label_is(tagger: Tagger) -> None:
    for ask in (tagger.predict, tagger.predict_proba, lambda images: list(tagger.tag(images))):
        with pytest.raises(InputError, match="no label is known yet"):
            ask([GOOD])
    with pytest.raises(InputError, match="no label 'dog'; none is known yet"):
        tagger.forget("dog")
    tagger.define("dog").define("xyzzy", words=False)
    with pytest.raises(InputError, match="'xyzzy' has neither a word nor an example"):
        tagger.explain(GOOD, "xyzzy")


def test_no_words_for_a_label_is_no_prototype_even_if_it_is_the_only_one(tagger: Tagger) -> None:
    tagger.define("xyzzy", words=False)
    with pytest.raises(InputError, match=r"no label is known yet|neither a word nor an example"):
        tagger.explain(GOOD, "xyzzy")


@pytest.mark.parametrize("single", [Path("x.jpg"), Image.new("RGB", (2, 2)), GOOD, GOOD[..., 0], "x.jpg", b"x"])
def test_one_picture_is_a_list_of_one(single: object) -> None:
    (only,) = several(single)
    assert only is single


class Frame:
    """Like a data frame, which gives the names of its columns."""

    columns = ("image", "labels")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


def test_a_block_of_pictures_is_a_list() -> None:
    assert len(list(several(np.stack([GOOD, GOOD])))) == 2


@pytest.mark.parametrize(("given", "kind"), [(7, "int"), ({"image": "a.jpg"}, "dict"), (Frame(), "Frame")])
def test_what_holds_no_pictures_is_named(given: object, kind: str) -> None:
    with pytest.raises(InputError, match=f"pictures are expected, one or a list of them, found {kind}"):
        several(given)


def test_what_is_no_picture_is_named() -> None:
    with pytest.raises(InputError, match="image number 4 is of type int; give a path"):
        open_image(7, "number 4")


def test_files_of_text_and_closed_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="image number 1 is a file of text; open it with mode 'rb'"):
        encoded_bytes(io.StringIO("x"), "number 1")
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(InputError, match="cannot read image number 1: I/O operation on closed file"):
        encoded_bytes(closed, "number 1")
    with (tmp_path / "x").open("wb") as file, pytest.raises(InputError, match="cannot read image number 1"):
        encoded_bytes(file, "number 1")


def test_tagging_refuses_at_once_not_at_the_first_row(taught: Tagger) -> None:
    for options, sentence in (({"threshold": 3.0}, "the threshold is 3.0"), ({"batch": 0}, "the batch is 0 pictures")):
        with pytest.raises(InputError, match=sentence):
            taught.tag([GOOD], **options)
    with pytest.raises(InputError, match="one or a list of them, found ndarray"):
        taught.predict(np.array("a.jpg"))


@pytest.mark.parametrize("source", ["\\\\host\\share\\m.safetensors", "//host/share/m.safetensors", "\\/host/m"])
def test_a_bank_that_names_a_model_on_another_computer_asks_for_none(
    model: Model, draw: Draw, tmp_path: Path, source: str
) -> None:
    bank = tmp_path / "b.fewtag"
    Tagger(replace(model, source=source)).fit([draw(1, "dog")], ["dog"]).save(bank)
    with pytest.raises(InputError, match="names a model on another computer") as error:
        Tagger.load(bank)
    assert_fits_python(error.value)
    assert Tagger.load(bank, model=model).classes_ == ("dog",)


def test_a_damaged_pil_image_is_named(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    with pytest.raises(InputError, match="image number 2 cannot be decoded: it is truncated"):
        open_image(Image.open(tmp_path / "cut.png"), "number 2")


def test_labels_are_names() -> None:
    with pytest.raises(InputError, match="label of image number 2 is 7, of type int"):
        annotations_of([["dog"], ["dog", 7]], None, False)
    with pytest.raises(InputError, match="labels of image number 1 are 7"):
        annotations_of([7], None, False)
    with pytest.raises(InputError, match="found None"):
        annotations_of(None, None, False)
    with pytest.raises(InputError, match="is no text that could be written"):
        label_name(os.fsdecode(b"caf\xe9"))
    for letter in "\0\x1b\x7f\x9b":
        with pytest.raises(InputError, match="has a control character"):
            label_name(f"do{letter}g")


@pytest.mark.parametrize("name", ["red \x1b[31mdog", "do\x07g", "dog\x7f", "do\x00g", "d\x9bog"])
def test_a_name_has_no_control_characters(name: str) -> None:
    with pytest.raises(InputError, match="has a control character"):
        label_name(name)


def test_a_name_may_have_joiners_and_marks() -> None:
    """Emoji of families and Persian need the former, many scripts the latter."""
    for name in ("👩‍🚀", "می‌خواهم", "नमस्ते"):
        assert label_name(name) == name


def test_one_spelling_of_each_name() -> None:
    assert label_name("  cafe\u0301 \n noir ") == "caf\u00e9 noir"
    # pasted from a web page, or the mark at the head of a file: else there would be two labels that look the same
    assert label_name("\ufeffdog\u200b house\u2060 \u200b bo\u00adne") == "dog house bone"
