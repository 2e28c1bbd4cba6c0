"""Rows on disk: pictures decoded once, features extracted once; a run that was killed goes on where it stopped."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Num, UInt8
from torch import Tensor

from fewtag.data.images import LabelledImages
from fewtag.errors import InputError
from fewtag.features.backbone import Backbone
from fewtag.features.joined import JoinedBackbone, join_maps
from fewtag.files import write_atomically

Advance = Callable[[int], None]
"""Told how many more rows are done, for a progress bar."""


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
        return self.tensor[torch.as_tensor(rows, dtype=torch.long, device=self.tensor.device)]


class RowFile:
    """Rows of one shape in a file, each marked once it is safely written.

    Reads with plain `pread` rather than a memory map, so that memory stays bounded by what is asked for at once.
    """

    def __init__(self, folder: Path, *, count: int, shape: tuple[int, ...], dtype: str) -> None:
        self.folder, self.count, self.shape, self.dtype = folder, count, shape, np.dtype(dtype)
        self.row_bytes = int(np.prod(shape)) * self.dtype.itemsize
        header = json.dumps({"count": count, "shape": list(shape), "dtype": self.dtype.name})
        header_path = folder / "header.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if header_path.exists() and (found := header_path.read_text()) != header:
                raise InputError(f"the cache folder {folder} holds other rows ({found}); remove it")
            self._data = os.open(folder / "rows.bin", os.O_RDWR | os.O_CREAT, 0o644)
            self._marks = os.open(folder / "done.bin", os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._data, count * self.row_bytes)
            os.ftruncate(self._marks, count)
            # whole or not at all: half a header would refuse all later runs
            write_atomically(header_path, header.encode())
        except OSError as error:
            raise self._cannot_write(error) from error

    def __len__(self) -> int:
        return self.count

    def __del__(self) -> None:
        for handle in (getattr(self, "_data", None), getattr(self, "_marks", None)):
            if handle is not None:
                os.close(handle)

    def missing(self) -> list[int]:
        """The rows not yet written, in order."""
        return np.flatnonzero(np.frombuffer(os.pread(self._marks, self.count, 0), np.uint8) == 0).tolist()

    def write(self, rows: Sequence[int], values: np.ndarray) -> None:
        """Writes the rows, and only then marks them as done."""
        values = np.ascontiguousarray(values, self.dtype)
        try:
            for row, value in zip(rows, values, strict=True):
                written = os.pwrite(self._data, value.tobytes(), row * self.row_bytes)
                if written < self.row_bytes:  # the disk filled up in the middle of the row
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._data)
            for row in rows:
                os.pwrite(self._marks, b"\1", row)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write to the cache {self.folder}: {error.strerror}; free some room or name another --cache "
            "(what is finished is kept)"
        )

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        assert all(0 <= row < self.count for row in rows), "a row of this file"
        values = np.empty((len(rows), *self.shape), self.dtype)
        for value, row in zip(values, rows, strict=True):
            os.preadv(self._data, [memoryview(value).cast("B")], row * self.row_bytes)
        return torch.from_numpy(values)


class JoinedRows:
    """Rows of several networks, channels side by side; each network's rows are kept for themselves."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        return join_maps([part.take(rows) for part in self.parts])


def pixel_rows(images: LabelledImages, size: int, cache: Path, advance: Advance = lambda _: None) -> RowFile:
    """The pictures, decoded and squashed once."""
    file = RowFile(
        cache / f"pixels-{_key(images, f'pixels {size}')}", count=len(images), shape=(3, size, size), dtype="uint8"
    )
    missing = file.missing()
    advance(len(images) - len(missing))
    for rows, pixels in decode(images, missing, size, batch=64):
        file.write(rows, pixels.numpy())
        advance(len(rows))
    return file


def feature_rows(
    images: LabelledImages,
    backbone: Backbone | JoinedBackbone,
    cache: Path,
    *,
    batch: int = 32,
    advance: Advance = lambda _: None,
) -> Rows:
    """The pictures' local maps in half precision, extracted once, on the device where the backbone is."""
    if isinstance(backbone, JoinedBackbone):
        return JoinedRows([network_rows(images, part, cache, batch, advance) for part in backbone.parts])
    return network_rows(images, backbone, cache, batch, advance)


def network_rows(images: LabelledImages, backbone: Backbone, cache: Path, batch: int, advance: Advance) -> RowFile:
    """Of one network."""
    device = next(backbone.parameters()).device
    was_training = backbone.training
    backbone.eval()
    with torch.inference_mode():
        shape = tuple(backbone(torch.zeros(1, 3, backbone.size, backbone.size, dtype=torch.uint8, device=device)).shape)
        key = _key(images, f"features {backbone.fingerprint}")
        file = RowFile(cache / f"features-{key}", count=len(images), shape=shape[1:], dtype="float16")
        missing = file.missing()
        advance(len(images) - len(missing))
        for rows, pixels in decode(images, missing, backbone.size, batch=batch):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                maps = backbone(pixels.to(device, non_blocking=True))
            file.write(rows, maps.half().contiguous().cpu().numpy())
            advance(len(rows))
    backbone.train(was_training)
    return file


def decode(
    images: LabelledImages, rows: Sequence[int], size: int, batch: int
) -> Iterator[tuple[list[int], UInt8[Tensor, "images 3 size size"]]]:
    """Batches of decoded pictures; threads decode the next batches while the caller works on this one."""
    chunks = [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for chunk, futures in _ahead(
                chunks, lambda chunk: [pool.submit(images.pictures[row].pixels, size) for row in chunk], most=2
            ):
                yield chunk, torch.from_numpy(np.stack([future.result() for future in futures]))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ahead(
    chunks: Iterable[list[int]], start: Callable[[list[int]], list[Future[np.ndarray]]], most: int
) -> Iterator[tuple[list[int], list[Future[np.ndarray]]]]:
    """Keeps `most` chunks under way beside the one handed out."""
    waiting: list[tuple[list[int], list[Future[np.ndarray]]]] = []
    for chunk in chunks:
        waiting.append((chunk, start(chunk)))
        if len(waiting) > most:
            yield waiting.pop(0)
    yield from waiting


def _key(images: LabelledImages, what: str) -> str:
    """Names the rows by the pictures' places, file sizes and times, and by what was made of them."""
    digest = hashlib.sha256(what.encode())
    # resolved: the same file under another name is the same picture
    files = {path: (path.resolve(), path.stat()) for path in {picture.path for picture in images.pictures}}
    for picture in images.pictures:
        path, stat = files[picture.path]
        digest.update(f"{path}|{picture.offset}|{picture.size}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]
