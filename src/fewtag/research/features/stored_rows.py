"""A data set's rows in the cache: each picture is read once, and decoded only if its row is not there yet."""

import functools
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Num, UInt8
from PIL import Image
from torch import Tensor

from fewtag.errors import InputError
from fewtag.pictures.decode import squash_bytes, stack
from fewtag.pictures.files import Picture
from fewtag.pictures.prefetch import prefetch
from fewtag.research.features.store import Entry, Space, address

Advance = Callable[[int], None]
"""Told how many more rows are done, for a progress bar."""
Square = UInt8[np.ndarray, "3 size size"]
Pixels = UInt8[np.ndarray, "images 3 size size"]


class Source(NamedTuple):
    """A space, the size of the pictures that it is about, and what makes its rows of them.

    `start` begins with a batch; calling what it answers waits for the rows. A GPU works in between.
    """

    space: Space
    size: int
    start: Callable[[Pixels], Callable[[], np.ndarray]]


class StoredRows:
    """Rows in a space. One that is damaged there, or was removed, is made of its picture again when it is taken."""

    def __init__(self, pictures: Sequence[Picture], source: Source) -> None:
        self.pictures, self.source = pictures, source
        self.digests: list[bytes] = []
        # held as long as the rows are: whoever makes room takes nothing away from a training that runs
        self.entries: list[Entry | None] = []

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        assert all(0 <= row < len(self) for row in rows), "a row of this data set"
        values, missing = self.source.space.read([self.entries[row] for row in rows])
        if missing:
            fresh = self._make_again(sorted({int(rows[number]) for number in missing}))
            for number in missing:
                values[number] = fresh[rows[number]]
        return torch.from_numpy(values)

    def start(self, rows: Sequence[int], pixels: Sequence[Square]) -> Callable[[], np.ndarray]:
        """Begins to make the rows of these pictures; calling what it answers appends them."""
        values_of = self.source.start(stack(pixels))

        def keep() -> np.ndarray:
            values = values_of()
            entries = self.source.space.append([self.digests[row] for row in rows], values)
            for row, entry in zip(rows, entries, strict=True):
                self.entries[row] = entry
            return values

        return keep

    def _make_again(self, rows: Sequence[int]) -> dict[int, np.ndarray]:
        pixels = []
        for row in rows:
            data = self.pictures[row].read()
            if address(data) != self.digests[row]:
                raise InputError(f"image {self.pictures[row]} changed while it was in use; start again")
            pixels.append(squash_bytes(data, str(self.pictures[row]), self.source.size))
        return dict(zip(rows, self.start(rows, pixels)(), strict=True))


class Making:
    """The rows that are not there yet, batch by batch: one is under way while those of the last are kept."""

    def __init__(self, spaces: Sequence[StoredRows], advance: Advance) -> None:
        self._spaces, self._advance = spaces, advance
        self._under_way: list[tuple[list[Callable[[], np.ndarray]], int]] = []

    def start(self, pixels: Mapping[int, Square]) -> None:
        """Begins with these pictures, known by their row."""
        lacking = [(rows, [row for row in pixels if rows.entries[row] is None]) for rows in self._spaces]
        started = [rows.start(numbers, [pixels[row] for row in numbers]) for rows, numbers in lacking if numbers]
        self._under_way.append((started, len(pixels)))
        if len(self._under_way) > 1:
            self._keep()

    def finish(self) -> None:
        while self._under_way:
            self._keep()

    def _keep(self) -> None:
        started, pictures = self._under_way.pop(0)
        for keep in started:
            keep()
        self._advance(pictures)


def fill(pictures: Sequence[Picture], sources: Sequence[Source], *, batch: int, advance: Advance) -> list[StoredRows]:
    """The pictures' rows in several spaces; the ones that are not there yet are made of so many pictures at once."""
    found = [StoredRows(pictures, source) for source in sources]
    size = sources[0].size
    assert all(source.size == size for source in sources), "one decoding serves all"

    def read(picture: Picture) -> tuple[bytes, list[Entry | None], Square | None]:
        data = picture.read()
        digest = address(data)
        entries = [source.space.find(digest) for source in sources]
        return digest, entries, squash_bytes(data, str(picture), size) if None in entries else None

    making, waiting = Making(found, advance), dict[int, Square]()
    there = 0
    try:
        for row, (digest, entries, pixels) in enumerate(prefetch(read, pictures, most=2 * batch)):
            for rows, entry in zip(found, entries, strict=True):
                rows.digests.append(digest)
                rows.entries.append(entry)
            if pixels is None:
                there += 1
            else:
                waiting[row] = pixels
            if len(waiting) == batch:
                making.start(waiting)
                waiting = {}
            if there == batch:
                advance(there)
                there = 0
        making.start(waiting)
    finally:
        making.finish()  # also where a picture cannot be read: what was made of the others is kept
    advance(there)
    return found


@functools.cache
def reading_key(size: int) -> str:
    """A digest of what decoding makes of a sample: where pictures are read in another way, rows are other rows."""
    # large enough for what only large JPEGs go through
    sides = 5 * size, 4 * size + 1
    ramps = [Image.linear_gradient("L").rotate(turn).resize(sides) for turn in (0, 90)]
    sample = Image.merge("RGB", [*ramps, Image.radial_gradient("L").resize(sides)])
    encoded = io.BytesIO()
    sample.save(encoded, "JPEG", quality=90)
    return hashlib.sha256(squash_bytes(encoded.getvalue(), "sample", size).tobytes()).hexdigest()[:20]
