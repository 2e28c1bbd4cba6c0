"""Which names are words for things that can be seen: WordNet's concrete nouns."""

import gzip
from functools import cache
from importlib.resources import files

from fewtag.words.pieces import split_words
from fewtag.words.spelling import variants


def names_a_thing(label: str) -> bool:
    """Whether a name, or its last word, is a noun for a thing, an animal, a plant, food, or a part of a body.

    >>> [names_a_thing(name) for name in ("Teddy bears", "golden retriever", "Rex", "thursday", "SKU-4711")]
    [True, True, False, False, False]
    """
    words = [word for word in split_words(label) if word.isalnum()]
    if not words:
        return False
    last = {words[-1], *variants(words[-1])}
    return any(" ".join([*words[:-1], word]) in things() or word in things() for word in last)


@cache
def things() -> frozenset[str]:
    """The list that comes with fewtag, read once."""
    packed = files("fewtag").joinpath("models", "things.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode().split("\n"))
