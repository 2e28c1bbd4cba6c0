"""Delivery: the project's tags as tables, data sets of other programs, a graph or XMP sidecars.

A dry run reports what would be written, and what of it is new.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewtag.errors import InputError, MissingError, nearest
from fewtag.files import digest, make_folder
from fewtag.interop.datasets import FORMS, Set, write_set
from fewtag.interop.write import Change, Options, Report, undo, write_tags
from fewtag.interop.xmp import Packet, Wanted
from fewtag.studio.project import DELIVERIES, Project
from fewtag.studio.values import Delivery, Progress
from fewtag.tagger.export import export
from fewtag.tagger.stream import Tagged
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.tables import check_table, record, write_table

TABLES = ("csv", "jsonl", "parquet")
FORMATS = (*TABLES, "xmp", *FORMS, "onnx")
_SAMPLE = 20
_naming, _named = threading.Lock(), set[Path]()
"""The paths of this run's deliveries: two that begin in the same second must not write the same file."""


def deliver(
    project: Project,
    rows: Iterable[Tagged],
    labels: tuple[str, ...],
    format: str,  # noqa: A002
    *,
    scores: bool,
    dry_run: bool,
    paths: Mapping[str, Path],
    progress: Progress,
) -> Delivery:
    """Writes a table or a data set to the project's folder of deliveries; a dry run does the same without writing.

    `paths` are those of the pictures, by their names in the rows.
    """
    if format not in (*TABLES, *FORMS):
        raise InputError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
    folder = project.folder / DELIVERIES
    total, out = len(paths), _free_name(folder, format, dry_run=dry_run)
    if format in TABLES:
        check_table(out, labels, scores=scores)
    kept = labels if scores else None
    before: dict[str, str] = dict(project.select("SELECT image, row FROM delivered WHERE format = ?", format))
    now: dict[str, str] = {}
    tagged: list[Mapping[str, Any]] = []
    untagged: list[Mapping[str, Any]] = []

    def told() -> Iterator[Tagged]:
        for done, row in enumerate(rows, 1):
            facts = record(row, kept)
            now[row.image] = digest(json.dumps(facts, sort_keys=True))[:16]
            sample = tagged if row.tags else untagged
            if before.get(row.image) != now[row.image] and len(sample) < _SAMPLE:
                sample.append(facts)
            if done % 64 == 0 or done == total:
                progress(done, total)
            yield row if scores else replace(row, scores={})

    if dry_run:
        for _ in told():
            pass
    else:
        make_folder(folder)
        if format in TABLES:
            write_table(out, told(), kept)
        else:
            write_set(Set(list(told()), project.folder, paths=paths), out, format)
        with project.writing() as connection:
            connection.execute("DELETE FROM delivered WHERE format = ?", (format,))
            added = [(format, image, state) for image, state in now.items()]
            connection.executemany("INSERT INTO delivered VALUES (?, ?, ?)", added)
    changes = sum(before.get(image) != state for image, state in now.items()) + len(before.keys() - now.keys())
    sample = (*tagged, *untagged)[:_SAMPLE]
    return Delivery(format, dry_run, len(now), changes, sample, None if dry_run else out.name)


def write_graph(project: Project, tagger: Tagger, *, dry_run: bool) -> Delivery:
    """Writes the bank as an ONNX graph and its labels, to tag without fewtag, to a folder of its own."""
    labels = tuple({"label": label, "examples": count} for label, count in tagger.counts_.items())
    out = _free_name(project.folder / DELIVERIES, "onnx", dry_run=dry_run)
    if not labels:
        raise InputError("there is no label yet, and without one nothing to tag by; teach one first")
    if not dry_run:
        export(tagger, out)
    name = None if dry_run else out.name
    return Delivery("onnx", dry_run, len(labels), len(labels), labels[:_SAMPLE], name)


def write_sidecars(
    folders: Mapping[Path, Sequence[tuple[Tagged, Path]]],
    labels: Sequence[str],
    names_ever: Iterable[str],
    *,
    dry_run: bool,
    progress: Progress,
) -> Delivery:
    """Writes sidecars beside each folder's pictures; tags of fewtag's that no longer apply are removed."""
    wanted = Wanted.among(labels, names_ever)

    def write(root: Path, options: Options) -> Report:
        rows = [(row.image, path, wanted(row.tags)) for row, path in folders[root]]
        return write_tags(root, rows, len(rows), options)

    return _carried_out(folders, write, dry_run, progress)


def take_back(folders: Sequence[Path], *, dry_run: bool, progress: Progress) -> Delivery:
    """Removes whatever fewtag wrote to sidecars below these folders, to the byte."""
    return _carried_out(dict.fromkeys(folders, ()), undo, dry_run, progress)


def _carried_out(
    folders: Mapping[Path, Sequence[object]],
    work: Callable[[Path, Options], Report],
    dry_run: bool,
    progress: Progress,
) -> Delivery:
    sample: list[Mapping[str, Any]] = []
    done, total = 0, sum(map(len, folders.values()))

    def tell(change: Change) -> None:
        if (change.changes or change.failure) and len(sample) < _SAMPLE:
            shown: dict[str, Any] = {"image": change.image, "file": change.path.name}
            if change.failure:
                shown["failure"] = change.failure
            else:
                before, after = _written(change.before), _written(change.after)
                shown |= {"added": sorted(after - before), "removed": sorted(before - after), "diff": change.diff()}
            sample.append(shown)

    def begin(_task: str, _count: int) -> Callable[[int], None]:
        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, max(total, done))

        return advance

    options = Options(dry_run=dry_run, tell=tell, begin=begin)
    reports = [work(root, options) for root in folders]
    return Delivery(
        "xmp",
        dry_run,
        sum(report.pictures for report in reports),
        sum(report.written + report.removed for report in reports),
        tuple(sample),
        failures=sum(len(report.failures) for report in reports),
    )


def _written(packet: bytes | None) -> set[str]:
    """The labels that fewtag wrote into a packet."""
    ledger = None if packet is None else Packet(packet, "the sidecar").ledger
    return set() if ledger is None else set(ledger.labels)


def find(project: Project, name: str) -> Path:
    """A delivery by its name, which must not be a path."""
    folder = project.folder / DELIVERIES
    known = {path.name: path for path in folder.iterdir() if path.is_file()} if folder.is_dir() else {}
    if name not in known:
        raise MissingError(f"there is no delivery {name[:64]!r}; deliver again")
    return known[name]


def _free_name(folder: Path, format: str, *, dry_run: bool) -> Path:  # noqa: A002
    """A path for a new delivery, reserved unless it is a dry run: a file for a table, a folder for anything else."""
    stem, number = f"tags-{time.strftime('%Y-%m-%d-%H%M%S')}", 1
    ending = f".{format}" if format in TABLES else f"-{format}"
    path = folder / f"{stem}{ending}"
    with _naming:
        while path in _named or path.exists():
            number += 1
            path = folder / f"{stem}-{number}{ending}"
        if not dry_run:
            _named.add(path)
    return path
