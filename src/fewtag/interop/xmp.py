"""XMP packets: keywords are read by expat, and added and removed by splicing bytes: the rest of a file is unchanged.

Three fields hold keywords: `dc:subject` (names), `lr:hierarchicalSubject` ("birds|heron") and `digiKam:TagsList`
("birds/heron"). A fourth property, fewtag's own, is the ledger: it lists what was added, in the same file, so that file
and ledger cannot get out of step.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from fewtag.errors import InputError
from fewtag.interop.keywords import NO_TAGS, SLASH, Path, Tags, check_label, fold, join_tags, path_of, unlike
from fewtag.interop.rdf import RDF, Changes, Element, Name, before, parse, spliced

MOST_BYTES = 10_000_000
OWN = "urn:fewtag:xmp/1.0/"
SUBJECT, HIERARCHY, TAGS_LIST = "dc:subject", "lr:hierarchicalSubject", "digiKam:TagsList"
FIELDS: dict[str, tuple[str, Literal["Bag", "Seq"]]] = {
    SUBJECT: ("http://purl.org/dc/elements/1.1/", "Bag"),
    HIERARCHY: ("http://ns.adobe.com/lightroom/1.0/", "Bag"),  # digiKam would read a Seq as flat
    TAGS_LIST: ("http://www.digikam.org/ns/1.0/", "Seq"),
}
"""Namespace and kind of list (Bag or Seq) of each field."""
EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="fewtag">\n'
    f' <rdf:RDF xmlns:rdf="{RDF}">\n'
    " </rdf:RDF>\n"
    "</x:xmpmeta>\n"
    '<?xpacket end="w"?>\n'
).encode()
_BODY = EMPTY.partition(b"\n")[2]
# digiKam writes only the first line of a packet beside a picture about which it has nothing to say
_BLANK = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|<\?(?:(?!\?>).)*\?>)*", re.DOTALL)
_FILE, _START = "file", "start"
# branches that programs keep for their own use among the keywords
_INTERNAL = frozenset({"darktable", "_digikam_internal_tags_"})

Pairs = tuple[tuple[str, str], ...]
"""Pairs of a field and one of its items."""


@dataclass(frozen=True)
class Ledger:
    """What fewtag wrote into a packet: the labels, and the items in each field."""

    labels: tuple[str, ...] = ()
    added: Pairs = ()
    """Items that were added for the labels."""
    seeded: Pairs = ()
    """A person's tags, copied into a field that fewtag created, since programs read one field instead of another."""
    refused: tuple[str, ...] = ()
    """Labels that were written once and that a person removed: they are not written again."""
    was: Pairs = ()
    """The original text of fields without items; ("file", "") if there was no packet, ("start", "") if a bare start."""


class Packet:
    """A parsed XMP packet; `name` identifies it in errors."""

    def __init__(self, data: bytes, name: str) -> None:
        if len(data) > MOST_BYTES:
            raise InputError(f"{name} is larger than {MOST_BYTES // 10**6} MB; that is no XMP, so take it away")
        self.data, self.name = data, name
        self._blank = _BLANK.fullmatch(data) is not None
        self._whole = data + _BODY if self._blank else data
        try:
            self._root, self._encoding = parse(self._whole)
        except InputError as error:
            raise InputError(f"{name} {error}; mend it or take it away") from error
        inside = next((each for each in (self._root, *self._root.children) if each.name == (RDF, "RDF")), None)
        if inside is None:
            raise InputError(f"{name} is XML, but no XMP: it has no rdf:RDF; mend it or take it away")
        self._rdf = inside
        self._descriptions = [each for each in inside.children if each.name == (RDF, "Description")]

    def _properties(self, name: Name) -> list[Element]:
        return [each for about in self._descriptions for each in about.children if each.name == name]

    def _plain(self, name: Name) -> list[str]:
        """The values of a property that is written as an attribute."""
        return [about.attributes[name] for about in self._descriptions if name in about.attributes]

    def _field(self, name: str) -> Element | None:
        """A field's element; refuses one that is no list, or occurs twice."""
        found = self._properties(_name(name))
        odd = any(not each.array and (each.children or each.text.strip() or each.attributes) for each in found)
        if odd or len(found) > 1 or self._plain(_name(name)):
            raise InputError(
                f"{self.name} has {name} {'twice' if len(found) > 1 else 'in a form that is no list'}; "
                "let the program that wrote it save it again"
            )
        return found[0] if found else None

    def items(self, name: str) -> list[str]:
        """A field's items in order, whatever its form."""
        found = self._plain(_name(name))
        for each in self._properties(_name(name)):
            found += [item.text for item in each.items] if each.array else [each.text]
        return [item for item in found if item.strip()]

    @property
    def ledger(self) -> Ledger | None:
        """The record of fewtag's changes; None if it made none."""
        if not any(each.name[0] == OWN for about in self._descriptions for each in about.children):
            return None

        def own(local: str) -> tuple[str, ...]:
            return tuple(item.text.strip() for each in self._properties((OWN, local)) for item in each.items)

        def pairs(local: str) -> Pairs:
            return tuple((name, item) for name, _, item in (each.partition(" ") for each in own(local)))

        return Ledger(own("written"), pairs("added"), pairs("seeded"), own("refused"), pairs("was"))

    def tags(self) -> Tags:
        """A person's own tags: without what fewtag added, but with the copies that it made of a person's tags."""
        ours = Counter((self.ledger or Ledger()).added)
        own: dict[str, list[str]] = {}
        for name in FIELDS:
            kept = list[str]()
            for item in reversed(self.items(name)):  # ours come last
                if ours[name, item.strip()]:
                    ours[name, item.strip()] -= 1
                else:
                    kept.append(item)
            own[name] = kept[::-1]
        parted = [item.split("|") for item in own[HIERARCHY]] + [item.split("/") for item in own[TAGS_LIST]]
        found = join_tags(map(tuple, parted), own[SUBJECT])
        own_paths = (path for path in found.paths if len(path) == 1 or path[0].casefold() not in _INTERNAL)
        return Tags(tuple(own_paths), found.names)

    def taken_away(self) -> tuple[str, ...]:
        """Labels that fewtag wrote and that somebody deleted since, from any of the fields."""
        ledger = self.ledger or Ledger()
        left = {(name, item.strip()) for name in FIELDS for item in self.items(name)}
        paths = {label: path_of(label) for label in ledger.labels}
        wrote = {label: set(_forms(path, len(path) - 1)) & set(ledger.added) for label, path in paths.items()}
        return (*ledger.refused, *(label for label, items in wrote.items() if items - left))

    def without_ours(self, elsewhere: Tags = NO_TAGS) -> bytes | None:
        """The packet as it was before fewtag wrote; None if fewtag created it and nobody has added anything since.

        If a copy of a person's tag has become the only one, because its original is neither here nor `elsewhere` any
        more, the copies are kept.
        """
        ledger = self.ledger
        if ledger is None:
            return self.data
        bare = self._without(ledger, copies=False)
        if ledger.seeded:
            left = (Packet(bare, self.name).tags() if bare is not None else NO_TAGS).joined(elsewhere)
            if {fold(path) for path in self.tags().every} - {fold(path) for path in left.every}:
                return self._without(ledger, copies=True)
        return bare

    def _without(self, ledger: Ledger, *, copies: bool) -> bytes | None:
        """The packet without what was added, and without the copies of a person's tags unless `copies` are kept."""
        changes, gone = Changes(), set[Element]()
        was = dict(ledger.was)
        for name in FIELDS:
            found = self._field(name)
            if found is None:
                continue
            ours = _last(found.items, _of(name, ledger.added))
            others = [item for item in found.items if item not in ours]
            copied = () if copies else _last(others, _of(name, ledger.seeded))
            if len(others) > len(copied):  # somebody else's items are among them, and stay
                gone |= ours
            elif name in was:
                changes.append((found.start, found.end, was[name].encode()))
            else:
                gone.add(found)
        for about in self._descriptions:
            gone |= {each for each in about.children if each.name[0] == OWN}
            if about.children and gone.issuperset(about.children) and not set(about.attributes) - {(RDF, "about")}:
                gone.add(about)
        if gone.issuperset(self._rdf.children) and {_FILE, _START} & set(was):
            return None if _FILE in was else self.data[: self._root.start]
        outermost = gone - {each for about in gone for each in about.children}
        changes += [(before(self.data, each.start), each.end, b"") for each in outermost]
        return spliced(self.data, changes)

    def with_labels(
        self, labels: Mapping[Path, int], known: Tags, refused: Sequence[str] = (), *, new: bool = False
    ) -> bytes:
        """The packet with these labels added, given that it has none of ours; `known` are a person's own tags.

        A field that has to be created lists those as well. For each path, `labels` has the number of its first names
        that are no keywords.
        """
        if not labels and not refused:
            return self.data
        if self._encoding not in {"utf-8", "utf8", "us-ascii", "ascii"}:
            raise InputError(f"{self.name} is encoded as {self._encoding}; save it as UTF-8")
        if self._rdf.tail == self._rdf.end:
            raise InputError(f"{self.name} has an empty rdf:RDF; take the file away, and a new one is made")
        changes, made = Changes(), dict[str, list[str]]()
        added, seeded, was = list[tuple[str, str]](), list[tuple[str, str]](), [(_FILE, "")] if new else []
        was += [(_START, "")] if self._blank else []
        for name in FIELDS if labels else ():
            wanted = [item for path, skip in labels.items() for its, item in _forms(path, skip) if its == name]
            found = self._field(name)
            if found is None:
                seeds = unlike(item for path in known.every for its, item in _forms(path) if its == name)
                fresh = unlike(wanted, but=seeds)
                made[name] = seeds + fresh
                seeded += [(name, item) for item in seeds]
            elif fresh := unlike(wanted, but=[item.text for item in found.items]):
                changes.append(self._insertion(name, found, fresh))
                was += [] if found.items else [(name, self.data[found.start : found.end].decode())]
            added += [(name, item) for item in fresh]
        names = tuple("/".join(path) for path in labels)
        ledger = Ledger(names, tuple(added), tuple(seeded), tuple(refused), tuple(was))
        last = self._rdf.children[-1] if self._rdf.children else None
        margin = self._margin(last) if last else ""
        newline = margin if "\n" in margin else "\n  "
        place = last.end if last else self._rdf.head
        changes.append((place, place, (newline + self._block(made, ledger, newline)).encode()))
        return spliced(self._whole, changes)

    def _margin(self, element: Element) -> str:
        return self.data[before(self.data, element.start) : element.start].decode("ascii")

    def _insertion(self, name: str, found: Element, fresh: Sequence[str]) -> tuple[int, int, bytes]:
        """The change that adds items after the last one, with the same spacing; a field without items is rewritten."""
        if found.items:
            last = found.items[-1]
            tag = f"{last.prefix}:li" if last.prefix else "li"
            margin = self._margin(last)
            inserted = "".join(f"{margin}<{tag}>{_escaped(item)}</{tag}>" for item in fresh)
            return last.end, last.end, inserted.encode()
        start = self.data[found.start : found.head].decode()
        head = start if not start.endswith("/>") else start[:-2].rstrip() + ">"
        qualified = re.split(r"[\s/>]", start[1:], maxsplit=1)[0]
        kind = FIELDS[name][1]
        listed = "".join(f"<rdf:li>{_escaped(item)}</rdf:li>" for item in fresh)
        content = f'{head}<rdf:{kind} xmlns:rdf="{RDF}">{listed}</rdf:{kind}></{qualified}>'
        return found.start, found.end, content.encode()

    def _block(self, made: Mapping[str, Sequence[str]], ledger: Ledger, newline: str) -> str:
        """A description with the fields that were missing and the ledger."""
        about = next((each.attributes.get((RDF, "about"), "") for each in self._descriptions), "")
        spaces = {"fewtag": OWN, **{name.partition(":")[0]: FIELDS[name][0] for name in made}}
        if self._rdf.prefix != "rdf":
            spaces["rdf"] = RDF
        lists: dict[str, tuple[str, Sequence[str]]] = {name: (FIELDS[name][1], items) for name, items in made.items()}
        own: dict[str, Sequence[str]] = {"written": ledger.labels, "refused": ledger.refused}
        for local, pairs in {"added": ledger.added, "seeded": ledger.seeded, "was": ledger.was}.items():
            own[local] = [f"{name} {item}".strip() for name, item in pairs]
        lists |= {f"fewtag:{local}": ("Bag", items) for local, items in own.items() if items}
        lines = [f"<rdf:Description rdf:about={quoteattr(about)}"]
        lines += [f'  xmlns:{prefix}="{space}"' for prefix, space in sorted(spaces.items())]
        lines[-1] += ">"
        for name, (kind, items) in lists.items():
            lines += [f" <{name}>", f"  <rdf:{kind}>"]
            lines += [f"   <rdf:li>{_escaped(item)}</rdf:li>" for item in items]
            lines += [f"  </rdf:{kind}>", f" </{name}>"]
        return newline.join([*lines, "</rdf:Description>"])


def _name(field_name: str) -> Name:
    return FIELDS[field_name][0], field_name.partition(":")[2]


def _escaped(text: str) -> str:
    """Escapes text for XML; a bare carriage return would be read as a line feed."""
    return escape(text, {"\r": "&#13;"})


def _of(name: str, pairs: Pairs) -> list[str]:
    return [item for its_field, item in pairs if its_field == name]


def _forms(path: Path, skip: int = 0) -> Iterator[tuple[str, str]]:
    """A tag's form in each field; its names, after the first `skip`, are keywords too, so that a search finds them."""
    yield from ((SUBJECT, part.replace(SLASH, "/")) for part in path[skip:])
    yield HIERARCHY, "|".join(part.replace(SLASH, "/") for part in path)
    yield TAGS_LIST, "/".join(part.replace("/", SLASH) for part in path)


def _last(items: Sequence[Element], texts: Iterable[str]) -> set[Element]:
    """The items with these texts, the last ones if there are more."""
    wanted, found = Counter(texts), set[Element]()
    for item in reversed(items):
        if wanted[item.text.strip()]:
            wanted[item.text.strip()] -= 1
            found.add(item)
    return found


class Wanted(NamedTuple):
    labels: tuple[Path, ...]
    vocabulary: frozenset[Path]
    """All labels under consideration, folded: other labels in the ledger are kept."""
    prefix: Path = ()
    """The branch below which all labels are placed, in the hierarchical fields."""

    @classmethod
    def among(
        cls, labels: Iterable[str], former: Iterable[str] = (), prefix: str = ""
    ) -> Callable[[Iterable[str]], "Wanted"]:
        """A function that makes a picture's `Wanted` from some of these labels; `former` are their earlier names."""
        paths, branch = {label: check_label(label) for label in labels}, check_label(prefix) if prefix else ()
        vocabulary = frozenset(fold(path_of(name)) for name in (*paths, *former))
        return lambda given: cls(tuple(paths[label] for label in given), vocabulary, branch)


def rewrite(data: bytes | None, name: str, wanted: Wanted, elsewhere: Tags, *, empty: bytes = EMPTY) -> bytes | None:
    """The packet with the wanted labels, None if there should be none; `elsewhere` are a person's tags outside of it.

    What fewtag wrote before is removed first. The result can be undone to the byte, or is refused.
    """
    base, known, ledger, refused = None, elsewhere, Ledger(), tuple[str, ...]()
    if data is not None:
        packet = Packet(data, name)
        base, known = packet.without_ours(elsewhere), packet.tags().joined(elsewhere)
        ledger, refused = packet.ledger or Ledger(), packet.taken_away()
    branches = {}
    for path in map(path_of, ledger.labels):
        # not under consideration, whatever branch it is below: it is kept, with the number of names that were no
        # keywords
        folded = fold(path)
        if not any(folded[first:] in wanted.vocabulary for first in range(len(path))):
            names = (place for place, part in enumerate(path) if (SUBJECT, part) in ledger.added)
            branches[path] = next(names, len(path) - 1)
    branches |= {(*wanted.prefix, *path): len(wanted.prefix) for path in wanted.labels if not known.has(path)}
    never = {fold(path_of(label)) for label in refused}
    labels = {path: branches[path] for path in sorted(branches) if fold(path) not in never}
    if not labels and not refused:
        return base
    after = Packet(empty if base is None else base, name).with_labels(labels, known, refused, new=base is None)
    if Packet(after, name).without_ours(elsewhere) != base:
        raise InputError(f"{name} is written in a way that could not be taken back to the byte; it stays as it is")
    return after
