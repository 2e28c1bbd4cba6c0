"""A model: what stays the same while labels come and go. Network, whitened space, words, strengths, calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import Calibration
from fewtag.core.posterior import NameEvidence, Places, Space, Strengths, Vectors, WordMap, fit_words
from fewtag.errors import InputError, nearest
from fewtag.files import StrPath, digest, read_arrays, write_arrays
from fewtag.pictures.decode import Pixels, Square
from fewtag.runtime import Network
from fewtag.words.vectors import SHIPPED as SHIPPED_WORDS
from fewtag.words.vectors import WordTable, class_vectors, load_words, parse_source

SHIPPED = ("default", "accurate", "coco52")
SHIPPED_FOLDER = Path(str(files("fewtag"))) / "models"
KIND = "fewtag-model"
CONSTANTS = ("pool", "positions")
"""Arrays that are inputs of the network."""
_FORMAT = 3


@dataclass(frozen=True, eq=False)
class Model:
    """Turns pictures and label names into places and word prototypes of one space."""

    name: str
    source: str
    """A shipped model's name, or a file's full path."""
    size: int
    """Side of the squares that the network takes."""
    places: int
    """Of a feature map."""
    header: dict[str, Any]
    """What the file says of itself: network, words, strengths, base words, calibration, how it was fitted."""
    network: Network
    space: Space
    base_prototypes: Vectors
    """Of the base labels, and after them of a classifier's classes: what the word map is solved on."""
    own_map: WordMap
    """From the words that the model was fitted with."""
    strengths: Strengths
    evidence: NameEvidence
    calibration: Calibration
    words_source: str | None = None
    """A file of word vectors of one's own, in place of the shipped table."""
    absent_words: str = ""
    """Which words a bank was made with, if their file was not named: none can be looked up then."""

    def __getstate__(self) -> dict[str, Any]:
        # the shipped table is in every installation: a copy need not carry it
        left_out = set() if self.words_source else {"words"}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    @property
    def words_name(self) -> str:
        return self.absent_words or Path(self.words_source or self.header["words"]).name

    @cached_property
    def words(self) -> WordTable:
        if self.absent_words:
            raise InputError(
                f"the bank was made with the word vectors {self.absent_words!r}, which were not named now; "
                "name their file to look a name up"
            )
        return load_words(self.words_source or self.header["words"])

    @cached_property
    def word_map(self) -> WordMap:
        if not self.absent_words and self.words_source is None:
            return self.own_map
        # other words: the prototypes are in the file, so the map is solved anew at once
        return solve_words(
            self.words, self.header["base_words"], self.header["class_names"], self.base_prototypes, self.strengths
        )

    @cached_property
    def space_key(self) -> str:
        """A digest of all that decides a picture's places."""
        graph = str(self.header["network"]["sha256"])
        constants = (values.tobytes() for _, values in sorted(self.network.constants.items()))
        return digest(graph, str(self.size), self.space.mean.tobytes(), self.space.basis.tobytes(), *constants)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that decides what a bank's numbers mean."""
        return digest(
            self.space_key, repr(self.strengths), repr(self.evidence), self.words_name, self.base_prototypes.tobytes()
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What a bank says of the model that it was made with."""
        return {
            "source": self.source,
            "name": self.name,
            "words": self.words_name,
            "own_words": self.words_source is not None or bool(self.absent_words),
            "places": self.places,
            "space": self.space.size,
            "fingerprint": self.fingerprint,
        }

    def encode(self, pixels: Pixels | Sequence[Square]) -> Places:
        """One pass of the network."""
        return self.network(pixels, self.space)

    def word_prototypes(self, words: Vectors) -> Vectors:
        return self.word_map.prototypes(words)


def solve_words(
    table: WordTable, labels: Sequence[str], classes: Sequence[str], prototypes: Vectors, strengths: Strengths
) -> WordMap:
    """The word map of base labels and of a classifier's classes, as far as the table knows their names."""
    names, known = class_vectors(table, classes)
    used = np.concatenate([np.ones(len(labels), np.bool_), known])
    weights = np.full(len(names), strengths.class_weight, np.float32)
    return fit_words(np.concatenate([table.vectors(labels), names]), prototypes[used], strengths.ridge, weights)


def load_model(
    model: StrPath = "default", *, words: StrPath | None = None, device: str = "auto", absent_words: str = ""
) -> Model:
    """A shipped model by name, or one of one's own by path; `words` is a file of other word vectors."""
    source, own = str(model), None if words is None or words == SHIPPED_WORDS else str(words)
    if source in SHIPPED:
        name, path = source, SHIPPED_FOLDER / f"{source}.safetensors"
    else:
        given = Path(source)
        ended = f"{given.name or given.resolve().name}.safetensors"
        places = [given, given.parent / ended, given / ended]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise InputError(f"there is no model {source!r}; {nearest(source, SHIPPED)}, or give the path of one")
        name, source, path = found.stem, str(found.resolve()), found
    if own is not None and (file := parse_source(own)[1]) is not None and not file.is_file():
        raise InputError(f"there is no file of word vectors {own!r}; check the path")  # not after all pictures
    header, arrays = read_arrays(path, KIND)
    if header.get("format") != _FORMAT:
        raise InputError(f"model {path} has format {header.get('format')}, this fewtag reads {_FORMAT}; make it anew")
    try:
        network = header["network"]
        # it lies beside the model, or among the shipped ones, which several models share
        beside = path.parent / Path(network["file"]).name
        graph = beside if beside.exists() else SHIPPED_FOLDER / beside.name
        floats = {key: array.astype(np.float32) for key, array in arrays.items()}
        calibration = Calibration(**{key: _tuples(value) for key, value in header["calibration"].items()})
        return Model(
            name,
            source,
            int(network["size"]),
            int(network["places"]),
            header,
            Network(graph, device, None, network["sha256"], {key: floats[key] for key in CONSTANTS if key in floats}),
            Space(floats["mean"], floats["basis"]),
            floats["base_prototypes"],
            WordMap(floats["word_mean"], floats["word_map"]),
            Strengths(**header["strengths"]),
            NameEvidence(**header["evidence"]),
            calibration,
            own,
            absent_words,
        )
    except InputError:
        raise  # a device that is none, say
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"model {path} cannot be read ({error!r}); name one that fewtag wrote") from error


def load_model_of(
    facts: Mapping[str, Any], path: StrPath, model: StrPath | None, *, words: StrPath | None, device: str
) -> Model:
    """The model that a bank names, or where that is now; refuses to look for it on another computer."""
    # to ask for it would tell that one who is here
    if not model and facts["source"].replace("\\", "/").startswith("//"):
        raise InputError(
            f"bank {path} names a model on another computer, {facts['source']!r}; name its file with `model`"
        )
    # a path that stands in a bank is never opened for words: who sends a bank could name any file
    absent = facts["words"] if facts["own_words"] and words is None else ""
    return load_model(model or facts["source"], words=words, device=device, absent_words=absent)


def _tuples(value: Any) -> Any:
    """What JSON has as lists, as a value that does not change."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def save_model(
    path: Path,
    *,
    network: dict[str, Any],
    constants: Mapping[str, NDArray[np.float32]],
    space: Space,
    base_prototypes: Vectors,
    word_map: WordMap,
    strengths: Strengths,
    evidence: NameEvidence,
    calibration: Calibration,
    words: str,
    base_words: Sequence[str],
    class_names: Sequence[str],
    **facts: Any,
) -> None:
    """Arrays in half precision under a JSON header; `network` has file, sha256, size, places and channels."""
    arrays: dict[str, NDArray[np.generic]] = {
        "mean": space.mean,
        "basis": space.basis,
        "base_prototypes": base_prototypes,
        "word_mean": word_map.mean,
        "word_map": word_map.matrix,
        **constants,
    }
    header = {
        "format": _FORMAT,
        "network": network,
        "words": words,
        "strengths": vars(strengths),
        "evidence": vars(evidence),
        "calibration": vars(calibration),
        "base_words": list(base_words),
        "class_names": list(class_names),
        **facts,
    }
    write_arrays(path, KIND, header, {key: array.astype(np.float16) for key, array in arrays.items()})
