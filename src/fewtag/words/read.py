"""Streaming readers of word vectors: GloVe, fastText and word2vec, text or binary, and .npz; some have gigabytes.

A bank from a stranger may name any file of this machine as its words. So no error message quotes a file's content, and
no file, however large or damaged, needs more memory than the largest one that is published.
"""

import gzip
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.errors import InputError, nearest

LARGEST = float(np.finfo(np.float32).max)
# a longer one means that a binary file is misaligned: no word of the published files is half as long
LONGEST_WORD = 10_000
MOST_DIMENSIONS = 10_000
LONGEST_LINE = LONGEST_WORD + 40 * MOST_DIMENSIONS
# word2vec's Google News has 3 million words of 300 numbers
MOST_WORDS = 10_000_000
MOST_NUMBERS = 1_000_000_000
FASTTEXT_MODEL = (793712314).to_bytes(4, "little")


class Entries(NamedTuple):
    """Words and their vectors, one row each, the most frequent first."""

    words: list[str]
    vectors: NDArray[np.floating]


def read_words(path: Path, key: str | None = None) -> Entries:
    """The entries of any supported file, whose format is told by its ending."""
    if not path.is_file():
        raise InputError(f"there is no file of word vectors {str(path)!r}; check the path")
    plain = path.name.removesuffix(".gz")
    if plain.endswith(".npz"):
        return read_npz(path, key)
    if key is not None:
        raise InputError(f"{str(path)!r} is no .npz file and has no array {key!r}; leave '#{key}' out")
    read = read_binary if plain.endswith(".bin") else read_text
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return gather(read(file, str(path)), str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged"
        raise InputError(f"word vectors {str(path)!r} cannot be read ({reason}); get the file again") from error


def gather(entries: Iterable[tuple[str, bytes]], path: str) -> Entries:
    """Collects the entries; of a repeated word, which published files contain, the first is kept."""
    rows: dict[str, None] = {}
    content = bytearray()
    for word, values in entries:
        if word not in rows:
            rows[word] = None
            content += values
            if len(content) > 4 * MOST_NUMBERS:
                raise InputError(f"word vectors {path!r} hold more than {MOST_NUMBERS:,} numbers; give a smaller file")
    if not rows:
        raise InputError(f"word vectors {path!r} hold no word; check the file")
    return Entries(list(rows), np.frombuffer(content, np.float32).reshape(len(rows), -1))


def read_text(file: BufferedIOBase, path: str) -> Iterator[tuple[str, bytes]]:
    """Reads a line `word number number …` per word, after an optional line `count dimensions`."""
    lines = read_lines(file, path)
    first = next(lines, "")
    if not first:
        raise InputError(f"word vectors {path!r} are empty; get the file again")
    header = re.fullmatch(r"(\d{1,9}) (\d{1,9})", first)
    dimensions = int(header[2]) if header else count_numbers(first)
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise InputError(
            f"word vectors {path!r}, line 1: a word and its numbers were expected, at most {MOST_DIMENSIONS:,}; "
            "give a GloVe or fastText file"
        )
    row = -1
    for row, line in enumerate(lines if header else chain([first], lines)):
        where = f"word vectors {path!r}, line {row + 1 + bool(header)}"
        # from the right: GloVe 840B has words with spaces
        word, *numbers = line.rsplit(" ", dimensions)
        if len(numbers) < dimensions or (" " in word and is_number(word.rpartition(" ")[2])):
            found = "fewer" if len(numbers) < dimensions else "more"
            raise InputError(f"{where}: the word has {found} numbers than line 1 says; mend the line")
        if row >= MOST_WORDS:
            raise InputError(f"word vectors {path!r} hold more than {MOST_WORDS:,} words; give a smaller file")
        yield word, parse(numbers, where)
    if header and row + 1 != int(header[1]):
        raise InputError(
            f"word vectors {path!r}, line 1 promises another number of words than the {row + 1} found; "
            "get the file again"
        )


def read_lines(file: BufferedIOBase, path: str) -> Iterator[str]:
    """The lines without their line ends; refuses one that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"word vectors {path!r}, line {number} is longer than {LONGEST_LINE:,} bytes; "
                "give a GloVe or fastText file"
            )
        yield line.decode(errors="replace").rstrip(" \r\n")


def is_number(text: str) -> bool:
    """Whether a field is a number.

    >>> is_number("-1.5e3"), is_number("...")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def count_numbers(line: str) -> int:
    """How many numbers a line ends with; its first field is always a word."""
    fields = line.split(" ")[1:]
    words = [number for number, field in enumerate(fields) if not is_number(field)]
    return len(fields) - (words[-1] + 1 if words else 0)


def parse(numbers: list[str], where: str) -> bytes:
    """Numbers as float32 bytes; raises InputError with where it is if one is no number."""
    try:
        values = np.array(numbers, dtype=np.float64)
    except ValueError:
        wrong = next(number for number, field in enumerate(numbers, start=1) if not is_number(field))
        # the cause would quote the file's content
        raise InputError(f"{where}: field {wrong} after the word is not a number; mend the line") from None
    return as_bytes(values, where)


def as_bytes(values: NDArray[np.floating], where: str) -> bytes:
    """A vector's float32 bytes; raises InputError if a number is not finite."""
    if not np.abs(values).max() <= LARGEST:  # false for NaN as well
        raise InputError(f"{where}: a number is infinite or none at all; mend the file")
    return values.astype(np.float32).tobytes()


def read_binary(file: BufferedIOBase, path: str) -> Iterator[tuple[str, bytes]]:
    """Reads word2vec's binary format: a line `count dimensions`, then for each word the word, a space and float32s."""
    start = file.readline(100)
    if start.startswith(FASTTEXT_MODEL):
        raise InputError(f"word vectors {path!r} are a fastText model, not vectors; give its .vec file")
    header = re.fullmatch(rb"(\d{1,9}) (\d{1,9})\s*\n", start)
    if header is None or not 1 <= int(header[2]) <= MOST_DIMENSIONS or int(header[1]) > MOST_WORDS:
        raise InputError(
            f"word vectors {path!r}, line 1: 'count dimensions' was expected, at most {MOST_WORDS:,} and "
            f"{MOST_DIMENSIONS:,}; give a word2vec binary"
        )
    count, dimensions = int(header[1]), int(header[2])
    for row in range(count):
        where = f"word vectors {path!r}, word {row + 1}"
        word, content = read_word(file), file.read(4 * dimensions)
        if word is None or len(content) < 4 * dimensions:
            raise InputError(f"{where}: the file ends too early or is out of step; get it again")
        yield word, as_bytes(np.frombuffer(content, "<f4"), where)
    if file.read(2).strip():
        raise InputError(f"word vectors {path!r} go on after as many words as line 1 promises; get the file again")


def read_word(file: BufferedIOBase) -> str | None:
    """The text up to the next space; None if there is no space."""
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) > LONGEST_WORD:
            return None
        word += byte
    return word.lstrip(b"\n").decode(errors="replace")


def read_npz(path: Path, key: str | None) -> Entries:
    """An array of vectors and the array of its names, from a .npz file without pickles."""
    vectors_name = key or "vectors"
    reason = f"an array of more than {MOST_NUMBERS:,} numbers"
    try:
        with zipfile.ZipFile(path) as archive:  # the members' sizes are checked before numpy allocates memory for them
            fits = all(member.file_size <= 8 * MOST_NUMBERS for member in archive.infolist())
        with np.load(path, allow_pickle=False) as arrays:
            names = [name for name in names_for(vectors_name) if name in arrays.files]
            wanted = [name for name in (*names[:1], vectors_name) if name in arrays.files and fits]
            held, found = list(arrays.files), [arrays[name] for name in wanted]
    except Exception as error:  # zipfile and numpy raise a dozen types for damaged files, and quote their content
        fits, reason = False, type(error).__name__
    if not fits:
        raise InputError(f"{str(path)!r} cannot be read as .npz ({reason}); save it with numpy.savez")
    if vectors_name not in held:
        raise InputError(f"{str(path)!r} has no array {vectors_name!r}; {nearest(vectors_name, held)}")
    if not names:
        asked = " or ".join(repr(name) for name in names_for(vectors_name))
        raise InputError(f"{str(path)!r} has no names for {vectors_name!r}; add an array {asked}")
    words, vectors = found
    kinds = (words.ndim, words.dtype.kind, vectors.ndim, vectors.dtype.kind)
    if kinds != (1, "U", 2, "f") or len(words) != len(vectors):
        raise InputError(
            f"{str(path)!r}: {names[0]!r} must be a list of text, {vectors_name!r} a row of numbers a word"
        )
    return Entries([str(word) for word in words], vectors)


def names_for(key: str) -> list[str]:
    """Names of the arrays that may hold the names of an array's rows, the most specific first.

    >>> names_for("coco_glove300")
    ['coco_labels', 'labels', 'words']
    """
    parts = key.split("_")
    prefixes = ["_".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
    return [*(f"{prefix}_labels" for prefix in prefixes), "labels", "words"]
