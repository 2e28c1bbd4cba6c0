"""XMP packets: what is added is found and taken back to the byte, and nothing else of a file is touched."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sidecars import BEGUN, KEYWORDS, SPACES, Sidecar, darktable, digikam, immich, lightroom, sidecars

from fewtag.errors import InputError
from fewtag.interop.keywords import Tags, check_label, fold, join_tags, path_of
from fewtag.interop.xmp import EMPTY, FIELDS, Packet, Wanted, rewrite

WRITTEN = ("dog", "birds/heron", "zebra")
NAMES = some.text(some.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/|"), min_size=1)
EXAMPLES = list(sidecars())


def wanted(*labels: str, also: tuple[str, ...] = (), prefix: str = "") -> Wanted:
    paths = tuple(path_of(label) for label in labels)
    spoken_of = frozenset(fold(path) for path in (*paths, *map(path_of, also)))
    return Wanted(paths, spoken_of, path_of(prefix))


def elements(content: bytes) -> dict[str, list[str]]:
    """By another parser: the items of each field, and everything else as it stands."""
    root = ElementTree.fromstring(content)
    found = {}
    for name, (space, _) in FIELDS.items():
        items = root.findall(
            f".//{{{space}}}{name.partition(':')[2]}//{{http://www.w3.org/1999/02/22-rdf-syntax-ns#}}li"
        )
        found[name] = [item.text or "" for item in items]
    return found


@pytest.mark.parametrize("sidecar", EXAMPLES, ids=lambda each: each.program)
def test_a_persons_tags_are_read_whichever_program_wrote_them(sidecar: Sidecar) -> None:
    found = {fold(path) for path in Packet(sidecar.content, "it").tags().every}
    assert found == {fold(path) for path in sidecar.paths}


@pytest.mark.parametrize("sidecar", EXAMPLES, ids=lambda each: each.program)
def test_what_is_written_is_there_with_a_persons_own_and_goes_without_a_trace(sidecar: Sidecar) -> None:
    inside = Tags((), ("embedded",))
    after = rewrite(sidecar.content, "it", wanted(*WRITTEN), inside)
    assert after is not None
    before, found = elements(sidecar.content), elements(after)
    for name, join in (("lr:hierarchicalSubject", "|"), ("digiKam:TagsList", "/")):
        assert found[name][: len(before[name])] == before[name]
        own = {fold((join.join(path),)) for path in sidecar.paths}
        ours = {fold((join.join(path_of(label)),)) for label in WRITTEN}
        assert {fold((item,)) for item in found[name] if not item.startswith("darktable")} >= own | ours
        assert len({item.casefold() for item in found[name]}) == len(found[name]), "a tag is there once, in any case"
    assert {"zebra"} <= set(found["dc:subject"])
    assert rewrite(after, "it", wanted(*WRITTEN), inside) == after, "again changes nothing"
    assert Packet(after, "it").without_ours(inside) == sidecar.content


def test_a_field_that_has_to_be_made_lists_what_the_picture_itself_holds() -> None:
    """Immich takes the first field that is there instead of the others."""
    inside = Tags((("birds", "gull"),), ("Oma",))
    after = rewrite(None, "it", wanted("dog"), inside)
    assert after is not None
    assert elements(after) == {
        "dc:subject": ["birds", "gull", "Oma", "dog"],
        "lr:hierarchicalSubject": ["birds|gull", "Oma", "dog"],
        "digiKam:TagsList": ["birds/gull", "Oma", "dog"],
    }
    assert Packet(after, "it").without_ours(inside) is None


def test_a_copy_of_a_persons_tag_that_has_become_the_only_one_stays() -> None:
    inside = Tags((("birds", "gull"),))
    after = rewrite(None, "it", wanted("dog"), inside)
    assert after is not None
    for left in (Packet(after, "it").without_ours(), rewrite(after, "it", wanted(also=("dog",)), Tags())):
        assert left is not None
        assert elements(left)["digiKam:TagsList"] == ["birds/gull"]
        assert Packet(left, "it").ledger is None


def test_a_tag_that_a_person_gave_is_nobody_elses() -> None:
    for own in ("Dog", "animals/dog"):
        content = digikam([path_of(own)], 0)
        assert rewrite(content, "it", wanted("dog"), Tags()) == content
    assert rewrite(None, "it", wanted("birds/heron"), Tags((), ("Heron",))) is None


def test_a_tag_that_a_person_deleted_is_not_written_again() -> None:
    both = rewrite(immich([("Oma",)], 0), "it", wanted("dog", "zebra"), Tags())
    assert both is not None
    deleted = both.replace(b"<rdf:li>dog</rdf:li>", b"", 1)  # from the first field alone, as Immich knows no other
    again = rewrite(deleted, "it", wanted("dog", "zebra"), Tags())
    assert again is not None
    assert {name: "dog" in items for name, items in elements(again).items()} == dict.fromkeys(FIELDS, False)
    assert rewrite(again, "it", wanted("dog", "zebra"), Tags()) == again
    assert Packet(again, "it").without_ours() == immich([("Oma",)], 0)


def test_lists_that_a_program_wrote_anew_from_its_database_are_a_no_until_that_is_undone() -> None:
    """As darktable does where it was not told to read the sidecar again; it leaves digiKam's list and the ledger."""
    content = darktable([("Oma",)], 0)
    after = rewrite(content, "it", wanted("zebra"), Tags())
    assert after is not None
    stale = after.replace(b"\n     <rdf:li>zebra</rdf:li>", b"", 2)
    again = rewrite(stale, "it", wanted("zebra"), Tags())
    assert again is not None
    assert [items for items in elements(again).values() if "zebra" in items] == []
    assert Packet(again, "it").without_ours() == content
    assert rewrite(content, "it", wanted("zebra"), Tags()) == after


@pytest.mark.parametrize("start", [BEGUN, b"", b"\xef\xbb\xbf \r\n", b'<?xml version="1.0"?>'])
def test_a_sidecar_that_is_but_begun_says_nothing_and_becomes_so_again(start: bytes) -> None:
    """As digiKam leaves them beside pictures without tags."""
    assert Packet(start, "it").tags() == Tags()
    assert Packet(start, "it").without_ours() == start
    after = rewrite(start, "it", wanted("dog"), Tags((), ("Oma",)))
    assert after is not None
    assert after.startswith(start)
    assert elements(after)["digiKam:TagsList"] == ["Oma", "dog"]
    assert rewrite(after, "it", wanted("dog"), Tags((), ("Oma",))) == after
    assert Packet(after, "it").without_ours(Tags((), ("Oma",))) == start
    assert rewrite(after, "it", wanted(also=("dog",)), Tags((), ("Oma",))) == start


def test_labels_that_are_not_spoken_of_stay_and_others_go() -> None:
    pets = rewrite(None, "it", wanted("dog", "cat"), Tags())
    birds = rewrite(pets, "it", wanted("birds/heron"), Tags())
    assert birds is not None
    assert elements(birds)["digiKam:TagsList"] == ["birds/heron", "cat", "dog"]
    fewer = rewrite(birds, "it", wanted("dog", also=("cat",)), Tags())
    assert fewer is not None
    assert elements(fewer)["digiKam:TagsList"] == ["birds/heron", "dog"]
    assert rewrite(fewer, "it", wanted(also=("dog", "birds/heron")), Tags()) is None


def test_a_branch_is_no_keyword() -> None:
    under = rewrite(None, "it", wanted("birds/heron", prefix="seen by fewtag"), Tags())
    assert under is not None
    found = elements(under)
    assert found["digiKam:TagsList"] == ["seen by fewtag/birds/heron"]
    assert found["dc:subject"] == ["birds", "heron"]
    again = rewrite(under, "it", wanted("dog", prefix="elsewhere"), Tags())
    assert again is not None
    assert elements(again)["dc:subject"] == ["dog", "birds", "heron"]
    assert rewrite(again, "it", wanted(also=("dog", "birds/heron")), Tags()) is None


def test_what_somebody_put_into_our_field_stays_with_the_copies_beside_it() -> None:
    ours = rewrite(None, "it", wanted("dog"), Tags((), ("Oma",)))
    assert ours is not None
    theirs = ours.replace(b"<rdf:li>dog</rdf:li>", b"<rdf:li>dog</rdf:li><rdf:li>new</rdf:li>", 1)
    left = Packet(theirs, "it").without_ours()
    assert left is not None
    assert elements(left) == {"dc:subject": ["Oma", "new"], "lr:hierarchicalSubject": [], "digiKam:TagsList": []}


@settings(max_examples=25, deadline=None)
@given(
    some.lists(some.lists(NAMES, min_size=1, max_size=3), max_size=4),
    some.lists(some.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=4),
    some.sampled_from([digikam, lightroom, immich]),
    some.integers(0, 2),
)
def test_any_names_come_back(own: list[list[str]], ours: list[list[str]], make: object, way: int) -> None:
    content = make([tuple(path) for path in own], way)  # type: ignore[operator]
    labels = ["/".join(path) for path in ours]
    after = rewrite(content, "it", wanted(*labels), Tags())
    assert after is not None
    assert Packet(after, "it").without_ours() == content
    listed = {fold((item,)) for item in elements(after)["digiKam:TagsList"]}
    known = Packet(content, "it").tags()
    for label in labels:
        assert fold((label,)) in listed or known.has(path_of(label))


@settings(max_examples=50, deadline=None)
@given(some.lists(some.text("ab|/∕ ÄÉ&", min_size=1, max_size=6), max_size=4))
def test_whatever_keywords_a_picture_has_it_gets_a_sidecar_that_can_be_taken_back(inside: list[str]) -> None:
    after = rewrite(None, "it", wanted("zebra"), join_tags((), inside))
    assert after is not None
    assert Packet(after, "it").without_ours(join_tags((), inside)) is None


def test_a_path_among_the_flat_keywords_is_a_path() -> None:
    assert join_tags((), ["animals|dog", "dog", "a/b"]) == Tags((("animals", "dog"),), ("a/b",))
    assert join_tags([("animals|dog", "Rex")], []) == Tags((("animals", "dog", "Rex"),))


ODD = {
    "attributes": '<rdf:Description rdf:about="" xmlns:dc="{dc}" dc:subject="dog"/>',
    "plain text": '<rdf:Description rdf:about="" xmlns:dc="{dc}"><dc:subject>dog</dc:subject></rdf:Description>',
    "twice": '<rdf:Description rdf:about="" xmlns:dc="{dc}">'
    "<dc:subject><rdf:Bag><rdf:li>a</rdf:li></rdf:Bag></dc:subject>"
    "<dc:subject><rdf:Bag><rdf:li>b</rdf:li></rdf:Bag></dc:subject></rdf:Description>",
}


@pytest.mark.parametrize("form", ODD)
def test_a_form_that_cannot_be_added_to_is_refused_and_read(form: str) -> None:
    rdf = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"'
    content = f"<rdf:RDF {rdf}>{ODD[form].format(**SPACES)}</rdf:RDF>".encode()
    assert Packet(content, "it").tags().names[0] in {"dog", "a"}
    with pytest.raises(InputError, match=r"^it has dc:subject (twice|in a form that is no list); let the program"):
        rewrite(content, "it", wanted("zebra"), Tags())


@pytest.mark.parametrize(
    "form", ["<dc:subject/>", "<dc:subject><rdf:Bag/></dc:subject>", "<dc:subject \n></dc:subject>"]
)
def test_a_list_without_items_is_filled_and_emptied(form: str) -> None:
    whole = lightroom([], 0).replace(b"\n   <xmpMM:History>", f"\r\n   {form}\n   <xmpMM:History>".encode())
    after = rewrite(whole, "it", wanted("dog"), Tags())
    assert after is not None
    assert elements(after)["dc:subject"] == ["dog"]
    assert Packet(after, "it").without_ours() == whole


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no xml", "is no XML"),
        (b"<a>", "is no XML"),
        (b"<a/>", "is XML, but no XMP"),
        (EMPTY[:-60], "is no XML"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "declares a document type or entities"),
        (b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>', "declares a document type or entities"),
        (EMPTY + b" " * 10_000_000, "is larger than 10 MB"),
        (EMPTY.replace(b">\n </rdf:RDF>", b"/>"), "has an empty rdf:RDF"),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>' + EMPTY.partition(b"\n")[2], "is encoded as iso-8859-1"),
        (EMPTY.decode().encode("utf-16"), "is encoded as utf-16"),
    ],
)
def test_what_is_no_xmp_is_refused_in_one_sentence(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=r"^it .*; [^\n]*$") as refused:
        rewrite(content, "it", wanted("dog"), Tags())
    assert said in str(refused.value)


def test_a_label_that_xml_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"label 'a\\x00b' holds the character"):
        check_label("a\0b")
    with pytest.raises(InputError, match="has no name between its slashes"):
        check_label("/")


@pytest.mark.parametrize("seed", range(100))
def test_a_damaged_sidecar_is_written_reversibly_or_refused(seed: int) -> None:
    """More of them in tests/support/fuzz.py."""
    generator = np.random.default_rng(seed)
    content = bytearray(rewrite(EXAMPLES[seed % 60].content, "it", wanted("dog"), Tags()) or b"")
    for _ in range(generator.integers(1, 4)):
        place, size = (int(generator.integers(0, limit)) for limit in (len(content), 40))
        match generator.integers(0, 4):
            case 0:
                del content[place : place + size]
            case 1:
                content[place:place] = content[int(generator.integers(0, len(content))) :][:size]
            case 2:
                content[place] = int(generator.integers(0, 256))
            case 3:
                content[place:place] = generator.choice([b"<", b">", b'"', b"&", b"/>", b"\0", b"<rdf:li>x</rdf:li>"])
    try:
        own = Packet(bytes(content), "it").tags()
        after = rewrite(bytes(content), "it", wanted(*WRITTEN), Tags())
    except InputError:
        return
    assert set(own.every) <= set(Packet(after, "it").tags().every if after else ()), "no tag of a person's is lost"


def test_every_set_of_keywords_is_tried() -> None:
    assert len(EXAMPLES) == 60
    assert {tuple(each.paths) for each in EXAMPLES} == {tuple(paths) for paths in KEYWORDS}
