"""Several networks as one: their maps side by side, for methods that can do with more than one view of a picture."""

import hashlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.features.backbone import Backbone, create_backbone


class JoinedBackbone(nn.Module):
    """Maps of several backbones, channels joined; finer maps are pooled to the coarsest grid."""

    def __init__(self, parts: Sequence[Backbone]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.networks = nn.ModuleList(parts)  # for torch, which moves and saves what it finds in one
        self.name = "+".join(part.name for part in parts)
        self.size = parts[0].size
        self.channels = sum(part.channels for part in parts)

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images channels rows columns"]:
        return join_maps([part(pixels) for part in self.parts])

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides the maps."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()


def join_maps(maps: Sequence[Float[Tensor, "images _ _ _"]]) -> Float[Tensor, "images channels rows columns"]:
    """Channels side by side, on the coarsest of the grids."""
    grid = min(single.shape[2] for single in maps), min(single.shape[3] for single in maps)
    return torch.cat([F.adaptive_avg_pool2d(single.float(), grid).to(single.dtype) for single in maps], dim=1)


def open_backbone(name: str, *, weights: str | None = None, size: int = 224) -> Backbone | JoinedBackbone:
    """A backbone by name, or several joined by `+`, with as many weights sources joined by `+`, or none."""
    names = [part.strip() for part in name.split("+")]
    if len(names) == 1:
        return create_backbone(name, weights=weights, size=size)
    sources = [None] * len(names) if weights is None else [part.strip() for part in weights.split("+")]
    if len(sources) != len(names):
        raise InputError(
            f"backbone {name!r} joins {len(names)} networks, and its weights {weights!r} are {len(sources)}; "
            "name one source for each, joined by +"
        )
    parts = [create_backbone(part, weights=source, size=size) for part, source in zip(names, sources, strict=True)]
    return JoinedBackbone(parts)
