"""Word vectors of label names: `load_words()` is the shipped table, `load_words("glove.6B.300d.txt")` one's own."""

from fewtag.errors import UnknownWordError
from fewtag.words.vectors import WordTable, WordVectors, load_words

__all__ = ["UnknownWordError", "WordTable", "WordVectors", "load_words"]
