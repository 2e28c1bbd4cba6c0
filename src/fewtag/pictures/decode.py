"""Encoded bytes to an upright RGB picture, or one clear sentence about why not."""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import ExifTags, Image

from fewtag.errors import InputError

MOST_PIXELS = 100_000_000

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_QUIET = threading.Lock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings; the filters are global until Python 3.14, hence the lock, held for headers only."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(data: bytes, name: str, *, at_least: int | None = None) -> Image.Image:
    """The first frame in RGB with its EXIF orientation applied; `name` is for messages.

    `at_least` allows a JPEG to come out smaller than it is, if neither side falls below so many pixels: the decoder
    then leaves out what the picture is to lose anyway.
    """
    try:
        with _quiet():
            image = Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise InputError(_too_large(name, "far more")) from error
    except Exception as error:  # Pillow's plugins raise whatever a broken header makes them trip over
        raise InputError(f"image {name} cannot be decoded: it is no image, or damaged; replace it") from error
    _check_size(image, name)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    return upright(image, name)


def upright(image: Image.Image, name: str) -> Image.Image:
    """The picture as a person sees it: in RGB, its EXIF orientation applied and then forgotten."""
    _check_size(image, name)
    try:
        image.load()
        turn = _TURNS.get(_orientation(image))
        rgb = _to_rgb(image)
        shown = rgb if turn is None else rgb.transpose(turn)
    except Exception as error:
        raise InputError(f"image {name} cannot be decoded: it is truncated or damaged; replace it") from error
    shown.info = {}  # Pillow hands EXIF on: whoever looks again would turn the picture twice
    return shown


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise InputError(_too_large(name, f"{width} × {height}"))


def _too_large(name: str, found: str) -> str:
    return f"image {name} is too large: {found} pixels, at most {MOST_PIXELS // 10**6} megapixels are read; shrink it"


def _orientation(image: Image.Image) -> int:
    """EXIF's number for how the camera was held; ImageOps.exif_transpose would rewrite, and trip over, the rest."""
    try:
        with _quiet():
            found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a damaged EXIF block does not damage the picture: viewers show it as it lies
        return 1
    return found if isinstance(found, int) else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion clips at 255 and leaves a white picture
        grey = np.clip(np.asarray(image), 0, 65535) // 256
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        # what is under transparent pixels was never meant to be seen
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")
