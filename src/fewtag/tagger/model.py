"""What stays the same while labels come and go: a network, words, a fit and its calibration."""

import json
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fewtag.errors import InputError, nearest
from fewtag.files import replacing
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.inference import fuse_batch_norms
from fewtag.research.methods.base import Base
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.calibrate import Calibration
from fewtag.words.vectors import WordVectors, load_words

SHIPPED = ("default", "coco52")
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Model:
    """Turns pictures and label names into places and word prototypes of one space."""

    name: str
    backbone: Backbone
    words: WordVectors
    method: ClosedForm
    calibration: Calibration
    header: dict[str, Any]
    """What the file says of itself: backbone, words, strengths, calibration, how it was fitted."""


def load_model(name: str = "default", *, words: str | None = None) -> Model:
    """A shipped fit by name, or a fit of one's own by path; `words` names other word vectors."""
    if name in SHIPPED:
        with as_file(files("fewtag.models").joinpath(f"{name}.safetensors")) as path:
            return _read(name, path, words)
    path = Path(name)
    if not path.is_file():
        raise InputError(f"there is no model {name!r}; {nearest(name, SHIPPED)}, or give the path of a fit")
    return _read(path.stem, path, words)


def _read(name: str, path: Path, words: str | None) -> Model:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["fewtag-model"])
            tensors = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 — it is no dictionary
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"model {path} cannot be read ({type(error).__name__}); name one that fewtag wrote") from error
    if header["format"] != _FORMAT:
        raise InputError(f"model {path} has format {header['format']}, this fewtag reads {_FORMAT}; update fewtag")
    backbone = fuse_batch_norms(create_backbone(**header["backbone"]))
    vectors = load_words(words or header["words"])
    base_prototypes = tensors.pop("base_prototypes")
    method = ClosedForm(backbone.channels, vectors.dimensions, **header["strengths"])
    if words is None or words == header["words"]:
        method.load_state_dict(tensors)
    else:
        # other words: the base labels' prototypes are in the file, so their map is solved anew at once
        method.mean.copy_(tensors["mean"])
        method.basis.copy_(tensors["basis"])
        method.fit_words(vectors.vectors(header["base_words"]), base_prototypes)
    calibration = Calibration(**{key: tuple(values) for key, values in header["calibration"].items()})
    return Model(name, backbone, vectors, method.eval(), calibration, header)


def save_model(path: Path, method: ClosedForm, base: Base, calibration: Calibration, **facts: Any) -> None:
    """Tensors in half precision with a JSON header; `facts` are backbone, words, strengths, base_words and origin."""
    header = {"format": _FORMAT, "calibration": calibration.as_dict(), **facts}
    tensors = {**method.state_dict(), "base_prototypes": method.base_prototypes(base)}
    with replacing(path) as part:
        save_file(
            {key: value.to(torch.float16).contiguous() for key, value in tensors.items()},
            part,
            metadata={"fewtag-model": json.dumps(header)},
        )
