"""Rows of a data set by number: in memory, in the feature cache, or joined; features are extracted once.

On a CPU each core processes its own chunks of pictures; on a GPU copies run on CUDA streams beside the network.
"""

import functools
import hashlib
import io
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float16, Num, UInt8
from PIL import Image
from torch import Tensor

from fewtag.cache import ArrayRows, Cache, content_digest
from fewtag.errors import InputError
from fewtag.files import LIMIT_VARIABLE, format_size
from fewtag.pictures.decode import squash_bytes, stack
from fewtag.pictures.files import Picture
from fewtag.pictures.prefetch import Advance, batches, prefetch
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.backbone import AnyBackbone, Backbone, JoinedBackbone, fuse_batch_norms, join_maps

Square = UInt8[np.ndarray, "3 size size"]
Pixels = UInt8[np.ndarray, "images 3 size size"]
HalfMaps = Float16[np.ndarray, "images channels rows columns"]

AT_ONCE = 4
"""Pictures that a core processes at once: so few that a layer's activations stay in its cache."""
_log = logging.getLogger(__name__)


@runtime_checkable
class Rows(Protocol):
    """Maps, pixels or encoded images of a data set, to be taken by row number."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images *shape"]: ...


def take_all(rows: Rows, batch: int = 256) -> Iterator[Tensor]:
    """All rows in order, a batch at a time."""
    for first in range(0, len(rows), batch):
        yield rows.take(range(first, min(first + batch, len(rows))))


class MemoryRows:
    """Rows kept in one tensor, on any device."""

    def __init__(self, tensor: Num[Tensor, "images *shape"]) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Sequence[int] | Tensor) -> Num[Tensor, "images *shape"]:
        return self.tensor.index_select(0, torch.as_tensor(rows, dtype=torch.long, device=self.tensor.device))


class JoinedRows:
    """Rows of several networks with their channels concatenated; each network's rows are cached separately."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        return join_maps([part.take(rows) for part in self.parts])


def find_copies(rows: Rows) -> list[tuple[int, int]]:
    """Pairs of row numbers of pictures with the same bytes, the earlier first; empty if the rows have no digests."""
    cached = rows.parts[0] if isinstance(rows, JoinedRows) else rows
    first: dict[bytes, int] = {}
    digests = cached.digests if isinstance(cached, CachedRows) else ()
    pairs = [(first.setdefault(digest, row), row) for row, digest in enumerate(digests)]
    return [(one, other) for one, other in pairs if one != other]


class Extractor(NamedTuple):
    """Makes a space's rows from pictures of one size.

    `begin` starts on a batch and returns a function that waits for the rows: a GPU works in between.
    """

    space: ArrayRows
    size: int
    begin: Callable[[Pixels], Callable[[], np.ndarray]]


class CachedRows:
    """Rows in the cache. A row that is missing, evicted or damaged is made from its picture when taken."""

    def __init__(self, pictures: Sequence[Picture], digests: Sequence[bytes], extractor: Extractor) -> None:
        self.pictures, self.digests, self.extractor = pictures, digests, extractor

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images *shape"]:
        assert all(0 <= row < len(self) for row in rows), "a row of this data set"
        space = self.extractor.space
        found = dict(zip(rows, space.get_many([self.digests[row] for row in rows]), strict=True))
        if missing := [row for row, value in found.items() if value is None]:
            found |= zip(missing, self._make(missing), strict=True)
        values = np.empty((len(rows), *space.shape), space.dtype)
        for number, row in enumerate(rows):
            values[number] = found[row]
        return torch.from_numpy(values)

    def _make(self, rows: Sequence[int]) -> np.ndarray:
        pixels = []
        for row in rows:
            data = self.pictures[row].read()
            if content_digest(data) != self.digests[row]:
                raise InputError(f"image {self.pictures[row]} changed while it was in use; start again")
            pixels.append(squash_bytes(data, str(self.pictures[row]), self.extractor.size))
        made = self.extractor.begin(stack(pixels))()
        self.extractor.space.put_many([self.digests[row] for row in rows], made)
        return made


def extract(
    pictures: Sequence[Picture], extractors: Sequence[Extractor], *, batch: int, advance: Advance = lambda _: None
) -> list[CachedRows]:
    """The pictures' rows in several spaces: each picture is read once, and decoded only if a row is missing.

    Pictures are prefetched in threads, and the network works on a batch while the rows of the previous one are stored.
    """
    size = extractors[0].size
    assert all(extractor.size == size for extractor in extractors), "one decoding serves all"
    for extractor in extractors:
        _warn_if_too_many(len(pictures), extractor.space)

    def read(picture: Picture) -> tuple[bytes, Square | None]:
        data = picture.read()
        digest = content_digest(data)
        known = all(digest in extractor.space for extractor in extractors)
        return digest, None if known else squash_bytes(data, str(picture), size)

    digests: list[bytes] = []
    keep = _begin([], {})
    try:
        for group in batches(prefetch(read, pictures, most=2 * batch), batch):
            digests += [digest for digest, _ in group]
            started = _begin(extractors, {digest: pixels for digest, pixels in group if pixels is not None})
            keep_last, keep = keep, started
            keep_last()
            advance(len(group))
    finally:
        keep()  # even if a picture cannot be read: the rows of the others are stored
    return [CachedRows(pictures, digests, extractor) for extractor in extractors]


def _begin(extractors: Sequence[Extractor], pictures: Mapping[bytes, Square]) -> Callable[[], None]:
    """Starts on the missing rows of these pictures; returns a function that stores them."""
    started = []
    for space, _, begin in extractors:
        lacking = [digest for digest in pictures if digest not in space]
        if lacking:
            started.append((space, lacking, begin(stack([pictures[digest] for digest in lacking]))))

    def keep() -> None:
        for space, digests, wait in started:
            space.put_many(digests, wait())

    return keep


def _warn_if_too_many(pictures: int, space: ArrayRows) -> None:
    needed = pictures * space.row_bytes
    if needed > space.cache.limit:
        _log.warning(
            "%d rows (%s) take %s, but the cache at most %s: those that do not fit are made again each time they are "
            "needed; raise %s",
            pictures,
            space.what,
            format_size(needed),
            format_size(space.cache.limit),
            LIMIT_VARIABLE,
        )


def pixel_rows(images: LabelledImages, size: int, cache: Path, advance: Advance = lambda _: None) -> CachedRows:
    """The pictures' pixels, decoded and resized once."""
    space = Cache(cache).arrays("pixels", f"{size} × {size} pixels", reading_key(size), (3, size, size), "uint8")
    extractor = Extractor(space, size, lambda pixels: lambda: pixels)
    return extract(images.pictures, [extractor], batch=64, advance=advance)[0]


def feature_rows(
    images: LabelledImages,
    backbone: AnyBackbone,
    cache: Path,
    *,
    batch: int = 32,
    advance: Advance = lambda _: None,
) -> Rows:
    """The pictures' local maps in half precision, extracted once, on the backbone's device."""
    rows = extract(images.pictures, _feature_extractors(backbone, cache), batch=batch, advance=advance)
    return JoinedRows(rows) if isinstance(backbone, JoinedBackbone) else rows[0]


def drop_features(backbone: AnyBackbone, cache: Path) -> None:
    """Removes a network's maps from the cache: those of a fine-tuned network are of no use after its run."""
    for extractor in _feature_extractors(backbone, cache):
        extractor.space.clear()


def _feature_extractors(backbone: AnyBackbone, cache: Path) -> list[Extractor]:
    parts = backbone.parts if isinstance(backbone, JoinedBackbone) else (backbone,)
    opened = Cache(cache)
    return [_feature_extractor(part, opened) for part in parts]


def _feature_extractor(backbone: Backbone, cache: Cache) -> Extractor:
    # changing a tensor in place, as a training step does, raises its version
    versions = tuple(tensor._version for tensor in backbone.state_dict().values())
    faster, shape, fingerprint = _faster(backbone, backbone.mean.device, versions)
    # tensor cores round differently, so their maps are kept apart
    size, precision = backbone.size, precision_of(backbone)
    what = f"{backbone.name}, {size} × {size} pixels, {precision}".replace("torch.", "")
    space = cache.arrays("features", what, f"{fingerprint} {precision} {reading_key(size)}", shape, "float16")
    return Extractor(space, size, lambda pixels: start(faster, pixels))


@functools.lru_cache(maxsize=4)
def _faster(
    backbone: Backbone, device: torch.device, _versions: tuple[int, ...]
) -> tuple[Backbone, tuple[int, ...], str]:
    """The network in its fastest form, the shape of its maps and its fingerprint: once per weights, not per phase."""
    faster = fuse_batch_norms(backbone) if device.type == "cpu" else backbone
    shape = start(faster, np.zeros((1, 3, backbone.size, backbone.size), np.uint8))().shape[1:]
    return faster, shape, backbone.fingerprint


def map_chunks_over_cores(
    work: Callable[[Tensor], Tensor], pixels: UInt8[Tensor, "images 3 size size"]
) -> Float[Tensor, "images ..."]:
    """A network's output, without gradients, with a few pictures on each core instead of all cores on every layer.

    Cores that share a layer wait for the slowest one at every layer, which costs most when other programs are busy.
    """
    threads = torch.get_num_threads()
    chunks = pixels.split(max(1, min(AT_ONCE, math.ceil(len(pixels) / threads))))  # type: ignore[no-untyped-call]

    def forward(chunk: Tensor) -> Tensor:
        with torch.inference_mode():  # the mode is per thread
            return work(chunk)

    if threads == 1:
        return torch.cat([forward(chunk) for chunk in chunks])
    return torch.cat(list(_cores(threads, os.getpid()).map(forward, chunks)))


@functools.cache
def _cores(threads: int, process: int) -> ThreadPoolExecutor:
    """A pool with one thread per core, each computing single-threaded; keyed by process, since a fork needs its own."""
    name = f"fewtag-{process}"
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,))


def precision_of(backbone: Backbone) -> torch.dtype:
    """The precision in which the network computes: bfloat16 on tensor cores, float32 on a CPU."""
    return torch.bfloat16 if backbone.mean.device.type == "cuda" else torch.float32


def start(backbone: Backbone, pixels: Pixels) -> Callable[[], HalfMaps]:
    """Starts one pass of the network in evaluation mode; returns a function that waits for its maps.

    A GPU works on this batch while the caller fetches the next one or stores the previous one's maps.
    """
    device = backbone.mean.device
    was_training = backbone.training
    backbone.eval()
    batch = torch.from_numpy(pixels)
    if device.type == "cuda":
        with torch.inference_mode(), torch.autocast("cuda", precision_of(backbone)):
            maps = backbone(_upload(batch, device)).half().contiguous()
    else:
        maps = map_chunks_over_cores(backbone, batch).half().contiguous()
    backbone.train(was_training)
    return _download(maps) if device.type == "cuda" else maps.numpy


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """CUDA streams for uploads and downloads: on the network's own, copies and layers would wait for each other."""
    coming, going = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    return coming, going


def _upload(batch: Tensor, device: torch.device) -> Tensor:
    """Copies a batch to the GPU, on a stream beside the network's."""
    coming, _ = _streams(device)
    with torch.cuda.stream(coming):
        there = batch.pin_memory().to(device, non_blocking=True)  # copies from unpinned memory block the caller
    network = torch.cuda.current_stream(device)
    network.wait_stream(coming)
    there.record_stream(network)
    return there


def _download(maps: Tensor) -> Callable[[], HalfMaps]:
    """Copies maps to the host's memory, on a stream of its own, once the network has computed them."""
    _, going = _streams(maps.device)
    going.wait_stream(torch.cuda.current_stream(maps.device))
    home = torch.empty(maps.shape, dtype=maps.dtype, pin_memory=True)
    with torch.cuda.stream(going):
        home.copy_(maps, non_blocking=True)
        arrived = going.record_event()
    maps.record_stream(going)

    def finish() -> HalfMaps:
        arrived.synchronize()
        return home.numpy()

    return finish


@functools.cache
def reading_key(size: int) -> str:
    """A digest of a decoded sample picture: if decoding changes, rows get another key."""
    # larger than the draft size of JPEGs, so that this path is covered too
    sides = 5 * size, 4 * size + 1
    ramps = [Image.linear_gradient("L").rotate(turn).resize(sides) for turn in (0, 90)]
    sample = Image.merge("RGB", [*ramps, Image.radial_gradient("L").resize(sides)])
    encoded = io.BytesIO()
    sample.save(encoded, "JPEG", quality=90)
    return hashlib.sha256(squash_bytes(encoded.getvalue(), "sample", size).tobytes()).hexdigest()[:20]
