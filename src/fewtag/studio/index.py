"""The indexer: folders are walked and pictures read, encoded and thumbnailed in a thread, while a person works."""

import io
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewtag.cache import Space as CacheSpace
from fewtag.cache import content_digest
from fewtag.core.posterior import unit
from fewtag.errors import InputError
from fewtag.files import THUMBNAILS, make_folder
from fewtag.pictures.decode import DRAFT, Square, decode, read_header, squash
from fewtag.pictures.files import MOST_BYTES, Found, walk
from fewtag.pictures.prefetch import batches, prefetch, usable_cores
from fewtag.studio.library import Library
from fewtag.studio.project import DELIVERIES, FileRow, PictureRow, Project
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH, cached_places

SIZES = (256, 1024)
"""Of thumbnails: a cell, a picture."""
AGAIN_SECONDS = 60.0
"""Folders are walked again so often, or less where that takes long."""
PATIENT_SECONDS = 1.0
"""What works behind a page waits until that had its turn; whoever asks for something before gets it at once."""
_KNOWN_AT_ONCE = 10_000
_PLACES_AT_ONCE = 256
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Thumbnails:
    """Small WebP copies by digest and size, in a file of the cache's folder; without it they are made again."""

    def __init__(self, folder: Path, limit: int = 2 * 10**9) -> None:
        self.path, self.limit = folder / THUMBNAILS, limit
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, digest: str, size: int) -> bytes | None:
        query = "SELECT content FROM thumbnail WHERE digest = ? AND size = ?"
        row = self._attempt(lambda connection: connection.execute(query, (digest, size)).fetchone())
        return None if row is None else row[0]

    def has(self, digest: str, size: int) -> bool:
        query = "SELECT 1 FROM thumbnail WHERE digest = ? AND size = ?"
        return bool(self._attempt(lambda connection: connection.execute(query, (digest, size)).fetchone()))

    def put(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO thumbnail VALUES (?, ?, ?)", rows)
                pages, size = (
                    connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size")
                )
                if pages * size > self.limit:  # the oldest tenth makes room
                    last = "SELECT max(rowid) / 10 + min(rowid) FROM thumbnail"
                    connection.execute(f"DELETE FROM thumbnail WHERE rowid < ({last})")

        if rows:
            self._attempt(insert)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _attempt(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Whatever is wrong with the file costs time alone."""
        with self._lock:
            try:
                if self._connection is None:
                    make_folder(self.path.parent)
                    self.path.touch(mode=0o600)  # pictures are a person's own
                    self._connection = sqlite3.connect(self.path, 5.0, check_same_thread=False)
                    for setting in ("journal_mode = WAL", "synchronous = OFF"):
                        self._connection.execute(f"PRAGMA {setting}")
                    self._connection.execute(
                        "CREATE TABLE IF NOT EXISTS thumbnail (digest TEXT, size INTEGER, content BLOB,"
                        " PRIMARY KEY (digest, size))"
                    )
                return work(self._connection)
            except (sqlite3.Error, OSError, InputError) as error:
                _log.warning("the thumbnails in %s cannot be used (%s); they are made anew", self.path, error)
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                    with suppress(OSError):  # damaged: deletable like every cache
                        self.path.unlink(missing_ok=True)
                return None


def small_copy(picture: Image.Image, size: int) -> bytes:
    """WebP, made anew from the pixels: nothing of the file's own bytes is in it."""
    scale = min(1.0, size / max(picture.size))
    wanted = tuple(max(1, round(side * scale)) for side in picture.size)
    small = picture if scale == 1 else picture.resize(wanted, Image.Resampling.BILINEAR, reducing_gap=2.0)  # type: ignore[arg-type]
    content = io.BytesIO()
    small.save(content, "WEBP", quality=80, method=1)
    return content.getvalue()


def read_inside(path: Path, name: str, folders: Sequence[str]) -> bytes:
    """A file's bytes; refuses what really lies elsewhere than in the folders, or has become a link meanwhile."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot read image {name}: there is no such file; check the path") from error
    if not any(real.is_relative_to(Path(folder).resolve()) for folder in folders):
        what = "it is a link that leads out of the project's folders"
        raise InputError(f"cannot read image {name}: {what}; add the folder there")
    try:
        descriptor = os.open(real, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"cannot read image {name}: it is no regular file; leave it out")
            if status.st_size > MOST_BYTES:
                raise InputError(f"image {name} is too large: more than {MOST_BYTES // 10**6} MB; shrink it")
            return file.read(status.st_size)
    except OSError as error:
        raise InputError(f"cannot read image {name}: {error.strerror}; check the path") from error


class _Read(NamedTuple):
    """A file as far as a reading thread takes it."""

    file: FileRow
    picture: PictureRow | None = None
    """None where the content is known, or cannot be read."""
    pixels: Square | None = None
    places: NDArray[np.float16] | None = None
    thumbnail: bytes | None = None


class Indexer:
    """Keeps the library as the folders are. Stopped by `close`."""

    def __init__(
        self,
        project: Project,
        library: Library,
        model: Model,
        cache: Path,
        tell: Callable[[], None],
        edited: Callable[[str, str], None],
    ) -> None:
        self.project, self.library, self.model = project, library, model
        self.folders = project.folders()
        self.thumbnails = Thumbnails(cache)
        self._tell, self._edited = tell, edited
        self._stop, self._wake = threading.Event(), threading.Event()
        self.done = threading.Event()
        self.found, self.notice = 0, ""
        self._unread: set[str] = set()
        self._opened = ExitStack()
        space = self._opened.enter_context(cached_places(model, cache))
        assert space is not None
        self.places: CacheSpace = space
        self.wholes = space.cache.space("wholes", space.what, space.key, (model.space.size,), "float32")
        self._thread = threading.Thread(target=self._run, name="fewtag-indexer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.thumbnails.close()
        self._opened.close()

    def rescan(self) -> None:
        """Walks the folders again, soon."""
        self._try_again()
        self.done.clear()
        self._wake.set()

    def read(self, digest: str, files: Iterable[FileRow] | None = None) -> bytes:
        """A picture's bytes from one of its files; a file that holds something else by now is passed over."""
        for file in self.library.files_of.get(digest, ()) if files is None else files:
            try:
                data = read_inside(Path(file.path), Path(file.path).name, self.folders)
            except InputError:
                continue
            if content_digest(data).hex() == digest:
                return data
        raise InputError(f"the file of picture {digest} is not there any more; put it back, or scan the folder again")

    def square(self, digest: str) -> Square:
        """A picture as the network takes it."""
        return squash(decode(self.read(digest), digest, at_least=DRAFT * self.model.size), self.model.size)

    def look(self, digest: str) -> NDArray[np.float32]:
        """A picture's places, from memory, from the cache or by the network."""
        places = self.library.features.places(self.library.row(digest))
        return self.model.encode(self.square(digest)[None])[0] if places is None else places

    def thumbnail(self, digest: str, size: int = 256) -> bytes:
        """WebP, made anew from the pixels; kept in the cache."""
        if size not in SIZES:
            raise InputError(f"there is no thumbnail of {size} pixels; ask for 256 or 1024")
        self.library.row(digest)
        content = self.thumbnails.get(digest, size)
        if content is None:
            content = small_copy(decode(self.read(digest), digest, at_least=size), size)
            self.thumbnails.put([(digest, size, content)])
        return content

    def fetch(self, rows: Sequence[int]) -> Sequence[NDArray[np.float16] | None]:
        """Places from the cache."""
        return self.places.get_many([bytes.fromhex(self.library.digests[row]) for row in rows])

    def _run(self) -> None:
        try:
            features = self.library.features
            if features.count:
                self._stop.wait(PATIENT_SECONDS)
            for first in range(0, min(features.count, features.resident), _PLACES_AT_ONCE):
                if self._stop.is_set():
                    return
                features.bring(np.arange(first, min(first + _PLACES_AT_ONCE, features.count)))
            while not self._stop.is_set():
                since = time.monotonic()
                self._wake.clear()
                try:
                    self.scan()
                except InputError as error:
                    self.notice = str(error)
                except Exception:
                    _log.exception("indexing failed")
                    self.notice = "indexing failed; the log says why, start the studio again"
                self.done.set()
                self._tell()
                self._wake.wait(max(AGAIN_SECONDS, 20 * (time.monotonic() - since)))
        finally:
            self.done.set()

    def load_known(self) -> None:
        """The pictures of the last time, each as a whole; those that the cache has lost are read again by the scan."""
        files = [file for file in self.project.files() if file.folder in self.folders]
        pictures = {each.digest: each for each in self.project.pictures()}
        self.found = len(files)
        for digests in batches(iter(dict.fromkeys(file.digest for file in files)), _KNOWN_AT_ONCE):
            known = [pictures[digest] for digest in digests if digest in pictures]
            keys = [bytes.fromhex(picture.digest) for picture in known]
            # past what memory holds, a picture as a whole will do
            room = max(0, self.library.features.resident - len(self.library))
            there = {*self.places.present(keys[:room]), *keys[room:]}
            both = [place for place, key in enumerate(keys) if key in there]
            found, wholes = self.wholes.get_stacked([keys[place] for place in both])
            self.library.add([known[both[place]] for place in found], wholes, None)
        self.library.set_files(files)
        self._try_again()

    def scan(self) -> None:
        """Walks the folders, reads what is new or has changed, and forgets what is gone."""
        todo: list[tuple[Found, str]] = []
        seen: set[str] = set()
        gone_folders = []
        for folder in self.folders:
            try:
                found = walk(Path(folder))
            except InputError:
                gone_folders.append(folder)
                continue
            own = self._deliveries_in(folder)
            for each in found:
                if own and each.name.startswith(own):
                    continue
                seen.add(_text(str(each.path)))
                if self._is_new(each):
                    todo.append((each, folder))
        vanished = [
            path
            for path, file in list(self.library.files.items())
            if path not in seen and file.folder not in gone_folders
        ]
        self.found = len(seen)
        for some in (todo[:8], todo[8:]):  # the first ones soon
            reads = prefetch(self._read, some, 2 * BATCH, max(1, usable_cores()))
            with closing(reads):  # type: ignore[type-var]
                for batch in batches(takewhile(lambda _: not self._stop.is_set(), reads), BATCH):
                    self._take(batch)
        # of a folder that is gone, what is found in another one has moved there
        here = {
            digest
            for digest, files in list(self.library.files_of.items())
            if any(file.folder not in gone_folders for file in files)
        }
        vanished += [
            path
            for path, file in list(self.library.files.items())
            if file.folder in gone_folders and file.digest in here
        ]
        # last: a moved file is found under its new path first, so that it is never away
        if vanished and not self._stop.is_set():
            self.project.record(gone=vanished)
            self.library.set_files([], vanished)
        self.found = len(self.library.files)
        self.notice = (
            f"the picture folder {gone_folders[0]} is not there; its answers are kept, plug it in or mount it to see "
            "its pictures again"
            if gone_folders
            else ""
        )

    def _deliveries_in(self, folder: str) -> str:
        """Where the project's own deliveries lie below a picture folder: copies of pictures are no pictures of it."""
        own = (self.project.folder / DELIVERIES).resolve()
        root = Path(folder).resolve()
        return f"{own.relative_to(root).as_posix()}/" if own.is_relative_to(root) else ""

    def _try_again(self) -> None:
        """What could not be read is read once more by the next scan: its rights, or where it leads, may be others."""
        self._unread = {path for path, file in list(self.library.files.items()) if file.failure}

    def _is_new(self, found: Found) -> bool:
        path = _text(str(found.path))
        if path in self._unread:
            self._unread.discard(path)
            return True
        known = self.library.files.get(path)
        if known is None or (known.digest is not None and known.digest not in self.library.row_of):
            return True
        return (known.size, known.mtime) != _stamp(found.path)

    def _read(self, task: tuple[Found, str]) -> _Read:
        found, folder = task
        size, mtime = _stamp(found.path)
        file = FileRow(_text(str(found.path)), folder, _text(found.name), None, size, mtime)
        try:
            if file.path != str(found.path):
                raise InputError("the file's name is no UTF-8 text; rename it")
            if found.problem:
                raise InputError(found.problem)
            data = read_inside(found.path, found.name, self.folders)
            key = content_digest(data)
            file = file._replace(digest=key.hex())
            if key.hex() in self.library.row_of:
                return _Read(file)
            header = read_header(data, found.name)
            row = PictureRow(key.hex(), *header, len(data))
            places = self.places.get_many([key])[0]
            has_thumbnail = self.thumbnails.has(key.hex(), SIZES[0])
            if places is not None and has_thumbnail:
                return _Read(file, row, places=places)
            image = decode(data, found.name, at_least=DRAFT * self.model.size)
            pixels = squash(image, self.model.size) if places is None else None
            return _Read(file, row, pixels, places, None if has_thumbnail else small_copy(image, SIZES[0]))
        except InputError as error:
            return _Read(file._replace(digest=None, failure=str(error)))
        except Exception as error:  # our own fault, but the other pictures shall not wait for it to be mended
            _log.exception("picture %s cannot be indexed", found.name)
            return _Read(file._replace(digest=None, failure=f"image {found.name} cannot be indexed ({error!r})"))

    def _take(self, reads: Sequence[_Read]) -> None:
        """A batch through the network, into the caches, the project and the library."""
        known = self.library.row_of
        news = {each.picture: each for each in reads if each.picture is not None and each.picture.digest not in known}
        places = {picture: read.places for picture, read in news.items() if read.places is not None}
        squares = {picture: read.pixels for picture, read in news.items() if read.pixels is not None}
        if squares:
            encoded = self.model.encode(list(squares.values())).astype(np.float16)
            places |= dict(zip(squares, encoded, strict=True))
            self.places.put_many([bytes.fromhex(each.digest) for each in squares], encoded)
        self.thumbnails.put([(key.digest, SIZES[0], each.thumbnail) for key, each in news.items() if each.thumbnail])
        self.project.record(list(news), [read.file for read in reads])
        if news:
            half = np.stack([places[picture] for picture in news])
            wholes = unit(half.astype(np.float32).mean(axis=1))
            self.wholes.put_many([bytes.fromhex(each.digest) for each in news], wholes)
            self.library.add(list(news), wholes, half)
        for read in reads:
            before = self.library.files.get(read.file.path)
            if before is not None and before.digest and read.file.digest and before.digest != read.file.digest:
                self._edited(before.digest, read.file.digest)
        self.library.set_files([read.file for read in reads])
        self._tell()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _text(name: str) -> str:
    """A file's name that is no text is written as Python would."""
    return name.encode(errors="backslashreplace").decode()
