"""InputError, for mistakes that the user can correct, with helpers for its message; and warnings at the user's line."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType


class InputError(ValueError):
    """Bad input, in one sentence: what was wrong, what was found, what to do. The command line exits with code 2."""


class MissingError(InputError):
    """Something asked for by name or digest does not exist. HTTP answers 404."""


class TakenError(InputError):
    """A name is already taken. HTTP answers 409."""


class UnavailableError(InputError):
    """What is served cannot be read or written at the moment, whoever asks. HTTP answers 503."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """The known names closest to a misspelt one, as the end of a sentence.

    >>> nearest("protonett", ["protonet", "laso"])
    "did you mean 'protonet'?"
    >>> nearest("x", ["protonet", "laso"]), nearest("x", [])
    ("known: 'laso', 'protonet'", 'none is known yet')
    """
    names = sorted(set(known))
    if not names:
        return "none is known yet"
    close = difflib.get_close_matches(name, names, n=most)
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    shown = ", ".join(repr(known_name) for known_name in names[:20])
    return f"known: {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "picture"), plural(3, "picture")
    ('1 picture', '3 pictures')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class UnknownWordError(InputError):
    """A name has no word vector. The message suits both Python and the command line, which adds its own flags."""

    def __init__(self, label: str, unknown: str, table: str, nearest: Sequence[str]) -> None:
        self.label, self.unknown, self.table, self.nearest = label, unknown, table, tuple(nearest)
        hint = f"nearest known words: {', '.join(nearest)}" if nearest else "no known word is near"
        super().__init__(
            f"label {label!r} has no vector in words {table!r}: {unknown!r} is unknown ({hint}); "
            "name known words that it is like, give it a vector of your own, or do without words (pictures only)"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, tuple[str, ...]]]:
        return type(self), (self.label, self.unknown, self.table, self.nearest)


def import_extra(module: str, what: str, extra: str) -> ModuleType:
    """Imports a module of an extra; refuses `what`, which needs it, where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f'{what} needs {package}; install it with: pip install "fewtag[{extra}]"') from error


def first_line(error: Exception) -> str:
    """The first line of a library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def warn(message: str) -> None:
    """Issues a warning that points to the line that called this package, however deep inside it is raised."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "fewtag":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
