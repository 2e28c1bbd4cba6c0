"""The table of translations, from a small WordNet and a small Wiktionary."""

from pathlib import Path

import make_translations
import pytest

NOUNS = """  1 This is the licence.
00000001 05 n 02 dog 0 hound 0 000 | barks
00000002 06 n 01 cup 0 000 | holds tea
00000003 06 n 01 bat 0 000 | hits a ball
00000004 06 n 01 boat 0 000 | floats
00000005 05 n 02 swine 0 pig 0 001 ;u 00000006 n 0000 | a rude word
00000006 10 n 01 disparagement 0 000 | belittles
00000007 09 n 01 idea 0 000 | cannot be seen
00000008 20 n 02 potato 0 spud 0 000 | is eaten
"""
INDEX = "".join(
    f"{word} n 1 0 1 1 {synset:08}\n"
    for word, synset in (("dog", 1), ("hound", 1), ("cup", 2), ("boat", 4), ("potato", 8), ("spud", 8))
)
COUNTS = "dog%1:05:00:: 1 42\nhound%1:05:00:: 1 3\nspud%1:20:00:: 1 1\nbark%2:29:00:: 1 9\na.m.%1:28:00:: 1 4\n"
WORDS = {
    "deu": [(1, "Hund"), (2, "Tasse"), (5, "Sau"), (7, "Idee"), (8, "Kartoffel"), (2, "Rosa"), (3, "Kindbat")],
    "dan": [(1, "hund"), (4, "hund")],
    "swe": [(4, "båt"), (1, "dog"), (4, "kind"), (1, "tråd"), (2, "träd")],
    "jpn": [(1, "犬")],
}


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    wordnet, omw = tmp_path / "wordnet", tmp_path / "omw"
    wordnet.mkdir()
    for name, text in (("data.noun", NOUNS), ("index.noun", INDEX), ("cntlist.rev", COUNTS)):
        (wordnet / name).write_text(text)
    (omw / "wns" / "wikt").mkdir(parents=True)
    for language in make_translations.LANGUAGES:
        rows = [f"{number:08}-n\t{language}:lemma\t{word}\n" for number, word in WORDS.get(language, [])]
        (omw / "wns" / "wikt" / f"wn-wikt-{language}.tab").write_text(
            "".join(["# Wiktionary\n", *rows]), encoding="utf-8"
        )
    return omw, wordnet


def test_words_mean_what_most_say_and_english_ones_are_left_out(
    sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    omw, wordnet = sources
    monkeypatch.setattr(make_translations, "given_names", lambda: {"rosa"})
    synsets, counts = make_translations.read_synsets(wordnet), make_translations.read_counts(wordnet)
    found = make_translations.translate(omw, make_translations.english_names(synsets, counts))
    assert found == {
        "hund": "dog",  # by two languages, and a usual meaning
        "犬": "dog",
        "kartoffel": "potato",  # one text more for "spud" tells nothing
        "kindbat": "bat",
        "~båt": "boat",  # English has it, but not with that letter
        "trad": "dog",
        "~träd": "cup",  # as it is written, not as the word that it is without its accents
    }, "rude words, what cannot be seen, given names and what is English too are left out"
