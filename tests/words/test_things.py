"""Words for things that can be seen, and names that are none."""

import pytest

from fewtag.words.pieces import names_a_thing, things


@pytest.mark.parametrize(
    "name", ["dog", "Dogs", "teddy bear", "fire hydrants", "surfboard", "my red bicycle", "person", "broccoli"]
)
def test_a_word_for_a_thing_is_one_in_any_spelling(name: str) -> None:
    assert names_a_thing(name)


@pytest.mark.parametrize("name", ["Rex", "Bella", "SKU-4711", "2023", "thursday", "beautiful", "urlaub", "???", ""])
def test_a_private_name_is_none(name: str) -> None:
    assert not names_a_thing(name)


def test_the_list_is_in_lower_case_and_sorted() -> None:
    assert len(things()) > 30_000
    assert all(name == name.lower() for name in things())
