"""The feature cache: content-addressed, checksummed rows in one SQLite file, with least-recently-used eviction.

Threads and processes share it. Whatever is wrong with it (damage, a full disk, a folder that may only be read) costs a
warning and the work of making rows again: never a wrong number, never the run.
"""

import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fewtag.cache_file import PAGE_BYTES, CacheFile, UnusableError, fetch_one
from fewtag.errors import InputError

FILE = "features.sqlite"
LIMIT_VARIABLE = "FEWTAG_CACHE_LIMIT"
LIMIT = "10GB"
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
PROTECTED_SECONDS = 86_400.0
"""New rows evict none that was used since the cache was opened; in a session that lasts, none used so recently."""
TOUCH_SECONDS = 5.0
"""Times of use are written for many rows at once, so many seconds apart."""

_SCHEMA = (
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, kind TEXT, what TEXT, key TEXT, shape TEXT, dtype TEXT,"
    " row_bytes INTEGER, UNIQUE (kind, key, shape, dtype))",
    "CREATE TABLE rows (id INTEGER PRIMARY KEY, space INTEGER, digest BLOB, used REAL, checksum INTEGER,"
    " UNIQUE (space, digest))",
    "CREATE INDEX rows_by_use ON rows (used)",
    # apart from the times of use, since SQLite writes a whole record anew when one of its columns changes
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, content BLOB)",
)
_APPLICATION, _VERSION = 0x66777467, 1
_WHERE_SPACE = " WHERE kind = ? AND key = ? AND shape = ? AND dtype = ?"
_IN_SPACE = f"space = (SELECT id FROM spaces{_WHERE_SPACE})"
_ROW_OVERHEAD = 100
_AT_ONCE = 256
_log = logging.getLogger(__name__)
Facts = tuple[str, str, str, str]
"""What tells one space from another: kind, key, shape and type."""


def content_digest(data: bytes) -> bytes:
    """What a picture is known by: 16 bytes of the SHA-256 of its encoded bytes."""
    return hashlib.sha256(data).digest()[:16]


def user_cache_folder() -> Path:
    """Where the platform keeps a user's caches, and fewtag's in it."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home: a folder that cannot be made, of which the cache will warn
        home = Path(os.devnull)
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = home / "Library" / "Caches"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return folder / "fewtag"


def cache_limit() -> int:
    """The most bytes that a cache may take."""
    return parse_size(os.environ.get(LIMIT_VARIABLE) or LIMIT, LIMIT_VARIABLE)


def parse_size(text: str, source: str) -> int:
    """Bytes from a number and a unit; `source` is for messages.

    >>> parse_size("5GB", "--prune"), parse_size("0.5 kb", "--prune"), parse_size("700", "--prune")
    (5000000000, 500, 700)
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?B)?", text.strip().upper())
    if found is None:
        raise InputError(f"{source} {text!r} is no size; give a number with a unit, such as 500MB or 10GB")
    return round(float(found[1]) * UNITS[found[2] or "B"])


def format_size(size: int) -> str:
    """For people.

    >>> format_size(12), format_size(3_210_000)
    ('12 B', '3.2 MB')
    """
    unit = next((unit for unit in reversed(UNITS) if size >= UNITS[unit]), "B")
    return f"{size} B" if unit == "B" else f"{size / UNITS[unit]:.1f} {unit}"


class Contents(NamedTuple):
    """What a space holds; `used` is when one of its rows was used last, in seconds since 1970."""

    kind: str
    what: str
    rows: int
    bytes: int
    used: float


class Cache:
    """The feature cache of a folder; opening it reads and writes nothing.

    The limit is on the database file: pages of evicted rows are used again, and go back to the disk where the file is
    over its limit. Of more rows than fit, those are kept that came first: whoever goes over them in turn would
    otherwise lose each one just before asking for it again. The write-ahead log, some 16 MB, comes on top.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.path = folder / FILE
        self.limit = cache_limit() if limit is None else limit
        self._file = CacheFile(self.path, _SCHEMA, application=_APPLICATION, version=_VERSION)
        self._opened, self._touched = time.time(), time.monotonic()
        self._stale: set[int] = set()
        weakref.finalize(self, _close, self._file, self._stale)
        self._readable = self._writable = True
        self._told_of_damage = self._told_of_failure = False

    def __enter__(self) -> "Cache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Writes down which rows were used and closes the connections; the next use opens others."""
        _close(self._file, self._stale)

    def space(self, kind: str, what: str, key: str, shape: Sequence[int], dtype: str) -> "Space":
        """The rows of one kind: `key` stands for all that decides their numbers, `what` says it to people."""
        return Space(self, kind, what, key, tuple(shape), np.dtype(dtype))

    def __len__(self) -> int:
        """How many rows there are, in all spaces."""
        with _refusing(self.path):
            return self._file.read(lambda connection: fetch_one(connection, "SELECT count(*) FROM rows"), 0)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        with _refusing(self.path):
            return self._file.size()

    def contents(self) -> list[Contents]:
        """What each space holds, if it holds any row."""
        query = (
            "SELECT kind, what, count(*), count(*) * row_bytes, max(used) FROM rows JOIN spaces ON spaces.id = space"
            " GROUP BY space ORDER BY kind, what"
        )
        with _refusing(self.path):
            return self._file.read(lambda connection: [Contents(*row) for row in connection.execute(query)], [])

    def prune(self, limit: int) -> int:
        """Evicts the least recently used rows until the file fits; the bytes that went back to the disk."""
        before = self.size
        with _refusing(self.path):
            if self.path.exists():
                self._file.write(lambda connection: _evict(connection, limit, unused_since=math.inf))
                self._file.checkpoint()
        return max(0, before - self.size)

    def clear(self) -> int:
        """Removes the database, or empties it where another process has it open; the bytes that went."""
        before = self.size
        with _refusing(self.path):
            alone = self._file.remove_if_alone()
        return before if alone else self.prune(0)

    def check(self, advance: Callable[[int], None] = lambda _: None) -> int:
        """Reads every row and drops the damaged ones; how many they were. A broken database is begun anew."""
        before = len(self)

        query = (
            "SELECT rows.id, kind, key, shape, dtype, digest, checksum, content, row_bytes FROM rows"
            " LEFT JOIN contents USING (id) LEFT JOIN spaces ON spaces.id = space"
        )

        def damaged(connection: sqlite3.Connection) -> list[int]:
            found = []
            for row, *facts, digest, checksum, content, size in connection.execute(query):
                if None in facts or not _is_sound(tuple(facts), digest, checksum, content, size):
                    found.append(row)
                advance(1)
            if (said := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(said)
            return found

        with _refusing(self.path):
            found = self._file.read(damaged, list[int]())
            if found:
                self._file.write(lambda connection: _delete(connection, found))
        return max(len(found), before - len(self))

    def _read(self, work: Callable[[sqlite3.Connection], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """The rows that `work` finds; none where there is no database, or none that can be read."""
        if not self._readable:
            return []
        try:
            return self._file.read(work, [])
        except UnusableError as reason:
            self._readable = self._writable = False
            self._warn("read", reason)
            return []

    def _write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """In a transaction of its own. After the first failure nothing more is written."""
        if not self._writable:
            return
        try:
            self._file.write(work)
        except UnusableError as reason:
            self._writable = False
            self._warn("written", reason)

    def _warn(self, what: str, reason: UnusableError) -> None:
        if self._told_of_failure:
            return
        self._told_of_failure = True
        _log.warning(
            "the cache %s cannot be %s: %s; nothing more is kept (name another with --cache, or give --no-cache)",
            self.path,
            what,
            reason,
        )

    def _used(self, rows: Sequence[int]) -> None:
        """Remembers that these rows were used, and writes it down for many at once."""
        self._stale.update(rows)
        if self._stale and time.monotonic() - self._touched > TOUCH_SECONDS:
            self._touched = time.monotonic()
            _try_to_write(self._file, lambda connection: _touch(connection, self._stale))

    def _drop(self, rows: Sequence[int]) -> None:
        """Damaged rows."""
        if not self._told_of_damage:
            self._told_of_damage = True
            _log.warning("the cache %s has damaged rows, which are dropped and made again", self.path)
        _try_to_write(self._file, lambda connection: _delete(connection, rows))


@dataclass(frozen=True, eq=False)
class Space:
    """Rows of one shape and type, by the digests of the pictures that they were made of."""

    cache: Cache
    kind: str
    what: str
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return sum(count for (count,) in self._select("count(*)", ""))

    def __contains__(self, digest: bytes) -> bool:
        """Whether there is such a row; that it is sound is known once it is read."""
        return bool(self._select("1", "AND digest = ?", [digest]))

    def get_many(self, digests: Sequence[bytes]) -> list[np.ndarray | None]:
        """The rows in this order, read-only arrays; None for one that is not there or was damaged."""
        found: dict[bytes, np.ndarray] = {}
        used, damaged = [], []
        recently = max(self.cache._opened, time.time() - PROTECTED_SECONDS / 24)
        for some in _chunks(list(dict.fromkeys(digests))):
            columns = f"rows.id, digest, checksum, content, used < {recently!r}"
            for row, digest, checksum, content, is_stale in self._select(columns, _among(some), some):
                if not _is_sound(self._facts, digest, checksum, content, self.row_bytes):
                    damaged.append(row)
                    continue
                found[digest] = np.frombuffer(content, self.dtype).reshape(self.shape)
                if is_stale:
                    used.append(row)
        if damaged:
            self.cache._drop(damaged)
        self.cache._used(used)
        return [found.get(digest) for digest in digests]

    def put_many(self, digests: Sequence[bytes], rows: np.ndarray) -> None:
        """Keeps the rows that are not there yet, as many as fit, in one transaction."""
        assert rows.shape == (len(digests), *self.shape), "a row of this space for each digest"
        if not digests:
            return
        flat = np.ascontiguousarray(rows, self.dtype).reshape(len(digests), -1).view(np.uint8)
        contents = {digest: row.data for digest, row in zip(digests, flat, strict=True)}
        checksums = {digest: _checksum(self._facts, digest, content) for digest, content in contents.items()}

        def insert(connection: sqlite3.Connection) -> None:
            facts = (*self._facts, self.what, self.row_bytes)
            connection.execute(
                "INSERT OR IGNORE INTO spaces (kind, key, shape, dtype, what, row_bytes) VALUES (?, ?, ?, ?, ?, ?)",
                facts,
            )
            fresh = contents.keys() - self._present(connection, list(contents))
            for digest in list(filter(fresh.__contains__, contents))[: self._room(connection, len(fresh))]:
                added = connection.execute(
                    "INSERT INTO rows (digest, checksum, used, space) SELECT ?, ?, ?, id FROM spaces" + _WHERE_SPACE,
                    (digest, checksums[digest], time.time(), *self._facts),
                )
                # in place of what a damaged index may have left behind
                connection.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (added.lastrowid, contents[digest]))

        self.cache._write(insert)

    def clear(self) -> None:
        """Drops all its rows."""
        rows = [row for (row,) in self._select("rows.id", "")]
        if rows:
            self.cache._write(lambda connection: _delete(connection, rows))

    @cached_property
    def _facts(self) -> Facts:
        return self.kind, self.key, json.dumps(self.shape), self.dtype.str

    def _select(self, columns: str, condition: str, parameters: Sequence[bytes] = ()) -> list[tuple[Any, ...]]:
        return self.cache._read(lambda connection: self._query(connection, columns, condition, parameters))

    def _query(
        self, connection: sqlite3.Connection, columns: str, condition: str, parameters: Sequence[bytes]
    ) -> list[tuple[Any, ...]]:
        # with the content's table on the left too: a row whose content is missing is a damaged one
        query = f"SELECT {columns} FROM rows LEFT JOIN contents USING (id) WHERE {_IN_SPACE} {condition}"
        return connection.execute(query, (*self._facts, *parameters)).fetchall()

    def _present(self, connection: sqlite3.Connection, digests: Sequence[bytes]) -> set[bytes]:
        found = [self._query(connection, "digest", _among(some), some) for some in _chunks(digests)]
        return {digest for rows in found for (digest,) in rows}

    def _room(self, connection: sqlite3.Connection, rows: int) -> int:
        """How many of so many rows fit, once old ones are evicted."""
        _touch(connection, self.cache._stale)
        cost, limit = self.row_bytes + _ROW_OVERHEAD, self.cache.limit
        unused_since = max(self.cache._opened, time.time() - PROTECTED_SECONDS)
        _evict(connection, limit, keep_free=rows * cost, unused_since=unused_since)
        return max(0, limit - _in_use(connection)) // cost


def _close(file: CacheFile, stale: set[int]) -> None:
    if stale:
        _try_to_write(file, lambda connection: _touch(connection, stale))
    file.close()


def _touch(connection: sqlite3.Connection, stale: set[int]) -> None:
    """Writes down that these rows were used now."""
    updates = [(time.time(), stale.pop()) for _ in range(len(stale))]
    connection.executemany("UPDATE rows SET used = ? WHERE id = ?", updates)


def _try_to_write(file: CacheFile, work: Callable[[sqlite3.Connection], object]) -> None:
    """What a cache that may only be read does without."""
    try:
        file.write(work)
    except UnusableError as reason:
        _log.debug("the cache %s cannot be written: %s", file.path, reason)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """For whoever looks after the cache itself: what cannot be done is said."""
    try:
        yield
    except (UnusableError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"the cache {path} cannot be used: {reason}; name another folder with --cache") from error


def _checksum(facts: Facts, digest: bytes, content: bytes | memoryview) -> int:
    """CRC-32 of a row and of whose it is, so that a damaged index hands out no other picture's row."""
    return zlib.crc32(content, zlib.crc32(digest, zlib.crc32("\0".join(facts).encode())))


def _is_sound(facts: Facts, digest: object, checksum: object, content: object, size: object) -> bool:
    """Whether a row is as it was put; damage may have changed its values' types as well."""
    if not isinstance(digest, bytes) or not isinstance(content, bytes) or len(content) != size:
        return False
    return _checksum(facts, digest, content) == checksum


def _in_use(connection: sqlite3.Connection) -> int:
    """Bytes of the file that hold something."""
    return (fetch_one(connection, "PRAGMA page_count") - fetch_one(connection, "PRAGMA freelist_count")) * PAGE_BYTES


def _evict(connection: sqlite3.Connection, limit: int, *, unused_since: float, keep_free: int = 0) -> None:
    """Deletes the least recently used rows until the others fit, or all that are left were used since.

    Pages that they took are left in the file for other rows, unless the file is over the limit.
    """
    query = (
        "SELECT rows.id, coalesce(row_bytes, 0) FROM rows LEFT JOIN spaces ON spaces.id = space"
        " WHERE used < ? ORDER BY used"
    )
    while (over := _in_use(connection) + keep_free - limit) > 0:
        gone = []
        with closing(connection.execute(query, (unused_since,))) as candidates:
            for row, size in candidates:
                gone.append(row)
                over -= size + _ROW_OVERHEAD
                if over <= 0:
                    break
        if not gone:
            break
        _delete(connection, gone)
    _shrink(connection, limit)


def _shrink(connection: sqlite3.Connection, limit: int) -> None:
    """Gives unused pages back to the disk, as many as the file is over the limit."""
    over = fetch_one(connection, "PRAGMA page_count") - limit // PAGE_BYTES
    for _ in range(min(over, fetch_one(connection, "PRAGMA freelist_count"))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # of more pages, Python's sqlite3 would free the first


def _delete(connection: sqlite3.Connection, rows: Sequence[int]) -> None:
    for table in ("contents", "rows"):
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(row,) for row in rows])


def _among(digests: Sequence[bytes]) -> str:
    return f"AND digest IN ({','.join('?' * len(digests))})"


def _chunks(digests: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """As many as one query may name."""
    return (digests[start : start + _AT_ONCE] for start in range(0, len(digests), _AT_ONCE))
