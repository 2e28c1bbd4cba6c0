"""A disposable SQLite file that threads and processes share: begun anew where damaged, never touched where foreign."""

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

BUSY_SECONDS = 10.0
"""How long to wait for another process's transaction, which takes milliseconds unless that process hangs."""
PAGE_BYTES = 16_384
"""Rows of 50 KB are read faster than in SQLite's pages of 4 KB, and take less than in larger ones."""

_SETTINGS = (
    "PRAGMA synchronous = NORMAL",  # a power cut may cost the last rows, never the file
    "PRAGMA secure_delete = OFF",  # some builds overwrite with zeros what is deleted
    "PRAGMA journal_size_limit = 67108864",
)
_CIRCUMSTANCES = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_AUTH,
}
"""SQLite's error codes that say nothing against the file; after any other one it counts as damaged."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Identity = tuple[int, int]


class UnusableError(Exception):
    """Why the file can be neither used nor begun anew, in a few words."""


class CacheFile:
    """SQLite with write-ahead logging, under an application id by which the file is known as ours.

    A connection serves one thread at a time, and only the process that opened it.
    """

    def __init__(self, path: Path, schema: Sequence[str], *, application: int, version: int) -> None:
        self.path = path
        self._schema, self._application, self._version = schema, application, version
        self._idle: dict[int, list[tuple[Identity, sqlite3.Connection]]] = {}  # by process: a fork opens its own
        self._removing = threading.Lock()

    def read(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """What `work` finds; `otherwise` where there is no file. Makes none, and no folder."""
        return self._run(work, otherwise, write=False)

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Runs `work` in a transaction of its own, all or nothing; makes the file if there is none."""

        def transaction(connection: sqlite3.Connection) -> Result:
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
            connection.execute("COMMIT")
            return result

        return self._run(transaction, None, write=True)  # type: ignore[return-value]

    def size(self) -> int:
        """Bytes on the disk, the write-ahead log included."""
        return sum(path.stat().st_size for path in self._files()[:2] if path.exists())

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file, so that this has its new size."""
        self.read(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall(), [])

    def remove_if_alone(self) -> bool:
        """Removes the file, unless another connection has it open: only a lone one may leave write-ahead logging."""

        def is_alone(connection: sqlite3.Connection) -> bool:
            try:
                return connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
            except sqlite3.OperationalError:
                return False

        self.close()
        alone = self.read(is_alone, True)
        if alone:
            self._remove()
        else:
            self.close()
        return alone

    def close(self) -> None:
        """Closes the connections that no thread is using; the next use opens others."""
        idle = self._idle.get(os.getpid(), [])
        while idle:
            idle.pop()[1].close()

    def _run(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result, *, write: bool) -> Result:
        for again in (True, False):
            identity = None
            try:
                identity = _identity(self.path)
                with self._connection(identity, create=write) as connection:
                    return otherwise if connection is None else work(connection)
            except OSError as error:
                raise UnusableError(error.strerror or str(error)) from error
            except sqlite3.Error as error:
                if _code(error) in _CIRCUMSTANCES or not again:
                    raise UnusableError(str(error)) from error
                self._begin_anew(identity, error)
        raise AssertionError("the second attempt returns or raises")

    @contextmanager
    def _connection(self, identity: Identity | None, *, create: bool) -> Iterator[sqlite3.Connection | None]:
        """An idle connection to this very file, or a new one; None where there is no file and none is wanted."""
        idle = self._idle.setdefault(os.getpid(), [])
        connection = None
        while idle and connection is None:
            known, candidate = idle.pop()
            if known == identity:
                connection = candidate
            else:  # another process began anew
                candidate.close()
        connection = connection or self._connect(identity, create=create)
        if connection is None:
            yield None
            return
        try:
            yield connection
        except BaseException:
            connection.close()  # and with it an unfinished transaction
            raise
        if identity or (identity := _identity(self.path)):
            idle.append((identity, connection))

    def _connect(self, identity: Identity | None, *, create: bool) -> sqlite3.Connection | None:
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        size = 0 if identity is None else self.path.stat().st_size
        if not size and not create:
            return None
        if 0 < size < 512:
            raise sqlite3.DatabaseError("file is not a database")
        if size:
            application, version = _header(self.path)
            if application != self._application:
                raise FileExistsError(errno.EEXIST, "it is another program's database")
            if version != self._version:
                raise sqlite3.DatabaseError(f"it is of version {version} where {self._version} is needed")
        connection = _open(self.path, "rwc" if create else "rw")
        try:
            self._prepare(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            if create or _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                raise
            # a folder that may only be read has no place for what readers and writers share: nobody writes there
            connection = _open(self.path, "ro&immutable=1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes the tables of a new file. SQLite does not wait by itself where several change the journal's mode."""
        for setting in (f"PRAGMA page_size = {PAGE_BYTES}", *_SETTINGS):
            connection.execute(setting)
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                if fetch_one(connection, "PRAGMA user_version") == 0:
                    self._create_tables(connection)
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        """In one transaction with the application id: no process ever sees a file of ours without it."""
        connection.execute("BEGIN")
        # writes, and so waits for whoever is faster; cannot be set any more once BEGIN IMMEDIATE has written
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if fetch_one(connection, "PRAGMA user_version") == 0:
            for statement in self._schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self._application}")
            connection.execute(f"PRAGMA user_version = {self._version}")
        connection.execute("COMMIT")

    def _begin_anew(self, identity: Identity | None, error: sqlite3.Error) -> None:
        """Removes the damaged file, unless another thread or process has; sets it aside if it may not be ours."""
        with self._removing:
            self.close()
            try:
                if identity is None or _identity(self.path) != identity:
                    return
                try:
                    ours = _header(self.path)[0] == self._application
                except sqlite3.Error:
                    ours = False
                if not ours:
                    self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
                self._remove()
            except OSError as refused:
                raise UnusableError(f"{error}, and cannot be removed ({refused.strerror})") from refused
        _log.warning("the cache %s was damaged (%s) and is begun anew", self.path, error)

    def _remove(self) -> None:
        self.close()
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The file and what SQLite keeps beside it."""
        return [self.path.with_name(self.path.name + ending) for ending in ("", "-wal", "-shm", "-journal")]


def fetch_one(connection: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> int:
    """The one number that a query answers."""
    return connection.execute(query, parameters).fetchone()[0]


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _header(path: Path) -> tuple[int, int]:
    """Whose file it is and of which version, without a lock, a journal's recovery or any other trace.

    Through SQLite, since to open and close the file by hand would drop the locks that this process holds on it.
    """
    with closing(_open(path, "ro&immutable=1")) as connection:
        return fetch_one(connection, "PRAGMA application_id"), fetch_one(connection, "PRAGMA user_version")


def _identity(path: Path) -> Identity | None:
    """Tells a file from another one that has come into its place."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; errors that Python itself found in the file's content have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
