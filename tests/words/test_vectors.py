"""Labels to vectors: averages by hand, every second chance, and the sentence when there is none left."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.errors import InputError, UnknownWordError
from fewtag.words import vectors as module
from fewtag.words.vectors import WordTable, WordVectors, load_words, parse_source

KNOWN = [
    *("the", "tv", "monitor", "potted", "plant", "dog", "New_York", "Paris", "x-ray", "x", "ray", "donut"),
    *("color", "zebras", "of", "fen", "ce", "fence", "traffic light"),
]
WORDS = WordVectors("toy", KNOWN, np.eye(len(KNOWN), dtype=np.float32))


def meaning(label: str, words: WordVectors = WORDS) -> set[str]:
    return {KNOWN[place] for place in np.flatnonzero(words.vector(label))}


def test_several_words_are_averaged() -> None:
    words = WordVectors("toy", ["potted", "plant"], np.array([[1, 2], [3, -6]], dtype=np.float16))
    assert words.vector("potted plant").tolist() == [2, -2]
    assert words.vector("potted plant").dtype == np.float32
    assert words.vectors(["plant", "potted"]).tolist() == [[3, -6], [1, 2]]
    assert words.vectors([]).shape == (0, 2)
    assert words.vectors(["plant"]).dtype == np.float32


@pytest.mark.parametrize(
    ("label", "used"),
    [
        ("dog", {"dog"}),
        ("DOG", {"dog"}),
        (" dog ", {"dog"}),
        ("paris", {"Paris"}),
        ("new york", {"New_York"}),
        ("traffic-light", {"traffic light"}),
        ("x ray", {"x-ray"}),
        ("x/ray/dog", {"x", "ray", "dog"}),
        ("dogs", {"dog"}),
        ("zebra", {"zebras"}),
        ("doughnuts", {"donut"}),
        ("Coloured", set()),
        ("colours", {"color"}),
        ("tvmonitor", {"tv", "monitor"}),
        ("potted-plants", {"potted", "plant"}),
        ("TVmonitor dog", {"tv", "monitor", "dog"}),
        ("fence", {"fence"}),
    ],
)
def test_second_chances(label: str, used: set[str]) -> None:
    if used:
        assert meaning(label) == used
    else:
        with pytest.raises(InputError, match="is unknown"):
            WORDS.vector(label)


def test_of_several_splits_the_one_of_frequent_words_is_taken() -> None:
    words = WordVectors("toy", ["in", "sun", "set", "sunset", "sunse", "ts"], np.eye(6, dtype=np.float32))
    assert np.flatnonzero(words.vector("sunin")).tolist() == [0, 1]
    assert np.flatnonzero(words.vector("setsun")).tolist() == [1, 2]


def test_rare_fragments_split_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREQUENT_TWO_LETTERS", 1)
    with pytest.raises(InputError, match="'tvmonitor' is unknown"):
        WORDS.vector("tvmonitor")


def test_an_unknown_label_is_refused_with_the_ways_out_in_neither_worlds_words() -> None:
    with pytest.raises(UnknownWordError) as refusal:
        WORDS.vector("big monitro")
    sentence = str(refusal.value)
    assert "label 'big monitro' has no vector in words 'toy': 'big' is unknown" in sentence
    for way_out in ("known words that it is like", "a vector of your own", "without words"):
        assert way_out in sentence
    assert "--" not in sentence
    assert "=" not in sentence
    with pytest.raises(UnknownWordError, match=r"'monitro' is unknown \(nearest known words: monitor\)") as refusal:
        WORDS.vector("monitro")
    assert (refusal.value.label, refusal.value.nearest) == ("monitro", ("monitor",))
    again = pickle.loads(pickle.dumps(refusal.value))  # from another process
    assert (str(again), again.nearest) == (str(refusal.value), ("monitor",))


@pytest.mark.parametrize("label", ["", "  ", "-/_"])
def test_a_label_without_letters_is_no_known_word(label: str) -> None:
    with pytest.raises(UnknownWordError, match="has no vector in words"):
        WORDS.vector(label)


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(KNOWN), min_size=1).map(" ".join))
def test_a_vector_is_finite_or_refused(label: str) -> None:
    broken = WordVectors("broken", [*KNOWN, "dog2"], np.vstack([np.eye(len(KNOWN)), np.full(len(KNOWN), np.nan)]))
    for words in (WORDS, broken):
        try:
            vector = words.vector(label)
        except InputError:
            continue
        assert vector.shape == (words.dimensions,)
        assert np.isfinite(vector).all()


def test_a_vector_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="of label 'dog' in words 'toy' is not finite"):
        WordVectors("toy", ["dog"], np.array([[np.nan]], dtype=np.float32)).vector("dog")


def test_a_label_is_in_the_table_if_it_has_a_vector() -> None:
    assert isinstance(WORDS, WordTable)
    assert all(label in WORDS for label in ("Dog", "dogs", "potted plants"))
    assert not any(label in WORDS for label in ("cat", "big dog", ""))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("piece", "there are no words 'piece'; did you mean 'pieces'"),
        ("a+b", "there are no words 'a\\+b'; known: 'pieces', or give the path of a file"),
        ("nowhere.safetensors", "no file of word vectors 'nowhere.safetensors'"),
        ("nowhere.txt", "no file of word vectors 'nowhere.txt'"),
    ],
)
def test_sources_that_do_not_exist_are_refused(source: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_words(source)


def test_a_label_of_two_words_finds_the_entry_that_runs_them_together() -> None:
    words = WordVectors("labels", ["tvmonitor", "dog"], np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    assert words.vector("tv monitor").tolist() == [1.0, 2.0]


def test_a_source_is_a_name_a_file_or_an_array_in_one(tmp_path: Path) -> None:
    assert parse_source("pieces") == ("pieces", None, None)
    assert parse_source("a/b.npz#c") == (None, Path("a/b.npz"), "c")
    assert parse_source("a/b.txt") == (None, Path("a/b.txt"), None)
    odd = tmp_path / "c#.txt"
    odd.write_text("dog 1 2\n")
    assert parse_source(str(odd)) == (None, odd, None)
    assert load_words(str(odd)).vector("dog").tolist() == [1, 2]
