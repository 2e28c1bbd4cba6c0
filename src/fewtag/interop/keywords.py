"""Keywords: tags as paths of names, the comparison of their spellings, and a person's own tags of a picture."""

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from fewtag.errors import InputError

SLASH = "∕"
"""Stands for a slash within a name, since "/" separates the names of a path."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Path = tuple[str, ...]
"""A tag with the names above it: ("birds", "heron")."""


def path_of(label: str) -> Path:
    """A label's path, whose names are separated by "/".

    >>> path_of("birds/heron"), path_of("dog")
    (('birds', 'heron'), ('dog',))
    """
    return tuple(part.strip() for part in re.split(r"[/|]", label) if part.strip())


def label_of(path: Path) -> str:
    """The label for a path."""
    return "/".join(part.replace("/", SLASH) for part in path)


def check_label(label: str) -> Path:
    """A label's path; refuses one that XML cannot contain."""
    if found := _NO_XML.search(label):
        raise InputError(f"label {label!r} holds the character {found[0]!r}, which XMP cannot; rename it")
    path = path_of(label)
    if not path:
        raise InputError(f"label {label!r} has no name between its slashes; rename it")
    return path


def fold(path: Path) -> Path:
    """A path in a canonical spelling, by case folding and Unicode normalisation, for comparison."""
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in path)


def unlike(items: Iterable[str], but: Iterable[str] = ()) -> list[str]:
    """Removes duplicates regardless of case, and items that are among `but`."""
    first: dict[Path, str] = {}
    for item in items:
        first.setdefault(fold((item.strip(),)), item)
    known = {fold((item.strip(),)) for item in but}
    return [item for key, item in first.items() if key not in known]


class Tags(NamedTuple):
    """A person's own keywords of a picture: paths, and names that are part of no path."""

    paths: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()

    def joined(self, other: "Tags") -> "Tags":
        return join_tags([*self.paths, *other.paths], [*self.names, *other.names])

    @property
    def every(self) -> tuple[Path, ...]:
        """All tags as paths; a name is a path of length one."""
        return (*self.paths, *((name,) for name in self.names))

    def has(self, path: Path) -> bool:
        """Whether a person gave this tag: this path, its last name alone, or, for a single name, any path's end."""
        wanted, given = fold(path), {fold(each) for each in self.every}
        under = len(wanted) == 1 and wanted[0] in {each[-1] for each in given}
        return under or wanted in given or wanted[-1:] in given


NO_TAGS = Tags()


def join_tags(paths: Iterable[Path], names: Iterable[str]) -> Tags:
    """Merges tags: each once, in its first spelling; names that are part of a path are dropped.

    A bar separates the names of a path wherever it occurs: some programs write paths among the flat keywords.
    """
    hierarchy: dict[Path, Path] = {}
    flat = list[str]()
    for given, is_name in chain(((path, False) for path in paths), (((name,), True) for name in names)):
        path = tuple(part.strip() for each in given for part in each.replace(SLASH, "/").split("|") if part.strip())
        if is_name and len(path) == 1:
            flat.append(path[0])
        elif path:
            hierarchy.setdefault(fold(path), path)
    within = {part for path in hierarchy for part in path}
    return Tags(tuple(hierarchy.values()), tuple(name for name in unlike(flat) if fold((name,))[0] not in within))
