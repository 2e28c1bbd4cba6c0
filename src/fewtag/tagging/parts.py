"""Parts and their manifest: what a run is about, which shards are finished, each part written whole or not at all."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from fewtag.errors import InputError
from fewtag.files import digest
from fewtag.tagger.stream import Tagged
from fewtag.tagging.locations import Folder
from fewtag.tagging.sources import Shard
from fewtag.tagging.tables import Labels, arrow_table, json_line, record

# Arrow and Spark take what begins with "_" for notes, not for a part of the table
MANIFEST = "_fewtag.json"
_NOTE = b"fewtag"
_AT_ONCE = 16
_SHOWN = {
    "fewtag": "another version of fewtag",
    "bank": "another bank",
    "source": "another SOURCE",
    "scores": "another --scores",
    "threshold": "another --threshold",
    "shard": "another --shard",
}
Ending = Literal["jsonl", "parquet"]


@dataclass(frozen=True)
class Counts:
    """Of a finished shard."""

    tagged: int
    failed: int
    cached: int = 0


class Parts:
    """A folder of parts, one a shard: JSON lines, to be joined to a table, or Parquet, which is the table."""

    def __init__(self, folder: str, ending: Ending) -> None:
        self.folder, self.ending = Folder(folder), ending

    def name(self, number: int) -> str:
        return f"part-{number:05d}.{self.ending}"

    def manifest(self) -> dict[str, Any] | None:
        """What the run in this folder is about; None where nothing was begun."""
        names = self.folder.names()
        if MANIFEST not in names:
            if others := {name for name in names if not name.endswith(".part")}:
                raise InputError(f"{self.folder.location} holds other files, such as {min(others)}; name a new folder")
            return None
        try:
            manifest = json.loads(self.folder.read(MANIFEST))
            int(manifest["shard"])
        except (ValueError, OSError, LookupError, TypeError) as error:
            where = f"{self.folder.location}/{MANIFEST}"
            raise InputError(f"{where} is damaged; delete {self.folder.location} to begin anew") from error
        return manifest

    def begin(self, about: Mapping[str, Any]) -> None:
        self.folder.write(MANIFEST, json.dumps(about, indent=2).encode())

    def finished(self, shards: Sequence[Shard]) -> dict[int, Counts]:
        """Those whose part is there, of the same pictures; what else lies there is out of date and removed."""
        names = self.folder.names()
        there = [shard for shard in shards if self.name(shard.number) in names]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip([shard.number for shard in there], pool.map(self._counts, there), strict=True))
        done = {number: counts for number, counts in found.items() if counts is not None}
        for stale in names - {self.name(number) for number in done} - {MANIFEST}:
            self.folder.remove(stale)
        return done

    def write(self, shard: Shard, rows: Sequence[Tagged], labels: Labels) -> Counts:
        """A shard is finished once its part is there."""
        good = [row for row in rows if not row.failure]
        counts = Counts(len(good), len(rows) - len(good), sum(row.cached for row in good))
        note = {"digest": shard.digest, "tagged": counts.tagged, "failed": counts.failed}
        content = _jsonl(rows, note, labels) if self.ending == "jsonl" else _parquet(rows, good, note, labels)
        self.folder.write(self.name(shard.number), content)
        return counts

    def rows(self, numbers: Sequence[int]) -> Iterator[Tagged]:
        """Of these parts, in their order, failures too; a part at a time in memory."""
        for number in numbers:
            yield from self._rows(self.folder.read(self.name(number)))

    def failures(self, numbers: Sequence[int]) -> Iterator[Tagged]:
        """Of these parts alone."""
        if self.ending == "jsonl":
            yield from (row for row in self.rows(numbers) if row.failure)
            return
        for number in numbers:
            for image, why in self._note(number)["failures"]:
                yield Tagged(image, failure=why)

    def remove(self) -> None:
        """Parts and manifest, and the folder if nothing else is in it; the manifest last, by which they are ours."""
        ours = {name for name in self.folder.names() if name.startswith("part-") or name.endswith(".part")}
        for name in (*sorted(ours), MANIFEST):
            self.folder.remove(name)
        self.folder.remove_if_empty()

    def _counts(self, shard: Shard) -> Counts | None:
        """None where the part is of other pictures, or damaged."""
        try:
            note = self._note(shard.number)
            same = note["digest"] == shard.digest and note["tagged"] + note["failed"] == len(shard)
            return Counts(int(note["tagged"]), int(note["failed"])) if same else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _note(self, number: int) -> dict[str, Any]:
        """What a part says of itself."""
        content = self.folder.read(self.name(number))
        if self.ending == "jsonl":
            first, _, rows = content.partition(b"\n")
            note: dict[str, Any] = json.loads(first)
            if note["sum"] != digest(rows):
                raise ValueError("rows are missing or damaged")
            return note
        import pyarrow.lib
        import pyarrow.parquet

        try:
            note = json.loads(pyarrow.parquet.read_metadata(io.BytesIO(content)).metadata[_NOTE])
        except pyarrow.lib.ArrowException as error:
            raise ValueError(str(error)) from error
        if len(note["failures"]) != note["failed"]:
            raise ValueError("failures are missing")
        return note

    def _rows(self, content: bytes) -> Iterator[Tagged]:
        if self.ending == "jsonl":
            facts = [json.loads(line) for line in content.decode().split("\n")[1:] if line]
        else:
            import pyarrow.parquet

            facts = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
        for row in facts:
            tags, scores = tuple(row.get("tags", ())), row.get("scores") or {}
            yield Tagged(row["image"], tags, scores, row.get("failure", ""))


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], out: str) -> None:
    """Refuses to go on with what another command began, and says what differs."""
    differs = [key for key in _SHOWN if before.get(key) != now.get(key)]
    if differs:
        was = ", ".join(f"{_SHOWN[key]}{_values(before.get(key), now.get(key), key)}" for key in differs)
        raise InputError(f"--out {out} was begun with {was}; name another --out, or delete this one to begin anew")


def _values(before: object, now: object, key: str) -> str:
    """A digest tells a person nothing."""
    return "" if key == "bank" else f" ({_value(before)}, now {_value(now)})"


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _jsonl(rows: Sequence[Tagged], note: dict[str, Any], labels: Labels) -> bytes:
    lines = []
    for row in rows:
        # a name that is no text is written as Python would
        name = row.image.encode(errors="backslashreplace").decode()
        lines.append(json_line({"image": name, "failure": row.failure} if row.failure else record(row, labels)))
    content = "".join(lines).encode()
    return json.dumps(note | {"sum": digest(content)}).encode() + b"\n" + content


def _parquet(rows: Sequence[Tagged], good: Sequence[Tagged], note: dict[str, Any], labels: Labels) -> bytes:
    import pyarrow.parquet

    failures = [(row.image.encode(errors="backslashreplace").decode(), row.failure) for row in rows if row.failure]
    table = arrow_table(good, labels).replace_schema_metadata({_NOTE: json.dumps(note | {"failures": failures})})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()
