"""The folder of Parquet shards: what the run is about, what is finished, each part written whole or not at all."""

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag.apps.bulk.locations import file_system, join, local_path, reason
from fewtag.apps.bulk.sources import Shard
from fewtag.apps.tables import Tagged
from fewtag.errors import InputError
from fewtag.files import make_folder

if TYPE_CHECKING:
    import pyarrow

# Arrow and Spark take what begins with "_" for notes, not for a part of the table
MANIFEST = "_fewtag.json"
_NOTE = b"fewtag"
_FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class Counts:
    """Of a finished shard."""

    tagged: int
    failed: int


def part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def failures_of(out: str) -> str:
    """The folder of failures beside a folder of shards."""
    return f"{out.rstrip('/')}.failures"


class Output:
    """A folder of shards, here or wherever fsspec writes, and its folder of failures."""

    def __init__(self, out: str) -> None:
        self.out = out.rstrip("/") or out

    def manifest(self) -> dict[str, Any] | None:
        """What the run in this folder is about; None where nothing was begun."""
        names = self._names(self.out)
        if MANIFEST not in names:
            if names:
                raise InputError(f"--out {self.out} holds other files, such as {min(names)}; name a new folder")
            return None
        try:
            return json.loads(self._read(self.out, MANIFEST))
        except (ValueError, OSError) as error:
            raise InputError(f"{join(self.out, MANIFEST)} is damaged; delete {self.out} to begin anew") from error

    def begin(self, about: Mapping[str, Any]) -> None:
        self._write(self.out, MANIFEST, json.dumps(about, indent=2).encode())

    def finished(self, shards: Sequence[Shard]) -> dict[int, Counts]:
        """Those whose part is there, of the same pictures; what else lies there is out of date and removed."""
        parts, failures = self._names(self.out), self._names(failures_of(self.out))
        there = [shard for shard in shards if part_name(shard.number) in parts]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            counts = dict(zip([shard.number for shard in there], pool.map(self._counts, there), strict=True))
        done = {
            number: found
            for number, found in counts.items()
            if found is not None and (part_name(number) in failures or not found.failed)
        }
        kept = {part_name(number) for number in done}
        failed = {part_name(number) for number, found in done.items() if found.failed}
        for folder, stale in ((self.out, parts - kept - {MANIFEST}), (failures_of(self.out), failures - failed)):
            for name in stale:
                self._remove(folder, name)
        return done

    def write(self, shard: Shard, table: "pyarrow.Table", failures: Sequence[Tagged]) -> Counts:
        """The failures first: a shard is finished once its part is there."""
        import pyarrow

        if failures:
            # a name that is no text is written as Python would
            names = [row.image.encode(errors="backslashreplace").decode() for row in failures]
            listed = pyarrow.table({"image": names, "reason": [row.failure for row in failures]})
            self._write(failures_of(self.out), part_name(shard.number), _parquet(listed))
        counts = Counts(table.num_rows, len(failures))
        note = json.dumps({"digest": shard.digest, "tagged": counts.tagged, "failed": counts.failed})
        self._write(self.out, part_name(shard.number), _parquet(table.replace_schema_metadata({_NOTE: note})))
        return counts

    def _counts(self, shard: Shard) -> Counts | None:
        """None where the part is of other pictures, or damaged."""
        import pyarrow.lib
        import pyarrow.parquet

        system, path = file_system(join(self.out, part_name(shard.number)))
        try:
            with system.open(path, "rb") as stream:
                note = json.loads(pyarrow.parquet.read_metadata(stream).metadata[_NOTE])
        except (OSError, ValueError, KeyError, TypeError, pyarrow.lib.ArrowException):
            return None
        return Counts(note["tagged"], note["failed"]) if note["digest"] == shard.digest else None

    def _names(self, folder: str) -> set[str]:
        system, path = file_system(folder)
        system.invalidate_cache()
        try:
            if system.isfile(path):
                raise InputError(f"--out {folder} is a file; name a folder, for the Parquet shards of --engine ray")
            return {str(name).rstrip("/").rsplit("/", 1)[1] for name in system.ls(path, detail=False)}
        except FileNotFoundError:
            return set()
        except (OSError, NotImplementedError) as error:
            raise InputError(f"cannot read the folder {folder}: {reason(error)}; check --out") from error

    def _read(self, folder: str, name: str) -> bytes:
        system, path = file_system(join(folder, name))
        return system.cat_file(path)

    def _remove(self, folder: str, name: str) -> None:
        system, path = file_system(join(folder, name))
        system.rm(path, recursive=False)

    def _write(self, folder: str, name: str, content: bytes) -> None:
        """Here under a name that readers pass over, then renamed; elsewhere a file appears once it is complete."""
        path = local_path(folder)
        try:
            if path is None:
                system, target = file_system(join(folder, name))
                system.pipe_file(target, content)
                return
            make_folder(Path(path))
            part = Path(path) / f"_{name}.{uuid.uuid4().hex}.part"
            try:
                part.write_bytes(content)
                part.replace(Path(path) / name)
            finally:
                part.unlink(missing_ok=True)
        except (OSError, NotImplementedError) as error:
            raise InputError(
                f"cannot write {join(folder, name)}: {reason(error)}; name another --out or free some room"
            ) from error


def _parquet(table: "pyarrow.Table") -> bytes:
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()
