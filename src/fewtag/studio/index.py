"""The indexer: walks folders, and reads, encodes and thumbnails pictures in a thread while a person works."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.cache import ArrayRows, Cache, content_digest
from fewtag.core.posterior import unit
from fewtag.errors import InputError
from fewtag.pictures.decode import DRAFT, Square, decode, read_header, squash, squash_bytes, thumbnail
from fewtag.pictures.files import Picture, as_text, stamp, walk
from fewtag.pictures.prefetch import batches, prefetch, usable_cores
from fewtag.studio.first_page import thumbnails
from fewtag.studio.library import Library
from fewtag.studio.project import DELIVERIES, FileRow, PictureRow, Project
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH, SAME, Read, cached_places, places_of

SIZES = (256, 1024)
"""Sizes of thumbnails in pixels: for a cell, and for a picture."""
AGAIN_SECONDS = 60.0
"""The interval at which folders are walked again; longer if a walk takes long."""
PATIENT_SECONDS = 1.0
"""How long background work waits, so that a page is served first; a request for its results ends the wait."""
_KNOWN_AT_ONCE = 10_000
_PLACES_AT_ONCE = 256
_log = logging.getLogger(__name__)


def read_inside(path: Path, name: str, folders: Sequence[str]) -> bytes:
    """A file's bytes; refuses a file that really lies outside of the folders, or has become a link meanwhile."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot read image {name}: there is no such file; check the path") from error
    if not any(real.is_relative_to(Path(folder).resolve()) for folder in folders):
        what = "it is a link that leads out of the project's folders"
        raise InputError(f"cannot read image {name}: {what}; add the folder there")
    return Picture(real, name=name).read(follow=False)


class _Looked(NamedTuple):
    """The result of a reading thread for a file."""

    file: FileRow
    new: tuple[PictureRow, Read] | None = None
    """None if the content is already known, or cannot be read."""
    thumbnail: bytes | None = None


class Indexer:
    """Keeps the library up to date with the folders. Stopped by `close`."""

    def __init__(
        self,
        project: Project,
        library: Library,
        model: Model,
        cache: Path,
        tell: Callable[[], None],
        edited: Callable[[str, FileRow], None],
    ) -> None:
        self.project, self.library, self.model = project, library, model
        self.folders = project.folders()
        self._tell, self._edited = tell, edited
        self._stop, self._wake = threading.Event(), threading.Event()
        self.done, self.hurry = threading.Event(), threading.Event()
        """`done` is set once the folders were walked; `hurry` if somebody waits for that, and no page goes first."""
        self.found, self.notice = 0, ""
        self._unread: set[str] = set()
        self._former: dict[str, str] = {}
        """The last picture of each file that cannot be read just now, as while another program writes it."""
        self._opened = ExitStack()
        self.private = self._opened.enter_context(Cache(cache, private=True))
        self.thumbnails = {size: thumbnails(self.private, size) for size in SIZES}
        space = self._opened.enter_context(cached_places(model, cache))
        assert space is not None
        self.places: ArrayRows = space
        self.means = space.cache.arrays("wholes", space.what, space.key, (model.space.size,), "float32")
        self._thread = threading.Thread(target=self._run, name="fewtag-indexer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self.hurry.set()
        if self._thread.is_alive():
            self._thread.join()
        self._opened.close()

    def rescan(self) -> None:
        """Walks the folders again, soon, and retries files that could not be read."""
        self._try_again()
        self.done.clear()
        self._wake.set()

    def read(self, digest: str, files: Iterable[FileRow] | None = None) -> bytes:
        """A picture's bytes from one of its files; a file whose content has changed is skipped."""
        for file in self.library.files_of.get(digest, ()) if files is None else files:
            try:
                data = read_inside(Path(file.path), Path(file.path).name, self.folders)
            except InputError:
                continue
            if content_digest(data).hex() == digest:
                return data
        raise InputError(f"the file of picture {digest} is not there any more; put it back, or scan the folder again")

    def square(self, digest: str) -> Square:
        """A picture as a square for the network."""
        return squash_bytes(self.read(digest), digest, self.model.size)

    def look(self, digest: str) -> NDArray[np.float32]:
        """A picture's places, from memory, from the cache or by the network."""
        places = self.library.features.places(self.library.row(digest))
        return self.model.encode(self.square(digest)[None])[0] if places is None else places

    def thumbnail(self, digest: str, size: int = 256) -> bytes:
        """A thumbnail in WebP, made from the pixels, and kept in the cache."""
        if size not in SIZES:
            raise InputError(f"there is no thumbnail of {size} pixels; ask for 256 or 1024")
        if digest not in self.library.row_of and size == SIZES[0] and (known := self.project.any_example(digest)):
            return known.small  # an example whose file is gone
        self.library.row(digest)
        key, kept = bytes.fromhex(digest), self.thumbnails[size]
        content = kept.get_bytes([key]).get(key)
        if content is None:
            content = thumbnail(decode(self.read(digest), digest, at_least=size), size, quick=True)
            kept.put_bytes({key: content})
        return content

    def fetch(self, rows: Sequence[int]) -> Sequence[NDArray[np.float16] | None]:
        """Places from the cache."""
        return self.places.get_many([bytes.fromhex(self.library.digests[row]) for row in rows])

    def _run(self) -> None:
        try:
            features = self.library.features
            if features.count:
                self.hurry.wait(PATIENT_SECONDS)
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
                if not self._wake.is_set():  # otherwise they are to be walked again
                    self.done.set()
                self._tell()
                self._wake.wait(max(AGAIN_SECONDS, 20 * (time.monotonic() - since)))
        finally:
            self.done.set()

    def load_known(self) -> None:
        """Loads the pictures of the last session with their mean vectors; the scan re-reads what the cache has lost."""
        files = [file for file in self.project.files() if file.folder in self.folders]
        pictures = {each.digest: each for each in self.project.pictures()}
        self.found = len(files)
        for digests in batches(iter(dict.fromkeys(file.digest for file in files)), _KNOWN_AT_ONCE):
            known = [pictures[digest] for digest in digests if digest in pictures]
            keys = [bytes.fromhex(picture.digest) for picture in known]
            # beyond what memory holds, a picture's mean vector is enough
            room = max(0, self.library.features.resident - len(self.library))
            there = {*self.places.present(keys[:room]), *keys[room:]}
            both = [number for number, key in enumerate(keys) if key in there]
            found, means = self.means.get_stacked([keys[number] for number in both])
            self.library.add([known[both[number]] for number in found], means, None)
        self.library.set_files(files)
        self._try_again()

    def scan(self) -> None:
        """Walks the folders, reads what is new or has changed, and forgets what is gone."""
        todo: list[tuple[Picture, str]] = []
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
                seen.add(as_text(str(each.path)))
                if self._is_new(each):
                    todo.append((each, folder))
        vanished = [
            path
            for path, file in list(self.library.files.items())
            if path not in seen and file.folder not in gone_folders
        ]
        self.found = len(seen)
        for some in (todo[:8], todo[8:]):  # a few first, so that they appear soon
            reads = prefetch(self._read, some, 2 * BATCH, max(1, usable_cores()))
            with closing(reads):  # type: ignore[type-var]
                for batch in batches(takewhile(lambda _: not self._stop.is_set(), reads), BATCH):
                    self._take(batch)
        # pictures of a missing folder that are found in another one have been moved there
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
        # last, so that a moved file is found under its new path first and is never missing
        if vanished and not self._stop.is_set():
            self._follow(vanished)
            self.project.record(gone=vanished)
            self.library.set_files([], vanished)
        self.found = len(self.library.files)
        missed = next((file.folder for file in self.library.files.values() if file.folder in gone_folders), None)
        self.notice = (
            f"the picture folder {missed} is not there; its answers are kept, plug it in or mount it to see its "
            "pictures again"
            if missed
            else ""
        )

    def _follow(self, vanished: Sequence[str]) -> None:
        """Has answers carried over from files that were moved and edited at once, to those that look the same now."""
        library = self.library
        gone = {*vanished}
        answered = {picture for pictures in self.project.fold.latest.values() for picture in pictures}
        for digest in dict.fromkeys(library.files[path].digest for path in vanished):
            row = library.row_of.get(str(digest)) if digest in answered else None
            if digest is None or row is None or any(file.path not in gone for file in library.files_of[digest]):
                continue
            alike = np.flatnonzero(library.features.means @ library.features.means[row] > SAME).tolist()
            for other in {library.digests[each] for each in alike} - answered:
                if files := [file for file in library.files_of.get(other, ()) if file.path not in gone]:
                    self._edited(digest, files[0])

    def _deliveries_in(self, folder: str) -> str:
        """The prefix of the project's own deliveries below a picture folder, whose copies are not indexed."""
        own = (self.project.folder / DELIVERIES).resolve()
        root = Path(folder).resolve()
        return f"{own.relative_to(root).as_posix()}/" if own.is_relative_to(root) else ""

    def _try_again(self) -> None:
        """Lets the next scan retry unreadable files: permissions or the targets of links may have changed."""
        self._unread = {path for path, file in list(self.library.files.items()) if file.failure}

    def _is_new(self, found: Picture) -> bool:
        path = as_text(str(found.path))
        if path in self._unread:
            self._unread.discard(path)
            return True
        known = self.library.files.get(path)
        if known is None or (known.digest is not None and known.digest not in self.library.row_of):
            return True
        return (known.size, known.mtime) != (stamp(found.path) or (0, 0))

    def _read(self, task: tuple[Picture, str]) -> _Looked:
        found, folder = task
        size, mtime = stamp(found.path) or (0, 0)
        file = FileRow(as_text(str(found.path)), folder, as_text(found.name), None, size, mtime)
        try:
            if file.path != str(found.path):
                raise InputError("the file's name is no UTF-8 text; rename it")
            if found.problem:
                raise InputError(found.problem)
            data = read_inside(found.path, found.name, self.folders)
            key = content_digest(data)
            file = file._replace(digest=key.hex())
            if key.hex() in self.library.row_of:
                return _Looked(file)
            row = PictureRow(key.hex(), *read_header(data, found.name), len(data))
            read = Read(found.name, key, places=self.places.get_many([key])[0])
            has_thumbnail = key in self.thumbnails[SIZES[0]]
            if read.places is not None and has_thumbnail:
                return _Looked(file, (row, read))
            image = decode(data, found.name, at_least=DRAFT * self.model.size)
            if read.places is None:
                read = read._replace(pixels=squash(image, self.model.size))
            return _Looked(file, (row, read), None if has_thumbnail else thumbnail(image, SIZES[0], quick=True))
        except InputError as error:
            return _Looked(file._replace(digest=None, failure=str(error)))
        except Exception as error:  # a bug of ours, which should not stop the other pictures
            _log.exception("picture %s cannot be indexed", found.name)
            return _Looked(file._replace(digest=None, failure=f"image {found.name} cannot be indexed ({error!r})"))

    def _take(self, looked: Sequence[_Looked]) -> None:
        """Takes a batch through the network, and into the caches, the project and the library."""
        files = [each.file for each in looked]
        news = {each.new[0]: each for each in looked if each.new and each.new[0].digest not in self.library.row_of}
        reads = [each.new[1] for each in news.values() if each.new]
        places = places_of(self.model, reads, self.places) if reads else None
        small = {bytes.fromhex(row.digest): each.thumbnail for row, each in news.items() if each.thumbnail}
        self.thumbnails[SIZES[0]].put_bytes(small)
        self.project.record(list(news))
        if places is not None:
            half = places.astype(np.float16)  # as they are stored, so that a later start has the same numbers
            means = unit(half.astype(np.float32).mean(axis=1))
            self.means.put_many([bytes.fromhex(each.digest) for each in news], means)
            self.library.add(list(news), means, half)
        for file in files:
            known = self.library.files.get(file.path)
            before = known.digest if known is not None and known.digest else self._former.get(file.path)
            if before and file.digest is None:
                self._former[file.path] = before
            elif before and before != file.digest:
                self._edited(before, file)
        self.project.record(files=files)  # only now: if answers could not be carried over, the next scan tries again
        self.library.set_files(files)
        self._tell()
