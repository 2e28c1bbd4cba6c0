"""The shipped word table: vectors for phrases and words, by WordPiece for others, by English for other languages."""

import gzip
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fewtag.errors import InputError, UnknownWordError
from fewtag.words.spelling import halves, singulars, spelt_like, variants

FORMAT = 2
HEADER = "fewtag-words"
LEVELS = 16
"""Quantisation levels of a number, half a byte: its value is (code - 7.5) times its row's scale."""
LONGEST_PHRASE = 3
"""Words in the longest phrase of the table."""
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f]")
# anything longer is no word, and the time of a look-up grows with the square of the length
LONGEST_WORD = 100
# plural endings of European languages and the singular endings that replace them, after accents are removed
_PLURALS = (*((ending, "") for ending in ("s", "e", "n", "es", "en", "er", "x")), ("i", "o"), ("i", "e"), ("e", "a"))
_SHORTEST = 5
"""Letters that a word needs to be taken for a plural."""
# entries are sorted by frequency; `tv` and `box` are among the first 5,000, `len` and `tis` are not
FREQUENT = 5_000


def split_words(text: str) -> list[str]:
    """BERT's basic tokens: lower case without accents; punctuation and Chinese characters are tokens by themselves.

    >>> split_words("Crème brûlée, x-ray")
    ['creme', 'brulee', ',', 'x', '-', 'ray']
    """
    if text.isascii() and text.isprintable():  # a fast path with the same result
        return re.findall(r"[a-z0-9]+|[^ a-z0-9]", text.lower())
    spaced = re.sub("[\t\n\r]", " ", text).replace("\ufffd", "")
    visible = "".join(letter for letter in spaced if not unicodedata.category(letter).startswith("C"))
    apart = unicodedata.normalize("NFD", _CHINESE.sub(r" \g<0> ", visible))
    plain = (letter for letter in apart if unicodedata.category(letter) != "Mn")
    # letter by letter: lower-casing a whole word would turn a last sigma into its final form
    lower = "".join(letter.lower() for letter in plain)
    return "".join(f" {letter} " if _is_punctuation(letter) else letter for letter in lower).split()


def _is_punctuation(letter: str) -> bool:
    # ASCII's $, +, <, =, >, ^, `, | and ~ are symbols to Unicode and punctuation to BERT
    return unicodedata.category(letter).startswith("P") or letter in "$+<=>^`|~"


def split_pieces(word: str, known: Mapping[str, int]) -> list[str]:
    """WordPiece: repeatedly the longest known piece from the left; empty if a remainder is unknown.

    >>> split_pieces("surfboards", {"surf": 0, "##board": 1, "##s": 2, "##boa": 3})
    ['surf', '##board', '##s']
    """
    pieces: list[str] = []
    start = 0
    while start < len(word) <= LONGEST_WORD:
        mark = "##" if start else ""
        candidates = (mark + word[start:end] for end in range(len(word), start, -1))
        piece = next((candidate for candidate in candidates if candidate in known), None)
        if piece is None:
            return []
        pieces.append(piece)
        start += len(piece) - len(mark)
    return pieces


class PieceVectors:
    """Vectors of phrases, words and word pieces, quantised to half a byte per number; a name has the mean of its parts.

    From the left, the longest phrase that is an entry, in some spelling, is one part ("teddy bears"); other words are
    looked up one by one. A word that is no entry is looked up in other spellings, then as two words run together, then
    split into pieces. At least one part of a name must be found without splitting it into pieces, since pieces alone
    ("z ##z ##q") mean nothing.
    """

    def __init__(self, name: str, pieces: Sequence[str], rows: NDArray[np.uint8], scales: NDArray[np.float32]) -> None:
        self.name = name
        self.dimensions = 2 * int(rows.shape[1])
        self._packed, self._scales = rows, scales
        self._row_of = dict(zip(pieces, range(len(pieces)), strict=True))

    def __contains__(self, label: str) -> bool:
        return self._look_up(label)[1]

    def vector(self, label: str) -> NDArray[np.float32]:
        """The mean of the name's parts; raises UnknownWordError if none of its words is known."""
        return self.vectors([label])[0]

    def vectors(self, labels: Sequence[str]) -> NDArray[np.float32]:
        found = [self._known_rows(label) for label in labels]
        if not found:
            return np.empty((0, self.dimensions), np.float32)
        rows = np.concatenate(found)
        counts = np.array([len(label_rows) for label_rows in found])
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        summed = np.add.reduceat(unpack(self._packed[rows]) * self._scales[rows, None], starts, axis=0)
        return (summed / counts[:, None]).astype(np.float32)

    def nearest(self, word: str, most: int = 3) -> list[str]:
        """The known words spelt most like this one."""
        first = word[:1].lower()  # a quick filter, before the slower test
        return spelt_like(word, (piece for piece in self._row_of if piece[:1] == first and is_word(piece)), most)

    def _known_rows(self, label: str) -> list[int]:
        rows, known = self._look_up(label)
        if not known:
            near = [other for word in split_words(label) if is_word(word) for other in self.nearest(word)]
            raise UnknownWordError(label, label, self.name, near[:3])
        return rows

    def _look_up(self, label: str) -> tuple[list[int], bool]:
        """The rows of a name's parts, and whether any of its words is known as a whole."""
        rows: list[int] = []
        known = False
        words = [word for word in split_words(label) if word.isalnum()]
        while words:
            length, row = self._phrase(words)
            if row is not None:
                rows.append(row)
                known = True
            else:
                whole = self._whole(words[0])
                known = known or (bool(whole) and is_word(words[0]))
                rows += whole or [self._row_of[piece] for piece in split_pieces(words[0], self._row_of)]
            words = words[length:]
        return rows, known

    def _phrase(self, words: Sequence[str]) -> tuple[int, int | None]:
        """The longest phrase at the beginning: its number of words and its row; (1, None) if there is none."""
        for length in range(min(LONGEST_PHRASE, len(words)), 1, -1):
            for phrase in phrase_variants(words[:length]):
                if phrase in self._row_of:
                    return length, self._row_of[phrase]
        return 1, None

    def _whole(self, word: str) -> list[int]:
        """The row of the word, of another spelling, or of its two halves as a phrase, or the rows of the two halves."""
        if word in self._row_of:
            return [self._row_of[word]]
        if len(word) > LONGEST_WORD:
            return []
        for spelling in variants(word):
            if spelling in self._row_of and is_word(spelling):
                return [self._row_of[spelling]]
        for pair in halves(word):
            if (phrase := " ".join(pair)) in self._row_of:
                return [self._row_of[phrase]]
        pairs = [[self._row_of[half] for half in pair] for pair in halves(word) if self._is_compound(*pair)]
        return min(pairs, key=max, default=[])  # the split whose rarer half is the most frequent

    def _is_compound(self, first: str, last: str) -> bool:
        """Whether both halves are words; short ones must be common (`tv`), since the table contains many fragments."""
        known = first in self._row_of and last in self._row_of
        return known and len(last) > 2 and all(len(half) > 3 or self._row_of[half] < FREQUENT for half in (first, last))


def phrase_variants(words: Sequence[str]) -> Iterator[str]:
    """The phrase, then variants with one word in another spelling, those of the last word first.

    >>> "teddy bear" in phrase_variants(["teddy", "bears"])
    True
    """
    yield " ".join(words)
    if max(map(len, words)) > LONGEST_WORD:
        return
    for changed in range(len(words) - 1, -1, -1):
        for spelling in variants(words[changed]):
            yield " ".join([*words[:changed], spelling, *words[changed + 1 :]])


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packs two codes below `LEVELS` into a byte: those of the first half of a row into the low bits."""
    half = codes.shape[1] // 2
    return codes[:, :half] | codes[:, half:] << np.uint8(4)


def unpack(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unpacks what `pack` packed, centred at zero."""
    codes = np.concatenate([rows & (LEVELS - 1), rows >> 4], axis=1)
    return codes.astype(np.float32) - np.float32((LEVELS - 1) / 2)


def is_word(piece: str) -> bool:
    """Whether an entry means something by itself: no continuation, no single letter, no number.

    >>> [is_word(piece) for piece in ("tv", "##board", "x", "747")]
    [True, False, False, False]
    """
    return sum(letter.isalpha() for letter in piece) > 1 and not piece.startswith("##")


def read_pieces(path: Path, name: str) -> PieceVectors:
    """Reads a table that `scripts/make_words.py` wrote; refuses one with any damage."""
    if not path.is_file():
        raise InputError(f"there is no file of word vectors {str(path)!r}; check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            text, rows, scales = (file.get_tensor(key) for key in ("pieces", "rows", "scales"))
        pieces = text.tobytes().decode().split("\n")
        written = (header["format"], header["crc32"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise InputError(
            f"words {str(path)!r} cannot be read ({type(error).__name__}); get the file again"
        ) from None  # the cause may quote the file
    kinds = (rows.dtype, rows.ndim, scales.dtype, scales.shape)
    fits = kinds == (np.uint8, 2, np.float32, (len(pieces),)) and len(rows) == len(pieces) and rows.size
    if written != (FORMAT, checksum((text, rows, scales))) or not fits or not np.isfinite(scales).all():
        raise InputError(f"words {str(path)!r} are damaged or of another format than {FORMAT}; get the file again")
    return PieceVectors(name, pieces, rows, scales)


def checksum(arrays: Iterable[np.ndarray]) -> int:
    """CRC-32 of the arrays' bytes, one after the other."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return total


@cache
def shipped_pieces() -> PieceVectors:
    """The table that comes with fewtag, read once."""
    with as_file(files("fewtag").joinpath("models", "words.safetensors")) as path:
        return read_pieces(path, "pieces")


def names_a_thing(label: str) -> float:
    """How likely a name, or its last word, is a noun for a thing, an animal, a plant, food, or a part of a body.

    It is 0.5 for a noun that is also a given name: a daisy, or a dog called Daisy.

    >>> [names_a_thing(name) for name in ("Teddy bears", "golden retriever", "Daisy", "Rex", "thursday", "SKU-4711")]
    [1.0, 1.0, 0.5, 0.0, 0.0, 0.0]
    """
    words = [word for word in split_words(label) if word.isalnum()]
    if not words:
        return 0.0
    nouns, given = things()
    if len(words) == 1 and words[0] in given:
        return 0.5

    def known(word: str) -> bool:
        return " ".join([*words[:-1], word]) in nouns or word in nouns

    return float(known(words[-1]) or any(map(known, variants(words[-1]))))


@cache
def things() -> tuple[frozenset[str], frozenset[str]]:
    """WordNet's words for things that can be seen, and those of them that are given names; read once."""
    packed = files("fewtag").joinpath("models", "things.txt.gz").read_bytes()
    nouns, given = gzip.decompress(packed).decode().split("\n\n")
    return frozenset(nouns.split("\n")), frozenset(given.split("\n"))


def english(label: str) -> str | None:
    """The English meaning of a name in another language; None if it is English, or its meaning is unknown.

    English nouns take precedence, unless the name has letters that English does not.

    >>> [english(name) for name in ("Hund", "oiseaux", "båt", "自転車", "bat", "Rex")]
    ['dog', 'bird', 'boat', 'bicycle', None, None]
    """
    word = normalise(label)
    others = [*_singulars(word), word.replace("ss", "ß")]  # German in capitals, or of Switzerland: FUSSBALL, Eiweiss
    if not label.isascii():
        keys = [*(f"~{each}" for each in _singulars(accented(label))), *others]
    elif _is_english(word):
        keys = []
    else:  # "livre" is a book rather than a British liver; "tyres" are known by no other language as they are
        keys = [word] if names_a_thing(label) else others
    return next(filter(None, map(_meaning, keys)), None)


def _is_english(name: str) -> bool:
    """Whether a name is an English noun, its plural, or ends with one."""
    nouns = things()[0]
    return name in nouns or any(each in nouns for each in singulars(name)) or (" " in name and names_a_thing(name) > 0)


def normalise(name: str) -> str:
    """A name in the form in which it is looked up: its words in lower case, without accents and punctuation."""
    return " ".join(word for word in split_words(name) if word.isalnum())


def accented(name: str) -> str:
    """A name as `normalise` gives it, but with its accents: "träd" is a tree, "tråd" a thread."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", name).lower()))


def _singulars(word: str) -> list[str]:
    """The word, and what it may be the plural of."""
    endings = [each for each in _PLURALS if word.endswith(each[0]) and len(word) >= _SHORTEST]
    return [word, *(word.removesuffix(plural) + singular for plural, singular in endings)]


def _meaning(word: str) -> str | None:
    position = _table().find(f"|{word}|".encode())
    if position < 0:
        return None
    line = _table()[_table().rfind(b"\n", 0, position) + 1 : position]
    return line.partition(b"|")[0].decode()


@cache
def _table() -> bytes:
    """The translations, a line per meaning, searched as bytes: a dictionary of them takes ten times as long."""
    return gzip.decompress(files("fewtag").joinpath("models", "translations.txt.gz").read_bytes())
