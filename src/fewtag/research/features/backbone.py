"""Backbones: any timm network, or several joined, from pixels to feature maps, with its weights' preprocessing."""

import copy
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fewtag.errors import InputError, first_line, nearest
from fewtag.research.features.weights import Network, Preprocessing, load_weights, split_source

Layout = Literal["NCHW", "NHWC", "tokens"]

TOLERANCE = 1e-3
"""Relative to the greatest number in the maps; the rounding error of fusion is a hundred times less."""


class Backbone(nn.Module):
    """Any timm network that yields local maps, with the preprocessing that its weights were trained with."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        network: Network,
        *,
        size: int,
        channels: int,
        layout: Layout,
        preprocessing: Preprocessing,
        variant: str,
        grid: int | None = None,
    ) -> None:
        super().__init__()
        self.name, self.size, self.channels, self.preprocessing = name, size, channels, preprocessing
        self.variant = variant if grid is None else f"{variant}, at most {grid} × {grid} places"
        self.grid, self.layout = grid, layout
        self.network: Network = network.to(memory_format=torch.channels_last)
        # not persistent: a state dict holds what was learnt, which these were not
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images channels rows columns"]:
        """Local maps of squashed RGB images."""
        features = self.network.forward_features(self.normalise(pixels))
        maps = to_maps(features, self.layout, getattr(self.network, "num_prefix_tokens", 0))
        return maps if self.grid is None else F.adaptive_avg_pool2d(maps, min(self.grid, maps.shape[-1]))

    def normalise(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images 3 height width"]:
        """Normalised pixels for the network; done here so that no caller can do it differently."""
        if tuple(pixels.shape[2:]) != (self.size, self.size):
            found = " × ".join(str(side) for side in pixels.shape[2:])
            raise InputError(
                f"backbone {self.name!r} takes images of {self.size} × {self.size} pixels, these are {found}; "
                "squash them to its size, or create it with theirs"
            )
        if self.preprocessing.order == "BGR":
            pixels = pixels.flip(1)
        # channels last, which makes convolutions twice as fast on a CPU, and on tensor cores
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return (pixels.to(self.mean.dtype) - self.mean) / self.std

    @property
    def fingerprint(self) -> str:
        """A digest of all that determines the maps: name, size, preprocessing, layer variant and every tensor."""
        digest = hashlib.sha256(repr((self.name, self.size, self.preprocessing, self.variant)).encode())
        for key, tensor in sorted(self.state_dict().items()):
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def create_backbone(
    name: str = "tf_efficientnet_lite2", *, weights: str | None = None, size: int = 224, grid: int | None = None
) -> Backbone:
    """A timm network by name, in evaluation mode, with weights from one of `weights.CHOICES`.

    A map finer than `grid` × `grid` places is pooled, as in the product's graphs.
    """
    network, loaded = load_network(name, weights, size, head=False)
    resize_network(network, name, size)
    layout, channels = find_layout(network, name, size)
    return Backbone(name, network, channels=channels, layout=layout, grid=grid, **loaded).eval()


class JoinedBackbone(nn.Module):
    """Maps of several backbones, channels joined; finer maps are pooled to the coarsest grid."""

    def __init__(self, parts: Sequence[Backbone]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.networks = nn.ModuleList(parts)  # so that torch moves and saves them
        self.name = "+".join(part.name for part in parts)
        self.size = parts[0].size
        self.channels = sum(part.channels for part in parts)

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images channels rows columns"]:
        return join_maps([part(pixels) for part in self.parts])

    @property
    def fingerprint(self) -> str:
        """A digest of all that determines the maps."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()


AnyBackbone = Backbone | JoinedBackbone


def join_maps(maps: Sequence[Float[Tensor, "images _ _ _"]]) -> Float[Tensor, "images channels rows columns"]:
    """Concatenates channels, on the coarsest of the grids."""
    grid = min(single.shape[2] for single in maps), min(single.shape[3] for single in maps)
    return torch.cat([F.adaptive_avg_pool2d(single.float(), grid).to(single.dtype) for single in maps], dim=1)


def open_backbone(name: str, *, weights: str | None = None, size: int = 224, grid: int | None = None) -> AnyBackbone:
    """A backbone by name, or several joined by `+`, with as many sources of weights joined by `+`, or none."""
    names = [part.strip() for part in name.split("+")]
    if len(names) == 1:
        return create_backbone(name, weights=weights, size=size, grid=grid)
    sources = [None] * len(names) if weights is None else [part.strip() for part in weights.split("+")]
    if len(sources) != len(names):
        raise InputError(
            f"backbone {name!r} joins {len(names)} networks, and its weights {weights!r} are {len(sources)}; "
            "name one source for each, joined by +"
        )
    named = zip(names, sources, strict=True)
    return JoinedBackbone([create_backbone(part, weights=source, size=size, grid=grid) for part, source in named])


def load_network(name: str, weights: str | None, size: int, *, head: bool) -> tuple[Network, dict[str, Any]]:
    """timm's network with its weights, and the facts about them that a backbone needs."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise InputError(f"there is no backbone {name!r} in timm; {nearest(architecture, timm.list_models())}")
    if tag and name not in (tagged := timm.list_pretrained(f"{architecture}.*")):
        raise InputError(f"backbone {architecture!r} has no weights tagged {tag!r} in timm; {nearest(name, tagged)}")
    if size < 1:
        raise InputError(f"image size {size} is not a number of pixels; give one such as 224")
    kind, argument = split_source(name, weights)
    options: dict[str, Any] = {"pretrained": kind == "timm"} | ({} if head else {"num_classes": 0})
    try:
        network: Network = timm.create_model(name, **options)  # at its weights' own size where it can be resized later
        if network.pretrained_cfg.get("fixed_input_size") and not hasattr(network, "set_input_size"):
            network = timm.create_model(name, img_size=size, **options)
    # what a failed download raises depends on the versions of timm, of the hub's client and of its transport
    except Exception as error:
        if kind != "timm":
            raise size_error(name, size, error) from error
        raise InputError(
            f"timm's weights of {name!r} could not be had ({first_line(error)}); "
            "go on line once, or give the path of a state dict"
        ) from error
    if network.pretrained_cfg["input_size"][0] != 3:
        raise InputError(f"backbone {name!r} does not take colour images; choose another")
    # Keras' strides and epsilon are in no tensor, yet they change the maps
    variant, preprocessing = "keras" if kind == "keras" else "timm", load_weights(network, name, kind, argument)
    return network, {"size": size, "preprocessing": preprocessing, "variant": variant}


def resize_network(network: Network, name: str, size: int) -> None:
    """Lets a network of fixed size take another one, by resampling its position embeddings."""
    now = getattr(getattr(network, "patch_embed", None), "img_size", None) or network.pretrained_cfg["input_size"][1:]
    if hasattr(network, "set_input_size") and size != now[-1]:
        try:
            network.set_input_size(img_size=(size, size))
        except (AssertionError, RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            raise size_error(name, size, error) from error


@torch.no_grad()
def find_layout(network: Network, name: str, size: int) -> tuple[Layout, int]:
    """The layout of one image's features, and their number of channels; networks without maps are refused."""
    network.eval()
    try:
        features = network.forward_features(torch.zeros(1, 3, size, size))
    except (AssertionError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise size_error(name, size, error) from error
    channels = network.num_features
    if isinstance(features, Tensor) and features.ndim == 4:
        layout: Layout = "NHWC" if getattr(network, "output_fmt", "NCHW") == "NHWC" else "NCHW"
        if features.shape[1 if layout == "NCHW" else 3] == channels:
            return layout, channels
    elif isinstance(features, Tensor) and features.ndim == 3 and features.shape[2] == channels:
        places = features.shape[1] - getattr(network, "num_prefix_tokens", 0)
        if places > 0 and math.isqrt(places) ** 2 == places:
            return "tokens", channels
    raise InputError(f"backbone {name!r} yields no feature map of one grid; choose another, such as 'resnet50'")


def to_maps(features: Tensor, layout: Layout, prefix_tokens: int) -> Tensor:
    """Features of any layout as maps, images × channels × rows × columns."""
    if layout == "NCHW":
        return features
    if layout == "NHWC":
        return features.permute(0, 3, 1, 2)
    places = features[:, prefix_tokens:]
    side = math.isqrt(places.shape[1])
    # not len(places): that is a plain number, to which an exported graph would be fixed
    return places.transpose(1, 2).reshape(places.shape[0], -1, side, side)


def size_error(name: str, size: int, error: Exception) -> InputError:
    """The refusal of an image size that a network cannot take."""
    return InputError(
        f"backbone {name!r} cannot take images of {size} pixels ({first_line(error)}); "
        "choose another size, such as 224 or the one in its name"
    )


def fuse_batch_norms(backbone: Backbone) -> Backbone:
    """Batch-norm fusion: the same maps in less time, not for training; the backbone itself if nothing can be fused.

    A layer that follows a convolution in a module need not follow it in the network, so the results are compared.
    """
    if not fusable(backbone.network):
        return backbone
    faster = copy.deepcopy(backbone).eval()
    _fuse_in_place(faster.network)
    faster.network.to(memory_format=torch.channels_last)
    return faster if _agree(backbone, faster) else backbone


def fusable(network: Network) -> list[tuple[nn.Module, str, str]]:
    """The modules in which a batch-norm follows a convolution, with the names of both."""
    return [
        (module, name, next_name)
        for module in network.modules()
        for (name, part), (next_name, following) in itertools.pairwise(module.named_children())
        if isinstance(part, nn.Conv2d) and isinstance(following, nn.BatchNorm2d) and following.track_running_stats
    ]


def _fuse_in_place(network: Network) -> None:
    """Fuses in place; an activation that timm keeps in the batch-norm takes its place."""
    for module, name, next_name in fusable(network):
        convolution, following = getattr(module, name), getattr(module, next_name)
        setattr(module, name, fuse_conv_bn_eval(convolution, following))
        setattr(module, next_name, getattr(following, "act", nn.Identity()))


@torch.inference_mode()
def _agree(backbone: Backbone, faster: Backbone) -> bool:
    was_training = backbone.training
    backbone.eval()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (1, 3, backbone.size, backbone.size), dtype=torch.uint8, generator=generator)
    expected, fused = (each(noise.to(backbone.mean.device)) for each in (backbone, faster))
    backbone.train(was_training)
    return bool((fused - expected).abs().max() <= TOLERANCE * expected.abs().max())


class ImageClassifier(Backbone):
    """A backbone with its head: its classes' probabilities, which serve as soft labels of pictures."""

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images classes"]:
        return self.network(self.normalise(pixels)).softmax(dim=-1)


def create_classifier(
    name: str = "tf_efficientnet_lite2", *, weights: str | None = None, size: int = 224
) -> ImageClassifier:
    """A timm network by name with its head, in evaluation mode; weights as for a backbone, including the head's."""
    network, loaded = load_network(name, weights, size, head=True)
    called = f"{name}, class probabilities"
    return ImageClassifier(called, network, channels=network.num_classes, layout="NCHW", **loaded).eval()
