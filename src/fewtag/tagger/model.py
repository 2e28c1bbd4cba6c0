"""The model: network, whitened space, words, strengths and calibration, which stay the same as labels come and go."""

import shlex
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

SHIPPED = ("default", "accurate", "accurate-336", "coco52")
SHIPPED_FOLDER = Path(str(files("fewtag"))) / "models"
KIND = "fewtag-model"
CONSTANTS = ("pool", "positions")
"""Arrays that are inputs of the network."""
_FORMAT = 3


@dataclass(frozen=True, eq=False)
class Model:
    """Maps pictures to places, and label names to word prototypes, in one space."""

    name: str
    source: str
    """A shipped model's name, or the full path of its file."""
    size: int
    """Side, in pixels, of the squares that the network takes."""
    places: int
    """The number of places of a feature map."""
    header: dict[str, Any]
    """The model file's header: network, words, strengths, base words, calibration, how it was fitted."""
    network: Network
    space: Space
    base_prototypes: Vectors
    """Prototypes of the base labels, followed by those of a classifier's classes: the word map is solved on them."""
    own_map: WordMap
    """The word map for the words that the model was fitted with."""
    strengths: Strengths
    evidence: NameEvidence
    calibration: Calibration
    words_source: str | None = None
    """A file of one's own word vectors, used in place of the shipped table."""
    absent_words: str = ""
    """The name of the words that a bank was made with, if their file was not given: no name can be looked up then."""

    def __getstate__(self) -> dict[str, Any]:
        # the shipped table is part of every installation, so a pickled copy need not carry it
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
        # for other words the map is solved anew, which is fast, since the prototypes are in the file
        return solve_words(
            self.words, self.header["base_words"], self.header["class_names"], self.base_prototypes, self.strengths
        )

    @cached_property
    def space_key(self) -> str:
        """A digest of all that determines a picture's places."""
        graph = str(self.header["network"]["sha256"])
        constants = (values.tobytes() for _, values in sorted(self.network.constants.items()))
        return digest(graph, str(self.size), self.space.mean.tobytes(), self.space.basis.tobytes(), *constants)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that determines what a bank's numbers mean."""
        return digest(
            self.space_key, repr(self.strengths), repr(self.evidence), self.words_name, self.base_prototypes.tobytes()
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What a bank records about the model that it was made with."""
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
        """The places of these pictures, by one pass of the network."""
        return self.network(pixels, self.space)

    def word_prototypes(self, words: Vectors) -> Vectors:
        return self.word_map.prototypes(words)


def solve_words(
    table: WordTable, labels: Sequence[str], classes: Sequence[str], prototypes: Vectors, strengths: Strengths
) -> WordMap:
    """The word map fitted to the base labels and to those of a classifier's classes whose names the table knows."""
    if lacking := [label for label in labels if label not in table]:
        raise InputError(
            f"words {table.name!r} lack {lacking[0]!r}, one of the {len(labels)} names by which the model's map from "
            f"words to pictures is solved, {len(lacking)} of which are missing; give a file that has them all"
        )
    names, known = class_vectors(table, classes)
    used = np.concatenate([np.ones(len(labels), np.bool_), known])
    weights = np.full(len(names), strengths.class_weight, np.float32)
    return fit_words(np.concatenate([table.vectors(labels), names]), prototypes[used], strengths.ridge, weights)


def load_model(
    model: StrPath = "default", *, words: StrPath | None = None, device: str = "auto", absent_words: str = ""
) -> Model:
    """Loads a shipped model by name, or one's own by path; `words` is a file of other word vectors."""
    source, own = str(model), None if words is None or words == SHIPPED_WORDS else str(words)
    if source in SHIPPED:
        name, path = source, SHIPPED_FOLDER / f"{source}.safetensors"
    else:
        given = Path(source)
        ended = f"{given.name or given.resolve().name}.safetensors"
        candidates = [given, given.parent / ended, given / ended]
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            raise InputError(f"there is no model {source!r}; {nearest(source, SHIPPED)}, or give the path of one")
        name, source, path = found.stem, str(found.resolve()), found
    if own is not None and (file := parse_source(own)[1]) is not None and not file.is_file():
        raise InputError(f"there is no file of word vectors {own!r}; check the path")  # now, not after all pictures
    header, arrays = read_arrays(path, KIND)
    if header.get("format") != _FORMAT:
        raise InputError(f"model {path} has format {header.get('format')}, this fewtag reads {_FORMAT}; make it anew")
    try:
        network = header["network"]
        # the graph lies beside the model, or with the shipped ones, several of which share it
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
        raise  # an unknown device, say
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"model {path} cannot be read ({error!r}); name one that fewtag wrote") from error


def load_model_of(
    facts: Mapping[str, Any], path: StrPath, model: StrPath | None, *, words: StrPath | None, device: str
) -> Model:
    """Loads the model that a bank names, or the given one; refuses a path on another computer that a bank names."""
    # merely asking for it would tell that computer who is here
    if not model and facts["source"].replace("\\", "/").startswith("//"):
        raise InputError(
            f"bank {path} names a model on another computer, {facts['source']!r}; name its file with `model`"
        )
    if not model and facts["source"] not in SHIPPED and not Path(facts["source"]).is_file():
        raise InputError(
            f"there is no model {facts['source']!r} any more, with which bank {path} was made; if it has moved: "
            f"{shlex.join(['fewtag', 'upgrade', str(path), '--model'])} FILE"
        )
    # a path of words that a bank names is never opened: whoever sends a bank could name any file
    absent = facts["words"] if facts["own_words"] and words is None else ""
    return load_model(model or facts["source"], words=words, device=device, absent_words=absent)


def _tuples(value: Any) -> Any:
    """A JSON value with its lists as tuples, so that it is immutable."""
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
    """Writes arrays in half precision with a JSON header; `network` has file, sha256, size, places and channels."""
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
