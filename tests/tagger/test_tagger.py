"""The tagger: labels from a picture or a word each, whatever the order, asked by many while one teaches."""

import copy
import io
import multiprocessing
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import classifiers_of
from tiny import same_classifiers as same

from fewtag import InputError, Tagged, Tagger
from fewtag.core.calibration import EASE
from fewtag.core.posterior import Classifiers, Fitted, Pictures, fit_label, unit
from fewtag.errors import UnavailableError
from fewtag.pictures.decode import squash, stack
from fewtag.pictures.files import Picture
from fewtag.runtime import Network
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import cached_places, encode_stream, items_of, widen

Draw = Callable[..., Image.Image]
Examples = tuple[list[Any], list[list[str]]]
ALBUM = Path(__file__).parents[2] / "examples" / "album"
PETS = [["dog"], ["cat", "sofa"], ["dog", "sofa"], ["cat"]]


@pytest.fixture
def pets(draw: Draw) -> Examples:
    return [draw(number, *labels) for number, labels in enumerate(PETS)], PETS


@pytest.fixture
def queries(draw: Draw) -> list[Any]:
    return [draw(20, "dog"), draw(21, "cat"), draw(22, "sofa", "dog"), draw(23)]


def encode(model: Model, images: list[Any]) -> np.ndarray:
    return np.concatenate(list(encode_stream(model, items_of(images))))


def classifier(tagger: Tagger, label: str) -> Fitted:
    return tagger.bank_.classifier(tagger.model, label)


def test_learning_and_asking(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    assert tagger.classes_ == ()
    assert tagger.thresholds_ == {}
    assert tagger.fit(*pets) is tagger
    assert tagger.classes_ == ("cat", "dog", "sofa")
    assert tagger.counts_ == {"cat": 2, "dog": 2, "sofa": 2}
    assert repr(tagger) == "Tagger(model='tiny', words='pieces', labels=3, examples=4)"
    probabilities = tagger.predict_proba(queries)
    assert probabilities.shape == (4, 3)
    assert probabilities.dtype == np.float32
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_predict_names_what_is_over_its_threshold_likeliest_first(
    tagger: Tagger, pets: Examples, queries: list[Any]
) -> None:
    tagger.fit(*pets).define("zebra")
    assert tagger.thresholds_["zebra"] == pytest.approx(EASE * 0.3)
    assert EASE * 0.3 < tagger.thresholds_["dog"] < EASE * 0.4
    tagger.set_priors(dict.fromkeys(tagger.classes_, 0.7))  # so common that several are given
    lengths = set()
    for names, row in zip(tagger.predict(queries), tagger.predict_proba(queries), strict=True):
        found = dict(zip(tagger.classes_, row.tolist(), strict=True))
        over = [label for label in found if found[label] >= tagger.thresholds_[label]]
        assert list(names) == sorted(over, key=lambda label: -found[label])
        lengths.add(len(names))
    assert max(lengths) > 1


def test_one_threshold_may_stand_for_each_labels_own(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    tagger.fit(*pets)
    assert all(len(names) == 3 for names in tagger.predict(queries, threshold=0.0))
    assert tagger.predict(queries, threshold=1.0) == [()] * 4
    rows = tagger.predict_proba(queries)
    expected = [{name for name, value in zip(tagger.classes_, row, strict=True) if value >= 0.6} for row in rows]
    assert [set(names) for names in tagger.predict(queries, threshold=0.6)] == expected
    assert [set(row.tags) for row in tagger.tag(queries, threshold=0.6)] == expected


def test_a_person_sets_thresholds_and_takes_them_back(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    usual = dict(tagger.fit(*pets).thresholds_)
    tagger.set_thresholds({"dog": 0.0, "cat": 1.0})
    assert tagger.thresholds_ == {"dog": 0.0, "cat": 1.0, "sofa": usual["sofa"]}
    assert all("dog" in names and "cat" not in names for names in tagger.predict(queries))
    tagger.define("dog", like="cat")
    assert tagger.thresholds_["dog"] == 0.0, "what it means is another matter"
    assert tagger.set_thresholds({"dog": None, "cat": None}).thresholds_ == usual


def test_a_label_is_found_where_it_is_shown(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(number, label) for number in range(5) for label in ("dog", "sofa")], [["dog"], ["sofa"]] * 5)
    dogs, sofas = ([draw(number, label) for number in range(30, 45)] for label in ("dog", "sofa"))
    difference = np.diff(tagger.predict_proba(dogs + sofas))[:, 0]
    assert difference[:15].mean() < difference[15:].mean()


def test_probabilities_are_the_posteriors(model: Model, tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    """From the pictures' own places, where the bank keeps a byte a number."""
    tagger.fit(*pets, absent=[["cat"], [], [], []])
    words = model.word_prototypes(model.words.vectors(tagger.classes_))
    shown = np.array([[label in labels for label in tagger.classes_] for labels in PETS])
    weights = np.where(shown, 1, model.strengths.unnamed).astype(np.float32)
    weights[0, 0] = 1  # not a cat: someone said so
    pictures = Pictures.of(encode(model, pets[0]))
    fitted = [
        fit_label(pictures, shown[:, column], weights[:, column], words[column], model.strengths, model.evidence)
        for column in range(3)
    ]
    logits = Classifiers.of(fitted).logits(encode(model, queries), model.strengths)
    noes = (weights * ~shown).sum(axis=0)
    slopes, offsets = model.calibration.curves(shown.sum(axis=0), noes, np.full(3, 0.3, np.float32))
    np.testing.assert_allclose(tagger.predict_proba(queries), 1 / (1 + np.exp(-slopes * logits - offsets)), atol=0.02)


def test_the_prototype_is_the_closed_forms_where_the_pictures_bear_the_names_out(
    model: Model, pets: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewtag.tagger.bank.THING", 1 - 1e-12)
    tagger = Tagger(model).fit(*pets)
    assert min(tagger.trusts_.values()) > 0.999
    words = model.word_prototypes(model.words.vectors(tagger.classes_))
    shown = np.array([[label in labels for label in tagger.classes_] for labels in PETS])
    pictures, strengths = Pictures.of(encode(model, pets[0])), model.strengths
    for guide, word, mine in zip(classifiers_of(tagger.bank_, model).prototypes, words, shown.T, strict=True):
        visual = unit(pictures.attend(word, strengths.support_focus)[mine].sum(axis=0))
        assert guide @ unit(visual + strengths.word_weight * mine.sum() ** -strengths.word_decay * word) > 0.999


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(4)), cut=st.integers(0, 4), turned=st.booleans())
def test_order_does_not_matter_and_growing_equals_fitting_at_once(
    model: Model, order: list[int], cut: int, turned: bool
) -> None:
    images = [np.full((20, 30, 3), 60 * number, np.uint8) for number in range(4)]
    whole, parts = Tagger(model).fit(images, PETS), Tagger(model)
    for rows in (order[:cut], order[cut:]):
        if rows:
            parts.partial_fit([images[row] for row in rows], [PETS[row][:: -1 if turned else 1] for row in rows])
    assert same(parts, whole)


def test_the_same_examples_twice_change_nothing(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    before = tagger.fit(*pets).predict_proba(queries)
    again = tagger.partial_fit(*pets).partial_fit(pets[0] * 2, pets[1] * 2)
    assert len(again.bank_.examples) == 4
    assert np.array_equal(again.predict_proba(queries), before)


def test_labels_add_up_across_calls(model: Model, draw: Draw) -> None:
    image, other = draw(1, "dog"), draw(2, "cat")
    grown = Tagger(model).partial_fit([image, other], [["dog"], ["cat"]]).partial_fit([image], [["cat"]])
    assert grown.counts_ == {"cat": 2, "dog": 1}
    assert same(grown, Tagger(model).fit([image, other], [["dog", "cat"], ["cat"]]))


def test_a_picture_twice_in_one_call_shows_what_both_say(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), draw(1, "dog")], [["dog"], ["sofa"]])
    assert tagger.counts_ == {"dog": 1, "sofa": 1}
    assert len(tagger.bank_.examples) == 1


def test_examples_go_through_the_network_in_batches_that_keep_every_core_busy(
    tagger: Tagger, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, encode = list[int](), Model.encode
    monkeypatch.setattr(Model, "encode", lambda self, pixels: sizes.append(len(pixels)) or encode(self, pixels))
    tagger.fit([draw(number, "dog") for number in range(40)], ["dog"] * 40)
    assert sizes == [32, 8]


def test_known_pictures_need_no_pass_of_the_network(
    tagger: Tagger, pets: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagger.fit(*pets)
    monkeypatch.setattr(Network, "__call__", None)
    tagger.fit(*pets).partial_fit(*pets).define("dog", words=False).forget("cat")
    assert tagger.counts_ == {"dog": 2, "sofa": 2}


def test_an_example_that_does_not_name_a_label_moves_it_as_a_weak_no_and_leaves_its_prototype(
    model: Model, draw: Draw
) -> None:
    def logit_after(*, absent: bool, complete: bool = False, unnamed: float = model.strengths.unnamed) -> float:
        changed = replace(model, strengths=replace(model.strengths, unnamed=unnamed))
        tagger = Tagger(changed).fit([draw(1, "dog")], [["dog"]]).define("cat")
        before = classifier(tagger, "dog")
        tagger.partial_fit([draw(2, "cat")], [["cat"]], absent=[["dog"]] if absent else None, complete=complete)
        moved = np.abs(classifier(tagger, "dog").prototype - before.prototype).max()
        assert moved < 1e-3, "but for what it tells of the name"
        places = encode(changed, [draw(2, "cat")])
        return float(Classifiers.of([classifier(tagger, "dog")]).logits(places, changed.strengths)[0, 0])

    alone = Tagger(model).fit([draw(1, "dog")], [["dog"]])
    places = encode(model, [draw(2, "cat")])
    before = float(Classifiers.of([classifier(alone, "dog")]).logits(places, model.strengths)[0, 0])
    no = logit_after(absent=True)
    assert no < logit_after(absent=False) < before
    assert logit_after(absent=False, complete=True) == pytest.approx(no, abs=1e-3), "but for what it tells of the name"
    assert logit_after(absent=False, unnamed=1.0) == pytest.approx(no, abs=1e-3)
    assert logit_after(absent=False, unnamed=0.0) == pytest.approx(before, abs=1e-5)


def test_fit_forgets_examples_but_not_definitions(tagger: Tagger, draw: Draw) -> None:
    tagger.define("ectopia lentis", like=["lens", "eye"]).fit([draw(1, "dog")], [["dog"]])
    assert tagger.fit([draw(2, "cat")], [["cat", "ectopia lentis"]]).classes_ == ("cat", "ectopia lentis")


def test_one_name_need_not_be_in_a_list_and_blanks_do_not_count(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), draw(2, "cat")], ["dog", (" dog ", "cat")])
    assert tagger.counts_ == {"cat": 1, "dog": 2}


def test_the_labels_of_one_picture_need_no_list_around_them(tagger: Tagger, draw: Draw, tmp_path: Path) -> None:
    path = tmp_path / "dog.png"
    draw(1, "dog", "cat").save(path)
    for one in (path, str(path), path.read_bytes(), Image.open(path), np.asarray(Image.open(path))):
        for labels in ("dog", ["dog"], [["dog"]]):
            assert tagger.fit(one, labels).counts_ == {"dog": 1}
        for several in (["dog", "cat"], (name for name in ("dog", "cat")), [("dog", "cat")]):
            assert tagger.fit(one, several).counts_ == {"cat": 1, "dog": 1}
    tagger.partial_fit(draw(3, "sofa"), [], absent="dog")
    assert tagger.absent_counts_ == {"cat": 0, "dog": 1}


def kinds_of(path: Path) -> dict[str, Any]:
    image = Image.open(path).convert("RGB")
    return {
        "str": str(path),
        "path": path,
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "BytesIO": io.BytesIO(path.read_bytes()),
        "file": path.open("rb"),
        "PIL": image,
        "lazy PIL": Image.open(path),
        "array": np.asarray(image),
        "Picture": Picture(path),
        "string of numpy": np.array([str(path)])[0],
    }


def test_all_kinds_of_pictures_are_the_same(tagger: Tagger, draw: Draw, tmp_path: Path) -> None:
    draw(1, "dog").save(tmp_path / "dog.png")
    for name, image in kinds_of(tmp_path / "dog.png").items():
        tagger.partial_fit(image, ["dog"])
        assert tagger.counts_ == {"dog": 1}, name
    rows = tagger.predict_proba(list(kinds_of(tmp_path / "dog.png").values()))
    np.testing.assert_allclose(rows, rows[:1].repeat(len(rows), axis=0), atol=1e-6)
    for name, image in kinds_of(tmp_path / "dog.png").items():
        np.testing.assert_allclose(tagger.predict_proba(image), rows[:1], atol=1e-6, err_msg=f"one {name}")


def test_an_open_file_is_one_picture_from_its_beginning_however_often(tagger: Tagger, draw: Draw) -> None:
    image = draw(1, "dog")
    expected = tagger.fit([image, draw(2, "cat")], ["dog", "cat"]).predict_proba(image)
    with tempfile.NamedTemporaryFile(suffix=".png") as named:
        for file in (io.BytesIO(), named):
            image.save(file, "PNG")  # its position is at its end
            for _ in range(2):
                np.testing.assert_allclose(tagger.predict_proba(file), expected, atol=1e-6)  # type: ignore[arg-type]


def test_pictures_come_in_lists_arrays_and_iterators(tagger: Tagger, pets: Examples, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path, image in zip(paths, pets[0], strict=True):
        image.save(path)
    before = tagger.fit(*pets).predict_proba(pets[0])
    for images in (paths, np.array([str(path) for path in paths]), np.array(paths), np.stack(pets[0]), tuple(paths)):
        np.testing.assert_allclose(tagger.fit(images, PETS).predict_proba(images), before, atol=1e-6)
    again = tagger.fit(iter(paths), PETS).predict_proba(path for path in paths)
    np.testing.assert_allclose(again, before, atol=1e-6)
    assert tagger.predict_proba([]).shape == (0, 3)
    assert tagger.predict([]) == []


def test_grey_and_transparent_arrays_are_pictures(tagger: Tagger) -> None:
    grey = np.arange(600, dtype=np.uint16).reshape(20, 30).astype(np.uint8)
    clear = np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    tagger.fit([grey, grey[..., None], np.dstack([grey] * 3), clear], ["dog"] * 4)
    assert tagger.counts_ == {"dog": 1}


def test_exif_turns_a_picture_once(tagger: Tagger, draw: Draw, tmp_path: Path) -> None:
    upright = draw(1, "dog", size=(60, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "lying.png", exif=exif)
    lying = tmp_path / "lying.png"
    tagger.fit([lying, Image.open(lying), upright], ["dog"] * 3)
    assert tagger.counts_ == {"dog": 1}
    tagger.partial_fit([Picture(lying).open()], ["dog"])
    assert tagger.counts_ == {"dog": 1}, "what was turned already is not turned again"
    assert tagger.explain(lying, "dog").shape == (30, 60)


def test_a_name_alone_is_scored_at_once(model: Model, tagger: Tagger, queries: list[Any]) -> None:
    assert tagger.define("zebra") is tagger
    assert tagger.classes_ == ("zebra",)
    assert tagger.counts_ == {"zebra": 0}
    (word,) = model.word_prototypes(model.words.vectors(["zebra"]))
    np.testing.assert_allclose(classifier(tagger, "zebra").prototype, word, atol=1e-6)
    scores = Pictures.of(encode(model, queries)).scores(word, model.strengths)
    logits = (model.strengths.kappa * (scores - model.strengths.offset))[:, None]
    slopes, offsets = model.calibration.curves(
        np.zeros(1, np.int64), np.zeros(1, np.float32), np.array([0.3], np.float32)
    )
    np.testing.assert_allclose(tagger.predict_proba(queries), 1 / (1 + np.exp(-slopes * logits - offsets)), atol=1e-5)


DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"like": ["lens", "eye"]},
    {"like": "eye"},
    {"vector": "any"},
    {"words": False},
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
def test_a_label_may_be_defined_before_or_after_its_examples(
    model: Model, pets: Examples, definition: dict[str, Any]
) -> None:
    if "vector" in definition:
        definition = {"vector": np.linspace(-1, 1, model.words.dimensions)}
    before = Tagger(model).define("dog", **definition).partial_fit(*pets)
    assert same(before, Tagger(model).partial_fit(*pets).define("dog", **definition))


def test_a_new_definition_changes_attention_and_its_label_alone(tagger: Tagger, pets: Examples) -> None:
    tagger.fit(*pets)
    before = {label: classifier(tagger, label) for label in tagger.classes_}
    tagger.define("dog", like=["zebra", "eye"])
    assert classifier(tagger, "cat") is before["cat"]
    assert not np.allclose(classifier(tagger, "dog").prototype, before["dog"].prototype, atol=1e-3)
    assert np.array_equal(classifier(tagger.define("dog"), "dog").prototype, before["dog"].prototype)


def test_the_word_guides_attention_even_where_it_is_not_mixed_in(model: Model, pets: Examples) -> None:
    unmixed = replace(model, strengths=replace(model.strengths, word_weight=0.0))
    tagger = Tagger(unmixed).fit(*pets)
    before = classifier(tagger, "dog").prototype
    assert not np.allclose(classifier(tagger.define("dog", like=["cat"]), "dog").prototype, before, atol=1e-4)


def test_like_is_the_mean_of_the_words_and_knows_labels_too(model: Model, tagger: Tagger) -> None:
    own = np.linspace(-1, 1, model.words.dimensions, dtype=np.float32)
    tagger.define("thing", vector=own).define("other", like=["thing", "lens"])
    expected = (own + model.words.vector("lens")) / 2
    np.testing.assert_allclose(tagger.definitions_["other"].vector, expected, atol=1e-6)
    assert [str(found) for found in tagger.definitions_.values()] == ["like thing, lens", "a vector of its own"]


def test_like_takes_what_the_command_line_takes(model: Model) -> None:
    asked: list[Any] = ["lens, eye", ["lens", "eye"], np.array(["lens", "eye"])]
    both = [Tagger(model).define("ectopia lentis", like=like) for like in asked]
    assert same(*both[:2])
    assert same(*both[1:])
    assert str(both[0].definitions_["ectopia lentis"]) == "like lens, eye"


def test_without_words_pictures_alone_speak(model: Model, tagger: Tagger, draw: Draw) -> None:
    images = [draw(1, "dog"), draw(2, "dog")]
    tagger.define("xyzzy", words=False)
    assert tagger.classes_ == (), "nothing to score it by yet"
    tagger.partial_fit(images, ["xyzzy", "xyzzy"])
    assert tagger.classes_ == ("xyzzy",)
    pooled = unit(unit(encode(model, images).mean(axis=1)).sum(axis=0))
    assert pooled @ classifier(tagger, "xyzzy").prototype > 0.9999, "the mean over places, a picture as much as another"


@pytest.mark.slow
def test_a_name_that_is_no_word_is_learnt_from_pictures_with_a_warning(model: Model, draw: Draw) -> None:
    image = draw(1, "dog")
    with pytest.warns(UserWarning, match="'zzqxv flurbish' is no known word.*from its pictures alone") as warned:
        tagger = Tagger(model).fit([image], [["zzqxv flurbish", "dog"]])
    assert len(warned) == 1
    assert "--" not in str(warned[0].message), "no flags of the command line"
    with pytest.warns(UserWarning, match="'xyzzy' is no known word") as renamed:
        tagger.rename("dog", "xyzzy")
    assert str(tagger.definitions_["xyzzy"]) == "pictures only"
    assert str(tagger.rename("xyzzy", "dog").definitions_["dog"]) == "its name"
    assert {warned[0].filename, renamed[0].filename} == {__file__}, "the line that can be mended"
    assert str(tagger.definitions_["zzqxv flurbish"]) == "pictures only"
    silent = Tagger(model).define("zzqxv flurbish", words=False).fit([image], [["zzqxv flurbish", "dog"]])
    assert same(tagger, silent)


def test_examples_are_forgotten_one_by_one(model: Model, tagger: Tagger, pets: Examples) -> None:
    images, shown = pets
    tagger.fit(images, shown).forget("dog", images[0])
    assert tagger.counts_ == {"cat": 2, "dog": 1, "sofa": 2}
    assert same(tagger, Tagger(model).fit(images[1:], shown[1:]))
    tagger.forget("dog", images[2])
    assert tagger.counts_ == {"cat": 2, "sofa": 2}, "sofa keeps the picture that dog gave up"
    tagger.define("cat").forget("cat", images[1]).forget("cat", images[3])
    assert tagger.counts_ == {"cat": 0, "sofa": 2}, "a label that was defined stays"


def test_examples_are_forgotten_by_name_and_by_number(model: Model, draw: Draw, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("rex.png", "max.png", "7.png")]
    for number, path in enumerate(paths):
        draw(number, "dog").save(path)
    tagger = Tagger(model).fit(paths, ["dog"] * 3)
    assert sorted(tagger.examples_("dog")) == ["7.png", "max.png", "rex.png"]
    second = tagger.examples_("dog")[1]
    number: Any = np.int64(2)
    assert same(
        tagger.forget("dog", example=number), Tagger(model).fit([p for p in paths if p.name != second], ["dog"] * 2)
    )
    left = tagger.examples_("dog")[0]
    assert left not in tagger.forget("dog", example=left).examples_("dog")
    assert tagger.counts_ == {"dog": 1}
    tagger.forget("dog", example="1")
    assert tagger.counts_ == {}


def test_a_label_is_forgotten_with_its_definition(tagger: Tagger, pets: Examples) -> None:
    tagger.fit(*pets).define("dog", like=["eye"]).forget("dog")
    assert tagger.classes_ == ("cat", "sofa")
    assert len(tagger.bank_.examples) == 3, "a picture without labels goes"
    assert str(tagger.partial_fit([pets[0][0]], ["dog"]).definitions_["dog"]) == "its name"


def test_a_label_is_called_something_else(model: Model, pets: Examples) -> None:
    images, shown = pets
    renamed = Tagger(model).fit(images, shown).set_thresholds({"sofa": 0.7}).rename("sofa", "couch")
    assert renamed.thresholds_["couch"] == pytest.approx(0.7)
    fresh = [["couch" if label == "sofa" else label for label in labels] for labels in shown]
    assert same(renamed, Tagger(model).fit(images, fresh))
    assert renamed.rename("couch", " couch ") is renamed
    liked = Tagger(model).define("sofa", like="zebra").rename("sofa", "couch")
    assert str(liked.definitions_["couch"]) == "like zebra", "what a person said stays"


def test_two_labels_become_one(model: Model, pets: Examples) -> None:
    images, shown = pets
    tagger = Tagger(model).fit(images, shown)
    with pytest.raises(InputError, match="there is a label 'dog' already; choose another name, or merge the two"):
        tagger.rename("sofa", "dog")
    merged = [sorted({"dog" if label == "sofa" else label for label in labels}) for labels in shown]
    assert same(tagger.rename("sofa", "dog", merge=True), Tagger(model).fit(images, merged))


def test_what_lies_under_a_label_goes_along(model: Model, pets: Examples) -> None:
    images, shown = pets

    def called(**names: str) -> list[list[str]]:
        return [[names.get(label, label) for label in labels] for labels in shown]

    tagger = Tagger(model).fit(images, called(dog="animals/dog", cat="animals/cat", sofa="pets"))
    moved = Tagger(model).fit(images, called(dog="beasts/dog", cat="beasts/cat", sofa="pets"))
    assert same(tagger.rename("animals", "beasts"), moved), "of a group that is no label"
    tagger.define("pets/dog", words=False)
    with pytest.raises(InputError, match="there is a label 'pets/dog' already; choose another name, or merge the two"):
        tagger.rename("beasts", "pets")
    tagger.rename("beasts", "pets", merge=True)
    assert tagger.classes_ == ("pets", "pets/cat", "pets/dog")
    tagger.rename("pets", "pets/cat", merge=True)
    assert tagger.classes_ == ("pets/cat", "pets/dog"), "into one under it: the others stay"


def test_rows_carry_their_names_and_failures(tagger: Tagger, pets: Examples, draw: Draw, tmp_path: Path) -> None:
    draw(1, "dog").save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    given_ = [tmp_path / "a.png", "nowhere.jpg", draw(2), str(tmp_path / "b.jpg"), b"nothing"]
    done: list[int] = []
    rows = list(tagger.fit(*pets).tag(given_, progress=done.append, batch=4))
    assert [row.image for row in rows] == [
        str(tmp_path / "a.png"),
        "nowhere.jpg",
        "number 3",
        str(tmp_path / "b.jpg"),
        "number 5",
    ]
    assert [bool(row.failure) for row in rows] == [False, True, False, True, True]
    assert done == [4, 1]
    assert all(not row.tags and not row.scores for row in rows if row.failure)
    values = tagger.predict_proba([given_[0], given_[2]])
    for row, expected in zip((rows[0], rows[2]), values, strict=True):
        assert isinstance(row, Tagged)
        assert list(row.scores) == list(tagger.classes_)
        np.testing.assert_allclose(list(row.scores.values()), expected, atol=1e-6)
    assert [row.tags for row in (rows[0], rows[2])] == tagger.predict([given_[0], given_[2]])


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_size_of_a_batch_changes_nothing(tagger: Tagger, pets: Examples, queries: list[Any], batch: int) -> None:
    tagger.fit(*pets)
    expected = [row.scores for row in tagger.tag(queries)]
    for row, scores in zip(tagger.tag(queries, batch=batch), expected, strict=True):
        assert row.scores == pytest.approx(scores, abs=2e-6)


def test_no_more_than_a_few_batches_are_in_memory(tagger: Tagger, draw: Draw) -> None:
    taken = 0

    def endless() -> Iterator[Image.Image]:
        nonlocal taken
        while True:
            taken += 1
            yield draw(taken % 3)

    rows = tagger.define("dog").tag(endless(), batch=8)
    for number in range(1, 40):
        assert next(rows).image == f"number {number}"
        assert taken <= number + 4 * 8
    rows.close()  # type: ignore[attr-defined]


def test_what_the_cache_keeps_in_half_precision_is_widened_as_numpy_does() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert widen(finite).view(np.int32).tolist() == finite.astype(np.float32).view(np.int32).tolist()


def test_what_another_device_made_is_not_taken_from_the_cache_and_is_told_apart(
    tagger: Tagger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def space() -> tuple[str, str]:
        with cached_places(tagger.model, tmp_path) as found:
            assert found is not None
            return found.key, found.what

    before = space()
    monkeypatch.setattr(tagger.model.network, "wanted", "cuda")
    assert not set(space()) & set(before)


def test_a_cache_gives_the_same_rows(tagger: Tagger, pets: Examples, tmp_path: Path, draw: Draw) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        draw(number, "dog").save(path)
    tagger.fit(*pets)
    first, second, plain = (list(tagger.tag(paths, cache=cache)) for cache in (tmp_path / "c", tmp_path / "c", None))
    assert first == second == plain
    assert [row.cached for row in (*first, *second)] == [False] * 4 + [True] * 4


def test_a_damaged_picture_is_refused_or_left_out_as_asked(tagger: Tagger, draw: Draw) -> None:
    left_out: list[InputError] = []
    tagger.fit([draw(1, "dog"), "nowhere.jpg", draw(2, "cat")], ["dog", "sofa", "cat"], on_error=left_out.append)
    assert tagger.counts_ == {"cat": 1, "dog": 1}
    assert [str(error) for error in left_out] == [
        "cannot read image nowhere.jpg: there is no such file; check the path"
    ]
    with pytest.raises(InputError, match="no picture to learn from"):
        tagger.fit(["nowhere.jpg"], ["dog"], on_error=left_out.append)


def test_a_label_whose_only_picture_was_left_out_is_no_label(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), "nowhere.jpg"], ["dog", "sofa"], on_error=lambda _: None)
    assert "sofa" not in tagger.definitions_


def test_progress_counts_every_picture_once(tagger: Tagger, draw: Draw) -> None:
    done: list[int] = []
    tagger.fit([draw(number, "dog") for number in range(20)], ["dog"] * 20, progress=done.append)
    assert sum(done) == 20


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "joblib"])
def test_a_tagger_may_be_copied(
    how: str, tagger: Tagger, pets: Examples, queries: list[Any], draw: Draw, tmp_path: Path
) -> None:
    expected = tagger.fit(*pets).predict_proba(queries)
    if how == "pickle":
        copied = pickle.loads(pickle.dumps(tagger))
    elif how == "deepcopy":
        copied = copy.deepcopy(tagger)
    else:
        joblib.dump(tagger, tmp_path / "tagger")
        copied = joblib.load(tmp_path / "tagger")
    assert np.array_equal(copied.predict_proba(queries), expected)
    copied.partial_fit([draw(9, "dog")], ["zebra"])
    assert "zebra" not in tagger.classes_
    copied.save(tmp_path / "copied.fewtag")
    assert Tagger.load(tmp_path / "copied.fewtag").classes_ == copied.classes_


def test_a_heat_map_has_the_pictures_size(tagger: Tagger, draw: Draw) -> None:
    image = draw(1, "dog", size=(90, 50))
    heat = tagger.fit([image], ["dog"]).explain(image, "dog")
    assert heat.shape == (50, 90)
    assert heat.dtype == np.float32
    assert 0 <= heat.min() < heat.max() <= 1


def test_a_heat_map_shows_what_the_probability_loses_and_the_probability_is_the_usual_one(
    tagger: Tagger, draw: Draw
) -> None:
    tagger.fit([draw(1, "dog"), draw(2, "cat")], ["dog", "cat"])
    picture = Image.new("RGB", (100, 100), (40, 40, 40))
    picture.paste("red", (60, 60, 100, 100))
    heats, chances = tagger.explain_all(picture, ["dog", "cat"])
    assert chances["dog"] == pytest.approx(tagger.predict_proba(picture)[0, tagger.classes_.index("dog")], abs=1e-6)
    assert heats["dog"][60:, 60:].mean() > 3 * heats["dog"][:60, :60].mean()
    assert heats["dog"].max() == pytest.approx(chances["dog"], abs=0.1)
    assert heats["cat"].max() <= chances["cat"] + 0.1


@pytest.mark.slow
def test_what_is_not_there_stays_dark_and_what_is_glows(shipped: Tagger) -> None:
    """On one scale for all labels: a duck and a hummingbird, each where it is, and no pizza anywhere."""
    duck, hummingbird = ("canvasback.jpg", "duck", "hummingbird"), ("rufous-hummingbird.jpg", "hummingbird", "duck")
    for picture, shown, absent in (duck, hummingbird):
        heats, chances = shipped.explain_all(ALBUM / picture, ["duck", "hummingbird", "pizza"])
        assert heats[shown].max() > 0.7
        assert heats[absent].max() < 0.4
        assert heats["pizza"].max() < 0.3
        (row,) = shipped.predict_proba(ALBUM / picture)
        assert list(chances.values()) == pytest.approx(row.tolist(), abs=1e-6)


def test_readers_never_see_half_a_change(tagger: Tagger, draw: Draw) -> None:
    """Labels come in pairs, a picture each; whoever asks meanwhile finds both or none, each under its own name."""
    tagger.define("red")
    wrong: list[object] = []
    done = threading.Event()

    def ask() -> None:
        query = [draw(9)]
        while not done.is_set():
            try:
                names = tagger.classes_
                if ("dog" in names) != ("cat" in names):
                    wrong.append(names)
                if tagger.predict_proba(query).shape[1] not in (1, 3):
                    wrong.append("columns")
                (row,) = tagger.tag(query)
                if set(row.scores) not in ({"red"}, {"red", "dog", "cat"}) or not set(row.tags) <= set(row.scores):
                    wrong.append(row)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=ask) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(15):
        tagger.partial_fit([draw(number, "dog")], [["dog", "cat"]])
        tagger.fit([draw(number + 1, "dog")], [["red"]])
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_rows_keep_the_labels_that_were_known_when_they_began(tagger: Tagger, draw: Draw) -> None:
    rows = tagger.define("dog").tag([draw(number) for number in range(80)], batch=4)
    first = next(rows)
    tagger.define("cat").forget("dog")
    assert {tuple(row.scores) for row in (first, *rows)} == {("dog",)}


def test_writers_do_not_lose_each_others_examples(tagger: Tagger, draw: Draw) -> None:
    writers = [
        threading.Thread(target=lambda number=number: tagger.partial_fit([draw(number)], ["dog"]))  # type: ignore[misc]
        for number in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert tagger.counts_ == {"dog": 8}


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_fork_of_a_process_that_has_tagged_can_tag_too(model: Model, draw: Draw) -> None:
    """It inherits none of the network's threads, and waited for them for ever."""
    network, squares = Network(model.network.graph, "cpu", threads=2), [squash(draw(0), model.size)] * 5
    before = network(squares, model.space)
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[bytes] = fork.Queue()
    child = fork.Process(target=lambda: answers.put(network(squares, model.space).tobytes()))
    child.start()
    try:
        assert answers.get(timeout=60) == before.tobytes()
    finally:
        child.kill()
        child.join()


def test_threads_and_batches_give_the_network_the_same_pictures(model: Model, draw: Draw) -> None:
    """Each core has a few pictures for itself; the places are those of one pass."""
    pixels = stack([squash(draw(number, "dog"), model.size) for number in range(11)])
    several, one = Network(model.network.graph, "cpu", threads=3), Network(model.network.graph, "cpu", threads=1)
    places = one(pixels, model.space)
    np.testing.assert_allclose(several(pixels, model.space), places, atol=1e-2)
    assert np.array_equal(places, places.astype(np.float16).astype(np.float32)), "as a cache keeps them"
    assert (several.device, places.shape) == ("cpu", (11, model.places, model.space.size))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"^there is no device 'gpu'.*'cpu'"):
        Tagger(device="gpu")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(InputError, match="needs the package onnxruntime-gpu in place of onnxruntime"):
            Tagger(device="cuda").define("dog").predict(np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize("raises", [False, True])
def test_a_gpu_that_does_not_work_is_refused_where_it_is_asked_for_and_done_without_elsewhere(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raises: bool
) -> None:
    """onnxruntime-gpu without CUDA's libraries lists the provider, then drops it or fails."""
    opened, providers = onnxruntime.InferenceSession, ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def session(content: bytes, options: object, providers: list[str], enable_fallback: int) -> object:
        if raises and len(providers) > 1:
            raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")
        return opened(content, options, providers=providers[-1:], enable_fallback=enable_fallback)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    pixels = np.zeros((2, 3, 32, 32), np.uint8)
    model = load_model(str(tiny_model), device="cuda")
    with pytest.raises(InputError, match=r"cannot use device 'cuda' \(.*no (CUDA-capable device|GPU)"):
        model.encode(pixels)
    model = load_model(str(tiny_model), device="auto")
    assert len(model.encode(pixels)) == 2
    assert (model.network.device, capsys.readouterr().out) == ("cpu", "")


def test_a_network_that_fails_is_one_sentence(tiny_model: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^the network \S+ failed on cpu \(.*\); take fewer pictures") as said:
        load_model(str(tiny_model)).encode(np.zeros((1, 4, 32, 32), np.uint8))
    assert "\n" not in str(said.value)


@pytest.mark.slow
def test_the_shipped_model_knows_labels_by_name_and_learns_from_one_picture(shipped: Tagger) -> None:
    """Pictures of the example album: a duck and a hummingbird, then an owl, whose name says less."""
    duck, hummingbird, owl = (ALBUM / name for name in ("canvasback.jpg", "rufous-hummingbird.jpg", "barred-owl.jpg"))
    assert shipped.predict([duck, hummingbird], threshold=0.5) == [("duck",), ("hummingbird",)]
    tagger = Tagger().fit([duck, owl], [["duck"], ["owl"]])
    rows = tagger.predict_proba([ALBUM / "bufflehead.jpg", ALBUM / "eastern-screech-owl.jpg"])
    assert rows[0, 0] > rows[0, 1]
    assert rows[1, 1] > rows[1, 0]
