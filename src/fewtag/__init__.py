"""Multi-label few-shot image classification with word-guided prototypes."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewtag.tagger.tagger import Tagger

__version__ = "0.1.0"
__all__ = ["Tagger", "__version__"]


def __getattr__(name: str) -> object:
    # not before it is asked for: it brings torch, and `fewtag --help` shall not wait for that
    if name == "Tagger":
        return import_module("fewtag.tagger.tagger").Tagger
    raise AttributeError(f"module 'fewtag' has no attribute {name!r}")
