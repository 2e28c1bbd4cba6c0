"""XMP packets: keywords read by expat, added and taken back by splicing bytes, so that nothing else of a file changes.

Three fields hold keywords: `dc:subject` (names), `lr:hierarchicalSubject` ("birds|heron") and `digiKam:TagsList`
("birds/heron"). A fourth property, fewtag's own, is the ledger: it lists what was added, in the same file, so that a
file and its ledger are never at odds.
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
    HIERARCHY: ("http://ns.adobe.com/lightroom/1.0/", "Bag"),  # a Seq here would be read as flat by digiKam
    TAGS_LIST: ("http://www.digikam.org/ns/1.0/", "Seq"),
}
"""Namespace and kind of list of each field."""
EMPTY = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="fewtag">\n'
    f' <rdf:RDF xmlns:rdf="{RDF}">\n'
    " </rdf:RDF>\n"
    "</x:xmpmeta>\n"
    '<?xpacket end="w"?>\n'
).encode()
_BODY = EMPTY.partition(b"\n")[2]
# digiKam leaves a packet's first line alone, and nothing after it, beside a picture of which it has nothing to say
_BLANK = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|<\?(?:(?!\?>).)*\?>)*", re.DOTALL)
_FILE, _START = "file", "start"
# branches that programs keep for themselves among the keywords
_INTERNAL = frozenset({"darktable", "_digikam_internal_tags_"})

Pairs = tuple[tuple[str, str], ...]
"""Fields and items of theirs."""


@dataclass(frozen=True)
class Ledger:
    """What fewtag wrote into a packet: which labels, and which items of which field."""

    labels: tuple[str, ...] = ()
    added: Pairs = ()
    """The label's own items."""
    seeded: Pairs = ()
    """A person's own tags, copied into a field that fewtag made, since programs read one field instead of another."""
    refused: tuple[str, ...] = ()
    """Labels that were written once and that a person took away: they are not written again."""
    was: Pairs = ()
    """How a field without items was spelt; ("file", "") where there was no packet, ("start", "") where only a start."""


class Packet:
    """A parsed XMP packet; `name` says in refusals whose it is."""

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
        """A field's element; refuses one that is no list, or that is there twice."""
        found = self._properties(_name(name))
        odd = any(not each.array and (each.children or each.text.strip() or each.attributes) for each in found)
        if odd or len(found) > 1 or self._plain(_name(name)):
            raise InputError(
                f"{self.name} has {name} {'twice' if len(found) > 1 else 'in a form that is no list'}; "
                "let the program that wrote it save it again"
            )
        return found[0] if found else None

    def items(self, name: str) -> list[str]:
        """A field's items in order, whatever form it is in."""
        found = self._plain(_name(name))
        for each in self._properties(_name(name)):
            found += [item.text for item in each.items] if each.array else [each.text]
        return [item for item in found if item.strip()]

    @property
    def ledger(self) -> Ledger | None:
        """What fewtag wrote down about its own changes; None where it wrote nothing."""
        if not any(each.name[0] == OWN for about in self._descriptions for each in about.children):
            return None

        def own(local: str) -> tuple[str, ...]:
            return tuple(item.text.strip() for each in self._properties((OWN, local)) for item in each.items)

        def pairs(local: str) -> Pairs:
            return tuple((name, item) for name, _, item in (each.partition(" ") for each in own(local)))

        return Ledger(own("written"), pairs("added"), pairs("seeded"), own("refused"), pairs("was"))

    def tags(self) -> Tags:
        """A person's own tags: what fewtag added is left out, copies that it made of a person's tags are not."""
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
        paths = [tuple(part.strip().replace(SLASH, "/") for part in parts if part.strip()) for parts in parted]
        found = join_tags(paths, own[SUBJECT])
        own_paths = (path for path in found.paths if len(path) == 1 or path[0].casefold() not in _INTERNAL)
        return Tags(tuple(own_paths), found.names)

    def taken_away(self) -> tuple[str, ...]:
        """Labels that fewtag wrote and that somebody deleted since, from whichever field their program keeps."""
        ledger = self.ledger or Ledger()
        left = {(name, item.strip()) for name in FIELDS for item in self.items(name)}
        paths = {label: path_of(label) for label in ledger.labels}
        wrote = {label: set(_forms(path, len(path) - 1)) & set(ledger.added) for label, path in paths.items()}
        return (*ledger.refused, *(label for label, items in wrote.items() if items - left))

    def without_ours(self, elsewhere: Tags = NO_TAGS) -> bytes | None:
        """The packet as it was before fewtag wrote; None where that made it, and nobody has put anything into it since.

        Where a copy of a person's tag has come to be the only one, since its original is neither here nor `elsewhere`
        any more, the copies stay.
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
        """Without what was added, and without the copies of a person's tags unless these are to stay."""
        changes, gone = Changes(), set[Element]()
        was = dict(ledger.was)
        for name in FIELDS:
            found = self._field(name)
            if found is None:
                continue
            ours = _last(found.items, _of(name, ledger.added))
            others = [item for item in found.items if item not in ours]
            copied = () if copies else _last(others, _of(name, ledger.seeded))
            if len(others) > len(copied):  # somebody else's are among them: theirs stay
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
        """With these labels too, in a packet that has none of ours; `known` are a person's own, from wherever.

        A field that has to be made lists those as well. Of each path so many names at its beginning are no keywords.
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
        """New items after the last one, spaced like that; a field without items is spelt anew."""
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
        """A description of its own for the fields that were missing and for the ledger."""
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
    """A bare carriage return would come back as a line feed."""
    return escape(text, {"\r": "&#13;"})


def _of(name: str, pairs: Pairs) -> list[str]:
    return [item for its_field, item in pairs if its_field == name]


def _forms(path: Path, skip: int = 0) -> Iterator[tuple[str, str]]:
    """Fields and a tag's form in each; a mere name too for each of the names above it, so that a search finds those."""
    yield from ((SUBJECT, part.replace(SLASH, "/")) for part in path[skip:])
    yield HIERARCHY, "|".join(part.replace(SLASH, "/") for part in path)
    yield TAGS_LIST, "/".join(part.replace("/", SLASH) for part in path)


def _last(items: Sequence[Element], texts: Iterable[str]) -> set[Element]:
    """The items with these texts, the last ones where there are more."""
    wanted, found = Counter(texts), set[Element]()
    for item in reversed(items):
        if wanted[item.text.strip()]:
            wanted[item.text.strip()] -= 1
            found.add(item)
    return found


class Wanted(NamedTuple):
    labels: tuple[Path, ...]
    vocabulary: frozenset[Path]
    """All labels that are spoken of, folded: of the ledger's, those that are not among them stay."""
    prefix: Path = ()
    """The branch that all labels hang under, in the fields that have branches."""

    @classmethod
    def among(
        cls, labels: Iterable[str], former: Iterable[str] = (), prefix: str = ""
    ) -> Callable[[Iterable[str]], "Wanted"]:
        """What some of these labels come to on a picture; `former` are names that the labels had before."""
        paths, branch = {label: check_label(label) for label in labels}, check_label(prefix) if prefix else ()
        vocabulary = frozenset(fold(path_of(name)) for name in (*paths, *former))
        return lambda given: cls(tuple(paths[label] for label in given), vocabulary, branch)


def rewrite(data: bytes | None, name: str, wanted: Wanted, elsewhere: Tags, *, empty: bytes = EMPTY) -> bytes | None:
    """A packet as it shall be, None where there shall be none; `elsewhere` are a person's tags outside of it.

    What was ours before is taken back first. What comes out can be taken back to the byte, or is refused.
    """
    base, known, ledger, refused = None, elsewhere, Ledger(), tuple[str, ...]()
    if data is not None:
        packet = Packet(data, name)
        base, known = packet.without_ours(elsewhere), packet.tags().joined(elsewhere)
        ledger, refused = packet.ledger or Ledger(), packet.taken_away()
    branches = {}
    for path in map(path_of, ledger.labels):
        # not spoken of, whatever branch it was hung under: it stays, with as many names that were written as no keyword
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
