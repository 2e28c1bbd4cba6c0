"""RDF/XML, parsed by expat with the byte position of each element, so that it can be edited by splicing bytes."""

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from fewtag.errors import InputError

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_LISTS = frozenset({(RDF, "Bag"), (RDF, "Seq"), (RDF, "Alt")})
_BETWEEN = "\x01"
"""Separates namespace, local name and prefix in expat's names: no XML can contain this character."""
_START_TAG = re.compile(rb"""<(?:[^>"']|"[^"]*"|'[^']*')*>""")

Name = tuple[str, str]
"""A namespace and a local name."""
Changes = list[tuple[int, int, bytes]]
"""Start and end of byte ranges, and their replacements."""


@dataclass(slots=True, eq=False)
class Element:
    """An element and the positions of its bytes."""

    name: Name
    prefix: str
    attributes: dict[Name, str]
    start: int
    head: int
    """The end of the start tag."""
    tail: int = 0
    """The start of the end tag."""
    end: int = 0
    children: list["Element"] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def array(self) -> "Element | None":
        """The list (Bag, Seq or Alt) in a property; None if there is none."""
        return next((each for each in self.children if each.name in _LISTS), None)

    @property
    def items(self) -> list["Element"]:
        return [] if self.array is None else [each for each in self.array.children if each.name == (RDF, "li")]


class _Parser:
    """Expat's handlers; document types and entities are refused as soon as they are declared."""

    def __init__(self, data: bytes) -> None:
        self.data, self.encoding = data, "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8"
        self.open = [Element(("", ""), "", {}, 0, 0)]
        self.expat = expat.ParserCreate(namespace_separator=_BETWEEN)
        self.expat.namespace_prefixes = True
        self.expat.buffer_text = True
        self.expat.XmlDeclHandler = self._declare
        self.expat.StartDoctypeDeclHandler = self.expat.EntityDeclHandler = self._refuse
        self.expat.StartElementHandler = self._start
        self.expat.EndElementHandler = self._end
        self.expat.CharacterDataHandler = lambda text: self.open[-1].pieces.append(text)

    def _declare(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self.encoding = (encoding or self.encoding).lower()

    def _refuse(self, *_: object) -> None:
        raise InputError("declares a document type or entities, which XMP never does")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        start = self.expat.CurrentByteIndex
        found = _START_TAG.match(self.data, start)  # no match in UTF-16, which is read but not written
        named = {_named(name)[0]: value for name, value in attributes.items()}
        element = Element(*_named(tag), named, start, start if found is None else found.end())
        self.open[-1].children.append(element)
        self.open.append(element)

    def _end(self, _tag: str) -> None:
        element = self.open.pop()
        if self.data[element.head - 2 : element.head] == b"/>":
            element.tail = element.end = element.head
        else:
            element.tail = self.expat.CurrentByteIndex
            element.end = self.data.find(b">", element.tail) + 1


def _named(told: str) -> tuple[Name, str]:
    """Splits a name from expat into name and prefix; the namespace and the prefix may be missing."""
    space, local, prefix = ["", *told.split(_BETWEEN), ""][_BETWEEN in told :][:3]
    return (space, local), prefix


def parse(data: bytes) -> tuple[Element, str]:
    """The root element and the encoding; error messages begin with a verb, for the caller to prepend a name."""
    parser = _Parser(data)
    try:
        # a packet taken from a picture may end in null bytes
        parser.expat.Parse(data if parser.encoding == "utf-16" else data.rstrip(b"\0"), True)
    except expat.ExpatError as error:
        raise InputError(f"is no XML ({error})") from error
    except InputError:
        raise
    except (LookupError, ValueError) as error:
        raise InputError(f"is no text that could be XML ({error})") from error
    return parser.open[0].children[0], parser.encoding


def before(data: bytes, place: int) -> int:
    """The position where the white space before a place begins."""
    return len(data[:place].rstrip(b" \t\r\n"))


def spliced(data: bytes, changes: Changes) -> bytes:
    """The bytes with these ranges, which do not overlap, replaced."""
    pieces, place = list[bytes](), 0
    for start, end, content in sorted(changes):
        pieces += [data[place:start], content]
        place = end
    return b"".join([*pieces, data[place:]])
