"""A data set's rows by number: in memory, or in the cache, where features are extracted once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Num
from torch import Tensor

from fewtag.research.data.images import LabelledImages
from fewtag.research.features.backbone import Backbone, JoinedBackbone, join_maps
from fewtag.research.features.inference import fuse_batch_norms, precision_of, start
from fewtag.research.features.store import About, Space
from fewtag.research.features.stored_rows import Advance, Source, StoredRows, fill, reading_key


@runtime_checkable
class Rows(Protocol):
    """Maps (or pixels) of a data set, to be taken by row number."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]: ...


class MemoryRows:
    """Rows kept in one tensor, on any device."""

    def __init__(self, tensor: Num[Tensor, "images channels height width"]) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        return self.tensor.index_select(0, torch.as_tensor(rows, dtype=torch.long, device=self.tensor.device))


class JoinedRows:
    """Rows of several networks, channels side by side; each network's rows are kept for themselves."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        return join_maps([part.take(rows) for part in self.parts])


def pixel_rows(images: LabelledImages, size: int, cache: Path, advance: Advance = lambda _: None) -> StoredRows:
    """The pictures, decoded and squashed once."""
    about = About("pixels", f"{size} × {size} pixels", reading_key(size), (3, size, size), "uint8")
    source = Source(Space(cache, about), size, lambda pixels: lambda: pixels)
    return fill(images.pictures, [source], batch=64, advance=advance)[0]


def feature_rows(
    images: LabelledImages,
    backbone: Backbone | JoinedBackbone,
    cache: Path,
    *,
    batch: int = 32,
    advance: Advance = lambda _: None,
) -> Rows:
    """The pictures' local maps in half precision, extracted once, on the device where the backbone is."""
    parts = backbone.parts if isinstance(backbone, JoinedBackbone) else (backbone,)
    found = fill(images.pictures, [feature_source(part, cache) for part in parts], batch=batch, advance=advance)
    return JoinedRows(found) if isinstance(backbone, JoinedBackbone) else found[0]


def feature_source(backbone: Backbone, cache: Path) -> Source:
    """The maps of one network."""
    if backbone.mean.device.type == "cpu":
        backbone = fuse_batch_norms(backbone)
    size = backbone.size
    shape = start(backbone, np.zeros((1, 3, size, size), np.uint8))().shape[1:]
    # networks that run on tensor cores round otherwise, so their maps are kept apart
    precision = precision_of(backbone)
    what = f"{backbone.name}, {size} × {size} pixels, {precision}".replace("torch.", "")
    key = f"{backbone.fingerprint} {precision} {reading_key(size)}"
    space = Space(cache, About("features", what, key, shape, "float16"))
    return Source(space, size, lambda pixels: start(backbone, pixels))
