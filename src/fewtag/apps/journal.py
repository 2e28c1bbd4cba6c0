"""What a tagging run has finished, safe on disk line by line, so that a killed run goes on where it stopped."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from fewtag.apps.tables import Tagged
from fewtag.errors import InputError
from fewtag.files import make_folder

Stamp = tuple[int, int] | None
"""A file's size and time of change: a picture that was replaced since is tagged again."""
SYNC_EVERY = 1.0
"""Seconds of work that a power cut may cost, where pictures come faster than the disk can vouch for them."""


class _Place(NamedTuple):
    offset: int
    stamp: Stamp
    failed: bool


class Journal:
    """Lines of JSON: first what the run is about, then a line a picture. Of another run it begins anew."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self._places: dict[str, _Place] = {}
        self._synced = -SYNC_EVERY
        make_folder(path.parent)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another fewtag is tagging to the same place ({path}); wait for it, or name another --out"
            ) from error
        except OSError as error:
            raise self._cannot_write(error) from error
        self._end = self._read(about)
        self._append([about] if self._end == 0 else [])

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def holds(self, image: str, stamp: Stamp) -> bool:
        """Whether this very picture is finished."""
        return image in self._places and self._places[image].stamp == stamp

    def add(self, rows: Sequence[Tagged], stamps: Sequence[Stamp]) -> None:
        """Returns once the rows would survive a kill; a power cut, all but the last second's."""
        lines = [vars(row) | {"stamp": stamp} for row, stamp in zip(rows, stamps, strict=True)]
        offsets = self._append(lines)
        for row, offset, stamp in zip(rows, offsets, stamps, strict=True):
            self._places[row.image] = _Place(offset, stamp, row.failure is not None)

    def failed(self, image: str) -> bool:
        return self._places[image].failed

    def read(self, image: str) -> Tagged:
        """A finished picture's row, from the disk."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(self._places[image].offset)
            row = json.loads(file.readline())
        del row["stamp"]
        return Tagged(**row)

    def remove(self) -> None:
        """When the table is written."""
        self.path.unlink(missing_ok=True)

    def _append(self, lines: Sequence[dict[str, Any]]) -> list[int]:
        """Where each line begins."""
        offsets, content = [], bytearray()
        for line in lines:
            offsets.append(self._end + len(content))
            content += json.dumps(line).encode() + b"\n"
        try:
            # at the end of what is whole: what a full disk tore before is written over
            if os.pwrite(self._file, content, self._end) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if time.monotonic() - self._synced >= SYNC_EVERY:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            raise self._cannot_write(error) from error
        self._end += len(content)
        return offsets

    def _read(self, about: dict[str, Any]) -> int:
        """Indexes the finished pictures; the length of what is whole and of this run."""
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for line in file:
                found = _parse(line)
                if found is None or (end == 0 and found != about):
                    break  # torn by a kill, or another run's
                if end > 0:
                    stamp = None if found["stamp"] is None else (found["stamp"][0], found["stamp"][1])
                    self._places[found["image"]] = _Place(end, stamp, found["failure"] is not None)
                end += len(line)
        os.ftruncate(self._file, end)
        return end

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write {self.path}: {error.strerror}; free some room or name another --out "
            "(what is finished is kept)"
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
