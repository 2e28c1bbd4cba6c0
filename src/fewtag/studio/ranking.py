"""Ranking: what the labels say of each picture as the answers are now: the bank that these make, and its scores."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from fewtag.errors import InputError
from fewtag.studio import review as reviewing
from fewtag.studio.derive import Deriver, by_word
from fewtag.studio.index import Indexer
from fewtag.studio.library import Rows
from fewtag.studio.log import Fold, Label
from fewtag.studio.scores import Scored, Scores
from fewtag.studio.values import AUDIT, CellTag
from fewtag.tagger.bank import Bank, Definition, Known
from fewtag.tagger.stream import DIGITS, Scorer, Tagged

_RANK = {"yes": 0, "model": 1, "no": 2}
_CODES = {"yes": reviewing.YES, "no": reviewing.NO, "unknown": reviewing.UNKNOWN}
_WORDS_KEPT = 16


class Ranking:
    """Each label's scores, worked out when they are asked for; and those of words that no label stands for."""

    def __init__(self, indexer: Indexer, deriver: Deriver) -> None:
        self.indexer, self.deriver = indexer, deriver
        self.project, self.library, self.model = indexer.project, indexer.library, indexer.model
        self.scores, self._word_scores = (Scores(self.library, self.model) for _ in range(2))
        self._words: OrderedDict[str, Definition] = OrderedDict()
        self._word_fits: dict[str, Known] = {}
        self._lock = threading.RLock()

    @property
    def fold(self) -> Fold:
        """The answers as they are."""
        return self.project.fold

    def bank(self) -> Bank:
        return self.deriver.bank(self.fold)

    def refresh(self, labels: Sequence[str]) -> Bank:
        """Scores these labels anew, as far as they changed; by which bank."""
        with self._lock:
            bank = self.bank()
            for gone in self.scores.kept.keys() - set(bank.classes):
                del self.scores.kept[gone]
            self.scores.refresh(bank, [label for label in labels if label in bank.classes])
            return bank

    def scored(self, label: str, rows: Rows) -> Scored:
        """A label's scores, those of these rows looked at closely."""
        name = self.fold.find(label).name
        self.refresh([name])
        scored = self.scores.kept.get(name)
        if scored is None:
            raise InputError(f"label {name!r} has neither a word nor an example yet; give it one")
        self.scores.sharpen(name, rows)
        return scored

    def word(self, word: str) -> Scored | None:
        """The scores of a word that no label stands for; None for one that says nothing."""
        with self._lock:
            meaning = self._words.get(word) or by_word(word, self.model)
            if meaning is None or meaning.vector is None:
                return None
            self._words[word] = meaning
            self._words.move_to_end(word)
            while len(self._words) > _WORDS_KEPT:
                self._word_scores.kept.pop(self._words.popitem(last=False)[0], None)
            self._word_scores.refresh(Bank({word: meaning}, {}, self._word_fits), [word])
            return self._word_scores.kept[word]

    def grounds(self, names: Sequence[str]) -> list[reviewing.Ground]:
        """What review knows of these labels."""
        self.refresh(names)
        return [self.ground(self.fold.find(name)) for name in names]

    def ground(self, label: Label) -> reviewing.Ground:
        """By the scores that are there; of a label without, which has neither word nor example, what was said of it."""
        scored = self.scores.kept.get(label.name)
        count = len(self.library) if scored is None else len(scored.logits)
        verdicts, audited = np.zeros(count, np.int8), np.zeros(count, np.bool_)
        for picture, said in self.fold.about(label.id).items():
            row = self.library.row_of.get(picture, count)
            if row < count:
                verdicts[row], audited[row] = _CODES[said.answer], said.source == AUDIT
        alive = self.library.alive[:count].copy()
        if scored is None:
            nothing = np.zeros(count, np.float32)
            return reviewing.Ground(nothing, verdicts, audited, np.zeros(count, np.bool_), alive, 0.5, nothing)
        return reviewing.Ground(scored.chances, verdicts, audited, scored.never, alive, scored.threshold, scored.logits)

    def tags(self, rows: Rows) -> list[list[CellTag]]:
        """Of each row the labels it carries or was refused: a person's first, then the likeliest."""
        found: list[list[CellTag]] = [[] for _ in rows]
        digests = [self.library.digests[row] for row in rows.tolist()]
        fold = self.fold
        for label in fold.labels.values():
            scored, latest = self.scores.kept.get(label.name), fold.latest[label.id]
            if scored is None:
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

    def scorer(self) -> Scorer:
        """The labels ready to score, at this library's frequencies."""
        bank = self.bank()
        self.refresh(bank.classes)
        return Scorer(bank, self.model, shares=self.scores.shares())

    def tagged(
        self, digests: Sequence[str], scorer: Scorer | None, fold: Fold, confirmed_only: bool = False
    ) -> list[Tagged]:
        """Rows, exact, as the tagger scores them, but that a person's word comes first."""
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
