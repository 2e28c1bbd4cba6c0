"""From a folder's pictures to their places: out of the cache, or through the network and into it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float16, UInt8

from fewtag.apps.folders import decode_ahead
from fewtag.errors import InputError
from fewtag.pictures.decode import squash_bytes, stack
from fewtag.pictures.files import Picture
from fewtag.research.features.store import Space, address
from fewtag.tagger.encode import Places
from fewtag.tagger.tagger import Tagger


class _Read(NamedTuple):
    """What is known of a picture: its places, if the cache has them, or else its pixels."""

    digest: bytes
    places: Float16[np.ndarray, "places space"] | None
    pixels: UInt8[np.ndarray, "3 size size"] | None


class FolderPlaces:
    """Reads each picture once, ahead of the network, and decodes it only if the cache does not know it."""

    def __init__(self, tagger: Tagger, space: Space | None) -> None:
        self.cached = 0
        self._tagger, self._space = tagger, space

    def encode(
        self, pictures: Sequence[Picture], batch: int
    ) -> Iterator[tuple[list[tuple[Picture, InputError | None]], Places | None]]:
        """Batch by batch the pictures, each with why it could not be read, and the places of those that could.

        In half precision where the cache has a part in it; those of the network are of the same numbers.
        """
        for group in decode_ahead(pictures, self._read, batch):
            reads = [read for _, read in group if not isinstance(read, InputError)]
            tried = [(picture, read if isinstance(read, InputError) else None) for picture, read in group]
            yield tried, self._places(reads) if reads else None

    def _read(self, picture: Picture) -> _Read:
        """In a thread; squashed there too, so that no whole photograph waits for the network."""
        try:
            str(picture).encode()
        except UnicodeEncodeError as error:
            raise InputError("the file's name is no UTF-8 text; rename it") from error
        data = picture.read()
        digest = address(data)
        places = None if self._space is None else self._space.get(digest)
        if places is not None:
            return _Read(digest, places, None)
        return _Read(digest, None, squash_bytes(data, str(picture), self._tagger.model.backbone.size))

    def _places(self, reads: Sequence[_Read]) -> Places:
        pixels = [read.pixels for read in reads if read.pixels is not None]
        self.cached += len(reads) - len(pixels)
        if not pixels:
            return self._join([read.places for read in reads if read.places is not None])
        encoded = self._tagger.encode_pixels(stack(pixels))
        if self._space is None:
            return encoded
        fresh = encoded.half().cpu().numpy()
        if self._space.has_room(len(fresh)):
            self._space.append([read.digest for read in reads if read.pixels is not None], fresh)
        rows = iter(fresh)
        return self._join([next(rows) if read.places is None else read.places for read in reads])

    def _join(self, places: Sequence[Float16[np.ndarray, "places space"]]) -> Places:
        return torch.from_numpy(np.stack(places)).to(self._tagger.model.method.mean.device)
