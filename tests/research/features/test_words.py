"""Research's word vectors: GloVe from its package, several tables joined."""

import time
from pathlib import Path

import numpy as np
import pytest

from fewtag.errors import InputError
from fewtag.research.features.words import load_words
from fewtag.words.vectors import WordTable

LABELS = Path(__file__).parents[3] / "data/words/labels.npz"


@pytest.fixture(scope="module")
def glove() -> WordTable:
    return load_words("glove-50")


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_glove_rows_are_the_words_they_say(glove: WordTable) -> None:
    assert (glove.name, glove.dimensions) == ("glove-50", 50)
    for word, near, far in (("king", "queen", "cabbage"), ("dog", "cat", "parliament"), ("paris", "france", "sheep")):
        assert cosine(glove.vector(word), glove.vector(near)) > 0.7
        assert cosine(glove.vector(word), glove.vector(far)) < 0.5


def test_glove_splits_the_names_of_voc(glove: WordTable) -> None:
    for label, words in (("tvmonitor", "tv monitor"), ("pottedplant", "potted plant"), ("diningtable", "dining table")):
        np.testing.assert_array_equal(glove.vector(label), glove.vector(words))


def test_glove_refuses_typos_quickly(glove: WordTable) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match="nearest known words: zebra"):
        glove.vector("zebbra")
    with pytest.raises(InputError, match="'ectopia' is unknown"):
        glove.vector("ectopia lentis")
    assert time.process_time() - start < 20


@pytest.mark.shared
@pytest.mark.skipif(not LABELS.exists(), reason="the measurement packs are not here")
def test_glove_agrees_with_vectors_made_elsewhere(glove: WordTable) -> None:
    other = load_words(f"{LABELS}#coco_glove50")
    with np.load(LABELS) as arrays:
        labels = [str(label) for label in arrays["coco_labels"]]
    assert min(map(cosine, glove.vectors(labels), other.vectors(labels))) > 0.9999


def test_joined_words_stand_side_by_side_as_unit_vectors(glove: WordTable) -> None:
    joined = load_words("glove-50+minilm")
    assert isinstance(joined, WordTable)
    assert (joined.name, joined.dimensions) == ("glove-50+minilm", 434)
    first, second = np.split(joined.vector("potted plant"), [50])
    expected = glove.vector("potted plant")
    np.testing.assert_allclose(first, expected / np.linalg.norm(expected), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(second), 1.0, rtol=1e-5)
    assert "dog" in joined
    assert "zebbra" not in joined
    assert "zebra" in joined.nearest("zebbra")


def test_arrays_of_one_file_can_be_joined_and_a_plus_may_be_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a+b.npz"
    np.savez(path, one=np.eye(2), two=np.ones((2, 3)), words=["dog", "cat"])
    assert load_words(f"{path}#one").vector("cat").tolist() == [0, 1]
    path = path.rename(tmp_path / "ab.npz")
    np.testing.assert_allclose(load_words(f"{path}#one + {path}#two").vector("cat"), [0, 1, *[3**-0.5] * 3], rtol=1e-6)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="there are no words 'glove-51'; did you mean 'glove-50'"):
        load_words("glove-51")
    assert load_words() is load_words("pieces")
