"""Labels to vectors: averages by hand, every second chance, and the sentence when there is none left."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.errors import InputError
from fewtag.words import vectors as module
from fewtag.words.vectors import WordVectors, load_words

LABELS = Path(__file__).parents[2] / "data/words/labels.npz"
KNOWN = [
    *("the", "tv", "monitor", "potted", "plant", "dog", "New_York", "Paris", "x-ray", "x", "ray", "donut"),
    *("color", "zebras", "of", "fen", "ce", "fence", "traffic light"),
]
WORDS = WordVectors("toy", KNOWN, np.eye(len(KNOWN), dtype=np.float32))


def meaning(label: str, words: WordVectors = WORDS) -> set[str]:
    return {KNOWN[place] for place in np.flatnonzero(words.vector(label))}


@pytest.fixture(scope="module")
def glove() -> WordVectors:
    return load_words()


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_several_words_are_averaged() -> None:
    words = WordVectors("toy", ["potted", "plant"], np.array([[1, 2], [3, -6]], dtype=np.float16))
    assert words.vector("potted plant").tolist() == [2, -2]
    assert words.vector("potted plant").dtype == np.float32
    assert words.vectors(["plant", "potted"]).tolist() == [[3, -6], [1, 2]]
    assert words.vectors([]).shape == (0, 2)
    assert words.vectors(["plant"]).dtype == torch.float32


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


def test_an_unknown_label_is_refused_with_the_ways_out() -> None:
    with pytest.raises(InputError) as refusal:
        WORDS.vector("big monitro")
    sentence = str(refusal.value)
    assert "label 'big monitro' has no vector in words 'toy': 'big' is unknown" in sentence
    for way_out in ('--like "lens, eye" (mean of known words)', "a vector file of your own", "--no-words"):
        assert way_out in sentence
    with pytest.raises(InputError, match=r"'monitro' is unknown \(nearest known words: monitor\)"):
        WORDS.vector("monitro")


@pytest.mark.parametrize("label", ["", "  ", "-/_"])
def test_a_label_without_letters_is_refused(label: str) -> None:
    with pytest.raises(InputError, match="has no letters"):
        WORDS.vector(label)


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


def test_containment_is_by_entry() -> None:
    assert "Dog" in WORDS
    assert "dogs" not in WORDS


@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.sampled_from(["tvmonitor", "new york", "doughnuts", "X ray", "Paris dogs"]), min_size=1))
def test_keeping_only_some_labels_changes_no_vector(
    labels: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("words") / "toy.txt"
    matrix = np.eye(len(KNOWN))
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(KNOWN, matrix, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    some = load_words(str(path), only=labels)
    assert len(some._rows) < len(KNOWN)
    assert torch.equal(some.vectors(labels), WORDS.vectors(labels))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("glove-51", "there are no words 'glove-51'; did you mean 'glove-50'"),
        ("nowhere.txt", "no file of word vectors 'nowhere.txt'"),
    ],
)
def test_sources_that_do_not_exist_are_refused(source: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_words(source)


def test_glove_rows_are_the_words_they_say(glove: WordVectors) -> None:
    assert (glove.name, glove.dimensions) == ("glove-50", 50)
    for word, near, far in (("king", "queen", "cabbage"), ("dog", "cat", "parliament"), ("paris", "france", "sheep")):
        assert cosine(glove.vector(word), glove.vector(near)) > 0.7
        assert cosine(glove.vector(word), glove.vector(far)) < 0.5


def test_glove_splits_the_names_of_voc(glove: WordVectors) -> None:
    for label, words in (("tvmonitor", "tv monitor"), ("pottedplant", "potted plant"), ("diningtable", "dining table")):
        np.testing.assert_array_equal(glove.vector(label), glove.vector(words))


def test_glove_refuses_typos_quickly(glove: WordVectors) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match="nearest known words: zebra"):
        glove.vector("zebbra")
    with pytest.raises(InputError, match="'ectopia' is unknown"):
        glove.vector("ectopia lentis")
    assert time.perf_counter() - start < 5


def test_glove_can_be_kept_in_part(glove: WordVectors) -> None:
    some = load_words(only=["pottedplant", "Dogs"])
    assert torch.equal(some.vectors(["pottedplant", "dogs"]), glove.vectors(["pottedplant", "dogs"]))


@pytest.mark.shared
@pytest.mark.skipif(not LABELS.exists(), reason="the measurement packs are not here")
def test_glove_agrees_with_vectors_made_elsewhere(glove: WordVectors) -> None:
    other = load_words(f"{LABELS}#coco_glove50")
    with np.load(LABELS) as arrays:
        labels = [str(label) for label in arrays["coco_labels"]]
    similarity = torch.nn.functional.cosine_similarity(glove.vectors(labels), other.vectors(labels))
    assert similarity.min() > 0.9999


def test_a_label_of_two_words_finds_the_entry_that_runs_them_together() -> None:
    words = WordVectors("labels", ["tvmonitor", "dog"], np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    assert words.vector("tv monitor").tolist() == [1.0, 2.0]
