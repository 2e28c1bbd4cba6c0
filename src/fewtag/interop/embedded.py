"""Keywords inside pictures: XMP packets and IPTC's keywords, read from the bytes, and packets written by exiftool."""

import os
import shutil
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fewtag.errors import InputError
from fewtag.interop.keywords import NO_TAGS, Tags, join_tags
from fewtag.interop.xmp import Packet
from fewtag.pictures.decode import decode, open_encoded, pixel_digest
from fewtag.pictures.files import Picture

PART = ".fewtag-part"
"""In the names of files that are being written, before they take the place of others."""

_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_PHOTOSHOP = b"Photoshop 3.0\0"
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST = 16_000_000
"""Bytes of one chunk that may be metadata."""
_UTF8 = b"\x1b%G"


class Embedded(NamedTuple):
    """What a picture's file holds beside its pixels."""

    packet: bytes | None = None
    keywords: tuple[str, ...] = ()
    """IPTC's."""

    def tags(self, name: str) -> Tags:
        """A person's own; a packet that cannot be read is no reason to lose the keywords beside it."""
        found = NO_TAGS
        if self.packet is not None:
            with suppress(InputError):
                found = Packet(self.packet, f"the XMP in {name}").tags()
        return found.joined(join_tags((), self.keywords))


def read_embedded(path: Path) -> Embedded:
    """Of JPEG and PNG only what is not pixels is read; refuses what is no picture."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if head[:2] == b"\xff\xd8":
                return _jpeg(file)
            if head == _PNG:
                return _png(file)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"cannot read image {path}: {reason}; check the path") from error
    image = open_encoded(Picture(path).read(), str(path))
    packet = image.info.get("xmp")
    # IPTC's tag in a TIFF as it lies there, as Pillow's own reader takes it: some call its bytes numbers
    iptc = getattr(getattr(image, "tag_v2", None), "_tagdata", {}).get(33723, b"")
    return Embedded(packet if isinstance(packet, bytes) and packet else None, keywords(iptc))


def _jpeg(file: BinaryIO) -> Embedded:
    packet, iptc = None, b""
    file.seek(2)
    while len(marker := file.read(4)) == 4 and marker[0] == 0xFF:
        if marker[1] == 0xFF:  # a fill byte
            file.seek(-3, os.SEEK_CUR)
            continue
        size = int.from_bytes(marker[2:], "big") - 2
        if marker[1] in {0xDA, 0xD9} or size < 0:
            break
        if marker[1] in {0xE1, 0xED}:
            segment = file.read(size)
            if segment.startswith(_XMP) and packet is None:
                packet = segment[len(_XMP) :]
            elif segment.startswith(_PHOTOSHOP):
                iptc += segment[len(_PHOTOSHOP) :]
        else:
            file.seek(size, os.SEEK_CUR)
    return Embedded(packet, keywords(b"".join(_photoshop(iptc))))


def _photoshop(blocks: bytes) -> Iterator[bytes]:
    """The IPTC records among Photoshop's image resources."""
    place = 0
    while blocks[place : place + 4] == b"8BIM" and len(blocks) >= place + 12:
        name = blocks[place + 6]
        data = place + 6 + (name + 2 & ~1)
        size = int.from_bytes(blocks[data : data + 4], "big")
        if blocks[place + 4 : place + 6] == b"\x04\x04":
            yield blocks[data + 4 : data + 4 + size]
        place = data + 4 + (size + 1 & ~1)


def _png(file: BinaryIO) -> Embedded:
    """Text chunks may come after the pixels, where Pillow looks only once it has decoded them."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"iTXt" and size <= _MOST:
            keyword, _, rest = file.read(size).partition(b"\0")
            if keyword == b"XML:com.adobe.xmp" and len(rest) > 2:
                text = rest[2:].split(b"\0", 2)[-1]
                return Embedded(_inflate(text) if rest[0] else text)
            file.seek(4, os.SEEK_CUR)
        else:
            file.seek(size + 4, os.SEEK_CUR)
        if kind == b"IEND":
            break
    return Embedded()


def _inflate(data: bytes) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(data, _MOST)
    except zlib.error:
        return None


def keywords(records: bytes) -> tuple[str, ...]:
    """IPTC's keywords: data set 25 of record 2, in UTF-8 if that is said or fits, else in Latin 1."""
    found, utf8, place = [], False, 0
    while place + 5 <= len(records) and records[place] == 0x1C:
        record, dataset = records[place + 1], records[place + 2]
        size = int.from_bytes(records[place + 3 : place + 5], "big")
        value = records[place + 5 : place + 5 + size]
        if size & 0x8000:  # as long as no keyword is
            break
        utf8 |= (record, dataset) == (1, 90) and value == _UTF8
        if (record, dataset) == (2, 25):
            found.append(value)
        place += 5 + size
    return tuple(_text(value, utf8=utf8) for value in found if value.strip())


def _text(value: bytes, *, utf8: bool) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("utf-8" if utf8 else "latin-1", "replace")


class Replaced(NamedTuple):
    """A picture whose packet another one takes the place of; None is no packet."""

    name: str
    path: Path
    before: bytes | None
    after: bytes | None


def check_exiftool() -> None:
    """Before anything is done."""
    if shutil.which("exiftool") is None:
        raise InputError(
            "--embed writes into the pictures by exiftool, which is not installed; install it "
            "(apt install libimage-exiftool-perl, brew install exiftool), or write sidecars without --embed"
        )


def embed(pictures: Sequence[Replaced], *, back: bool) -> list[str]:
    """Why each could not be written, or nothing; one exiftool for all, since to start it takes longer than a picture.

    It writes copies, which take the pictures' places once they are whole and, unless this is the way `back`, what was
    written can be taken back to the byte.
    """
    if not pictures:
        return []
    with tempfile.TemporaryDirectory() as folder:
        lines, parts = list[str](), list[Path]()
        for number, each in enumerate(pictures):
            there = each.path.resolve()
            part, again = there.with_name(f".{number}{PART}{there.suffix}"), Path(folder, f"back{number}{there.suffix}")
            parts.append(part)
            if "\n" not in str(there):
                lines += _arguments(there, part, each.after, folder)
                lines += [] if back else _arguments(part, again, each.before, folder)
        arguments = Path(folder, "arguments.txt")
        arguments.write_text("\n".join(lines), encoding="utf-8")
        said = subprocess.run(["exiftool", "-@", str(arguments)], capture_output=True, text=True, check=False).stderr
        failures = list[str]()
        for number, (each, part) in enumerate(zip(pictures, parts, strict=True)):
            undone = None if back else Path(folder, f"back{number}{part.suffix}")
            failures.append(_take_place(each, part, undone, said))
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return failures


def _arguments(source: Path, target: Path, packet: bytes | None, folder: str) -> list[str]:
    """What exiftool is told, a line each."""
    block = Path(folder, f"{target.name}.xmp")
    if packet is not None:
        block.write_bytes(packet)
    erase_or_set = "-XMP:all=" if packet is None else f"-XMP<={block}"
    return ["-charset", "filename=utf8", "-q", "-q", "-o", str(target), erase_or_set, str(source), "-execute"]


def _take_place(each: Replaced, part: Path, undone: Path | None, said: str) -> str:
    picture, instead = each.path.resolve(), "write a sidecar without --embed"
    if "\n" in str(picture):
        return f"{each.name!r} has a line break in its name; rename it"
    try:
        if not part.exists():
            why = next((line for line in said.splitlines() if str(picture) in line or part.name in line), said)
            reason = " ".join(why.split())[:200] or "it wrote nothing"
            return f"exiftool cannot write into {each.name} ({reason}); {instead}"
        original = picture.read_bytes()
        if undone is not None and (not undone.exists() or undone.read_bytes() != original):
            most = "as in most HEIC files"
            return f"what exiftool writes into {each.name} could not be taken back to the byte, {most}; {instead}"
        if pixel_digest(decode(part.read_bytes(), each.name)) != pixel_digest(decode(original, each.name)):
            return f"exiftool would change the pixels of {each.name}; {instead}"
        status = picture.stat()
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        part.chmod(stat.S_IMODE(status.st_mode))
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        part.replace(picture)
    except OSError as error:
        return f"cannot write {picture}: {error.strerror}; check the folder's permissions and its room"
    except InputError as error:
        return str(error)
    return ""
