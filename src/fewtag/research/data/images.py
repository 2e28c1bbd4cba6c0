"""Labelled data sets: pictures and the labels that they show, joined and filtered."""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.pictures.prefetch import usable_cores


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """A data set: pictures with ids, and which of the labels each one shows."""

    ids: tuple[str, ...]
    pictures: tuple[Picture, ...]
    labels: tuple[str, ...]
    targets: Bool[np.ndarray, "images labels"]

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.pictures) == len(self.targets), "an id, a picture and a row for each image"
        assert self.targets.shape[1] == len(self.labels) == len(set(self.labels)), "a column for each label"
        if not self.ids:
            raise InputError("the data set is empty: no image with a label was found; check the paths and the filters")
        if len(self._row_of) < len(self.ids):
            twice = next(name for row, name in enumerate(self.ids) if self._row_of[name] != row)
            raise InputError(f"image {twice!r} is listed twice; list it once, with all its labels")

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @cached_property
    def digest(self) -> str:
        """A digest of which image shows which labels; it does not depend on the order of images and labels."""
        shown = [(name, sorted(self.shown(row))) for row, name in enumerate(self.ids)]
        text = json.dumps([sorted(self.labels), sorted(shown)], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.ids)

    def shown(self, row: int) -> tuple[str, ...]:
        """The labels of one image."""
        return tuple(self.labels[column] for column in np.flatnonzero(self.targets[row]))

    def rows(self, ids: Sequence[str]) -> list[int]:
        """The row numbers of these images, in the order asked for."""
        unknown = [name for name in ids if name not in self._row_of]
        if unknown:
            raise InputError(
                f"image {unknown[0]!r} is not in the data set of {len(self)} images "
                f"({len(unknown)} of {len(ids)} ids are unknown; its ids look like {self.ids[0]!r}); check the ids"
            )
        return [self._row_of[name] for name in ids]

    def select(self, rows: Sequence[int] | np.ndarray) -> "LabelledImages":
        """A data set of only these images, in this order, with the same labels."""
        numbers = [int(row) for row in rows]
        return LabelledImages(
            ids=tuple(self.ids[row] for row in numbers),
            pictures=tuple(self.pictures[row] for row in numbers),
            labels=self.labels,
            targets=self.targets[numbers],
        )

    def thin(self, most: int) -> "LabelledImages":
        """A subset in which `most` images, or all there are, show each label; earlier images are preferred.

        A label may be shown more often, in images of rarer ones.
        """
        shown, kept = np.zeros(len(self.labels), int), []
        for row, targets in enumerate(self.targets):
            if (shown[targets] < most).any():
                kept.append(row)
                shown += targets
        return self.select(kept)

    def check(self) -> None:
        """Refuses pictures whose file is missing, before hours of work find them one by one."""
        present = {path: path.is_file() for path in {picture.path for picture in self.pictures}}
        missing = [picture for picture in self.pictures if not present[picture.path]]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(self)} images are missing, the first is {missing[0]}; "
                "check the folder of the images"
            )


def from_shown(images: Sequence[tuple[str, Picture, set[str]]], labels: Sequence[str]) -> LabelledImages:
    """A data set from (id, picture, labels shown) triples, with which every reader ends."""
    column = {label: number for number, label in enumerate(labels)}
    targets = np.zeros((len(images), len(column)), dtype=bool)
    for row, (_, _, shown) in enumerate(images):
        targets[row, [column[label] for label in shown]] = True
    return LabelledImages(
        ids=tuple(name for name, _, _ in images),
        pictures=tuple(picture for _, picture, _ in images),
        labels=tuple(labels),
        targets=targets,
    )


def concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    """The images of all parts, over the labels of all parts."""
    if len(parts) == 1:
        return parts[0]
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    images = [(part.ids[row], part.pictures[row], set(part.shown(row))) for part in parts for row in range(len(part))]
    return from_shown(images, labels)


def readable(images: LabelledImages) -> tuple[LabelledImages, list[str]]:
    """The images that can be decoded, and the reasons why the others cannot. Decodes every image."""

    def reason(row: int) -> str | None:
        try:
            images.pictures[row].open()
        except InputError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(usable_cores()) as pool:
        reasons = list(pool.map(reason, range(len(images))))
    good = [row for row, why in enumerate(reasons) if why is None]
    return images.select(good), [why for why in reasons if why is not None]


def refuse_unreadable(images: LabelledImages) -> None:
    """Refuses pictures that cannot be decoded, before hours of training find out."""
    _, reasons = readable(images)
    if reasons:
        more = f" ({len(reasons)} such pictures; --skip-bad leaves them out)"
        raise InputError(reasons[0] + more)
