"""The one kind of error that is the user's to mend."""

import difflib
from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Bad input, in one sentence: what was wrong, what was found, what to do. The command line exits with 2."""


class MissingError(InputError):
    """What was asked for by name or digest is not there. HTTP says 404."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """The known names closest to a misspelt one, ready to end a sentence with.

    >>> nearest("protonett", ["protonet", "laso"])
    "did you mean 'protonet'?"
    >>> nearest("x", ["protonet", "laso"])
    "known: 'laso', 'protonet'"
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=most)
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    shown = ", ".join(repr(known_name) for known_name in names[:20])
    return f"known: {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


class UnknownWordError(InputError):
    """A name without a vector. The sentence fits Python and the command line alike, which adds its flags."""

    def __init__(self, label: str, unknown: str, table: str, nearest: Sequence[str]) -> None:
        self.label, self.unknown, self.table, self.nearest = label, unknown, table, tuple(nearest)
        hint = f"nearest known words: {', '.join(nearest)}" if nearest else "no known word is near"
        super().__init__(
            f"label {label!r} has no vector in words {table!r}: {unknown!r} is unknown ({hint}); "
            "name known words that it is like, give it a vector of your own, or do without words (pictures only)"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, tuple[str, ...]]]:
        return type(self), (self.label, self.unknown, self.table, self.nearest)
