"""Word-vector tables from one's own files, and `load_words`, which loads any table."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fewtag.errors import InputError, UnknownWordError, nearest
from fewtag.words.pieces import read_pieces, shipped_pieces
from fewtag.words.read import read_words
from fewtag.words.spelling import halves, spelt_like, split_label, variants


@runtime_checkable
class WordTable(Protocol):
    """A table from label names to vectors of so many dimensions; a name that is `in` it has a vector."""

    name: str
    dimensions: int

    def vector(self, label: str) -> NDArray[np.float32]:
        return self.vectors([label])[0]

    def vectors(self, labels: Sequence[str]) -> NDArray[np.float32]: ...

    def nearest(self, word: str, most: int = 3) -> list[str]: ...  # the known words spelt most like this one

    def __contains__(self, label: str) -> bool: ...


SHIPPED = "pieces"
# Files list the most frequent words first. Of the 400,000 words of GloVe 6B the rare ones are typos and fragments
# ("ze", "bbra"), into which no name should be split. `potted` is number 40,745.
FREQUENT = 50_000
# two letters are a fragment of anything, so they must be a very common word: `tv` is number 816
FREQUENT_TWO_LETTERS = 2_000


class WordVectors:
    """Whole words and their vectors; a name of several has their mean, and each must be known in some spelling."""

    def __init__(self, name: str, words: Sequence[str], vectors: NDArray[np.floating]) -> None:
        if vectors.ndim != 2 or len(words) != len(vectors) or not vectors.size:
            raise InputError(f"words {name!r} need a vector each, found {len(words)} words and {vectors.shape} numbers")
        self.name = name
        self.dimensions = int(vectors.shape[1])
        self._vectors = vectors
        # in reverse, so that of a repeated word the first row is kept
        self._rows = dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))

    def __contains__(self, label: str) -> bool:
        try:
            return bool(self._label_rows(label))
        except InputError:
            return False

    def vector(self, label: str) -> NDArray[np.float32]:
        """The label's own vector, or the mean of its words'; raises UnknownWordError for an unknown word."""
        mean = self._vectors[self._label_rows(label)].astype(np.float64).mean(axis=0)
        with np.errstate(over="ignore"):
            vector: np.ndarray = mean.astype(np.float32)
        if not np.isfinite(vector).all():
            raise InputError(f"the vector of label {label!r} in words {self.name!r} is not finite; mend the file")
        return vector

    def vectors(self, labels: Sequence[str]) -> NDArray[np.float32]:
        rows = [self.vector(label) for label in labels]
        return np.stack(rows) if rows else np.empty((0, self.dimensions), np.float32)

    def nearest(self, word: str, most: int = 3) -> list[str]:
        """The known words spelt most like this one."""
        return spelt_like(word, reversed(self._rows), most)  # the rows were inserted in reverse

    @cached_property
    def _folded(self) -> dict[str, int]:
        """Rows by case-folded spelling; built when first needed, since most labels are found without it."""
        return {word.casefold(): row for word, row in self._rows.items()}

    def _row(self, word: str) -> int | None:
        for spelling in (word, word.lower(), word.capitalize()):
            if spelling in self._rows:
                return self._rows[spelling]
        return self._folded.get(word.casefold())

    def _label_rows(self, label: str) -> list[int]:
        words = split_label(label)
        if not words:
            raise UnknownWordError(label, label, self.name, [])
        for whole in (label.strip(), " ".join(words), "_".join(words)):
            if (row := self._row(whole)) is not None:
                return [row]
        # "x-ray" means more than x and ray do; a rarely used hyphenation means less than the mean of the words
        if (row := self._row("-".join(words))) is not None and row < FREQUENT:
            return [row]
        try:
            return [row for word in words for row in self._word_rows(word, label)]
        except UnknownWordError:
            # a table of label vectors may spell "tv monitor" as its data set does: "tvmonitor"
            if (row := self._row("".join(words))) is not None:
                return [row]
            raise

    def _word_rows(self, word: str, label: str) -> list[int]:
        for spelling in variants(word):
            if (row := self._row(spelling)) is not None:
                return [row]
        splits = []
        for pair in halves(word):
            rows = [row for half in pair if (row := self._row(half)) is not None and is_frequent(half, row)]
            splits += [rows] if len(rows) == 2 else []
        if splits:  # the split whose rarer half is the most frequent
            return min(splits, key=max)
        raise UnknownWordError(label, word, self.name, self.nearest(word))


def is_frequent(word: str, row: int) -> bool:
    """Whether a word is frequent enough, by its row in the file, to be half of a run-together name."""
    return row < (FREQUENT if len(word) > 2 else FREQUENT_TWO_LETTERS)


def parse_source(source: str, names: Collection[str] = (SHIPPED,)) -> tuple[str | None, Path | None, str | None]:
    """Parses a source of words: the name of a table, or a file and perhaps an array in it (`FILE.npz#ARRAY`).

    >>> parse_source("labels.npz#coco_glove50")[2]
    'coco_glove50'
    """
    if source in names:
        return source, None, None
    file, _, key = source.partition("#")
    path, array = (Path(source), None) if Path(source).is_file() else (Path(file), key or None)
    if not path.suffix:
        raise InputError(f"there are no words {source!r}; {nearest(source, names)}, or give the path of a file")
    return None, path, array


def load_words(source: str = SHIPPED) -> WordTable:
    """The shipped table, or one's own file: GloVe, fastText, word2vec, `FILE.npz#ARRAY`, or by `make_words.py`."""
    _, path, key = parse_source(source)
    if path is None:
        return shipped_pieces()
    if path.suffix == ".safetensors":
        return read_pieces(path, path.name)
    return WordVectors(Path(source).name, *read_words(path, key))


SYNONYMS = 3
"""How many synonyms of a class are used: further ones are often species and brands."""


def class_vectors(table: WordTable, classes: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Mean vectors of the known ones of a class's first synonyms ("tench, Tinca tinca"), and which classes have any."""
    known = [[each for each in name.split(", ")[:SYNONYMS] if each in table] for name in classes]
    every = iter(table.vectors([each for synonyms in known for each in synonyms]))
    means = [np.mean([next(every) for _ in synonyms], axis=0) for synonyms in known if synonyms]
    found = np.array([bool(synonyms) for synonyms in known], np.bool_)
    return np.array(means, np.float32).reshape(-1, table.dimensions), found
