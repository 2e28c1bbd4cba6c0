"""Delivery: the project's tags as the tables that `fewtag tag` writes, with a dry run that says what would change."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fewtag.errors import InputError, nearest
from fewtag.files import digest, make_folder
from fewtag.studio.project import Project, UnknownError
from fewtag.studio.values import Delivery
from fewtag.tagger.stream import Tagged
from fewtag.tagging.tables import check_table, record, write_table

FOLDER = "deliveries"
TABLES = ("csv", "jsonl", "parquet")
_SAMPLE = 20


class CancelledError(InputError):
    """A person stopped it; nothing was written."""


def deliver(
    project: Project,
    rows: Iterable[Tagged],
    labels: tuple[str, ...],
    format: str,  # noqa: A002
    *,
    scores: bool,
    dry_run: bool,
    total: int,
    progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Delivery:
    """Writes a table into the project's folder of deliveries; a dry run goes the same way but for the file."""
    if format not in TABLES:
        raise InputError(f"there is no format {format!r}; {nearest(format, TABLES)}")
    folder = project.folder / FOLDER
    out = _free_name(folder, format)
    check_table(out, labels, scores=scores)
    kept = labels if scores else None
    before = _delivered(project, format)
    now: dict[str, str] = {}
    sample: list[Mapping[str, Any]] = []

    def told() -> Iterator[Tagged]:
        for done, row in enumerate(rows, 1):
            if cancelled():
                raise CancelledError("the delivery was stopped; nothing was written, start it again")
            facts = record(row, kept)
            now[row.image] = digest(json.dumps(facts, sort_keys=True))[:16]
            if before.get(row.image) != now[row.image] and len(sample) < _SAMPLE:
                sample.append(facts)
            if done % 64 == 0 or done == total:
                progress(done, total)
            yield row

    if dry_run:
        for _ in told():
            pass
    else:
        make_folder(folder)
        write_table(out, told(), kept)
        _remember(project, format, now)
    changes = sum(before.get(image) != state for image, state in now.items()) + len(before.keys() - now.keys())
    return Delivery(format, dry_run, len(now), changes, tuple(sample), None if dry_run else out.name)


def find(project: Project, name: str) -> Path:
    """A delivery by its name, which is no path."""
    folder = project.folder / FOLDER
    known = {path.name: path for path in folder.iterdir() if path.is_file()} if folder.is_dir() else {}
    if name not in known:
        raise UnknownError(f"there is no delivery {name[:64]!r}; deliver again")
    return known[name]


def _free_name(folder: Path, ending: str) -> Path:
    stem, number = f"tags-{time.strftime('%Y-%m-%d-%H%M%S')}", 1
    path = folder / f"{stem}.{ending}"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.{ending}"
    return path


def _delivered(project: Project, format: str) -> dict[str, str]:  # noqa: A002
    query = "SELECT image, row FROM delivered WHERE format = ?"
    return dict(project.read(lambda reader: reader.execute(query, (format,)).fetchall()))


def _remember(project: Project, format: str, rows: Mapping[str, str]) -> None:  # noqa: A002
    def replace(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM delivered WHERE format = ?", (format,))
        connection.executemany(
            "INSERT INTO delivered VALUES (?, ?, ?)", [(format, image, state) for image, state in rows.items()]
        )

    project.write(replace)
