"""What every table of word vectors answers, and the error where it knows no vector for a name."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fewtag.errors import InputError

# difflib takes some 10 µs a word, so that a typo is answered within a tenth of a second
CANDIDATES = 10_000


@runtime_checkable
class WordTable(Protocol):
    """Label names to vectors of so many dimensions; a name that is `in` it has one."""

    name: str
    dimensions: int

    def vector(self, label: str) -> NDArray[np.float32]: ...

    def vectors(self, labels: Sequence[str]) -> NDArray[np.float32]: ...

    def nearest(self, word: str, most: int = 3) -> list[str]: ...

    def __contains__(self, label: str) -> bool: ...


class UnknownWordError(InputError):
    """A name without a vector. The sentence fits Python and the command line alike, which adds its flags."""

    def __init__(self, label: str, unknown: str, table: str, nearest: Sequence[str]) -> None:
        self.label, self.unknown, self.table, self.nearest = label, unknown, table, tuple(nearest)
        hint = f"nearest known words: {', '.join(nearest)}" if nearest else "no known word is near"
        super().__init__(
            f"label {label!r} has no vector in words {table!r}: {unknown!r} is unknown ({hint}); "
            "name known words that it is like, give it a vector of your own, or do without words (pictures only)"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, tuple[str, ...]]]:
        return type(self), (self.label, self.unknown, self.table, self.nearest)


def spelt_like(word: str, known: Iterable[str], most: int) -> list[str]:
    """The known words, frequent ones first, spelt most like this one: same first letter and about as long."""
    word = word.lower()
    alike = [other for other in known if other[:1].lower() == word[:1] and abs(len(other) - len(word)) <= 2]
    return difflib.get_close_matches(word, alike[:CANDIDATES], n=most)
