"""What a person may hand over: pictures as paths, PIL images or arrays, and label names.

Arguments are `object` where a wrong one is to be refused in a sentence.
"""

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.decode import squash, upright
from fewtag.pictures.files import Picture

ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray


def open_image(image: object, name: str = "given") -> Image.Image:
    """An upright RGB picture; `name` says in messages which one it was, where it has no path."""
    if isinstance(image, str | os.PathLike):
        return Picture(Path(image)).open()
    if isinstance(image, Image.Image):
        return upright(image, name)
    if isinstance(image, np.ndarray):
        return upright(_from_array(image, name), name)
    raise InputError(f"image {name} is a {type(image).__name__}; give a path, a PIL image or an array of uint8")


def open_square(image: object, name: str, size: int) -> UInt8[np.ndarray, "3 size size"]:
    """A picture to be tagged, squashed; a large JPEG is read from its file at a fraction of its size."""
    if isinstance(image, str | os.PathLike):
        return Picture(Path(image)).pixels(size)
    return squash(open_image(image, name), size)


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not array.size or not (array.ndim == 2 or array.shape[2:] in {(3,), (4,)}):
        found = " × ".join(str(side) for side in array.shape) or "no"
        raise InputError(
            f"image {name} is an array of {found} {array.dtype}; "
            "give height × width × 3 numbers of uint8, or × 4 with transparency, or height × width in grey"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def several(images: object) -> Iterable[ImageLike]:
    """Refuses one picture where a list of them is expected."""
    single = isinstance(images, str | os.PathLike | Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4)
    if single or not isinstance(images, Iterable):
        found = "an array of one picture" if isinstance(images, np.ndarray) else f"a {type(images).__name__}"
        raise InputError(f"a list of pictures is expected, found {found}; put it in brackets: [picture]")
    return images


def digest(picture: Image.Image) -> str:
    """What an example is known by: its decoded pixels, wherever they came from."""
    found = hashlib.sha256(f"{picture.mode} {picture.width} {picture.height} ".encode())
    found.update(picture.tobytes())
    return found.hexdigest()


def numbered(images: object) -> Iterator[tuple[ImageLike, str]]:
    """Each with the name that a message gives it."""
    return ((image, f"number {number}") for number, image in enumerate(several(images), 1))


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
