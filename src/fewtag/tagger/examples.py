"""From example pictures to what a bank keeps of them: read in threads, encoded a few at a time."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from fewtag.errors import InputError
from fewtag.pictures.decode import Square, decode, squash, stack
from fewtag.pictures.prefetch import batches, prefetch
from fewtag.tagger.bank import Example
from fewtag.tagger.inputs import file_name, open_image, pixel_digest, thumbnail
from fewtag.tagger.model import Model

READ_AT_ONCE = 8


class _Read(NamedTuple):
    """Of a whole photograph only what is kept, so that none waits in memory for the network."""

    key: str
    pixels: Square
    name: str
    picture: bytes


def encode_examples(
    model: Model,
    images: Iterable[object],
    shown: Sequence[frozenset[str]],
    known: Mapping[str, Example],
    keep_pictures: bool,
    on_error: Callable[[InputError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Example]:
    """Examples by the digest of their pixels; a picture that is known already is not encoded again."""

    def read(item: tuple[int, object]) -> _Read | InputError:
        number, image = item
        try:
            picture = open_image(image, f"number {number}")
            small = thumbnail(picture) if keep_pictures else b""
            name = PurePath(file_name(image)).name
            return _Read(pixel_digest(picture), squash(picture, model.size), name, small)
        except InputError as error:
            if on_error is None:
                raise
            return error

    learnt: dict[str, Example] = {}
    # one more than there are labels for is enough to know
    numbered = itertools.islice(enumerate(images, 1), len(shown) + 1)
    sets = iter(shown)
    good = count = 0
    for group in batches(prefetch(read, numbered, READ_AT_ONCE), READ_AT_ONCE):
        count += len(group)
        same_length(max(count, len(shown)), len(shown))
        fresh: dict[str, _Read] = {}
        labels: dict[str, frozenset[str]] = {}
        for each, names in zip(group, sets, strict=False):
            if isinstance(each, InputError):
                assert on_error is not None
                on_error(each)
                continue
            good += 1
            # twice in one call, as in two labels' folders: it shows what both say
            labels[each.key] = labels.get(each.key, frozenset()) | names
            if each.key not in known and each.key not in learnt:
                fresh[each.key] = each
        learnt |= _encode(model, fresh)
        for key, names in labels.items():
            before = learnt.get(key)
            learnt[key] = replace(known[key], labels=names) if before is None else _gain(before, names)
        if progress is not None:
            progress(len(group))
    same_length(count, len(shown))
    if not good:
        raise InputError("there is no picture to learn from; give at least one that can be read, with its labels")
    return learnt


def encode_again(model: Model, examples: Mapping[str, Example]) -> dict[str, Example]:
    """The same examples in another model's space, by the small copies that are kept of them."""
    again: dict[str, Example] = {}
    for group in batches(iter(examples.items()), READ_AT_ONCE):
        pixels = [squash(decode(example.picture, example.name), model.size) for _, example in group]
        for (key, each), places in zip(group, model.encode(stack(pixels)), strict=True):
            again[key] = Example.of(each.labels, places, each.name, each.picture)
    return again


def _encode(model: Model, fresh: Mapping[str, _Read]) -> Iterator[tuple[str, Example]]:
    if fresh:
        places = model.encode(stack([read.pixels for read in fresh.values()]))
        for (key, read), each in zip(fresh.items(), places, strict=True):
            yield key, Example.of(frozenset(), each, read.name, read.picture)


def _gain(example: Example, names: frozenset[str]) -> Example:
    return replace(example, labels=example.labels | names)


def same_length(images: int, labels: int) -> None:
    """Refuses pictures without labels and labels without pictures."""
    if images != labels:
        raise InputError(f"each picture needs its labels: found {images} pictures and labels for {labels}")
