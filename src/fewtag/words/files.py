"""Readers of GloVe, fastText and word2vec files, text or binary: streamed, as some have gigabytes."""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import Float

from fewtag.errors import InputError
from fewtag.words.tables import Keep, Table, keep_rows, read_npz

LARGEST = float(np.finfo(np.float32).max)
# longer than any word of the published files: past this, a binary file is out of step
LONGEST_WORD = 10_000
FASTTEXT_MODEL = (793712314).to_bytes(4, "little")


def read_words(path: Path, key: str | None, keep: Keep) -> Table:
    """The table of any supported file, told apart by its ending."""
    if not path.is_file():
        raise InputError(f"there is no file of word vectors {str(path)!r}; check the path, or use 'glove-50'")
    plain = path.name.removesuffix(".gz")
    if plain.endswith(".npz"):
        return keep_rows(read_npz(path, key), keep)
    if key is not None:
        raise InputError(f"{str(path)!r} is no .npz file and has no array {key!r}; leave '#{key}' out")
    read = read_binary if plain.endswith(".bin") else read_text
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return gather(read(file, str(path), keep), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"word vectors {str(path)!r} cannot be read ({error}); get the file again") from error


def gather(entries: Iterable[tuple[str, bytes]], path: str) -> Table:
    """Entries as one table; of a word that occurs twice the first stays, as the published files have some."""
    rows: dict[str, None] = {}
    content = bytearray()
    for word, values in entries:
        if word not in rows:
            rows[word] = None
            content += values
    if not rows:
        raise InputError(f"word vectors {path!r} hold none of the words wanted; check the file and the labels")
    return Table(list(rows), np.frombuffer(content, np.float32).reshape(len(rows), -1))


def read_text(file: BufferedIOBase, path: str, keep: Keep) -> Iterator[tuple[str, bytes]]:
    """`word number number …` a line, after an optional line `count dimensions`."""
    first = next(file, b"").decode(errors="replace").rstrip(" \r\n")
    if not first:
        raise InputError(f"word vectors {path!r} are empty; get the file again")
    header = re.fullmatch(r"(\d+) (\d+)", first)
    dimensions = int(header[2]) if header else count_numbers(first)
    if dimensions < 1:
        raise InputError(f"word vectors {path!r}, line 1: a word and its numbers were expected, found {first[:60]!r}")
    row = -1
    for row, line in enumerate(file if header else prepend(first.encode(), file)):
        place = f"word vectors {path!r}, line {row + 1 + bool(header)}"
        # from the right: GloVe 840B has words with spaces
        word, *numbers = line.decode(errors="replace").rstrip(" \r\n").rsplit(" ", dimensions)
        if len(numbers) < dimensions or (" " in word and is_number(word.rpartition(" ")[2])):
            found = len(numbers) if len(numbers) < dimensions else "more"
            raise InputError(
                f"{place}: {dimensions} numbers were expected after the word, found {found}; mend the line"
            )
        if keep(word, row):
            yield word, parse(numbers, place)
    if header and row + 1 != int(header[1]):
        raise InputError(
            f"word vectors {path!r}, line 1 promises {header[1]} words, found {row + 1}; get the file again"
        )


def prepend(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    """A line put back before the others."""
    yield first
    yield from rest


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
    """How many numbers end a line, its first field being a word in any case."""
    fields = line.split(" ")[1:]
    words = [place for place, field in enumerate(fields) if not is_number(field)]
    return len(fields) - (words[-1] + 1 if words else 0)


def parse(numbers: list[str], place: str) -> bytes:
    """Numbers as float32, refused by name where they are none."""
    try:
        values = np.array(numbers, dtype=np.float64)
    except ValueError as error:
        wrong = next(number for number in numbers if not is_number(number))
        raise InputError(f"{place}: {wrong[:60]!r} is not a number; mend the line") from error
    return as_bytes(values, place)


def as_bytes(values: Float[np.ndarray, "dimensions"], place: str) -> bytes:
    """A vector's float32 bytes, finite for sure."""
    if not np.abs(values).max() <= LARGEST:  # false for NaN as well
        raise InputError(f"{place}: a number is infinite or none at all; mend the file")
    return values.astype(np.float32).tobytes()


def read_binary(file: BufferedIOBase, path: str, keep: Keep) -> Iterator[tuple[str, bytes]]:
    """word2vec's binary: a line `count dimensions`, then a word, a space and float32s, over and over."""
    start = file.readline(100)
    if start.startswith(FASTTEXT_MODEL):
        raise InputError(f"word vectors {path!r} are a fastText model, not vectors; give its .vec file")
    header = re.fullmatch(rb"(\d+) (\d+)\s*\n", start)
    if header is None or int(header[2]) < 1:
        raise InputError(f"word vectors {path!r}, line 1: 'count dimensions' was expected; give a word2vec binary")
    count, dimensions = int(header[1]), int(header[2])
    for row in range(count):
        place = f"word vectors {path!r}, word {row + 1} of {count}"
        word, content = read_word(file), file.read(4 * dimensions)
        if word is None or len(content) < 4 * dimensions:
            raise InputError(f"{place}: the file ends too early or is out of step; get it again")
        if keep(word, row):
            yield word, as_bytes(np.frombuffer(content, "<f4"), place)
    if file.read(2).strip():
        raise InputError(f"word vectors {path!r}, line 1 promises {count} words, found more; get the file again")


def read_word(file: BufferedIOBase) -> str | None:
    """The bytes up to the next space; none where there is no space."""
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) > LONGEST_WORD:
            return None
        word += byte
    return word.lstrip(b"\n").decode(errors="replace")
