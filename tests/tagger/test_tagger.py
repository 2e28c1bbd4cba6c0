"""The tagger: labels from a picture or a word each, whatever the order, and one sentence on bad input."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fewtag.tagger.encode import BATCH, encode_images, to_maps
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fewtag
from fewtag import Tagger
from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.methods.base import Support
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.model import Model

Draw = Callable[..., Image.Image]
Examples = tuple[list[Any], list[list[str]]]


@pytest.fixture
def pets(draw: Draw) -> Examples:
    shown = [["dog"], ["cat", "sofa"], ["dog", "sofa"], ["cat"]]
    return [draw(number, *labels) for number, labels in enumerate(shown)], shown


@pytest.fixture
def queries(draw: Draw) -> list[Any]:
    return [draw(20, "dog"), draw(21, "cat"), draw(22, "sofa", "dog"), draw(23)]


def test_the_package_offers_the_tagger_without_loading_torch_before() -> None:
    code = (
        "import sys, fewtag; assert 'torch' not in sys.modules; print(fewtag.Tagger.__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Tagger True\n", done.stderr


def test_the_package_offers_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Taggre'"):
        _ = fewtag.Taggre


def test_learning_and_asking(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    assert tagger.classes_ == ()
    assert tagger.fit(*pets) is tagger
    assert tagger.classes_ == ("cat", "dog", "sofa")
    assert tagger.counts_ == {"cat": 2, "dog": 2, "sofa": 2}
    assert repr(tagger) == "Tagger(model='tiny', words='few', labels=3, examples=4)"
    probabilities = tagger.predict_proba(queries)
    assert probabilities.shape == (4, 3)
    assert probabilities.dtype == np.float32
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_predict_names_what_is_over_its_threshold_likeliest_first(
    tagger: Tagger, pets: Examples, queries: list[Any]
) -> None:
    tagger.fit(*pets).define("zebra")
    assert tagger.thresholds_["zebra"] == pytest.approx(0.3)
    assert 0.3 < tagger.thresholds_["dog"] < 0.4
    lengths = set()
    for names, row in zip(tagger.predict(queries), tagger.predict_proba(queries), strict=True):
        found = dict(zip(tagger.classes_, row.tolist(), strict=True))
        over = [label for label in found if found[label] >= tagger.thresholds_[label]]
        assert list(names) == sorted(over, key=lambda label: -found[label])
        lengths.add(len(names))
    assert max(lengths) > 1


def test_a_label_is_found_where_it_is_shown(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(number, label) for number in range(5) for label in ("dog", "sofa")], [["dog"], ["sofa"]] * 5)
    dogs, sofas = ([draw(number, label) for number in range(30, 45)] for label in ("dog", "sofa"))
    difference = np.diff(tagger.predict_proba(dogs + sofas))[:, 0]
    assert difference[:15].mean() < difference[15:].mean()


def test_scores_are_those_of_the_method_itself(model: Model, tagger: Tagger, pets: Examples) -> None:
    """Which sees the maps themselves, where the bank keeps a byte a number."""
    tagger.fit(*pets)
    maps = to_maps(model.backbone, np.stack([tagger.pixels(image) for image in pets[0]]))
    targets = torch.tensor([[label in shown for label in tagger.classes_] for shown in pets[1]])
    words = torch.from_numpy(model.words.vectors(tagger.classes_))
    with torch.inference_mode():
        expected = model.method.adapt(Support(tagger.classes_, words, maps, targets))(maps) / model.method.scale
        found = model.method.score(tagger.encode(pets[0]), tagger._bank.matrix)
    assert (found - expected).abs().max() < 0.01 < expected.std()


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(4)), cut=st.integers(0, 4), turned=st.booleans())
def test_order_does_not_matter(model: Model, order: list[int], cut: int, turned: bool) -> None:
    shown = [["dog"], ["cat", "sofa"], ["dog", "sofa"], ["cat"]]
    images = [np.full((20, 30, 3), 60 * number, np.uint8) for number in range(4)]
    whole, parts = Tagger(model).fit(images, shown), Tagger(model)
    for rows in (order[:cut], order[cut:]):
        if rows:
            parts.partial_fit([images[row] for row in rows], [shown[row][:: -1 if turned else 1] for row in rows])
    assert parts.classes_ == whole.classes_
    assert np.array_equal(parts._bank.matrix.numpy(), whole._bank.matrix.numpy()), "to the last bit"


def test_the_same_examples_twice_change_nothing(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    before = tagger.fit(*pets).predict_proba(queries)
    again = tagger.partial_fit(*pets).partial_fit(pets[0] * 2, pets[1] * 2)
    assert len(again._bank.examples) == 4
    assert np.array_equal(again.predict_proba(queries), before)


def test_known_pictures_need_no_pass_of_the_network(
    tagger: Tagger, pets: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagger.fit(*pets)
    monkeypatch.setattr("fewtag.tagger.encode.encode_pixels", None)
    tagger.fit(*pets).partial_fit(*pets).define("dog", words=False).forget("cat")


def test_an_example_given_again_takes_the_labels_given_now(model: Model, draw: Draw, queries: list[Any]) -> None:
    image, other = draw(1, "dog"), draw(2, "cat")
    corrected = Tagger(model).fit([image, other], [["dog"], ["cat"]]).partial_fit([image], [["cat"]])
    fresh = Tagger(model).fit([image, other], [["cat"], ["cat"]])
    assert corrected.classes_ == ("cat",), "a label that nobody defined goes with its last example"
    assert np.array_equal(corrected.predict_proba(queries), fresh.predict_proba(queries))


def test_a_picture_twice_in_one_call_shows_what_both_say(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), draw(1, "dog")], [["dog"], ["sofa"]])
    assert tagger.counts_ == {"dog": 1, "sofa": 1}
    assert len(tagger._bank.examples) == 1


def test_labels_that_an_example_does_not_name_are_left_as_they_are(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog")], [["dog"]])
    before = tagger._bank.prototypes["dog"]
    assert tagger.partial_fit([draw(2, "cat")], [["cat"]])._bank.prototypes["dog"] is before


def test_fit_forgets_examples_but_not_definitions(tagger: Tagger, draw: Draw) -> None:
    tagger.define("ectopia lentis", like=["lens", "eye"]).fit([draw(1, "dog")], [["dog"]])
    assert tagger.fit([draw(2, "cat")], [["cat", "ectopia lentis"]]).classes_ == ("cat", "ectopia lentis")


def test_one_name_need_not_be_in_a_list_and_blanks_do_not_count(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), draw(2, "cat")], ["dog", (" dog ", "cat")])
    assert tagger.counts_ == {"cat": 1, "dog": 2}


def test_pictures_may_come_from_an_iterator(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    before = tagger.fit(*pets).predict_proba(queries)
    again = tagger.fit(iter(pets[0]), pets[1]).predict_proba(iter(queries))
    np.testing.assert_allclose(again, before, atol=1e-6)


def test_paths_pictures_and_arrays_are_the_same(tagger: Tagger, draw: Draw, tmp_path: Path) -> None:
    image = draw(1, "dog")
    image.save(tmp_path / "dog.png")
    kinds = [
        str(tmp_path / "dog.png"),
        tmp_path / "dog.png",
        image,
        np.asarray(image),
        Image.open(tmp_path / "dog.png"),
    ]
    tagger.fit(kinds, [["dog"]] * 5)
    assert tagger.counts_ == {"dog": 1}
    rows = tagger.predict_proba(kinds)
    np.testing.assert_allclose(rows, rows[:1].repeat(5, axis=0), atol=1e-6)


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
    expected = model.method.word_prototypes(torch.from_numpy(model.words.vectors(["zebra"])))
    assert np.allclose(tagger._bank.matrix.numpy(), expected.numpy(), atol=1e-6)
    assert tagger.predict_proba(queries).shape == (4, 1)


DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"like": ["lens", "eye"]},
    {"like": "eye"},
    {"vector": np.arange(8)},
    {"vector": [0.5] * 8},
    {"words": False},
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
def test_a_label_may_be_defined_before_or_after_its_examples(
    model: Model, pets: Examples, queries: list[Any], definition: dict[str, Any]
) -> None:
    before = Tagger(model).define("dog", **definition).partial_fit(*pets)
    after = Tagger(model).partial_fit(*pets).define("dog", **definition)
    assert np.array_equal(before.predict_proba(queries), after.predict_proba(queries))


def test_a_new_definition_changes_attention_and_its_label_alone(tagger: Tagger, pets: Examples) -> None:
    before = tagger.fit(*pets)._bank
    after = tagger.define("dog", like=["zebra", "eye"])._bank
    assert after.prototypes["cat"] is before.prototypes["cat"]
    assert not np.allclose(after.prototypes["dog"], before.prototypes["dog"], atol=1e-3)
    back = tagger.define("dog")._bank
    assert np.array_equal(back.prototypes["dog"], before.prototypes["dog"])


def test_the_word_guides_attention_even_where_it_is_not_mixed_in(model: Model, pets: Examples) -> None:
    method = ClosedForm(model.method.channels, model.method.dimensions, space=model.method.space, word_weight=0.0)
    method.load_state_dict(model.method.state_dict())
    tagger = Tagger(replace(model, method=method)).fit(*pets)
    before = tagger._bank.prototypes["dog"]
    assert not np.allclose(tagger.define("dog", like=["cat"])._bank.prototypes["dog"], before, atol=1e-4)


def test_like_is_the_mean_of_the_words_and_knows_labels_too(model: Model, tagger: Tagger) -> None:
    own = np.linspace(-1, 1, 8, dtype=np.float32)
    tagger.define("thing", vector=own).define("other", like=["thing", "lens"])
    expected = (own + model.words.vector("lens")) / 2
    np.testing.assert_allclose(tagger.definitions_["other"].vector, expected, atol=1e-6)
    assert [str(found) for found in tagger.definitions_.values()] == ["like thing, lens", "a vector of its own"]


def test_without_words_pictures_alone_speak(tagger: Tagger, draw: Draw) -> None:
    images = [draw(1, "dog"), draw(2, "dog")]
    tagger.define("xyzzy", words=False)
    assert tagger.classes_ == (), "nothing to score it by yet"
    tagger.partial_fit(images, ["xyzzy", "xyzzy"])
    assert tagger.classes_ == ("xyzzy",)
    pooled = torch.nn.functional.normalize(tagger.encode(images).mean(dim=1), dim=-1).sum(dim=0)
    cosine = torch.nn.functional.cosine_similarity(pooled, tagger._bank.prototypes["xyzzy"], dim=0)
    assert cosine > 0.9999, "the mean over places, a picture as much as another"


def test_examples_are_forgotten_one_by_one(model: Model, tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    images, shown = pets
    tagger.fit(images, shown).forget("dog", images[0])
    assert tagger.counts_ == {"cat": 2, "dog": 1, "sofa": 2}
    fresh = Tagger(model).fit(images[1:], shown[1:])
    assert np.array_equal(tagger.predict_proba(queries), fresh.predict_proba(queries))
    tagger.forget("dog", images[2])
    assert tagger.counts_ == {"cat": 2, "sofa": 2}, "sofa keeps the picture that dog gave up"
    tagger.define("cat").forget("cat", images[1]).forget("cat", images[3])
    assert tagger.counts_ == {"cat": 0, "sofa": 2}, "a label that was defined stays"


def test_a_label_is_forgotten_with_its_definition(tagger: Tagger, pets: Examples) -> None:
    tagger.fit(*pets).define("dog", like=["eye"]).forget("dog")
    assert tagger.classes_ == ("cat", "sofa")
    assert len(tagger._bank.examples) == 3, "a picture without labels goes"
    assert str(tagger.partial_fit([pets[0][0]], ["dog"]).definitions_["dog"]) == "its name"


def test_many_pictures_are_decoded_a_few_at_a_time(tagger: Tagger, draw: Draw) -> None:
    tagger.define("dog")
    taken = 0

    def endless() -> Iterator[Image.Image]:
        nonlocal taken
        while taken < 150:
            taken += 1
            yield draw(taken % 3)

    batches = encode_images(tagger.model, endless())
    assert len(next(batches)) == BATCH
    assert taken <= 3 * BATCH + 1
    assert sum(map(len, batches)) == 150 - BATCH


def test_encoding_and_scoring_apart_are_predict_proba(tagger: Tagger, pets: Examples, queries: list[Any]) -> None:
    whole = tagger.fit(*pets).predict_proba(queries)
    pixels = np.stack([tagger.pixels(image) for image in queries])
    np.testing.assert_allclose(tagger.probabilities(tagger.encode(queries)), whole, atol=1e-6)
    np.testing.assert_allclose(tagger.probabilities(tagger.encode_pixels(pixels)), whole, atol=1e-6)
    assert tagger.predict_proba([]).shape == tagger.probabilities(tagger.encode([])).shape == (0, 3)
    assert tagger.predict([]) == []


def test_a_heat_map_has_the_pictures_size(tagger: Tagger, draw: Draw) -> None:
    image = draw(1, "dog", size=(90, 50))
    heat = tagger.fit([image], ["dog"]).explain(image, "dog")
    assert heat.shape == (50, 90)
    assert heat.min() >= 0
    assert 0.9 < heat.max() <= 1
    assert heat.dtype == np.float32


def test_readers_never_see_half_a_change(tagger: Tagger, draw: Draw) -> None:
    """Labels come in pairs, a picture each; whoever asks meanwhile finds both or none."""
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
                tagger.predict(query)
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


def test_a_device_that_is_not_there_is_refused_and_auto_finds_one(tagger: Tagger) -> None:
    with pytest.raises(InputError, match=r"there is no device 'gpu'.*'cpu'"):
        tagger.to("gpu")
    assert tagger.to("auto").device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert tagger.to("cpu").device == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds none here; use cpu or auto"):
            tagger.to("cuda")
