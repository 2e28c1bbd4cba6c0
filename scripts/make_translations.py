"""Makes the shipped table of translations: what names of things in other languages mean in English.

    git clone https://github.com/omwn/omw-data        # Wiktionary's words by WordNet's synsets
    apt-get install wordnet-base                      # WordNet 3.0, whose numbers those are: /usr/share/wordnet
    pip install names==0.3.0                          # given names of the 1990 United States census
    python scripts/make_translations.py omw-data /usr/share/wordnet

A line of the table is an English name and the words for it, normalised as names are looked up, with "|" between and at
the end. Of several meanings a word has the one that most languages and most of WordNet's texts speak for. A word that
is English as well keeps its English meaning, and so do a given name and a word that is frequent in English, whatever
it means there: they are left out. A word with a letter that English has not ("båt", "träd") also stands there as it is
written, after "~", if it means something else than without its accents.
"""

import argparse
import gzip
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from make_words import given_names

from fewtag.files import write_atomically
from fewtag.words.pieces import accented, normalise, shipped_pieces, things

TABLE = Path(__file__).parents[1] / "src" / "fewtag" / "models" / "translations.txt.gz"

LANGUAGES = (
    *("arb", "bul", "cat", "ces", "cmn", "dan", "deu", "ell", "est", "eus", "fas", "fin", "fra", "glg", "hbs", "heb"),
    *("hun", "ind", "isl", "ita", "jpn", "kor", "lav", "lit", "mkd", "nld", "nno", "nob", "pol", "por", "ron", "rus"),
    *("slk", "slv", "spa", "swe", "tha", "tur", "ukr", "vie", "zsm"),
)
"""By ISO 639-3: those of which Wiktionary has at least five hundred words for what can be seen."""
MANY = {"cmn", "deu", "fra", "ita", "jpn", "nld", "pol", "por", "rus", "spa"}
"""Languages of many who might use this: each counts as three where a word means different things."""
# WordNet's files of nouns: the top of its tree, act, animal, artefact, body, communication, event, food, group,
# location, object, person, phenomenon, plant, substance
VISIBLE = {3, 4, 5, 6, 8, 10, 11, 13, 14, 15, 17, 18, 19, 20, 27}
RUDE = {"disparagement", "ethnic_slur", "obscenity", "vulgarism"}
"""Usage of words that no label is taken for."""
FREQUENT = 10_000
"""Rank of an English word that is taken to be one, whatever it means in other languages: "kind", "montana"."""
PLAIN = 20_000
"""Rank of an English meaning that a rarer English word, often a person's name, may have in other languages."""


class Synset(NamedTuple):
    """A meaning: WordNet's file that it is in, its English words, most usual first, and what its usage is."""

    subject: int
    words: list[str]
    usage: list[str]


def read_synsets(wordnet: Path) -> dict[str, Synset]:
    found = {}
    for line in (wordnet / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):  # the licence, at the head of the file
            continue
        number, subject, _, count, *rest = line.split(" | ")[0].split()
        words = rest[: 2 * int(count, 16) : 2]
        pointers = rest[2 * int(count, 16) + 1 :]
        found[number] = Synset(
            int(subject), words, [pointers[i + 1] for i, each in enumerate(pointers) if each == ";u"]
        )
    return found


def read_counts(wordnet: Path) -> Counter[tuple[str, str]]:
    """How often WordNet's texts use a noun in a meaning."""
    senses = dict[tuple[str, int], str]()
    for line in (wordnet / "index.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            word, _, count, *rest = line.split()
            senses |= {(word, number): synset for number, synset in enumerate(rest[len(rest) - int(count) :], 1)}
    counts = Counter[tuple[str, str]]()
    for line in (wordnet / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, number, count = line.split()
        word, _, kind = key.partition("%")
        # a few of its entries are of other versions
        if kind.startswith("1:") and (synset := senses.get((word, int(number)))):
            counts[word, synset] = int(count)
    return counts


def english_names(synsets: dict[str, Synset], counts: Counter[tuple[str, str]]) -> dict[str, tuple[str, float]]:
    """Of each meaning that can be seen its most usual name in our table of words, and how usual that is."""
    nouns, table = things()[0], shipped_pieces()
    rude = {number for number, each in synsets.items() if RUDE & set(each.words)}
    found = {}
    for number, (subject, words, usage) in synsets.items():
        if subject not in VISIBLE or rude & set(usage):
            continue
        names = {word: re.sub("[_-]", " ", word) for word in words if re.fullmatch("[a-z'_-]+", word)}
        known = [word for word, name in names.items() if name in table]
        if known:
            # a text or two more tell nothing; the first word of a meaning is its plainest
            best = max(known, key=lambda word: (names[word] in nouns, counts[word, number] // 3, -words.index(word)))
            found[number] = names[best], 1 + math.log1p(counts[best, number])
    return found


def translate(omw: Path, english: dict[str, tuple[str, float]]) -> dict[str, str]:
    """The English meaning of each word by all languages together; "~" is before those written with their accents."""
    votes = defaultdict[str, dict[str, float]](lambda: defaultdict(float))
    for language in LANGUAGES:
        text = (omw / "wns" / "wikt" / f"wn-wikt-{language}.tab").read_text(encoding="utf-8")
        for number, word in re.findall(r"^(\d+)-n\t\S+\t([^\n\t]+)", text, re.MULTILINE):
            if number in english and (key := normalise(word)):
                name, weight = english[number]
                for each in (key,) if word.isascii() or not key.isascii() else (key, f"~{accented(word)}"):
                    votes[each][name] += 3 * weight if language in MANY else weight
    meanings = {word: max(sorted(some), key=some.__getitem__) for word, some in votes.items()}
    rank, english_too = shipped_pieces()._row_of, things()[0] | given_names()

    def stays(word: str, meant: str) -> bool:
        if word.startswith("~"):
            return meant not in (plain := normalise(word), found.get(plain))
        place = rank.get(word, math.inf)
        foreign = place == math.inf or (place >= FREQUENT and rank.get(meant, math.inf) < PLAIN)
        return word != meant and word not in english_too and foreign

    found = dict[str, str]()
    for word, meant in sorted(meanings.items()):  # "~" is after all letters of English
        if stays(word, meant):
            found[word] = meant
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("omw", type=Path, help="a clone of omwn/omw-data")
    parser.add_argument("wordnet", type=Path, help="the folder of WordNet 3.0's files")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    synsets = read_synsets(arguments.wordnet)
    found = translate(arguments.omw, english_names(synsets, read_counts(arguments.wordnet)))
    lines = defaultdict[str, list[str]](list)
    for word, meant in sorted(found.items()):
        lines[meant].append(word)
    text = "".join(f"{meant}|{'|'.join(words)}|\n" for meant, words in sorted(lines.items()))
    write_atomically(arguments.out, gzip.compress(text.encode(), mtime=0))
    size = arguments.out.stat().st_size / 1e6
    print(f"{arguments.out}: {len(found):,} words for {len(lines):,} English names, {size:.2f} MB")


if __name__ == "__main__":
    main()
