"""The bank on disk: one safetensors file with a JSON header. Reading it runs no code."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fewtag import __version__
from fewtag.errors import InputError
from fewtag.files import replacing
from fewtag.tagger.bank import Bank, Definition, Example
from fewtag.tagger.model import Model

FORMAT = 1
_KEY = "fewtag-bank"


def write_bank(path: Path, bank: Bank, model: dict[str, Any], thresholds: dict[str, float]) -> None:
    """All of it or nothing; `model` says what the bank is of, `thresholds` are for whoever reads the header."""
    column = {label: number for number, label in enumerate(bank.definitions)}
    labels = [
        {
            "name": label,
            "kind": definition.kind,
            "words": definition.words,
            "told": definition.told,
            "examples": len(bank.members[label]),
            "threshold": thresholds.get(label),
        }
        for label, definition in bank.definitions.items()
    ]
    examples = [
        {"digest": digest, "labels": sorted(column[label] for label in example.labels)}
        for digest, example in bank.examples.items()
    ]
    header = {"format": FORMAT, "fewtag": __version__, "model": model, "labels": labels, "examples": examples}
    with replacing(path) as part:
        try:
            save_file(_tensors(bank), part, metadata={_KEY: json.dumps(header)})
        except SafetensorError as error:  # a full disk, too
            raise InputError(f"cannot write {path}: {error}; name another folder or free some room") from error


def _tensors(bank: Bank) -> dict[str, Tensor]:
    """A row for each word, prototype and example; kinds that there are none of are left out."""
    rows = {
        "words": [found.vector for found in bank.definitions.values() if found.vector is not None],
        "prototypes": list(bank.prototypes.values()),
        "codes": [example.codes for example in bank.examples.values()],
        "scales": [example.scales for example in bank.examples.values()],
    }
    return {name: torch.stack(found) for name, found in rows.items() if found}


def read_header(path: Path) -> dict[str, Any]:
    """What the file says of itself, before anything else is loaded."""
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})[_KEY])
            version = int(header["format"])
            _ = header["model"]["source"], header["model"]["fingerprint"], header["labels"], header["examples"]
    except FileNotFoundError as error:
        raise InputError(f"there is no bank {path}; check the path, or make one with `learn`") from error
    except KeyError as error:
        raise InputError(
            f"{path} is no bank: it is another kind of safetensors file; name one that fewtag wrote"
        ) from error
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise _damaged(path) from error
    if version > FORMAT:
        raise InputError(f"bank {path} has format {version}, this fewtag reads up to {FORMAT}; update fewtag")
    return header


def read_bank(path: Path, header: dict[str, Any], dimensions: int, space: int) -> Bank:
    """The labels at once; the examples stay on disk, mapped into memory, until one is needed."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 — it is no dictionary
        words = iter(stored.get("words", torch.empty(0, dimensions)).unbind())
        definitions = {
            label["name"]: Definition(
                label["kind"],
                tuple(label["words"]),
                None if label["kind"] == "none" else next(words),
                bool(label["told"]),
            )
            for label in header["labels"]
        }
        names = list(definitions)
        scored = [label["name"] for label in header["labels"] if label["examples"] or label["kind"] != "none"]
        prototypes = stored.get("prototypes", torch.empty(0, space))
        bank = Bank(definitions, _examples(stored, header, names), dict(zip(scored, prototypes.unbind(), strict=True)))
        sound = (
            prototypes.shape[1] == space
            and stored.get("words", torch.empty(0, dimensions)).shape[1] == dimensions
            and stored.get("codes", torch.empty(0, 0, space)).shape[2] == space
            and [len(bank.members[name]) for name in names] == [label["examples"] for label in header["labels"]]
        )
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, StopIteration) as error:
        raise _damaged(path) from error
    if not sound:
        raise _damaged(path)
    return bank


def _examples(stored: dict[str, Tensor], header: dict[str, Any], names: list[str]) -> dict[str, Example]:
    if not header["examples"]:
        return {}
    codes: Int8[Tensor, "examples places space"] = stored["codes"]
    return {
        example["digest"]: Example(frozenset(names[number] for number in example["labels"]), *rows)
        for example, *rows in zip(header["examples"], codes.unbind(), stored["scales"].unbind(), strict=True)
    }


def fingerprint(model: Model) -> str:
    """A digest of all that decides what a bank's numbers mean.

    Not of the word map: with other words it is solved anew, and its last bits are not the same on every machine.
    """
    header = model.header
    facts = [header.get("strengths"), header.get("base_words"), model.words.name, model.words.dimensions]
    digest = hashlib.sha256(json.dumps([model.backbone.fingerprint, *facts], sort_keys=True).encode())
    for key, tensor in sorted(model.method.state_dict().items()):
        if not key.startswith("word_"):
            digest.update(
                f"{key} {tuple(tensor.shape)}".encode() + tensor.detach().cpu().contiguous().numpy().tobytes()
            )
    return digest.hexdigest()


def _damaged(path: Path) -> InputError:
    return InputError(f"bank {path} cannot be read: it is no bank, or truncated; name one that fewtag wrote")
