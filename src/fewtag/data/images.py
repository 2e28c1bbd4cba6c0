"""Pictures on disk, and the labels they show."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from fewtag.data.decode import decode
from fewtag.errors import InputError

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"})

DRAFT = 4
"""A JPEG may be decoded at a fraction of its size, down to so many times the square: finer detail is averaged away when
it is squashed. At two or three times, tags near their threshold begin to change (`scripts/measure_draft.py`)."""


def is_image_name(name: str) -> bool:
    """Whether a file's name ends like an image's; hidden files (.DS_Store, ._photo.jpg) never do.

    >>> is_image_name("Photo.JPG"), is_image_name("._photo.jpg"), is_image_name("notes.txt")
    (True, False, False)
    """
    path = Path(name)
    return path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")


@dataclass(frozen=True, slots=True)
class Picture:
    """Where one image's bytes are: a whole file, or a stretch of a tar archive."""

    path: Path
    offset: int = 0
    size: int | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or str(self.path)

    def read(self) -> bytes:
        """The encoded bytes; the file is opened for this call alone, so threads need no lock."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read() if self.size is None else file.read(self.size)
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise InputError(f"cannot read image {self}: {reason}; check the path") from error
        if self.size is not None and len(data) < self.size:
            raise InputError(f"image {self} ends after {len(data)} of {self.size} bytes; copy {self.path} again")
        return data

    def open(self) -> Image.Image:
        """The whole picture in RGB, upright; of an animation its first frame."""
        return decode(self.read(), str(self))

    def pixels(self, size: int) -> UInt8[np.ndarray, "3 size size"]:
        """The picture squashed to a square: a centre crop could cut a labelled object away."""
        return squash_bytes(self.read(), str(self), size)


def squash_bytes(data: bytes, name: str, size: int) -> UInt8[np.ndarray, "3 size size"]:
    """An encoded picture as a square of pixels; `name` is for messages."""
    return squash(decode(data, name, at_least=DRAFT * size), size)


def squash(image: Image.Image, size: int) -> UInt8[np.ndarray, "3 size size"]:
    """An RGB picture as a square of pixels; in memory a place's colours stay together, as convolutions like it best."""
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.array(image).transpose(2, 0, 1)


def stack(pictures: Sequence[UInt8[np.ndarray, "3 size size"]]) -> UInt8[np.ndarray, "images 3 size size"]:
    """Squashed pictures as one batch, colours still together in memory."""
    return np.stack([picture.transpose(1, 2, 0) for picture in pictures]).transpose(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """A data set: pictures known by id, and which of the labels each one shows."""

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
        """A fingerprint of who shows what; the order of images and of labels does not change it."""
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
        """These images alone, in this order, with the same labels."""
        numbers = [int(row) for row in rows]
        return LabelledImages(
            ids=tuple(self.ids[row] for row in numbers),
            pictures=tuple(self.pictures[row] for row in numbers),
            labels=self.labels,
            targets=self.targets[numbers],
        )

    def check(self) -> None:
        """Refuse pictures whose file is missing, before hours of work find out one by one."""
        present = {path: path.is_file() for path in {picture.path for picture in self.pictures}}
        missing = [picture for picture in self.pictures if not present[picture.path]]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(self)} images are missing, the first is {missing[0]}; "
                "check the folder of the images"
            )


def from_shown(found: Sequence[tuple[str, Picture, set[str]]], labels: Sequence[str]) -> LabelledImages:
    """A data set from (id, picture, labels shown) triples: what every reader ends with."""
    column = {label: number for number, label in enumerate(labels)}
    targets = np.zeros((len(found), len(column)), dtype=bool)
    for row, (_, _, shown) in enumerate(found):
        targets[row, [column[label] for label in shown]] = True
    return LabelledImages(
        ids=tuple(name for name, _, _ in found),
        pictures=tuple(picture for _, picture, _ in found),
        labels=tuple(labels),
        targets=targets,
    )
