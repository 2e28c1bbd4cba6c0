"""What a person may hand over: pictures as paths, bytes, PIL images or arrays, and label names.

Arguments are `object` where a wrong one is to be refused in a sentence.
"""

import hashlib
import io
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.decode import decode, upright
from fewtag.pictures.files import Picture

ImageLike = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Image.Image | np.ndarray | Picture
_THUMBNAIL = (336, 336)
_QUALITY = 80


def encoded_bytes(image: object, name: str) -> bytes | None:
    """The encoded picture, where one was given: as a path, as bytes or as an open file."""
    if isinstance(image, Picture):
        return image.read()
    if isinstance(image, str | os.PathLike):
        return Picture(Path(image)).read()
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, io.IOBase) or hasattr(image, "read"):
        try:
            data = image.read()
        except (OSError, ValueError) as error:  # closed, or opened for writing
            raise InputError(f"cannot read image {name}: {error}; open it again") from error
        if isinstance(data, bytes):
            return data
        raise InputError(f"image {name} is a file of text; open it with mode 'rb'")
    return None


def open_image(image: object, name: str = "given") -> Image.Image:
    """An upright RGB picture; `name` says in messages which one it was, where it has no path."""
    if (data := encoded_bytes(image, name)) is not None:
        return decode(data, file_name(image) or name)
    if isinstance(image, Image.Image):
        return upright(image, name)
    if isinstance(image, np.ndarray):
        return upright(_from_array(image, name), name)
    raise InputError(f"image {name} is a {type(image).__name__}; give a path, bytes, a PIL image or an array of uint8")


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not array.size or not (array.ndim == 2 or array.shape[2:] in {(3,), (4,)}):
        shape = " × ".join(str(side) for side in array.shape) or "no"
        raise InputError(
            f"image {name} is an array of {shape} {array.dtype}; "
            "give height × width × 3 numbers of uint8, or × 4 with transparency, or height × width in grey"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def file_name(image: object) -> str:
    """What a person calls the picture: its path as given; nothing where it has none."""
    return str(image) if isinstance(image, str | os.PathLike | Picture) else ""


def several(images: object) -> Iterable[object]:
    """One picture counts as a list of one; an array of four dimensions is a list of arrays."""
    if isinstance(images, np.ndarray) and images.ndim:
        return [images] if images.ndim in {2, 3} and images.dtype.kind not in "UO" else images
    if isinstance(images, str | os.PathLike | bytes | bytearray | memoryview | Image.Image | io.IOBase | Picture):
        return [images]
    if not isinstance(images, Iterable):
        raise InputError(f"pictures are expected, one or a list of them, found a {type(images).__name__}")
    return images


def pixel_digest(picture: Image.Image) -> str:
    """What an example is known by: its decoded pixels, wherever they came from."""
    total = hashlib.sha256(f"{picture.mode} {picture.width} {picture.height} ".encode())
    total.update(picture.tobytes())
    return total.hexdigest()


def thumbnail(picture: Image.Image) -> bytes:
    """A small WebP copy: what a bank needs to move to a newer model, and to show a person. No metadata."""
    small = picture.copy()
    small.thumbnail(_THUMBNAIL, Image.Resampling.LANCZOS)
    content = io.BytesIO()
    small.save(content, "WEBP", quality=_QUALITY, method=4)
    return content.getvalue()


def label_sets(labels: object) -> list[frozenset[str]]:
    """The names given with each picture; a bare string is one name."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InputError(f"labels are a list with the names of each picture, found {labels!r}; use [[{labels!r}]]")
    return [_shown(given, f"image number {number}") for number, given in enumerate(labels, 1)]


def _shown(given: object, image: str) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable):
        raise InputError(f"the labels of {image} are {given!r}; give a list of names")
    shown = frozenset(label_name(name, f" of {image}") for name in names)
    if not shown:
        raise InputError(f"{image} has no label; name at least one thing it shows, or leave it out")
    return shown


def label_name(name: object, where: str = "") -> str:
    """A name without stray blanks; refuses what is none."""
    if not isinstance(name, str):
        raise InputError(f"a label{where} is {name!r}, a {type(name).__name__}; labels are names")
    # one spelling of each accent too: folders on a Mac are named with two characters for one
    cleaned = " ".join(unicodedata.normalize("NFC", name).split())
    if not cleaned:
        raise InputError(f"a label{where} is empty; give it a name")
    return cleaned
