"""The studio: every action on a project as a method. Threads may share one."""

import logging
import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from fewtag.errors import InputError, UnknownWordError
from fewtag.files import user_cache_folder
from fewtag.pictures.decode import decode, pixel_digest
from fewtag.studio import deliver as delivering
from fewtag.studio import review as reviewing
from fewtag.studio.derive import path_name, word_of
from fewtag.studio.library import RESIDENT, SupersededError
from fewtag.studio.project import Change, Fold, Project, UnknownError
from fewtag.studio.values import (
    WORDS,
    Acknowledged,
    Answer,
    Checked,
    Delivery,
    LabelRow,
    Listener,
    Overview,
    Reverted,
    Undone,
    Word,
)
from fewtag.studio.view import MOST_AT_ONCE, View
from fewtag.tagger.bank import by_name
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import Tagged

_QUIET_SECONDS, _LATEST_SECONDS = 0.2, 0.6
"""The bank is written when nobody has answered for a while, but no later than so long after a change."""
_log = logging.getLogger(__name__)


class Studio(View):
    """A project folder, its pictures in memory and its labels, open for one process.

    Whatever is refused is an InputError, one sentence; an UnknownError, which is one too, names what is not there.
    """

    def __init__(self, project: Project, model: Model, cache: Path, resident: int = RESIDENT) -> None:
        super().__init__(project, model, cache, resident, self._tell, self._carry)
        self._listeners: list[Listener] = []
        self._changed_at = self._dirty_since = 0.0
        self._derived, self._stop, self._news = threading.Event(), threading.Event(), threading.Event()
        self._lost = self._trouble = ""
        self._worker = threading.Thread(target=self._work, name="fewtag-deriver", daemon=True)

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
        resident: int = RESIDENT,
    ) -> "Studio":
        """Opens a project, or makes one; indexing begins behind it, and the network is loaded there.

        `pictures` are folders to add. `model` None is the project's own, or "default". With `index=False` folders are
        not walked: the pictures of the last time are there. `resident` is how many keep their places in memory.
        """
        folders = []
        for each in pictures:
            path = Path(each).resolve()
            if not path.is_dir():
                raise InputError(f"there is no picture folder {each}; check the path")
            folders.append(str(path))
        project = Project(folder)
        try:
            source = model or project.meta("model") or "default"
            loaded = load_model(source, words=words or project.meta("words") or None, device=device)
            project.set_meta(model=loaded.source, words=loaded.words_source or "")
            if folders:
                project.add_folders(folders)
            studio = cls(project, loaded, Path(cache) if cache else user_cache_folder(), resident)
        except BaseException:
            project.close()
            raise
        studio._begin(index=index)
        return studio

    def _begin(self, *, index: bool) -> None:
        lost = self._deriver.unknown_to(self._fold)
        if lost and self._deriver.path.exists():
            aside = self._deriver.path.with_name(f"bank.{time.strftime('%Y-%m-%d-%H%M%S')}.fewtag")
            shutil.copy(self._deriver.path, aside)
            self._lost = (
                f"{self._deriver.path.name} knew {lost} examples that the project has no answers about; it is kept as "
                f"{aside.name}, open that if they matter"
            )
        self._worker.start()
        if index:
            self._indexer.start()
        else:
            self._indexer.load_known()
            self._indexer.loaded.set()
            self._indexer.done.set()
        self._touch()

    def close(self) -> None:
        """Stops the threads, writes the bank, lets go of the project."""
        self._indexer.close()
        self._stop.set()
        self._wake.set()
        if self._worker.is_alive():
            self._worker.join()
        self.library.features.close()
        self.project.close()

    def __enter__(self) -> "Studio":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def overview(self) -> Overview:
        """The project in numbers."""
        with self._lock:
            log = self.project.log
            failures = len(self.library.failures)
            return Overview(
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

    def rescan(self) -> None:
        """Walks the folders again, behind this."""
        self._indexer.rescan()

    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> LabelRow:
        """A label by its name (the last part of its path), like other words, or by pictures alone; known ones anew."""
        wanted = path_name(name)
        with self._lock:
            alike = None if like is None else [each for word in like if (each := word.strip())]
            known = [label for label in self._fold.labels.values() if label.name == wanted]
            facts: dict[str, Any] = {"name": wanted, "like": alike, "words": words}
            if alike is not None and not words:
                raise InputError(f"label {wanted!r} is defined in two ways; give words that it is like, or no words")
            if alike is not None or words:  # refuses words that are not known
                define_label(wanted, alike, self.model)
            if known:
                facts["label"] = known[0].id
            self._change("define", facts)
        return self.label(wanted)

    def teach(self, name: str, pictures: Sequence[str]) -> LabelRow:
        """A new or known label from pictures by digest: yes answers in one group with its definition."""
        wanted = path_name(name)
        if not pictures:
            raise InputError(f"there is no picture to teach {wanted!r} with; select at least one")
        with self._lock:
            rows = list(dict.fromkeys(pictures))
            for picture in rows:
                self.library.row(picture)
            known = [label for label in self._fold.labels.values() if label.name == wanted]
            number = known[0].id if known else None
            answers = [(str(uuid.uuid4()), picture, number, "yes", "teach") for picture in rows]
            facts = {"name": wanted, "like": None, "words": not known and _is_word(word_of(wanted), self.model)}
            self._change("answers" if known else "define", {} if known else facts, answers)
        return self.label(wanted)

    def rename(self, old: str, new: str, *, merge: bool = False) -> LabelRow:
        """Refuses a name that is taken, unless the two shall become one."""
        wanted = path_name(new)
        with self._lock:
            label = self._fold.find(old)
            taken = [each for each in self._fold.labels.values() if each.name == wanted and each.id != label.id]
            if taken and not merge:
                raise InputError(f"there is a label {wanted!r} already; merge the two, or choose another name")
            if taken:
                self._change("merge", {"label": label.id, "into": taken[0].id})
            elif label.name != wanted:
                self._change("rename", {"label": label.id, "name": wanted})
        return self.label(wanted)

    def forget(self, name: str) -> None:
        """Takes a label away; its answers come back with an undo."""
        with self._lock:
            self._change("forget", {"label": self._fold.find(name).id})

    def set_threshold(self, name: str, threshold: float | None) -> LabelRow:
        """The probability from which a label is given; None goes back to the model's own."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise InputError(f"the threshold of label {name!r} is {threshold}; give one from 0 to 1, or None")
        with self._lock:
            label = self._fold.find(name)
            self._score([label.name])
            scored = self._scores.kept.get(label.name)
            # with the share that its probabilities were shown for, so that it means the same to other commands
            share = None if threshold is None or scored is None else scored.share
            self._change("threshold", {"label": label.id, "threshold": threshold, "prior": share})
        return self.label(name)

    def answer(self, answers: Sequence[Answer], *, group: str | None = None) -> Acknowledged:
        """All of them on disk before it returns, or none; `group` is the UUID that undoes them together."""
        if not answers or len(answers) > MOST_AT_ONCE:
            raise InputError(f"{len(answers)} answers were given at once; give 1 to {MOST_AT_ONCE}")
        with self._lock:
            log, fresh = self.project.log, []
            seen: dict[str, tuple[str, str, int, Word, str]] = {}
            for each in answers:
                name = _uuid(each.id)
                if each.answer not in WORDS:
                    raise InputError(f"the answer {each.answer!r} is none; say yes, no or unknown")
                label, word = self._fold.find(each.label), each.answer
                row = name, each.picture, label.id, word, each.source
                if (n := log.number_of.get(name)) is not None:
                    seen |= {answer[0]: answer for answer in log.changes[n].answers}
                if (before := seen.get(name)) is not None:
                    if (before[1], log.fold.resolve(before[2]), before[3]) != (each.picture, label.id, word):
                        raise InputError(f"answer {name} was given before, about something else; give each its own id")
                    continue
                # a page sends what is left over as soon as the studio is back, before all pictures are in memory
                if each.picture not in self.library.row_of and not self.project.knows(each.picture):
                    self.library.row(each.picture)
                seen[name] = row
                fresh.append(row)
            undo = ""
            if fresh:
                undo = self._change("answers", {}, fresh, op=None if group is None else _uuid(group)).op
            return Acknowledged(tuple(_uuid(each.id) for each in answers), undo)

    def undo(self, id: str | None = None) -> Undone:  # noqa: A002
        """Takes back the last group, or that of this id, or the one that holds the answer of this id."""
        with self._lock:
            log = self.project.log
            if id is None and not log.done:
                raise InputError("there is nothing to undo; every change was taken back")
            return self._take_back(log.done[-1] if id is None else self._number(id), "done")

    def redo(self, id: str | None = None) -> Undone:  # noqa: A002
        """Takes back the last undo, as long as nothing new was done since, or the undo of this id."""
        with self._lock:
            log = self.project.log
            if id is None and not log.undone:
                raise InputError("there is nothing to redo; nothing was undone since the last change")
            n = log.undone[-1] if id is None else self._number(id)
            if log.changes[n].undoes is None:
                by = next((each for each in reversed(log.undone) if log.changes[each].undoes == n), None)
                if by is None:
                    raise InputError(f"{id} was not undone; there is nothing to redo")
                n = by
            return self._take_back(n, "undone")

    def _number(self, id: str) -> int:  # noqa: A002
        number = self.project.log.number_of.get(_uuid(id))
        if number is None:
            raise UnknownError(f"there is no change {id}; it was not made here")
        return number

    def _take_back(self, n: int, side: Literal["done", "undone"]) -> Undone:
        log = self.project.log
        if not log.stands(n):
            raise InputError("that was undone already; redo it, or undo something else")
        change = target = log.changes[n]
        while target.undoes is not None:
            target = log.changes[target.undoes]
        before = self._words_of(target)
        undo = self.project.undo(n)
        after = self._words_of(target)
        self._touch()
        labels = log.fold.labels
        reverted = tuple(
            Reverted(key, picture, labels[label].name if label in labels else "", before[picture, label], now)
            for key, picture, number, _, _ in target.answers
            for label in [log.fold.resolve(number)]
            for now in [after.get((picture, label))]
            if (picture, label) in before
        )
        return Undone(undo.op, _what(target, log.fold, back=change.undoes is None), reverted, len(getattr(log, side)))

    def _words_of(self, change: Change) -> dict[tuple[str, int], Word | None]:
        """The present word on each picture and label that a change speaks of."""
        fold, found = self._fold, {}
        for _, picture, number, _, _ in change.answers:
            label = fold.resolve(number)
            said = fold.said.get(label, {}).get(picture) if label in fold.labels else None
            found[picture, label] = None if said is None else said.answer
        return found

    def _carry(self, old: str, new: str) -> None:
        """A file was edited: where its pixels stayed what they were, what was said of it holds for it still."""
        with self._lock:
            words = {
                label.id: said[old]
                for label in self._fold.labels.values()
                if old in (said := self._fold.said[label.id])
            }
        row = self.project.any_example(old) if words else None
        if row is None:
            return
        try:
            same = pixel_digest(decode(self._read_edited(new), new)) == row.pixels
        except InputError:
            return
        if same:
            answers = [(str(uuid.uuid4()), new, label, said.answer, said.source) for label, said in words.items()]
            with self._lock:
                self._change("carry", {"from": old}, answers)

    @property
    def formats(self) -> tuple[str, ...]:
        """What `deliver` can write."""
        return delivering.FORMATS

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
        """A table of all pictures into PROJECT/deliveries/, or "xmp": sidecars beside the pictures. No path is taken.

        A dry run writes nothing.
        """
        labels = self.scorer().labels if self._current().classes else ()
        files = self._files()
        if format == "xmp":
            rows = dict(zip((file.path for file in files), self._delivered(files, confirmed_only), strict=True))
            folders = {
                Path(folder): [(rows[file.path], Path(file.path)) for file in files if file.folder == folder]
                for folder in self._indexer.folders
            }
            return delivering.write_sidecars(folders, labels, dry_run=dry_run, progress=progress, cancelled=cancelled)
        return delivering.deliver(
            self.project,
            self._delivered(files, confirmed_only),
            labels,
            format,
            scores=scores,
            dry_run=dry_run,
            total=len(files),
            progress=progress,
            cancelled=cancelled,
        )

    def _files(self) -> list[Any]:
        """Of pictures that are indexed, by their name."""
        files = [file for file in list(self.library.files.values()) if file.digest in self.library.row_of]
        return sorted(files, key=self.library.shown_name)

    def tags_by_file(self, *, confirmed_only: bool = False) -> dict[Path, Tagged]:
        """What is to be written of each picture; a person's word comes first."""
        files = self._files()
        return {Path(file.path): row for file, row in zip(files, self._delivered(files, confirmed_only), strict=True)}

    def take_back(
        self, *, dry_run: bool = False, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> Delivery:
        """Takes back what was delivered as XMP: sidecars are what they were before, to the byte."""
        folders = [Path(folder) for folder in self._indexer.folders]
        return delivering.take_back(folders, dry_run=dry_run, progress=progress)

    def _delivered(self, files: Sequence[Any], confirmed_only: bool) -> Iterator[Tagged]:
        """Each file's row; all by one state of the labels, whatever is taught meanwhile."""
        scorer = self.scorer() if self._current().classes else None
        with self._lock:
            words = {
                label.name: {picture: said.answer for picture, said in self._fold.said[label.id].items()}
                for label in self._fold.labels.values()
            }
        for first in range(0, len(files), 64):
            some = files[first : first + 64]
            rows = self._rows([file.digest for file in some], scorer, words, confirmed_only)
            for file, row in zip(some, rows, strict=True):
                yield Tagged(self.library.shown_name(file), row.tags, row.scores)

    def delivery(self, file: str) -> Path:
        """Where a delivery of this name lies."""
        return delivering.find(self.project, file)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(event, value)` from a thread of the studio's, which it must not hold up; returns its end."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def check(self) -> Checked:
        """SQLite's own check, a fold made anew, and the bank on disk against the one that the answers make."""
        problems = self.project.check()
        with self._lock:
            fold = self._fold
            bank = self._current()
        if missing := self._deriver.lacking_features(fold):
            problems.append(f"{missing} answered pictures have neither a file nor kept features; they teach nothing")
        if self._derived.is_set() and (lost := self._deriver.differs(bank)):
            problems.append(lost)
        answers = sum(len(fold.said[label]) for label in fold.labels)
        return Checked(answers, len(fold.labels), len(self.library), tuple(problems))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy of the project's file, while others work on; refuses a file that is there."""
        self.project.backup(Path(path))

    def _change(self, kind: str, facts: dict[str, Any], answers: Sequence[Any] = (), op: str | None = None) -> Change:
        change = self.project.change(kind, facts, answers, op=op)
        self._touch()
        return change

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
        bank = self._bank
        return any(not self._scores.is_fresh(bank, name) for name in list(self._scores.kept) if name in bank.classes)

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
                found = reviewing.influences(bank, self.model, name, (scored.slope, scored.offset))
                self._influences[name] = scored.fitted, {picture_of[key]: each for key, each in found.items()}

    def _announce(self) -> None:
        overview = self.overview()
        for listener in list(self._listeners):
            try:
                listener("project", overview)
            except Exception:
                _log.exception("a listener failed")


def define_label(name: str, like: Sequence[str] | None, model: Model) -> None:
    """Refuses a label whose words are not known, with the ways out."""
    if like is None:
        by_name(word_of(name), model)
        return
    if not like:
        raise InputError(f"label {name!r} is like nothing; name at least one known word")
    for word in like:
        model.words.vector(word)


def _is_word(word: str, model: Model) -> bool:
    try:
        model.words.vector(word)
    except UnknownWordError:
        return False
    return True


def _uuid(text: object) -> str:
    try:
        return str(uuid.UUID(str(text)))
    except ValueError as error:
        raise InputError(f"the id {str(text)[:64]!r} is no UUID; give each answer its own") from error


def _what(change: Change, fold: Fold, *, back: bool) -> str:
    """What was taken back, or done again, for people."""
    facts = change.facts
    names = {label.id: label.name for label in fold.labels.values()}
    if change.kind in ("answers", "carry"):
        labels = sorted({names[number] for answer in change.answers if (number := fold.resolve(answer[2])) in names})
        count = len(change.answers)
        said = f"{count} answer{'s' if count != 1 else ''} about {', '.join(labels) or 'a label that is gone'}"
    elif change.kind == "define":
        said = f"the label {facts['name']}"
    elif change.kind == "rename":
        said = f"the name {facts['name']}"
    else:
        said = {"merge": "a merge", "forget": "a label's deletion", "threshold": "a threshold"}[change.kind]
    return f"{said} {'taken back' if back else 'done again'}"
