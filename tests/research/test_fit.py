"""Models of one's own: from a timm network, from an ONNX file, with labels and without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

from fewtag import InputError, Tagger
from fewtag.core.posterior import Space
from fewtag.pictures.decode import squash, stack
from fewtag.pictures.files import Picture, open_image
from fewtag.pictures.prefetch import unwatched
from fewtag.research import fit as fit_module
from fewtag.research.features.graph import IMAGENET_MEAN, IMAGENET_STD, wrap_graph
from fewtag.research.fit import BasePictures, fit_model, solve, sure_classes
from fewtag.runtime import Network

LABELS = ["dog", "cat", "sofa", "zebra", "ball", "tree", "car", "boat"]
Cli = Callable[..., Any]


@pytest.fixture
def album(tmp_path: Path) -> tuple[list[Picture], list[frozenset[str]]]:
    """Forty-eight pictures of a colour for each of eight labels."""
    random = np.random.default_rng(0)
    pictures, shown = [], []
    for number in range(48 * len(LABELS) // 4):
        label = number % len(LABELS)
        colour = np.array([label & 1, label >> 1 & 1, label >> 2 & 1]) * 160
        pixels = np.clip(colour + random.integers(0, 90, (32, 32, 3)), 0, 255).astype(np.uint8)
        path = tmp_path / f"{number}.png"
        Image.fromarray(pixels).save(path)
        pictures.append(Picture(path, name=path.name))
        shown.append(frozenset([LABELS[label]]))
    return pictures, shown


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier that is sure of a class for each colour, and less to calibrate on."""

    def classify(pictures: list[Picture], _begin: object) -> np.ndarray:
        chances = np.full((len(pictures), 1000), 1e-4, np.float32)
        chances[np.arange(len(pictures)), 150 + np.arange(len(pictures)) % len(LABELS)] = 0.9
        return chances

    monkeypatch.setattr(fit_module, "classify", classify)
    for name, value in {"HELD": 4, "REPEATS": 1, "EXAMPLES": (0, 1, 5), "NOES": (0, 8)}.items():
        monkeypatch.setattr(fit_module, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_model_of_any_timm_network_learns_and_tags(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path
) -> None:
    pictures, shown = album
    made = fit_model(tmp_path / "mine" / "model", pictures, shown, network="resnet10t", weights="random", size=64)
    assert made["labels"] == sorted(LABELS)
    tagger = Tagger(model=tmp_path / "mine" / "model.safetensors")
    tagger.fit([pictures[0].path, pictures[1].path], [["dog"], ["cat"]])
    assert tagger.predict_proba([each.path for each in pictures[:3]]).shape == (3, 2)
    assert tagger.model.calibration.examples == (0, 1, 5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_transformers_products_are_in_int8_unless_that_is_not_wanted(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path
) -> None:
    pictures, shown = album
    places = []
    for int8 in (True, False):
        torch.manual_seed(0)
        made = fit_model(
            tmp_path / f"{int8}", pictures, shown, network="vit_tiny_patch16_224", weights="random", size=64, int8=int8
        )
        assert made["int8"] is int8
        nodes = onnx.load(str(tmp_path / f"{int8}.onnx")).graph.node
        assert any(node.op_type == "QuantizeLinear" for node in nodes) is int8
        tagger = Tagger(model=tmp_path / f"{int8}.safetensors").fit([pictures[0].path], [["dog"]])
        assert tagger.predict_proba([each.path for each in pictures[:3]]).shape == (3, 1)
        whole = Space(np.zeros(192, np.float32), np.eye(192, dtype=np.float32))
        places.append(tagger.model.network(stack([squash(open_image(pictures[0]), 64)]), whole))
    assert np.abs(places[0] - places[1]).max() > 0, "another arithmetic"
    assert np.corrcoef(places[0].ravel(), places[1].ravel())[0, 1] > 0.99


def test_a_graph_too_large_to_try_stays_in_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "MOST_BYTES", 3)
    (tmp_path / "net.onnx").write_bytes(b"four")
    facts: dict[str, Any] = {"sha256": "as before"}
    assert not fit_module.quantise(tmp_path / "net.onnx", facts, {}, [], unwatched)
    assert facts == {"sha256": "as before"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_without_labels_what_a_classifier_is_sure_of_stands_for_them(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path
) -> None:
    pictures, _ = album
    unlabelled = [frozenset[str]()] * len(pictures)
    made = fit_model(tmp_path / "model", pictures, unlabelled, network="resnet10t", weights="random", size=64)
    assert len(made["labels"]) + len(made["left_out"]) == len(LABELS)
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.usefixtures("quick")
def test_too_few_labels_are_refused(album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path) -> None:
    pictures, _ = album
    with pytest.raises(InputError, match="show 1 labels that are known words, at least 8 are needed"):
        fit_model(
            tmp_path / "model",
            pictures,
            [frozenset(["dog"])] * len(pictures),
            network="resnet10t",
            weights="random",
            size=64,
        )


def test_a_wrong_network_is_refused_before_the_work_and_leaves_no_folder(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "classify", lambda *_: pytest.fail("it takes minutes"))
    unlabelled = [frozenset[str]()] * len(album[0])
    with pytest.raises(InputError, match="resnet10x"):
        fit_model(tmp_path / "new" / "model", album[0], unlabelled, network="resnet10x", weights="random", size=64)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("quick")
def test_too_few_pictures_of_every_label_are_refused(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, shown = album
    monkeypatch.setattr(fit_module, "HELD", len(pictures))
    with pytest.raises(
        InputError, match=rf"the commonest label, is shown by \d+ base pictures, at least {len(pictures)}"
    ):
        fit_model(tmp_path / "model", pictures, shown, network="resnet10t", weights="random", size=64)
    assert not list(tmp_path.glob("model*")), "before any work"


@pytest.mark.usefixtures("quick")
def test_pictures_that_all_show_everything_are_refused(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path
) -> None:
    pictures, shown = album
    crowded = [frozenset(LABELS)] * (len(pictures) - 3)
    with pytest.raises(InputError, match=r"without a quarter of the labels [0-3] of them are left, at least 4"):
        fit_model(tmp_path / "model", pictures, crowded + shown[:3], network="resnet10t", weights="random", size=64)
    assert not list(tmp_path.glob("model*")), "before any work"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("own", ["net.onnx", "net.safetensors"])
def test_the_networks_own_files_are_not_replaced(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path, own: str
) -> None:
    pictures, shown = album
    save_file({"conv1.weight": np.zeros(3)}, tmp_path / own)
    before = (tmp_path / own).read_bytes()
    with pytest.raises(InputError, match=f"{own} is there, and is no part of a model that fewtag made"):
        fit_model(tmp_path / "net", pictures, shown, network="resnet10t", weights="random", size=64)
    assert (tmp_path / own).read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_fit_that_is_interrupted_leaves_the_model_of_before(
    album: tuple[list[Picture], list[frozenset[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, shown = album
    network = {"network": "resnet10t", "weights": "random"}
    fit_model(tmp_path / "v1.5", pictures, shown, **network, size=64)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*v1*")}
    assert set(before) == {"v1.5.onnx", "v1.5.safetensors"}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_module, "calibrated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_model(tmp_path / "v1.5", pictures, shown, **network, size=96)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*v1*")} == before


def test_a_fold_knows_nothing_of_the_labels_it_is_judged_on() -> None:
    random = np.random.default_rng(0)
    targets = random.random((40, 10)) < 0.2
    base = BasePictures(
        list("abcdefghij"),
        targets,
        random.normal(size=(40, 6)).astype(np.float32),
        random.random((40, 1000)).astype(np.float32),
    )
    kept = base.without([2, 5])
    assert kept.words == list("abdeghij")
    assert len(kept.features) == (~targets[:, [2, 5]].any(axis=1)).sum()
    assert len(solve(kept).prototypes) == 8 + 1000


def test_sure_classes_need_enough_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "HELD", 4)
    chances = np.zeros((5, 1000), np.float32)
    chances[:3, 340] = 0.9
    chances[3, 1] = 0.9
    names, targets = sure_classes(chances)
    assert names == ["zebra"]
    assert targets[:, 0].tolist() == [True, True, True, False, False]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 4, 4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.convolution(pixels).tanh()


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_becomes_the_graph_that_torch_agrees_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Layers().eval()
    torch.onnx.export(
        network,
        (torch.zeros(1, 3, 64, 64),),
        str(tmp_path / "net.onnx"),
        dynamo=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "n"}},
        opset_version=17,
    )
    facts, constants = wrap_graph(tmp_path / "net.onnx", tmp_path / "wrapped.onnx", 64)
    assert (facts["channels"], facts["places"]) == (5, 64)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    runtime = Network(tmp_path / "wrapped.onnx", "cpu", sha256=facts["sha256"], constants=constants)
    places = runtime(pixels, Space(np.zeros(5, np.float32), np.eye(5, dtype=np.float32)))
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.inference_mode():
        maps = network((torch.from_numpy(pixels).float() - mean) / std)
        expected = nn.functional.adaptive_avg_pool2d(maps, 8).flatten(2).transpose(1, 2).numpy()
    assert np.abs(places - expected).max() < 2e-3


def test_what_is_no_onnx_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="cannot be run on 1 × 3 × 64 × 64 numbers"):
        wrap_graph(tmp_path / "net.onnx", tmp_path / "wrapped.onnx", 64)
    with pytest.raises(InputError, match=r"there is no network .*nte\.onnx; check the path"):
        wrap_graph(tmp_path / "nte.onnx", tmp_path / "wrapped.onnx", 64)
