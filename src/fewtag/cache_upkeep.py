"""Maintenance of the caches of features and of thumbnails: list, prune, check and clear them."""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fewtag.cache import LENGTH, Cache, Result, UnusableError, Work, delete, evict, is_sound, number
from fewtag.errors import InputError


class Contents(NamedTuple):
    """What a space contains; `used` is the last time that one of its rows was used, in seconds since 1970."""

    kind: str
    what: str
    rows: int
    bytes: int
    used: float


class CacheUpkeep:
    """A folder's cache and its private one, for maintenance: failures raise InputError instead of a warning."""

    def __init__(self, folder: Path) -> None:
        self._both = Cache(folder), Cache(folder, private=True)

    def close(self) -> None:
        for each in self._both:
            each.close()

    def __len__(self) -> int:
        count = "SELECT count(*) FROM rows"
        return sum(_run(each, lambda connection: number(connection, count)) or 0 for each in self._both)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of features and of thumbnails on disk, including the write-ahead logs."""
        return tuple(map(_size, self._both))

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def contents(self) -> list[Contents]:
        """What each space that has rows contains."""
        query = (
            f"SELECT kind, what, count(*), coalesce(count(*) * row_bytes, sum({LENGTH})), max(used)"
            " FROM rows JOIN spaces ON spaces.id = space GROUP BY space ORDER BY kind, what"
        )
        found = (_run(each, lambda connection: connection.execute(query).fetchall()) or [] for each in self._both)
        return [Contents(*row) for rows in found for row in rows]

    def prune(self, limit: int) -> int:
        """Evicts the least recently used features until they fit the limit, then thumbnails until both do.

        Returns the number of bytes freed on disk.
        """
        before, left = self.size, limit
        for each in self._both:
            _shrink(each, left)
            left = max(0, left - _size(each))
        return max(0, before - self.size)

    def clear(self) -> int:
        """Removes the databases, or empties one that another process has open; returns the number of bytes freed."""

        def is_alone(connection: sqlite3.Connection) -> bool:
            try:  # only a sole connection can leave write-ahead logging
                return connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
            except sqlite3.OperationalError:
                return False

        before = self.size
        self.close()
        for each in self._both:
            if _run(each, is_alone) is not False:
                with _refusing(each):
                    each.remove()
            else:
                each.close()
                _shrink(each, 0)
        return max(0, before - self.size)

    def check(self, advance: Callable[[int], None] = lambda _: None) -> int:
        """Reads every row and deletes the damaged ones; returns their number. A broken database is recreated."""
        before = len(self)
        query = (
            "SELECT rows.id, kind, key, shape, dtype, digest, checksum, content, row_bytes FROM rows"
            " LEFT JOIN contents USING (id) LEFT JOIN spaces ON spaces.id = space"
        )

        def damaged(connection: sqlite3.Connection) -> list[int]:
            found = []
            for row, *facts, digest, checksum, content, size in connection.execute(query):
                if None in facts or not is_sound(tuple(facts), digest, checksum, content, size):
                    found.append(row)
                advance(1)
            if (said := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(said)
            return found

        dropped = 0
        for each in self._both:
            found = _run(each, damaged) or []
            if found:
                _run(each, partial(delete, rows=found), write=True)
            dropped += len(found)
        return max(dropped, before - len(self))


@contextmanager
def _refusing(cache: Cache) -> Iterator[None]:
    """Turns the failure of an operation into an InputError."""
    try:
        yield
    except (UnusableError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        said = f"the cache {cache.path} cannot be used: {reason}; name another folder with --cache"
        raise InputError(said) from error


def _run(cache: Cache, work: Work[Result], *, write: bool = False) -> Result | None:
    with _refusing(cache):
        return cache.run(work, write=write)


def _shrink(cache: Cache, limit: int) -> None:
    if cache.path.exists():
        _run(cache, lambda connection: evict(connection, limit, unused_since=math.inf), write=True)
        # applies the write-ahead log, so that the file has its new size
        _run(cache, lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())


def _size(cache: Cache) -> int:
    with _refusing(cache):
        return sum(path.stat().st_size for path in cache.files()[:2] if path.exists())
