"""The studio's read-only views: labels, grids of pictures, one picture, a label's review."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Fitted, Pictures, prototype_classifier
from fewtag.errors import InputError
from fewtag.studio import review as reviewing
from fewtag.studio import values
from fewtag.studio.derive import is_taught, word_of
from fewtag.studio.heat import Heat
from fewtag.studio.library import Rows, box_prototype
from fewtag.studio.log import Label
from fewtag.studio.ranking import Ranking, Scored
from fewtag.studio.search import Part, parse
from fewtag.studio.values import AUDIT, MOST_AT_ONCE
from fewtag.tagger.bank import Bank
from fewtag.tagger.stream import DIGITS

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, from 0 to 1."""
_AT_ONCE = 20_000
"""The most scores (pictures times labels) that are computed while somebody waits for the list of labels."""
_REASONS, _REASONED = 3, 8


class Pages:
    """What people see, as values. `influences` returns those of a label's examples, once they are computed."""

    def __init__(
        self, ranking: Ranking, heat: Heat, influences: Callable[[str, Fitted], Mapping[str, float] | None]
    ) -> None:
        self._ranking, self._heat, self._influences = ranking, heat, influences
        self._library, self._model, self._scores = ranking.library, ranking.model, ranking.scores

    def labels(self) -> list[values.LabelRow]:
        """All labels by name; in a large library, numbers that other labels' answers change follow a second later."""
        self._ranking.catch_up()
        bank = self._ranking.bank()
        lacking = [name for name in bank.classes if name not in self._scores.kept]
        stale = [name for name in bank.classes if not self._scores.is_fresh(bank, name)]
        self._ranking.refresh(stale if len(stale) * len(self._library) <= _AT_ONCE else lacking)
        labels = sorted(self._ranking.fold.labels.values(), key=lambda label: label.name)
        return [self._label_row(bank, label) for label in labels]

    def label(self, name: str) -> values.LabelRow:
        """One label, up to date."""
        label = self._ranking.fold.find(name)
        return self._label_row(self._ranking.refresh([label.name]), label)

    def _label_row(self, bank: Bank, label: Label) -> values.LabelRow:
        name = label.name
        known = bank.definitions.get(name)
        facts = name, str(known or ""), len(bank.members.get(name, ())), len(bank.refused.get(name, ()))
        scored = self._scores.kept.get(name)
        if scored is None or name not in bank.classes:
            return values.LabelRow(*facts, label.threshold, label.prior, None, 0, 0, None)
        ground = self._ranking.ground(label)
        return values.LabelRow(
            *facts,
            round(scored.threshold, DIGITS),
            round(scored.share, DIGITS),
            round(scored.fitted.trust, DIGITS),
            int(ground.tagged.sum()),
            int(ground.near.sum()),
            reviewing.expected_precision(ground),
        )

    def failures(self) -> list[values.Failure]:
        """Pictures that could not be read, by name."""
        found = [values.Failure(self._library.shown_name(file), file.failure) for file in self._library.failures]
        return sorted(found, key=lambda each: each.name)

    def search(
        self,
        query: str = "",
        *,
        offset: int = 0,
        limit: int = 200,
        like: str | None = None,
        box: Box | None = None,
        stacked: bool = True,
        only: Literal["digests"] | None = None,
    ) -> values.Page:
        """The pictures that a query finds, likeliest first, or by name if the query does not rank them.

        With `only`, the digests of all of them instead of a page.
        """
        if offset < 0 or not 0 < limit <= MOST_AT_ONCE:
            raise InputError(f"offset {offset} and limit {limit} are no page; give 0 or more, and 1 to {MOST_AT_ONCE}")
        parts = parse(query, [label.name for label in self._ranking.fold.labels.values()])
        rows = self._library.ordered()
        keep = np.ones(len(rows), np.bool_)
        scores: list[NDArray[np.float32]] = []
        means: list[values.Meaning] = []
        for part in parts:
            left, score, meaning = self._look_for(part, parts, rows)
            keep &= left
            scores += [] if score is None else [score]
            means.append(meaning)
        if like is not None:
            scores.append(self._likeness(like, box, rows))
            means.append(values.Meaning(like, "like", "a part of this picture" if box else "this picture"))
        found, product = rows[keep], np.prod(scores, axis=0, dtype=np.float32)[keep] if scores else None
        if product is not None:
            order = np.argsort(-product, kind="stable")
            found, product = found[order], product[order]
        members, sizes = len(found), np.ones(len(found), np.int64)
        if stacked and members:
            stacks = self._library.stacks()
            first = np.sort(np.unique(stacks[found], return_index=True)[1])
            found, product = found[first], None if product is None else product[first]
            sizes = np.bincount(stacks)[stacks[found]]
        if only == "digests":
            every = tuple(self._library.digests[row] for row in found.tolist())
            return values.Page(len(found), members, offset, tuple(means), (), every)
        shown = slice(offset, offset + limit)
        chances = [None] * len(found[shown]) if product is None else product[shown].tolist()
        cells = self._cells(found[shown], chances, sizes[shown].tolist())
        return values.Page(len(found), members, offset, tuple(means), cells)

    def _look_for(
        self, part: Part, parts: Sequence[Part], rows: Rows
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32] | None, values.Meaning]:
        """Which of these rows a part of a query keeps, its score for each, and how it was interpreted."""
        every, names = np.ones(len(rows), np.bool_), self._library.names
        if part.kind == "label":
            grounds = self._ranking.grounds(part.names)
            meaning = values.Meaning(part.text, "label", ", ".join(part.names))
            tagged = np.any([ground.tagged[rows] for ground in grounds], axis=0)
            if not part.wanted:
                return ~tagged, None, meaning
            by_state = any(other.kind == "state" and other.wanted for other in parts)
            return every if by_state else tagged, np.max([each.believed[rows] for each in grounds], axis=0), meaning
        scored = self._ranking.word(part.value) if part.kind == "word" else None
        if part.kind == "name" or (part.kind == "word" and scored is None):
            called = np.array([_folded(part.value) in _folded(names[row]) for row in rows], np.bool_)
            detail = "no known word: pictures that are called so" if part.kind == "word" else ""
            return called == part.wanted, None, values.Meaning(part.text, "name", detail)
        if scored is not None:
            chances = scored.chances[rows]
            return every, chances if part.wanted else 1 - chances, values.Meaning(part.text, "word")
        if part.kind == "state":
            asked = [name for each in parts if each.kind == "label" and each.wanted for name in each.names]
            return self._state(part.value, asked)[rows] == part.wanted, None, values.Meaning(part.text, "state")
        if part.kind == "folder":
            folders = [_folded(str(PurePosixPath(names[row]).parent)) for row in rows]
            inside = np.array([_folded(part.value) in folder for folder in folders], np.bool_)
            return inside == part.wanted, None, values.Meaning(part.text, "folder")
        taken = np.array([self._library.pictures[row].taken or "" for row in rows], "U19")
        inside = (taken >= part.value) if part.kind == "after" else (taken < part.value)
        return (inside == part.wanted) & (taken != ""), None, values.Meaning(part.text, "date")

    def _state(self, state: str, asked: Sequence[str]) -> NDArray[np.bool_]:
        """rows: whether a picture is in this state for one of these labels, or for any label if none is given"""
        grounds = self._ranking.grounds(asked or [label.name for label in self._ranking.fold.labels.values()])
        count = len(self._library)
        masks = {
            "unsure": lambda ground: ground.near,
            "confirmed": lambda ground: ground.verdicts == reviewing.YES,
            "rejected": lambda ground: ground.verdicts == reviewing.NO,
            "tagged": lambda ground: ground.tagged,
            "untagged": lambda ground: ground.tagged,
        }
        found = np.zeros(count, np.bool_)
        for ground in grounds:
            mask = masks[state](ground)
            found[: len(mask)] |= mask[:count]
        return ~found if state == "untagged" else found

    def _likeness(self, digest: str, box: Box | None, rows: Rows) -> NDArray[np.float32]:
        row = self._library.row(digest)
        features = self._library.features
        if box is None:
            return (features.means @ features.means[row])[rows]
        places = features.places(row)
        if places is None:
            raise InputError("the picture's features are not at hand; wait until it is indexed again")
        strengths = self._model.strengths
        fitted = prototype_classifier(box_prototype(places, box), strengths)
        logits = features.logits([fitted], strengths.query_focus)[0][0]
        # back to the prototype's own score, between −1 and 1
        return logits[rows] / np.float32(strengths.kappa) + np.float32(strengths.offset)

    def _cells(
        self, rows: Rows, chances: Sequence[float | None], stacks: Sequence[int], marked: Sequence[bool] | None = None
    ) -> tuple[values.Cell, ...]:
        return tuple(
            values.Cell(
                picture.digest,
                self._library.names[row],
                picture.width,
                picture.height,
                None if chance is None else round(chance, DIGITS),
                tuple(tags),
                stack,
                mark,
            )
            for row, chance, stack, mark, tags in zip(
                rows.tolist(), chances, stacks, marked or repeat(None, len(rows)), self._ranking.tags(rows), strict=True
            )
            for picture in [self._library.pictures[row]]
        )

    def picture(self, digest: str) -> values.PictureDetail:
        """All that is known about a picture, with every label's probability and the examples that support it."""
        row = self._library.row(digest)
        facts = self._library.pictures[row]
        bank = self._ranking.refresh(self._ranking.bank().classes)
        self._heat.begin(digest)
        places = self._library.features.places(row)
        picture_of = self._ranking.deriver.picture_of(self._ranking.fold)
        told = []
        fold = self._ranking.fold
        for label in fold.labels.values():
            scored = self._scores.kept.get(label.name)
            if scored is None or label.name not in bank.classes:  # cannot be scored yet, or was just renamed
                continue
            self._scores.sharpen(scored, np.array([row]))
            said = fold.about(label.id).get(digest)
            verdict = None if said is None else said.answer
            told.append((label.name, float(scored.chances[row]), scored, verdict))
        told.sort(key=lambda each: (-each[1], each[0]))
        labels = tuple(
            values.PictureLabel(
                name,
                round(chance, DIGITS),
                round(scored.threshold, DIGITS),
                verdict,
                self._because(bank, name, scored, digest, places, picture_of) if number < _REASONED else (),
            )
            for number, (name, chance, scored, verdict) in enumerate(told)
        )
        tags = [tag.label for tag in self._ranking.tags(np.array([row]))[0] if tag.state != "no"]
        files = self._library.files_of.get(digest)
        return values.PictureDetail(
            digest,
            self._library.names[row],
            files[0].path if files else "",
            facts.width,
            facts.height,
            facts.taken,
            facts.bytes,
            labels,
            tuple(self._library.digests[each] for each in self._library.stack_of(row) if each != row),
            tuple(tags),
        )

    def _because(
        self,
        bank: Bank,
        name: str,
        scored: Scored,
        digest: str,
        places: NDArray[np.float32] | None,
        picture_of: Mapping[str, str],
    ) -> tuple[values.Because, ...]:
        """The label's examples that are most like the picture, by the mean and by the label's attention."""
        keys = bank.fit_set(name).yes[-50:]
        if not keys or places is None:
            return ()
        strengths = self._model.strengths
        shown = Pictures.of(np.stack([bank.examples[key].places for key in keys]))
        mine = Pictures.of(places[None])
        local = np.float32(strengths.query_local)
        ours, theirs = (each.attend(scored.fitted.prototype, strengths.query_focus) for each in (mine, shown))
        alike = (1 - local) * (shown.means @ mine.means[0]) + local * (theirs @ ours[0])
        best = np.argsort(-alike, kind="stable")[: _REASONS + 1].tolist()
        found = [
            values.Because(picture_of[keys[each]], round(float(alike[each]), 4))
            for each in best
            if keys[each] in picture_of
        ]
        return tuple(each for each in found if each.digest != digest)[:_REASONS]

    def review(self, label: str, order: str = "auto", size: int = 48, offset: int = 0) -> values.ReviewPage:
        """A page of at most so many pictures with one question, ranked by what is known now."""
        if not 0 < size <= MOST_AT_ONCE or offset < 0:
            raise InputError(f"size {size} and offset {offset} are no page; give 1 to {MOST_AT_ONCE}, and 0 or more")
        version = self._ranking.project.log.version
        known = self._ranking.project.log.find(label)
        scored = self._ranking.scored(known.name, np.empty(0, np.int64))
        ground = self._ranking.ground(known, scored)
        chosen = reviewing.choose_order(order, ground)
        seed = f"{self._ranking.project.folder.name} {known.id}"
        means = self._library.features.means[: len(ground.verdicts)]
        rows, left = reviewing.ask(chosen, ground, means, seed, self._library.digests)
        stacks = self._library.stacks()[: len(ground.verdicts)]
        if chosen != AUDIT and len(rows):
            # one picture stands for its stack, and one answer is enough
            answered = np.unique(stacks[ground.verdicts > 0])
            rows = rows[~np.isin(stacks[rows], answered)]
            rows = rows[np.sort(np.unique(stacks[rows], return_index=True)[1])]
            if chosen == "unsure":
                size = reviewing.page_size(len(answered), size)
                rows = reviewing.spread(rows, means, size)
        left = min(left, len(rows))
        rows = rows[offset : offset + size]
        self._scores.sharpen(scored, rows)
        ground = self._ranking.ground(known, scored)
        chances = ground.chances[rows].tolist()
        sizes = np.bincount(stacks)[stacks[rows]].tolist()
        # in `sure` and `audit` tagged pictures are marked; in other orders the likelier answer is
        least = scored.threshold if chosen in ("sure", AUDIT) else 0.5
        cells = self._cells(rows, chances, sizes, [chance >= least for chance in chances])
        word = word_of(known.name)
        worked_out = self._influences(known.name, scored.fitted)
        return values.ReviewPage(
            known.name,
            version,
            chosen,
            f"Is there {'an' if word[:1].lower() in 'aeiou' else 'a'} {word}?",
            cells,
            max(0, left - offset),
            reviewing.answered(ground),
            round(scored.threshold, DIGITS),
            reviewing.curve(ground),
            reviewing.histogram(ground),
            reviewing.audit(ground),
            reviewing.enough(ground, word),
            self._examples_of(known, worked_out or {}),
            self._mistaken_for(known),
            worked_out is not None,
        )

    def _examples_of(self, label: Label, worked_out: Mapping[str, float]) -> tuple[values.Influence, ...]:
        """The examples that show the label, the latest first, each with its influence if that has been computed."""
        said = self._ranking.fold.about(label.id)
        shown = [picture for picture, each in said.items() if each.answer == "yes" and is_taught(each)]
        return tuple(values.Influence(each, worked_out.get(each)) for each in reversed(shown[-48:]))

    def _mistaken_for(self, label: Label) -> tuple[values.MistakenFor, ...]:
        """Other labels of pictures that were said not to show this one."""
        fold = self._ranking.fold
        refused = {picture for picture, said in fold.about(label.id).items() if said.answer == "no"}
        counts = Counter(
            other.name
            for other in fold.labels.values()
            if other.id != label.id
            for picture, said in fold.latest[other.id].items()
            if said.answer == "yes" and picture in refused
        )
        return tuple(values.MistakenFor(name, count) for name, count in counts.most_common(3))


def _folded(name: str) -> str:
    """A file's name in one case and spelling: macOS stores an accented letter as two characters."""
    return unicodedata.normalize("NFC", name).casefold()
