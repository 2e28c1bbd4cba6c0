"""What nobody waits for: a thread that writes the bank, scores what waits, works out influences and tells of news."""

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fewtag.errors import InputError
from fewtag.studio import review as reviewing
from fewtag.studio.library import SupersededError
from fewtag.studio.project import Project
from fewtag.studio.values import Listener, Overview
from fewtag.studio.view import View
from fewtag.tagger.model import Model

_QUIET_SECONDS, _LATEST_SECONDS = 0.2, 0.6
"""The bank is written when nobody has answered for a while, but no later than so long after a change."""
_log = logging.getLogger(__name__)


class Background(View):
    """The view of a project with the thread behind it."""

    def __init__(
        self,
        project: Project,
        model: Model,
        cache: Path,
        resident: int,
        edited: Callable[[str, str], None],
    ) -> None:
        super().__init__(project, model, cache, resident, self._tell, edited)
        self._listeners: list[Listener] = []
        self._changed_at = self._dirty_since = 0.0
        self._derived, self._stop, self._news = threading.Event(), threading.Event(), threading.Event()
        self._lost = self._trouble = ""
        self._id = project.meta("id") or ""
        self._worker = threading.Thread(target=self._work, name="fewtag-deriver", daemon=True)

    def overview(self) -> Overview:
        """The project in numbers."""
        with self._lock:
            log = self.project.log
            failures = len(self.library.failures)
            return Overview(
                self._id,
                self.folder.name,
                max(self._indexer.found, len(self.library.files)),
                int(self.library.alive.sum()),
                failures,
                self.model.name,
                tuple(self._indexer.folders),
                len(log.fold.labels),
                sum(len(log.fold.said[label]) for label in log.fold.labels),
                bool(log.done),
                bool(log.undone),
                self._version,
                not self._indexer.done.is_set(),
                self._trouble or self._lost or self._indexer.notice or self.project.notice,
            )

    def ready(self) -> tuple[bool, str]:
        """Whether pictures can be scored, and if not what is waited for."""
        waiting = not len(self.library) and not self._indexer.done.is_set()
        return not waiting, "the first pictures are being read" if waiting else ""

    def wait(self, seconds: float | int | None = None) -> bool:
        """Until indexing is done and the bank is on disk; False where the time ran out first."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        return all(
            event.wait(None if math.isinf(until) else max(0.0, until - time.monotonic()))
            for event in (self._indexer.done, self._derived)
        )

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(event, value)` from a thread of the studio's, which it must not hold up; returns its end."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def _touch(self) -> None:
        with self._lock:
            self._version += 1
            self._derived.clear()
            now = time.monotonic()
            self._changed_at = now
            self._dirty_since = self._dirty_since or now
        self._news.set()
        self._wake.set()

    def _tell(self) -> None:
        """Something new to show; the answers are as they were."""
        self._news.set()
        self._wake.set()

    def _work(self) -> None:
        """The deriver's thread: tells of news, writes the bank, rescores what waits, works out influences."""
        while not self._stop.is_set():
            pending = not self._derived.is_set()
            self._wake.wait(0.05 if pending else 1.0 if self._stale() else None)
            self._wake.clear()
            try:
                if self._news.is_set():
                    self._news.clear()
                    self._announce()
                    self._look_again()
                now = time.monotonic()
                quiet, late = now - self._changed_at > _QUIET_SECONDS, now - self._dirty_since > _LATEST_SECONDS
                if not self._derived.is_set():
                    # not before the pictures of the last time are there: examples without them would be left out
                    if (quiet or late) and self._indexer.loaded.is_set():
                        self._derive()
                elif now - self._changed_at > 2 * _QUIET_SECONDS:
                    self._settle()
            except InputError as error:
                self._trouble = str(error)
                self._stop.wait(1.0)
            except Exception:
                _log.exception("the bank could not be derived")
                self._trouble = "the bank could not be derived; the log says why, the answers are safe"
                self._stop.wait(5.0)
            time.sleep(0.01)
        if not self._derived.is_set() and self._indexer.loaded.is_set():
            try:
                self._derive()
            except InputError as error:
                _log.warning("%s", error)

    def _look_again(self) -> None:
        """Pictures that were answered when their files were away may be back."""
        if self._derived.is_set() and self._indexer.done.is_set():
            with self._lock:
                if any(picture in self.library.row_of for picture in self._deriver.lacking(self._fold)):
                    self._bank_of = -1
                    self._derived.clear()

    def _derive(self) -> None:
        with self._lock:
            version, fold = self._version, self._fold
            lacking = self._deriver.lacking(fold)
        if lacking:
            self._deriver.keep(lacking)
            with self._lock:
                self._bank_of = -1
        with self._lock:
            bank = self._current()
        self._deriver.write(bank)
        self._trouble = ""
        with self._lock:
            if self._version == version:
                self._dirty_since = 0.0
                self._derived.set()
            else:
                self._dirty_since = time.monotonic()

    def _stale(self) -> bool:
        bank, name = self._bank, self._looked_at
        if any(not self._scores.is_fresh(bank, label) for label in list(self._scores.kept) if label in bank.classes):
            return True
        scored = self._scores.kept.get(name) if name in bank.classes else None
        return scored is not None and self._influences.get(name or "", (None,))[0] is not scored.fitted

    def _settle(self) -> None:
        """What nobody waits for: the other labels' scores, and the influences of the label that is looked at."""
        with self._lock:
            version, bank = self._version, self._current()
        stale = [label for label in bank.classes if not self._scores.is_fresh(bank, label)]
        try:
            for label in stale:
                self._scores.refresh(bank, [label], lambda: self._version != version)
        except SupersededError:
            return
        if stale:
            self._announce()
        name = self._looked_at
        scored = None if name is None else self._scores.kept.get(name)
        if name is None or scored is None:
            return
        known = self._influences.get(name)
        if known is None or known[0] is not scored.fitted:
            with self._lock:
                bank, picture_of = self._current(), self._deriver.picture_of(self._fold)
            if name in bank.classes:
                curve = scored.slope, scored.offset
                found = reviewing.influences(bank, self.model, name, curve, lambda: self._version != version)
                if found is None:
                    return
                self._influences[name] = scored.fitted, {picture_of[key]: each for key, each in found.items()}

    def _announce(self) -> None:
        overview = self.overview()
        for listener in list(self._listeners):
            try:
                listener("project", overview)
            except Exception:
                _log.exception("a listener failed")
