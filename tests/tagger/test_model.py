"""The shipped models, and models of one's own."""

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from fewtag import InputError, Tagger, runtime
from fewtag.cli.terminal import ModelName
from fewtag.core.calibration import Calibration
from fewtag.files import read_arrays, write_arrays
from fewtag.research.data.splits import Split
from fewtag.runtime import use_exact_products
from fewtag.tagger.model import KIND, SHIPPED, Model, load_model, solve_words

Draw = Callable[..., Image.Image]


@pytest.fixture(scope="module")
def coco52() -> Model:
    return load_model("coco52")


@pytest.mark.parametrize(("name", "labels"), [("default", 80), ("accurate", 80), ("accurate-336", 80), ("coco52", 52)])
def test_a_shipped_model_loads_and_says_what_it_was_fitted_on(name: str, labels: int) -> None:
    model = load_model(name)
    header = model.header
    assert len(header["base_words"]) == labels
    assert len(header["class_names"]) == 1000
    assert len(model.base_prototypes) == labels + 1000
    assert model.words_name == "pieces"
    assert model.calibration.examples[0] == 0
    assert model.places <= 64


def test_a_calibration_comes_back_as_it_was_saved(model: Model) -> None:
    saved = Calibration((0, 5), (1.0, 1.2), (-1.0, -0.5), 0.3, (0.01, 0.3), ((0.1, 0.3), (0.2, 0.4)))
    assert model.calibration == saved


def test_coco52_was_fitted_on_the_papers_base_labels_alone(coco52: Model) -> None:
    assert set(coco52.header["base_words"]) == set(Split.load("coco").phases["train"].labels)


def test_default_inherits_the_strengths_and_the_calibration_of_coco52(coco52: Model) -> None:
    default = load_model("default")
    assert default.strengths == coco52.strengths
    assert default.calibration == coco52.calibration


def test_words_that_look_alike_are_near_and_others_are_not(coco52: Model) -> None:
    horse, pony, fork = coco52.word_prototypes(coco52.words.vectors(["horse", "pony", "fork"]))
    assert horse @ pony > 0.5 > horse @ fork


def test_the_map_of_words_that_is_kept_is_the_one_that_is_solved_anew(coco52: Model) -> None:
    header = coco52.header
    solved = solve_words(
        coco52.words, header["base_words"], header["class_names"], coco52.base_prototypes, coco52.strengths
    )
    asked = coco52.words.vectors(["horse", "laptop", "penguin"])
    assert (solved.prototypes(asked) * coco52.word_prototypes(asked)).sum(axis=1).min() > 0.999


def test_other_words_are_mapped_anew(tiny_model: Path, own_words: Path, model: Model) -> None:
    other = load_model(tiny_model, words=own_words)
    assert other.word_map.matrix.shape == (8, model.space.size)
    assert np.array_equal(other.space.basis, model.space.basis)
    assert other.words_name == "vectors.txt"
    assert other.fingerprint != model.fingerprint
    assert other.space_key == model.space_key, "a picture's places are the same"


def test_words_that_lack_names_of_the_map_are_refused_as_those_not_as_the_label_that_was_asked(
    tiny_model: Path, own_words: Path
) -> None:
    lines = own_words.read_text().splitlines()
    few = own_words.with_name("few.txt")
    few.write_text("\n".join(line for line in lines if line.startswith("dog ")) + "\n")
    with pytest.raises(InputError, match=r"words 'few\.txt' lack '.+', one of the \d+ names by which the model's map"):
        load_model(tiny_model, words=few).word_map  # noqa: B018


def test_a_model_is_known_by_its_numbers_not_by_its_place(
    model: Model, tiny_model: Path, other_file: Path, tmp_path: Path
) -> None:
    moved = load_model(str(shutil.copytree(tiny_model.parent, tmp_path / "moved") / tiny_model.name))
    assert moved.fingerprint == model.fingerprint
    assert moved.source != model.source
    other = load_model(str(other_file))
    assert other.fingerprint != model.fingerprint
    assert other.space_key != model.space_key


def test_a_model_of_ones_own_is_found_by_its_file_its_stem_and_its_folder(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_model.parent, folder)
    sources = (folder / "tiny.safetensors", folder / "tiny", folder)
    assert {load_model(str(source)).source for source in sources} == {str(folder / "tiny.safetensors")}


def test_a_model_of_ones_own_is_found_from_another_folder(
    tiny_model: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)
    Tagger("tiny.safetensors").fit([draw(1, "dog")], ["dog"]).save(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    assert Tagger.load("pets").model.source == str(tiny_model.resolve())


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InputError, match=r"no model 'defalt'; did you mean 'default'\?"):
        load_model("defalt")
    for nameless in (".", "/"):
        with pytest.raises(InputError, match=r"^there is no model"):
            load_model(nameless)
    save_file({"x": np.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(InputError, match="is no model, but another safetensors file"):
        load_model(str(tmp_path / "foreign.safetensors"))
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(tiny_model.read_bytes()[:-3])
    with pytest.raises(InputError, match="cannot be read: it is no model, or damaged"):
        load_model(str(cut))


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no network": lambda header: header.pop("network"),
    "network of text": lambda header: header.update(network="x"),
    "no strengths": lambda header: header.pop("strengths"),
    "a strength more": lambda header: header["strengths"].update(evil=1),
    "no calibration": lambda header: header.pop("calibration"),
    "calibration of text": lambda header: header.update(calibration="x"),
    "another format": lambda header: header.update(format=1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_forged_model_is_one_sentence(
    tiny_model: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    header, arrays = read_arrays(tiny_model, KIND)
    damage(header)
    write_arrays(tmp_path / "forged.safetensors", KIND, header, arrays)
    with pytest.raises(InputError, match=r"model .*forged") as refused:
        load_model(str(tmp_path / "forged.safetensors"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"no graph"])
def test_a_network_that_is_gone_or_damaged_is_one_sentence(
    tiny_model: Path, draw: Draw, tmp_path: Path, content: bytes | None
) -> None:
    folder = shutil.copytree(tiny_model.parent, tmp_path / "tiny")
    graph = folder / "tiny.onnx"
    graph.unlink() if content is None else graph.write_bytes(content)
    with pytest.raises(InputError, match=r"the network tiny\.onnx cannot be loaded") as refused:
        Tagger(str(folder)).define("dog").predict([draw(1)])
    assert "\n" not in str(refused.value)


def test_the_shipped_files_are_small() -> None:
    shipped = {
        path.name: len(path.read_bytes()) for path in files("fewtag").joinpath("models").iterdir() if path.is_file()
    }
    assert all(shipped[f"{name}.safetensors"] < 2_000_000 for name in SHIPPED)
    assert sum(shipped.values()) < 70_000_000


def test_every_shipped_model_is_named_where_one_is_chosen() -> None:
    (option,) = ModelName.__metadata__
    assert all(name in (Tagger.__doc__ or "") and name in option.help for name in SHIPPED)


def test_exact_products_are_asked_for_only_where_fast_ones_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    key = "session.x64quantprecision"
    for overflow in (False, True):
        options = onnxruntime.SessionOptions()
        monkeypatch.setattr("fewtag.runtime._products_overflow", lambda overflow=overflow: overflow)
        use_exact_products(options)
        if overflow:
            assert options.get_session_config_entry(key) == "1"
        else:
            with pytest.raises(RuntimeError):
                options.get_session_config_entry(key)


def test_exact_products_say_what_fast_ones_say_where_these_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    if runtime._products_overflow():
        pytest.skip("this processor's fast products overflow")
    model = load_model("default")
    square = np.random.default_rng(0).integers(0, 256, (1, 3, model.size, model.size), np.uint8)
    fast = model.encode(square)
    monkeypatch.setattr(runtime, "_products_overflow", lambda: True)
    np.testing.assert_allclose(load_model("default").encode(square), fast, atol=2e-3 * np.abs(fast).max())


def test_what_tries_the_processor_says_nothing_and_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone, onnxruntime binds its threads to cores, and complains where a container may not use them all."""
    import onnxruntime

    asked = []

    def opened(graph: bytes, options: onnxruntime.SessionOptions, **also: object) -> onnxruntime.InferenceSession:
        asked.append((options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level))
        return session(graph, options, **also)

    session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    runtime._products_overflow.__wrapped__()
    assert asked == [(1, 1, 4)]


def test_the_product_that_is_tried_sums_what_sixteen_bits_cannot_hold() -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(runtime._PRODUCT)
    ones = np.ones((2, 8), np.uint8)
    assert (session.run(None, {"left": ones})[0] == 8 * 127).all(), "127 eight times: no two of them overflow"
    assert session.run(None, {"left": ones})[0].shape == (2, 16)
    assert 2 * 255 * 127 > 2**15 - 1
