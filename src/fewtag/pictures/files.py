"""Pictures in any accepted form: files, parts of an archive, bytes, PIL images or arrays; and walking of folders."""

import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.decode import Square, decode, squash_bytes, upright

IMAGE_ENDINGS = frozenset(
    {".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif"}
    | {".hif", ".mpo"}
)
RAW_ENDINGS = frozenset(
    {".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw"}
    | {".raw", ".rwl", ".3fr", ".iiq", ".x3f", ".mrw", ".kdc", ".dcr", ".erf", ".mef", ".mos", ".fff", ".gpr"}
)
"""RAW formats of cameras, which often write a JPEG beside them."""
UNREADABLE_ENDINGS = RAW_ENDINGS | {".jp2", ".j2k", ".jpx", ".jxl", ".psd", ".xcf", ".eps", ".tga", ".ppm", ".pgm"}
"""Picture formats that are not read: they are listed as failures, never silently left out."""
OTHERS_FOLDERS = frozenset({"@eadir", "#recycle", "$recycle.bin", "__macosx"})
"""Folders of thumbnails and deleted files that devices and archives create beside a person's own; in lower case."""
MOST_BYTES = 1_000_000_000
"""The most bytes of one encoded picture; 100 uncompressed megapixels of 16 bits are fewer."""
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")


def is_image_name(name: str) -> bool:
    """Whether a file's name has an image's ending; hidden files (.DS_Store, ._photo.jpg) do not count.

    >>> is_image_name("Photo.JPG"), is_image_name("._photo.jpg"), is_image_name("notes.txt")
    (True, False, False)
    """
    path = Path(name)
    return path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")


def own_entries(folder: Path) -> list[Path]:
    """The entries of a folder, sorted, without hidden files and without what devices and archives put there."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}; check its permissions") from error
    return [each for each in entries if not each.name.startswith(".") and each.name.lower() not in OTHERS_FOLDERS]


def why_unreadable(name: str) -> str | None:
    """By a file's name only: None if it is no picture, '' if it is one that we read, else why we cannot read it."""
    ending = Path(name).suffix.lower()
    if ending in UNREADABLE_ENDINGS:
        return f"image {name} is of a kind that is not read ({ending}); convert it to JPEG"
    return "" if ending in IMAGE_ENDINGS else None


@dataclass(frozen=True, slots=True)
class Picture:
    """The location of one encoded image: a whole file, or a part of a tar archive; or of a part of its pixels."""

    path: Path
    offset: int = 0
    size: int | None = None
    name: str = ""
    problem: str = ""
    """Why it cannot be read, if that is already known."""
    box: tuple[float, ...] | None = None
    """Left, top, width and height of the part that is meant, as shares of the whole."""

    def __str__(self) -> str:
        return self.name or str(self.path)

    def read(self, *, follow: bool = True) -> bytes:
        """The encoded bytes, of a box encoded as if it were a file of its own. `follow` allows links."""
        data = self._read(follow)
        return data if self.box is None else _cropped(decode(data, str(self)), self.box)

    def _read(self, follow: bool) -> bytes:
        """The bytes of the whole; the file is opened only for this call, so threads need no lock."""
        if self.problem:
            raise InputError(self.problem)
        names = ("O_BINARY",) if follow else ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK")  # not on every system
        flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in names)
        try:
            # checked before opening: opening a pipe would wait for its writer
            status = self.path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise InputError(f"cannot read image {self}: it is a folder; give its pictures, one by one")
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"cannot read image {self}: it is no regular file; leave it out")
            wanted = status.st_size if self.size is None else self.size
            if wanted > MOST_BYTES:
                raise InputError(f"image {self} is too large: more than {MOST_BYTES // 10**6} MB; shrink it")
            with os.fdopen(os.open(self.path, flags), "rb") as file:
                file.seek(self.offset)
                data = file.read(wanted)
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise InputError(f"cannot read image {self}: {reason}; check the path") from error
        except ValueError as error:  # a null character, or a name that cannot be encoded
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot read image {self}: no file can be called so; check the path") from error
        if self.size is not None and len(data) < self.size:
            raise InputError(f"image {self} ends after {len(data)} of {self.size} bytes; copy {self.path} again")
        return data

    def open(self) -> Image.Image:
        """The whole picture in RGB, upright; for an animation its first frame."""
        return decode(self.read(), str(self))

    def pixels(self, size: int) -> Square:
        return squash_bytes(self.read(), str(self), size)


def _cropped(whole: Image.Image, box: tuple[float, ...]) -> bytes:
    sides = []
    for start, size, side in zip(box[:2], box[2:], whole.size, strict=True):
        # at least one pixel, and none outside the picture, even if the box lies on its edge
        first = min(round(start * side), side - 1)
        sides.append((first, min(max(first + 1, round(start * side + size * side)), side)))
    (left, right), (top, bottom) = sides
    buffer = io.BytesIO()
    whole.crop((left, top, right, bottom)).save(buffer, "BMP")
    return buffer.getvalue()


def archived(path: Path) -> Iterator[tuple[str, int, int]]:
    """The files of a tar archive, to be read later by a plain seek: name, first byte and size."""
    import tarfile

    try:
        # "r:" refuses compressed archives, in which one cannot seek
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    yield member.name.removeprefix("./"), member.offset_data, member.size
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"cannot read {path} as an uncompressed tar archive ({error}); pack it again") from error


def walk(folder: Path) -> list[Picture]:
    """The pictures of a folder and its sub-folders, including those that cannot be read, whose `problem` says why.

    They are sorted by name, which is relative to the folder, with slashes. A RAW file beside its JPEG counts as one
    picture with it.
    """
    found = []
    for name, entry in walk_files(folder):
        if isinstance(entry, OSError):
            if not name:
                raise InputError(f"cannot read the folder {folder}: {entry.strerror}; check its permissions") from entry
            if name.endswith("/"):
                why = f"cannot read the folder {name}: {entry.strerror}; check its permissions"
                found.append(Picture(folder / name, name=name, problem=why))
            elif is_image_name(name):
                why = f"cannot read image {name}: {entry.strerror}; mend the link"
                found.append(Picture(folder / name, name=name, problem=why))
        elif not entry.name.startswith(".") and (problem := _why_unreadable(entry, name)) is not None:
            found.append(Picture(folder / name, name=name, problem=problem))
    paired = paired_raws([each.path for each in found])
    return sorted((each for each in found if each.path not in paired), key=lambda each: each.name)


def paired_raws(paths: Sequence[PurePath]) -> frozenset[PurePath]:
    """RAW files whose picture is among these as well, and is read in their place: photo.cr2 beside photo.jpg."""
    raws = [path for path in paths if path.suffix.lower() in RAW_ENDINGS]
    folders = {path.parent for path in raws}
    beside = (path for path in paths if path.parent in folders and path.suffix.lower() in IMAGE_ENDINGS) if raws else ()
    read = {(path.parent, path.stem.casefold()) for path in beside}
    return frozenset(path for path in raws if (path.parent, path.stem.casefold()) in read)


def walk_files(
    folder: Path, prefix: str = "", above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, os.DirEntry[str] | OSError]]:
    """All files below a folder, hidden ones too, by their names relative to it, with slashes.

    An entry that cannot be inspected is yielded as its OSError: a folder, whose name ends in a slash, or a link to
    itself. Links are followed, but not in circles, and neither hidden folders nor those of other programs are entered.
    `prefix` and `above` are of the folders that this one lies in.
    """
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in above:
            return
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError as error:
        yield prefix, error
        return
    # on systems without inode numbers circles are not detected: they end where the path gets too long
    inside = above | {(status.st_dev, status.st_ino)} if status.st_ino else above
    for entry in entries:
        name = f"{prefix}{entry.name}"
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            yield name, error
            continue
        if not is_folder:
            yield name, entry
        elif not entry.name.startswith(".") and entry.name.lower() not in OTHERS_FOLDERS:
            yield from walk_files(folder / entry.name, f"{name}/", inside)


def _why_unreadable(entry: os.DirEntry[str], name: str) -> str | None:
    """Like `why_unreadable`, for an existing file; `name` is its name relative to the folder."""
    problem = why_unreadable(name)
    if problem == "":
        # a broken link counts as a picture that fails; a pipe would block
        return "" if entry.is_file() or entry.is_symlink() else f"image {name} is no regular file; leave it out"
    if problem is None and not Path(entry.name).suffix and entry.is_file():  # without an ending: by its first bytes
        with suppress(OSError), Path(entry.path).open("rb") as file:
            head = file.read(12)
            problem = "" if head.startswith(_MAGIC) or head[8:12] == b"WEBP" or head[4:8] == b"ftyp" else None
    return problem if entry.is_file() else None


Encoded = bytes | bytearray | memoryview | io.BytesIO | BinaryIO
ImageLike = str | os.PathLike[str] | Encoded | Image.Image | np.ndarray | Picture


def encoded_bytes(image: object, name: str) -> bytes | None:
    """The encoded picture of a path, of bytes or of an open file; None for decoded ones."""
    if isinstance(image, Picture):
        return image.read()
    if isinstance(image, str) and "://" in image:
        raise InputError(f"image {image} is an address, and none is fetched here; download it, or give its bytes")
    if isinstance(image, str | os.PathLike):
        return Picture(Path(image)).read()
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, io.IOBase) or hasattr(image, "read"):
        file: Any = image
        try:
            if getattr(file, "seekable", bool)():  # from the beginning, wherever its position is
                file.seek(0)
            data = file.read()
        except InputError:
            raise
        except (OSError, ValueError) as error:  # closed, or opened for writing
            raise InputError(f"cannot read image {name}: {error}; open it again") from error
        if isinstance(data, bytes):
            return data
        raise InputError(f"image {name} is a file of text; open it with mode 'rb'")
    return None


def open_image(image: object, name: str = "given") -> Image.Image:
    """An upright RGB picture; `name` identifies it in messages if it has no path."""
    if (data := encoded_bytes(image, name)) is not None:
        return decode(data, file_name(image) or str(getattr(image, "name", name)))  # an open file has a name, too
    if isinstance(image, Image.Image):
        return upright(image, name)
    if isinstance(image, np.ndarray):
        return upright(_from_array(image, name), name)
    raise InputError(
        f"image {name} is of type {type(image).__name__}; give a path, bytes, a PIL image or an array of uint8"
    )


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


def stamp(path: Path) -> tuple[int, int] | None:
    """Size and modification time, by which a change of the file is noticed; None if there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def as_text(name: str) -> str:
    """A file's name; characters that cannot be encoded are escaped as in Python."""
    return name.encode(errors="backslashreplace").decode()


def file_name(image: object) -> str:
    """The picture's path as given; empty if it has none."""
    return str(image) if isinstance(image, str | os.PathLike | Picture) else ""


def is_listing(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether iterating over a value yields its content: mappings and data frames yield names instead."""
    named = isinstance(value, Mapping) or hasattr(value, "columns")
    return isinstance(value, Iterable) and not named and getattr(value, "shape", None) != ()


def is_one(images: object) -> bool:
    """Whether the value is one picture rather than a list of them; an array of four dimensions is a list of arrays."""
    if isinstance(images, np.ndarray):
        return images.ndim in {2, 3} and images.dtype.kind not in "UO"
    one = isinstance(images, str | os.PathLike | bytes | bytearray | memoryview | Image.Image | Picture)
    return one or hasattr(images, "read")  # an open file: iterating over it yields lines, not pictures


def several(images: object) -> Iterable[object]:
    """The pictures as an iterable; a single one becomes a list of one."""
    if is_one(images):
        return [images]
    if not is_listing(images):
        raise InputError(f"pictures are expected, one or a list of them, found {type(images).__name__}")
    return images
