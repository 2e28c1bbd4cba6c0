"""timm's networks at any image size, and their features as maps whatever layout they come in."""

import math
from typing import Any, Literal

import timm
import torch
from torch import Tensor

from fewtag.errors import InputError, nearest

Layout = Literal["NCHW", "NHWC", "tokens"]
# an nn.Module; what timm adds to that has no type to name
Network = Any


def check_name(name: str) -> None:
    """Refuse a network that timm does not have."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise InputError(f"there is no backbone {name!r} in timm; {nearest(architecture, timm.list_models())}")
    if tag and name not in (tagged := timm.list_pretrained(f"{architecture}.*")):
        raise InputError(f"backbone {architecture!r} has no weights tagged {tag!r} in timm; {nearest(name, tagged)}")


def build_network(name: str, size: int, *, pretrained: bool) -> Network:
    """The network without its classifier, at the size its weights were made for where it can be resized later."""
    network = create(name, pretrained=pretrained)
    if network.pretrained_cfg["input_size"][0] != 3:
        raise InputError(f"backbone {name!r} does not take colour images; choose another")
    if network.pretrained_cfg.get("fixed_input_size") and not hasattr(network, "set_input_size"):
        return create(name, pretrained=pretrained, size=size)
    return network


def create(name: str, *, pretrained: bool, size: int | None = None) -> Network:
    """timm's network, with a refusal in one sentence where timm has many kinds of traceback."""
    image_size: dict[str, Any] = {} if size is None else {"img_size": size}
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **image_size)
    # what a failed download raises depends on the versions of timm, the hub's client and its transport
    except Exception as error:
        if pretrained:
            raise InputError(
                f"timm's weights of {name!r} could not be had ({first_line(error)}); "
                "go on line once, or give the path of a state dict"
            ) from error
        raise size_error(name, size, error) from error


def resize_network(network: Network, name: str, size: int) -> None:
    """Let a network of fixed size take another, resampling its position embeddings."""
    if hasattr(network, "set_input_size") and size != network.pretrained_cfg["input_size"][-1]:
        try:
            network.set_input_size(img_size=(size, size))
        except (AssertionError, RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            raise size_error(name, size, error) from error


@torch.no_grad()
def find_layout(network: Network, name: str, size: int) -> tuple[Layout, int]:
    """How one image's features come out, and with how many channels; nets without maps are refused."""
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


def fold(features: Tensor, layout: Layout, prefix_tokens: int) -> Tensor:
    """Features of any layout as maps, images × channels × rows × columns."""
    if layout == "NCHW":
        return features
    if layout == "NHWC":
        return features.permute(0, 3, 1, 2)
    places = features[:, prefix_tokens:]
    side = math.isqrt(places.shape[1])
    # not len(places): that is a plain number, to which an exported graph would be bound
    return places.transpose(1, 2).reshape(places.shape[0], -1, side, side)


def size_error(name: str, size: int | None, error: Exception) -> InputError:
    """The refusal of an image size that a network cannot take."""
    return InputError(
        f"backbone {name!r} cannot take images of {size} pixels ({first_line(error)}); "
        "choose another size, such as 224 or the one in its name"
    )


def first_line(error: Exception) -> str:
    """An error in a few words."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
