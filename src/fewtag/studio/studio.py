"""The studio: every action on a project as a method. Threads may share one."""

import io
import logging
import math
import os
import shutil
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fewtag.cache import content_digest
from fewtag.core.posterior import Pictures, prior
from fewtag.errors import InputError, UnknownWordError
from fewtag.files import user_cache_folder
from fewtag.pictures.decode import DRAFT, decode, squash
from fewtag.pictures.files import pixel_digest
from fewtag.studio import deliver as delivering
from fewtag.studio import review as reviewing
from fewtag.studio.derive import Deriver, Scored, Scores, by_word, path_name, word_of
from fewtag.studio.index import SIZES, Indexer, read_inside, small_copy
from fewtag.studio.library import Features, Library, box_guide
from fewtag.studio.project import Change, Fold, Label, Project, UnknownError
from fewtag.studio.search import Part, parse
from fewtag.studio.values import (
    AUDIT,
    WORDS,
    Acknowledged,
    Answer,
    Because,
    Cell,
    CellTag,
    Checked,
    Delivery,
    Explanation,
    Failure,
    Influence,
    LabelRow,
    Listener,
    Meaning,
    MistakenFor,
    Overview,
    Page,
    PictureDetail,
    PictureLabel,
    Reverted,
    ReviewPage,
    Undone,
    Word,
)
from fewtag.tagger.bank import Bank, Definition, by_name
from fewtag.tagger.explain import heat_map, layer
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import DIGITS, Scorer, Tagged
from fewtag.tagger.tagger import Tagger

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, from 0 to 1."""
Rows = NDArray[np.int64]
MOST_AT_ONCE = 1000
"""Answers of one group, cells of one page."""
_QUIET_SECONDS, _LATEST_SECONDS = 0.2, 0.6
"""The bank is written when nobody has answered for a while, but no later than so long after a change."""
_AT_ONCE = 20_000
"""Pictures times labels that are scored while somebody waits for the list of labels."""
_WORDS_KEPT = 16
_REASONS, _REASONED = 3, 8
_log = logging.getLogger(__name__)


class Studio:
    """A project folder, its pictures in memory and its labels, open for one process.

    Whatever is refused is an InputError, one sentence; an UnknownError, which is one too, names what is not there.
    """

    def __init__(self, project: Project, model: Model, cache: Path, *, resident: int | None = None) -> None:
        self.project, self.model, self.folder = project, model, project.folder
        folders = project.folders()
        features = Features(model.places, model.space.size, self._fetch)
        if resident is not None:
            features = Features(model.places, model.space.size, self._fetch, resident)
        self.library = Library(features, folders)
        self._indexer = Indexer(project, self.library, model, cache, self._tell, self._carry)
        self._lock = threading.RLock()
        self._deriver = Deriver(project, self.library, model, self._read)
        self._scores, self._word_scores = Scores(self.library, model), Scores(self.library, model)
        self._words: OrderedDict[str, Definition] = OrderedDict()
        self._listeners: list[Listener] = []
        self._version = len(project.log.changes)
        self._bank_of, self._bank = -1, Bank()
        self._changed_at = self._dirty_since = 0.0
        self._derived = threading.Event()
        self._wake, self._stop, self._news = threading.Event(), threading.Event(), threading.Event()
        self._notice = ""
        self._influences: dict[str, tuple[object, dict[str, float]]] = {}
        self._looked_at: str | None = None
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
        resident: int | None = None,
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
            studio = cls(project, loaded, Path(cache) if cache else user_cache_folder(), resident=resident)
        except BaseException:
            project.close()
            raise
        studio._begin(index=index)
        return studio

    def _begin(self, *, index: bool) -> None:
        lost = self._deriver.unknown_to(self._current())
        if lost and self._deriver.path.exists():
            aside = self._deriver.path.with_name(f"bank.{time.strftime('%Y-%m-%d-%H%M%S')}.fewtag")
            shutil.copy(self._deriver.path, aside)
            self._notice = (
                f"{self._deriver.path.name} knew {lost} examples that the project has no answers about; it is kept as "
                f"{aside.name}, open that if they matter"
            )
        self._worker.start()
        if index:
            self._indexer.start()
        else:
            self._indexer.load_known()
            self._indexer.done.set()
        self._touch()

    def close(self) -> None:
        """Stops the threads, writes the bank, lets go of the project."""
        self._indexer.close()
        self._stop.set()
        self._wake.set()
        if self._worker.is_alive():
            self._worker.join()
        self.project.close()

    def __enter__(self) -> "Studio":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # what is there

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
                self._notice or self._indexer.notice or self.project.notice,
            )

    def labels(self) -> list[LabelRow]:
        """Sorted by name; in a large library the numbers of labels that others' answers touch follow a second later."""
        bank = self._current()
        lacking = [name for name in bank.classes if name not in self._scores.kept]
        stale = [name for name in bank.classes if not self._scores.is_fresh(bank, name)]
        self._score(stale if len(stale) * len(self.library) <= _AT_ONCE else lacking)
        labels = sorted(self._fold.labels.values(), key=lambda label: label.name)
        return [self._label_row(bank, label) for label in labels]

    def label(self, name: str) -> LabelRow:
        """One of them, as it is now."""
        label = self._fold.find(name)
        self._score([label.name])
        return self._label_row(self._current(), label)

    def _label_row(self, bank: Bank, label: Label) -> LabelRow:
        name = label.name
        known = bank.definitions.get(name)
        facts = name, str(known or ""), len(bank.members.get(name, ())), len(bank.refused.get(name, ()))
        scored = self._scores.kept.get(name)
        if scored is None or name not in bank.classes:
            return LabelRow(*facts, label.threshold, label.prior, None, 0, 0, None)
        ground = self._ground(label, scored)
        return LabelRow(
            *facts,
            round(scored.threshold, DIGITS),
            round(scored.share, DIGITS),
            scored.fitted.trust,
            int(ground.tagged.sum()),
            int(ground.near.sum()),
            reviewing.expected_precision(ground),
        )

    def failures(self) -> list[Failure]:
        """Pictures that could not be read, by name."""
        found = [Failure(self.library.shown_name(file), file.failure) for file in self.library.failures]
        return sorted(found, key=lambda each: each.name)

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

    # labels

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

    # answers

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
        """The pictures that a query finds, likeliest first, or by name where it asks for no likeness."""
        if offset < 0 or not 0 < limit <= MOST_AT_ONCE:
            raise InputError(f"offset {offset} and limit {limit} are no page; give 0 or more, and 1 to {MOST_AT_ONCE}")
        parts = parse(query, [label.name for label in self._fold.labels.values()])
        rows = self.library.ordered()
        keep = np.ones(len(rows), np.bool_)
        scores: list[NDArray[np.float32]] = []
        means: list[Meaning] = []
        asked = [name for part in parts if part.kind == "label" and part.wanted for name in part.names]
        for part in parts:
            self._apply(part, parts, asked, rows, keep, scores, means)
        if like is not None:
            scores.append(self._likeness(like, box, rows))
            means.append(Meaning(like, "like", "a part of this picture" if box else "this picture"))
        product = np.prod(scores, axis=0, dtype=np.float32) if scores else None
        found = rows[keep]
        if product is not None:
            product = product[keep]
            order = np.argsort(-product, kind="stable")
            found, product = found[order], product[order]
        return self._page(found, product, offset, limit, stacked, tuple(means))

    def _apply(
        self,
        part: Part,
        parts: Sequence[Part],
        asked: Sequence[str],
        rows: Rows,
        keep: NDArray[np.bool_],
        scores: list[NDArray[np.float32]],
        means: list[Meaning],
    ) -> None:
        """What one part of a query leaves of these rows, and what it says of each."""
        if part.kind == "label":
            grounds = self._grounds(part.names)
            tagged = np.any([ground.tagged[rows] for ground in grounds], axis=0)
            states = any(other.kind == "state" and other.wanted for other in parts)
            if part.wanted:
                scores.append(np.max([ground.believed[rows] for ground in grounds], axis=0))
                if not states:
                    keep &= tagged
            else:
                keep &= ~tagged
            means.append(Meaning(part.text, "label", ", ".join(part.names)))
        elif part.kind == "word":
            scored = self._word(part.value)
            if scored is None:
                wanted = part.value.casefold()
                keep &= np.array([(wanted in self.library.names[row].casefold()) == part.wanted for row in rows])
                means.append(Meaning(part.text, "name", "no known word: pictures that are called so"))
            else:
                chances = scored.chances[rows]
                scores.append(chances if part.wanted else 1 - chances)
                means.append(Meaning(part.text, "word"))
        elif part.kind == "state":
            keep &= self._state(part.value, asked)[rows] == part.wanted
            means.append(Meaning(part.text, "state"))
        elif part.kind == "folder":
            wanted = part.value.casefold()
            folders = [str(PurePosixPath(self.library.names[row]).parent).casefold() for row in rows]
            keep &= np.array([(wanted in folder) == part.wanted for folder in folders], np.bool_)
            means.append(Meaning(part.text, "folder"))
        else:
            taken = np.array([self.library.pictures[row].taken or "" for row in rows], "U19")
            inside = (taken >= part.value) if part.kind == "after" else (taken < part.value)
            keep &= ((inside & (taken != "")) == part.wanted) & (taken != "")
            means.append(Meaning(part.text, "date"))

    def _state(self, state: str, asked: Sequence[str]) -> NDArray[np.bool_]:
        """rows: whether a picture is in a state with regard to these labels, or to any where none is asked for"""
        grounds = self._grounds(asked or [label.name for label in self._fold.labels.values()])
        count = len(self.library)
        masks = {
            "unsure": lambda ground: ground.near,
            "confirmed": lambda ground: ground.words == reviewing.YES,
            "rejected": lambda ground: ground.words == reviewing.NO,
            "tagged": lambda ground: ground.tagged,
            "untagged": lambda ground: ground.tagged,
        }
        found = np.zeros(count, np.bool_)
        for ground in grounds:
            mask = masks[state](ground)
            found[: len(mask)] |= mask[:count]
        return ~found if state == "untagged" else found

    def _likeness(self, digest: str, box: Box | None, rows: Rows) -> NDArray[np.float32]:
        row = self.library.row(digest)
        features = self.library.features
        if box is None:
            return features.whole[rows] @ features.whole[row]
        places = features.places(row)
        if places is None:
            raise InputError("the picture's features are not at hand; wait until it is indexed again")
        strengths = self.model.strengths
        logits = features.logits([prior(box_guide(places, box), strengths)], strengths.query_focus)[0][0]
        # the prototype's own score again, between −1 and 1
        return logits[rows] / np.float32(strengths.kappa) + np.float32(strengths.offset)

    def _word(self, word: str) -> Scored | None:
        """The scores of a word that no label stands for; None for one that says nothing."""
        with self._lock:
            meaning = self._words.get(word) or by_word(word, self.model)
            if meaning is None or meaning.vector is None:
                return None
            self._words[word] = meaning
            self._words.move_to_end(word)
            while len(self._words) > _WORDS_KEPT:
                self._word_scores.kept.pop(self._words.popitem(last=False)[0], None)
            self._word_scores.refresh(Bank({word: meaning}, {}, self._word_bank.known), [word])
            return self._word_scores.kept[word]

    @cached_property
    def _word_bank(self) -> Bank:
        """Keeps what words alone were fitted to."""
        return Bank()

    def _page(
        self,
        rows: Rows,
        scores: NDArray[np.float32] | None,
        offset: int,
        limit: int,
        stacked: bool,
        means: tuple[Meaning, ...] = (),
    ) -> Page:
        counts = np.ones(len(rows), np.int64)
        if stacked and len(rows):
            _, first, sizes = np.unique(self.library.stacks()[rows], return_index=True, return_counts=True)
            order = np.argsort(first)
            first, counts = first[order], sizes[order]
            rows, scores = rows[first], None if scores is None else scores[first]
        shown = slice(offset, offset + limit)
        chances = [None] * len(rows[shown]) if scores is None else scores[shown].tolist()
        cells = self._cells(rows[shown], chances, counts[shown].tolist())
        return Page(len(rows), offset, means, tuple(cells))

    def _cells(
        self, rows: Rows, chances: Sequence[float | None], stacks: Sequence[int], marked: Sequence[bool] | None = None
    ) -> list[Cell]:
        tags = self._tags_of(rows)
        cells = []
        for number, row in enumerate(rows.tolist()):
            picture, chance = self.library.pictures[row], chances[number]
            cells.append(
                Cell(
                    picture.digest,
                    self.library.names[row],
                    picture.width,
                    picture.height,
                    None if chance is None else round(chance, DIGITS),
                    tuple(tags[number]),
                    stacks[number],
                    None if marked is None else marked[number],
                )
            )
        return cells

    def _tags_of(self, rows: Rows) -> list[list[CellTag]]:
        """Of each row the labels it carries or was refused, likeliest first."""
        found: list[list[CellTag]] = [[] for _ in rows]
        for label in self._fold.labels.values():
            scored = self._scores.kept.get(label.name)
            if scored is None:
                continue
            ground = self._ground(label, scored)
            inside = rows < len(ground.chances)
            words = (
                np.where(inside, ground.words[np.where(inside, rows, 0)], 0)
                if len(ground.words)
                else np.zeros(len(rows))
            )
            tagged = inside & ground.tagged[np.where(inside, rows, 0)] if len(ground.words) else inside
            for number in np.flatnonzero(tagged | (words == reviewing.NO)).tolist():
                state: Literal["yes", "no", "model"] = (
                    "yes" if words[number] == reviewing.YES else "no" if words[number] == reviewing.NO else "model"
                )
                chance = round(float(ground.chances[rows[number]]), DIGITS)
                found[number].append(CellTag(label.name, chance, state))
        return [
            sorted(tags, key=lambda tag: (tag.state == "no", tag.state != "yes", -tag.p, tag.label)) for tags in found
        ]

    def picture(self, digest: str) -> PictureDetail:
        """All that is known of a picture, every label's probability with the examples that speak for it."""
        row = self.library.row(digest)
        facts = self.library.pictures[row]
        bank = self._current()
        self._score(bank.classes)
        places = self.library.features.places(row)
        told = []
        for name in bank.classes:
            label, scored = self._fold.find(name), self._scores.kept[name]
            self._scores.sharpen(name, np.array([row]))
            said = self._fold.said[label.id].get(digest)
            word = None if said is None else said.answer
            told.append((name, float(scored.chances[row]), scored, word))
        told.sort(key=lambda each: (-each[1], each[0]))
        labels = tuple(
            PictureLabel(
                name,
                round(chance, DIGITS),
                round(scored.threshold, DIGITS),
                word,
                self._because(bank, name, scored, row, places) if number < _REASONED else (),
            )
            for number, (name, chance, scored, word) in enumerate(told)
        )
        stacks = self.library.stacks()
        members = np.flatnonzero((stacks == stacks[row]) & self.library.alive[: len(stacks)]).tolist()
        tags = [tag.label for tag in self._tags_of(np.array([row]))[0] if tag.state != "no"]
        files = self.library.files_of.get(digest)
        return PictureDetail(
            digest,
            self.library.names[row],
            files[0].path if files else "",
            facts.width,
            facts.height,
            facts.taken,
            facts.bytes,
            labels,
            tuple(self.library.digests[each] for each in members if each != row),
            tuple(tags),
        )

    def _because(
        self, bank: Bank, name: str, scored: Scored, row: int, places: NDArray[np.float32] | None
    ) -> tuple[Because, ...]:
        """The label's examples that look most like the picture, where the label looks."""
        keys = bank.said(name).yes[-50:]
        if not keys or places is None:
            return ()
        strengths, picture_of = self.model.strengths, self._deriver.picture_of(self._fold)
        shown = Pictures.of(np.stack([bank.examples[key].places for key in keys]))
        mine = Pictures.of(places[None])
        local = np.float32(strengths.query_local)
        ours, theirs = (each.attend(scored.fitted.guide, strengths.query_focus) for each in (mine, shown))
        alike = (1 - local) * (shown.whole @ mine.whole[0]) + local * (theirs @ ours[0])
        best = np.argsort(-alike, kind="stable")[: _REASONS + 1].tolist()
        found = [
            Because(picture_of[keys[each]], round(float(alike[each]), 4)) for each in best if keys[each] in picture_of
        ]
        return tuple(each for each in found if each.digest != self.library.digests[row])[:_REASONS]

    def thumbnail(self, digest: str, size: int = 256) -> bytes:
        """WebP, made anew from the pixels; kept in the cache."""
        if size not in SIZES:
            raise InputError(f"there is no thumbnail of {size} pixels; ask for 256 or 1024")
        self.library.row(digest)
        content = self._indexer.thumbnails.get(digest, size)
        if content is None:
            image = decode(self._read(digest), digest, at_least=size)
            content = small_copy(image, size)
            self._indexer.thumbnails.put([(digest, size, content)])
        return content

    def heat(self, digest: str, label: str, *, fine: bool = False) -> bytes:
        """A WebP overlay with alpha, at most 512 pixels; `fine` by a pass of the network over its finest map."""
        scored, places = self._explained(digest, label)
        if fine:
            picture = decode(self._read(digest), digest, at_least=DRAFT * self.model.zoom * self.model.size)
            places = self.model.fine_places(picture)
        facts = self.library.pictures[self.library.row(digest)]
        scale = min(1.0, 512 / max(facts.width, facts.height))
        size = max(1, round(facts.width * scale)), max(1, round(facts.height * scale))
        heat = heat_map(places, scored.fitted, (scored.slope, scored.offset), size)
        content = io.BytesIO()
        layer(heat).save(content, "WEBP", quality=80, method=1)
        return content.getvalue()

    def explain(self, digest: str, label: str) -> Explanation:
        """Where a label is seen, on the map that it is scored by."""
        scored, places = self._explained(digest, label)
        side = math.isqrt(len(places))
        heat = heat_map(places, scored.fitted, (scored.slope, scored.offset), (side, side))
        chance = round(float(scored.chances[self.library.row(digest)]), DIGITS)
        return Explanation(chance, tuple(tuple(round(float(each), 4) for each in line) for line in heat))

    def _explained(self, digest: str, label: str) -> tuple[Scored, NDArray[np.float32]]:
        row, name = self.library.row(digest), self._fold.find(label).name
        self._score([name])
        scored = self._scores.kept.get(name)
        if scored is None:
            raise InputError(f"label {name!r} has neither a word nor an example yet; give it one")
        self._scores.sharpen(name, np.array([row]))
        places = self.library.features.places(row)
        if places is None:
            picture = decode(self._read(digest), digest, at_least=DRAFT * self.model.size)
            places = self.model.encode(squash(picture, self.model.size)[None])[0]
        return scored, places

    def review(self, label: str, order: str = "auto", size: int = 48, offset: int = 0) -> ReviewPage:
        """A page of pictures with one question, ranked by what is known now."""
        if not 0 < size <= MOST_AT_ONCE or offset < 0:
            raise InputError(f"size {size} and offset {offset} are no page; give 1 to {MOST_AT_ONCE}, and 0 or more")
        known = self._fold.find(label)
        self._score([known.name])
        scored = self._scores.kept.get(known.name)
        if scored is None:
            raise InputError(f"label {known.name!r} has neither a word nor an example yet; teach it a picture")
        ground = self._ground(known, scored)
        chosen = reviewing.choose_order(order, ground)
        seed, whole = f"{self.folder.name} {known.id}", self.library.features.whole[: len(ground.words)]
        rows, left = reviewing.ask(chosen, ground, whole, seed, self.library.digests)
        stacks = self.library.stacks()[: len(ground.words)]
        if chosen != AUDIT and len(rows):
            # one of a stack stands for all, and one answer will do
            rows = rows[~np.isin(stacks[rows], stacks[ground.words > 0])]
            rows = rows[np.sort(np.unique(stacks[rows], return_index=True)[1])]
        left = min(left, len(rows))
        rows = rows[offset : offset + size]
        if not scored.exact[rows].all():
            self._scores.sharpen(known.name, rows)
            ground = self._ground(known, scored)
        chances = ground.chances[rows].tolist()
        sizes = np.bincount(stacks, minlength=len(stacks))[stacks[rows]].tolist()
        cells = self._cells(rows, chances, sizes, [chance >= 0.5 for chance in chances])
        self._looked_at = known.name
        word = word_of(known.name)
        return ReviewPage(
            known.name,
            chosen,
            f"Is there {'an' if word[:1].lower() in 'aeiou' else 'a'} {word}?",
            tuple(cells),
            max(0, left - offset),
            reviewing.answered(ground),
            round(scored.threshold, DIGITS),
            reviewing.curve(ground),
            reviewing.histogram(ground),
            reviewing.audit(ground),
            reviewing.enough(ground, word),
            self._examples_of(known),
            self._mistaken_for(known),
        )

    def _examples_of(self, label: Label) -> tuple[Influence, ...]:
        """Yes examples, the latest first, each with its influence where that was worked out for the label as it is."""
        self._wake.set()
        kept = self._influences.get(label.name)
        scored = self._scores.kept[label.name]
        values = kept[1] if kept is not None and kept[0] is scored.fitted else {}
        said = self._fold.said[label.id]
        shown = [picture for picture, each in said.items() if each.answer == "yes" and each.source != AUDIT]
        found = [Influence(each, values.get(each)) for each in reversed(shown[-48:])]
        return tuple(found)

    def _mistaken_for(self, label: Label) -> tuple[MistakenFor, ...]:
        """Labels that a person gave to pictures of which this one was refused."""
        fold = self._fold
        refused = {picture for picture, said in fold.said[label.id].items() if said.answer == "no"}
        counts = Counter(
            other.name
            for other in fold.labels.values()
            if other.id != label.id
            for picture, said in fold.said[other.id].items()
            if said.answer == "yes" and picture in refused
        )
        return tuple(MistakenFor(name, count) for name, count in counts.most_common(3))

    # out

    @property
    def formats(self) -> tuple[str, ...]:
        """What `deliver` can write."""
        return delivering.TABLES

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
        """A table of all pictures into PROJECT/deliveries/; no path is taken. A dry run writes nothing."""
        labels = self.scorer().labels if self._current().classes else ()
        files = sorted(
            (file for file in self.library.files.values() if file.digest in self.library.row_of),
            key=self.library.shown_name,
        )
        rows = self._delivered(files, confirmed_only)
        return delivering.deliver(
            self.project,
            rows,
            labels,
            format,
            scores=scores,
            dry_run=dry_run,
            total=len(files),
            progress=progress,
            cancelled=cancelled,
        )

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

    def _rows(
        self,
        digests: Sequence[str],
        scorer: Scorer | None,
        words: dict[str, dict[str, Word]],
        confirmed_only: bool = False,
    ) -> list[Tagged]:
        """Exact, as the tagger scores them, but that a person's word comes first."""
        if scorer is None:
            return [Tagged(self.library.names[self.library.row(digest)]) for digest in digests]
        places = np.stack([self._places(digest) for digest in digests])
        chances = scorer.probabilities(places).astype(np.float32)
        said = np.array([[words[label].get(digest, "") for label in scorer.labels] for digest in digests])
        chances[said == "yes"], chances[said == "no"] = 1, 0
        thresholds = np.where(said == "yes", 0, np.where(said == "no", 2, scorer.thresholds))
        given = (said == "yes") if confirmed_only else (chances >= thresholds)
        tags = []
        for line, mask in zip(chances, given, strict=True):
            columns = np.flatnonzero(mask)
            tags.append(tuple(scorer.labels[column] for column in columns[np.argsort(-line[columns], kind="stable")]))
        names = [self.library.names[self.library.row(digest)] for digest in digests]
        return [Tagged(*row) for row in zip(names, tags, scorer.scores(chances), strict=True)]

    def _places(self, digest: str) -> NDArray[np.float32]:
        places = self.library.features.places(self.library.row(digest))
        if places is None:
            picture = decode(self._read(digest), digest, at_least=DRAFT * self.model.size)
            places = self.model.encode(squash(picture, self.model.size)[None])[0]
        return places

    def delivery(self, file: str) -> Path:
        """Where a delivery of this name lies."""
        return delivering.find(self.project, file)

    def tag(self, digests: Sequence[str]) -> list[Tagged]:
        """Rows for pictures of the project; a person's word comes first."""
        for digest in digests:
            self.library.row(digest)
        scorer = self.scorer()
        words = {
            label.name: {picture: said.answer for picture, said in self._fold.said[label.id].items()}
            for label in list(self._fold.labels.values())
        }
        return self._rows(digests, scorer, words) if digests else []

    @property
    def tagger(self) -> Tagger:
        """A tagger of the labels as they are now, for pictures from elsewhere; not to be taught."""
        return Tagger(self.model, bank=self._current())

    def scorer(self) -> Scorer:
        """The labels ready to score, at this library's frequencies."""
        bank = self._current()
        self._score(bank.classes)
        return Scorer(bank, self.model, shares=self._scores.shares())

    # keeping

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

    # behind it

    @property
    def _fold(self) -> Fold:
        return self.project.fold

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
        found = []
        for name in names:
            label, scored = self._fold.find(name), self._scores.kept.get(name)
            if scored is None:
                count = len(self.library)
                nothing = np.zeros(count, np.float32)
                scored = Scored(
                    prior(np.zeros(self.model.space.size, np.float32), self.model.strengths),
                    nothing,
                    nothing > 0,
                    nothing > 0,
                )
            found.append(self._ground(label, scored))
        return found

    def _ground(self, label: Label, scored: Scored) -> reviewing.Ground:
        count = len(scored.logits)
        words, audited = np.zeros(count, np.int8), np.zeros(count, np.bool_)
        codes = {"yes": reviewing.YES, "no": reviewing.NO, "unknown": reviewing.UNKNOWN}
        with self._lock:
            for picture, said in self._fold.said[label.id].items():
                row = self.library.row_of.get(picture, count)
                if row < count:
                    words[row], audited[row] = codes[said.answer], said.source == AUDIT
        alive = self.library.alive[:count].copy()
        return reviewing.Ground(scored.chances, words, audited, scored.never, alive, scored.threshold)

    def _fetch(self, rows: Sequence[int]) -> Sequence[NDArray[np.float16] | None]:
        return self._indexer.fetch(rows)

    def _read(self, digest: str) -> bytes:
        """A picture's bytes from one of its files; a file that holds something else by now is passed over."""
        return self._read_files(digest, [file.path for file in self.library.files_of.get(digest, ())])

    def _read_edited(self, digest: str) -> bytes:
        """Of a picture that is about to join the library."""
        return self._read_files(digest, [file.path for file in self.project.files() if file.digest == digest])

    def _read_files(self, digest: str, paths: Sequence[str]) -> bytes:
        for path in paths:
            try:
                data = read_inside(Path(path), Path(path).name, self._indexer.folders)
            except InputError:
                continue
            if content_digest(data).hex() == digest:
                return data
        raise InputError(f"the file of picture {digest} is not there any more; put it back, or scan the folder again")

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
                now = time.monotonic()
                quiet, late = now - self._changed_at > _QUIET_SECONDS, now - self._dirty_since > _LATEST_SECONDS
                if not self._derived.is_set():
                    if quiet or late:
                        self._derive()
                elif now - self._changed_at > 2 * _QUIET_SECONDS:
                    self._settle()
            except InputError as error:
                self._notice = str(error)
                self._stop.wait(1.0)
            except Exception:
                _log.exception("the bank could not be derived")
                self._notice = "the bank could not be derived; the log says why, the answers are safe"
                self._stop.wait(5.0)
            time.sleep(0.01)
        if not self._derived.is_set():
            try:
                self._derive()
            except InputError as error:
                _log.warning("%s", error)

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
        if self._stale():
            self._score(list(self._scores.kept))
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
