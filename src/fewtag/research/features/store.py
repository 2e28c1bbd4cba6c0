"""Rows kept by content: a picture's bytes and what is made of them name a row, wherever the picture lies.

Several processes may read and append at once. A kill loses no finished row and doubles none: rows are written before
the index tells of them, and what the index does not tell of is written over. Damage is found by a sum over each row.
"""

import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.research.features.room import DESCRIPTION, cache_limit, locked, make_room, taken
from fewtag.research.features.segments import DIGEST_BYTES, RECORD, Segment

SEGMENT_BYTES = 256 * 10**6
_FORMAT = 1
_CHECKED_AT_ONCE = 64
_log = logging.getLogger(__name__)


def address(data: bytes) -> bytes:
    """What a picture is known by: its encoded bytes. SHA-256, which processors have instructions for."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


@dataclass(frozen=True)
class About:
    """What the rows of a space are; `key` stands for all that decides them, `what` says it to people."""

    kind: str
    what: str
    key: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def folder(self) -> str:
        facts = json.dumps([_FORMAT, self.key, self.shape, self.dtype])
        return f"{self.kind}-{hashlib.sha256(facts.encode()).hexdigest()[:20]}"


class Entry(NamedTuple):
    """Where a picture's row is. Whoever holds one can read it, even if the segment was removed since."""

    digest: bytes
    segment: Segment
    slot: int


class Space:
    """A folder of rows of one shape, by the digests of their pictures."""

    def __init__(self, root: Path, about: About) -> None:
        self.root, self.about = root, about
        self.folder = root / about.folder
        self.limit = cache_limit()
        self.dtype = np.dtype(about.dtype)
        self.row_bytes = math.prod(about.shape) * self.dtype.itemsize
        self.damaged = 0
        self._opened = time.time()
        # a limit leaves room for several, so that not all goes at once
        self._segment_rows = max(1, min(SEGMENT_BYTES, self.limit // 8) // self.row_bytes)
        self._segments: dict[str, Segment] = {}
        self._entries: dict[bytes, Entry] = {}
        self._lock = threading.RLock()  # threads may read while one appends
        self.refresh()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: bytes) -> Entry | None:
        """Where the row is, as far as this process knows."""
        return self._entries.get(digest)

    def refresh(self) -> None:
        """Learns what others appended, and forgets the segments that they removed."""
        names = sorted(path.name for path in self.folder.glob("*.rows"))
        with self._lock:
            for name in self._segments.keys() - set(names):
                self._forget(name)
            for name in names:
                news = self._news(name)
                if news is None:
                    self._forget(name)
                    news = self._news(name)
                for slot, digest in news or ():
                    self._entries[digest] = Entry(digest, self._segments[name], slot)

    def get(self, digest: bytes) -> np.ndarray | None:
        """One row, if it is there and sound."""
        values, missing = self.read([self.find(digest)])
        return None if missing else values[0]

    def read(self, entries: Sequence[Entry | None], *, used: bool = True) -> tuple[np.ndarray, list[int]]:
        """The rows in this order, and the places in it of those that are not there or damaged."""
        values = np.empty((len(entries), self.row_bytes), np.uint8)
        missing = []
        for number, entry in enumerate(entries):
            if entry is None:
                missing.append(number)
            elif not entry.segment.read(entry.slot, values[number]):
                self._drop(entry)
                missing.append(number)
        for segment in {entry.segment for entry in entries if entry is not None}:
            segment.release(used=used)
        return values.view(self.dtype).reshape(len(entries), *self.about.shape), missing

    def append(self, digests: Sequence[bytes], values: np.ndarray) -> list[Entry | None]:
        """Keeps the rows that nobody else was faster to append; where each one is now, if nobody removed it."""
        assert values.shape == (len(digests), *self.about.shape), "a row of this space for each digest"
        rows = np.ascontiguousarray(values, self.dtype).reshape(len(digests), -1).view(np.uint8)
        try:
            with locked(self.folder):
                self._describe()
                self.refresh()
                fresh = {digest: row for row, digest in enumerate(digests) if digest not in self._entries}
                self._write(list(fresh), rows[list(fresh.values())])
                found = [self.find(digest) for digest in digests]
            make_room(self.root, self.limit)
        except OSError as error:
            raise InputError(
                f"cannot write to the cache {self.folder}: {error.strerror}; free some room there, name another "
                "--cache or tag with --no-cache (what is finished is kept)"
            ) from error
        return found

    def has_room(self, rows: int) -> bool:
        """Whether so many more fit, once what nobody used since this space was opened has gone.

        Who goes over more pictures than fit would otherwise remove each row just before it is asked for again.
        """
        wanted = self.limit - rows * (self.row_bytes + RECORD.itemsize)
        make_room(self.root, wanted, unused_since=self._opened)
        return taken(self.root) <= wanted

    def check(self, advance: Callable[[int], None] = lambda _: None) -> int:
        """Reads every row and strikes out the damaged ones; how many they were."""
        before = self.damaged
        entries = list(self._entries.values())
        for start in range(0, len(entries), _CHECKED_AT_ONCE):
            batch = entries[start : start + _CHECKED_AT_ONCE]
            self.read(batch, used=False)
            advance(len(batch))
        return self.damaged - before

    def _write(self, digests: Sequence[bytes], rows: np.ndarray) -> None:
        while digests:
            newest = max(self._segments, default="")
            if not newest or len(self._segments[newest]) >= self._segment_rows:
                # never a name that was in use before: somebody may still have that file open
                number = max(time.time_ns(), int(Path(newest).stem or 0) + 1)
                newest = f"{number:020}.rows"
                (self.folder / newest).touch()
                self._segments[newest] = Segment(self.folder / newest, self.row_bytes)
            segment = self._segments[newest]
            room = self._segment_rows - len(segment)
            segment.append(digests[:room], rows[:room])
            digests, rows = digests[room:], rows[room:]
            self.refresh()

    def _news(self, name: str) -> list[tuple[int, bytes]] | None:
        if name not in self._segments:
            try:
                self._segments[name] = Segment(self.folder / name, self.row_bytes)
            except FileNotFoundError:  # removed this moment
                return []
        return self._segments[name].news()

    def _forget(self, name: str) -> None:
        segment = self._segments.pop(name)
        self._entries = {digest: entry for digest, entry in self._entries.items() if entry.segment is not segment}

    def _drop(self, entry: Entry) -> None:
        with self._lock:
            if not self.damaged:
                _log.warning(
                    "the cache %s has damaged rows, which are left out and made again when they are needed", self.folder
                )
            self.damaged += 1
            entry.segment.drop(entry.slot, entry.digest)
            if self._entries.get(entry.digest) == entry:
                del self._entries[entry.digest]

    def _describe(self) -> None:
        facts = json.dumps(asdict(self.about)).encode()
        path = self.folder / DESCRIPTION
        if not path.exists() or path.read_bytes() != facts:
            write_atomically(path, facts)


def open_space(folder: Path) -> Space | None:
    """A space by its folder; None where its description is damaged."""
    try:
        facts: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text())
        space = Space(folder.parent, About(**facts | {"shape": tuple(facts["shape"])}))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return space if space.folder == folder else None
