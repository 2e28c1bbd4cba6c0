"""The library: a project's pictures in memory, ready to be ranked again after each answer, with bursts stacked.

Places are stored as 16-bit integers with a scale for each place: they are made from the half precision of the cache,
add a tenth of its rounding error, and are converted to single precision in one step, where half precision takes three.
If there are more pictures than memory should hold, ranking has two tiers: first by mean vectors, then by the places of
the best pictures.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Classifiers, Fitted, unit
from fewtag.errors import InputError, MissingError
from fewtag.pictures.prefetch import usable_cores
from fewtag.studio.project import FileRow, PictureRow
from fewtag.tagger.stream import widen

RESIDENT = 8_000
"""The most pictures whose places stay in memory, at some 50 KB each; of more, the most recently used ones."""
BEST, SAMPLE = 3_000, 1_000
"""If there are more: how many of the likeliest pictures are scored exactly, and how many of a sample."""
AT_ONCE = 32
"""Pictures whose widened places fit the processor's cache."""
_MORE, _PIECE = 512, 1024
_MOST = np.float32(32767)
ALIKE, BURST, BURST_SECONDS = 0.94, 0.8, 5.0
"""Cosine from which neighbours count as one picture to a person, and from which two shots within so many seconds do.
The most similar two of 2,000 photographs of different things have 0.93; the same one, re-encoded or brightened, 0.95
and more; from a step aside, or with the camera turned a little, 0.8 to 0.97."""
Half = NDArray[np.float16]
Rows = NDArray[np.int64]
Fetch = Callable[[Sequence[int]], Sequence[NDArray[np.float16] | None]]


class SupersededError(Exception):
    """These scores are no longer needed."""


class Features:
    """The mean vector of each picture, and the places of as many as memory should hold; rows are added, never moved."""

    def __init__(self, places: int, size: int, fetch: Fetch, resident: int = RESIDENT) -> None:
        self.count, self.resident = 0, resident
        self._fetch = fetch
        self._lock = threading.RLock()
        self._means = np.empty((_MORE, size), np.float32)
        # memory is allocated when it is first written to
        self._codes = np.empty((resident, places, size), np.int16)
        self._scales, self._lengths = (np.empty((resident, places), np.float32) for _ in range(2))
        self._slot_of = np.full(_MORE, -1, np.int64)
        self._owner, self._used = np.full(resident, -1, np.int64), np.zeros(resident, np.int64)
        self._clock, self._taken = 0, 0
        self._buffers = threading.local()
        # if the matrix library has its own threads, those of two concurrent calls would wait for each other
        alone = "1" in (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS"))
        self._threads = usable_cores() if alone else 1
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fewtag-ranking")

    @property
    def means(self) -> NDArray[np.float32]:
        """rows × space, unit vectors"""
        return self._means[: self.count]

    def append(self, means: NDArray[np.float32], places: Half | None) -> None:
        """Adds rows; without their places if memory is full anyway."""
        with self._lock:
            after = self.count + len(means)
            if after > len(self._means):
                size = max(after, 2 * len(self._means))
                grown = np.empty((size, self._means.shape[1]), np.float32)
                grown[: self.count] = self.means
                self._means = grown  # not resized in place, since others may be reading it
                self._slot_of = np.pad(self._slot_of, (0, size - len(self._slot_of)), constant_values=-1)
            self._means[self.count : after] = means
            if places is not None:
                room = places[: self.resident - self._taken]
                self._put(np.arange(self.count, self.count + len(room)), room)
            self.count = after

    def _put(self, rows: Rows, places: Sequence[Half] | Half) -> None:
        """Stores places in free slots, or in the least recently used ones."""
        starts = range(0, len(rows), AT_ONCE)
        coded = self._pool.map(lambda first: _coded(np.asarray(places[first : first + AT_ONCE])), starts)
        for first, (codes, scales, lengths) in zip(starts, coded, strict=True):
            some = rows[first : first + AT_ONCE]
            fresh = np.arange(self._taken, min(self.resident, self._taken + len(some)))
            lacking = len(some) - len(fresh)
            old = np.argpartition(self._used[: self._taken], lacking - 1)[:lacking] if lacking else fresh[:0]
            slots = np.concatenate([fresh, old])
            self._taken += len(fresh)
            before = self._owner[slots]
            self._slot_of[before[before >= 0]] = -1
            self._codes[slots], self._scales[slots], self._lengths[slots] = codes, scales, lengths
            self._slot_of[some], self._owner[slots], self._used[slots] = slots, some, self._clock

    def bring(self, rows: Rows) -> Rows:
        """Loads the rows' places into memory if needed; returns their slots, −1 for places that are not available."""
        with self._lock:
            self._clock += 1
            slots = self._slot_of[rows]
            self._used[slots[slots >= 0]] = self._clock
            missing = rows[slots < 0]
            for first in range(0, len(missing), 256):
                some = missing[first : first + 256]
                halves = self._fetch(some.tolist())
                there = [number for number, half in enumerate(halves) if half is not None]
                self._put(some[there], [half for half in halves if half is not None])
            return self._slot_of[rows]

    def close(self) -> None:
        self._pool.shutdown()

    def places(self, row: int) -> NDArray[np.float32] | None:
        """places × space of one picture; None if they are not available."""
        with self._lock:
            slot = int(self.bring(np.array([row]))[0])
            return None if slot < 0 else self._codes[slot] * self._scales[slot][:, None]

    def logits(
        self, fitted: Sequence[Fitted], focus: float, first: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """labels × rows from `first` on, the numbers of `Classifiers.logits`, and which of them are exact.

        The others are estimated from the mean vector, on a line fitted to the exact ones. `stop` tells whether the
        scores are no longer needed.
        """
        count = self.count
        if count <= self.resident:
            found = self.exact(fitted, focus, np.arange(first, count), stop)
            exact = np.isfinite(found)
            return (found if exact.all() else np.where(exact, found, self._rough(fitted, first, count))), exact
        rough = self._rough(fitted, 0, count)
        exact = np.zeros(rough.shape, np.bool_)
        most = min(BEST, self.resident // 2)
        for line, known, each in zip(rough, exact, fitted, strict=True):
            rows = np.unique(np.concatenate([np.argpartition(-line, most)[:most], self.sample(count)]))
            close = self.exact([each], focus, rows, stop)[0]
            rows, close = rows[np.isfinite(close)], close[np.isfinite(close)]
            if len(rows) > 1:
                slope, offset = np.polyfit(line[rows], close, 1)
                line[:] = max(float(slope), 0.0) * line + offset
            line[rows], known[rows] = close, True
        return rough[:, first:], exact[:, first:]

    def sample(self, count: int) -> Rows:
        """Evenly spaced rows that are always scored exactly, to represent all of them."""
        return np.linspace(0, count - 1, min(SAMPLE, self.resident // 4)).astype(np.int64)

    def _rough(self, fitted: Sequence[Fitted], first: int, count: int) -> NDArray[np.float32]:
        means = self._means[first:count]
        return np.stack(
            [means @ (each.mean_weights + each.attended_weights) + np.float32(each.bias) for each in fitted]
        )

    def exact(
        self, fitted: Sequence[Fitted], focus: float, rows: Rows, stop: Callable[[], bool] = lambda: False
    ) -> NDArray[np.float32]:
        """labels × rows, all scored exactly; NaN if a row's places are not available."""
        found = np.full((len(fitted), len(rows)), np.nan, np.float32)
        labels = Classifiers.of(fitted)

        def score(places: Rows) -> None:
            for first in range(0, len(places), AT_ONCE):
                some = places[first : first + AT_ONCE]
                slots = self._slot_of[rows[some]]
                wide = self._buffer()[: len(some)]
                for number, slot in enumerate(slots.tolist()):
                    np.copyto(wide[number], self._codes[slot])
                looked = _attended(
                    wide, self._scales[slots], self._lengths[slots], labels.prototypes, labels.attended_weights, focus
                )
                found[:, some] = (looked + self._means[rows[some]] @ labels.mean_weights.T + labels.bias).T

        for first in range(0, len(rows), _PIECE):
            if stop():
                raise SupersededError
            with self._lock:  # one piece at a time, so that urgent requests need not wait for others
                here = first + np.flatnonzero(self.bring(rows[first : first + _PIECE]) >= 0)
                deque(self._pool.map(score, np.array_split(here, 2 * self._threads)), maxlen=0)
        return found

    def _buffer(self) -> NDArray[np.float32]:
        """A buffer for each thread."""
        if not hasattr(self._buffers, "wide"):
            self._buffers.wide = np.empty((AT_ONCE, *self._codes.shape[1:]), np.float32)
        return self._buffers.wide


def _coded(half: Half) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.float32]]:
    """Quantises places to 16 bits: codes, images × places × space, and each place's scale and length."""
    wide = widen(half)
    lengths = np.sqrt(np.einsum("ips,ips->ip", wide, wide))
    scales = np.maximum(np.maximum(wide.max(axis=-1), -wide.min(axis=-1)) / _MOST, np.float32(1e-12))
    wide /= scales[..., None]
    return np.rint(wide, out=wide).astype(np.int16), scales, lengths


def _attended(
    wide: NDArray[np.float32],
    scales: NDArray[np.float32],
    lengths: NDArray[np.float32],
    prototypes: NDArray[np.float32],
    attended_weights: NDArray[np.float32],
    focus: float,
) -> NDArray[np.float32]:
    """images × labels: each label's weights applied to what its attention finds, as in `Classifiers.logits`."""
    flat = wide.reshape(-1, wide.shape[-1])
    one = len(prototypes) == 1
    along = flat @ prototypes[0] if one else flat @ prototypes.T
    attention = along.reshape(*wide.shape[:2], -1)
    attention *= (np.float32(focus) * scales / np.maximum(lengths, 1e-12))[..., None]
    attention -= attention.max(axis=1, keepdims=True)
    np.exp(attention, out=attention)
    attention *= scales[..., None]
    pooled = np.matmul(attention.transpose(0, 2, 1), wide)
    length = np.sqrt(np.einsum("ils,ils->il", pooled, pooled))
    along = pooled[:, 0] @ attended_weights.T if one else np.einsum("ils,ls->il", pooled, attended_weights)
    return along / np.maximum(length, 1e-6)


def folder_prefixes(folders: Sequence[str], kind: type[PurePath] = PurePath) -> dict[str, str]:
    """The prefix of pictures' names for each folder: empty if it is the only one, else its own name.

    If two have the same name, or one has none, it is the path.
    """
    paths = [kind(folder) for folder in folders]
    names = [path.name for path in paths]
    return {
        folder: "" if len(folders) == 1 else f"{name}/" if name and names.count(name) == 1 else _whole(path)
        for folder, name, path in zip(folders, names, paths, strict=True)
    }


def _whole(folder: PurePath) -> str:
    return f"{folder.as_posix().strip('/')}/"


class Library:
    """What is known about each picture besides its features: names, dates, sizes, files, stacks."""

    def __init__(self, features: Features, folders: Sequence[str]) -> None:
        self.features = features
        self.digests: list[str] = []
        self.pictures: list[PictureRow] = []
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.files: dict[str, FileRow] = {}
        self.files_of: dict[str, list[FileRow]] = {}
        self._alive = np.zeros(_MORE, np.bool_)
        self._stacks: tuple[tuple[int, int], NDArray[np.int64]] = ((-1, -1), np.empty(0, np.int64))
        self.changes = 0
        """Rises with every change of the files."""
        self._lock = threading.RLock()
        self._prefix = folder_prefixes(folders)

    def __len__(self) -> int:
        return self.features.count

    @property
    def alive(self) -> NDArray[np.bool_]:
        """rows: whether a file of the picture exists"""
        return self._alive[: len(self)]

    @property
    def failures(self) -> list[FileRow]:
        return [file for file in list(self.files.values()) if file.failure]

    def row(self, digest: str) -> int:
        """The row of a picture; raises MissingError if it is not in the project."""
        try:
            return self.row_of[digest]
        except KeyError as error:
            raise MissingError(f"there is no picture {digest[:64]!r} in the project; search again") from error

    def add(self, pictures: Sequence[PictureRow], means: NDArray[np.float32], places: Half | None) -> None:
        """Adds rows; each becomes visible once it has a file."""
        with self._lock:
            for number, each in enumerate(pictures, len(self.digests)):
                self.digests.append(each.digest)
                self.pictures.append(each)
                self.names.append("")
                self.row_of[each.digest] = number
            while len(self.digests) > len(self._alive):
                self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
            self.features.append(means, places)

    def shown_name(self, file: FileRow) -> str:
        """A file's path relative to its folder; with several folders, preceded by the folder's name."""
        return self._prefix.get(file.folder, _whole(PurePath(file.folder))) + file.name

    def set_files(self, files: Sequence[FileRow], gone: Sequence[str] = ()) -> None:
        """Updates files, by path; `gone` are paths that no longer exist."""
        with self._lock:
            self.changes += 1
            touched = set()
            for path in (*gone, *(file.path for file in files)):
                if (before := self.files.pop(path, None)) is not None and before.digest is not None:
                    self.files_of[before.digest].remove(before)
                    touched.add(before.digest)
            for file in files:
                self.files[file.path] = file
                if file.digest is not None:
                    self.files_of.setdefault(file.digest, []).append(file)
                    touched.add(file.digest)
            for digest in touched:
                if (row := self.row_of.get(digest)) is not None:
                    names = [self.shown_name(file) for file in self.files_of[digest]]
                    self._alive[row] = bool(names)
                    if names:
                        self.names[row] = min(names)

    def ordered(self) -> NDArray[np.int64]:
        """The rows that have a file, sorted by name."""
        return self._sorted_and_stacked()[0]

    def stacks(self) -> NDArray[np.int64]:
        """rows: the stack of each row, identified by the row of its first picture"""
        return self._sorted_and_stacked()[1]

    def stack_of(self, row: int) -> list[int]:
        """The rows of a picture's stack, including itself."""
        stacks = self.stacks()
        return np.flatnonzero((stacks == stacks[row]) & self.alive[: len(stacks)]).tolist()

    def _sorted_and_stacked(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        with self._lock:
            state = len(self), self.changes
            if self._stacks[0] != state:
                rows = sorted(np.flatnonzero(self.alive).tolist(), key=self.names.__getitem__)
                order = np.array(rows, np.int64)
                taken = np.array([self.pictures[row].taken or "NaT" for row in rows], "datetime64[s]")
                times = np.where(np.isnat(taken), np.nan, taken.astype(np.int64))
                self._order = order
                self._stacks = state, stack(self.features.means, order, times)
            return self._order, self._stacks[1]


def stack(means: NDArray[np.float32], order: NDArray[np.int64], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Stacks near-duplicates and bursts: a picture joins the previous one's stack, by name, if it is like its first.

    It is compared with the first and not with the last, so that a slow walk does not become one stack.
    """
    heads = np.arange(len(order))
    for first in range(1, len(order), _PIECE):  # in pieces, since gathering all of them would copy them twice
        here = np.arange(first, min(first + _PIECE, len(order)))
        wanted = np.where(np.abs(times[here] - times[here - 1]) <= BURST_SECONDS, BURST, ALIKE)
        near = np.einsum("ns,ns->n", means[order[here]], means[order[here - 1]])
        for number, least in zip(here[near >= wanted].tolist(), wanted[near >= wanted].tolist(), strict=True):
            head = heads[number - 1]
            if head == number - 1 or means[order[number]] @ means[order[head]] >= least:
                heads[number] = head
    found = np.arange(len(means))
    found[order] = order[heads]
    return found


def box_prototype(places: NDArray[np.float32], box: tuple[float, float, float, float]) -> NDArray[np.float32]:
    """The mean of the places under a box (left, top, right, bottom), each weighted by its overlap with the box."""
    left, top, right, bottom = box
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise InputError(f"the box {box} is none; give left, top, right and bottom from 0 to 1")
    side = math.isqrt(len(places))
    edges = np.arange(side + 1) / side
    across = np.clip(np.minimum(edges[1:], right) - np.maximum(edges[:-1], left), 0, None)
    down = np.clip(np.minimum(edges[1:], bottom) - np.maximum(edges[:-1], top), 0, None)
    inside = np.outer(down, across).reshape(-1).astype(np.float32)
    return unit(inside @ unit(places))
