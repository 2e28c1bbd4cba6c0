"""Reading the keywords of pictures: embedded XMP packets and IPTC keywords, and sidecars."""

import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fewtag.errors import InputError
from fewtag.interop.keywords import NO_TAGS, Tags, join_tags
from fewtag.interop.xmp import MOST_BYTES, Packet
from fewtag.pictures.decode import open_encoded
from fewtag.pictures.files import IMAGE_ENDINGS, RAW_ENDINGS, UNREADABLE_ENDINGS

ENDING = ".xmp"
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST = 16_000_000
"""The most bytes of a chunk that may be metadata."""
_UTF8 = b"\x1b%G"


class Embedded(NamedTuple):
    """The metadata in a picture's file that may contain keywords."""

    packet: bytes | None = None
    keywords: tuple[str, ...] = ()
    """IPTC keywords."""

    def tags(self, name: str) -> Tags:
        """A person's own tags; an XMP packet that cannot be read is skipped, and the IPTC keywords still count."""
        found = NO_TAGS
        if self.packet is not None:
            with suppress(InputError):
                found = Packet(self.packet, f"the XMP in {name}").tags()
        return found.joined(join_tags((), self.keywords))


def read_embedded(path: Path) -> Embedded:
    """A picture's XMP packet and IPTC keywords, without decoding JPEG and PNG pixels. Refuses what is no picture."""
    try:
        with path.open("rb") as file:
            if file.read(8) == _PNG:
                return _png(file)
            image = open_encoded(file, str(path))
            packet = image.info.get("xmp")
            # the raw bytes of a TIFF's IPTC tag, as in Pillow's own reader: some programs declare them as numbers
            in_tiff = getattr(getattr(image, "tag_v2", None), "_tagdata", {}).get(33723, b"")
            iptc = image.info.get("photoshop", {}).get(0x0404, in_tiff)
            return Embedded(packet if isinstance(packet, bytes) and packet else None, keywords(iptc))
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"cannot read image {path}: {reason}; check the path") from error


def _png(file: BinaryIO) -> Embedded:
    """The XMP chunk of a PNG: it may come after the pixels, where Pillow finds it only after decoding them."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"iTXt" and size <= _MOST:
            keyword, _, rest = file.read(size).partition(b"\0")
            if keyword == b"XML:com.adobe.xmp" and len(rest) > 2:
                text = rest[2:].split(b"\0", 2)[-1]
                try:
                    return Embedded(zlib.decompressobj().decompress(text, _MOST) if rest[0] else text)
                except zlib.error:
                    return Embedded()
            file.seek(4, os.SEEK_CUR)
        else:
            file.seek(size + 4, os.SEEK_CUR)
        if kind == b"IEND":
            break
    return Embedded()


def keywords(records: bytes) -> tuple[str, ...]:
    """IPTC keywords: data set 25 of record 2, in UTF-8 if so declared or valid, else in Latin 1."""
    found, utf8, place = [], False, 0
    while place + 5 <= len(records) and records[place] == 0x1C:
        record, dataset = records[place + 1], records[place + 2]
        size = int.from_bytes(records[place + 3 : place + 5], "big")
        value = records[place + 5 : place + 5 + size]
        if size & 0x8000:  # an extended data set, which no keyword needs
            break
        utf8 |= (record, dataset) == (1, 90) and value == _UTF8
        if (record, dataset) == (2, 25):
            found.append(value)
        place += 5 + size
    texts = []
    for value in filter(bytes.strip, found):
        try:
            texts.append(value.decode())
        except UnicodeDecodeError:
            texts.append(value.decode("utf-8" if utf8 else "latin-1", "replace"))
    return tuple(texts)


class Folders:
    """Listings of folders, each read once: the names in them by their case-folded spelling."""

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, list[str]]] = {}

    def names(self, folder: Path) -> dict[str, list[str]]:
        if folder not in self._listed:
            found: dict[str, list[str]] = {}
            try:
                for name in sorted(entry.name for entry in os.scandir(folder)):
                    found.setdefault(name.casefold(), []).append(name)
            except OSError as error:
                raise InputError(f"cannot read the folder {folder}: {error.strerror}; check it") from error
            self._listed[folder] = found
        return self._listed[folder]

    def sidecars(self, picture: Path) -> tuple[list[Path], list[Path]]:
        """A picture's own sidecars, and those that it may share with one of the same name: photo.cr2, photo.jpg."""
        names, stem = self.names(picture.parent), picture.stem.casefold()
        own = names.get(f"{picture.name}{ENDING}".casefold(), [])
        # of a picture whose name has no ending both are the same
        shared = [name for name in names.get(f"{stem}{ENDING}", ()) if name not in own]
        apart = (own, shared) if self.has_twin(picture) else ([*own, *shared], [])
        return [picture.parent / name for name in apart[0]], [picture.parent / name for name in apart[1]]

    def has_twin(self, picture: Path) -> bool:
        """Whether another picture beside it differs only in its ending, and so could also own photo.xmp."""
        names, stem = self.names(picture.parent), picture.stem.casefold()
        endings = (IMAGE_ENDINGS | UNREADABLE_ENDINGS) - {picture.suffix.lower()}
        return any(f"{stem}{ending}" in names for ending in endings)

    def raws(self, picture: Path) -> list[Path]:
        """Sidecars of RAW files of the same picture: photo.cr2.xmp for photo.jpg."""
        names, stem = self.names(picture.parent), picture.stem.casefold()
        found = (names.get(f"{stem}{ending}{ENDING}", ()) for ending in sorted(RAW_ENDINGS))
        return [picture.parent / name for some in found for name in some]

    def pictures(self, sidecar: Path) -> list[Path]:
        """The pictures that a sidecar may belong to: photo.jpg for photo.jpg.xmp, also photo.png for photo.xmp."""
        names, stem = self.names(sidecar.parent), sidecar.stem.casefold()
        found = names.get(stem, []) if Path(stem).suffix in IMAGE_ENDINGS else []
        found = found or [name for ending in sorted(IMAGE_ENDINGS) for name in names.get(f"{stem}{ending}", ())]
        found = found or names.get(stem, [])  # without an ending
        return [sidecar.parent / name for name in found]


def tags_in(paths: Iterable[Path]) -> Tags:
    """A person's own tags in these sidecars."""
    found = NO_TAGS
    for path in paths:
        found = found.joined(Packet(read_sidecar(path), f"the sidecar {path}").tags())
    return found


def read_sidecar(path: Path) -> bytes:
    """A sidecar's bytes; refuses a file that is too large to be one."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"the sidecar {path} is larger than {MOST_BYTES // 10**6} MB; that is no XMP")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the sidecar {path}: {error.strerror}; check its permissions") from error
