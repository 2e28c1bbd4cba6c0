"""Ranking: the labels' scores of every picture, given the present answers.

For each label these are log-odds for every picture of the library, and the curve that turns them into probabilities.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import Priors, estimate_priors, match_priors, sigmoid
from fewtag.core.posterior import Fitted
from fewtag.errors import InputError
from fewtag.studio import review as reviewing
from fewtag.studio.derive import AnswersBank, Deriver, by_word
from fewtag.studio.index import Indexer
from fewtag.studio.library import Library, Rows
from fewtag.studio.log import Fold, Label
from fewtag.studio.values import AUDIT, CellTag
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model
from fewtag.tagger.stream import DIGITS, SAME, Scorer, Tagged

_RANK = {"yes": 0, "model": 1, "no": 2}
_CODES = {"yes": reviewing.YES, "no": reviewing.NO, "unknown": reviewing.UNKNOWN}
_WORDS_KEPT = 16
SMALLEST_SAMPLE, SAMPLE = 100, 1000
"""The fewest pictures by which a label's share is estimated, and the most: more change nothing."""


@dataclass(eq=False)
class Scored:
    """A label's scores for the library, one number per row."""

    fitted: Fitted
    logits: NDArray[np.float32]
    exact: NDArray[np.bool_]
    never: NDArray[np.bool_]
    """Rows that are the same picture as one that was said not to show the label."""
    slope: float = 1.0
    offset: float = 0.0
    share: float = 0.5
    threshold: float = 0.5
    by: tuple[object, ...] = ()
    """What its curve and threshold depend on, besides the classifier."""

    def __post_init__(self) -> None:
        self.chances = self.logits

    def calibrate(self) -> None:
        self.chances = sigmoid(np.float32(self.slope) * self.logits + np.float32(self.offset))


class Scores:
    """The labels' scores, cached until a label's classifier or threshold changes or pictures are added."""

    def __init__(self, library: Library, model: Model) -> None:
        self.library, self.model = library, model
        self.kept: dict[str, Scored] = {}
        self._same: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.RLock()

    def is_fresh(self, bank: Bank, label: str) -> bool:
        kept = self.kept.get(label)
        return (
            kept is not None
            and len(kept.logits) == self.library.features.count
            and kept.fitted is bank.classifier(self.model, label)
            and kept.by == _finished_by(bank, label)
        )

    def refresh(self, bank: Bank, labels: Sequence[str], stop: Callable[[], bool] = lambda: False) -> None:
        """Updates and caches the scores of these labels that changed; `stop` tells whether the bank is outdated."""
        for label, scored in self.scored(bank, labels, self.kept, stop):
            with self._lock:
                before = self.kept.get(label)
                # never with fewer pictures than before, since somebody may be using rows of the others
                if not stop() and (before is None or len(before.logits) <= len(scored.logits)):
                    self.kept[label] = scored

    def scored(
        self, bank: Bank, labels: Sequence[str], kept: Mapping[str, Scored], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str, Scored]]:
        """These labels' scores, reusing cached ones; computed together, since most of the work is per picture."""
        count, resident = self.library.features.count, self.library.features.resident
        groups: dict[int, list[tuple[str, Fitted, Scored | None]]] = {}
        for label in labels:
            fitted, before = bank.classifier(self.model, label), kept.get(label)
            if before is None or before.fitted is not fitted:
                groups.setdefault(0, []).append((label, fitted, None))
            elif len(before.logits) < count:
                groups.setdefault(len(before.logits) if count <= resident else 0, []).append((label, fitted, before))
            else:
                self._finish(bank, label, before)
                yield label, before
        for first, some in groups.items():
            every = [fitted for _, fitted, _ in some]
            found = self.library.features.logits(every, self.model.strengths.query_focus, first, stop)
            for (label, fitted, before), logits, exact in zip(some, *found, strict=True):
                if first and before is not None:
                    logits = np.concatenate([before.logits[:first], logits])
                    exact = np.concatenate([before.exact[:first], exact])
                scored = Scored(fitted, logits, exact, np.zeros(len(logits), np.bool_))
                self._finish(bank, label, scored)
                yield label, scored

    def sharpen(self, scored: Scored, rows: Rows) -> None:
        """Computes exact scores for rows that were estimated from their mean vectors, since somebody will see them."""
        rows = rows[~scored.exact[rows]]
        if len(rows):
            found = self.library.features.exact([scored.fitted], self.model.strengths.query_focus, rows)[0]
            known = np.isfinite(found)
            scored.logits[rows[known]], scored.exact[rows[known]] = found[known], True
            scored.calibrate()

    def _finish(self, bank: Bank, label: str, scored: Scored) -> None:
        """Sets share, calibrated curve and threshold, as a `Scorer` with these shares would."""
        calibration, known = self.model.calibration, bank.definitions[label]
        counts = np.array([len(bank.members[label])])
        noes, coherence = np.array([[scored.fitted.noes], [scored.fitted.coherence]], np.float32)
        scored.share = self._share(bank, label, scored) if known.prior is None else known.prior
        shares = np.array([scored.share], np.float32)
        slopes, offsets = calibration.curves(counts, noes, shares, coherence)
        scored.slope, scored.offset = float(slopes[0]), float(offsets[0])
        own = known.threshold
        scored.threshold = float(calibration.threshold(counts, shares)[0]) if own is None else own
        never = np.zeros(len(scored.logits), np.bool_)
        never[self._one_with(bank, bank.refused[label], len(scored.logits))] = True
        scored.never = never  # complete, since others may be reading it
        scored.calibrate()
        scored.by = _finished_by(bank, label)

    def _share(self, bank: Bank, label: str, scored: Scored) -> float:
        """The share of the library that shows a label, by a sample and by answers; else the model's default.

        The default is also used with a threshold set by a person, which keeps the probabilities that it was chosen by.
        """
        calibration, features = self.model.calibration, self.library.features
        found, counts = np.array([calibration.share], np.float32), np.array([len(bank.members[label])])
        rows = np.flatnonzero(self.library.alive[: len(scored.logits)] & scored.exact)
        if len(rows) and bank.definitions[label].threshold is None:
            if len(rows) >= SMALLEST_SAMPLE:
                if features.count > features.resident:
                    rows = features.sample(len(scored.logits))
                sample = rows[np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)]
                noes, coherence = np.array([[scored.fitted.noes], [scored.fitted.coherence]], np.float32)
                evidence = calibration.evidence(scored.logits[sample, None], counts, noes, coherence)
                found = estimate_priors(evidence)
            # what a person has confirmed is certainly there, if its files are
            confirmed = min(0.99, int(counts[0]) / int(self.library.alive.sum()))
            found = np.maximum(self._by_answers(bank, label, scored.fitted, found), confirmed)
        return round(float(found[0]), 6)

    def _by_answers(self, bank: Bank, label: str, fitted: Fitted, share: Priors) -> Priors:
        """The share at which probabilities agree with the answers about the pictures that Review chose.

        Each picture is scored by the other answers only (leave-one-out). The pictures are no random sample, but
        unbiased at every score; an estimate of the share from all pictures falls too low with each 'no' to an unsure
        one.
        """
        if fitted.left_out is None or not isinstance(bank, AnswersBank):
            return share
        fitted_to, calibration = bank.fit_set(label), self.model.calibration
        asked = np.array([key in bank.asked[label] for key in sum(fitted_to[:3], ())], np.bool_)
        if not asked.any():
            return share
        shown, count = np.arange(len(asked)) < len(fitted_to.yes), len(bank.members[label])
        noes = (fitted.noes - ~shown).astype(np.float32)
        evidence = calibration.evidence(fitted.left_out, count - shown, noes, fitted.coherence)[asked, None]
        steeper = calibration.steeper(np.array([count]), fitted.coherence)
        return match_priors(evidence, steeper, share, shown=float(shown[asked].sum()))

    def _one_with(self, bank: Bank, keys: Sequence[str], count: int) -> list[int]:
        """The rows that are the same picture as one of the examples, whichever file they come from."""
        todo: dict[int, list[str]] = {}
        for key in keys:
            todo.setdefault(self._same.get(key, (0, []))[0], []).append(key)
        for checked, some in todo.items():
            if checked < count:  # all new rows in one product, so that the library is read once
                seen = np.stack([bank.examples[key].features.pooled.mean for key in some])
                alike = self.library.features.means[checked:count] @ seen.T > SAME
                for key, column in zip(some, alike.T, strict=True):
                    rows = (np.flatnonzero(column) + checked).tolist()
                    self._same[key] = count, [*self._same.get(key, (0, []))[1], *rows]
        return [row for key in keys for row in self._same.get(key, (0, []))[1] if row < count]  # works without pictures


def _finished_by(bank: Bank, label: str) -> tuple[object, ...]:
    known = bank.definitions[label]
    return known.threshold, known.prior, bank.members[label], bank.refused[label]


class Ranking:
    """Each label's scores, computed on demand; and those of words that are no label."""

    def __init__(self, indexer: Indexer, deriver: Deriver) -> None:
        self.indexer, self.deriver = indexer, deriver
        self.project, self.library, self.model = indexer.project, indexer.library, indexer.model
        self.scores = Scores(self.library, self.model)
        self._words: OrderedDict[str, tuple[Bank, Mapping[str, Scored]]] = OrderedDict()
        """Recently searched words, each as a bank with this word only, and its scores."""
        self._lock = threading.RLock()

    @property
    def fold(self) -> Fold:
        """The current answers."""
        return self.project.fold

    def bank(self) -> Bank:
        return self.deriver.bank(self.fold)

    def refresh(self, labels: Sequence[str]) -> Bank:
        """Updates the scores of these labels where they changed; returns the bank that they are from."""
        with self._lock:
            bank = self.bank()
            for gone in {*self.scores.kept} - {*bank.classes}:
                del self.scores.kept[gone]
            self.scores.refresh(bank, [label for label in labels if label in bank.classes])
            return bank

    def scored(self, label: str, rows: Rows) -> Scored:
        """A label's scores, which are exact for these rows."""
        name = self.fold.find(label).name
        self.refresh([name])
        scored = self.scores.kept.get(name)
        if scored is None:
            raise InputError(f"label {name!r} has neither a word nor an example yet; give it one")
        self.scores.sharpen(scored, rows)
        return scored

    def catch_up(self) -> None:
        """Applies thresholds that were changed without viewing their label, as by an undo; it takes milliseconds."""
        stale = [
            label.name
            for label in self.fold.labels.values()
            if (kept := self.scores.kept.get(label.name)) and kept.by[:2] != (label.threshold, label.prior)
        ]
        if stale:
            self.refresh(stale)

    def word(self, word: str) -> Scored | None:
        """The scores of a word that is no label; None for an unknown word."""
        with self._lock:
            bank, kept = self._words.pop(word, (None, {}))
            if bank is None:
                meaning = by_word(word, self.model)
                if meaning is None or meaning.vector is None:
                    return None
                bank = Bank({word: meaning})
            found = dict(self.scores.scored(bank, [word], kept))
            self._words[word] = bank, found
            if len(self._words) > _WORDS_KEPT:
                self._words.popitem(last=False)
            return found[word]

    def grounds(self, names: Sequence[str]) -> list[reviewing.Ground]:
        """The review data of these labels."""
        self.refresh(names)
        return [self.ground(self.fold.find(name)) for name in names]

    def ground(self, label: Label, scored: Scored | None = None) -> reviewing.Ground:
        """The review data of a label, by these scores or the cached ones; without any, only with its answers."""
        scored = scored or self.scores.kept.get(label.name)
        count = len(self.library) if scored is None else len(scored.logits)
        verdicts, audited = np.zeros(count, np.int8), np.zeros(count, np.bool_)
        alive = self.library.alive[:count].copy()
        for picture, said in self.fold.about(label.id).items():
            row = self.library.row_of.get(picture, count)
            if row < count and alive[row]:
                verdicts[row], audited[row] = _CODES[said.answer], said.source == AUDIT
        if scored is None:
            nothing = np.zeros(count, np.float32)
            return reviewing.Ground(nothing, verdicts, audited, np.zeros(count, np.bool_), alive, 0.5, nothing)
        return reviewing.Ground(scored.chances, verdicts, audited, scored.never, alive, scored.threshold, scored.logits)

    def tags(self, rows: Rows) -> list[list[CellTag]]:
        """For each row the labels that it has or was refused: a person's first, then the likeliest."""
        self.catch_up()
        found: list[list[CellTag]] = [[] for _ in rows]
        digests = [self.library.digests[row] for row in rows.tolist()]
        fold = self.fold
        for label in fold.labels.values():
            scored, latest = self.scores.kept.get(label.name), fold.latest[label.id]
            if scored is None or not len(scored.logits):
                continue
            inside = np.minimum(rows, len(scored.logits) - 1)
            chances = scored.chances[inside]
            given = (chances >= scored.threshold) & ~scored.never[inside] & (rows < len(scored.logits))
            facts = zip(found, digests, given.tolist(), chances.tolist(), strict=True)
            for tags, digest, tagged, chance in facts:
                verdict = latest[digest].answer if digest in latest else "unknown"
                if verdict != "unknown" or tagged:
                    state = "model" if verdict == "unknown" else verdict
                    tags.append(CellTag(label.name, round(chance, DIGITS), state))
        return [sorted(tags, key=lambda tag: (_RANK[tag.state], -tag.p, tag.label)) for tags in found]

    def scorer(self, fold: Fold | None = None) -> Scorer:
        """A scorer of the labels, of these answers or the current ones, with the shares of this library."""
        bank = self.deriver.bank(fold or self.fold)
        self.refresh(bank.classes)
        return Scorer(bank, self.model, priors={label: each.share for label, each in list(self.scores.kept.items())})

    def tagged(
        self, digests: Sequence[str], scorer: Scorer | None, fold: Fold, confirmed_only: bool = False
    ) -> list[Tagged]:
        """Exact rows as the tagger scores them, except that a person's answers take precedence."""
        names = [self.library.names[self.library.row(digest)] for digest in digests]
        if scorer is None:
            return [Tagged(name) for name in names]
        chances = scorer.probabilities(np.stack([self.indexer.look(digest) for digest in digests])).astype(np.float32)
        latest = {label.name: fold.latest[label.id] for label in fold.labels.values()}
        said = np.full(chances.shape, "", "U7")
        for column, label in enumerate(scorer.labels):
            for row, digest in enumerate(digests):
                if answer := latest[label].get(digest):
                    said[row, column] = answer.answer
        chances[said == "yes"], chances[said == "no"] = 1, 0
        counted = said == "yes" if confirmed_only else said != "no"
        tags = scorer.tags(np.where(counted, chances, np.float32(-1)))  # below any threshold
        return [Tagged(*row) for row in zip(names, tags, scorer.scores(chances), strict=True)]
