"""The shipped fits, and fits of one's own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fewtag.errors import InputError
from fewtag.research.data.splits import Split
from fewtag.tagger.model import SHIPPED, load_model


@pytest.fixture(scope="module")
def coco52():
    return load_model("coco52")


@pytest.mark.parametrize(("name", "labels"), [("default", 80), ("coco52", 52)])
def test_a_shipped_fit_loads_and_says_what_it_was_fitted_on(name: str, labels: int) -> None:
    model = load_model(name)
    assert len(model.header["base_words"]) == labels
    assert model.words.name == "glove-50+minilm"
    assert model.header["strengths"]
    assert model.calibration.examples[0] == 0


def test_coco52_was_fitted_on_the_papers_base_labels_alone(coco52) -> None:
    split = Split.load("coco")
    assert set(coco52.header["base_words"]) == set(split.phases["train"].labels)


def test_default_inherits_the_strengths_and_the_calibration_of_coco52(coco52) -> None:
    default = load_model("default")
    assert default.header["strengths"] == coco52.header["strengths"]
    assert default.calibration == coco52.calibration


def test_words_that_look_alike_are_near_and_others_are_not(coco52) -> None:
    horse, pony, fork = coco52.method.word_prototypes(torch.from_numpy(coco52.words.vectors(["horse", "pony", "fork"])))
    assert horse @ pony > 0.5 > horse @ fork


def test_other_words_are_mapped_anew(coco52) -> None:
    other = load_model("coco52", words="glove-50")
    assert (other.words.dimensions, other.method.word_map.shape[0]) == (50, 50)
    torch.testing.assert_close(other.method.basis, coco52.method.basis)
    horse, pony, fork = other.method.word_prototypes(torch.from_numpy(other.words.vectors(["horse", "pony", "fork"])))
    assert horse @ pony > horse @ fork


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model 'defalt'; did you mean 'default'\?"):
        load_model("defalt")
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        load_model(str(tmp_path / "foreign.safetensors"))


def test_the_shipped_fits_are_small() -> None:
    from importlib.resources import files

    for name in SHIPPED:
        assert len(files("fewtag.models").joinpath(f"{name}.safetensors").read_bytes()) < 2_000_000
