"""Examples from keywords: pictures with tags, embedded or in a sidecar, to teach a bank with."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import unit
from fewtag.errors import InputError, nearest
from fewtag.interop.carried import Folders, read_embedded, tags_in
from fewtag.interop.keywords import Tags, fold, label_of, path_of
from fewtag.pictures.files import Picture, paired_raws, walk
from fewtag.pictures.prefetch import Advance, Begin, prefetch, unwatched
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH, Item, places_of, read_ahead
from fewtag.tagging.examples import Shown, clean_label

OUTLIERS = 0.1
"""The share of a label's pictures, the most unusual, that are not chosen for variety: they are often mistakes."""


class Carried(NamedTuple):
    """The tags in the pictures of folders."""

    shown: list[Shown]
    pictures: int
    """The number of pictures examined, with tags or without."""
    unusable: dict[str, str]
    """Tags that cannot be labels, and why."""
    failures: list[InputError]
    """Errors for pictures in formats that are not read, and for damaged files."""

    @property
    def counts(self) -> Counter[str]:
        return Counter(label for each in self.shown for label in each.labels)


def read_carried(sources: Sequence[Path]) -> Carried:
    """Reads a person's own tags of all pictures in these folders; tags that fewtag wrote are ignored."""
    found, folders = list[Picture](), Folders()
    for source in sources:
        if not source.exists():
            raise InputError(f"there is no folder or picture {source}; check the path")
        found += walk(source) if source.is_dir() else [Picture(source, name=source.name)]
    paired = paired_raws([each.path for each in found])
    found = [each for each in found if each.path not in paired]
    shown, unusable, failures = list[Shown](), dict[str, str](), list[InputError]()

    def read(each: Picture) -> Tags | InputError:
        """The tags in the picture and beside it; those of a RAW file count for the picture that was made from it."""
        if each.problem:
            return InputError(each.problem)
        try:
            beside = tags_in(chain(*folders.sidecars(each.path), folders.raws(each.path)))
            return read_embedded(each.path).tags(each.name).joined(beside)
        except InputError as error:
            return error

    for each, tags in zip(found, prefetch(read, found, BATCH), strict=True):
        if isinstance(tags, InputError):
            failures.append(tags)
        elif labels := frozenset(_labels(tags, unusable)):
            shown.append(Shown(Picture(each.path, name=str(each.path)), labels))
    return Carried(_one_spelling(shown), len(found), unusable, failures)


def _labels(tags: Tags, unusable: dict[str, str]) -> Iterator[str]:
    for path in tags.every:
        label = label_of(path)
        try:
            yield clean_label(label)
        except InputError as error:
            unusable[label] = str(error)


def _one_spelling(shown: Sequence[Shown]) -> list[Shown]:
    """Merges tags that differ only in case, in the spelling that most pictures have."""
    counts = Counter(label for each in shown for label in each.labels)
    spelling: dict[tuple[str, ...], str] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        spelling.setdefault(fold(path_of(label)), label)
    return [each._replace(labels=frozenset(spelling[fold(path_of(label))] for label in each.labels)) for each in shown]


def only(shown: Sequence[Shown], names: Sequence[str]) -> list[Shown]:
    """Keeps these labels and those below them; refuses a label that no picture carries."""
    known = {label: fold(path_of(label)) for each in shown for label in each.labels}
    wanted: set[str] = set()
    for name in names:
        path = fold(path_of(name))
        below = {label for label, its_path in known.items() if its_path[: len(path)] == path}
        if not below:
            raise InputError(
                f"no picture carries the tag {name!r}; {nearest(name, known) if known else 'none has any'}"
            )
        wanted |= below
    kept = [each._replace(labels=each.labels & wanted) for each in shown]
    return [each for each in kept if each.labels]


def at_most(
    shown: Sequence[Shown], most: int, model: Model, begin: Begin = unwatched
) -> tuple[list[Shown], list[InputError]]:
    """Selects about `most` pictures of each label, half the most typical, half the most varied; also failures.

    A picture is selected with all its labels, so that a label may get a few more.
    """
    counts = Counter(label for each in shown for label in each.labels)
    asked = {row for row, each in enumerate(shown) if any(counts[label] > most for label in each.labels)}
    advance = begin("looking for typical and varied ones", len(asked))
    whole, failed = _vectors({row: shown[row].picture for row in asked}, model, advance)
    readable = [row for row in range(len(shown)) if row in whole or row not in asked]
    chosen: set[int] = set()
    for label in sorted(counts, key=lambda label: (counts[label], label)):
        rows = [row for row in readable if label in shown[row].labels]
        chosen |= set(rows) if len(rows) <= most else set(_some(rows, whole, chosen, most))
    return [shown[row] for row in sorted(chosen)], failed


def _some(rows: Sequence[int], whole: dict[int, NDArray[np.float32]], chosen: set[int], most: int) -> list[int]:
    """The rows nearest to the mean, then farthest-first: each time the row least like all that were taken."""
    taken = [row for row in rows if row in chosen]
    points = np.stack([whole[row] for row in rows])
    order = np.argsort(-(points @ unit(points.mean(axis=0))), kind="stable")
    near = [rows[place] for place in order if rows[place] not in chosen]
    taken += near[: max(0, math.ceil(most / 2) - len(taken))]
    usual = [rows[place] for place in order[: max(most, math.ceil((1 - OUTLIERS) * len(rows)))]]
    while len(taken) < most and (left := [row for row in usual if row not in taken]):
        likeness = np.stack([whole[row] for row in left]) @ np.stack([whole[row] for row in taken]).T
        taken.append(left[int(np.argmin(likeness.max(axis=1)))])
    return taken


def _vectors(
    pictures: Mapping[int, Picture], model: Model, advance: Advance
) -> tuple[dict[int, NDArray[np.float32]], list[InputError]]:
    """Each picture's normalised mean vector, and failures."""
    found, failed = dict[int, NDArray[np.float32]](), list[InputError]()
    items, rows = (Item(str(picture), picture) for picture in pictures.values()), iter(pictures)
    for reads in read_ahead(model, items, BATCH):
        good = {row: read for read, row in zip(reads, rows, strict=False) if not read.failure}
        failed += [InputError(read.failure) for read in reads if read.failure]
        if good:
            found |= zip(good, unit(places_of(model, list(good.values()), None).mean(axis=1)), strict=True)
        advance(len(reads))
    return found, failed
