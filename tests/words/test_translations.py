"""Label names in other languages mean what their speakers mean, and what is English stays so."""

import gzip
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import BASE

from fewtag import Tagger
from fewtag.tagger.bank import FOREIGN
from fewtag.words.pieces import accented, english, normalise, shipped_pieces, things


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("Hund", "dog"), ("chien", "dog"), ("perro", "dog"), ("собака", "dog"), ("犬", "dog"), ("개", "dog")),
        *(
            ("GABEL", "fork"),
            ("gabel ", "fork"),
            ("pájaro", "bird"),
            ("pajaro", "bird"),
            ("salsa de tomate", "tomato sauce"),
        ),
        *(("Katzen", "cat"), ("Häuser", "house"), ("oiseaux", "bird"), ("gatti", "cat"), ("árboles", "tree")),
        *(
            ("båt", "boat"),
            ("montaña", "mountain"),
        ),  # with a letter that English has not, be it "bat" or "montana" without
        *(("livre", "book"), ("Meer", "sea"), ("flor", "flower")),  # no British liver, no American mere, no flour
        *(
            ("Eiweiß", "egg white"),
            ("Eiweiss", "egg white"),
            ("BLUMENSTRAUSS", "bouquet"),
            ("Fussball", "soccer"),
            ("Busse", "bus"),
        ),
        *(("träd", "tree"), ("tråd", "thread"), ("TRÄD", "tree"), ("bro\u0308d", "bread")),  # apart by accents alone
    ],
)
def test_a_name_of_another_language_is_read_as_english(name: str, meant: str) -> None:
    assert english(name) == meant


@pytest.mark.parametrize(
    "name",
    [
        *("dog", "Dogs", "teddy bears", "gull", "mare", "bat", "Boot"),  # English things, whatever they mean elsewhere
        *("colours", "tyres", "theatre", "moustaches", "mice", "rats", "bras"),  # by another spelling or number
        *("kind", "best", "holiday"),  # frequent in English
        *("Rex", "Max", "Bella", "Anna", "Peter"),  # given names
        *("boss", "Passer", "glass"),  # no German without its ß
        *("", " ", "SKU-4711", "zzqxv", "!?", "|", "~bat", "|dog|", "\n", "a" * 10_000),
    ],
)
def test_what_is_english_a_given_name_or_nothing_at_all_is_left_alone(name: str) -> None:
    assert english(name) is None


@given(st.text())
def test_any_name_is_read_as_a_known_english_one_or_left_alone(name: str) -> None:
    meant = english(name)
    assert meant is None or meant in shipped_pieces()


def test_each_word_of_the_table_has_one_meaning_and_that_is_known() -> None:
    text = gzip.decompress(files("fewtag").joinpath("models", "translations.txt.gz").read_bytes()).decode()
    seen = set[str]()
    for line in text.removesuffix("\n").split("\n"):
        meant, *words, rest = line.split("|")
        assert not rest
        assert words == sorted(words)
        assert meant in shipped_pieces()
        assert words == [f"~{accented(word)}" if word.startswith("~") else normalise(word) for word in words]
        assert not seen & set(words)
        seen.update(words)
    assert len(seen) > 150_000
    assert not seen & things()[0]


def test_a_label_of_another_language_stands_where_its_english_name_does(tmp_path: Path) -> None:
    tagger = Tagger().define("dog").define("Tiere/Hund").define("welpe", like="Hund, Tiere/Hund")
    of_dog, of_hund = tagger.definitions_["dog"], tagger.definitions_["Tiere/Hund"]
    assert (of_hund.prototype == of_dog.prototype).all()
    assert (str(of_dog), str(of_hund)) == ("its name", "its name (dog)")
    assert (of_dog.thing, of_hund.thing) == (1.0, FOREIGN), "it may be a private name as well"
    assert tagger.definitions_["welpe"].vector == pytest.approx(of_dog.vector)
    tagger.save(tmp_path / "hunde.fewtag")
    assert str(Tagger.load(tmp_path / "hunde.fewtag").definitions_["Tiere/Hund"]) == "its name (dog)"


def test_words_of_ones_own_are_looked_up_as_they_are(tiny_model: Path, tmp_path: Path) -> None:
    own = tmp_path / "words.txt"
    own.write_text("\n".join(f"{word} {number} 1" for number, word in enumerate(["hund", *BASE])), encoding="utf-8")
    meant = Tagger(str(tiny_model), words=str(own)).define("Hund").definitions_["Hund"]
    assert meant.words == ("Hund",)
    assert meant.vector is not None
    assert meant.vector.tolist() == [0, 1]
