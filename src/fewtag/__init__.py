"""Teach an image tagger new labels from one example each: multi-label few-shot image classification.

>>> from fewtag import Tagger
>>> Tagger().define("zebra").classes_
('zebra',)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.tagger.stream import Tagged
    from fewtag.tagger.tagger import Tagger

    __version__: str

# onnxruntime reports to its maker from its import on unless told not to; child processes inherit this
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["InputError", "Tagged", "Tagger", "__version__"]
_WHERE = {"Tagger": "fewtag.tagger.tagger", "Tagged": "fewtag.tagger.stream"}


def __getattr__(name: str) -> object:
    # imported lazily, so that `fewtag --help` waits neither for numpy nor for the package's metadata
    if name == "__version__":
        return import_module("importlib.metadata").version("fewtag")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'fewtag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__  # so that completion finds the lazy names too
