"""A backbone's graph for the product: torch's places, pooled to 8 × 8 at most, and the fine ones they came from."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from fewtag.core.posterior import Space
from fewtag.errors import InputError
from fewtag.research.features import graph as graph_module
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.graph import pooling, write_graph
from fewtag.runtime import INPUTS, OUTPUTS, Network


def noise(size: int, images: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (images, 3, size, size), np.uint8)


def vit(size: int) -> Backbone:
    torch.manual_seed(0)
    return create_backbone("vit_tiny_patch16_224", weights="random", size=size)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Backbone, Path, dict[str, object], dict[str, object]]:
    backbone, path = vit(224), tmp_path_factory.mktemp("graph") / "vit.onnx"
    facts, constants = write_graph(backbone, path)
    return backbone, path, facts, constants


def test_fourteen_by_fourteen_places_are_pooled_to_eight_by_eight(written) -> None:  # type: ignore[no-untyped-def]
    backbone, path, facts, constants = written
    assert (facts["places"], facts["size"], facts["bits"]) == (64, 224, 16)
    space = Space(np.zeros(192, np.float32), np.eye(192, dtype=np.float32))
    network = Network(path, "cpu", sha256=str(facts["sha256"]), constants=constants)
    pixels = noise(224)
    with torch.inference_mode():
        maps = backbone(torch.from_numpy(pixels))
    assert maps.shape == (3, 192, 14, 14)
    pooled = torch.nn.functional.adaptive_avg_pool2d(maps, 8).flatten(2).transpose(1, 2).numpy()
    scale = np.abs(pooled).max()
    assert np.abs(network(pixels, space) - pooled).max() < 2e-3 * scale
    fine = maps.flatten(2).transpose(1, 2).numpy()
    assert finest(network, pixels, space).shape == (3, 196, 192)
    assert np.abs(finest(network, pixels, space) - fine).max() < 2e-3 * np.abs(fine).max()


def finest(network: Network, pixels: np.ndarray, space: Space) -> np.ndarray:
    """The map before it is pooled, which the graph says too."""
    inputs = dict(zip(INPUTS, (pixels, space.mean, space.basis), strict=True)) | network.constants
    return network._session.run([OUTPUTS[-1]], inputs)[0]


def test_the_space_is_an_input_and_projecting_comes_before_pooling(written) -> None:  # type: ignore[no-untyped-def]
    _, path, _, constants = written
    random = np.random.default_rng(2)
    mean, basis = random.normal(size=192).astype(np.float32), random.normal(size=(192, 5)).astype(np.float32) / 14
    network = Network(path, "cpu", constants=constants)
    pixels = noise(224, 2)
    plain = network(pixels, Space(np.zeros(192, np.float32), np.eye(192, dtype=np.float32)))
    found = network(pixels, Space(mean, basis))
    assert found.shape == (2, 64, 5)
    np.testing.assert_allclose(found, (plain - mean) @ basis, atol=0.01)


def test_one_graph_serves_another_size_with_that_sizes_constants(written) -> None:  # type: ignore[no-untyped-def]
    """Pools and positions are data: only they differ between sizes."""
    _, path, _, constants = written
    larger = vit(288)
    other = graph_module.size_constants(larger)
    assert {name: value.shape for name, value in other.items()} == {"pool": (64, 324), "positions": (1, 325, 192)}
    assert constants["positions"].shape == (1, 197, 192)
    # random weights of the same seed but for the table of positions, which has another size
    same = Network(path, "cpu", constants=other)
    space = Space(np.zeros(192, np.float32), np.eye(192, dtype=np.float32))
    assert same(noise(288, 1), space).shape == (1, 64, 192)
    assert finest(same, noise(288, 1), space).shape == (1, 324, 192)


@pytest.mark.parametrize(("fine", "coarse"), [(14, 7), (14, 8), (16, 8), (7, 7), (9, 8)])
def test_pooling_is_torchs_average(fine: int, coarse: int) -> None:
    maps = torch.randn(2, 3, fine, fine, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.adaptive_avg_pool2d(maps, coarse)
    if fine % coarse == 0:
        torch.testing.assert_close(expected, torch.nn.functional.avg_pool2d(maps, fine // coarse))
    matrix = pooling(fine, coarse)
    found = np.einsum("pf,icf->icp", matrix, maps.flatten(2).numpy())
    np.testing.assert_allclose(found, expected.flatten(2).numpy(), atol=1e-5)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-5)


def test_a_coarse_map_is_left_as_it_is(tmp_path: Path) -> None:
    backbone = create_backbone("test_resnet", weights="random", size=64)
    facts, constants = write_graph(backbone, tmp_path / "small.onnx")
    side = int(np.sqrt(facts["places"]))
    assert side <= 8
    assert np.array_equal(constants["pool"], np.eye(side * side))
    network = Network(tmp_path / "small.onnx", "cpu", constants=constants)
    space = Space(np.zeros(backbone.channels, np.float32), np.eye(backbone.channels, dtype=np.float32))
    np.testing.assert_allclose(finest(network, noise(64), space), network(noise(64), space), atol=1e-2)


def test_weights_of_eight_bits_take_half_the_room(tmp_path: Path) -> None:
    backbone = vit(224)
    sizes = {}
    for bits in (16, 8):
        facts, _ = write_graph(backbone, tmp_path / f"{bits}.onnx", bits)  # type: ignore[arg-type]
        assert facts["bits"] == bits
        sizes[bits] = (tmp_path / f"{bits}.onnx").stat().st_size
    assert sizes[8] < 0.6 * sizes[16]


def test_a_graph_that_disagrees_with_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graph_module.TOLERANCE, 16, 1e-12)
    with pytest.raises(InputError, match=r"the graph of 'test_resnet' is .* from torch; choose another network"):
        write_graph(create_backbone("test_resnet", weights="random", size=64), tmp_path / "small.onnx")


def test_a_graph_has_the_inputs_that_the_product_gives_it(written) -> None:  # type: ignore[no-untyped-def]
    _, path, _, constants = written
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_inputs()} == {*INPUTS, *constants}
    assert [each.name for each in session.get_outputs()] == ["places", "fine"]
