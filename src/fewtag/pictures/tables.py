"""CSV and TSV tables of pictures and their labels, gzipped too, as people and spreadsheets write them."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewtag.errors import InputError

SEPARATOR = ";"
NOT = "!"
"""Before a label in a cell that a person mends: the picture does not show it."""
ABSENT = "absent"
"""The column of labels that pictures do not show, where a person adds one."""
COLUMNS = {"image": ("image", "path", "file", "filename", "file_name"), "labels": ("labels", "label", "tags", "tag")}
"""What people call the two columns that a table must have."""
_MOST_BYTES = 1_000_000_000


def read_cells(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Every row with its line number: its cells by `image`, `labels`, `absent`, and by the header's other names."""
    text = _text(path)
    header = text.split("\n", 1)[0]
    delimiter = "\t" if is_tsv(path) else max(",;\t", key=lambda mark: _fitness(header, mark))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(reader, [])]
        folded = [name.casefold() for name in names]
        for wanted in COLUMNS:
            names[_column(path, folded, wanted)] = wanted
        if ABSENT in folded:
            names[folded.index(ABSENT)] = ABSENT
        empty = True
        for row in filter(None, reader):
            if len(row) != len(names):
                raise InputError(
                    f"{path} line {reader.line_num} has {len(row)} cells, the header {len(names)}; "
                    'several labels are joined by ";", as in "dog;sofa"'
                )
            empty = False
            yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} cannot be read ({error}); save the table again") from error
    if empty:
        raise InputError(f"the table {path} has a header and no row; add a row for each image")


def split_labels(path: Path, line: int, cell: str) -> list[str]:
    """The labels of a cell, each once; TSV takes commas too, which in CSV would end the cell."""
    if not cell.strip():
        return []
    names = [name.strip() for name in re.split("[,;]" if is_tsv(path) else SEPARATOR, cell)]
    if {"", NOT} & set(names):
        raise InputError(f"{path} line {line} has an empty label in {cell!r}; name it, or remove the spare separator")
    cleaned = (NOT + name.removeprefix(NOT).strip() if name.startswith(NOT) else name for name in names)
    return list(dict.fromkeys(cleaned))


def is_tsv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def _fitness(header: str, delimiter: str) -> tuple[bool, int]:
    """How well a separator suits a header: one that yields both columns first."""
    names = {name.strip().strip('"').casefold() for name in header.split(delimiter)}
    return all(names & set(known) for known in COLUMNS.values()), header.count(delimiter)


def _column(path: Path, names: Sequence[str], wanted: str) -> int:
    meant = [number for number, name in enumerate(names) if name in COLUMNS[wanted]]
    if len(meant) > 1:
        raise InputError(f"the table {path} has {len(meant)} columns for the {wanted}; keep one of them")
    if not meant:
        header = ", ".join(map(repr, names)) or "nothing"
        raise InputError(f"the table {path} lacks the column {wanted!r}: its header has {header}; add it")
    return meant[0]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"the table {path} is larger than {_MOST_BYTES // 10**6} MB; cut it into several")
        # Excel begins its CSV with a byte-order mark, and its "Unicode text" with another
        encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
        return data.decode(encoding).replace("\0", "")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read the table {path}: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the table {path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
