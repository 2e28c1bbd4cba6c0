"""A project as it stands: pictures and answers in memory, the bank that they make, each label's scores."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtag.cache import content_digest
from fewtag.core.posterior import prior
from fewtag.errors import InputError
from fewtag.pictures.decode import DRAFT, decode, squash
from fewtag.studio import review as reviewing
from fewtag.studio.derive import Deriver, Scored, Scores
from fewtag.studio.index import Indexer, read_inside
from fewtag.studio.library import Features, Library
from fewtag.studio.log import Fold, Label
from fewtag.studio.project import Project
from fewtag.studio.values import (
    AUDIT,
    CellTag,
    Word,
)
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model
from fewtag.tagger.stream import DIGITS, Scorer, Tagged
from fewtag.tagger.tagger import Tagger

Rows = NDArray[np.int64]
_RANK = {"yes": 0, "model": 1, "no": 2}


class State:
    """What the studio knows; whoever changes it holds the lock."""

    def __init__(
        self,
        project: Project,
        model: Model,
        cache: Path,
        resident: int,
        tell: Callable[[], None],
        edited: Callable[[str, str], None],
    ) -> None:
        self.project, self.model, self.folder = project, model, project.folder
        features = Features(model.places, model.space.size, self._fetch, resident)
        self.library = Library(features, project.folders())
        self._indexer = Indexer(project, self.library, model, cache, tell, edited)
        self._deriver = Deriver(project, self.library, model, self._read)
        self._scores = Scores(self.library, model)
        self._lock = threading.RLock()
        self._version = len(project.log.changes)
        self._bank_of, self._bank = -1, Bank()

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

    def _places(self, digest: str) -> NDArray[np.float32]:
        places = self.library.features.places(self.library.row(digest))
        if places is None:
            picture = decode(self._read(digest), digest, at_least=DRAFT * self.model.size)
            places = self.model.encode(squash(picture, self.model.size)[None])[0]
        return places

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

    def _tags_of(self, rows: Rows) -> list[list[CellTag]]:
        """Of each row the labels it carries or was refused: a person's first, then the likeliest."""
        found: list[list[CellTag]] = [[] for _ in rows]
        digests = [self.library.digests[row] for row in rows.tolist()]
        with self._lock:
            labels = [(label, dict(self._fold.said[label.id])) for label in self._fold.labels.values()]
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
                word = said[digest].answer if digest in said else "unknown"
                if word != "unknown" or tagged:
                    state = "model" if word == "unknown" else word
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
