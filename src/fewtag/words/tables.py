"""Tables of words and vectors, and the .npz files that hold some."""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fewtag.errors import InputError, nearest

Keep = Callable[[str, int], bool]
"""Whether to keep a word, by its spelling and its row in the file."""


class Table(NamedTuple):
    """Words and their vectors, a row each."""

    words: list[str]
    vectors: Float[np.ndarray, "words dimensions"]


def keep_rows(table: Table, keep: Keep) -> Table:
    """Only the rows wanted."""
    rows = [row for row, word in enumerate(table.words) if keep(word, row)]
    if not rows:
        raise InputError("the word vectors hold none of the words wanted; check the labels")
    return table if len(rows) == len(table.words) else Table([table.words[row] for row in rows], table.vectors[rows])


def read_npz(path: Path, key: str | None) -> Table:
    """An array of vectors and the array of its names, from a .npz file without pickles."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            vectors_name = key or "vectors"
            if vectors_name not in arrays.files:
                raise InputError(f"{str(path)!r} has no array {vectors_name!r}; {nearest(vectors_name, arrays.files)}")
            names = [name for name in names_for(vectors_name) if name in arrays.files]
            if not names:
                wanted = " or ".join(repr(name) for name in names_for(vectors_name))
                raise InputError(f"{str(path)!r} has no names for {vectors_name!r}; add an array {wanted}")
            words, vectors = arrays[names[0]], arrays[vectors_name]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r} cannot be read as .npz ({error}); save it with numpy.savez") from error
    if words.ndim != 1 or words.dtype.kind != "U" or vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise InputError(
            f"{str(path)!r}: {names[0]!r} must be a list of text, {vectors_name!r} a row of numbers a word"
        )
    return Table([str(word) for word in words], vectors)


def names_for(key: str) -> list[str]:
    """Where the names of an array's rows may be, the most particular first.

    >>> names_for("coco_glove300")
    ['coco_labels', 'labels', 'words']
    """
    parts = key.split("_")
    prefixes = ["_".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
    return [*(f"{prefix}_labels" for prefix in prefixes), "labels", "words"]
