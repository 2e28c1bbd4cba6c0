"""The bank file: safetensors with a JSON header, verified by checksums. Reading it runs no code.

It holds the labels' names, and each example's features, file name and, unless switched off, a small copy of the
picture. Anyone who has the bank can look at those copies: share it like the pictures themselves.
"""

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

import fewtag
from fewtag import files
from fewtag.core.posterior import Fitted
from fewtag.errors import InputError, plural
from fewtag.tagger.bank import Annotation, Bank, CachedFit, Definition, Example, Kind, Quantised

if TYPE_CHECKING:
    from fewtag.tagger.model import Model

FORMAT = 3
"""Format 2 had neither 'no's nor classifiers: such a bank loads, and its labels are fitted anew."""
KIND = "fewtag-bank"
_MODEL = {"source": str, "fingerprint": str, "name": str, "words": str, "places": int, "space": int, "own_words": int}
_LABEL = {"name": str, "words": list, "explicit": bool, "examples": int, "absent": int}
_EXAMPLE = {"digest": str, "name": str, "complete": bool}


def refuse_derived(path: Path) -> None:
    """Refuses to write to the bank of a studio's project: it is derived from the answers, and rewritten at the next."""
    there = path.resolve() if path.is_symlink() else path  # a link is written through
    bank = there / "bank.fewtag" if there.is_dir() else there
    if bank.name == "bank.fewtag" and (bank.parent / "studio.sqlite").exists():
        raise InputError(
            f"{bank} is made of the answers in a studio's project, which would write over it; teach it there "
            f"(fewtag studio {bank.parent}), or change a copy of the bank"
        )


def refuse_examples(path: Path) -> None:
    """Refuses to replace a bank that has examples by a copy without them, since they would be lost."""
    try:
        header = read_header(path)
    except InputError:  # there is none
        return
    stand_ins = {_stand_in(each, label["name"]) for label in header["labels"] for each in range(label["examples"])}
    if lost := sum(example["digest"] not in stand_ins for example in header["examples"]):
        raise InputError(
            f"a copy without examples in place of {path} would drop {plural(lost, 'example')}; name another file, or "
            "save with examples=True"
        )


def _stand_in(number: int, label: str) -> str:
    """The digest of the stand-in for one of a label's examples, in a copy without examples."""
    return hashlib.sha256(f"{number} {label}".encode()).hexdigest()


def write_bank(path: Path, bank: Bank, model: "Model", thresholds: Mapping[str, float]) -> None:
    """Writes the whole file or nothing; `thresholds` are only for readers of the header."""
    column = {label: number for number, label in enumerate(bank.definitions)}
    labels = [
        {
            "name": label,
            "kind": definition.kind,
            "words": definition.words,
            "explicit": definition.explicit,
            "examples": len(bank.members[label]),
            "absent": len(bank.refused[label]),
            "threshold": thresholds.get(label),
            "own_threshold": definition.threshold,
            "prior": definition.prior,
            "trust": None if definition.vector is None else bank.classifier(model, label).trust,
            "thing": definition.thing,
        }
        for label, definition in bank.definitions.items()
    ]
    examples = [
        {
            "digest": key,
            "labels": sorted(column[label] for label in example.labels),
            "absent": sorted(column[label] for label in example.absent),
            "complete": example.complete,
            "name": example.name,
            "bytes": len(example.picture),
        }
        for key, example in bank.examples.items()
    ]
    header = {
        "format": FORMAT,
        "fewtag": fewtag.__version__,
        "model": model.facts,
        "labels": labels,
        "examples": examples,
    }
    files.write_arrays(path, KIND, header, _arrays(bank, model))


def without_examples(bank: Bank, model: "Model") -> Bank:
    """A copy with the same classifiers but no pictures, to be shared.

    Each label's examples are replaced by as many stand-ins, with the pictures' mean at every place, which calibration
    counts and later examples are added to. File names, thumbnails and 'no's are dropped.
    """
    examples = {}
    for label, keys in bank.members.items():
        if keys:
            mean = np.mean([bank.examples[key].features.pooled.mean for key in keys], axis=0, dtype=np.float32)
            stand_in = Example.of(Annotation(frozenset([label])), np.tile(mean, (model.places, 1)))
            for number in range(len(keys)):
                examples[_stand_in(number, label)] = stand_in
    fits = {label: CachedFit(bank.classifier(model, label)) for label in bank.classes}
    # a label known only by a 'no' would be dropped with it
    kept = {
        label: each if bank.members[label] else replace(each, explicit=True) for label, each in bank.definitions.items()
    }
    return Bank(kept, dict(sorted(examples.items())), fits)


def _arrays(bank: Bank, model: "Model") -> dict[str, NDArray[Any]]:
    """One row per word, classifier and example; empty arrays are omitted."""
    fitted = [bank.classifier(model, label) for label in bank.classes]
    rows: dict[str, list[NDArray[Any]]] = {
        "words": [each.vector for each in bank.definitions.values() if each.vector is not None],
        "guides": [each.prototype for each in bank.definitions.values() if each.prototype is not None],
        "prototypes": [each.prototype for each in fitted],
        "whole": [each.mean_weights for each in fitted],
        "focused": [each.attended_weights for each in fitted],
        "bias": [np.array([each.bias, each.trust, each.noes, each.coherence], np.float32) for each in fitted],
        "codes": [example.features.codes for example in bank.examples.values()],
        "scales": [example.features.scales for example in bank.examples.values()],
    }
    arrays: dict[str, NDArray[Any]] = {name: np.stack(values) for name, values in rows.items() if values}
    pictures = b"".join(example.picture for example in bank.examples.values())
    return arrays | ({"pictures": np.frombuffer(pictures, np.uint8)} if pictures else {})


def read_header(path: Path) -> dict[str, Any]:
    """The file's header, without reading its arrays."""
    return _read(path, header_alone=True)[0]


def read_bank(path: Path) -> tuple[dict[str, Any], Bank]:
    """The header and the bank; every array is verified against its checksum."""
    header, arrays = _read(path)
    try:
        return header, _bank(header, arrays)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise files.damaged(path, KIND) from error


def _read(path: Path, *, header_alone: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if path.is_dir():
        inside = path / "bank.fewtag"  # of a studio's project
        said = f"name its bank, {inside}" if inside.is_file() else "name the file that fewtag wrote"
        raise InputError(f"{path} is a folder, not a bank; {said}")
    if not path.exists():
        made_by = shlex.join(["fewtag", "learn", str(path)])
        raise InputError(f"there is no bank {path}; check the path, or make one with: {made_by} EXAMPLES")
    header, arrays = files.read_arrays(path, KIND, header_alone=header_alone)
    _check_header(path, header)
    return header, arrays


def _check_header(path: Path, header: dict[str, Any]) -> None:
    version = header.get("format")
    if version == 1:
        raise InputError(
            f"bank {path} was written by fewtag 0.1, whose banks keep no pictures to move to this version's words and "
            "network with; learn its examples again into a new bank"
        )
    if not isinstance(version, int) or version < 1 or "arrays" not in header:
        raise files.damaged(path, KIND)
    if version > FORMAT:
        raise InputError(f"bank {path} has format {version}, this fewtag reads up to {FORMAT}; update fewtag")
    try:
        sound = _has(header["model"], _MODEL)
        sound &= all(map(_is_label, header["labels"])) and all(map(_is_example, header["examples"]))
    except (LookupError, TypeError, AttributeError) as error:
        raise files.damaged(path, KIND) from error
    if not sound:
        raise files.damaged(path, KIND)


def _has(facts: Mapping[str, Any], kinds: Mapping[str, type]) -> bool:
    return all(isinstance(facts[key], kind) for key, kind in kinds.items())


def _is_label(label: dict[str, Any]) -> bool:
    chances = (label["threshold"], label["own_threshold"], label.get("trust"), label.get("thing"))
    prior = label.get("prior")
    return (
        _has({"absent": 0} | label, _LABEL)
        and bool(label["name"].strip())
        and label["kind"] in get_args(Kind)
        and all(isinstance(word, str) for word in label["words"])
        and all(chance is None or (isinstance(chance, int | float) and 0 <= chance <= 1) for chance in chances)
        and (prior is None or (isinstance(prior, float) and 0 < prior < 1))
    )


def _is_example(example: dict[str, Any]) -> bool:
    numbers = (example["bytes"], *example["labels"], *example.get("absent", ()))
    known = {"complete": False} | example
    return _has(known, _EXAMPLE) and all(isinstance(each, int) and each >= 0 for each in numbers)


def _bank(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Bank:
    worded = [label["name"] for label in header["labels"] if label["kind"] != "none"]
    words, guides = _typed(arrays, "words", np.float32, 2), _typed(arrays, "guides", np.float32, 2)
    vectors = dict(zip(worded, words, strict=True))
    suggested = dict(zip(worded, guides, strict=True))
    definitions = {
        label["name"]: Definition(
            label["kind"],
            tuple(label["words"]),
            vectors.get(label["name"]),
            suggested.get(label["name"]),
            label["explicit"],
            label["own_threshold"],
            label.get("prior"),
            float(label.get("thing", label["kind"] != "none")),
        )
        for label in header["labels"]
    }
    places, space = header["model"]["places"], header["model"]["space"]
    fitted = _fitted(arrays, space) if header["format"] == FORMAT else None
    bank = Bank(definitions, _examples(header, arrays, list(definitions)))
    for label in header["labels"]:
        counted = len(bank.members[label["name"]]), len(bank.refused[label["name"]])
        if counted != (label["examples"], label.get("absent", 0)):
            raise ValueError("labels count other examples than there are")
    if fitted is not None:
        bank.fits.update({label: CachedFit(each) for label, each in zip(bank.classes, fitted, strict=True)})
    if any(example.features.codes.shape != (places, space) for example in bank.examples.values()) or (
        len(guides) and guides.shape[1] != space
    ):
        raise ValueError("the numbers are of another space")
    return bank


def _fitted(arrays: dict[str, NDArray[Any]], space: int) -> list[Fitted]:
    vectors = [_typed(arrays, name, np.float32, 2) for name in ("prototypes", "whole", "focused")]
    bias = _typed(arrays, "bias", np.float32, 2)
    if any(len(each) and each.shape[1] != space for each in vectors) or (len(bias) and bias.shape[1] not in {3, 4}):
        raise ValueError("classifiers are of another space")
    return [Fitted(*rows, *map(float, numbers)) for *rows, numbers in zip(*vectors, bias, strict=True)]


def _examples(header: dict[str, Any], arrays: dict[str, NDArray[Any]], names: list[str]) -> dict[str, Example]:
    codes, scales = _typed(arrays, "codes", np.int8, 3), _typed(arrays, "scales", np.float32, 2)
    pictures = arrays["pictures"].tobytes() if "pictures" in arrays else b""
    examples, first = {}, 0
    for facts, places, scale in zip(header["examples"], codes, scales, strict=True):
        after = first + int(facts["bytes"])
        shown, absent = (frozenset(names[number] for number in facts.get(side, ())) for side in ("labels", "absent"))
        if shown & absent:
            raise ValueError("an example both shows a label and does not")
        said = Annotation(shown, absent, facts.get("complete", False))
        examples[facts["digest"]] = Example(said, Quantised(places, scale), str(facts["name"]), pictures[first:after])
        first = after
    if first != len(pictures):
        raise ValueError("pictures that belong to no example")
    return examples


def _typed(arrays: dict[str, NDArray[Any]], name: str, dtype: type[np.generic], axes: int) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        return np.empty((0,) * axes, dtype)
    if array.dtype != dtype or array.ndim != axes:
        raise ValueError(f"{name} are {array.dtype} of {array.ndim} axes")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} are not all finite")
    return array
