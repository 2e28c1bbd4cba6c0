"""Every format comes back as written; every damage is refused with file and line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fewtag.errors import InputError
from fewtag.words import read as reading
from fewtag.words.read import read_words
from fewtag.words.vectors import load_words

WORDS = ["dog", "cat", ". . .", "New_York", "naïve"]
VECTORS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def as_text(words: list[str], vectors: np.ndarray, *, header: bool = False) -> bytes:
    lines = [f"{len(words)} {vectors.shape[1]}"] if header else []
    lines += [" ".join([word, *map(repr, map(float, row))]) for word, row in zip(words, vectors, strict=True)]
    return "".join(f"{line}\n" for line in lines).encode()


def as_binary(words: list[str], vectors: np.ndarray, *, newline: bytes = b"\n") -> bytes:
    entries = [word.encode() + b" " + row.tobytes() + newline for word, row in zip(words, vectors, strict=True)]
    return f"{len(words)} {vectors.shape[1]}\n".encode() + b"".join(entries)


def read(path: Path, content: bytes) -> tuple[list[str], np.ndarray]:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return read_words(path)


NO_SPACES = ["dog", "cat", "...", "New_York", "naïve"]
FORMATS = {
    "glove.txt": (WORDS, as_text(WORDS, VECTORS)),
    "fasttext.vec": (WORDS, as_text(WORDS, VECTORS, header=True)),
    "glove.txt.gz": (WORDS, as_text(WORDS, VECTORS)),
    "trailing.vec": (WORDS, as_text(WORDS, VECTORS, header=True).replace(b"\n", b" \r\n")),
    "word2vec.bin": (NO_SPACES, as_binary(NO_SPACES, VECTORS)),
    "gensim.bin": (NO_SPACES, as_binary(NO_SPACES, VECTORS, newline=b"")),
    "word2vec.bin.gz": (NO_SPACES, as_binary(NO_SPACES, VECTORS)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_comes_back_as_written(tmp_path: Path, name: str) -> None:
    words, content = FORMATS[name]
    read_back, vectors = read(tmp_path / name, content)
    assert read_back == words
    np.testing.assert_array_equal(vectors, VECTORS)


letters = st.text(st.characters(exclude_characters=" \n\r", exclude_categories=["Cs"]), min_size=1, max_size=8)
tables = st.lists(letters, min_size=1, max_size=5, unique=True).flatmap(
    lambda words: st.tuples(
        st.just(words),
        st.integers(2, 4).flatmap(
            lambda size: arrays.arrays(
                np.float32, (len(words), size), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
            )
        ),
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(table=tables, name=st.sampled_from(["a.vec", "a.bin"]))
def test_any_table_comes_back(tmp_path: Path, table: tuple[list[str], np.ndarray], name: str) -> None:
    words, vectors = table
    content = as_binary(words, vectors) if name == "a.bin" else as_text(words, vectors, header=True)
    read_back, read_vectors = read(tmp_path / name, content)
    assert read_back == words
    np.testing.assert_array_equal(read_vectors, vectors)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    content=st.binary(max_size=80) | st.text("ab1. -e\n", max_size=60).map(str.encode),
    name=st.sampled_from(["a.txt", "a.bin", "a.npz"]),
)
def test_rubbish_is_refused_or_read_but_never_crashes(tmp_path: Path, content: bytes, name: str) -> None:
    try:
        words, vectors = read(tmp_path / name, content)
    except InputError as error:
        assert name in str(error)  # noqa: PT017
    else:
        assert len(words) == len(vectors)
        assert np.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"", "are empty"),
        ("a.txt", b"dog\n", "line 1: a word and its numbers were expected"),
        ("a.txt", b"dog 1 2\ncat 3\n", "line 2: the word has fewer numbers than line 1 says"),
        ("a.txt", b"dog 1 2\ncat 3 4 5\n", "line 2: the word has more numbers than line 1 says"),
        ("a.txt", b"dog 1 2\ncat 3 x\n", "line 2: field 2 after the word is not a number"),
        ("a.txt", b"dog 1 2\ncat 3 nan\n", "line 2: a number is infinite or none at all"),
        ("a.txt", b"dog 1 2\ncat 3 1e39\n", "line 2: a number is infinite"),
        ("a.vec", b"3 2\ndog 1 2\ncat 3 4\n", "line 1 promises another number of words than the 2 found"),
        ("a.vec", b"1 2\ndog 1 2\ncat 3 4\n", "line 1 promises another number of words than the 2 found"),
        ("a.vec", b"2 3\ndog 1 2 3\ncat 3 4\n", "line 3: the word has fewer numbers than line 1 says"),
        ("a.bin", as_binary(NO_SPACES, VECTORS)[:-5], "word 5: the file ends too early"),
        ("a.bin", as_binary(NO_SPACES, VECTORS) + b"more", "go on after as many words as line 1 promises"),
        ("a.txt", b"dog 1 2\n\ncat 3 4\n", "line 2: the word has fewer numbers"),
        ("a.txt", b"dog" + b" 1" * 10_001, "line 1: a word and its numbers were expected, at most 10,000"),
        ("a.vec", b"1 999999999\ndog 1 2\n", "line 1: a word and its numbers were expected, at most 10,000"),
        ("a.txt", b"dog 1 2\n" + b"x" * 500_000, "line 2 is longer than 410,000 bytes"),
        ("a.bin", b"dog 1 2\n", "'count dimensions' was expected"),
        ("a.bin", b"999999999 1\n", "'count dimensions' was expected, at most 10,000,000 and 10,000"),
        ("a.bin", b"1 999999999\n", "'count dimensions' was expected"),
        ("a.bin", b"1 2\n" + b"x" * 20_000, "word 1: the file ends too early or is out of step"),
        ("a.bin", (793712314).to_bytes(4, "little") + b"\x0c", "a fastText model, not vectors; give its .vec file"),
        ("a.bin", as_binary(["dog"], np.full((1, 2), np.nan, np.float32)), "word 1: a number is infinite"),
    ],
)
def test_damage_is_refused_with_file_and_line(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        read(tmp_path / name, content)
    assert name in str(refusal.value)


LEAKS = {
    "a.txt": ["API_KEY=hunter2\n", "hunter2 1 2\nb hunter2 1\n", "a 1 2\nhunter2\n", "a hunter2 hunter2 b\n"],
    "a.bin": ["hunter2 \n", "hunter2"],
    "a.npz": ["hunter2"],
    "a.txt.gz": ["hunter2"],
    "a.safetensors": ["hunter2" * 9],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name in LEAKS for content in LEAKS[name]])
def test_no_sentence_repeats_what_a_file_holds(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as refusal:
        load_words(str(tmp_path / name))
    assert name in str(refusal.value)
    assert "hu" not in str(refusal.value).replace(str(tmp_path), "")


def test_the_numbers_of_a_first_line_are_not_told(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        read(tmp_path / "a.txt", b"4711 1234\ndog 1 2\n")
    assert not {"4711", "1234"} & set(str(refusal.value).replace("'", " ").split())


@pytest.mark.parametrize(
    ("limit", "sentence"), [("MOST_WORDS", "more than 3 words"), ("MOST_NUMBERS", "more than 3 numbers")]
)
def test_endless_files_are_left_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, sentence: str
) -> None:
    monkeypatch.setattr(reading, limit, 3)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "a.txt.gz", b"".join(b"word%d 1 2\n" % number for number in range(100_000)))


def test_an_array_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", vectors=np.ones((100, 20)), words=[str(number) for number in range(100)])
    monkeypatch.setattr(reading, "MOST_NUMBERS", 1_000)
    with pytest.raises(InputError, match=r"cannot be read as \.npz \(an array of more than 1,000 numbers\)"):
        load_words(str(tmp_path / "a.npz"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(place=st.integers(0, 2_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_npz_files_are_refused_or_read(tmp_path: Path, place: int, byte: int, cut: bool) -> None:
    np.savez(tmp_path / "a.npz", vectors=VECTORS, words=WORDS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[place % len(content)] = byte
    (tmp_path / "a.npz").write_bytes(content[: place % len(content)] if cut else content)
    try:
        assert load_words(str(tmp_path / "a.npz")).dimensions == 4
    except InputError as error:
        assert "a.npz" in str(error)  # noqa: PT017


def test_a_gzip_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(as_text(WORDS, VECTORS))[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        load_words(str(tmp_path / "a.txt.gz"))


def test_the_first_of_two_equal_words_stays(tmp_path: Path) -> None:
    words, vectors = read(tmp_path / "a.txt", b"dog 1 2\ncat 3 4\ndog 5 6\n")
    assert words == ["dog", "cat"]
    assert vectors.tolist() == [[1, 2], [3, 4]]


def test_npz_arrays_find_their_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, coco_labels=["dog", "cat"], coco_glove=np.eye(2), voc_x=np.ones((1, 3)), labels=["sofa"])
    assert load_words(f"{path}#coco_glove").vector("cat").tolist() == [0, 1]
    assert load_words(f"{path}#voc_x").vector("sofa").tolist() == [1, 1, 1]
    assert load_words(f"{path}#voc_x").name == "a.npz#voc_x"
    with pytest.raises(InputError, match="has no array 'coco_glov'; did you mean 'coco_glove'"):
        load_words(f"{path}#coco_glov")
    with pytest.raises(InputError, match="has no array 'vectors'"):
        load_words(str(path))
    np.savez(path, vectors=np.eye(2), words=["dog", "cat"])
    assert load_words(str(path)).vector("dog").tolist() == [1, 0]


def test_npz_without_names_or_with_pickles_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", vectors=np.eye(2))
    with pytest.raises(InputError, match="no names for 'vectors'; add an array 'labels' or 'words'"):
        load_words(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", vectors=np.eye(1), words=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        load_words(str(tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", vectors=np.eye(2), words=["dog"])
    with pytest.raises(InputError, match="a row of numbers a word"):
        load_words(str(tmp_path / "c.npz"))
