"""What is to be tagged: a folder, a location of fsspec's or Parquet tables, cut into shards."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fewtag.apps.bulk.locations import file_system, local_path, reason
from fewtag.apps.bulk.rows import Table, open_table
from fewtag.apps.folders import find_pictures
from fewtag.errors import InputError
from fewtag.pictures.files import IMAGE_ENDINGS, is_image_name

# whatever a file system says of a file that changes with its content
_STAMPS = ("size", "mtime", "LastModified", "last_modified", "ETag", "etag", "md5Hash", "generation")
_TABLES_AT_ONCE = 16


@dataclass(frozen=True)
class Shard:
    """The unit of work: pictures by name and location, or rows of a table. Its digest says what is in it."""

    number: int
    digest: str
    size: int
    pictures: tuple[tuple[str, str], ...] = ()
    table: str = ""
    first: int = 0

    def __len__(self) -> int:
        return self.size

    def to_json(self) -> str:
        """Escaped, since a file's name may be no text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Shard":
        facts = json.loads(text)
        facts["pictures"] = tuple((name, location) for name, location in facts["pictures"])
        return cls(**facts)


@dataclass(frozen=True)
class Listing:
    """Pictures with a file each: name, location, and what changes when the file does."""

    files: Sequence[tuple[str, str, object]]

    def __len__(self) -> int:
        return len(self.files)

    def shards(self, size: int) -> list[Shard]:
        cuts = [self.files[first : first + size] for first in range(0, len(self), size)]
        return [
            Shard(number, _digest(files), len(files), tuple((name, location) for name, location, _ in files))
            for number, files in enumerate(cuts)
        ]


@dataclass(frozen=True)
class Tables:
    """Parquet tables of paths or bytes, a picture a row."""

    tables: Sequence[Table]

    def __len__(self) -> int:
        return sum(sum(table.groups) for table in self.tables)

    def shards(self, size: int) -> list[Shard]:
        cuts = [(table, first, rows) for table in self.tables for first, rows in _cuts(table.groups, size)]
        return [
            Shard(number, _digest([table.url, table.stamp, first, rows]), rows, table=table.url, first=first)
            for number, (table, first, rows) in enumerate(cuts)
        ]


Source = Listing | Tables


def _cuts(groups: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows; whole row groups together where they fit, so that none is read twice."""
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


def open_source(source: str) -> Source:
    """Pictures of a folder or location; where there are none, its Parquet tables; or the one file."""
    path = local_path(source)
    found = _remote(source) if path is None else _local(Path(path))
    if not len(found):
        raise InputError(f"{source} lists no picture: its tables have no row; check it")
    return found


def _local(source: Path) -> Source:
    if source.is_file() and source.suffix.lower() == ".parquet":
        return _open_tables({str(source.resolve()): _stamp(source)})
    # hidden files and folders, and those that Spark and Arrow keep their notes in, are none of the tables
    tables = [path for path in sorted(source.rglob("*.parquet")) if not _hidden(path.relative_to(source).as_posix())]
    try:
        pictures = find_pictures(source)
    except InputError:
        if not tables:
            raise
        return _open_tables({str(path.resolve()): _stamp(path) for path in tables})
    return Listing([(str(picture), str(picture.path.absolute()), _stamp(picture.path)) for picture in pictures])


def _remote(source: str) -> Source:
    files = _find(source)
    system, root = file_system(source)
    tables = {system.unstrip_protocol(path): stamp for path, stamp in files.items() if path.endswith(".parquet")}
    pictures = {path: stamp for path, stamp in files.items() if is_image_name(path)}
    if not pictures and not tables:
        endings = ", ".join(sorted(IMAGE_ENDINGS))
        raise InputError(f"{source} holds no picture ({endings}) and no Parquet table; check the location")
    if not pictures:
        return _open_tables(tables)
    top = root.rstrip("/")
    named = [
        (path.rsplit("/", 1)[1] if path.rstrip("/") == top else path.removeprefix(f"{top}/"), path, stamp)
        for path, stamp in pictures.items()
    ]
    # the links of a web page are escaped; the names of files are not
    web = source.startswith("http")
    return Listing(
        [(unquote(name) if web else name, system.unstrip_protocol(path), stamp) for name, path, stamp in sorted(named)]
    )


def _find(source: str) -> dict[str, list[str]]:
    """Every file under a location, or the one file, each with its stamp."""
    system, root = file_system(source)
    # one that goes from folder to folder would pass over those that it cannot read
    strict = {"on_error": "raise"} if source.startswith("http") else {}
    try:
        found: dict[str, dict[str, Any]] = system.find(root, detail=True, **strict)
        if not found:
            system.info(root)  # says what is wrong, if nothing is there
    except Exception as error:  # each file system has errors of its own
        raise InputError(f"cannot list {source}: {reason(error)}; check the location and its permissions") from error
    top = root.rstrip("/")
    return {
        path: [str(facts[key]) for key in _STAMPS if facts.get(key) is not None]
        for path, facts in found.items()
        # a page may link elsewhere
        if path.rstrip("/") == top or (path.startswith(f"{top}/") and not _hidden(path.removeprefix(f"{top}/")))
    }


def _open_tables(tables: dict[str, Any]) -> Tables:
    """Reads the footers alone."""
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        return Tables(list(pool.map(open_table, tables.keys(), tables.values())))


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
