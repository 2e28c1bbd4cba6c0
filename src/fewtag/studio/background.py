"""The thread behind the studio: tells of news, writes the bank, scores what waits, works out influences."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from fewtag.core.posterior import Fitted
from fewtag.errors import InputError
from fewtag.studio import index as indexing
from fewtag.studio import review as reviewing
from fewtag.studio.library import SupersededError
from fewtag.studio.ranking import Ranking
from fewtag.studio.values import Listener, Overview

_QUIET_SECONDS, _LATEST_SECONDS = 0.2, 0.6
"""The bank is written when nobody has answered for a while, but no later than so long after a change."""
_log = logging.getLogger(__name__)


class Background:
    """A worker thread for what follows from answers, and nobody waits for."""

    def __init__(self, ranking: Ranking, overview: Callable[[], Overview]) -> None:
        self._ranking, self._overview = ranking, overview
        self.written = threading.Event()
        """Whether the bank on disk is that of the answers."""
        self.trouble = ""
        self._writing = threading.Lock()
        self._wake, self._stop, self._news = threading.Event(), threading.Event(), threading.Event()
        self._listeners: dict[object, Listener] = {}
        self._looked_at = ""
        self._influences: dict[str, tuple[object, Mapping[str, float]]] = {}
        self._thread = threading.Thread(target=self._work, name="fewtag-background", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.tell()

    def close(self) -> None:
        """Writes what is not written yet."""
        self._stop.set()
        self.tell()
        if self._thread.is_alive():
            self._thread.join()

    def tell(self) -> None:
        """Wakes the thread: there is something new to show."""
        self._news.set()
        self._wake.set()

    def changed(self) -> None:
        """Wakes the thread: the answers have changed, and the bank on disk is out of date."""
        with self._writing:
            self.written.clear()
        self.tell()

    def listen(self, listener: Listener) -> Callable[[], object]:
        """Calls `listener(event, value)` from this thread, which it must not hold up; returns its end."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None)

    def influences(self, label: str, fitted: Fitted) -> Mapping[str, float] | None:
        """Influences of a label's examples (leave-one-out) on this fit of it; None until they are worked out, soon."""
        self._looked_at = label
        self._wake.set()
        of, found = self._influences.get(label, (None, {}))
        return found if of is fitted else None

    def _work(self) -> None:
        if len(self._ranking.library):
            self._ranking.indexer.hurry.wait(indexing.PATIENT_SECONDS)
        while not self._stop.is_set():
            self._wake.wait()
            try:
                self._announce_until_quiet()
                self._write()
                if not self._news.wait(_QUIET_SECONDS):  # whoever works now comes first
                    self._settle()
            except InputError as error:
                self._try_again(str(error), 1.0)
            except Exception:
                _log.exception("the bank could not be derived")
                self._try_again("the bank could not be derived; the log says why, the answers are safe", 5.0)
        try:
            self._write()
        except InputError as error:
            _log.warning("%s", error)

    def _try_again(self, trouble: str, seconds: float) -> None:
        self.trouble = trouble
        self._stop.wait(seconds)
        self._wake.set()

    def _announce_until_quiet(self) -> None:
        late = time.monotonic() + _LATEST_SECONDS
        while self._wake.is_set() and time.monotonic() < late and not self._stop.is_set():
            self._wake.clear()
            if self._news.is_set():
                self._news.clear()
                self._announce()
            self._wake.wait(_QUIET_SECONDS)

    def _announce(self) -> None:
        overview = self._overview()
        for listener in list(self._listeners.values()):
            try:
                listener("project", overview)
            except Exception:
                _log.exception("a listener failed")

    def _write(self) -> None:
        """Writes the bank of the answers; anew where answered pictures are back whose files were away."""
        fold, deriver, indexer = self._ranking.fold, self._ranking.deriver, self._ranking.indexer
        lacking = deriver.lacking(fold)
        back = indexer.done.is_set() and any(picture in self._ranking.library.row_of for picture in lacking)
        if self.written.is_set() and not back:
            return
        if lacking:
            deriver.keep(lacking)
        deriver.write(deriver.bank(fold))
        self.trouble = ""
        with self._writing:
            if self._ranking.fold is fold:
                self.written.set()

    def _settle(self) -> None:
        """The other labels' scores, and the influences of the label that is looked at."""
        fold, scores = self._ranking.fold, self._ranking.scores
        bank = self._ranking.deriver.bank(fold)

        def superseded() -> bool:
            return self._ranking.fold is not fold

        stale = [label for label in bank.classes if not scores.is_fresh(bank, label)]
        try:
            for label in stale:
                scores.refresh(bank, [label], superseded)
        except SupersededError:
            return
        if stale:
            self._announce()
        name, scored = self._looked_at, scores.kept.get(self._looked_at)
        if name not in bank.classes or scored is None or self._influences.get(name, (None,))[0] is scored.fitted:
            return
        curve = scored.slope, scored.offset
        found = reviewing.influences(bank, self._ranking.model, name, curve, superseded)
        if found is not None:
            picture_of = self._ranking.deriver.picture_of(fold)
            self._influences[name] = scored.fitted, {picture_of[key]: each for key, each in found.items()}
