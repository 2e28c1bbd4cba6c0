"""The one kind of error that is the user's to mend."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, in one sentence: what was wrong, what was found, what to do. The command line exits with 2."""


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
