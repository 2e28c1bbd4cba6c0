"""Registry of methods: `METHODS` by name. A new one is a file here and a line below; the contract test finds it."""

import inspect
from functools import cache

from pydantic import TypeAdapter, ValidationError

from fewtag.errors import InputError, nearest
from fewtag.research.methods import ablations
from fewtag.research.methods.base import Base, Classifier, ClassNames, EndToEnd, Episode, Method, Precoded, Support
from fewtag.research.methods.closed_form import ClosedForm, Posterior, Rocchio, WordOnly
from fewtag.research.methods.kggr import KGGR
from fewtag.research.methods.laso import LaSO
from fewtag.research.methods.linear import LinearClassifier, LogisticRegression
from fewtag.research.methods.maml import MAML
from fewtag.research.methods.neighbours import NearestNeighbours, TipAdapter
from fewtag.research.methods.pla import PLA, WordPLA
from fewtag.research.methods.protonet import AM3, CentredProtoNet, ProtoNet
from fewtag.research.methods.word_attention import ReferenceWordAttention, WordAttention

METHODS: dict[str, type[Method]] = {
    "word-attention": WordAttention,
    "word-attention-reference": ReferenceWordAttention,
    "closed-form": ClosedForm,
    "posterior": Posterior,
    "rocchio": Rocchio,
    "protonet": ProtoNet,
    "classifier": LinearClassifier,
    "protonet-centred": CentredProtoNet,
    "am3": AM3,
    "logistic-regression": LogisticRegression,
    "knn": NearestNeighbours,
    "tip-adapter": TipAdapter,
    "word-only": WordOnly,
    "kggr": KGGR,
    "laso": LaSO,
    "maml": MAML,
    "pla": PLA,
    "pla-glove": WordPLA,
    "no-cmw-loss": ablations.NoCmwLoss,
    "simple-attention": ablations.SimpleAttention,
    "global-attention": ablations.GlobalAttention,
    "simple-local-attention": ablations.SimpleLocalAttention,
    "bilinear-pooling": ablations.BilinearPooling,
    "local-query": ablations.LocalQuery,
}

_validator = cache(TypeAdapter)  # making one takes pydantic a millisecond, and recipes have hundreds of runs

__all__ = [
    "METHODS",
    "Base",
    "ClassNames",
    "Classifier",
    "EndToEnd",
    "Episode",
    "Method",
    "Precoded",
    "Support",
    "check_method",
    "create_method",
]


def check_method(name: str, options: dict[str, object]) -> None:
    """Refuses an unknown method, or an option that it does not have, before anything is built."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; {nearest(name, METHODS)}")
    parameters = inspect.signature(METHODS[name]).parameters.values()
    known = {parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    for option, value in options.items():
        if option not in known:
            raise InputError(f"method {name!r} has no option {option!r}; {nearest(option, known)}")
        try:
            _validator(known[option].annotation).validate_python(value, strict=True)
        except ValidationError as error:
            wanted = known[option].default
            raise InputError(f"option {option!r} of method {name!r} is {value!r}; write one like {wanted!r}") from error


def create_method(name: str, *, channels: int, dimensions: int, options: dict[str, object] | None = None) -> Method:
    """A method of `METHODS` for maps and word vectors of the given sizes."""
    check_method(name, options or {})
    try:
        return METHODS[name](channels, dimensions, **(options or {}))
    except ValueError as error:  # such as a dropout of 2
        raise InputError(f"method {name!r} cannot be made with {options}: {error}") from error
