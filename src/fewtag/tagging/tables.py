"""Rows of tags as a table: CSV, JSON lines or Parquet, by the file's ending; and as lines for a terminal."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag.errors import InputError
from fewtag.files import replacing
from fewtag.tagger.stream import Tagged

if TYPE_CHECKING:
    import pyarrow

SEPARATOR = ";"
# JSON leaves these as they are, but str.splitlines() takes them for ends of lines
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
_ROWS_AT_ONCE = 1024
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take a cell for a formula by."""

Labels = Sequence[str] | None
"""The labels whose scores are written; None without --scores."""


def check_table(out: Path) -> None:
    """Refuses an output that could not be written, before hours of work."""
    if out.suffix.lower() not in WRITERS:
        raise InputError(f"--out {out} ends in none of {', '.join(WRITERS)}; name it tags.csv, for example")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it, such as {out / 'tags.csv'}")
    if out.suffix.lower() == ".parquet":
        import_pyarrow(str(out))


def check_labels(out: Path, labels: Sequence[str], *, scores: bool) -> None:
    """Refuses labels that could not be told apart in this table."""
    if out.suffix.lower() != ".csv":
        return
    for label in labels:
        if SEPARATOR in label:
            raise InputError(f'label {label!r} contains ";", which joins tags in {out}; write .jsonl instead')
        if scores and label in ("image", "tags"):
            raise InputError(f"label {label!r} would be a second column of that name in {out}; write .jsonl instead")


def write_table(
    out: Path, rows: Iterable[Tagged], labels: Labels, note: Callable[[Path], None] = lambda _: None
) -> None:
    """The whole table or nothing; rows are taken one by one, so that they need not all be in memory.

    `note` is told of the finished file before it takes its place.
    """
    with replacing(out) as part:
        WRITERS[out.suffix.lower()](part, rows, labels)
        note(part)


def failures_csv(failed: Iterable[Tagged]) -> bytes:
    """Columns image and reason. A name that is no text is written as Python would."""
    lines = [csv_line(["image", "reason"]), *(csv_line([_path_cell(row.image), row.failure]) for row in failed)]
    return "".join(lines).encode(errors="backslashreplace")


def csv_line(cells: Sequence[str]) -> str:
    """Ends in a line feed, yet quotes carriage returns too: before Python 3.13 one excludes the other.

    >>> csv_line(["a,b.jpg", 'say "dog"'])
    '"a,b.jpg","say ""dog""\"\\n'
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def record(row: Tagged, labels: Labels) -> dict[str, Any]:
    """A row as JSON and Parquet have it."""
    facts: dict[str, Any] = {"image": row.image, "tags": list(row.tags)}
    return facts if labels is None else facts | {"scores": {label: row.scores[label] for label in labels}}


def json_line(facts: dict[str, Any]) -> str:
    """One line, whatever is in it."""
    return json.dumps(facts, ensure_ascii=False).translate(_LINE_ENDS) + "\n"


def arrow_table(rows: Sequence[Tagged], labels: Labels) -> "pyarrow.Table":
    """Columns image, tags (a list) and with labels scores (a struct with a number for each)."""
    import pyarrow

    columns = {"image": pyarrow.string(), "tags": pyarrow.list_(pyarrow.string())}
    if labels is not None:
        columns["scores"] = pyarrow.struct([(label, pyarrow.float64()) for label in labels])
    return pyarrow.Table.from_pylist([record(row, labels) for row in rows], pyarrow.schema(columns))


def import_pyarrow(what: str) -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError(f'{what} needs pyarrow; install it with: pip install "fewtag[parquet]"') from error


def _path_cell(name: str) -> str:
    """The same path, but no formula to a spreadsheet."""
    return f"./{name}" if name.startswith(_FORMULA) else name


def _text_cell(text: str) -> str:
    """The same names, which are read without blanks around them, but no formula to a spreadsheet."""
    return f" {text}" if text.startswith(_FORMULA) else text


def _write_csv(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_line(["image", "tags", *map(_text_cell, labels or ())]))
        for row in rows:
            numbers = [f"{row.scores[label]:.6f}" for label in labels or ()]
            file.write(csv_line([_path_cell(row.image), _text_cell(SEPARATOR.join(row.tags)), *numbers]))


def _write_jsonl(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(json_line(record(row, labels)) for row in rows)


def _write_parquet(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    import pyarrow.parquet

    empty = arrow_table([], labels)
    with pyarrow.parquet.ParquetWriter(path, empty.schema) as writer:
        for chunk in _chunks(rows):
            writer.write_table(arrow_table(chunk, labels))


def _chunks(rows: Iterable[Tagged]) -> Iterator[list[Tagged]]:
    source = iter(rows)
    while chunk := list(islice(source, _ROWS_AT_ONCE)):
        yield chunk


WRITERS: dict[str, Callable[[Path, Iterable[Tagged], Labels], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
