"""The bank and its file: small, whole, versioned, the same after loading, quick to load."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fewtag
from fewtag import Tagger
from fewtag.errors import InputError
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.bank import Bank, Definition, Example
from fewtag.tagger.bank_file import FORMAT, fingerprint, read_bank, read_header, write_bank
from fewtag.tagger.model import Model

Draw = Callable[..., Image.Image]


@pytest.fixture
def taught(tagger: Tagger, draw: Draw) -> Tagger:
    """With a label of each kind, one of them by name alone and one that waits for its first picture."""
    tagger.define("lens cap", like=["lens", "eye"]).define("thing", vector=np.arange(8)).define("xyzzy", words=False)
    tagger.define("zebra").define("waiting", words=False)
    images = [draw(number, "dog") for number in range(4)]
    return tagger.fit(images, [["dog", "lens cap"], ["cat", "xyzzy"], ["dog", "thing"], ["cat", "xyzzy"]])


@pytest.fixture
def saved(taught: Tagger, tmp_path: Path) -> Path:
    taught.save(tmp_path / "pets.fewtag")
    return tmp_path / "pets.fewtag"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    header = read_header(path)
    change(header)
    save_file(load_file(path), path, metadata={"fewtag-bank": json.dumps(header)})


def same(left: Bank, right: Bank) -> bool:
    """To the last bit."""
    return (
        left.classes == right.classes
        and left.members == right.members
        and torch.equal(left.matrix, right.matrix)
        and [str(found) for found in left.definitions.values()] == [str(found) for found in right.definitions.values()]
        and [found.told for found in left.definitions.values()] == [found.told for found in right.definitions.values()]
        and all(torch.equal(left.examples[key].places, right.examples[key].places) for key in left.examples)
    )


def test_what_is_loaded_is_what_was_saved(taught: Tagger, saved: Path, model: Model, draw: Draw) -> None:
    loaded = Tagger.load(saved, model=model)
    assert same(loaded._bank, taught._bank)
    assert loaded.classes_ == ("cat", "dog", "lens cap", "thing", "xyzzy", "zebra")
    assert loaded.counts_ == {"cat": 2, "dog": 2, "lens cap": 1, "thing": 1, "waiting": 0, "xyzzy": 2, "zebra": 0}
    queries = [draw(30, "cat"), draw(31)]
    assert np.array_equal(loaded.predict_proba(queries), taught.predict_proba(queries))


def test_a_loaded_bank_goes_on_as_if_it_had_never_been_saved(
    taught: Tagger, saved: Path, model: Model, draw: Draw
) -> None:
    loaded = Tagger.load(saved, model=model)
    for tagger in (taught, loaded):
        tagger.partial_fit([draw(9, "dog"), draw(1, "dog")], [["dog", "waiting"], ["sofa"]])
        tagger.define("dog", like=["red"]).forget("dog", draw(2, "dog")).forget("zebra")
    assert same(loaded._bank, taught._bank)


def test_a_bank_may_be_saved_over_the_file_it_was_loaded_from(taught: Tagger, saved: Path, model: Model) -> None:
    for _ in range(2):
        Tagger.load(saved, model=model).save(saved)
    assert same(Tagger.load(saved, model=model)._bank, taught._bank)


def test_the_same_examples_in_any_order_make_the_same_file(model: Model, draw: Draw, tmp_path: Path) -> None:
    images, shown = [draw(number, "dog") for number in range(3)], [["dog"], ["cat", "dog"], ["cat"]]
    Tagger(model).fit(images, shown).save(tmp_path / "a")
    Tagger(model).fit(images[::-1], shown[::-1]).save(tmp_path / "b")
    assert read_header(tmp_path / "a") == read_header(tmp_path / "b")
    first, second = load_file(tmp_path / "a"), load_file(tmp_path / "b")
    assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())


def test_a_bank_without_examples_or_without_labels_can_be_kept(tagger: Tagger, model: Model, tmp_path: Path) -> None:
    tagger.save(tmp_path / "empty")
    assert Tagger.load(tmp_path / "empty", model=model).classes_ == ()
    tagger.define("xyzzy", words=False).save(tmp_path / "waiting")
    assert list(Tagger.load(tmp_path / "waiting", model=model).definitions_) == ["xyzzy"]
    tagger.define("zebra").save(tmp_path / "word")
    assert Tagger.load(tmp_path / "word", model=model).classes_ == ("zebra",)


def test_loading_looks_no_word_up(saved: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.words), "vector", None)
    assert len(Tagger.load(saved, model=model).classes_) == 6


def test_the_header_says_what_the_bank_is(saved: Path, model: Model, taught: Tagger) -> None:
    with safe_open(saved, framework="np") as file:
        header = json.loads(file.metadata()["fewtag-bank"])
    assert (header["format"], header["fewtag"]) == (FORMAT, fewtag.__version__)
    assert header["model"]["name"] == "tiny"
    assert header["model"]["words_name"] == "few"
    assert header["model"]["fingerprint"] == fingerprint(model)
    labels = {label["name"]: label for label in header["labels"]}
    assert {name: label["examples"] for name, label in labels.items()} == taught.counts_
    assert labels["dog"]["threshold"] == taught.thresholds_["dog"]
    assert labels["waiting"]["threshold"] is None
    assert (labels["lens cap"]["kind"], labels["lens cap"]["words"]) == ("like", ["lens", "eye"])


def test_a_kill_in_the_middle_of_saving_leaves_the_old_file(
    taught: Tagger, saved: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def killed(_tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(str(metadata).encode()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr("fewtag.tagger.bank_file.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        taught.partial_fit([draw(7)], ["dog"]).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_place_that_cannot_be_written_is_named(taught: Tagger, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder"):
        taught.save(tmp_path / "folder")


def test_another_model_is_refused(saved: Path, model: Model) -> None:
    method = ClosedForm(model.method.channels, model.method.dimensions, space=model.method.space)
    method.load_state_dict(model.method.state_dict())
    method.mean += 1
    for other in (replace(model, method=method), replace(model, header={"strengths": {"ridge": 2.0}})):
        with pytest.raises(InputError, match=r"made with another model 'tiny' \(words 'few'\)"):
            Tagger.load(saved, model=other)


def test_a_model_that_is_gone_is_named(saved: Path) -> None:
    with pytest.raises(InputError, match="there is no model 'tiny'"):
        Tagger.load(saved)


def test_a_newer_format_is_refused(saved: Path, model: Model) -> None:
    rewrite(saved, lambda header: header.update(format=FORMAT + 1))
    with pytest.raises(InputError, match=rf"has format {FORMAT + 1}, this fewtag reads up to {FORMAT}; update fewtag"):
        Tagger.load(saved, model=model)


def test_a_missing_bank_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no bank .*no\.fewtag"):
        Tagger.load(tmp_path / "no.fewtag")


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"a text, not a bank" * 9, b"\xff" * 64])
def test_what_is_no_bank_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read: it is no bank, or truncated"):
        Tagger.load(tmp_path / "x")


def test_a_folder_is_no_bank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bank"):
        Tagger.load(tmp_path)


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "x", metadata={"format": "pt"})
    with pytest.raises(InputError, match="is another kind of safetensors file"):
        Tagger.load(tmp_path / "x")


@settings(max_examples=25, deadline=None)
@given(part=st.floats(0, 0.999))
def test_a_truncated_bank_is_refused(model: Model, tmp_path_factory: pytest.TempPathFactory, part: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "x"
    Tagger(model).define("zebra").fit([np.zeros((8, 8, 3), np.uint8)], ["dog"]).save(path)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match="truncated"):
        Tagger.load(path, model=model)


DAMAGES: list[Callable[[dict[str, Any]], object]] = [
    lambda header: header["labels"].pop(),
    lambda header: header["labels"].append(header["labels"][0]),
    lambda header: header["labels"].append({"name": "x"}),
    lambda header: header["examples"].pop(),
    lambda header: header["examples"][0].update(labels=[99]),
    lambda header: header.update(labels=7),
    lambda header: header.update(examples=[]),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_header_that_does_not_suit_its_numbers_is_refused(
    saved: Path, model: Model, damage: Callable[[dict[str, Any]], object]
) -> None:
    rewrite(saved, damage)
    with pytest.raises(InputError, match="cannot be read"):
        Tagger.load(saved, model=model)


def test_a_model_and_words_in_files_are_found_from_another_folder(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_: list[tuple[str, str | None]] = []

    def load(name: str, *, words: str | None) -> Model:
        given_.append((name, words))
        return model

    monkeypatch.setattr("fewtag.tagger.tagger.load_model", load)
    monkeypatch.chdir(tmp_path)
    for name in ("fit.safetensors", "words.npz"):
        (tmp_path / name).touch()
    Tagger("fit.safetensors", words="words.npz#b").define("dog").save("pets")
    Tagger(words="glove-50").save("other")
    monkeypatch.chdir("/")
    loaded = Tagger.load(tmp_path / "pets")
    Tagger.load(tmp_path / "other")
    assert given_[2:] == [
        (str(tmp_path / "fit.safetensors"), f"{tmp_path / 'words.npz'}#b"),
        ("default", "glove-50"),
    ]
    assert (loaded.model_name, loaded.words_name) == given_[2]


@given(seed=st.integers(0, 99), size=st.floats(1e-6, 1e6))
@settings(max_examples=20, deadline=None)
def test_a_byte_a_number_is_within_a_half_of_a_127th_of_the_largest(seed: int, size: float) -> None:
    places = size * torch.randn(5, 16, generator=torch.Generator().manual_seed(seed))
    kept = Example.of(frozenset({"dog"}), places).places
    assert ((kept - places).abs() <= places.abs().amax(dim=1, keepdim=True) / 253).all()
    assert torch.equal(Example.of(frozenset(), kept).codes, Example.of(frozenset(), places).codes)


def test_places_that_are_all_zero_stay_so() -> None:
    assert not Example.of(frozenset({"dog"}), torch.zeros(3, 4)).places.any()


def make_bank(labels: int, examples: int) -> Bank:
    """As large as the default model makes them: 49 places in 512 dimensions, words of 434."""
    names = [f"label {number:04}" for number in range(labels)]
    codes, scales = torch.ones(49, 512, dtype=torch.int8), torch.ones(49)
    shown = {f"{number:064x}": names[number % labels] for number in range(labels * examples)}
    return Bank(
        {name: Definition("name", (name,), torch.ones(434)) for name in names},
        {digest: Example(frozenset({name}), codes, scales) for digest, name in shown.items()},
        {name: torch.ones(512) for name in names},
    )


def test_a_label_with_five_examples_takes_less_than_200_kilobytes(tmp_path: Path) -> None:
    facts = {"source": "default", "fingerprint": "0"}
    write_bank(tmp_path / "ten", make_bank(10, 5), facts, {})
    assert (tmp_path / "ten").stat().st_size < 10 * 200_000


def test_a_thousand_labels_of_five_examples_load_in_a_second(tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_bank(path, make_bank(1000, 5), {"source": "default", "fingerprint": "0"}, {})
    assert path.stat().st_size > 120_000_000
    start = time.perf_counter()
    bank = read_bank(path, read_header(path), 434, 512)
    assert bank.matrix.shape == (1000, 512)
    assert int(bank.counts.sum()) == 5000
    assert time.perf_counter() - start < 1
    path.unlink()
