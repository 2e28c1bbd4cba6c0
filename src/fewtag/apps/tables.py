"""Tags as a table: CSV, JSON lines or Parquet, by the file's ending."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag.errors import InputError
from fewtag.files import replacing

if TYPE_CHECKING:
    import pyarrow

SEPARATOR = ";"
# JSON leaves these as they are, but str.splitlines() takes them for ends of lines
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
_ROWS_AT_ONCE = 1024
_DIGITS = 6


@dataclass(frozen=True)
class Tagged:
    """What was found out about one picture: its tags, or why it could not be read."""

    image: str
    tags: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    failure: str | None = None


def tagged(
    image: str, probabilities: Sequence[float], labels: Sequence[str], thresholds: Sequence[float], *, scores: bool
) -> Tagged:
    """The names over their threshold, likeliest first, and with `scores` the probability of each."""
    over = [column for column, value in enumerate(probabilities) if value >= thresholds[column]]
    return Tagged(
        image,
        tags=[labels[column] for column in sorted(over, key=probabilities.__getitem__, reverse=True)],
        scores={label: round(value, _DIGITS) for label, value in zip(labels, probabilities, strict=True)}
        if scores
        else {},
    )


Labels = Sequence[str] | None
"""The labels whose scores are written; None without --scores."""


def check_table(out: Path) -> None:
    """Refuses an output that could not be written, before hours of work."""
    if out.suffix.lower() not in _WRITERS:
        raise InputError(f"--out {out} ends in none of {', '.join(_WRITERS)}; name it tags.csv, for example")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it, such as {out / 'tags.csv'}")


def check_labels(out: Path, labels: Sequence[str], *, scores: bool) -> None:
    """Refuses labels that could not be told apart in this table."""
    if out.suffix.lower() != ".csv":
        return
    for label in labels:
        if SEPARATOR in label:
            raise InputError(f'label {label!r} contains ";", which joins tags in {out}; write .jsonl instead')
        if scores and label in ("image", "tags"):
            raise InputError(f"label {label!r} would be a second column of that name in {out}; write .jsonl instead")


def write_table(out: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    """The whole table or nothing; rows are taken one by one, so that they need not all be in memory."""
    with replacing(out) as part:
        _WRITERS[out.suffix.lower()](part, rows, labels)


def write_failures(path: Path, failed: Iterable[Tagged]) -> None:
    """Columns image and reason. A name that is no text is written as Python would."""
    with replacing(path) as part, part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(csv_line(["image", "reason"]))
        file.writelines(csv_line([row.image, row.failure or ""]) for row in failed)


def csv_line(cells: Sequence[str]) -> str:
    """Ends in a line feed, yet quotes carriage returns too: before Python 3.13 one excludes the other.

    >>> csv_line(["a,b.jpg", 'say "dog"'])
    '"a,b.jpg","say ""dog""\"\\n'
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _write_csv(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_line(["image", "tags", *(labels or ())]))
        for row in rows:
            numbers = [f"{row.scores[label]:.6f}" for label in labels or ()]
            file.write(csv_line([row.image, SEPARATOR.join(row.tags), *numbers]))


def _write_jsonl(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in rows:
            file.write(json.dumps(_record(row, labels), ensure_ascii=False).translate(_LINE_ENDS) + "\n")


def _write_parquet(path: Path, rows: Iterable[Tagged], labels: Labels) -> None:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetWriter(path, arrow_table([], labels).schema) as writer:
        for chunk in _chunks(rows):
            writer.write_table(arrow_table(chunk, labels))


def arrow_table(rows: Sequence[Tagged], labels: Labels) -> "pyarrow.Table":
    """Columns image and tags, and scores where labels are given."""
    import pyarrow

    columns = {"image": pyarrow.string(), "tags": pyarrow.list_(pyarrow.string())}
    if labels is not None:
        columns["scores"] = pyarrow.map_(pyarrow.string(), pyarrow.float64())
    return pyarrow.Table.from_pylist([_record(row, labels) for row in rows], pyarrow.schema(columns))


def _record(row: Tagged, labels: Labels) -> dict[str, Any]:
    record: dict[str, Any] = {"image": row.image, "tags": row.tags}
    return record if labels is None else record | {"scores": {label: row.scores[label] for label in labels}}


def _chunks(rows: Iterable[Tagged]) -> Iterator[list[Tagged]]:
    source = iter(rows)
    while chunk := list(islice(source, _ROWS_AT_ONCE)):
        yield chunk


_WRITERS: dict[str, Callable[[Path, Iterable[Tagged], Labels], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
