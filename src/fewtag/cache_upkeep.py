"""Looking after a feature cache: what it holds, how large it is, pruned, checked, cleared."""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fewtag.cache import Cache, UnusableError, delete, evict, is_sound, number
from fewtag.errors import InputError


class Contents(NamedTuple):
    """What a space holds; `used` is when one of its rows was used last, in seconds since 1970."""

    kind: str
    what: str
    rows: int
    bytes: int
    used: float


class CacheUpkeep(Cache):
    """The same cache for whoever looks after it: what cannot be done is refused, not passed over."""

    def __len__(self) -> int:
        """How many rows there are, in all spaces."""
        with self._refusing():
            return self.run(lambda connection: number(connection, "SELECT count(*) FROM rows")) or 0

    @property
    def size(self) -> int:
        """Bytes on the disk, the write-ahead log included."""
        with self._refusing():
            return sum(path.stat().st_size for path in self.files()[:2] if path.exists())

    def contents(self) -> list[Contents]:
        """What each space holds, if it holds any row."""
        query = (
            "SELECT kind, what, count(*), count(*) * row_bytes, max(used) FROM rows JOIN spaces ON spaces.id = space"
            " GROUP BY space ORDER BY kind, what"
        )
        with self._refusing():
            return self.run(lambda connection: [Contents(*row) for row in connection.execute(query)]) or []

    def prune(self, limit: int) -> int:
        """Evicts the least recently used rows until the file fits; the bytes that went back to the disk."""
        before = self.size
        with self._refusing():
            if self.path.exists():
                self.run(lambda connection: evict(connection, limit, unused_since=math.inf), write=True)
                # out of the write-ahead log, so that the file has its new size
                self.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        return max(0, before - self.size)

    def clear(self) -> int:
        """Removes the database, or empties it where another process has it open; the bytes that went."""

        def is_alone(connection: sqlite3.Connection) -> bool:
            try:  # only a lone connection may leave write-ahead logging
                return connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
            except sqlite3.OperationalError:
                return False

        before = self.size
        self.close()
        with self._refusing():
            if self.run(is_alone) is not False:
                self.remove()
                return before
        self.close()
        return self.prune(0)

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
                if None in facts or not is_sound(tuple(facts), digest, checksum, content, size):
                    found.append(row)
                advance(1)
            if (said := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(said)
            return found

        with self._refusing():
            found = self.run(damaged) or []
            if found:
                self.run(lambda connection: delete(connection, found), write=True)
        return max(len(found), before - len(self))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """For whoever looks after the cache itself: what cannot be done is said."""
        try:
            yield
        except (UnusableError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"the cache {self.path} cannot be used: {reason}; name another folder with --cache"
            ) from error
