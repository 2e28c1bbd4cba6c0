"""Decoding: encoded bytes to an upright RGB picture, or one clear error; squares, digests and thumbnails of it."""

import functools
import hashlib
import importlib
import io
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fewtag.errors import InputError

MOST_PIXELS = 100_000_000
LARGE_PIXELS = 24_000_000
"""Larger pictures are decoded one at a time, so that memory does not grow with the number of threads."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""The only formats that Pillow may try: of its other plugins that of EPS, for one, starts another program."""
DRAFT = 4
"""A JPEG may be decoded at a fraction of its size, but at no less than so many times the square: finer detail is
averaged away when it is resized. At two or three times, tags near their threshold begin to change
(`scripts/measure_draft.py`)."""

Square = NDArray[np.uint8]
"""3 × size × size; in memory the three colours of a pixel are adjacent."""
Pixels = NDArray[np.uint8]
"""images × 3 × size × size"""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
DECODING = 1
"""Version of the decoding, raised when a change of this module changes pixels: a cache keeps versions apart."""
_END_OF_IMAGE = b"\xff\xd9"
THUMBNAIL = 336
_ROWS_AT_ONCE = 256
_QUIET = threading.Lock()
_ONE_AT_A_TIME = threading.Lock()


def decode(data: bytes, name: str, *, at_least: int | None = None) -> Image.Image:
    """The first frame in RGB with its EXIF orientation applied; `name` is for messages.

    `at_least` allows a JPEG to be decoded at a smaller size, if neither side falls below so many pixels: the decoder
    then skips detail that would be lost anyway.
    """
    image = open_encoded(data, name)
    _check_size(image, name)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    try:
        return upright(image, name, copy=False)
    except InputError:
        if image.format != "JPEG" or not _lacks_only_its_end(data):
            raise
    return decode(data.rstrip(b"\xff") + _END_OF_IMAGE, name, at_least=at_least)


class Header(NamedTuple):
    """What a picture's file says before its pixels are decoded."""

    width: int
    height: int
    """Width and height are as a person sees the picture, with its EXIF orientation applied."""
    taken: str | None
    """The time taken by the camera's clock, in ISO 8601 without a time zone."""


def read_header(data: bytes, name: str) -> Header:
    """Size and EXIF date of a picture; `name` is for messages."""
    image = open_encoded(data, name)
    _check_size(image, name)
    width, height = image.size
    return Header(*((height, width) if _orientation(image) >= 5 else (width, height)), _taken(image))


def _taken(image: Image.Image) -> str | None:
    try:
        with _quiet():
            found = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        return datetime.strptime(str(found).strip("\0 "), "%Y:%m:%d %H:%M:%S").isoformat()
    except Exception:  # as in `_orientation`; many pictures have no date, and some a malformed one
        return None


def _lacks_only_its_end(data: bytes) -> bool:
    """Whether a JPEG is complete except for its end-of-image marker; viewers show such files.

    The decoder does not tell how much it received. But as long as it expects data, whatever is appended changes the
    picture.
    """
    if data.endswith(_END_OF_IMAGE):
        return False
    fillers = [b"", 64 * b"\x00", 64 * b"\x55", 64 * b"\xaa"]
    if b"\xff\xdd" in data:  # it expects restart markers too
        fillers += [bytes([0xFF, 0xD0 + number]) + fillers[2] for number in range(8)]
    pictures = set()
    try:
        for filler in fillers:
            with _quiet():
                image = Image.open(io.BytesIO(data.rstrip(b"\xff") + filler + _END_OF_IMAGE), formats=("JPEG",))
            pictures.add(hashlib.sha256(image.tobytes()).digest())
            if len(pictures) > 1:
                return False
        return _has_every_scan(data)
    except Exception:  # as in `open_encoded`
        return False


def _has_every_scan(data: bytes) -> bool:
    """Whether the scans of a progressive JPEG contain every coefficient of every component to its last bit."""
    wanted, exact = set[tuple[int, int]](), set[tuple[int, int]]()
    position = 2
    while 0 <= (position := data.find(b"\xff", position)) < len(data) - 4:
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in {0x00, 0xFF} or 0xD0 <= marker <= 0xD7:  # within a scan: an escaped or fill byte, a restart marker
            position += 1
            continue
        segment = data[position + 4 : position + 2 + length]
        if marker == 0xC2:  # the header of a progressive frame: its components
            wanted = {(segment[6 + 3 * number], each) for number in range(segment[5]) for each in range(64)}
        elif marker == 0xDA:  # a scan: components, first and last coefficient, bits still missing
            first, last, bits = segment[2 * segment[0] + 1 : 2 * segment[0] + 4]
            if not bits & 0x0F:
                names = segment[1 : 2 * segment[0] + 1 : 2]
                exact |= {(name, each) for name in names for each in range(first, last + 1)}
        position += 2 + length
    return wanted <= exact


def squash_bytes(data: bytes, name: str, size: int) -> Square:
    """An encoded picture as a square of pixels; `name` is for messages."""
    return squash(decode(data, name, at_least=DRAFT * size), size)


def squash(image: Image.Image, size: int) -> Square:
    """An RGB picture resized to a square, whatever its aspect ratio: a centre crop could remove a labelled object."""
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.array(image).transpose(2, 0, 1)


class Decoded(NamedTuple):
    """What is kept of a decoded picture, so that no whole photograph waits in memory for the network.

    It can be taught in place of a picture, if that was decoded elsewhere: in a process that may die, say.
    """

    pixels: Square
    key: str = ""
    """The digest of all pixels, which identifies an example."""
    name: str = ""
    """The file's name, without the folder."""
    picture: bytes = b""
    """A small copy in WebP."""


def stack(pictures: Sequence[Square]) -> Pixels:
    """Squares as one batch, with the colours of a pixel still adjacent in memory."""
    return np.stack([picture.transpose(1, 2, 0) for picture in pictures]).transpose(0, 3, 1, 2)


def pixel_digest(picture: Image.Image) -> str:
    """The digest that identifies an example: that of its decoded pixels, wherever they came from."""
    total = hashlib.sha256(f"{picture.mode} {picture.width} {picture.height} ".encode())
    for top in range(0, picture.height, _ROWS_AT_ONCE):  # by rows: the whole would be in memory twice more
        total.update(picture.crop((0, top, picture.width, min(top + _ROWS_AT_ONCE, picture.height))).tobytes())
    return total.hexdigest()


def thumbnail(picture: Image.Image, size: int = THUMBNAIL, *, quick: bool = False) -> bytes:
    """A small WebP copy, made from the pixels only: no metadata, nothing of the file's own bytes.

    A bank keeps one of each example, to migrate to a newer model and to show to people; a `quick` one is only for
    display.
    """
    scale = min(1.0, size / max(picture.size))
    width, height = (max(1, round(side * scale)) for side in picture.size)
    filter_ = Image.Resampling.BILINEAR if quick else Image.Resampling.LANCZOS
    # not `Image.thumbnail`, which needs a copy of the whole picture
    small = picture.resize((width, height), filter_, reducing_gap=2.0) if scale < 1 else picture
    return webp(small, quick=quick)


def webp(picture: Image.Image, *, quick: bool) -> bytes:
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80, method=1 if quick else 4)
    return content.getvalue()


def upright(image: Image.Image, name: str, *, copy: bool = True) -> Image.Image:
    """The picture as a person sees it: in RGB, with its EXIF orientation applied and then removed.

    Without `copy` it may be the given image itself, so that a large one is not in memory twice.
    """
    _check_size(image, name)
    try:
        with _ONE_AT_A_TIME if image.width * image.height > LARGE_PIXELS else nullcontext():
            image.load()
            turn = _TURNS.get(_orientation(image))
            rgb = _to_rgb(image)
            shown = rgb if turn is None else rgb.transpose(turn)
    except Exception as error:
        raise InputError(f"image {name} cannot be decoded: it is truncated or damaged; replace it") from error
    shown = shown.copy() if copy and shown is image else shown
    shown.info = {}  # Pillow passes EXIF on: a second reader would rotate the picture again
    return shown


def open_encoded(data: bytes | BinaryIO, name: str) -> Image.Image:
    """Pillow's image of encoded bytes or of an open file: the header is read now, pixels are decoded when needed."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        file.seek(0)
        head = file.read(32)
        file.seek(0)
        with _quiet():
            if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[8:32]:
                import pi_heif  # it rotates the picture itself, and removes the orientation from the EXIF data

                return pi_heif.HeifImageFile(file)
            _load_plugins()
            return Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise InputError(_too_large(name, f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,}")) from error
    except Exception as error:  # Pillow's plugins raise all kinds of errors for a broken header
        raise InputError(f"image {name} cannot be decoded: it is no image, or damaged; replace it") from error


@functools.cache
def _load_plugins() -> None:
    """Imports our formats' plugins with the first picture; Pillow would import all if one were missing."""
    for name in ("Avif", "Bmp", "Gif", "Jpeg", "Png", "Tiff", "WebP"):
        importlib.import_module(f"PIL.{name}ImagePlugin")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings; the filters are global until Python 3.14, hence the lock, held for headers only."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if not width * height:
        raise InputError(f"image {name} has no pixel: it is {width} × {height}; leave it out")
    if width * height > MOST_PIXELS:
        raise InputError(_too_large(name, f"{width} × {height}"))


def _too_large(name: str, found: str) -> str:
    return f"image {name} is too large: {found} pixels, at most {MOST_PIXELS // 10**6} megapixels are read; shrink it"


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation; ImageOps.exif_transpose would rewrite the other fields, and fail on damaged ones."""
    try:
        with _quiet():
            found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a picture with damaged EXIF data is fine otherwise: viewers show it unrotated
        return 1
    return found if isinstance(found, int) else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return _from_deep(np.asarray(image)).convert("RGB")
    if image.has_transparency_data:
        # the colours under transparent pixels were never meant to be seen
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_deep(grey: NDArray[Any]) -> Image.Image:
    """Converts grey of more than eight bits by the range that it uses: Pillow's own conversion clips at 255.

    White is the smallest maximum of 8, 10, 12, 14 or 16 bits, or of the unit interval, that no pixel exceeds.
    """
    values = np.nan_to_num(grey.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    values = values - min(0.0, float(values.min(initial=0.0)))
    brightest = float(values.max(initial=0.0))
    if np.issubdtype(grey.dtype, np.floating) and brightest <= 1:
        white = 1.0
    else:
        white = next((2.0**bits - 1 for bits in (8, 10, 12, 14, 16) if brightest < 2.0**bits), max(brightest, 1.0))
    return Image.fromarray((255 * values / white).round().astype(np.uint8))
