"""CSV and TSV tables of pictures and their labels, optionally gzipped, as people and spreadsheets write them."""

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from fewtag.errors import InputError
from fewtag.pictures.files import is_image_name

SEPARATOR = ";"
NOT = "!"
"""Prefix of a label in a cell, added by a person: the picture does not show it."""
ABSENT = "absent"
"""The column, added by a person, of labels that pictures do not show."""
COLUMNS = {
    "image": "image img picture photo path file filename filepath imagename imagefile imagepath imageid sourcefile "
    "relativepath",
    "labels": "labels label labelname tags tag tagname classes class classname categories category categoryname "
    "keywords keyword subject species",
}
"""Accepted names, in the spelling of `folded`, of the two columns that a table must have."""
OURS = {"image", "labels", "tags", ABSENT}
"""Names that a label cannot have in a table of `tag`, which begins with image,tags: its other columns are labels."""
_MARKS = {"1": True, "1.0": True, "true": True, "yes": True, "x": True}
_MARKS |= {"0": False, "0.0": False, "false": False, "no": False}
"""Cells of a table with a column for each label: shown or absent; an empty cell says neither."""
_MOST_BYTES = 1_000_000_000


def read_cells(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Every row with its line number: its cells by `image`, `labels`, `absent`, and by the header's other names.

    Instead of a column of labels there may be one column for each label, with 1 where a picture shows it and 0 where it
    does not: then `labels` and `absent` are lists, which `split_labels` returns as they are.
    """
    text = _text(path)
    header = next((line[0] for line in re.finditer("[^\r\n]+", text) if not _precedes_header([line[0]])), "")
    delimiter = "\t" if is_tsv(path) else max(",;\t", key=lambda mark: _fitness(header, mark))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next((row for row in reader if not _precedes_header(row)), [])]
        folder = _name_columns(path, names)
        rows = []
        for row in reader:
            if not any(map(str.strip, row)):  # spreadsheets leave lines that contain only separators
                continue
            if len(row) != len(names):
                quotes = " and in quotes" if delimiter == SEPARATOR else ""
                raise InputError(
                    f"{path} line {reader.line_num} has {len(row)} cells, the header {len(names)}; "
                    f'several labels are joined by ";"{quotes}, as in "dog;sofa"'
                )
            cells = dict(zip(names, row, strict=True))
            if folder is not None and row[folder].strip():
                cells["image"] = f"{row[folder].strip()}/{cells['image'].strip()}"
            rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} cannot be read ({error}); save the table again") from error
    if not rows:
        raise InputError(f"the table {path} has a header and no row; add a row for each image")
    if "labels" in names:
        return rows
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise InputError(f"the table {path} has two columns {twice[0]!r}; keep one of them, or call one otherwise")
    return _marked(path, rows)


def folded(name: str) -> str:
    """A column's name in a canonical spelling.

    >>> folded("File Name"), folded("file_name")
    ('filename', 'filename')
    """
    return re.sub(r"[\s_-]", "", name.casefold())


def split_labels(path: Path, line: int, cell: str | list[str]) -> list[str]:
    """The distinct labels of a cell; in TSV commas separate them too, which in CSV would end the cell."""
    if isinstance(cell, list):
        return list(cell)
    if not cell.strip():
        return []
    names = [name.strip() for name in re.split("[,;]" if is_tsv(path) else SEPARATOR, cell.strip().removesuffix(";"))]
    if {"", NOT} & set(names):
        raise InputError(f"{path} line {line} has an empty label in {cell!r}; name it, or remove the spare separator")
    cleaned = (NOT + name.removeprefix(NOT).strip() if name.startswith(NOT) else name for name in names)
    return list(dict.fromkeys(cleaned))


def decode_text(data: bytes) -> str:
    """Decodes UTF-8, with or without a byte-order mark, or UTF-16 with one, as Excel and PowerShell write it."""
    return data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig")


def is_tsv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def _precedes_header(row: list[str]) -> bool:
    """Whether a line is empty, or tells Excel the separator ("sep=;")."""
    return not any(map(str.strip, row)) or row[0].startswith("sep=")


def _fitness(header: str, delimiter: str) -> tuple[int, int]:
    """How well a separator suits a header, as a sort key: whether it yields the two columns counts first."""
    names = {folded(name.strip().strip('"')) for name in header.split(delimiter)}
    return sum(not names.isdisjoint(known.split()) for known in COLUMNS.values()), header.count(delimiter)


def _name_columns(path: Path, names: list[str]) -> int | None:
    """Renames the columns `image`, `labels` and `absent` in place; without `labels` there is a column for each label.

    Returns the index of a separate column for the picture's folder, if any: Timelapse's tables have RelativePath and
    File.
    """
    meant = [folded(name) for name in names]
    if any(map(is_image_name, names)):
        raise InputError(f"the first line of {path} names a picture, not its columns; put a line image,labels above it")
    folder = None
    for wanted, known in COLUMNS.items():
        spellings = OURS & set(known.split()) if meant[:2] == ["image", "tags"] else known.split()
        found = [number for number, name in enumerate(meant) if name in spellings]
        if {meant[number] for number in found} == {"relativepath", "file"} and len(found) == 2:
            folder = meant.index("relativepath")
            found.remove(folder)
        if len(found) > 1:
            called = " and ".join(repr(names[number]) for number in found)
            raise InputError(f"the table {path} has {len(found)} columns for the {wanted}, {called}; keep one of them")
        if found:
            names[found[0]] = wanted
        elif wanted == "image" or len(names) < 2:
            header = ", ".join(map(repr, names)) or "nothing"
            holds = "" if wanted == "image" else ', with a picture\'s labels joined by ";"'
            raise InputError(
                f"the table {path} lacks the column {wanted!r}: its header has {header}; call one so, or add it{holds}"
            )
    if ABSENT in meant:
        names[meant.index(ABSENT)] = ABSENT
    return folder


def _marked(path: Path, rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a table with a column for each label; labels that no picture shows are dropped as unknown."""
    told = []
    for line, cells in rows:
        said: dict[bool, list[str]] = {True: [], False: []}
        for name, cell in cells.items():
            if name == "image" or not (mark := cell.strip().casefold()):
                continue
            if mark not in _MARKS:
                raise InputError(
                    f"the table {path} has no column for the labels; call one labels, with a picture's joined by "
                    f'";", or give each label a column of 1 and 0, which {name!r} is not: line {line} has {cell!r}'
                )
            if not name or name.startswith(NOT):
                raise InputError(f"the table {path} has a column {name!r}, which no label is called; name it otherwise")
            said[_MARKS[mark]].append(name)
        told.append((line, cells["image"], said[True], said[False]))
    shown = {name for _, _, yes, _ in told for name in yes}
    return [
        (line, {"image": image, "labels": yes, ABSENT: [each for each in no if each in shown]})
        for line, image, yes, no in told
    ]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"the table {path} is larger than {_MOST_BYTES // 10**6} MB; cut it into several")
        return decode_text(data).replace("\0", "")
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the table {path}: {why}; check it") from error
    except UnicodeDecodeError as error:
        raise InputError(f'the table {path} is not UTF-8 text; save it as UTF-8 (in Excel as "CSV UTF-8")') from error
