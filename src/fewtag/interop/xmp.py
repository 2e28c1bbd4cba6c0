"""XMP packets: keywords read by expat, added and taken back by splicing bytes, so that nothing else of a file changes.

Three fields hold keywords: `dc:subject` (names), `lr:hierarchicalSubject` ("birds|heron") and `digiKam:TagsList`
("birds/heron"). A fourth property, fewtag's own, is the ledger: it lists what was added, in the same file, so that a
file and its ledger are never at odds.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from fewtag.errors import InputError

MOST_BYTES = 10_000_000
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
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
"""A packet that says nothing."""
SLASH = "∕"
"""Stands for a slash within a name: "/" itself parts the names of a path."""
_FILE = "file"
_XML = "http://www.w3.org/XML/1998/namespace"
_START_TAG = re.compile(rb"""<(?:[^>"']|"[^"]*"|'[^']*')*>""")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# branches that programs keep for themselves among the keywords
_INTERNAL = frozenset({"darktable", "_digikam_internal_tags_"})

Path = tuple[str, ...]
"""A tag by the names above it and its own: ("birds", "heron")."""


def path_of(label: str) -> Path:
    """A label's path; its names are parted by "/".

    >>> path_of("birds/heron"), path_of("dog")
    (('birds', 'heron'), ('dog',))
    """
    return tuple(part.strip() for part in re.split(r"[/|]", label) if part.strip())


def label_of(path: Path) -> str:
    """The label that a path is learnt as."""
    return "/".join(part.replace("/", SLASH) for part in path)


def fold(path: Path) -> Path:
    """By which two spellings of a path are the same: neither case nor the form of accents tells them apart."""
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in path)


class Tags(NamedTuple):
    """What a person's own keywords say of a picture: paths, and names that are in none of these."""

    paths: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()

    def joined(self, other: "Tags") -> "Tags":
        """What both say."""
        return join_tags([*self.paths, *other.paths], [*self.names, *other.names])

    @property
    def every(self) -> tuple[Path, ...]:
        """Names count as paths of one."""
        return (*self.paths, *((name,) for name in self.names))

    def has(self, path: Path) -> bool:
        """Whether a person gave this tag, as a path, as a mere name, or, of a mere name, under any path."""
        wanted, given = fold(path), {fold(each) for each in self.every}
        return (
            wanted in given or wanted[-1:] in given or (len(wanted) == 1 and wanted[0] in {each[-1] for each in given})
        )


NO_TAGS = Tags()


def join_tags(paths: Iterable[Path], names: Iterable[str]) -> Tags:
    """Each once; a name that is part of a path says nothing more."""
    hierarchy: dict[Path, Path] = {}
    for path in paths:
        if path:
            hierarchy.setdefault(fold(path), path)  # the first spelling stays
    flat: dict[Path, str] = {}
    for name in names:
        if name.strip():
            flat.setdefault(fold((name.strip(),)), name.strip())
    within = {part for path in hierarchy for part in path}
    return Tags(tuple(hierarchy.values()), tuple(name for key, name in flat.items() if key[0] not in within))


class Element:
    """An element of a parsed packet, and where its bytes are."""

    __slots__ = ("attributes", "children", "end", "head", "name", "pieces", "prefix", "start", "tail")

    def __init__(self, name: tuple[str, str], prefix: str, attributes: dict[tuple[str, str], str], start: int) -> None:
        self.name, self.prefix, self.attributes, self.start = name, prefix, attributes, start
        self.head = self.tail = self.end = start
        """Where the start tag ends, the end tag begins, and all of it ends."""
        self.children: list[Element] = []
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Parser:
    """Expat with namespaces resolved here: it is to say where a tag begins, and which prefix was used."""

    def __init__(self, data: bytes) -> None:
        self.data, self.encoding = data, "utf-8"
        self.root: Element | None = None
        self._open: list[Element] = []
        self._spaces: list[Mapping[str, str]] = [{"xml": _XML}]
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.XmlDeclHandler = self._declare
        self._expat.StartDoctypeDeclHandler = self._refuse
        self._expat.EntityDeclHandler = self._refuse
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._text

    def parse(self) -> Element:
        if self.data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            self.encoding = "utf-16"
        # a packet taken from a picture may end in null bytes
        self._expat.Parse(self.data if self.encoding == "utf-16" else self.data.rstrip(b"\0"), True)
        assert self.root is not None, "expat refuses a document without an element"
        return self.root

    def _declare(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self.encoding = (encoding or self.encoding).lower()

    def _refuse(self, *_: object) -> None:
        raise InputError("declares a document type or entities, which XMP never does")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        spaces = self._spaces[-1]
        declared = {
            name.partition(":")[2]: value for name, value in attributes.items() if name.partition(":")[0] == "xmlns"
        }
        if declared:
            spaces = {**spaces, **declared}
        self._spaces.append(spaces)
        prefix, _, local = tag.rpartition(":")
        plain = {
            (spaces.get(name.rpartition(":")[0], "") if ":" in name else "", name.rpartition(":")[2]): value
            for name, value in attributes.items()
            if name.partition(":")[0] != "xmlns"
        }
        element = Element((spaces.get(prefix, ""), local), prefix, plain, self._expat.CurrentByteIndex)
        found = _START_TAG.match(self.data, element.start)
        element.head = element.start if found is None else found.end()
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._spaces.pop()
        element = self._open.pop()
        if self.data[element.head - 2 : element.head] == b"/>":
            element.tail = element.end = element.head
        else:
            element.tail = self._expat.CurrentByteIndex
            element.end = self.data.find(b">", element.tail) + 1

    def _text(self, text: str) -> None:
        if self._open:
            self._open[-1].pieces.append(text)


@dataclass(frozen=True)
class Ledger:
    """What fewtag wrote into a packet: which labels, and which items of which field."""

    labels: tuple[str, ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    """Fields and items; the label's own."""
    seeded: tuple[tuple[str, str], ...] = ()
    """A person's own tags, copied into a field that fewtag made, since programs read one field instead of another."""
    refused: tuple[str, ...] = ()
    """Labels that were written once and that a person took away: they are not written again."""
    was: tuple[tuple[str, str], ...] = ()
    """How a field without items was spelt; ("file", "") where there was no packet."""


@dataclass
class Edit:
    """Stretches of bytes and what takes their place."""

    data: bytes
    changes: list[tuple[int, int, bytes]] = field(default_factory=list)

    def put(self, start: int, end: int, content: bytes = b"") -> None:
        self.changes.append((start, end, content))

    def done(self) -> bytes:
        pieces, place = [], 0
        for start, end, content in sorted(self.changes):
            pieces += [self.data[place:start], content]
            place = end
        return b"".join([*pieces, self.data[place:]])


class Packet:
    """A parsed XMP packet; `name` says in refusals whose it is."""

    def __init__(self, data: bytes, name: str) -> None:
        if len(data) > MOST_BYTES:
            raise InputError(f"{name} is larger than {MOST_BYTES // 10**6} MB; that is no XMP, so take it away")
        parser = _Parser(data)
        try:
            root = parser.parse()
        except expat.ExpatError as error:
            raise InputError(f"{name} is no XML ({error}); mend it or take it away") from error
        except InputError as error:
            raise InputError(f"{name} {error}; mend it or take it away") from error
        except (UnicodeDecodeError, LookupError, ValueError) as error:
            raise InputError(f"{name} is no text that could be XML ({error}); mend it or take it away") from error
        self.data, self.name = data, name
        self._encoding = parser.encoding
        inside = next((each for each in (root, *root.children) if each.name == (RDF, "RDF")), None)
        if inside is None:
            raise InputError(f"{name} is XML, but no XMP: it has no rdf:RDF; mend it or take it away")
        self._rdf = inside
        self._descriptions = [each for each in inside.children if each.name == (RDF, "Description")]

    def _properties(self, space: str, local: str) -> list[Element]:
        return [each for about in self._descriptions for each in about.children if each.name == (space, local)]

    def _field(self, name: str) -> Element | None:
        """Where a field is; refuses one that is no list, or that is there twice."""
        space, local = FIELDS[name][0], name.partition(":")[2]
        found = self._properties(space, local)
        plain = any((space, local) in about.attributes for about in self._descriptions)
        if plain or len(found) > 1 or any(_array(each) is None and _says_something(each) for each in found):
            raise InputError(
                f"{self.name} has {name} {'twice' if len(found) > 1 else 'in a form that is no list'}; "
                "let the program that wrote it save it again"
            )
        return found[0] if found else None

    def items(self, name: str) -> list[str]:
        """Of a field, in order; whatever form it is in."""
        space, local = FIELDS[name][0], name.partition(":")[2]
        plain = [about.attributes[space, local] for about in self._descriptions if (space, local) in about.attributes]
        for each in self._properties(space, local):
            plain += [item.text for item in _items(each)] if _array(each) is not None else [each.text]
        return [item for item in plain if item.strip()]

    @property
    def ledger(self) -> Ledger | None:
        """None where fewtag wrote nothing."""
        if not any(each.name[0] == OWN for about in self._descriptions for each in about.children):
            return None

        def own(local: str) -> list[str]:
            return [item.text.strip() for each in self._properties(OWN, local) for item in _items(each)]

        def pairs(local: str) -> tuple[tuple[str, str], ...]:
            return tuple((name, item) for name, _, item in (each.partition(" ") for each in own(local)))

        return Ledger(tuple(own("written")), pairs("added"), pairs("seeded"), tuple(own("refused")), pairs("was"))

    def tags(self) -> Tags:
        """A person's own: what fewtag added is left out, copies that it made of a person's tags are not."""
        ours = Counter((self.ledger or Ledger()).added)
        own: dict[str, list[str]] = {}
        for name in FIELDS:
            kept: list[str] = []
            for item in reversed(self.items(name)):  # ours come last
                if ours[name, item.strip()]:
                    ours[name, item.strip()] -= 1
                else:
                    kept.append(item)
            own[name] = kept[::-1]
        marks = (HIERARCHY, "|"), (TAGS_LIST, "/")
        paths = [
            tuple(part.strip() for part in item.split(mark) if part.strip())
            for name, mark in marks
            for item in own[name]
        ]
        found = join_tags([tuple(part.replace(SLASH, "/") for part in path) for path in paths], [*own[SUBJECT]])
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
        """As it was before fewtag wrote; None where that made it, and nobody has put anything into it since.

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
        edit, gone = Edit(self.data), set[int]()
        was = dict(ledger.was)
        for name in FIELDS:
            found = self._field(name)
            if found is None:
                continue
            items = _items(found)
            ours = _last(items, [item for its_field, item in ledger.added if its_field == name])
            copied = _last(items, [item for its_field, item in ledger.seeded if its_field == name], but=ours)
            if len(ours) + (0 if copies else len(copied)) < len(items):  # somebody else's are among them: theirs stay
                gone |= {id(item) for item in ours}
            elif name in was:
                edit.put(found.start, found.end, was[name].encode())
            else:
                gone.add(id(found))
        for about in self._descriptions:
            gone |= {id(each) for each in about.children if each.name[0] == OWN}
            if (
                about.children
                and all(id(each) in gone for each in about.children)
                and not set(about.attributes) - {(RDF, "about")}
            ):
                gone.add(id(about))
        if (_FILE, "") in ledger.was and all(id(each) in gone for each in self._rdf.children):
            return None
        for about in self._rdf.children:
            inside = [about] if id(about) in gone else about.children
            for element in inside:
                for each in [element] if id(element) in gone else _items(element):
                    if id(each) in gone:
                        edit.put(_before(self.data, each.start), each.end)
        return edit.done()

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
        edit, added, seeded = Edit(self.data), list[tuple[str, str]](), list[tuple[str, str]]()
        made, was = dict[str, list[str]](), [(_FILE, "")] if new else []
        for name in FIELDS if labels else ():
            wanted = _unlike([item for path, skip in labels.items() for its, item in _forms(path, skip) if its == name])
            found = self._field(name)
            if found is None:
                seeds = _unlike([item for path in known.every for its, item in _forms(path) if its == name])
                fresh = _unlike(wanted, but=seeds)
                made[name] = seeds + fresh
                seeded += [(name, item) for item in seeds]
            else:
                fresh = _unlike(wanted, but=[item.text for item in _items(found)])
                was += self._insert(edit, name, found, fresh)
            added += [(name, item) for item in fresh]
        ledger = Ledger(
            tuple("/".join(path) for path in labels), tuple(added), tuple(seeded), tuple(refused), tuple(was)
        )
        last = self._rdf.children[-1] if self._rdf.children else None
        margin = self.data[_before(self.data, last.start) : last.start] if last else b""
        newline = margin.decode("ascii", "replace") if b"\n" in margin else "\n  "
        block = newline + self._block(made, ledger, newline)
        if self._rdf.tail == self._rdf.end:
            raise InputError(f"{self.name} has an empty rdf:RDF; take the file away, and a new one is made")
        place = last.end if last else self._rdf.head
        edit.put(place, place, block.encode())
        return edit.done()

    def _insert(self, edit: Edit, name: str, found: Element, fresh: Sequence[str]) -> list[tuple[str, str]]:
        """New items after the last one, spaced like that; of a field without items, how it was spelt."""
        items = _items(found)
        if items:
            last = items[-1]
            tag = f"{last.prefix}:li" if last.prefix else "li"
            margin = self.data[_before(self.data, last.start) : last.start]
            inserted = b"".join(margin + f"<{tag}>{_escaped(item)}</{tag}>".encode() for item in fresh)
            edit.put(last.end, last.end, inserted)
            return []
        if not fresh:
            return []
        start = self.data[found.start : found.head].decode()
        head = start if not start.endswith("/>") else start[:-2].rstrip() + ">"
        qualified = re.split(r"[\s/>]", start[1:], maxsplit=1)[0]
        kind = FIELDS[name][1]
        listed = "".join(f"<rdf:li>{_escaped(item)}</rdf:li>" for item in fresh)
        content = f'{head}<rdf:{kind} xmlns:rdf="{RDF}">{listed}</rdf:{kind}></{qualified}>'
        edit.put(found.start, found.end, content.encode())
        return [(name, self.data[found.start : found.end].decode())]

    def _block(self, made: Mapping[str, Sequence[str]], ledger: Ledger, newline: str) -> str:
        """A description of its own for the fields that were missing and for the ledger."""
        about = next((each.attributes.get((RDF, "about"), "") for each in self._descriptions), "")
        spaces = {"fewtag": OWN, **{name.partition(":")[0]: FIELDS[name][0] for name in made}}
        if self._rdf.prefix != "rdf":
            spaces["rdf"] = RDF
        lists: dict[str, tuple[str, Sequence[str]]] = {name: (FIELDS[name][1], items) for name, items in made.items()}
        pairs = {"added": ledger.added, "seeded": ledger.seeded, "was": ledger.was}
        written = {"written": ledger.labels, "refused": ledger.refused}
        own = {**written, **{local: [f"{name} {item}".strip() for name, item in some] for local, some in pairs.items()}}
        lists |= {f"fewtag:{local}": ("Bag", items) for local, items in own.items() if items}
        lines = [f"<rdf:Description rdf:about={quoteattr(about)}"]
        lines += [f'  xmlns:{prefix}="{space}"' for prefix, space in sorted(spaces.items())]
        lines[-1] += ">"
        for name, (kind, items) in lists.items():
            lines += [f" <{name}>", f"  <rdf:{kind}>"]
            lines += [f"   <rdf:li>{_escaped(item)}</rdf:li>" for item in items]
            lines += [f"  </rdf:{kind}>", f" </{name}>"]
        return newline.join([*lines, "</rdf:Description>"])


def _escaped(text: str) -> str:
    """A bare carriage return would come back as a line feed."""
    return escape(text, {"\r": "&#13;"})


def _array(element: Element) -> Element | None:
    return next((each for each in element.children if each.name in {(RDF, "Bag"), (RDF, "Seq"), (RDF, "Alt")}), None)


def _items(element: Element) -> list[Element]:
    array = _array(element)
    return [] if array is None else [each for each in array.children if each.name == (RDF, "li")]


def _says_something(element: Element) -> bool:
    return bool(element.children or element.text.strip() or element.attributes)


def _forms(path: Path, skip: int = 0) -> Iterator[tuple[str, str]]:
    """A tag in each of the fields; a mere name too for each of the names above it, so that a search finds those."""
    yield from ((SUBJECT, part.replace(SLASH, "/")) for part in path[skip:])
    yield HIERARCHY, "|".join(part.replace(SLASH, "/") for part in path)
    yield TAGS_LIST, "/".join(part.replace("/", SLASH) for part in path)


def _unlike(items: Iterable[str], but: Iterable[str] = ()) -> list[str]:
    """Each once, whatever its case, and none of those."""
    seen = {fold((item.strip(),)) for item in but}
    kept = []
    for item in items:
        if (key := fold((item.strip(),))) not in seen:
            seen.add(key)
            kept.append(item)
    return kept


def _last(items: Sequence[Element], texts: Iterable[str], but: Sequence[Element] = ()) -> list[Element]:
    """The items with these texts, the last ones where there are more."""
    wanted, others = Counter(texts), {id(each) for each in but}
    found = []
    for item in reversed(items):
        if id(item) not in others and wanted[item.text.strip()]:
            wanted[item.text.strip()] -= 1
            found.append(item)
    return found


def _before(data: bytes, place: int) -> int:
    """Where the white space before a place begins."""
    while place and data[place - 1] in b" \t\r\n":
        place -= 1
    return place


def check_label(label: str) -> Path:
    """A label's path; refuses one that XML cannot hold."""
    if found := _NO_XML.search(label):
        raise InputError(f"label {label!r} holds the character {found[0]!r}, which XMP cannot; rename it")
    path = path_of(label)
    if not path:
        raise InputError(f"label {label!r} has no name between its slashes; rename it")
    return path


class Wanted(NamedTuple):
    """What is to be written."""

    labels: tuple[Path, ...]
    vocabulary: frozenset[Path]
    """All labels that are spoken of, folded: of the ledger's, those that are not among them stay."""
    prefix: Path = ()
    """The branch that all labels hang under, in the fields that have branches."""


def rewrite(data: bytes | None, name: str, wanted: Wanted, elsewhere: Tags, *, empty: bytes = EMPTY) -> bytes | None:
    """A packet as it shall be, None where there shall be none; `elsewhere` are a person's tags outside of it.

    What was ours before is taken back first. What comes out can be taken back to the byte, or is refused.
    """
    before = None if data is None else Packet(data, name)
    base = None if before is None else before.without_ours(elsewhere)
    known = elsewhere if before is None else before.tags().joined(elsewhere)
    ledger = (before.ledger if before is not None else None) or Ledger()
    refused = before.taken_away() if before is not None else ()
    stay = [path for path in map(path_of, ledger.labels) if not _spoken_of(path, wanted.vocabulary)]
    branches = {path: _branch(path, ledger) for path in stay}
    branches |= {(*wanted.prefix, *path): len(wanted.prefix) for path in wanted.labels if not known.has(path)}
    never = {fold(path_of(label)) for label in refused}
    labels = {path: branches[path] for path in sorted(branches) if fold(path) not in never}
    if not labels and not refused:
        return base
    after = Packet(empty if base is None else base, name).with_labels(labels, known, refused, new=base is None)
    if Packet(after, name).without_ours(elsewhere) != base:
        raise InputError(f"{name} is written in a way that could not be taken back to the byte; it stays as it is")
    return after


def _branch(path: Path, ledger: Ledger) -> int:
    """How many names at the beginning of a path were written as no keyword."""
    return next((place for place, part in enumerate(path) if (SUBJECT, part) in ledger.added), len(path) - 1)


def _spoken_of(path: Path, vocabulary: frozenset[Path]) -> bool:
    """Whatever branch it was hung under."""
    folded = fold(path)
    return any(folded[first:] in vocabulary for first in range(len(folded)))
