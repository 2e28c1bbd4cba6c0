"""The studio: every action on a project as a method. Threads may share one."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from fewtag.studio.values import (
    Acknowledged,
    Answer,
    Checked,
    Delivery,
    Explanation,
    Failure,
    LabelRow,
    Listener,
    Order,
    Overview,
    Page,
    PictureDetail,
    ReviewPage,
    Undone,
)
from fewtag.tagger.stream import Scorer, Tagged
from fewtag.tagger.tagger import Tagger

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, from 0 to 1."""


class Studio:
    """A project folder, its pictures in memory and its labels, open for one process.

    Whatever is refused is an InputError, one sentence; an UnknownError (an InputError too) names what is not there.
    """

    folder: Path

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        pictures: Iterable[str | os.PathLike[str]] = (),
        *,
        model: str | None = None,
        words: str | None = None,
        device: str = "auto",
        cache: str | os.PathLike[str] | None = None,
        index: bool = True,
    ) -> "Studio":
        """Opens a project, or makes one; indexing begins behind it. `pictures` are folders to add.

        Returns within a second: the network is loaded behind it. `model` None is the project's own, or "default".
        `index=False` starts no thread that walks folders (tests, --check).
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stops the threads, writes the bank, lets go of the project."""
        raise NotImplementedError

    # what is there
    def overview(self) -> Overview:
        """The project in numbers; a few microseconds."""
        raise NotImplementedError

    def labels(self) -> list[LabelRow]:
        """Sorted by name. Counts may be a second old while other labels are rescored."""
        raise NotImplementedError

    def label(self, name: str) -> LabelRow:
        """One of them; UnknownError."""
        raise NotImplementedError

    def failures(self) -> list[Failure]:
        raise NotImplementedError

    def ready(self) -> tuple[bool, str]:
        """Whether pictures can be scored yet, and if not what is waited for; for /ready."""
        raise NotImplementedError

    def wait(self, seconds: float | None = None) -> bool:
        """Until indexing is done and the bank is on disk; False where the time ran out first."""
        raise NotImplementedError

    # labels; all are undone by undo()
    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> LabelRow:
        """A label by its name (the last part of its path), like other words, or by pictures alone."""
        raise NotImplementedError

    def teach(self, name: str, pictures: Sequence[str]) -> LabelRow:
        """A new or known label from pictures by digest: yes answers in one group with its definition."""
        raise NotImplementedError

    def rename(self, old: str, new: str, *, merge: bool = False) -> LabelRow:
        """Refuses a name that is taken, unless the two shall become one."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        raise NotImplementedError

    def set_threshold(self, name: str, threshold: float | None) -> LabelRow:
        """None goes back to the model's own."""
        raise NotImplementedError

    # answers
    def answer(self, answers: Sequence[Answer], *, group: str | None = None) -> Acknowledged:
        """All of them on disk before it returns, or none; `group` is the UUID that undoes them together."""
        raise NotImplementedError

    def undo(self, id: str | None = None) -> Undone:  # noqa: A002
        """The last group, or the one of this id (or that holds the answer of this id). InputError if none is left."""
        raise NotImplementedError

    def redo(self, id: str | None = None) -> Undone:  # noqa: A002
        """Undoes the last undo, as long as nothing new was done since."""
        raise NotImplementedError

    # looking
    def search(
        self,
        query: str = "",
        *,
        offset: int = 0,
        limit: int = 200,
        like: str | None = None,
        box: Box | None = None,
        stacked: bool = True,
    ) -> Page:
        raise NotImplementedError

    def picture(self, digest: str) -> PictureDetail:
        raise NotImplementedError

    def thumbnail(self, digest: str, size: Literal[256, 1024] = 256) -> bytes:
        """WebP, made anew by us; UnknownError for another digest, InputError where the file is gone."""
        raise NotImplementedError

    def heat(self, digest: str, label: str, *, fine: bool = False) -> bytes:
        """A WebP overlay with alpha, at most 512 pixels; `fine` by a pass of the network over a larger square."""
        raise NotImplementedError

    def explain(self, digest: str, label: str) -> Explanation:
        raise NotImplementedError

    def review(
        self, label: str, order: Order | Literal["auto"] = "auto", size: int = 48, offset: int = 0
    ) -> ReviewPage:
        raise NotImplementedError

    # out
    def deliver(
        self,
        format: str,  # noqa: A002
        *,
        confirmed_only: bool = False,
        scores: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Delivery:
        """csv, jsonl or parquet into PROJECT/deliveries/, or "xmp" beside the pictures. No path is taken."""
        raise NotImplementedError

    def delivery(self, file: str) -> Path:
        """Where a delivery of this name lies; UnknownError for any other name."""
        raise NotImplementedError

    @property
    def formats(self) -> tuple[str, ...]:
        """What `deliver` can write here."""
        raise NotImplementedError

    def tag(self, digests: Sequence[str]) -> list[Tagged]:
        """Rows for pictures of the project (`image` is the name); a person's word counts. UnknownError."""
        raise NotImplementedError

    @property
    def tagger(self) -> Tagger:
        """A tagger of the labels as they are now, for pictures from elsewhere; not to be taught."""
        raise NotImplementedError

    def scorer(self) -> Scorer:
        """Its labels ready to score, at this library's frequencies: what /v1/tag uses. InputError without a label."""
        raise NotImplementedError

    # keeping
    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(event, value)` from a thread of the studio's; returns what ends that. It must not block."""
        raise NotImplementedError

    def check(self) -> Checked:
        raise NotImplementedError

    def backup(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy of studio.sqlite (VACUUM INTO); refuses a file that is there."""
        raise NotImplementedError

    def __enter__(self) -> "Studio":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
