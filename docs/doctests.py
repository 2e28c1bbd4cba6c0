"""Griffe extension: doctests in docstrings are shown as code, not as quotations."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"(^>>> .*?)(?=\n\s*\n|\Z)", flags=re.S | re.M)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\1\n```", obj.docstring.value)
