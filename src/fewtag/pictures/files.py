"""Pictures on disk: whole files, or stretches of a tar archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.decode import decode

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
