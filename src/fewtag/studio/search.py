"""The query parser: splits what a person types into the search box into labels, words, states, folders and dates.

    heron -boat is:unsure folder:2024 name:img_12 after:2024-05 label:"teddy bear" any other word

Words that together are a label's name mean that label; those that are the last part of paths, or a path above labels,
mean all of these. The longest name wins, and the words between them are looked up as one phrase. Whatever a person
types is accepted, except an invalid date and a state that does not exist.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from fewtag.errors import InputError, MissingError, nearest

STATES = ("unsure", "confirmed", "rejected", "tagged", "untagged")
Kind = Literal["label", "word", "name", "state", "folder", "after", "before"]
_TOKEN = re.compile(r'(?P<sign>-?)(?:(?P<key>[A-Za-z]+):)?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))|\S+')
_KEYS = ("label", "is", "folder", "name", "after", "before")
Names = Mapping[str, tuple[str, ...]]
_DATE = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")


@dataclass(frozen=True)
class Part:
    """A part of a query; for kind label, `names` are the labels that it means: the label itself, or all below it."""

    text: str
    kind: Kind
    value: str
    wanted: bool = True
    """False after a minus sign."""
    names: tuple[str, ...] = ()


def parse(query: str, labels: Iterable[str]) -> list[Part]:
    """The parts of a query, given these labels."""
    known = _by_name(labels)
    parts: list[Part] = []
    loose: list[tuple[str, bool]] = []
    for found in _TOKEN.finditer(query):
        sign, key, quoted, bare = found["sign"], (found["key"] or "").lower(), found["quoted"], found["bare"]
        value = quoted if quoted is not None else bare
        if value is None or not value.strip():
            continue
        if key and key not in _KEYS:  # "C:", or a time of day, which is text after all
            value, key = f"{found['key']}:{value}", ""
        wanted = sign != "-"
        if not key and quoted is None:
            loose.append((value, wanted))
            continue
        parts += _phrases(loose, known)
        loose.clear()
        if key in ("", "label"):
            parts.append(_quoted(found[0], value, wanted, known, must=key == "label"))
        else:
            parts.append(_keyed(found[0], key, value, wanted))
    return parts + _phrases(loose, known)


def _by_name(labels: Iterable[str]) -> Names:
    """Labels by their whole path, else by each path above them and by their last part, sorted."""
    own: dict[str, dict[str, None]] = {}
    others: dict[str, dict[str, None]] = {}
    for label in sorted(labels):
        *above, last = [part.strip() for part in label.split("/")]
        own.setdefault(_folded(label), {})[label] = None
        for name in (last, *("/".join(above[:depth]) for depth in range(1, len(above) + 1))):
            others.setdefault(_folded(name), {})[label] = None
    return {name: tuple(some) for name, some in (others | own).items()}


def _folded(name: str) -> str:
    """A name in a canonical spelling, without quotes, which cannot be nested in the search box."""
    return " ".join(name.replace('"', "").casefold().split())


def _phrases(loose: Sequence[tuple[str, bool]], known: Names) -> list[Part]:
    """Parts for bare words: the longest runs that are labels, and the words between them as phrases."""
    parts: list[Part] = []
    rest: list[str] = []
    start = 0

    def flush() -> None:
        if rest:
            parts.append(Part(" ".join(rest), "word", " ".join(rest)))
            rest.clear()

    while start < len(loose):
        word, wanted = loose[start]
        run = 1
        while wanted and start + run < len(loose) and loose[start + run][1]:
            run += 1
        for length in range(run, 0, -1):
            text = " ".join(each for each, _ in loose[start : start + length])
            if names := known.get(_folded(text)):
                flush()
                parts.append(Part(text if wanted else f"-{text}", "label", text, wanted, names))
                start += length
                break
        else:
            if wanted:
                rest.append(word)
            else:
                flush()
                parts.append(Part(f"-{word}", "word", word, wanted=False))
            start += 1
    flush()
    return parts


def _quoted(text: str, value: str, wanted: bool, known: Names, *, must: bool) -> Part:
    if names := known.get(_folded(value)):
        return Part(text, "label", value, wanted, names)
    if must:
        labels = {label for some in known.values() for label in some}
        raise MissingError(f"there is no label {value!r}; {nearest(value, labels)}")
    return Part(text, "word", value, wanted)


def _keyed(text: str, key: str, value: str, wanted: bool) -> Part:
    if key == "is":
        if value.lower() not in STATES:
            raise InputError(f"{text!r} is no state; {nearest(value.lower(), STATES)}")
        return Part(text, "state", value.lower(), wanted)
    if key in ("folder", "name"):
        return Part(text, "folder" if key == "folder" else "name", value, wanted)
    return Part(text, "after" if key == "after" else "before", _date(text, value), wanted)


def _date(text: str, value: str) -> str:
    """The first day of the date, in ISO 8601."""
    found = _DATE.fullmatch(value)
    try:
        if found is None:
            raise ValueError
        return date(*(int(part or 1) for part in found.groups())).isoformat()
    except ValueError as error:
        raise InputError(f"{text!r} has no date; give one such as 2024, 2024-05 or 2024-05-01") from error
