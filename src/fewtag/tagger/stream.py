"""The tagging engine's heart: pictures in, rows out, batch by batch, through the cache where there is one."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import __version__ as pillow_version

from fewtag.cache import Cache, Space, content_digest
from fewtag.core.calibration import Calibration
from fewtag.core.closed_form import Places, Strengths, score
from fewtag.errors import InputError
from fewtag.files import digest
from fewtag.pictures.decode import Square, squash, squash_bytes, stack
from fewtag.pictures.prefetch import batches, prefetch, usable_cores
from fewtag.tagger.bank import Bank
from fewtag.tagger.inputs import encoded_bytes, file_name, open_image
from fewtag.tagger.model import Model

BATCH = 32
DIGITS = 6
"""Of a probability in a row."""
SMALL = 500_000
"""Bytes of an encoded picture that may wait with many others; a larger one is decoded at once, or they fill memory."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A picture's row: the names over their threshold, likeliest first, and every label's probability.

    Where the picture could not be read, `failure` says why and there is nothing else.
    """

    image: str
    tags: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    cached: bool = field(default=False, compare=False)


class Item(NamedTuple):
    """A picture to be tagged: its name in the row, and what a person may hand over, or why it cannot be had."""

    name: str
    image: object


class Scorer:
    """A bank's labels as they are now, ready to score: teaching meanwhile does not change them."""

    def __init__(self, bank: Bank, calibration: Calibration, strengths: Strengths, threshold: float | None = None):
        if not bank.classes:
            raise InputError("no label is known yet; learn one from a picture, or define one by its name")
        self.labels = bank.classes
        self._matrix, self._strengths = bank.matrix, strengths
        self.slopes, self.offsets = calibration.curves(bank.counts)
        own = (bank.definitions[label].threshold for label in bank.classes)
        usual = calibration.threshold(bank.counts).tolist()
        chosen = [common if each is None else each for each, common in zip(own, usual, strict=True)]
        self.thresholds = np.array(chosen if threshold is None else [threshold] * len(chosen), np.float32)
        self._calibrated = calibration, bank.counts

    def probabilities(self, places: Places) -> NDArray[np.float32]:
        """images × labels"""
        calibration, counts = self._calibrated
        return calibration.probabilities(score(places, self._matrix, self._strengths), counts)

    def tags(self, probabilities: NDArray[np.float32]) -> tuple[str, ...]:
        """The names over their threshold, likeliest first; equally likely ones by name."""
        given = np.flatnonzero(probabilities >= self.thresholds)
        return tuple(self.labels[column] for column in given[np.argsort(-probabilities[given], kind="stable")])

    def row(self, name: str, probabilities: NDArray[np.float32], *, scores: bool, cached: bool) -> Tagged:
        values = [round(value, DIGITS) for value in probabilities.tolist()] if scores else []
        every = dict(zip(self.labels, values, strict=True)) if scores else {}
        return Tagged(name, self.tags(probabilities), every, cached=cached)


def place_space(model: Model, cache: Cache) -> Space:
    """The cache's rows of this model: places depend on no label, so that a bank may learn and pictures stay known."""
    network = model.header["network"]
    what = f"model {model.name}: {network.get('name', 'network')}, {model.size} × {model.size} pixels"
    key = digest(model.space_key, model.network.wanted, pillow_version)
    return cache.space("places", what, key, (model.places, model.space.size), "float16")


class _Read(NamedTuple):
    """A picture as far as a reading thread takes it: its square of pixels, or its places from the cache."""

    name: str
    digest: bytes | None = None
    pixels: Square | None = None
    places: NDArray[np.float16] | None = None
    failure: str = ""


def tag_stream(
    model: Model,
    scorer: Scorer,
    items: Iterable[Item],
    *,
    batch: int = BATCH,
    scores: bool = True,
    space: Space | None = None,
    loaders: int | None = None,
) -> Iterator[list[Tagged]]:
    """Rows in the order of the items, a batch at a time; the next ones are read while the network works on this one.

    Each picture is read once, by so many `loaders` where it comes from far away, and decoded only if the cache does not
    know it. Memory is that of a few batches.
    """
    for reads in _read_ahead(model, items, batch, space, loaders):
        good = [read for read in reads if not read.failure]
        values = iter(scorer.probabilities(_places(model, good, space)) if good else ())
        yield [
            Tagged(read.name, failure=read.failure)
            if read.failure
            else scorer.row(read.name, next(values), scores=scores, cached=read.places is not None)
            for read in reads
        ]


def encode_stream(model: Model, items: Iterable[Item], *, batch: int = BATCH) -> Iterator[Places]:
    """The pictures' places, a batch at a time; a picture that cannot be read is refused."""
    for reads in _read_ahead(model, items, batch):
        for read in reads:
            if read.failure:
                raise InputError(read.failure)
        yield _places(model, reads, None)


def _read_ahead(
    model: Model, items: Iterable[Item], batch: int, space: Space | None = None, loaders: int | None = None
) -> Iterator[Sequence[_Read]]:
    """Batches of what reading threads made of the pictures; encoded ones are looked up in the cache first."""
    if space is None and loaders is None:
        return batches(prefetch(lambda item: _decode(_load(item), model.size), items, 2 * batch), batch)
    cores = threading.BoundedSemaphore(usable_cores())

    def load(item: Item) -> _Loaded:
        loaded = _load(item)
        if loaded.data is None or len(loaded.data) <= SMALL:
            return loaded
        (known,) = _look_up(space, [loaded]) if space is not None else [loaded]
        with cores:
            return _Loaded(item, read=_decode(known, model.size))

    loaded = prefetch(load, items, 2 * batch, loaders)
    if space is not None:
        # a batch is looked up at once: the cache answers many questions in the time of one
        looked_up = prefetch(lambda group: _look_up(space, group), batches(loaded, batch), 2, threads=1)
        loaded = (each for group in looked_up for each in group)
    return batches(prefetch(lambda each: _decode(each, model.size), loaded, 2 * batch), batch)


class _Loaded(NamedTuple):
    item: Item
    data: bytes | None = None
    digest: bytes | None = None
    places: NDArray[np.float16] | None = None
    failure: str = ""
    read: _Read | None = None
    """What became of it already, where it is too large to wait as it is."""


def _load(item: Item) -> _Loaded:
    try:
        _check_name(item.name)
        if isinstance(item.image, InputError):
            raise item.image
        data = encoded_bytes(item.image, item.name)
    except InputError as error:
        return _Loaded(item, failure=str(error))
    return _Loaded(item, data, None if data is None else content_digest(data))


def _look_up(space: Space, group: Sequence[_Loaded]) -> list[_Loaded]:
    known = dict(zip(keys, space.get_many(keys), strict=True)) if (keys := _digests(group)) else {}
    return [each if each.digest is None else each._replace(places=known[each.digest]) for each in group]


def _digests(group: Sequence[_Loaded]) -> list[bytes]:
    return list(dict.fromkeys(each.digest for each in group if each.digest is not None))


def _decode(loaded: _Loaded, size: int) -> _Read:
    name = loaded.item.name
    if loaded.read is not None:
        return loaded.read
    if loaded.failure:
        return _Read(name, failure=loaded.failure)
    if loaded.places is not None:
        return _Read(name, loaded.digest, places=loaded.places)
    try:
        if loaded.data is None:
            return _Read(name, pixels=squash(open_image(loaded.item.image, name), size))
        return _Read(name, loaded.digest, squash_bytes(loaded.data, name, size))
    except InputError as error:
        return _Read(name, failure=str(error))


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError("the file's name is no UTF-8 text; rename it") from error


def _places(model: Model, reads: Sequence[_Read], space: Space | None) -> Places:
    """From the cache or through the network and into the cache; the same numbers either way."""
    fresh = [read for read in reads if read.pixels is not None]
    encoded = model.encode(stack([read.pixels for read in fresh if read.pixels is not None])) if fresh else None
    if space is not None and encoded is not None:
        kept = [number for number, read in enumerate(fresh) if read.digest is not None]
        if kept:
            keys = [key for read in fresh if (key := read.digest) is not None]
            space.put_many(keys, encoded[kept].astype(np.float16))
    if encoded is not None and len(fresh) == len(reads):
        return encoded
    rows = iter(() if encoded is None else encoded)
    return np.stack([next(rows) if read.places is None else read.places.astype(np.float32) for read in reads])


def items_of(images: Iterable[object]) -> Iterator[Item]:
    """Pictures by the name that a person gave them, or by their number."""
    return (Item(file_name(image) or f"number {number}", image) for number, image in enumerate(images, 1))
