"""The cache: content-addressed, checksummed rows in a SQLite file, with least-recently-used eviction.

Features are in one file, which may be shared between people; thumbnails, which show the pictures, are in a private one.
Threads and processes can share the cache. Whatever is wrong with it (damage, a full disk, a read-only folder) costs a
warning and recomputed rows: never a wrong number, never the run.
"""

import errno
import hashlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from fewtag.files import cache_limit

if TYPE_CHECKING:  # the studio's first page does not wait for the import of numpy
    import numpy as np

FILE, PRIVATE_FILE = "features.sqlite", "private.sqlite"
PRIVATE_LIMIT = 2 * 10**9
PROTECTED_SECONDS = 86_400.0
"""New rows evict no row that was used since the cache was opened or, in a longer session, within so many seconds."""
TOUCH_SECONDS = 5.0
"""Times of use are written for many rows at once, at intervals of so many seconds."""
BUSY_SECONDS = 10.0
"""How long to wait for another process's transaction, which takes milliseconds unless that process hangs."""
PAGE_BYTES, PRIVATE_PAGE_BYTES = 16_384, 4_096
"""Features of 50 KB are read faster with 16 KB pages than with SQLite's 4 KB, and waste less than with larger ones."""

_SETTINGS = (
    "PRAGMA synchronous = NORMAL",  # a power cut may cost the last rows, never the file
    "PRAGMA secure_delete = OFF",  # some builds overwrite deleted rows with zeros
    "PRAGMA journal_size_limit = 67108864",
)
_APPLICATION, _VERSION = 0x66777467, 1
_SCHEMA = (
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, kind TEXT, what TEXT, key TEXT, shape TEXT, dtype TEXT,"
    " row_bytes INTEGER, UNIQUE (kind, key, shape, dtype))",
    "CREATE TABLE rows (id INTEGER PRIMARY KEY, space INTEGER, digest BLOB, used REAL, checksum INTEGER,"
    " UNIQUE (space, digest))",
    "CREATE INDEX rows_by_use ON rows (used)",
    # apart from the times of use, since SQLite rewrites a whole record when one of its columns changes
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, content BLOB)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_CIRCUMSTANCES = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_AUTH),
}
"""SQLite's error codes that do not indicate a damaged file; after any other one the file counts as damaged."""
LENGTH = "(SELECT length(content) FROM contents WHERE contents.id = rows.id)"
"""SQL for the length of a row's content, for spaces whose rows have no fixed length."""
_WHERE_SPACE = " WHERE kind = ? AND key = ? AND shape = ? AND dtype = ?"
_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a database; UnicodeDecodeError occurs if SQLite's message quotes a damaged name."""
_ROW_OVERHEAD = 100
_AT_ONCE = 256
"""The most digests in one query."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]
Facts = tuple[str, str, str, str]
"""What identifies a space: kind, key, shape and type."""
Identity = tuple[int, int]
"""What distinguishes a file from one that has replaced it: device and inode."""


def sqlite_address(path: PurePath) -> str:
    r"""A file's URI as SQLite expects it: the server of a network share becomes part of the path.

    >>> from pathlib import PureWindowsPath
    >>> sqlite_address(PureWindowsPath(r"\\nas\photos\x.sqlite")), sqlite_address(PureWindowsPath(r"C:\x.sqlite"))
    ('file:////nas/photos/x.sqlite', 'file:///C:/x.sqlite')
    """
    address = path.as_uri()
    return address if address.startswith("file:///") else address.replace("file://", "file:////", 1)


def content_digest(data: bytes) -> bytes:
    """The key of a picture: the first 16 bytes of the SHA-256 of its encoded bytes."""
    return hashlib.sha256(data).digest()[:16]


class UnusableError(Exception):
    """Why the file can neither be used nor recreated, in a few words."""


class Cache:
    """The cache of a folder, or its private one, which nobody else may read; opening it neither reads nor writes.

    The limit applies to the database file: pages of evicted rows are reused, and returned to the disk if the file is
    over its limit. If more rows are put in one session than fit, the first ones are kept: a repeated pass over them all
    would otherwise evict each row just before it is needed again. The write-ahead log, some 16 MB, comes on top.

    The file is recognised by its application id. A damaged file is recreated; another program's file is never touched.
    A connection is used by one thread at a time, and only in the process that opened it.
    """

    def __init__(self, folder: Path, limit: int | None = None, *, private: bool = False) -> None:
        self._stale: set[int] = set()
        self._idle: dict[int, list[tuple[Identity, sqlite3.Connection]]] = {}  # by process, since a fork needs its own
        self.path, self._private = folder / (PRIVATE_FILE if private else FILE), private
        self.limit = limit if limit is not None else PRIVATE_LIMIT if private else cache_limit()
        self._removing = threading.Lock()
        self.opened, self._touched = time.time(), time.monotonic()
        self._possible, self._told = {"read", "written"}, set[str]()

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Writes the times of use and closes the idle connections; the next use opens new ones."""
        if self._stale:
            self.attempt(self._touch, write=True, tell=False)
        idle = self._idle.get(os.getpid(), [])
        while idle:
            idle.pop()[1].close()

    def arrays(self, kind: str, what: str, key: str, shape: Sequence[int], dtype: str) -> "ArrayRows":
        """Rows that are arrays of this shape and type."""
        import numpy as np

        return ArrayRows(self, kind, what, key, tuple(shape), np.dtype(dtype))

    def attempt(self, work: Work[Result], *, write: bool = False, tell: bool = True) -> Result | None:
        """The result of `work`; None if there is no file, or it cannot be used, which is logged once.

        Writing is one transaction. After a failure that was logged, nothing more is written.
        """
        action = "written" if write else "read"
        if action not in self._possible:
            return None
        try:
            return self.run(work, write=write)
        except UnusableError as reason:
            if tell:
                self._possible -= {action, "written"}
                what_to_do = "nothing more is kept (name another with --cache, or give --no-cache)"
                self._tell("failure", f"the cache {self.path} cannot be {action}: {reason}; {what_to_do}")
            return None

    def use(self, rows: Sequence[int]) -> None:
        """Records that these rows were used; the times of use are written for many rows at once."""
        self._stale.update(rows)
        if self._stale and time.monotonic() - self._touched > TOUCH_SECONDS:
            self._touched = time.monotonic()
            self.attempt(self._touch, write=True, tell=False)

    def drop(self, rows: Sequence[int]) -> None:
        """Deletes damaged rows, which is logged once."""
        self._tell("damage", f"the cache {self.path} has damaged rows, which are dropped and made again")
        self.attempt(lambda connection: delete(connection, rows), write=True, tell=False)

    def room(self, connection: sqlite3.Connection, sizes: Sequence[int]) -> int:
        """How many of the rows of these sizes fit, from the first on, after evicting old ones."""
        self._touch(connection)
        taken, since = [*accumulate(size + _ROW_OVERHEAD for size in sizes)], time.time() - PROTECTED_SECONDS
        evict(connection, self.limit, keep_free=max(taken, default=0), unused_since=max(self.opened, since))
        free = self.limit - _in_use(connection)
        return sum(each <= free for each in taken)

    def _touch(self, connection: sqlite3.Connection) -> None:
        updates = [(time.time(), self._stale.pop()) for _ in range(len(self._stale))]
        connection.executemany("UPDATE rows SET used = ? WHERE id = ?", updates)

    def _tell(self, kind: str, sentence: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s", sentence)

    def run(self, work: Work[Result], *, write: bool = False) -> Result | None:
        """The result of `work`, or None without a file; writing creates the file, and is one transaction."""
        for again in (True, False):
            identity = None
            try:
                identity = self._identity()
                with self._connection(identity, create=write) as connection:
                    if connection is None or not write:
                        return None if connection is None else work(connection)
                    connection.execute("BEGIN IMMEDIATE")
                    result = work(connection)
                    connection.execute("COMMIT")
                    return result
            except OSError as error:
                raise UnusableError(error.strerror or str(error)) from error
            except _ERRORS as error:
                if _code(error) in _CIRCUMSTANCES or not again:
                    raise UnusableError(str(error)) from error
                self._begin_anew(identity, error)
        raise AssertionError("the second attempt returns or raises")

    @contextmanager
    def _connection(self, identity: Identity | None, *, create: bool) -> Iterator[sqlite3.Connection | None]:
        """An idle connection to this very file, or a new one; None if there is no file and `create` is not set."""
        idle = self._idle.setdefault(os.getpid(), [])
        connection = None
        while connection is None:
            try:
                known, candidate = idle.pop()
            except IndexError:  # there is none, or another thread took it
                break
            if known == identity:
                connection = candidate
            else:  # another process recreated the file
                candidate.close()
        connection = connection or self._connect(identity, create=create)
        try:
            yield connection
        except BaseException:
            if connection is not None:
                connection.close()  # and with it an unfinished transaction
            raise
        if connection is not None and (identity := identity or self._identity()):
            idle.append((identity, connection))

    def _connect(self, identity: Identity | None, *, create: bool) -> sqlite3.Connection | None:
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._private and identity is None:
                self.path.touch(mode=0o600)
        size = 0 if identity is None else self.path.stat().st_size
        if not size and not create:
            return None
        if 0 < size < 512:
            raise sqlite3.DatabaseError("file is not a database")
        if size:
            application, version = self._header()
            if application != _APPLICATION:
                raise FileExistsError(errno.EEXIST, "it is another program's database")
            if version != _VERSION:
                raise sqlite3.DatabaseError(f"it is of version {version} where {_VERSION} is needed")
        connection = self._open("rwc" if create else "rw")
        try:
            _prepare(connection, PRIVATE_PAGE_BYTES if self._private else PAGE_BYTES)
        except BaseException as error:
            connection.close()
            read_only = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
            if create or not isinstance(error, sqlite3.OperationalError) or _code(error) not in read_only:
                raise
            # a read-only folder has no place for the files that readers and writers share, and nobody writes there
            connection = self._open("ro&immutable=1")
        return connection

    def _open(self, mode: str) -> sqlite3.Connection:
        uri = f"{sqlite_address(self.path.absolute())}?mode={mode}"
        return sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)

    def _header(self) -> tuple[int, int]:
        """Application id and version of the file, read without a lock, recovery of a journal or any other trace.

        It goes through SQLite, since opening and closing the file directly would drop the locks that this process holds
        on it.
        """
        with closing(self._open("ro&immutable=1")) as connection:
            # while the log is copied into the file, or if a process died then, the schema may refer to missing pages
            connection.execute("PRAGMA writable_schema = ON")
            return number(connection, "PRAGMA application_id"), number(connection, "PRAGMA user_version")

    def _identity(self) -> Identity | None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    def _begin_anew(self, identity: Identity | None, error: Exception) -> None:
        """Removes the damaged file, unless another thread or process already has; renames it if it may not be ours."""
        with self._removing:
            try:
                if identity is None or self._identity() != identity:
                    return
                ours = False
                with suppress(*_ERRORS):
                    ours = self._header()[0] == _APPLICATION
                if not ours:
                    self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
                self.remove()
            except OSError as refused:
                raise UnusableError(f"{error}, and cannot be removed ({refused.strerror})") from refused
        _log.warning("the cache %s was damaged (%s) and is begun anew", self.path, error)

    def remove(self) -> None:
        """Deletes the file, whatever it contains, and SQLite's files beside it."""
        self._stale.clear()
        self.close()
        for path in self.files():
            path.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """The file and SQLite's files beside it."""
        return [self.path.with_name(self.path.name + ending) for ending in ("", "-wal", "-shm", "-journal")]


@dataclass(frozen=True, eq=False)
class Blobs:
    """Rows of bytes of one kind, by the digests of the pictures that they were made from.

    `key` identifies everything that determines their content, `what` describes it to people.
    """

    cache: Cache
    kind: str
    what: str
    key: str

    def __len__(self) -> int:
        return sum(count for (count,) in self._select("count(*)"))

    def __contains__(self, digest: bytes) -> bool:
        """Whether there is such a row; damage is detected only when it is read."""
        return bool(self._select("1", [digest]))

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        """The digests that have rows; damage is detected only when these are read."""
        return {digest for (digest,) in self._select("digest", digests)}

    def get_bytes(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The undamaged rows for these digests, by digest."""
        found: dict[bytes, bytes] = {}
        used, damaged = [], []
        recently = max(self.cache.opened, time.time() - PROTECTED_SECONDS / 24)
        columns = f"rows.id, digest, checksum, content, used < {recently!r}"
        for row, digest, checksum, content, is_stale in self._select(columns, list(dict.fromkeys(digests))):
            if not is_sound(self._facts, digest, checksum, content, self.row_bytes):
                damaged.append(row)
                continue
            found[digest] = content
            if is_stale:
                used.append(row)
        if damaged:
            self.cache.drop(damaged)
        self.cache.use(used)
        return found

    def put_bytes(self, contents: Mapping[bytes, bytes | memoryview]) -> None:
        """Stores the rows, by digest, that are not there yet, as many as fit, in one transaction."""
        if not contents:
            return
        checksums = {digest: _checksum(self._facts, digest, content) for digest, content in contents.items()}

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR IGNORE INTO spaces (kind, key, shape, dtype, what, row_bytes) VALUES (?, ?, ?, ?, ?, ?)",
                (*self._facts, self.what, self.row_bytes),
            )
            present = {digest for (digest,) in self._query(connection, "digest", list(contents))}
            fresh = [digest for digest in contents if digest not in present]
            for digest in fresh[: self.cache.room(connection, [len(contents[digest]) for digest in fresh])]:
                added = connection.execute(
                    "INSERT INTO rows (digest, checksum, used, space) SELECT ?, ?, ?, id FROM spaces" + _WHERE_SPACE,
                    (digest, checksums[digest], time.time(), *self._facts),
                )
                # replaces what a damaged index may have left behind
                connection.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (added.lastrowid, contents[digest]))

        self.cache.attempt(insert, write=True)

    def clear(self) -> None:
        rows = [row for (row,) in self._select("rows.id")]
        if rows:
            self.cache.attempt(lambda connection: delete(connection, rows), write=True)

    @property
    def _facts(self) -> Facts:
        return self.kind, self.key, "", ""

    @property
    def row_bytes(self) -> int | None:
        """Bytes of each row; None if rows differ in length."""
        return None

    def _select(self, columns: str, digests: Sequence[bytes] | None = None) -> list[tuple[Any, ...]]:
        return self.cache.attempt(lambda connection: self._query(connection, columns, digests)) or []

    def _query(
        self, connection: sqlite3.Connection, columns: str, digests: Sequence[bytes] | None
    ) -> list[tuple[Any, ...]]:
        """These columns of the rows with these digests, or of all rows."""
        # a left join, so that a row whose content is missing is found, as a damaged one
        query = (
            f"SELECT {columns} FROM rows LEFT JOIN contents USING (id)"
            f" WHERE space = (SELECT id FROM spaces{_WHERE_SPACE})"
        )
        if digests is None:
            return connection.execute(query, self._facts).fetchall()
        found = []
        for start in range(0, len(digests), _AT_ONCE):
            some = digests[start : start + _AT_ONCE]
            among = f" AND digest IN ({','.join('?' * len(some))})"
            found += connection.execute(query + among, (*self._facts, *some)).fetchall()
        return found


@dataclass(frozen=True, eq=False)
class ArrayRows(Blobs):
    """Rows that are arrays of one shape and type."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"

    @cached_property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def _facts(self) -> Facts:
        return self.kind, self.key, json.dumps(self.shape), self.dtype.str

    def get_many(self, digests: Sequence[bytes]) -> "list[np.ndarray | None]":
        """The rows in the order of the digests, as read-only arrays; None for a row that is missing or damaged."""
        import numpy as np

        found = self.get_bytes(digests)
        arrays = {each: np.frombuffer(content, self.dtype).reshape(self.shape) for each, content in found.items()}
        return [arrays.get(digest) for digest in digests]

    def get_stacked(self, digests: Sequence[bytes]) -> "tuple[list[int], np.ndarray]":
        """The indices of the digests that have undamaged rows, and those rows in one array."""
        import numpy as np

        found = self.get_bytes(digests)
        there = [index for index, digest in enumerate(digests) if digest in found]
        joined = b"".join([found[digests[index]] for index in there])
        return there, np.frombuffer(joined, self.dtype).reshape(len(there), *self.shape)

    def put_many(self, digests: Sequence[bytes], rows: "np.ndarray") -> None:
        """Stores the rows that are not there yet, as many as fit, in one transaction."""
        import numpy as np

        assert rows.shape == (len(digests), *self.shape), "a row of this space for each digest"
        if digests:
            flat = np.ascontiguousarray(rows, self.dtype).reshape(len(digests), -1).view(np.uint8)
            self.put_bytes({digest: row.data for digest, row in zip(digests, flat, strict=True)})


def _prepare(connection: sqlite3.Connection, page_bytes: int) -> None:
    """Creates the tables of a new file. It retries, since SQLite does not wait when several change the journal mode."""
    for setting in (f"PRAGMA page_size = {page_bytes}", *_SETTINGS):
        connection.execute(setting)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if number(connection, "PRAGMA user_version") == 0:
                # in one transaction with the application id, so that no process ever sees a file of ours without it
                connection.execute("BEGIN")
                # it writes, and so waits for faster processes; once BEGIN IMMEDIATE has written, it cannot be set
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                for statement in _SCHEMA if number(connection, "PRAGMA user_version") == 0 else ():
                    connection.execute(statement)
                connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def evict(connection: sqlite3.Connection, limit: int, *, unused_since: float, keep_free: int = 0) -> None:
    """Deletes the least recently used rows until the rest fits, or was all used since `unused_since`.

    Their pages stay in the file for other rows, unless the file is over the limit.
    """
    query = (
        f"SELECT rows.id, coalesce(row_bytes, {LENGTH}, 0) FROM rows LEFT JOIN spaces ON spaces.id = space"
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
        delete(connection, gone)
    surplus = number(connection, "PRAGMA page_count") - limit // number(connection, "PRAGMA page_size")
    for _ in range(min(surplus, number(connection, "PRAGMA freelist_count"))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # sqlite3 would free only the first of several


def delete(connection: sqlite3.Connection, rows: Sequence[int]) -> None:
    for table in ("contents", "rows"):
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(row,) for row in rows])


def _in_use(connection: sqlite3.Connection) -> int:
    """Bytes of the file's pages that are not free."""
    pages, free, size = (number(connection, f"PRAGMA {each}") for each in ("page_count", "freelist_count", "page_size"))
    return (pages - free) * size


def number(connection: sqlite3.Connection, query: str) -> int:
    return connection.execute(query).fetchone()[0]


def _checksum(facts: Facts, digest: bytes, content: bytes | memoryview) -> int:
    """CRC-32 of a row's content and identity, so that a damaged index cannot return another picture's row."""
    return zlib.crc32(content, zlib.crc32(digest, zlib.crc32("\0".join(facts).encode())))


def is_sound(facts: Facts, digest: object, checksum: object, content: object, size: object) -> bool:
    """Whether a row is as it was stored; damage may have changed the types of its values as well."""
    if not isinstance(digest, bytes) or not isinstance(content, bytes) or size not in (None, len(content)):
        return False
    return _checksum(facts, digest, content) == checksum


def _code(error: Exception) -> int:
    """SQLite's primary error code; errors that Python itself found in the content have none, and count as damage."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
