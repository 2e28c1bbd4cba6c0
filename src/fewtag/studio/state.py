"""A project as it stands: pictures and answers in memory, the bank that they make, each label's scores; and the thread
behind it, which writes the bank, scores what waits, works out influences and tells of news.
"""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtag.cache import content_digest
from fewtag.errors import InputError
from fewtag.pictures.decode import DRAFT, Square, decode, pixel_digest, squash
from fewtag.studio import index as indexing
from fewtag.studio import review as reviewing
from fewtag.studio.derive import Deriver, Scored, Scores
from fewtag.studio.index import Indexer, read_inside
from fewtag.studio.library import RESIDENT, Features, Library, SupersededError
from fewtag.studio.log import Change, Fold, Label, Verdict
from fewtag.studio.project import FileRow, Project
from fewtag.studio.values import AUDIT, CellTag, Listener, Overview
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model
from fewtag.tagger.stream import DIGITS, Scorer, Tagged
from fewtag.tagger.tagger import Tagger

Rows = NDArray[np.int64]
_RANK = {"yes": 0, "model": 1, "no": 2}
_QUIET_SECONDS, _LATEST_SECONDS = 0.2, 0.6
"""The bank is written when nobody has answered for a while, but no later than so long after a change."""
_log = logging.getLogger(__name__)


class State:
    """What the studio knows; whoever changes it holds the lock."""

    def __init__(self, project: Project, model: Model, cache: Path, resident: int = RESIDENT) -> None:
        self.project, self.model, self.folder = project, model, project.folder
        self._id = project.meta("id") or ""
        features = Features(model.places, model.space.size, lambda rows: self._indexer.fetch(rows), resident)
        self.library = Library(features, project.folders())
        self._indexer = Indexer(project, self.library, model, cache, self._tell, self._carry)
        self._deriver = Deriver(project, self.library, model, self._read)
        self._scores = Scores(self.library, model)
        self._lock = threading.RLock()
        self._version = len(project.log.changes)
        self._bank_of, self._bank = -1, Bank()
        self._looked_at: str | None = None
        self._influences: dict[str, tuple[object, dict[str, float]]] = {}
        self._listeners: dict[object, Listener] = {}
        self._changed_at = self._dirty_since = 0.0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._derived, self._news = threading.Event(), threading.Event()
        self._lost = self._trouble = ""
        self._worker = threading.Thread(target=self._work, name="fewtag-deriver", daemon=True)

    @property
    def _fold(self) -> Fold:
        return self.project.fold

    def _current(self) -> Bank:
        """The bank of the answers as they are."""
        with self._lock:
            if self._bank_of != self._version:
                self._bank, self._bank_of = self._deriver.bank(self._fold), self._version
            return self._bank

    def _score(self, labels: Sequence[str]) -> None:
        with self._lock:
            bank = self._current()
            for gone in self._scores.kept.keys() - set(bank.classes):
                del self._scores.kept[gone]
            self._scores.refresh(bank, [label for label in labels if label in bank.classes])

    def _grounds(self, names: Sequence[str]) -> list[reviewing.Ground]:
        self._score(names)
        return [self._ground(self._fold.find(name), self._scores.kept.get(name)) for name in names]

    def _ground(self, label: Label, scored: Scored | None) -> reviewing.Ground:
        """Of a label without scores, which has neither word nor example, what was said of it."""
        count = len(self.library) if scored is None else len(scored.logits)
        verdicts, audited = np.zeros(count, np.int8), np.zeros(count, np.bool_)
        codes = {"yes": reviewing.YES, "no": reviewing.NO, "unknown": reviewing.UNKNOWN}
        with self._lock:
            for picture, said in self._fold.about(label.id).items():
                row = self.library.row_of.get(picture, count)
                if row < count:
                    verdicts[row], audited[row] = codes[said.answer], said.source == AUDIT
        alive = self.library.alive[:count].copy()
        if scored is None:
            nothing = np.zeros(count, np.float32)
            return reviewing.Ground(nothing, verdicts, audited, np.zeros(count, np.bool_), alive, 0.5, nothing)
        return reviewing.Ground(scored.chances, verdicts, audited, scored.never, alive, scored.threshold, scored.logits)

    def _read(self, digest: str, files: Iterable[FileRow] | None = None) -> bytes:
        """A picture's bytes from one of its files; a file that holds something else by now is passed over."""
        for file in self.library.files_of.get(digest, ()) if files is None else files:
            try:
                data = read_inside(Path(file.path), Path(file.path).name, self._indexer.folders)
            except InputError:
                continue
            if content_digest(data).hex() == digest:
                return data
        raise InputError(f"the file of picture {digest} is not there any more; put it back, or scan the folder again")

    def _places(self, digest: str) -> NDArray[np.float32]:
        places = self.library.features.places(self.library.row(digest))
        return self.model.encode(self._square(digest)[None])[0] if places is None else places

    def _square(self, digest: str) -> Square:
        """A picture's pixels as the network takes them."""
        picture = decode(self._read(digest), digest, at_least=DRAFT * self.model.size)
        return squash(picture, self.model.size)

    def _verdicts(self) -> dict[str, dict[str, Verdict]]:
        """Of each label what is said of which picture now."""
        with self._lock:
            return {
                label.name: {picture: said.answer for picture, said in self._fold.latest[label.id].items()}
                for label in self._fold.labels.values()
            }

    def _rows(
        self,
        digests: Sequence[str],
        scorer: Scorer | None,
        verdicts: dict[str, dict[str, Verdict]],
        confirmed_only: bool = False,
    ) -> list[Tagged]:
        """Exact, as the tagger scores them, but that a person's word comes first."""
        if scorer is None:
            return [Tagged(self.library.names[self.library.row(digest)]) for digest in digests]
        places = np.stack([self._places(digest) for digest in digests])
        chances = scorer.probabilities(places).astype(np.float32)
        said = np.array([[verdicts[label].get(digest, "") for label in scorer.labels] for digest in digests])
        chances[said == "yes"], chances[said == "no"] = 1, 0
        counted = said == "yes" if confirmed_only else said != "no"
        tags = scorer.tags(np.where(counted, chances, np.float32(-1)))  # below any threshold
        names = [self.library.names[self.library.row(digest)] for digest in digests]
        return [Tagged(*row) for row in zip(names, tags, scorer.scores(chances), strict=True)]

    def _tags_of(self, rows: Rows) -> list[list[CellTag]]:
        """Of each row the labels it carries or was refused: a person's first, then the likeliest."""
        found: list[list[CellTag]] = [[] for _ in rows]
        digests = [self.library.digests[row] for row in rows.tolist()]
        with self._lock:
            labels = [(label, dict(self._fold.latest[label.id])) for label in self._fold.labels.values()]
        for label, said in labels:
            scored = self._scores.kept.get(label.name)
            if scored is None:
                continue
            inside = np.minimum(rows, len(scored.logits) - 1)
            chances = scored.chances[inside]
            given = (chances >= scored.threshold) & ~scored.never[inside] & (rows < len(scored.logits))
            for number, (digest, tagged, chance) in enumerate(
                zip(digests, given.tolist(), chances.tolist(), strict=True)
            ):
                verdict = said[digest].answer if digest in said else "unknown"
                if verdict != "unknown" or tagged:
                    state = "model" if verdict == "unknown" else verdict
                    found[number].append(CellTag(label.name, round(chance, DIGITS), state))
        return [sorted(tags, key=lambda tag: (_RANK[tag.state], -tag.p, tag.label)) for tags in found]

    @property
    def tagger(self) -> Tagger:
        """A tagger of the labels as they are now, for pictures from elsewhere; not to be taught."""
        return Tagger(self.model, bank=self._current())

    def scorer(self) -> Scorer:
        """The labels ready to score, at this library's frequencies."""
        bank = self._current()
        self._score(bank.classes)
        return Scorer(bank, self.model, shares=self._scores.shares())

    def _change(self, kind: str, facts: dict[str, Any], answers: Sequence[Any] = ()) -> Change:
        change = self.project.change(kind, facts, answers)
        self._touch()
        return change

    def _carry(self, old: str, new: str) -> None:
        """A file was edited: where its pixels stayed what they were, what was said of it holds for it still."""
        with self._lock:
            verdicts = {
                label.id: said[old]
                for label in self._fold.labels.values()
                if old in (said := self._fold.latest[label.id])
            }
        row = self.project.any_example(old) if verdicts else None
        if row is None:
            return
        # the library has it only after this
        files = [file for file in self.project.files() if file.digest == new]
        try:
            same = pixel_digest(decode(self._read(new, files), new)) == row.pixels
        except InputError:
            return
        if same:
            answers = [(str(uuid.uuid4()), new, label, said.answer, said.source) for label, said in verdicts.items()]
            with self._lock:
                self._change("carry", {"from": old}, answers)

    def overview(self) -> Overview:
        """The project in numbers."""
        with self._lock:
            log = self.project.log
            return Overview(
                self._id,
                self.folder.name,
                max(self._indexer.found, len(self.library.files)),
                int(self.library.alive.sum()),
                len(self.library.failures),
                self.model.name,
                tuple(self._indexer.folders),
                len(log.fold.labels),
                sum(len(log.fold.latest[label]) for label in log.fold.labels),
                bool(log.done),
                bool(log.undone),
                self._version,
                not self._indexer.done.is_set(),
                self._trouble or self._lost or self._indexer.notice or self.project.notice,
            )

    @property
    def settled(self) -> bool:
        """Whether every label is scored by the answers as they are."""
        bank = self._current()
        return all(self._scores.is_fresh(bank, label) for label in bank.classes)

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

    def listen(self, listener: Listener) -> Callable[[], object]:
        """Calls `listener(event, value)` from a thread of the studio's, which it must not hold up; returns its end."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None)

    def _touch(self) -> None:
        with self._lock:
            self._version += 1
            self._derived.clear()
            now = time.monotonic()
            self._changed_at = now
            self._dirty_since = self._dirty_since or now
        self._tell()

    def _tell(self) -> None:
        """Something new to show; the answers are as they were."""
        self._news.set()
        self._wake.set()

    def _work(self) -> None:
        """The deriver's thread: tells of news, writes the bank, rescores what waits, works out influences."""
        if len(self.library):
            self._stop.wait(indexing.PATIENT_SECONDS)
        while not self._stop.is_set():
            self._wake.wait(1.0 if self._derived.is_set() else 0.05)
            self._wake.clear()
            try:
                if self._news.is_set():
                    self._news.clear()
                    self._announce()
                    self._look_again()
                now = time.monotonic()
                quiet, late = now - self._changed_at > _QUIET_SECONDS, now - self._dirty_since > _LATEST_SECONDS
                if not self._derived.is_set():
                    if quiet or late:
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
        if not self._derived.is_set():
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
            version, lacking = self._version, self._deriver.lacking(self._fold)
        if lacking:
            self._deriver.keep(lacking)
        with self._lock:
            self._bank_of = -1 if lacking else self._bank_of
            bank = self._current()
        self._deriver.write(bank)
        self._trouble = ""
        with self._lock:
            if self._version == version:
                self._dirty_since = 0.0
                self._derived.set()
            else:
                self._dirty_since = time.monotonic()

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
        if name is None or scored is None or self._influences.get(name, (None,))[0] is scored.fitted:
            return
        with self._lock:
            bank, picture_of = self._current(), self._deriver.picture_of(self._fold)
        if name in bank.classes:
            curve = scored.slope, scored.offset
            found = reviewing.influences(bank, self.model, name, curve, lambda: self._version != version)
            if found is not None:
                self._influences[name] = scored.fitted, {picture_of[key]: each for key, each in found.items()}

    def _announce(self) -> None:
        overview = self.overview()
        for listener in list(self._listeners.values()):
            try:
                listener("project", overview)
            except Exception:
                _log.exception("a listener failed")
