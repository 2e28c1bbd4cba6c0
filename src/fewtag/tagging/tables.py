"""Tables of tags, and the parts that they are assembled from: one per finished shard, each written atomically."""

import csv
import hashlib
import io
import json
import os
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fewtag.errors import InputError, import_extra
from fewtag.files import digest, locked, replacing, write_atomically
from fewtag.pictures.files import as_text
from fewtag.pictures.tables import NOT, OURS, SEPARATOR
from fewtag.tagger.stream import Item, Tagged
from fewtag.tagging import parquet, sources
from fewtag.tagging.parquet import Labels
from fewtag.tagging.sources import Shard, Source, absolute, local_path

# Arrow and Spark ignore files whose names begin with "_"
MANIFEST = "_fewtag.json"
# a part, or a temporary file that a killed process left behind
_OURS = re.compile(r"part-\d{5,}\.(jsonl|parquet)|(part-\d{5,}\.(jsonl|parquet)|_fewtag\.json)\.[0-9a-f]+\.part")
_AT_ONCE = 16
_SHOWN = {"fewtag": "version of fewtag", "bank": "bank", "source": "source", "scores": "--scores"}
_SHOWN |= {"threshold": "--threshold", "prior": "--prior", "shard": "--shard"}
Ending = Literal["jsonl", "parquet"]
_TABLES = (".csv", ".jsonl", ".parquet")
# JSON does not escape these, but str.splitlines() treats them as line ends
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Initial characters by which spreadsheets take a cell for a formula."""


@dataclass(frozen=True)
class Counts:
    """How many pictures of a finished shard were tagged, failed, or came from the cache."""

    tagged: int
    failed: int
    cached: int = 0


class Parts:
    """A folder of parts, one per shard: JSON lines, to be joined into a table, or Parquet, which is the table."""

    def __init__(self, folder: str, ending: Ending) -> None:
        self.folder, self.ending = folder.rstrip("/") or folder, ending

    def name(self, number: int) -> str:
        return f"part-{number:05d}.{self.ending}"

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of the run in this folder; None if none was started."""
        names = names_in(self.folder)
        if MANIFEST not in names:
            if others := {name for name in names if not name.endswith(".part")}:
                raise InputError(f"{self.folder} holds other files, such as {min(others)}; name a new folder")
            return None
        where = f"{self.folder}/{MANIFEST}"
        try:
            manifest = json.loads(read_file(where))
            int(manifest["shard"])
        except (ValueError, OSError, LookupError, TypeError, RecursionError) as error:
            raise InputError(f"{where} is damaged; delete {self.folder} to begin anew") from error
        return manifest

    def begun(self, about: Mapping[str, Any], shard: int | None) -> dict[str, Any] | None:
        """The manifest, if this run was started here before; an unfinished table of another run is discarded."""
        before = self.manifest()
        if before is None:
            return None
        now = {**about, "shard": shard or before["shard"]}
        if self.ending == "jsonl" and any(before.get(key) != now[key] for key in now):
            self.remove()
            return None
        check_same(before, now, self.folder)
        return before

    def begin(self, about: Mapping[str, Any]) -> None:
        write_file(f"{self.folder}/{MANIFEST}", json.dumps(about, indent=2).encode())

    def finished(self, shards: Sequence[Shard]) -> dict[int, Counts]:
        """Shards whose part exists and holds the same pictures; outdated parts are removed, other files are not."""
        names = names_in(self.folder)
        there = [shard for shard in shards if self.name(shard.number) in names]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip([shard.number for shard in there], pool.map(self._counts, there), strict=True))
        done = {number: counts for number, counts in found.items() if counts is not None}
        for stale in filter(_OURS.fullmatch, names - {self.name(number) for number in done}):
            remove_file(f"{self.folder}/{stale}")
        return done

    def write(self, shard: Shard, rows: Sequence[Tagged], labels: Labels) -> Counts:
        """Writes a shard's part, whose existence marks the shard as finished."""
        good = [row for row in rows if not row.failure]
        counts = Counts(len(good), len(rows) - len(good), sum(row.cached for row in good))
        note = {"digest": shard.digest, "tagged": counts.tagged, "failed": counts.failed}
        note["failures"] = [(place, as_text(row.image), row.failure) for place, row in enumerate(rows) if row.failure]
        records = (record(row, labels) for row in good)
        if self.ending == "jsonl":
            lines = "".join(map(json_line, records)).encode()
            content = json.dumps(note | {"sum": digest(json.dumps(note), lines)}).encode() + b"\n" + lines
        else:
            buffer = io.BytesIO()
            parquet.write_records(buffer, records, labels, note)
            content = buffer.getvalue()
        # a checksum detects lines lost in a power cut, which are then made again: no need to wait 20 ms for fsync
        write_file(f"{self.folder}/{self.name(shard.number)}", content, sync=self.ending != "jsonl")
        return counts

    def rows(self, numbers: Sequence[int]) -> Iterator[Tagged]:
        """The rows of these parts, in order, including failures; one part at a time in memory."""
        for number in numbers:
            content = read_file(f"{self.folder}/{self.name(number)}")
            if self.ending == "jsonl":
                facts = [json.loads(line) for line in content.decode().split("\n")[1:] if line]
            else:
                facts = parquet.open_part(content).read().to_pylist()
            found = [Tagged(row["image"], tuple(row["tags"]), row.get("scores") or {}) for row in facts]
            for place, image, why in self._note(content)["failures"]:
                found.insert(place, Tagged(image, failure=why))
            yield from found

    def failures(self, numbers: Sequence[int]) -> Iterator[Tagged]:
        """The failures in these parts, which are in their metadata: no row, perhaps damaged, is read."""
        for number in numbers:
            note = self._note(read_file(f"{self.folder}/{self.name(number)}"))
            yield from (Tagged(image, failure=why) for _, image, why in note["failures"])

    def remove(self) -> None:
        """Removes parts and manifest, the latter last, since it marks the folder as ours; and the folder if empty."""
        for name in (*sorted(filter(_OURS.fullmatch, names_in(self.folder))), MANIFEST):
            remove_file(f"{self.folder}/{name}")
        if (path := local_path(self.folder)) is not None:  # object stores have no empty folders
            with suppress(OSError):
                path.rmdir()

    def _counts(self, shard: Shard) -> Counts | None:
        """The counts of a shard's part; None if it holds other pictures, or is damaged."""
        try:
            note = self._note(read_file(f"{self.folder}/{self.name(shard.number)}"))
            same = note["digest"] == shard.digest and note["tagged"] + note["failed"] == shard.size
            return Counts(int(note["tagged"]), int(note["failed"])) if same else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _note(self, content: bytes) -> dict[str, Any]:
        """The metadata of a part; raises ValueError if it is damaged."""
        if self.ending == "parquet":
            note, sound = json.loads(parquet.open_part(content).metadata.metadata[parquet.NOTE]), True
        else:
            first, _, rows = content.partition(b"\n")
            note = json.loads(first)
            sound = note.pop("sum") == digest(json.dumps(note), rows)
        if not sound or len([why for _place, _image, why in note["failures"]]) != note["failed"]:
            raise ValueError("rows or failures are missing or damaged")
        return note


class Output:
    """The output of a run: a table that is joined from parts, or a folder of parts that is the table.

    `begun` is the manifest of an earlier run of the same command, if there was one; `done` are the finished shards, of
    which that run finished `finished_before`; `task` is the text of the progress bar, which mentions them. The labels'
    `priors` are set before the first row, and from then on are those of the manifest, there called `shares`.
    """

    def __init__(self, out: str, table: Path | None, about: dict[str, Any], shard: int | None) -> None:
        self._out, self._table, self._about = out, table, about
        self.parts = Parts(absolute(out), "parquet") if table is None else Parts(f"{absolute(out)}.parts", "jsonl")
        self.done: dict[int, Counts] = {}
        self.finished_before, self.task = 0, "tagging"
        self.begun = self.parts.begun(about, shard)
        self.priors: dict[str, float] = {} if self.begun is None else dict(self.begun.get("shares", {}))

    def missing(self, source: Source, size: int) -> list[Shard]:
        """The unfinished shards, of `size` pictures each unless an earlier run used another size.

        Called once all checks have passed, since it is the first to write: a refused command leaves nothing behind.
        """
        if self.begun is None:
            self.begun = self._about | {"shares": self.priors, "shard": size}
            self.parts.begin(self.begun)
            return source.shards(size)
        shards = source.shards(int(self.begun["shard"]))
        self.done = self.parts.finished(shards)
        self.finished_before = len(self.done)
        if before := sum(counts.tagged + counts.failed for counts in self.done.values()):
            self.task = f"tagging ({before} done before)"
        return [shard for shard in shards if shard.number not in self.done]

    def rows(self, source: Source) -> Iterator[tuple[Item, Tagged]]:
        """Pictures and their rows from the parts, before these are joined; one part at a time in memory."""
        for shard in source.shards(int(self.begun["shard"]) if self.begun else 1):
            yield from zip(shard.items(_AT_ONCE), self.parts.rows([shard.number]), strict=True)

    def finish(self, labels: Sequence[str]) -> None:
        """Writes the list of failures, then the table with a record that marks it as ours; then removes the parts."""
        numbers = sorted(self.done)
        failing = [number for number in numbers if self.done[number].failed]
        failed, where = list(self.parts.failures(failing)), failures_of(self._out)
        if failed:
            write_file(where, failures_csv(failed))
        else:
            remove_file(where)
        if self._table is None:
            return
        # all labels, since `write` takes away one that is no longer given to any picture
        given = {label: number for number, label in enumerate(labels)}
        out, guesses = self._table, io.StringIO()

        def rows() -> Iterator[Tagged]:
            for row in self.parts.rows(numbers):
                if not row.failure:
                    tags = ".".join(str(given[tag]) for tag in row.tags)
                    guesses.write(f"{picture_mark(row.image)}:{tags} ")
                    yield row

        def note(part: Path) -> None:
            # written before the table is replaced, with both files' digests: a kill in between leaves a known table
            ours = [_sum(path) for path in (part, out) if path.exists()]
            # pictures of several sources are named relative to the working directory
            facts = {**self._about, "cwd": str(Path.cwd()), "shares": self.priors, "tables": ours}
            facts |= {"labels": list(given), "rows": guesses.getvalue()}
            write_atomically(record_of(out), json.dumps(facts, indent=2).encode())

        write_table(out, rows(), labels if self._about["scores"] else None, note)
        self.parts.remove()


@contextmanager
def open_output(
    out: str, labels: Sequence[str], about: dict[str, Any], *, scores: bool, shard: int | None, force: bool
) -> Iterator[Output]:
    """Opens the output: checked before hours of work, locked against other runs, and not somebody else's file."""
    here = local_path(out)
    table = here if here is not None and here.suffix.lower() in _TABLES else None
    if table is not None:
        check_table(table, labels, scores=scores)
    elif out.lower().endswith((".csv", ".jsonl")):
        raise InputError(f"--out {out} is a table behind a URL; name a folder there, for Parquet parts")
    else:
        sources.check_folder(out)
        import_extra("pyarrow.parquet", f"--out {out}, a folder of Parquet parts,", "parquet")
    with nullcontext() if here is None else locked(here, seconds=0.5):
        if table is not None and not force:
            _refuse_other_table(table, about)
        yield Output(out if table is None else str(table), table, about, shard)


def names_in(folder: str) -> set[str]:
    """The names of the files in a folder, here or behind a URL; empty if there is no folder."""
    here = local_path(folder)
    try:
        if here is not None:
            if here.is_file():
                raise InputError(f"{folder} is a file; name a folder")
            return {entry.name for entry in os.scandir(here)}
        system, path = sources.file_system(folder)
        system.invalidate_cache()
        if system.isfile(path):
            raise InputError(f"{folder} is a file; name a folder")
        return {str(name).rstrip("/").rsplit("/", 1)[1] for name in system.ls(path, detail=False)}
    except FileNotFoundError:
        return set()
    except (OSError, NotImplementedError) as error:
        raise InputError(f"cannot read the folder {folder}: {sources.reason(error)}; check it") from error


def read_file(location: str) -> bytes:
    if (here := local_path(location)) is not None:
        return here.read_bytes()
    system, path = sources.file_system(location)
    return system.cat_file(path)


def write_file(location: str, content: bytes, *, sync: bool = True) -> None:
    """Writes a file atomically: behind a URL under a temporary name first, since a store may keep a partial upload."""
    if (here := local_path(location)) is not None:
        write_atomically(here, content, sync=sync)
        return
    system, path = sources.file_system(location)
    part = f"{path}.{uuid.uuid4().hex[:8]}.part"
    try:
        system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        system.pipe_file(part, content)
        system.mv(part, path)
    except Exception as error:  # each file system raises its own
        raise InputError(f"cannot write {location}: {sources.reason(error)}; check --out") from error


def remove_file(location: str) -> None:
    """Removes a file if it exists."""
    here = local_path(location)
    try:
        if here is not None:
            here.unlink(missing_ok=True)
        else:
            system, path = sources.file_system(location)
            try:
                system.rm_file(path)
            except Exception:  # each file system raises its own
                if system.exists(path):
                    raise
    except Exception as error:  # a folder of that name, a table that Excel has open
        raise InputError(f"cannot remove {location}: {sources.reason(error)}; move it away") from error


def failures_of(out: str) -> str:
    """The path of the list of pictures that could not be read."""
    return f"{out.rstrip('/')}.failures.csv"


def record_of(out: Path) -> Path:
    """The path of a finished table's record: the bank and folder that it came from, and the rows as written."""
    return out.with_name(f"{out.name}.run.json")


def read_record(table: Path) -> dict[str, Any]:
    """The record of a table; empty if no run of ours wrote the table, or the record is damaged."""
    try:
        record = json.loads(record_of(table).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def picture_name(image: str) -> str:
    """A picture's path from a table's cell, normalised."""
    return PurePosixPath(image.replace("\\", "/")).as_posix()


def picture_mark(image: str) -> str:
    """A short digest of a picture's name, the same however its accents are spelt."""
    return digest(unicodedata.normalize("NFC", picture_name(image)))[:12]


def _refuse_other_table(out: Path, about: Mapping[str, Any]) -> None:
    """Refuses to replace a table of other pictures, one that somebody edited, or one that no run of ours wrote."""
    if not out.exists():
        return
    record = read_record(out)
    ours, source = record.get("tables"), record.get("source")
    if not isinstance(ours, list) or _sum(out) not in ours:
        raise InputError(f"--out {out} exists and is not what fewtag wrote there; name another, or give --force")
    if source != about["source"]:
        raise InputError(f"--out {out} is the table of another run, of {_shown(source)}; name another, or give --force")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], out: str) -> None:
    """Refuses to resume what another command began, and says what differs."""
    differs = [key for key in _SHOWN if before.get(key) != now.get(key)]
    if differs:
        values = {key: f" ({_shown(before.get(key))}, now {_shown(now.get(key))})" for key in differs if key != "bank"}
        was = ", ".join(f"another {_SHOWN[key]}{values.get(key, '')}" for key in differs)
        raise InputError(f"--out {out} was begun with {was}; name another --out, or delete this one to begin anew")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def check_table(out: Path, labels: Sequence[str], *, scores: bool) -> None:
    """Refuses a table that could not be written, or labels that could not be told apart in it."""
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it, such as {out / 'tags.csv'}")
    if out.suffix.lower() == ".parquet":
        import_extra("pyarrow.parquet", str(out), "parquet")
    if out.suffix.lower() != ".csv":
        return
    for label in labels:
        if SEPARATOR in label:
            raise InputError(f'label {label!r} contains ";", which joins tags in {out}; write .jsonl instead')
        if label.startswith(NOT):
            raise InputError(f'label {label!r} begins with "{NOT}", which means "not" in {out}; write .jsonl instead')
        if scores and label.casefold() in OURS:
            raise InputError(
                f"label {label!r} would be taken for the column of that name in {out}; write .jsonl instead"
            )


def write_table(
    out: Path, rows: Iterable[Tagged], labels: Labels, note: Callable[[Path], None] = lambda _: None
) -> None:
    """Writes the table atomically; rows are consumed one by one, so that they need not fit in memory.

    `note` is called with the finished file before it replaces the table.
    """
    with replacing(out) as part:
        if out.suffix.lower() == ".parquet":
            parquet.write_records(part, (record(row, labels) for row in rows), labels)
        else:
            lines = (json_line(record(row, labels)) for row in rows)
            with part.open("w", encoding="utf-8", newline="") as file:
                file.writelines(_csv_lines(rows, labels or ()) if out.suffix.lower() == ".csv" else lines)
        note(part)


def failures_csv(failed: Iterable[Tagged]) -> bytes:
    """A CSV with the columns image and reason; characters that cannot be encoded are escaped as in Python."""
    lines = [csv_line(["image", "reason"]), *(csv_line([_path_cell(row.image), row.failure]) for row in failed)]
    return "".join(lines).encode(errors="backslashreplace")


def csv_line(cells: Sequence[str]) -> str:
    """A CSV line that ends in a line feed, yet quotes carriage returns too: before Python 3.13 one excludes the other.

    >>> csv_line(["a,b.jpg", 'say "dog"'])
    '"a,b.jpg","say ""dog""\"\\n'
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def record(row: Tagged, labels: Labels) -> dict[str, Any]:
    """A row as it is stored in JSON and Parquet."""
    facts: dict[str, Any] = {"image": row.image, "tags": list(row.tags)}
    return facts if labels is None else facts | {"scores": {label: row.scores[label] for label in labels}}


def json_line(facts: dict[str, Any]) -> str:
    """A JSON object on one line, whatever characters it contains."""
    return json.dumps(facts, ensure_ascii=False).translate(_LINE_ENDS) + "\n"


def _path_cell(name: str) -> str:
    """The same path, in a form that a spreadsheet takes for no formula, and that keeps a leading blank."""
    return f"./{name}" if name.startswith((*_FORMULA, " ")) else name


def _text_cell(text: str) -> str:
    """The same text, in a form that a spreadsheet takes for no formula; readers strip the blank."""
    return f" {text}" if text.startswith(_FORMULA) else text


def _csv_lines(rows: Iterable[Tagged], labels: Sequence[str]) -> Iterator[str]:
    yield csv_line(["image", "tags", *map(_text_cell, labels)])
    for row in rows:
        numbers = [f"{row.scores[label]:.6f}" for label in labels]
        yield csv_line([_path_cell(row.image), _text_cell(SEPARATOR.join(row.tags)), *numbers])
