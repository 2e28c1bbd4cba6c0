"""The spellings tried for a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtag.words.spelling import halves, split_label, variants


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("dogs", "dog"),
        ("dog", "dogs"),
        ("buses", "bus"),
        ("bus", "buses"),
        ("cherries", "cherry"),
        ("cherry", "cherries"),
        ("toys", "toy"),
        ("potatoes", "potato"),
        ("knives", "knife"),
        ("people", "person"),
        ("colour", "color"),
        ("colored", "coloured"),
        ("theatre", "theater"),
        ("centers", "centres"),
        ("organiser", "organizer"),
        ("traveller", "traveler"),
        ("aeroplane", "airplane"),
        ("airplanes", "aeroplane"),
        ("grey", "gray"),
        ("doughnuts", "donut"),
        ("Zebra", "zebra"),
    ],
)
def test_other_spellings_are_tried(word: str, other: str) -> None:
    assert other in variants(word)


def test_what_is_known_by_heart_comes_before_rules() -> None:
    tried = variants("tyres")
    assert tried.index("tire") < tried.index("tyers")


@given(st.text())
def test_a_word_is_its_own_first_variant_and_none_is_empty(word: str) -> None:
    tried = variants(word)
    assert tried[:1] == ([word] if word else [])
    assert all(tried)
    assert len(tried) == len(set(tried))


@given(st.text(max_size=20))
def test_halves_make_the_whole(word: str) -> None:
    assert all(first + second == word and min(len(first), len(second)) >= 2 for first, second in halves(word))


@given(st.text())
def test_a_label_loses_nothing_but_its_joints(label: str) -> None:
    words = split_label(label)
    assert all(words)
    assert "".join(words) == "".join(letter for letter in label if not letter.isspace() and letter not in "-_/")
