"""The project file: the append-only log of changes in SQLite, which is the source of truth.

Examples' features are stored beside the answers, so that a bank can be derived when the pictures or the cache are gone.
"""

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fewtag.errors import InputError, UnavailableError
from fewtag.files import locked, make_folder
from fewtag.studio.log import Change, Fold, Log, Said

FILE = "studio.sqlite"
BANK = "bank.fewtag"
DELIVERIES = "deliveries"
VERSION = 1
BUSY_SECONDS = 10.0
_APPLICATION = 0x66777073
_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of the database; UnicodeDecodeError occurs if SQLite's message quotes damaged content."""
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE folder (path TEXT PRIMARY KEY)",
    "CREATE TABLE picture (digest TEXT PRIMARY KEY, width INTEGER NOT NULL, height INTEGER NOT NULL,"
    " taken TEXT, bytes INTEGER NOT NULL)",
    "CREATE TABLE file (path TEXT PRIMARY KEY, folder TEXT NOT NULL, name TEXT NOT NULL, digest TEXT,"
    " size INTEGER NOT NULL, mtime INTEGER NOT NULL, failure TEXT NOT NULL DEFAULT '')",
    "CREATE TABLE change (n INTEGER PRIMARY KEY, op TEXT NOT NULL UNIQUE, at REAL NOT NULL, kind TEXT NOT NULL,"
    " facts TEXT NOT NULL, undoes INTEGER REFERENCES change (n))",
    "CREATE TABLE answer (id TEXT PRIMARY KEY, change INTEGER NOT NULL REFERENCES change (n), picture TEXT NOT NULL,"
    " label INTEGER NOT NULL, answer TEXT NOT NULL CHECK (answer IN ('yes', 'no', 'unknown')), source TEXT NOT NULL)",
    "CREATE INDEX answer_by_change ON answer (change)",
    # pixels: the bank's key of the picture; small: a copy in WebP
    "CREATE TABLE example (picture TEXT NOT NULL, space TEXT NOT NULL, pixels TEXT NOT NULL, name TEXT NOT NULL,"
    " codes BLOB NOT NULL, scales BLOB NOT NULL, small BLOB NOT NULL, PRIMARY KEY (picture, space)) WITHOUT ROWID",
    "CREATE TABLE delivered (format TEXT NOT NULL, image TEXT NOT NULL, row TEXT NOT NULL,"
    " PRIMARY KEY (format, image)) WITHOUT ROWID",
    *(
        f"CREATE TRIGGER {table}_{what.lower()} BEFORE {what} ON {table}"
        f" BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END"
        for table in ("change", "answer")
        for what in ("UPDATE", "DELETE")
    ),
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


class PictureRow(NamedTuple):
    """A picture, identified by its content."""

    digest: str
    width: int
    height: int
    taken: str | None
    bytes: int


class FileRow(NamedTuple):
    """A file in a folder, and the picture in it; a file that cannot be read has a failure and no digest."""

    path: str
    folder: str
    name: str
    digest: str | None
    size: int
    mtime: int
    failure: str = ""


class ExampleRow(NamedTuple):
    """What a bank needs of an answered picture."""

    picture: str
    pixels: str
    name: str
    codes: bytes
    scales: bytes
    small: bytes


def picture_folders(pictures: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The real paths of these folders; refuses one that does not exist."""
    for each in pictures:
        if not Path(each).is_dir():
            raise InputError(f"there is no picture folder {each}; check the path")
    return [str(Path(each).resolve()) for each in pictures]


class Project:
    """A project's file, open in one process: one writer at a time, readers on their own connections."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.path = self.folder / FILE
        self.notice = ""
        self._one_writer, self._closing = threading.RLock(), ExitStack()
        self._readers: list[sqlite3.Connection] = []
        make_folder(self.folder)
        self._lock()
        try:
            self._writer = self._prepare()
            self._closing.callback(self._writer.close)
            self._file = self.path.stat()
            self.log = Log(self._changes())
        except _ERRORS as error:
            self._closing.close()
            raise self._refusal(error, "be opened") from error
        except BaseException:
            self._closing.close()
            raise

    @property
    def fold(self) -> Fold:
        return self.log.fold

    def close(self) -> None:
        with self._one_writer:
            while self._readers:
                self._readers.pop().close()
            self._closing.close()

    def _lock(self) -> None:
        """Locks the project for this process: two studios would each miss the other's changes."""
        try:
            self._closing.enter_context(locked(self.path, seconds=0.2))
        except InputError as error:
            if "in use" in str(error):
                said = (
                    f"the project {self.folder} is open in another studio; use that one, or close it first "
                    "(--backup alone works beside it)"
                )
            else:
                cannot = f"the project {self.folder} cannot be written: {error}".partition("; ")[0]
                said = f"{cannot}; make it writable, or name another folder"
            raise InputError(said) from error

    def _prepare(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            application, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if version and application != _APPLICATION:
                raise InputError(f"{self.path} is another program's database; name another folder for the project")
            if version > VERSION:
                raise InputError(
                    f"the project {self.folder} has version {version}, this fewtag reads up to {VERSION}; update fewtag"
                )
            if not version:
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                self.notice = (
                    f"the project {self.folder} lies on a disk without shared memory; answers take longer there"
                )
            connection.execute("PRAGMA synchronous = FULL")  # so that an answer survives a power cut
            connection.execute("PRAGMA foreign_keys = ON")
            return connection
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _changes(self) -> Iterator[Change]:
        answers: dict[int, list[Said]] = {}
        for n, *answer in self.select("SELECT change, id, picture, label, answer, source FROM answer ORDER BY rowid"):
            answers.setdefault(n, []).append(Said(*answer))
        for n, op, kind, facts, undoes in self.select("SELECT n, op, kind, facts, undoes FROM change ORDER BY n"):
            yield Change(n, op, kind, json.loads(facts), undoes, tuple(answers.get(n, ())))

    def select(self, query: str, *values: object) -> list[Any]:
        """All rows of a query, on a connection that waits for no writer."""
        try:
            try:
                connection = self._readers.pop()
            except IndexError:
                self.check_place()  # SQLite would make an empty file there
                connection = self._connect()
            try:
                return connection.execute(query, values).fetchall()
            finally:
                self._readers.append(connection)
        except _ERRORS as error:
            self.check_place()
            raise self._refusal(error, "be read") from error

    def check_place(self) -> None:
        """Refuses to go on once another file, or none, is in the project's place: what is written would be lost."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), self._file):
                return
        what = "was moved, deleted or replaced while it is open"
        raise UnavailableError(f"the project {self.folder} {what}; put it back, or open it again")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: when it ends, all of its changes are on disk, or none."""
        with self._one_writer:
            self.check_place()
            try:
                with _transaction(self._writer):
                    yield self._writer
            except _ERRORS as error:
                raise self._refusal(error, "be saved") from error

    def _refusal(self, error: Exception, what: str) -> UnavailableError:
        """The error in a sentence; it is not the client's fault, so a page keeps its answers and sends them again."""
        said = str(error)
        if "full" in said:
            why = ": the disk is full; free some room and do it again, nothing else was lost"
        elif "readonly" in said or "unable to open" in said:
            why = ": it may only be read; make it writable, or copy it to where it can be written"
        elif isinstance(error, sqlite3.OperationalError):
            why = f" ({said}); check the disk and do it again"
        else:
            why = f": {FILE} is damaged ({said}); put a copy in its place that --backup made"
        return UnavailableError(f"the project {self.folder} cannot {what}{why}")

    def change(
        self, kind: str, facts: Mapping[str, Any], answers: Sequence[Said] = (), *, undoes: int | None = None
    ) -> Change:
        """Appends to the log; on disk before anything in memory changes."""
        op, text = str(uuid.uuid4()), json.dumps(facts, ensure_ascii=False)
        with self._one_writer:
            with self.writing() as connection:
                n = connection.execute(
                    "INSERT INTO change (op, at, kind, facts, undoes) VALUES (?, ?, ?, ?, ?)",
                    (op, time.time(), kind, text, undoes),
                ).lastrowid
                assert n is not None
                rows = tuple(each._replace(label=each.label or n) for each in answers)
                connection.executemany(
                    "INSERT INTO answer (id, picture, label, answer, source, change) VALUES (?, ?, ?, ?, ?, ?)",
                    [(row.id, row.picture, row.label, row.answer, row.source, n) for row in rows],
                )
            change = Change(n, op, kind, json.loads(text), undoes, rows)
            self.log.add(change)
            return change

    def undo(self, n: int) -> Change:
        """Reverts a change; refuses if two labels would then have the same name."""
        with self._one_writer:
            names = [label.name for label in self.log.with_undo(n).labels.values()]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise InputError(
                    f"there would be two labels {twice[0]!r} after that; rename the one that is there first"
                )
            return self.change("undo", {}, undoes=n)

    def meta(self, key: str) -> str | None:
        return next((value for (value,) in self.select("SELECT value FROM meta WHERE key = ?", key)), None)

    def set_meta(self, **values: str) -> None:
        with self.writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def folders(self) -> list[str]:
        return [path for (path,) in self.select("SELECT path FROM folder ORDER BY rowid")]

    def add_folders(self, paths: Sequence[str]) -> None:
        with self.writing() as connection:
            connection.executemany("INSERT OR IGNORE INTO folder VALUES (?)", [(path,) for path in paths])

    def pictures(self) -> list[PictureRow]:
        return [PictureRow(*row) for row in self.select("SELECT * FROM picture")]

    def knows(self, digest: str) -> bool:
        """Whether this picture was ever indexed here, even if it is not in memory yet."""
        return bool(self.select("SELECT 1 FROM picture WHERE digest = ?", digest))

    def files(self) -> list[FileRow]:
        return [FileRow(*row) for row in self.select("SELECT * FROM file ORDER BY path")]

    def record(
        self, pictures: Sequence[PictureRow] = (), files: Sequence[FileRow] = (), gone: Sequence[str] = ()
    ) -> None:
        """Records the content of the folders; `gone` are paths that no longer exist."""
        with self.writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO picture VALUES (?, ?, ?, ?, ?)", pictures)
            connection.executemany("DELETE FROM file WHERE path = ?", [(path,) for path in gone])
            connection.executemany("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", files)

    def examples(self, space: str) -> Iterator[ExampleRow]:
        """All examples of a model's space, without their small copies."""
        columns = "picture, pixels, name, codes, scales, x''"
        return (ExampleRow(*row) for row in self.select(f"SELECT {columns} FROM example WHERE space = ?", space))

    def example_keys(self) -> list[tuple[str, str]]:
        """Pictures with the digests of their pixels, of all examples: those are the same in each model's space."""
        return self.select("SELECT picture, pixels FROM example")

    def small_copies(self, space: str, pictures: Iterable[str]) -> dict[str, bytes]:
        """The small copies of these pictures in a model's space, by the digests of their pixels."""
        query = "SELECT pixels, small FROM example WHERE space = ? AND picture = ?"
        return dict(row for picture in pictures for row in self.select(query, space, picture))

    def any_example(self, picture: str) -> ExampleRow | None:
        """A picture's example in any model's space, with its small copy."""
        query = "SELECT picture, pixels, name, codes, scales, small FROM example WHERE picture = ? LIMIT 1"
        return next((ExampleRow(*row) for row in self.select(query, picture)), None)

    def keep_examples(self, space: str, rows: Sequence[ExampleRow]) -> None:
        insert = "INSERT OR REPLACE INTO example VALUES (?, ?, ?, ?, ?, ?, ?)"
        with self.writing() as connection:
            connection.executemany(insert, [(row.picture, space, *row[1:]) for row in rows])

    def check(self) -> list[str]:
        """Problems of the file: SQLite's own check, and a new fold compared with the one in memory."""
        problems = [f"{FILE}: {said}" for (said,) in self.select("PRAGMA integrity_check") if said != "ok"]
        with self._one_writer:
            if Log(self._changes()).fold != self.fold:
                problems.append("the answers on disk amount to something else than those in memory")
        return problems


def backup(folder: Path, path: Path) -> None:
    """Copies a project's file, even while a studio uses it; refuses to replace a file."""
    if path.exists():
        raise InputError(f"{path} exists; name another file for the copy")
    make_folder(path.parent)
    try:
        with closing(sqlite3.connect(folder / FILE, timeout=BUSY_SECONDS)) as connection:
            connection.execute("VACUUM INTO ?", (str(path),))
    except sqlite3.Error as error:
        raise InputError(f"cannot copy the project to {path} ({error}); name another file") from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction, all or nothing; it waits for another writer at its beginning, not in its middle."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        yield
