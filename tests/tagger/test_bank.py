"""The bank and its file: small, whole, checked to the bit, the same after loading, quick to load."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny import classifiers_of, same_classifiers

import fewtag
from fewtag import InputError, Tagger
from fewtag.core.posterior import Fitted
from fewtag.files import read_arrays, write_arrays
from fewtag.tagger.bank import Annotation, Bank, CachedFit, Definition, Example, Quantised
from fewtag.tagger.bank_file import FORMAT, KIND, read_bank, read_header, write_bank
from fewtag.tagger.model import Model, load_model

Draw = Callable[..., Image.Image]


@pytest.fixture
def taught(tagger: Tagger, draw: Draw, model: Model) -> Tagger:
    """With a label of each kind, one of them by name alone and one that waits for its first picture."""
    tagger.define("lens cap", like=["lens", "eye"]).define("thing", vector=np.linspace(-1, 1, model.words.dimensions))
    tagger.define("xyzzy", words=False).define("zebra").define("waiting", words=False)
    images = [draw(number, "dog") for number in range(4)]
    shown = [["dog", "lens cap"], ["cat", "xyzzy"], ["dog", "thing"], ["cat", "xyzzy"]]
    return tagger.fit(images, shown, absent=[["cat"], [], ["zebra", "cat"], []])


@pytest.fixture
def saved(taught: Tagger, tmp_path: Path) -> Path:
    taught.set_thresholds({"cat": 0.9}).set_priors({"dog": 0.05}).save(tmp_path / "pets.fewtag")
    return tmp_path / "pets.fewtag"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object], **arrays: np.ndarray) -> None:
    """As a forger would: with sums that fit."""
    header, kept = read_arrays(path, KIND)
    change(header)
    write_arrays(path, KIND, header, {**kept, **arrays})


def facts_of(tagger: Tagger) -> list[tuple[object, ...]]:
    return [
        (label, str(each), each.explicit, each.threshold, each.prior, each.kind)
        for label, each in tagger.definitions_.items()
    ]


def same(left: Tagger, right: Tagger) -> bool:
    """To the last bit."""
    return (
        same_classifiers(left, right)
        and left.bank_.members == right.bank_.members
        and left.bank_.refused == right.bank_.refused
        and [each.annotation for each in left.bank_.examples.values()]
        == [e.annotation for e in right.bank_.examples.values()]
        and facts_of(left) == facts_of(right)
        and all(
            np.array_equal(left.bank_.examples[key].places, right.bank_.examples[key].places)
            for key in left.bank_.examples
        )
        and all(left.bank_.examples[key].picture == right.bank_.examples[key].picture for key in left.bank_.examples)
    )


def test_what_is_loaded_is_what_was_saved(taught: Tagger, saved: Path, draw: Draw) -> None:
    loaded = Tagger.load(saved)
    assert same(loaded, taught)
    assert loaded.classes_ == ("cat", "dog", "lens cap", "thing", "xyzzy", "zebra")
    assert loaded.counts_ == {"cat": 2, "dog": 2, "lens cap": 1, "thing": 1, "waiting": 0, "xyzzy": 2, "zebra": 0}
    assert loaded.absent_counts_ == {**dict.fromkeys(loaded.counts_, 0), "cat": 2, "zebra": 1}
    assert loaded.thresholds_["cat"] == pytest.approx(0.9)
    assert loaded.priors_["dog"] == pytest.approx(0.05)
    assert loaded.trusts_ == pytest.approx(dict(taught.trusts_))
    queries = [draw(30, "cat"), draw(31)]
    assert np.array_equal(loaded.predict_proba(queries), taught.predict_proba(queries))


def test_a_loaded_bank_goes_on_as_if_it_had_never_been_saved(taught: Tagger, saved: Path, draw: Draw) -> None:
    loaded = Tagger.load(saved)
    for tagger in (taught, loaded):
        tagger.partial_fit([draw(9, "dog"), draw(1, "dog")], [["dog", "waiting"], ["sofa"]])
        tagger.define("dog", like=["red"]).forget("dog", draw(2, "dog")).forget("zebra").rename("thing", "object")
    assert same(loaded, taught)


def test_a_bank_may_be_saved_over_the_file_it_was_loaded_from(taught: Tagger, saved: Path) -> None:
    for _ in range(2):
        Tagger.load(saved).save(saved)
    assert same(Tagger.load(saved), taught)


def test_the_same_examples_in_any_order_make_the_same_file(model: Model, draw: Draw, tmp_path: Path) -> None:
    images, shown = [draw(number, "dog") for number in range(3)], [["dog"], ["cat", "dog"], ["cat"]]
    Tagger(model).fit(images, shown).save(tmp_path / "a")
    Tagger(model).fit(images[::-1], shown[::-1]).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_bank_without_examples_or_without_labels_can_be_kept(tagger: Tagger, tmp_path: Path) -> None:
    tagger.save(tmp_path / "empty")
    assert Tagger.load(tmp_path / "empty").classes_ == ()
    tagger.define("xyzzy", words=False).save(tmp_path / "waiting")
    assert list(Tagger.load(tmp_path / "waiting").definitions_) == ["xyzzy"]
    tagger.define("zebra").save(tmp_path / "word")
    assert Tagger.load(tmp_path / "word").classes_ == ("zebra",)


def test_loading_and_forgetting_look_no_word_up_and_load_no_network(
    saved: Path, model: Model, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.words), "vectors", None)
    monkeypatch.setattr("fewtag.runtime.Network.__call__", None)
    loaded = Tagger.load(saved).forget("dog", draw(0, "dog")).forget("zebra").rename("thing", "object")
    assert loaded.counts_["dog"] == 1


def test_the_header_says_what_the_bank_is(saved: Path, model: Model, taught: Tagger) -> None:
    with safe_open(saved, framework="np") as file:
        header = json.loads(file.metadata()["fewtag-bank"])
    assert (header["format"], header["fewtag"]) == (3, fewtag.__version__)  # another number locks older fewtags out
    assert header["model"] == model.facts
    labels = {label["name"]: label for label in header["labels"]}
    assert {name: label["examples"] for name, label in labels.items()} == taught.counts_
    assert labels["dog"]["threshold"] == taught.thresholds_["dog"]
    assert labels["waiting"]["threshold"] is None
    assert (labels["lens cap"]["kind"], labels["lens cap"]["words"]) == ("like", ["lens", "eye"])


def test_a_bank_keeps_small_copies_without_metadata_and_none_where_none_is_wanted(
    model: Model, draw: Draw, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x010E] = "the secret place"
    draw(1, "dog", size=(900, 600)).save(tmp_path / "rex.jpg", exif=exif)
    Tagger(model).fit(tmp_path / "rex.jpg", ["dog"]).save(tmp_path / "with")
    (example,) = Tagger.load(tmp_path / "with").bank_.examples.values()
    (tmp_path / "copy.webp").write_bytes(example.picture)
    assert Image.open(tmp_path / "copy.webp").size == (336, 224)
    assert example.name == "rex.jpg"
    assert b"secret" not in (tmp_path / "with").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "with").read_bytes().replace(model.source.encode(), b"")
    Tagger(model, keep_pictures=False).fit(tmp_path / "rex.jpg", ["dog"]).save(tmp_path / "without")
    assert not any(each.picture for each in Tagger.load(tmp_path / "without").bank_.examples.values())


def test_numbers_of_any_library_are_saved(taught: Tagger, tmp_path: Path) -> None:
    taught.set_priors({"dog": np.float32(0.25)}).set_thresholds({"dog": np.float16(0.5), "cat": Fraction(1, 4)})
    taught.save(tmp_path / "numbers")
    loaded = Tagger.load(tmp_path / "numbers")
    assert (loaded.priors_["dog"], loaded.thresholds_["dog"], loaded.thresholds_["cat"]) == (0.25, 0.5, 0.25)


def test_a_kill_in_the_middle_of_saving_leaves_the_old_file(
    taught: Tagger, saved: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    write = Path.write_bytes

    def killed(self: Path, content: bytes) -> int:
        write(self, content[:100])
        raise KeyboardInterrupt

    taught.partial_fit([draw(7)], ["dog"])
    monkeypatch.setattr(Path, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        taught.save(saved)
    assert saved.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(taught: Tagger, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder"):
        taught.save(tmp_path / "folder")


def test_another_model_is_refused(saved: Path, model: Model) -> None:
    moved = replace(model.space, mean=model.space.mean + 1)
    for other in (replace(model, space=moved), replace(model, strengths=replace(model.strengths, ridge=2.0))):
        with pytest.raises(InputError, match=r"made with another version of model 'tiny' \(words 'pieces', fewtag "):
            Tagger.load(saved, model=other)


def test_a_model_that_has_moved_is_named_and_may_be_given(
    saved: Path, tiny_model: Path, taught: Tagger, tmp_path: Path
) -> None:
    rewrite(saved, lambda header: header["model"].update(source=str(tmp_path / "gone" / "tiny.safetensors")))
    with pytest.raises(InputError, match=r"tiny\.safetensors' any more, .*: fewtag upgrade \S+ --model FILE$"):
        Tagger.load(saved)
    assert same(Tagger.load(saved, model=str(tiny_model)), taught)


def test_a_newer_and_an_older_format_are_refused(saved: Path) -> None:
    rewrite(saved, lambda header: header.update(format=FORMAT + 1))
    with pytest.raises(InputError, match=rf"has format {FORMAT + 1}, this fewtag reads up to {FORMAT}; update fewtag"):
        Tagger.load(saved)
    save_file({}, saved, metadata={KIND: json.dumps({"format": 1, "labels": []})})
    with pytest.raises(InputError, match=r"was written by fewtag 0\.1.*learn its examples again"):
        Tagger.load(saved)


def test_a_label_is_calibrated_by_how_coherent_its_pictures_are(model: Model, draw: Draw, tmp_path: Path) -> None:
    """By those that its fit looks at, and two more as the model's; what stands in for pictures does not count."""
    usual = replace(model, calibration=replace(model.calibration, coherence=0.5))
    tagger = Tagger(usual).define("zebra").partial_fit([draw(0, "dog"), draw(1)], [["dog"], ["cat"]])
    places = np.stack([each.places for each in tagger.bank_.examples.values()])
    each = np.linalg.norm(places.mean(axis=1), axis=1) / np.linalg.norm(places, axis=2).mean(axis=1)
    assert each.max() < 0.999
    expected = (each.sum() + 2 * 0.5) / 4
    labels = "cat", "dog", "zebra"
    assert [tagger.bank_.classifier(usual, label).coherence for label in labels] == pytest.approx([expected] * 3)
    plain = Tagger(model).define("zebra").partial_fit([draw(0, "dog"), draw(1)], [["dog"], ["cat"]])
    steeper = tagger.scorer().steeper / plain.scorer().steeper
    assert steeper.tolist() == pytest.approx([np.exp(6 * (expected - 0.5))] * 3, rel=1e-4)
    tagger.save(tmp_path / "shared", examples=False)
    _, shared = read_bank(tmp_path / "shared")
    assert shared.classifier(usual, "dog").coherence == pytest.approx(expected)
    assert replace(shared, fits={}).classifier(usual, "dog").coherence == pytest.approx(0.5)


def test_a_bank_that_knows_nothing_of_coherence_loads(taught: Tagger, saved: Path) -> None:
    _, arrays = read_arrays(saved, KIND)
    rewrite(saved, lambda _header: None, bias=arrays["bias"][:, :3])
    loaded = Tagger.load(saved)
    assert same_classifiers(loaded, taught)
    assert {each.classifier.coherence for each in loaded.bank_.fits.values()} == {0.0}


def to_format_2(path: Path) -> None:
    """As fewtag 0.2 wrote it: no 'no's, no priors, of each label its prototype alone."""
    header, arrays = read_arrays(path, KIND)
    header["format"] = 2
    for label in header["labels"]:
        del label["absent"], label["prior"]
    for example in header["examples"]:
        del example["absent"], example["complete"]
    for name in ("whole", "focused", "bias"):
        del arrays[name]
    arrays["prototypes"][:] = 1  # whatever they were, they are fitted anew
    write_arrays(path, KIND, header, arrays)


def test_a_bank_of_format_2_loads_and_is_fitted_anew(model: Model, draw: Draw, tmp_path: Path) -> None:
    images, shown = [draw(number, "dog") for number in range(3)], [["dog"], ["cat", "dog"], ["cat"]]
    now = Tagger(model).define("zebra").partial_fit(images, shown)
    now.save(tmp_path / "pets")
    to_format_2(tmp_path / "pets")
    loaded = Tagger.load(tmp_path / "pets")
    assert not loaded.bank_.fits
    assert same(loaded, now)
    assert loaded.absent_counts_ == {"cat": 0, "dog": 0, "zebra": 0}
    loaded.partial_fit([draw(9)], [[]], absent=[["dog"]]).save(tmp_path / "pets")
    assert read_header(tmp_path / "pets")["format"] == FORMAT
    assert same(Tagger.load(tmp_path / "pets"), loaded)


def test_a_missing_bank_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no bank .*no\.fewtag"):
        Tagger.load(tmp_path / "no.fewtag")
    with pytest.raises(InputError, match="is a folder, not a bank; name the file that fewtag wrote"):
        Tagger.load(tmp_path)
    (tmp_path / "bank.fewtag").touch()
    with pytest.raises(InputError, match=r"not a bank; name its bank, .*bank\.fewtag"):
        Tagger.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"a text, not a bank" * 9, b"\xff" * 64])
def test_what_is_no_bank_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read: it is no bank, or damaged"):
        Tagger.load(tmp_path / "x")


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight": np.zeros(3)}, tmp_path / "x", metadata={"format": "pt"})
    with pytest.raises(InputError, match="is no bank, but another safetensors file"):
        Tagger.load(tmp_path / "x")


def test_any_flipped_bit_is_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "flipped.fewtag"
    Tagger(model).define("zebra").fit([np.zeros((8, 8, 3), np.uint8)], ["dog"]).save(path)
    sound = path.read_bytes()
    for place in np.random.default_rng(0).integers(8 * len(sound), size=200).tolist():
        content = bytearray(sound)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            Tagger.load(path, model=model)
        except InputError:
            continue
        pytest.fail(f"bit {place % 8} of byte {place // 8} may flip")


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a label less": lambda header: header["labels"].pop(),
    "a label twice": lambda header: header["labels"].append(header["labels"][0]),
    "half a label": lambda header: header["labels"].append({"name": "x"}),
    "an example less": lambda header: header["examples"].pop(),
    "an unknown label": lambda header: header["examples"][0].update(labels=[99]),
    "a label from the back": lambda header: header["examples"][0].update(labels=[-1]),
    "no list of labels": lambda header: header.update(labels=7),
    "no examples": lambda header: header.update(examples=[]),
    "a number as source": lambda header: header["model"].update(source=7),
    "no words": lambda header: header["model"].pop("words"),
    "no model": lambda header: header.pop("model"),
    "format -1": lambda header: header.update(format=-1),
    "format of text": lambda header: header.update(format="2"),
    "no format": lambda header: header.pop("format"),
    "kind evil": lambda header: header["labels"][0].update(kind="evil"),
    "an empty name": lambda header: header["labels"][0].update(name=""),
    "a blank name": lambda header: header["labels"][0].update(name="  "),
    "a number as name": lambda header: header["labels"][0].update(name=7),
    "words that are none": lambda header: header["labels"][0].update(words=7),
    "a threshold of text": lambda header: header["labels"][0].update(threshold="x"),
    "a threshold over one": lambda header: header["labels"][0].update(own_threshold=7.0),
    "a word that is more than a thing": lambda header: header["labels"][0].update(thing=7.0),
    "other counts": lambda header: header["labels"][0].update(examples=5),
    "other counts of the absent": lambda header: header["labels"][0].update(absent=5),
    "counts of the absent as text": lambda header: header["labels"][0].update(absent="2"),
    "an absent label that is not there": lambda header: header["examples"][0].update(absent=[99]),
    "a label shown and absent": lambda header: [each.update(absent=each["labels"]) for each in header["examples"]],
    "complete as text": lambda header: header["examples"][0].update(complete="yes"),
    "a prior of none": lambda header: header["labels"][0].update(prior=0.0),
    "a prior of all": lambda header: header["labels"][0].update(prior=1.0),
    "a prior of text": lambda header: header["labels"][0].update(prior="x"),
    "a picture of minus bytes": lambda header: header["examples"][0].update(bytes=-1),
    "other pictures": lambda header: header["examples"][0].update(bytes=header["examples"][0]["bytes"] + 1),
    "another space": lambda header: header["model"].update(space=9),
    "other places": lambda header: header["model"].update(places=4),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_forged_header_is_one_sentence(saved: Path, model: Model, damage: Callable[[dict[str, Any]], object]) -> None:
    rewrite(saved, damage)
    with pytest.raises(InputError, match="cannot be read: it is no bank, or damaged") as refused:
        Tagger.load(saved, model=model)
    assert "\n" not in str(refused.value)


ARRAYS: dict[str, dict[str, np.ndarray]] = {
    "integer prototypes": {"prototypes": np.ones((6, 8), np.int64)},
    "prototypes that are no numbers": {"prototypes": np.full((6, 8), np.nan, np.float32)},
    "one prototype": {"prototypes": np.ones((1, 8), np.float32)},
    "prototypes of another space": {"prototypes": np.ones((6, 9), np.float32)},
    "weights of another space": {"focused": np.ones((6, 9), np.float32)},
    "endless weights": {"whole": np.full((6, 8), np.inf, np.float32)},
    "a bias without trust": {"bias": np.ones((6, 1), np.float32)},
    "a bias without the weight of the noes": {"bias": np.ones((6, 2), np.float32)},
    "a bias less": {"bias": np.ones((5, 3), np.float32)},
    "flat codes": {"codes": np.ones(8, np.int8)},
    "endless scales": {"scales": np.full((4, 16), np.inf, np.float32)},
}


@pytest.mark.parametrize("arrays", ARRAYS.values(), ids=ARRAYS)
def test_forged_numbers_are_one_sentence(saved: Path, model: Model, arrays: dict[str, np.ndarray]) -> None:
    rewrite(saved, lambda header: header, **arrays)
    with pytest.raises(InputError, match="cannot be read: it is no bank, or damaged"):
        Tagger.load(saved, model=model)


def test_a_bank_names_no_file_that_is_opened_for_words(saved: Path, tmp_path: Path, draw: Draw) -> None:
    """Nor does what stands in such a file appear anywhere."""
    secret = tmp_path / "secret.env"
    secret.write_text("API_KEY=sk-12345-very-secret\n")
    fingerprint = read_header(saved)["model"]["fingerprint"]
    rewrite(saved, lambda header: header["model"].update(words=str(secret), own_words=True))
    with pytest.raises(InputError, match=r"was made with another version of model .* --words FILE$") as refused:
        Tagger.load(saved)
    assert "sk-12345" not in str(refused.value)
    loaded = load_model(read_header(saved)["model"]["source"], absent_words=str(secret))
    rewrite(saved, lambda header: header["model"].update(fingerprint=loaded.fingerprint))
    assert loaded.fingerprint != fingerprint
    tagger = Tagger.load(saved)
    assert tagger.predict([draw(1, "dog")], threshold=0.0)
    with pytest.raises(InputError, match="which were not named now; name their file") as refused:
        tagger.define("penguin")
    assert "sk-12345" not in str(refused.value)


def test_words_of_ones_own_may_have_moved(tiny_model: Path, own_words: Path, draw: Draw, tmp_path: Path) -> None:
    """All but new names goes on without them: the vectors that are needed are in the bank."""
    whole = Tagger(str(tiny_model), words=str(own_words))
    whole.fit([draw(1, "dog"), draw(2, "cat")], [["dog"], ["dog", "cat"]]).save(tmp_path / "bank")
    own_words = own_words.rename(tmp_path / "vectors.txt")
    tagger = Tagger.load(tmp_path / "bank")
    for each in (tagger, whole):
        each.partial_fit([draw(3, "dog")], ["dog"]).forget("dog", draw(1, "dog")).define("xyzzy", words=False)
    assert same(tagger, whole)
    assert tagger.explain(draw(1), "dog").shape == (40, 48)
    assert len(list(tagger.tag([draw(1)]))) == 1
    before = tagger.bank_
    for ask in (
        lambda: tagger.partial_fit((pytest.fail("before any work") for _ in range(1)), [["zebra"]]),
        lambda: tagger.define("lens"),
        lambda: tagger.define("thing", vector=np.ones(8)),
        lambda: tagger.rename("cat", "zebra"),
    ):
        with pytest.raises(InputError, match=r"word vectors 'vectors\.txt', which were not named now; name their file"):
            ask()
    assert tagger.bank_ is before
    found = Tagger.load(tmp_path / "bank", words=str(own_words))
    assert found.partial_fit([draw(4)], ["zebra"]).classes_ == ("cat", "dog", "zebra")
    with pytest.raises(InputError, match="made with another model"):
        Tagger.load(tmp_path / "bank", words="pieces")


def test_a_bank_moves_to_another_model_by_the_copies_it_keeps(
    taught: Tagger, saved: Path, other_file: Path, draw: Draw
) -> None:
    moved = Tagger.load(saved, model=str(other_file), upgrade=True)
    assert moved.model.name == "other"
    assert moved.counts_ == taught.counts_
    assert moved.thresholds_["cat"] == pytest.approx(0.9)
    assert moved.absent_counts_ == taught.absent_counts_
    assert moved.priors_["dog"] == pytest.approx(0.05)
    fresh = Tagger(str(other_file)).partial_fit([draw(0, "dog"), draw(2, "dog")], [["dog"], ["dog"]])
    ours, theirs = (each.bank_.classifier(each.model, "dog").prototype for each in (fresh, moved))
    assert ours @ theirs > 0.98, "copies are compressed"
    moved.save(saved)
    assert Tagger.load(saved).model.name == "other"
    assert Tagger.load(saved, upgrade=True).counts_ == moved.counts_, "once more changes nothing"


def test_the_refusal_of_another_models_bank_names_the_command_that_moves_it(
    taught: Tagger, saved: Path, model: Model, other_file: Path, own_words: Path, tmp_path: Path
) -> None:
    later = replace(model, space=replace(model.space, mean=model.space.mean + 1))
    with pytest.raises(InputError, match=rf"to move it to this one: fewtag upgrade {saved}$"):
        Tagger.load(saved, model=later)
    whole = rf": fewtag upgrade {saved} --model {other_file} --words {own_words}, or load it with that one$"
    with pytest.raises(InputError, match="made with another model 'tiny' .*" + whole):
        Tagger.load(saved, model=str(other_file), words=str(own_words))
    taught.save(tmp_path / "shared", examples=False)
    with pytest.raises(InputError, match=r"keeps no copies of 8 of its 8 examples .*: learn them again "):
        Tagger.load(tmp_path / "shared", model=later)


def test_what_a_person_defined_moves_along(model: Model, other_file: Path, own_words: Path, tmp_path: Path) -> None:
    vector = np.linspace(-1, 1, len(model.word_map.mean))
    tagger = Tagger(model).define("Rex", vector=vector).define("xyzzy", like="lens, eye").define("W", like="xyzzy")
    tagger.save(tmp_path / "bank")
    moved = Tagger.load(tmp_path / "bank", model=str(other_file), upgrade=True)
    fresh = Tagger(str(other_file)).define("Rex", vector=vector).define("xyzzy", like="lens, eye")
    fresh.define("W", like=["xyzzy"])
    assert {label: str(each) for label, each in moved.definitions_.items()} == {
        "Rex": "a vector of its own",
        "W": "like xyzzy",
        "xyzzy": "like lens, eye",
    }
    assert same_classifiers(moved, fresh)
    Tagger(model).define("dog", vector=vector).save(tmp_path / "bank")
    with pytest.warns(UserWarning, match=r"'dog' had a vector of its own, which means nothing among .*vectors\.txt"):
        Tagger.load(tmp_path / "bank", model=str(other_file), words=str(own_words), upgrade=True)


def test_what_a_label_is_like_is_looked_up_again_by_an_upgrade(model: Model, other_file: Path, tmp_path: Path) -> None:
    """A table of words of the same name may have other vectors by now."""
    tagger = Tagger(model).define("thing", like="lens, eye").define("Y", vector=np.ones(len(model.word_map.mean)))
    tagger.define("of one that is gone", like="Y").forget("Y")
    older = dict(tagger.bank_.definitions)
    older["thing"] = replace(older["thing"], vector=np.ones_like(older["thing"].vector))
    Tagger(model, bank=Bank(older)).save(tmp_path / "bank")
    moved = Tagger.load(tmp_path / "bank", model=str(other_file), upgrade=True).bank_.definitions
    fresh = Tagger(str(other_file)).define("thing", like="lens, eye").bank_.definitions
    np.testing.assert_array_equal(moved["thing"].vector, fresh["thing"].vector)
    np.testing.assert_array_equal(moved["of one that is gone"].vector, older["of one that is gone"].vector)


def test_a_label_like_another_means_the_same_after_an_upgrade(model: Model, other_file: Path, tmp_path: Path) -> None:
    """Whichever comes first by name: "a mark" was looked up before "sofa" was, and so like a sofa."""
    tagger = Tagger(model).define("sofa", like="lens, eye").define("a mark", like="sofa").define("B", like="a mark")
    tagger.define("first", like="dog").define("last", like="first").define("first", like="last")  # a circle
    tagger.save(tmp_path / "bank")
    moved = Tagger.load(tmp_path / "bank", model=str(other_file), upgrade=True).definitions_
    for label, other in (("a mark", "sofa"), ("B", "sofa")):
        np.testing.assert_allclose(moved[label].vector, moved[other].vector, atol=1e-6)
    assert str(moved["first"]) == "like last"


def test_a_bank_without_copies_cannot_move(model: Model, other_file: Path, draw: Draw, tmp_path: Path) -> None:
    Tagger(model, keep_pictures=False).fit([draw(1, "dog")], ["dog"]).save(tmp_path / "bank")
    with pytest.raises(InputError, match="keeps no copies of 1 of its 1 examples, so it cannot move"):
        Tagger.load(tmp_path / "bank", model=str(other_file), upgrade=True)


@given(seed=st.integers(0, 99), size=st.floats(1e-6, 1e6))
@settings(max_examples=20, deadline=None)
def test_a_byte_a_number_is_within_a_half_of_a_127th_of_the_largest(seed: int, size: float) -> None:
    places = (size * np.random.default_rng(seed).normal(size=(5, 16))).astype(np.float32)
    kept = Example.of(Annotation(), places).places
    assert (np.abs(kept - places) <= np.abs(places).max(axis=1, keepdims=True) / 253).all()
    assert np.array_equal(
        Example.of(Annotation(), kept).features.codes, Example.of(Annotation(), places).features.codes
    )


def test_places_that_are_all_zero_stay_so() -> None:
    assert not Example.of(Annotation(), np.zeros((3, 4), np.float32)).places.any()


def make_bank(labels: int, examples: int) -> Bank:
    """As large as the default model makes them: 49 places in 512 dimensions, without copies of pictures."""
    names = [f"label {number:04}" for number in range(labels)]
    codes, scales = np.ones((49, 512), np.int8), np.ones(49, np.float32)
    shown = {f"{number:064x}": names[number % labels] for number in range(labels * examples)}
    words, guide = np.ones(256, np.float32), np.ones(512, np.float32)
    fitted = CachedFit(Fitted(guide, guide, guide, 0.0))
    return Bank(
        {name: Definition("name", (name,), words, guide) for name in names},
        {key: Example(Annotation(frozenset({name})), Quantised(codes, scales)) for key, name in shown.items()},
        dict.fromkeys(names, fitted),
    )


@pytest.fixture
def large_model(model: Model) -> Model:
    """It says of itself that it is as large as the default one."""
    basis = np.zeros((16, 512), np.float32)
    return replace(model, places=49, space=replace(model.space, basis=basis))


def test_a_label_with_five_examples_takes_less_than_200_kilobytes(large_model: Model, tmp_path: Path) -> None:
    write_bank(tmp_path / "ten", make_bank(10, 5), large_model, {})
    assert (tmp_path / "ten").stat().st_size < 10 * 200_000


@pytest.mark.slow
def test_hundreds_of_labels_load_in_a_second(large_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_bank(path, make_bank(300, 5), large_model, {})
    assert path.stat().st_size > 36_000_000
    start = time.process_time()
    bank = read_bank(path)[1]
    assert classifiers_of(bank, large_model).prototypes.shape == (300, 512)
    assert int(bank.counts.sum()) == 1500
    assert time.process_time() - start < 5  # a fifth of a second here
    start = time.process_time()
    assert len(read_header(path)["labels"]) == 300
    assert time.process_time() - start < 1, "the numbers are not read"
