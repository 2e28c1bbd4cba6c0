"""From pixels to local maps: any timm network, fed the way its weights were trained."""

import copy
import hashlib

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.features.networks import (
    Layout,
    Network,
    build_network,
    check_name,
    find_layout,
    fold,
    resize_network,
)
from fewtag.research.features.weights import Preprocessing, load_weights, split_source


class Backbone(nn.Module):
    """Any timm network that yields local maps, with the preprocessing its weights were made for."""

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
    ) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.channels = channels
        self.preprocessing = preprocessing
        self.variant = variant
        self.layout = layout
        self.known_as: str | None = None
        self.network: Network = network.to(memory_format=torch.channels_last)
        # not persistent: a state dict holds what was learnt, and these were not
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images channels rows columns"]:
        """Local maps of squashed RGB images, normalised here so that no caller can do it differently."""
        if tuple(pixels.shape[2:]) != (self.size, self.size):
            found = " × ".join(str(side) for side in pixels.shape[2:])
            raise InputError(
                f"backbone {self.name!r} takes images of {self.size} × {self.size} pixels, these are {found}; "
                "squash them to its size, or create it with theirs"
            )
        if self.preprocessing.order == "BGR":
            pixels = pixels.flip(1)
        # channels last: convolutions run twice as fast on a CPU, and on tensor cores
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        features = self.network.forward_features((pixels.to(self.mean.dtype) - self.mean) / self.std)
        return fold(features, self.layout, getattr(self.network, "num_prefix_tokens", 0))

    def zoomed(self, factor: int = 2) -> "Backbone":
        """The same network on larger images, for finer maps; itself where the network is bound to one size."""
        if self.layout != "NCHW":
            return self
        larger = copy.copy(self)  # shares the network and its weights
        larger.size = factor * self.size
        return larger

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides the maps: name, size, preprocessing, layer variant and every tensor."""
        if self.known_as is not None:  # the same network, made faster
            return self.known_as
        digest = hashlib.sha256(repr((self.name, self.size, self.preprocessing, self.variant)).encode())
        for key, tensor in sorted(self.state_dict().items()):
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def create_backbone(name: str = "tf_efficientnet_lite2", *, weights: str | None = None, size: int = 224) -> Backbone:
    """A timm network by name, in evaluation mode, with weights from one of `weights.CHOICES`."""
    check_name(name)
    if size < 1:
        raise InputError(f"image size {size} is not a number of pixels; give one such as 224")
    kind, argument = split_source(name, weights)
    network = build_network(name, size, pretrained=kind == "timm")
    preprocessing = load_weights(network, name, kind, argument)
    resize_network(network, name, size)
    layout, channels = find_layout(network, name, size)
    backbone = Backbone(
        name,
        network,
        size=size,
        channels=channels,
        layout=layout,
        preprocessing=preprocessing,
        # Keras' strides and epsilon are in no tensor, yet change the maps
        variant="keras" if kind == "keras" else "timm",
    )
    return backbone.eval()
