"""Parquet: reads tables of pictures, with a path or the bytes in each row, and reads and writes tables of tags."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fewtag.errors import InputError, import_extra
from fewtag.pictures.prefetch import batches
from fewtag.tagger.stream import Item
from fewtag.tagging.sources import Entry, file_system, is_url, local_path, reason

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_PATHS = ("path", "image")
NOTE = b"fewtag"
_ROWS_AT_ONCE = 1024
Labels = Sequence[str] | None
"""The labels whose scores are written; None without --scores."""


@dataclass(frozen=True)
class Table:
    """A table's address, a stamp that changes with its content, and the number of rows in each of its row groups."""

    url: str
    stamp: object
    groups: tuple[int, ...]


def open_table(url: str, stamp: object) -> Table:
    """Opens a table; refuses one that cannot be read or has no pictures in it."""
    with _reading(url) as file:
        _columns(url, file.schema_arrow)
        return Table(url, stamp, _sizes(file))


def read_rows(url: str, first: int, size: int, batch: int) -> Iterator[list[Item]]:
    """These rows, a batch at a time; only the row groups that contain some of them are read."""
    with _reading(url) as file:
        columns, sizes = _columns(url, file.schema_arrow), _sizes(file)
        starts = np.cumsum([0, *sizes])
        groups = np.flatnonzero((starts[1:] > first) & (starts[:-1] < first + size)).tolist()
        row = int(starts[groups[0]]) if groups else 0
        for found in file.iter_batches(batch, row_groups=groups, columns=columns):
            skipped = max(first - row, 0)
            kept = found.slice(skipped, max(first + size - row - skipped, 0))
            if kept.num_rows:
                yield _rows(url, kept.to_pydict(), row + skipped)
            row += found.num_rows


def _sizes(file: "ParquetFile") -> tuple[int, ...]:
    return tuple(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))


def _columns(url: str, schema: Any) -> list[str]:
    """The columns to read: bytes, with a name if there is one, or a path, or Hugging Face's struct of both."""
    names = [name for name in _PATHS if name in schema.names]
    kind = str(schema.field("image").type) if "image" in names else ""
    if kind.startswith("struct"):
        return ["image"]
    if "binary" in kind:  # the bytes themselves
        return names
    if "bytes" in schema.names:
        return ["bytes", *names[-1:]]
    if names:
        return names[:1]
    found = ", ".join(schema.names)
    raise InputError(f"the table {url} has neither a column path (or image) nor bytes, but {found}; rename one")


def _rows(url: str, columns: dict[str, Sequence[Any]], first: int) -> list[Item]:
    """Items for rows of a table: `image` or `path` is the picture's name if there are bytes, else its path."""
    if any(isinstance(cell, bytes) for cell in columns.get("image", ())):
        columns = {"bytes": columns["image"]} | {name: cells for name, cells in columns.items() if name == "path"}
    folder, _, table = (url if is_url(url) else PurePath(url).as_posix()).rpartition("/")
    nameless = [f"{table}#{first + number}" for number in range(len(next(iter(columns.values()))))]
    given: Sequence[Any] = next((columns[name] for name in _PATHS if name in columns), nameless)
    if any(isinstance(cell, dict) for cell in given):
        cells = [cell or {} for cell in given]
        columns = {"bytes": [cell.get("bytes") for cell in cells]}
        given = [cell.get("path") or None for cell in cells]
        # a path without bytes is read
        elsewhere = [None if cell.get("bytes") else path for cell, path in zip(cells, given, strict=True)]
    else:
        given = [None if cell == "" else cell for cell in given]
        elsewhere = [None] * len(given) if "bytes" in columns else given
    named = [nameless[number] if name is None else str(name) for number, name in enumerate(given)]
    items = []
    for name, data, cell in zip(named, columns.get("bytes", [None] * len(named)), elsewhere, strict=True):
        path = str(cell)
        whole = is_url(path) or path.startswith("/") or PurePath(path).is_absolute()
        there = Entry(name, path if whole else f"{folder}/{path}")  # paths are relative to their table
        items.append(Item(name, data or _empty(name)) if cell is None else there.item())
    return items


def _empty(name: str) -> InputError:
    return InputError(f"image {name} is an empty cell of its table; fill it or leave the row out")


@contextmanager
def _reading(url: str) -> Iterator["ParquetFile"]:
    """Opens a table, and turns any error into one sentence."""
    import_extra("pyarrow.parquet", url, "parquet")
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import ParquetFile

    here = local_path(url)
    try:
        if here is None:
            system, path = file_system(url)
        with here.open("rb") if here is not None else system.open(path, "rb") as stream, ParquetFile(stream) as file:
            yield file
    except (ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read the table {url}: {reason(error)}; replace it or leave it out") from error


def read_records(url: str) -> list[dict[str, Any]]:
    """All rows of a table, as dictionaries by column name."""
    with _reading(url) as file:
        records: list[dict[str, Any]] = file.read().to_pylist()
        return records


def write_records(
    target: Path | BinaryIO, records: Iterator[dict[str, Any]], labels: Labels, note: Mapping[str, Any] | None = None
) -> None:
    """Writes the columns image, tags (a list) and, with labels, scores (a struct); `note` goes into the metadata."""
    import pyarrow.parquet

    columns = {"image": pyarrow.string(), "tags": pyarrow.list_(pyarrow.string())}
    if labels is not None:
        columns["scores"] = pyarrow.struct([(label, pyarrow.float64()) for label in labels])
    schema = pyarrow.schema(columns, None if note is None else {NOTE: json.dumps(note)})
    with pyarrow.parquet.ParquetWriter(target, schema) as writer:
        for some in batches(records, _ROWS_AT_ONCE):
            writer.write_table(pyarrow.Table.from_pylist(some, schema))


def open_part(content: bytes) -> "ParquetFile":
    """Opens what `write_records` wrote; raises ValueError if it is damaged."""
    import pyarrow.lib
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(io.BytesIO(content))
    except pyarrow.lib.ArrowException as error:
        raise ValueError(str(error)) from error
