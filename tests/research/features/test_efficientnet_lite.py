"""EfficientNet-Lite0 from PyPI against a forward pass from the file's own keys and the published architecture."""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.weights import PACKAGES, package_file, read_tensors, rename_lite

# blocks, kernel, stride of each stage: EfficientNet-B0's, as published
STAGES = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))

pytestmark = pytest.mark.skipif(find_spec(PACKAGES["tf_efficientnet_lite0"]) is None, reason="package not installed")


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME: what is odd goes to the right and below."""
    side = x.shape[-1]
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return pad(x, [total // 2, total - total // 2] * 2)


def pad_evenly(x: Tensor, kernel: int, _stride: int) -> Tensor:
    return pad(x, [kernel // 2] * 4)


def oracle(pixels: Tensor, tensors: dict[str, Tensor], padding=pad_same, epsilon: float = 1e-3) -> Tensor:
    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, *, relu6: bool = True) -> Tensor:
        kernel = tensors[f"{conv}.weight"].double()
        groups = x.shape[1] // kernel.shape[1]
        x = conv2d(padding(x, kernel.shape[-1], stride), kernel, stride=stride, groups=groups)
        weight, bias, mean, variance = (
            tensors[f"{norm}.{part}"].double().view(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        x = (x - mean) / (variance + epsilon).sqrt() * weight + bias
        return x.clamp(0, 6) if relu6 else x

    x = layer(pixels.double() / 127.5 - 1, "_conv_stem", "_bn0", 2)
    number = 0
    for blocks, kernel, first_stride in STAGES:
        for block in range(blocks):
            name, stride, before = f"_blocks.{number}", first_stride if block == 0 else 1, x
            assert tensors[f"{name}._depthwise_conv.weight"].shape[-1] == kernel
            if number > 0:
                x = layer(x, f"{name}._expand_conv", f"{name}._bn0")
            x = layer(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
            x = layer(x, f"{name}._project_conv", f"{name}._bn2", relu6=False)
            if stride == 1 and x.shape == before.shape:
                x = x + before
            number += 1
    return layer(x, "_conv_head", "_bn1")


def test_maps_agree_with_an_independent_forward_pass_and_with_no_wrong_one() -> None:
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    backbone = create_backbone("tf_efficientnet_lite0", size=64).double()
    tensors = read_tensors(package_file(PACKAGES["tf_efficientnet_lite0"]))

    def error(theirs: Tensor) -> float:
        return float((ours - theirs).norm() / theirs.norm())

    with torch.no_grad():
        ours = backbone(pixels)
        assert ours.shape == (2, 1280, 2, 2)
        assert error(oracle(pixels, tensors)) < 1e-6
        assert error(oracle(pixels, tensors, padding=pad_evenly)) > 1e-2
        assert error(oracle(pixels, tensors, epsilon=1e-5)) > 1e-3


@pytest.mark.parametrize("name", PACKAGES)
def test_every_tensor_of_the_file_is_used_exactly_once(name: str) -> None:
    if find_spec(PACKAGES[name]) is None:
        pytest.skip("package not installed")
    tensors = read_tensors(package_file(PACKAGES[name]))
    backbone = create_backbone(name, size=64)
    renamed = rename_lite(tensors, backbone.network)
    assert len(renamed) == len(tensors)
    held = backbone.network.state_dict()
    assert set(renamed) - set(held) == {"classifier.weight", "classifier.bias"}
    assert set(held) <= set(renamed)
    assert all(torch.equal(held[key], renamed[key]) for key in held)
