"""A bank: all that was learnt, in one value that never changes. What labels mean, examples, prototypes."""

import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fewtag.core.closed_form import attend, mix
from fewtag.errors import InputError, UnknownWordError, nearest

if TYPE_CHECKING:
    from fewtag.tagger.model import Model

Kind = Literal["name", "like", "vector", "none"]
KINDS: tuple[Kind, ...] = ("name", "like", "vector", "none")


@dataclass(frozen=True, eq=False)
class Definition:
    """What a label means before any picture of it."""

    kind: Kind
    words: tuple[str, ...] = ()
    """The names that were looked up."""
    vector: NDArray[np.float32] | None = None
    """Its word vector; none where pictures alone shall speak."""
    guide: NDArray[np.float32] | None = None
    """The prototype that this word suggests; kept, so that examples come and go without the table of words."""
    explicit: bool = False
    """Whether a person said so: it then outlives the label's examples."""
    threshold: float | None = None
    """The probability from which it is given, where a person's own pictures chose it."""

    def __str__(self) -> str:
        if self.kind == "like":
            return f"like {', '.join(self.words)}"
        return {"name": "its name", "vector": "a vector of its own", "none": "pictures only"}[self.kind]


@dataclass(frozen=True, eq=False)
class Example:
    """A picture's places in the model's space, quantised to a byte a number, and the labels it shows."""

    labels: frozenset[str]
    codes: NDArray[np.int8]
    """places × space"""
    scales: NDArray[np.float32]
    """places"""
    name: str = ""
    """The picture's file name, without its folder."""
    picture: bytes = b""
    """A small copy in WebP; empty where a person wants none kept."""

    @classmethod
    def of(cls, labels: frozenset[str], places: NDArray[np.float32], name: str = "", picture: bytes = b"") -> "Example":
        scales = np.maximum(np.abs(places).max(axis=1) / 127, np.finfo(np.float32).tiny)
        return cls(labels, np.round(places / scales[:, None]).astype(np.int8), scales, name, picture)

    @property
    def places(self) -> NDArray[np.float32]:
        return self.codes.astype(np.float32) * self.scales[:, None]


@dataclass(frozen=True, eq=False)
class Bank:
    """Definitions by label and examples by digest, both sorted, and what follows from them."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    examples: Mapping[str, Example] = field(default_factory=dict)
    prototypes: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Of each label that can be scored: one defined without words has none until its first example."""

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of each label's examples, sorted."""
        members: dict[str, list[str]] = {label: [] for label in self.definitions}
        for key, example in self.examples.items():
            for label in example.labels:
                members[label].append(key)
        return {label: tuple(keys) for label, keys in members.items()}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels that can be scored, sorted."""
        return tuple(self.prototypes)

    @cached_property
    def matrix(self) -> NDArray[np.float32]:
        """labels × space"""
        return np.stack(list(self.prototypes.values()))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.array([len(self.members[label]) for label in self.classes], dtype=np.int64)

    def find(self, label: object) -> str:
        """A label by its name; refuses one that is not known."""
        name = label_name(label)
        if name not in self.definitions:
            hint = nearest(name, self.definitions) if self.definitions else "none is known yet"
            raise InputError(f"there is no label {name!r}; {hint}")
        return name

    def learn(
        self, model: "Model", definitions: Mapping[str, Definition], examples: Mapping[str, Example], *, afresh: bool
    ) -> "Bank":
        """With these examples too; a picture known already gains the labels given now. Afresh: with these alone."""
        known: dict[str, Example] = {} if afresh else dict(self.examples)
        for key, example in examples.items():
            before = known.get(key)
            known[key] = example if before is None else replace(before, labels=before.labels | example.labels)
        kept = {label: each for label, each in self.definitions.items() if each.explicit or not afresh}
        return self._change(model, {**definitions, **kept}, known)

    def define(self, model: "Model", label: str, definition: Definition) -> "Bank":
        """Says anew what a label means; its threshold stays."""
        before = self.definitions.get(label)
        kept = definition if before is None else replace(definition, threshold=before.threshold)
        return self._change(model, {**self.definitions, label: kept}, self.examples)

    def forget(self, model: "Model", label: str, keys: Iterable[str] | None = None) -> "Bank":
        """Without this label, or without these examples of it; those that others say are missing stay missing."""
        definitions, examples = dict(self.definitions), dict(self.examples)
        if keys is None:
            definitions.pop(label, None)
        for key in self.members.get(label, ()) if keys is None else keys:
            example = examples.get(key)
            if example is not None and label in example.labels:
                if left := example.labels - {label}:
                    examples[key] = replace(example, labels=left)
                else:
                    del examples[key]
        return self._change(model, definitions, examples)

    def rename(self, model: "Model", old: str, new: str, definition: Definition) -> "Bank":
        """The examples of a label under another name; where that is a label already, the two become one."""
        definitions = dict(self.definitions)
        before = definitions.pop(old, None)
        if before is not None:
            kept = definition if before.kind == "name" else before
            definitions.setdefault(new, replace(kept, explicit=before.explicit, threshold=before.threshold))
        examples = {
            key: replace(each, labels=(each.labels - {old}) | {new}) if old in each.labels else each
            for key, each in self.examples.items()
        }
        return self._change(model, definitions, examples)

    def set_thresholds(self, model: "Model", thresholds: Mapping[str, float | None]) -> "Bank":
        definitions = {
            label: replace(each, threshold=thresholds[label]) if label in thresholds else each
            for label, each in self.definitions.items()
        }
        return self._change(model, definitions, self.examples)

    def _change(self, model: "Model", definitions: Mapping[str, Definition], examples: Mapping[str, Example]) -> "Bank":
        """Another bank with these; labels that nobody defined go with their last example."""
        shown = {label for example in examples.values() for label in example.labels}
        kept = {label: each for label, each in sorted(definitions.items()) if each.explicit or label in shown}
        # sorted, so that the order of learning leaves no trace, not even in the last bit of a sum
        changed = Bank(kept, dict(sorted(examples.items())))
        prototypes = {}
        for label, definition in kept.items():
            keys = changed.members[label]
            before = self.definitions.get(label)
            same = before is not None and definition.vector is before.vector and keys == self.members[label]
            if same and label in self.prototypes:
                prototypes[label] = self.prototypes[label]
            elif keys or definition.vector is not None:
                prototypes[label] = prototype(model, definition, [examples[key] for key in keys])
        return Bank(changed.definitions, changed.examples, prototypes)


def prototype(model: "Model", definition: Definition, examples: Sequence[Example]) -> NDArray[np.float32]:
    """The sum of what is attended to in each example, with the label's word mixed in."""
    # guided by nothing, all places count alike; mixed with nothing, pictures alone speak
    guide = np.zeros((1, model.space.size), np.float32) if definition.guide is None else definition.guide[None]
    if not examples:
        return guide[0]
    # one at a time, so that a thousand examples of a label need no more memory than one
    visual = np.zeros((1, model.space.size), np.float32)
    for example in examples:
        visual += attend(example.places[None], guide, model.strengths.support_focus)[0]
    return mix(visual, guide, np.array([len(examples)]), model.strengths)[0]


def by_name(name: str, model: "Model", *, explicit: bool = False) -> Definition:
    """Its own word; an unknown one is refused with the ways out."""
    word_map, vector = model.word_map, model.words.vector(name)
    return Definition("name", (name,), vector, word_map.prototypes(vector[None])[0], explicit)


def by_name_or_none(name: str, model: "Model") -> Definition:
    """By its name; a name that says nothing is learnt from pictures alone, with a warning."""
    try:
        return by_name(name, model)
    except UnknownWordError as error:
        hint = f" (nearest known words: {', '.join(error.nearest)})" if error.nearest else ""
        warnings.warn(
            f"label {name!r} is no known word{hint}: it is learnt from its pictures alone; "
            "define it like words that are known, if there are some",
            stacklevel=5,
        )
        return Definition("none")


def define(
    name: str,
    model: "Model",
    labels: Mapping[str, Definition],
    *,
    like: Sequence[str] | str | None,
    vector: object | None,
    words: bool,
) -> Definition:
    """What a person says it means; `labels` are those known already, whose meaning `like` may use."""
    if (like is not None) + (vector is not None) + (not words) > 1:
        raise InputError(f"label {name!r} is defined in two ways; give one of like, vector and words=False")
    if not words:
        return Definition("none", explicit=True)
    if vector is not None:
        own = _own_vector(name, vector, model)
        return Definition("vector", (), own, model.word_prototypes(own[None])[0], explicit=True)
    if like is None:
        return by_name(name, model, explicit=True)
    alike = tuple(
        label_name(word) for word in (like.split(",") if isinstance(like, str) else like) if str(word).strip()
    )
    if not alike:
        raise InputError(f"label {name!r} is like nothing; name at least one known word")
    mean = np.stack([_meaning(word, name, model, labels) for word in alike]).mean(axis=0)
    return Definition("like", alike, mean, model.word_prototypes(mean[None])[0], explicit=True)


def _meaning(word: str, name: str, model: "Model", labels: Mapping[str, Definition]) -> NDArray[np.float32]:
    """Of another label what it means; else the word's own vector."""
    label = labels.get(word) if word != name else None
    return label.vector if label is not None and label.vector is not None else model.words.vector(word)


def _own_vector(name: str, vector: object, model: "Model") -> NDArray[np.float32]:
    wanted = len(model.word_map.mean)
    has = f"words {model.words_name!r} have {wanted}"
    try:
        numbers = np.array(vector, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the vector of label {name!r} is not made of numbers; {has}") from error
    if numbers.shape != (wanted,):
        shape = " × ".join(str(side) for side in numbers.shape) or "single"
        raise InputError(f"the vector of label {name!r} has {shape} numbers, {has}; give as many")
    if not np.isfinite(numbers).all():
        raise InputError(f"the vector of label {name!r} holds numbers that are not finite; mend it")
    return numbers


def label_sets(labels: object) -> list[frozenset[str]]:
    """The names given with each picture; a bare string is one name."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InputError(f"labels are a list with the names of each picture, found {labels!r}; use [[{labels!r}]]")
    return [_shown(given, f"image number {number}") for number, given in enumerate(labels, 1)]


def _shown(given: object, image: str) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable):
        raise InputError(f"the labels of {image} are {given!r}; give a list of names")
    shown = frozenset(label_name(name, f" of {image}") for name in names)
    if not shown:
        raise InputError(f"{image} has no label; name at least one thing it shows, or leave it out")
    return shown


def label_name(name: object, where: str = "") -> str:
    """A name without stray blanks; refuses what is none."""
    if not isinstance(name, str):
        raise InputError(f"a label{where} is {name!r}, a {type(name).__name__}; labels are names")
    # one spelling of each accent too: folders on a Mac are named with two characters for one
    cleaned = " ".join(unicodedata.normalize("NFC", name).split())
    if not cleaned:
        raise InputError(f"a label{where} is empty; give it a name")
    return cleaned
