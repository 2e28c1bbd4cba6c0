"""Upkeep of the feature cache and the studio's thumbnails: what they hold, how large they are; prune, check, clear."""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fewtag.cache import BUSY_SECONDS, Cache, UnusableError, delete, evict, is_sound, number
from fewtag.errors import InputError
from fewtag.files import THUMBNAILS


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
        with self._refusing():
            return self.run(lambda connection: number(connection, "SELECT count(*) FROM rows")) or 0

    @property
    def size(self) -> int:
        """Bytes on the disk, the write-ahead log included."""
        with self._refusing():
            return _bytes([*self.files()[:2], *self._thumbnails()])

    def contents(self) -> list[Contents]:
        """What each space holds, if it holds any row."""
        query = (
            "SELECT kind, what, count(*), count(*) * row_bytes, max(used) FROM rows JOIN spaces ON spaces.id = space"
            " GROUP BY space ORDER BY kind, what"
        )
        with self._refusing():
            found = self.run(lambda connection: [Contents(*row) for row in connection.execute(query)]) or []
            if files := self._thumbnails():
                rows = 0  # of a damaged file the size alone can be told
                with suppress(sqlite3.Error), closing(sqlite3.connect(files[0], BUSY_SECONDS)) as connection:
                    rows = number(connection, "SELECT count(*) FROM thumbnail")
                found.append(Contents("thumbnails", "of the studio", rows, _bytes(files), files[0].stat().st_mtime))
            return found

    def _thumbnails(self) -> list[Path]:
        return [path for tail in ("", "-wal", "-shm") if (path := self.path.with_name(THUMBNAILS + tail)).exists()]

    def _thin(self, limit: int) -> None:
        """Drops the oldest thumbnails until the others fit."""
        files = self._thumbnails()
        if not files or _bytes(files) <= limit:
            return
        older = (
            "DELETE FROM thumbnail WHERE rowid IN (SELECT id FROM (SELECT rowid AS id, sum(length(content))"
            " OVER (ORDER BY rowid DESC) AS kept FROM thumbnail) WHERE kept > ?)"
        )
        try:
            with closing(sqlite3.connect(files[0], BUSY_SECONDS, isolation_level=None)) as connection:
                for step in ((older, (limit,)), ("VACUUM", ()), ("PRAGMA wal_checkpoint(TRUNCATE)", ())):
                    connection.execute(*step).fetchall()
        except sqlite3.OperationalError as error:
            raise UnusableError(str(error)) from error
        except sqlite3.DatabaseError:  # damaged: the studio would begin it anew
            self._drop(files)

    @staticmethod
    def _drop(files: list[Path]) -> None:
        for path in files:
            path.unlink(missing_ok=True)

    def prune(self, limit: int) -> int:
        """Evicts the least recently used rows until the file fits, then the oldest thumbnails until both do.

        The bytes that went back to the disk.
        """
        before = self.size
        with self._refusing():
            if self.path.exists():
                self.run(lambda connection: evict(connection, limit, unused_since=math.inf), write=True)
                # out of the write-ahead log, so that the file has its new size
                self.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
            self._thin(max(0, limit - _bytes(self.files()[:2])))
        return max(0, before - self.size)

    def clear(self) -> int:
        """Removes the databases, or empties the one that another process has open; the bytes that went."""

        def is_alone(connection: sqlite3.Connection) -> bool:
            try:  # only a lone connection may leave write-ahead logging
                return connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
            except sqlite3.OperationalError:
                return False

        before = self.size
        self.close()
        with self._refusing():
            self._drop(self._thumbnails())  # a studio that has them open makes others
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


def _bytes(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.exists())
