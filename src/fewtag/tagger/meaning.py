"""What a label means before any picture of it, and the ways out where its name is no known word (DESIGN.md §5)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from fewtag.errors import InputError
from fewtag.tagger.bank import Definition
from fewtag.tagger.inputs import label_name
from fewtag.words.protocol import WordTable


def by_name(name: str, vectors: WordTable, *, told: bool = False) -> Definition:
    """Its own word; an unknown one is refused with the ways out."""
    return Definition("name", (name,), torch.from_numpy(vectors.vector(name)), told)


def define(
    name: str,
    vectors: WordTable,
    labels: Mapping[str, Definition],
    *,
    like: Sequence[str] | None,
    vector: object | None,
    words: bool,
) -> Definition:
    """What a person says it means; `labels` are those known already, whose meaning `like` may use."""
    if (like is not None) + (vector is not None) + (not words) > 1:
        raise InputError(f"label {name!r} is defined in two ways; give one of like, vector and words=False")
    if not words:
        return Definition("none", told=True)
    if vector is not None:
        return Definition("vector", vector=_own_vector(name, vector, vectors), told=True)
    if like is None:
        return by_name(name, vectors, told=True)
    alike = tuple(label_name(word) for word in ([like] if isinstance(like, str) else like))
    if not alike:
        raise InputError(f"label {name!r} is like nothing; name at least one known word")
    found = [_meaning(word, name, vectors, labels) for word in alike]
    return Definition("like", alike, torch.stack(found).mean(dim=0), told=True)


def _meaning(
    word: str, name: str, vectors: WordTable, labels: Mapping[str, Definition]
) -> Float32[Tensor, "dimensions"]:
    """Of another label what it means; else the word's own vector."""
    label = labels.get(word) if word != name else None
    if label is not None and label.vector is not None:
        return label.vector
    return torch.from_numpy(vectors.vector(word))


def _own_vector(name: str, vector: object, vectors: WordTable) -> Float32[Tensor, "dimensions"]:
    wanted = f"words {vectors.name!r} have {vectors.dimensions}"
    try:
        found = np.array(vector, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the vector of label {name!r} is not made of numbers; {wanted}") from error
    if found.shape != (vectors.dimensions,):
        shape = " × ".join(str(side) for side in found.shape) or "single"
        raise InputError(f"the vector of label {name!r} has {shape} numbers, {wanted}; give as many")
    if not np.isfinite(found).all():
        raise InputError(f"the vector of label {name!r} holds numbers that are not finite; mend it")
    return torch.from_numpy(found)
