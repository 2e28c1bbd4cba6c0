"""Sources of pictures to tag: paths, folders, lists, archives, detections, URLs and Parquet tables, cut into shards."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from fewtag.errors import InputError, import_extra
from fewtag.files import digest, read_json
from fewtag.pictures.files import (
    IMAGE_ENDINGS,
    OTHERS_FOLDERS,
    Picture,
    archived,
    paired_raws,
    stamp,
    walk,
    why_unreadable,
)
from fewtag.pictures.tables import decode_text
from fewtag.tagger.stream import Item

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# facts by which the various file systems tell that a file has changed
_STAMPS = ("size", "mtime", "LastModified", "last_modified", "ETag", "etag", "md5Hash", "generation")
_ENDINGS = ", ".join(sorted(IMAGE_ENDINGS))
_TABLES_AT_ONCE = 16
_TRIES = 3
_STRETCHES = 8
"""Runs of consecutive rows that a sample of tables consists of, more where row groups are smaller: each costs reading a
row group."""
SURE = 0.2
"""Confidence from which a detection is used: what MegaDetector itself calls the typical threshold."""


class Entry(NamedTuple):
    """A picture to tag: its name in the table, its location, and a stamp that changes with the file."""

    name: str
    location: str
    stamp: object = None
    offset: int = 0
    size: int | None = None
    """Length in bytes, from `offset` on, if the picture is part of an archive."""
    problem: str = ""
    """Why the picture cannot be read, if that is already known."""
    box: tuple[float, ...] | None = None
    """Left, top, width and height of the part to tag, as shares of the picture."""

    def item(self) -> Item:
        """The item to read: a local file or a part of one, or this entry itself if it is remote."""
        return Item(self.name, self.picture or self)

    @property
    def picture(self) -> Picture | None:
        """The picture, if it is a local one."""
        path, about = local_path(self.location), (self.offset, self.size, self.name, self.problem, self.box)
        return None if path is None else Picture(path, *about)

    def read(self) -> bytes:
        """The encoded bytes of a remote picture."""
        if self.problem:
            raise InputError(self.problem)
        system, path = file_system(self.location)
        for tried in range(1, _TRIES + 1):
            try:
                return system.cat_file(path)
            except Exception as error:  # each file system raises its own
                if tried == _TRIES or isinstance(error, FileNotFoundError | PermissionError):
                    raise InputError(f"cannot read image {self.name}: {reason(error)}; check the path") from error
        raise AssertionError("the last try answers or fails")


@dataclass(frozen=True)
class Shard:
    """The unit of work: pictures, or rows of a table, with a digest that identifies them."""

    number: int
    digest: str
    size: int
    entries: tuple[Entry, ...] = ()
    table: str = ""
    first: int = 0
    is_remote: bool = False
    """Whether reading is bound by latency, so that many pictures are read at once."""

    def items(self, batch: int) -> Iterator[Item]:
        """The pictures, in order; a table's rows are read a batch at a time."""
        yield from (entry.item() for entry in self.entries)
        if self.table:
            from fewtag.tagging.parquet import read_rows

            yield from (row for rows in read_rows(self.table, self.first, self.size, batch) for row in rows)


@dataclass(frozen=True)
class Source:
    """Pictures by location, or Parquet tables of them."""

    entries: Sequence[Entry] = ()
    tables: Sequence[Any] = ()
    locations: Sequence[str] = ()
    """The locations that were given, as absolute paths or URLs."""

    def __len__(self) -> int:
        return len(self.entries) + sum(sum(table.groups) for table in self.tables)

    def shards(self, size: int) -> list[Shard]:
        cuts = [self.entries[first : first + size] for first in range(0, len(self.entries), size)]
        shards = [
            Shard(number, _digest(some), len(some), tuple(some), is_remote=is_url(some[0].location))
            for number, some in enumerate(cuts)
        ]
        pieces = [(table, first, rows) for table in self.tables for first, rows in _cuts(table.groups, size)]
        return shards + [
            Shard(number, _digest([table.url, table.stamp, first, rows]), rows, (), table.url, first, is_remote=True)
            for number, (table, first, rows) in enumerate(pieces, len(shards))
        ]

    def sample(self, count: int, batch: int) -> list[Item]:
        """A random sample of the pictures, the same in whatever order they come; from tables, runs of rows."""
        random = np.random.default_rng(0)
        if self.entries:
            by_name = sorted(self.entries, key=lambda entry: entry.name)
            chosen = random.choice(len(by_name), min(len(by_name), count), replace=False)
            return [by_name[number].item() for number in sorted(chosen)]
        shards = self.shards(count // _STRETCHES)
        order = random.permutation(len(shards))
        enough = int(np.searchsorted(np.cumsum([shards[number].size for number in order]), count)) + 1
        return [item for number in sorted(order[:enough]) for item in shards[number].items(batch)][:count]


def _cuts(groups: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each shard; row groups stay whole where they fit, so none is read twice."""
    first = rows = 0
    for group in groups:
        if rows and rows + group > size:
            yield first, rows
            first, rows = first + rows, 0
        rows += group
        while rows > size:
            yield first, size
            first, rows = first + size, rows - size
    if rows:
        yield first, rows


def open_source(sources: Sequence[str]) -> Source:
    """Opens sources: in a single one pictures are named relative to it, in several by the path that was given."""
    alone = len(sources) == 1
    opened = [_open(source, "" if alone else source) for source in sources]
    entries = [entry for source in opened for entry in source.entries]
    tables = [table for source in opened for table in source.tables]
    if not entries and not tables:
        raise InputError(f"{', '.join(sources)}: there is no picture ({_ENDINGS}); check the path")
    if entries and tables:
        raise InputError("pictures and Parquet tables cannot be tagged in one run; give them to a run each")
    named: dict[str, Entry] = {}
    for entry in entries:
        if (other := named.get(entry.name, entry).location) != entry.location:
            apart = "give the archives themselves" if other.endswith(".tar") else "tag their folders in a run each"
            raise InputError(f"two pictures are called {entry.name!r}, in {other} and {entry.location}; {apart}")
        named[entry.name] = entry
    found = Source(list(named.values()), tables, [absolute(source) for source in sources])
    if not len(found):
        raise InputError(f"{', '.join(sources)} lists no picture: its tables have no row; check it")
    return found


def _open(source: str, prefix: str) -> Source:
    """Opens one source; a non-empty `prefix` says that there are several, so that names include the given path."""
    path = local_path(source)
    if path is None:
        return _remote(source)
    if path.is_dir():
        return _folder(path, prefix)
    if not path.exists() and not path.is_symlink():
        raise InputError(f"there is no folder or picture {source}; check the path")
    match path.suffix.lower():
        case ".parquet":
            return _open_tables({str(path.resolve()): stamp(path)})
        case ".tar":
            return Source(_without_raws(_archive(path, prefix)))
        case ".txt" | ".lst":
            return Source(list(_list(path)))
        case ".json":
            return Source(list(_detections(path)))
        case ".csv" | ".tsv" | ".jsonl":
            raise InputError(f"{source} is a table, no picture; give a folder, or a .txt list with a path a line")
        case ".zip" | ".gz" | ".tgz" | ".bz2" | ".xz" | ".zst" | ".7z" | ".rar":
            raise InputError(f"{source} is a packed archive, which is not read; unpack it, or make a .tar of it")
        case _:
            name = path.as_posix() if prefix else path.name
            return Source([Entry(name, str(path.absolute()), stamp(path), problem=why_unreadable(name) or "")])


def _folder(folder: Path, prefix: str) -> Source:
    """The pictures of a folder; if it has none, its tar archives or its Parquet tables."""
    above = f"{folder.as_posix().rstrip('/')}/" if prefix else ""
    entries = [
        Entry(f"{above}{found.name}", str(found.path.absolute()), stamp(found.path), problem=found.problem)
        for found in walk(folder)
    ]
    if any(not entry.problem for entry in entries):
        return Source(entries)
    inside = [path for path in sorted(folder.rglob("*")) if not _is_note(path.relative_to(folder).as_posix())]
    if archives := [path for path in inside if path.suffix.lower() == ".tar"]:
        return Source([*entries, *(entry for path in archives for entry in _without_raws(_archive(path, above)))])
    tables = [path for path in inside if path.suffix.lower() == ".parquet"]
    return _open_tables({str(path.resolve()): stamp(path) for path in tables}) if tables else Source(entries)


def _list(path: Path) -> Iterator[Entry]:
    """The entries of a text file with a path or URL per line, relative to the file."""
    try:
        lines = decode_text(path.read_bytes()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the list {path} ({reason(error)}); give a text file, a path a line") from error
    for line in lines:
        name = line.strip()
        if name and not name.startswith("#"):
            file = _beside(path, name)
            here = not is_url(name)
            yield Entry(name, str(file.absolute()) if here else name, stamp(file) if here else None)


def _beside(path: Path, name: str) -> Path:
    """A file that another one names, relative to itself and perhaps with the separators of Windows."""
    file = path.parent / name
    return file if "\\" not in name or os.path.lexists(file) else path.parent / name.replace("\\", "/")


def read_detections(path: Path) -> dict[str, Any]:
    """Reads a file in MegaDetector's output format, and checks the fields that are used."""
    found = read_json(path, "list of detections")
    try:
        for image in found["images"]:
            str(image["file"])
            for detection in image.get("detections") or ():
                box = detection["bbox"]
                if len(box) != 4 or not all(isinstance(side, int | float) and 0 <= side <= 1 for side in box):
                    raise ValueError(f"the box {box}")
                float(detection["conf"])
        float(found["info"]["format_version"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is no file in MegaDetector's format ({error!r}); give its JSON, 1.0 to 1.6"
        ) from error
    return found


def _detections(path: Path) -> Iterator[Entry]:
    """The detections with enough confidence, named by picture and number; paths are relative to the file."""
    for image in read_detections(path)["images"]:
        file = _beside(path, image["file"])
        for number, detection in enumerate(image.get("detections") or (), 1):
            if float(detection["conf"]) >= SURE:
                location, box = str(file.absolute()), tuple(map(float, detection["bbox"]))
                yield Entry(f"{image['file']}#{number}", location, (stamp(file), box), box=box)


def _archive(path: Path, prefix: str) -> Iterator[Entry]:
    """The pictures of a tar archive."""
    above = f"{path.as_posix()}:" if prefix else ""
    changed, location = stamp(path), str(path.absolute())
    for name, offset, size in archived(path):
        if (problem := _why_unreadable(name)) is not None:
            yield Entry(f"{above}{name}", location, changed, offset, size, problem)


def _remote(source: str) -> Source:
    system, root = file_system(source)
    top = root.rstrip("/")
    # by default fsspec's HTTP walk skips folders that it cannot read
    strict = {"on_error": "raise"} if source.startswith("http") else {}
    try:
        listed: dict[str, dict[str, Any]] = system.find(root, detail=True, **strict)
        if not listed:
            system.info(root)  # raises a meaningful error if nothing is there
    except Exception as error:  # each file system raises its own
        raise InputError(f"cannot list {source}: {reason(error)}; check the location and its permissions") from error
    # links on a web page are percent-encoded; names of files are not
    unescape: Callable[[str], str] = unquote if source.startswith("http") else str
    entries, tables = list[Entry](), dict[str, Any]()
    for path, facts in listed.items():
        alone = path.rstrip("/") == top
        if not alone and not path.startswith(f"{top}/"):  # a page may link elsewhere
            continue
        url, stamp = system.unstrip_protocol(path), [str(facts[key]) for key in _STAMPS if facts.get(key) is not None]
        # the address of a single file may be signed
        plain = path.partition("?")[0] if alone and source.startswith("http") else path
        name = unescape(plain.rsplit("/", 1)[1] if alone else path.removeprefix(f"{top}/"))
        if (problem := _why_unreadable(name)) is not None:
            entries.append(Entry(name, url, stamp, problem=problem))
        elif plain.endswith(".parquet") and not _is_note(path.removeprefix(top)):
            tables[url] = stamp
    if any(not entry.problem for entry in entries):
        return Source(sorted(_without_raws(entries), key=lambda entry: entry.name))
    if not tables and not entries:
        raise InputError(f"{source} holds no picture ({_ENDINGS}) and no Parquet table; check the location")
    return _open_tables(tables) if tables else Source(entries)


def _why_unreadable(name: str) -> str | None:
    """Like `why_unreadable`, but None also for files in hidden folders and in those of other programs."""
    *folders, last = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, last))
    return None if hidden or {folder.lower() for folder in folders} & OTHERS_FOLDERS else why_unreadable(name)


def _without_raws(entries: Iterable[Entry]) -> list[Entry]:
    """As `walk` does: a RAW file beside its JPEG is one picture with it."""
    found = {PurePosixPath(entry.name): entry for entry in entries}
    paired = paired_raws(list(found))
    return [entry for path, entry in found.items() if path not in paired]


def _open_tables(tables: dict[str, Any]) -> Source:
    """Parquet tables as a source; only their footers are read."""
    from fewtag.tagging.parquet import open_table

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        return Source(tables=list(pool.map(open_table, tables.keys(), tables.values())))


def _is_note(name: str) -> bool:
    """Whether a file is hidden, or a metadata file of Spark or Arrow, and hence no table."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _digest(content: object) -> str:
    return digest(json.dumps(content))[:32]


def is_url(location: str) -> bool:
    """Whether a location is for fsspec; a Windows drive letter is no protocol.

    >>> is_url("s3://bucket/photos"), is_url("photos"), is_url("C:/photos")
    (True, False, False)
    """
    return "://" in location


def local_path(location: str) -> Path | None:
    """The path of a file:// URL or of a plain path; None for other URLs.

    >>> local_path("file:///photos/two%20dogs.jpg").as_posix()
    '/photos/two dogs.jpg'
    """
    if location.startswith("file://"):
        from urllib.request import url2pathname  # imported here: it takes as long as the rest of this module

        return Path(url2pathname(location.removeprefix("file://")))
    return None if is_url(location) else Path(location)


def absolute(location: str) -> str:
    """A location independent of the working directory: paths made absolute, URLs without trailing slashes."""
    path = local_path(location)
    return location.rstrip("/") if path is None else str(path.resolve())


def file_system(url: str) -> tuple["AbstractFileSystem", str]:
    """The fsspec file system of a URL or path, and the path within it."""
    fsspec = import_extra("fsspec.core", url, "urls")
    try:
        found: tuple[AbstractFileSystem, str] = fsspec.url_to_fs(url)
        return found
    except ImportError as error:
        # fsspec says which package it is: "Install s3fs to access S3"
        raise InputError(f"{url} cannot be opened here: {error}, here and on every machine of the cluster") from error
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {error}; use a path, s3://, gs:// or https://") from error


def check_folder(out: str) -> None:
    """Refuses an output that was hardly meant as a folder of parts: tags.json, tags.csv.gz, or standard output."""
    if out == "-":
        raise InputError("--out - is no file; leave --out out to have the rows in the terminal, with --json as JSON")
    here = local_path(out)
    ending = (PurePosixPath(out) if here is None else here).suffix.lower()
    if ending not in {"", ".parquet"} and not out.endswith(("/", os.sep)) and not (here is not None and here.is_dir()):
        raise InputError(
            f"--out {out} ends in {ending}; name a table in .csv, .jsonl or .parquet, "
            "or with a last / a folder of Parquet parts"
        )


def reason(error: Exception) -> str:
    """Why reading failed, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
