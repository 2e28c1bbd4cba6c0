"""Label names to word vectors: `load_words()` is the shipped table, `load_words("glove.6B.300d.txt")` one's own."""

from fewtag.words.protocol import UnknownWordError, WordTable
from fewtag.words.vectors import WordVectors, load_words

__all__ = ["UnknownWordError", "WordTable", "WordVectors", "load_words"]
