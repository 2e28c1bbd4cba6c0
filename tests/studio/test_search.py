"""The search box: whatever is typed means something, and says what."""

import string
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from album import answer_page, digests, say, shows
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import draw

from fewtag.errors import InputError, MissingError
from fewtag.studio.search import STATES, parse
from fewtag.studio.studio import Studio

LABELS = ["birds/heron", "birds/egret", "teddy bear", "boat", "bear"]
WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=8).filter(lambda word: not any(word in x for x in LABELS))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_in_one_sentence(text: str) -> None:
    try:
        parts = parse(text, LABELS)
    except InputError:
        return
    for part in parts:
        assert part.value.strip()
        assert bool(part.names) == (part.kind == "label")
        assert set(part.names) <= set(LABELS)


def test_a_label_with_quotes_in_its_name_is_found_without_them() -> None:
    [part] = parse('"say hi"', ['say "hi"'])
    assert (part.kind, part.names) == ("label", ('say "hi"',))


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from(LABELS), st.lists(WORDS, max_size=3))
def test_a_label_is_found_between_words(before: list[str], label: str, after: list[str]) -> None:
    parts = parse(" ".join([*before, label, *after]), LABELS)
    assert [part.kind for part in parts] == ["word", "label", *(["word"] if after else [])]
    assert parts[0].value == " ".join(before)
    assert label in parts[1].names


@settings(deadline=None)
@given(
    st.permutations([("is:unsure", "state"), ("folder:2024", "folder"), ("after:2024-05", "after"), ("-boat", "label")])
)
def test_the_order_of_parts_does_not_matter(parts: list[tuple[str, str]]) -> None:
    found = parse(" ".join(text for text, _ in parts), LABELS)
    assert [(part.text, part.kind) for part in found] == parts


@settings(deadline=None)
@given(st.sampled_from(LABELS), st.booleans())
def test_a_quoted_label_is_the_label(label: str, wanted: bool) -> None:
    sign = "" if wanted else "-"
    for text in (f'{sign}"{label}"', f'{sign}label:"{label.upper()}"'):
        [part] = parse(text, LABELS)
        assert (part.kind, part.wanted) == ("label", wanted)
        assert label in part.names


def test_the_longest_name_wins_and_a_path_means_all_below_it() -> None:
    assert [part.names for part in parse("teddy bear", LABELS)] == [("teddy bear",)]
    assert [part.names for part in parse("bear", LABELS)] == [("bear",)]
    assert [part.names for part in parse("birds -egret", LABELS)] == [("birds/egret", "birds/heron"), ("birds/egret",)]


def test_a_labels_whole_name_means_it_alone() -> None:
    labels = ["birds", "birds/heron", "heron", "pets/dog", "zoo/dog"]
    assert [part.names for part in parse("Birds -heron", labels)] == [("birds",), ("heron",)]
    assert [part.names for part in parse("dog label:birds/heron", labels)] == [
        ("pets/dog", "zoo/dog"),
        ("birds/heron",),
    ]


@pytest.mark.parametrize(
    ("query", "value"),
    [("after:2024", "2024-01-01"), ("before:2024-5", "2024-05-01"), ("after:2024-02-29", "2024-02-29")],
)
def test_dates_may_be_short(query: str, value: str) -> None:
    assert parse(query, [])[0].value == value


@pytest.mark.parametrize("query", ["after:soon", "before:2024-13", "after:2023-02-29", "is:lovely"])
def test_what_is_no_date_or_state_is_refused(query: str) -> None:
    with pytest.raises(InputError, match=r"date|state"):
        parse(query, LABELS)


def test_a_label_that_is_not_there_is_refused_with_a_hint() -> None:
    with pytest.raises(MissingError, match="did you mean 'boat'"):
        parse("label:boot", LABELS)


def test_labels_filter_and_words_rank(studio: Studio) -> None:
    studio.define("dog")
    studio.define("animals/cat")
    answer_page(studio, "dog", size=30)
    tagged = {cell.name for cell in studio.search("dog", limit=1000, stacked=False).pictures}
    cats = {cell.name for cell in studio.search("cat", limit=1000, stacked=False).pictures}
    assert cats == {cell.name for cell in studio.search("animals", limit=1000, stacked=False).pictures}
    both = studio.search("dog -cat", limit=1000, stacked=False)
    assert {cell.name for cell in both.pictures} == tagged - cats
    ranked = studio.search("sofa", limit=1000, stacked=False)
    assert ranked.total == 120, "a word that is no label leaves nothing out"
    assert [means.taken_as for means in ranked.query_means] == ["word"]
    chances = [cell.p for cell in ranked.pictures]
    assert chances == sorted(chances, reverse=True)  # type: ignore[type-var]
    assert sum(shows(cell.name, "sofa") for cell in ranked.pictures[:20]) >= 15


def test_a_word_that_says_nothing_is_looked_for_in_names(studio: Studio) -> None:
    assert {cell.name for cell in studio.search("name:sofa", limit=1000, stacked=False).pictures} == {
        cell.name for cell in studio.search(limit=1000, stacked=False).pictures if "sofa" in cell.name
    }, "a known word too"
    page = studio.search("zzqxv")
    assert (page.total, page.query_means[0].taken_as) == (0, "name")
    assert studio.search('"047 "', stacked=False).pictures[0].name.startswith("2024/047")


def test_states_are_those_of_the_label_that_is_asked_for(studio: Studio) -> None:
    names = digests(studio)
    pictures = list(names.values())
    studio.teach("dog", pictures[:2])
    studio.teach("cat", pictures[5:6])
    studio.answer([say(pictures[8], "dog", "no")])

    def found(query: str) -> set[str]:
        return {cell.digest for cell in studio.search(query, limit=1000, stacked=False).pictures}

    assert found("is:confirmed") == {*pictures[:2], pictures[5]}
    assert found("dog is:confirmed") == set(pictures[:2])
    assert found("is:rejected") == {pictures[8]}
    assert found("is:tagged") | found("is:untagged") == set(pictures)
    assert not found("is:tagged") & found("is:untagged")
    assert found("-is:tagged") == found("is:untagged")
    assert found("dog is:unsure").isdisjoint({*pictures[:2], pictures[8]})
    for state in STATES:
        assert found(f"is:{state}") <= set(pictures)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accented_names_are_found_however_a_disk_spells_them(
    open_studio: Callable[..., Studio], tmp_path: Path, form: Literal["NFC", "NFD"]
) -> None:
    """macOS stores an accented letter as two characters, and keyboards type one."""
    folder = tmp_path / "album" / unicodedata.normalize(form, "Übung")
    folder.mkdir(parents=True)
    draw(1, "dog").save(folder / unicodedata.normalize(form, "Größe.png"))
    studio = open_studio(tmp_path / "album")
    for query in ("folder:übung", "name:größe", unicodedata.normalize("NFD", "folder:Übung")):
        assert studio.search(query).total == 1, query


def test_folders_and_dates(open_studio: Callable[..., Studio], album: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2022:07:14 12:00:00"
    Image.new("RGB", (40, 30), "red").save(album / "2023" / "taken.jpg", exif=exif)
    studio = open_studio(album)
    folder = studio.search("folder:2023", limit=1000, stacked=False)
    assert folder.total == 61
    assert studio.search("-folder:2023", limit=1000, stacked=False).total == 60
    assert [cell.name for cell in studio.search("after:2022-07").pictures] == ["2023/taken.jpg"]
    assert studio.search("after:2022-07 before:2022-07-14").total == 0
    assert studio.picture(studio.search("before:2023").pictures[0].digest).taken == "2022-07-14T12:00:00"


def test_pages_follow_one_another(studio: Studio) -> None:
    every = [cell.digest for cell in studio.search(limit=1000).pictures]
    pages = [cell.digest for first in range(0, 120, 50) for cell in studio.search(offset=first, limit=50).pictures]
    assert pages == every
    with pytest.raises(InputError, match="no page"):
        studio.search(limit=0)


def test_the_digests_of_a_whole_search_come_at_once(studio: Studio) -> None:
    for query in ("", "sofa", "folder:2023"):
        page = studio.search(query, limit=1000)
        only = studio.search(query, offset=50, limit=1, only="digests")
        assert only.digests == tuple(cell.digest for cell in page.pictures), "one a cell, in the order of the pages"
        assert (only.pictures, only.total, only.members) == ((), page.total, page.members)
        assert page.digests is None
