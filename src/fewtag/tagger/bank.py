"""A bank: all that was learnt, in one value that never changes. What labels mean, examples, each label's classifier."""

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Fitted, Pictures, fit_label
from fewtag.errors import InputError, MissingError, TakenError, UnknownWordError, nearest, plural, warn
from fewtag.words.pieces import english, names_a_thing

if TYPE_CHECKING:
    from fewtag.tagger.model import Model

Kind = Literal["name", "like", "vector", "none"]
Like = Sequence[str] | str | None
"""Names of what is alike, or these with commas between."""
ANSWERS = 400
"""Of one kind, yes or no, that a label's fit looks at: it stays in milliseconds, and more change nothing much."""
THING, OTHER = 0.93, 0.05
"""The probability, before any picture, that a name means what its pictures show: a word for a thing, another one."""
FOREIGN = 0.5
"""How far a word of another language is taken for a thing: it may be a dog's name as well ("Luna")."""
COMPLETE, UNNAMED = 256, 64
"""Pictures beside these that its fit looks at: complete ones that do not name the label, and others, as weak 'no's."""
COMPARED = 64
"""Of these, as many as a name is judged by: more change nothing much."""
USUAL = 2
"""Pictures as coherent as the model's, beside its own, that a label's calibration counts (by validation labels)."""


@dataclass(frozen=True, eq=False)
class Definition:
    """What a label means before any picture of it."""

    kind: Kind
    words: tuple[str, ...] = ()
    """The names that were looked up; of a name of another language, itself and what it means in English."""
    vector: NDArray[np.float32] | None = None
    """Its word vector; none where pictures alone shall speak."""
    guide: NDArray[np.float32] | None = None
    """The prototype that this word suggests; kept, so that examples come and go without the table of words."""
    explicit: bool = False
    """Whether a person said so: it then outlives the label's examples."""
    threshold: float | None = None
    """The probability from which it is given, where a person's own pictures chose it."""
    prior: float | None = None
    """The share of pictures that show it, where a person said so or `check` counted them."""
    thing: float = 0.0
    """How likely its word is one for a thing that can be seen (`names_a_thing`), and so trusted from the start; one
    where a person said what it means."""

    @property
    def by_name(self) -> bool:
        """Whether it means what its name says, be that nothing: then another name is looked up."""
        return self.kind == "name" or (self.kind == "none" and not self.explicit)

    def __str__(self) -> str:
        if self.kind == "like":
            return f"like {', '.join(self.words)}"
        if self.kind == "name" and len(self.words) > 1:
            return f"its name ({self.words[-1]})"
        return {"name": "its name", "vector": "a vector of its own", "none": "pictures only"}[self.kind]


class Told(NamedTuple):
    """What a person says of a picture."""

    labels: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    complete: bool = False
    """Whether it shows nothing but that, labels of the future included."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.absent or self.complete)


@dataclass(frozen=True, eq=False)
class Quantised:
    """A picture's places in the model's space, quantised to a byte a number."""

    codes: NDArray[np.int8]
    """places × space"""
    scales: NDArray[np.float32]
    """places"""

    @classmethod
    def of(cls, places: NDArray[np.float32]) -> "Quantised":
        scales = np.maximum(np.abs(places).max(axis=1) / 127, np.finfo(np.float32).tiny)
        return cls(np.round(places / scales[:, None]).astype(np.int8), scales)

    @property
    def places(self) -> NDArray[np.float32]:
        return self.codes.astype(np.float32) * self.scales[:, None]

    @cached_property
    def seen(self) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """The places' lengths, the picture as a whole, a unit vector, and its coherence.

        They are kept, since every label's fit asks.
        """
        alone = Pictures.of(self.places[None])
        return alone.lengths[0], alone.whole[0], float(alone.coherence()[0])


@dataclass(frozen=True, eq=False)
class Example:
    """A picture and what is said of it."""

    said: Told
    features: Quantised
    name: str = ""
    """The picture's file name, without its folder."""
    picture: bytes = b""
    """A small copy in WebP; empty where a person wants none kept."""

    @classmethod
    def of(cls, said: Told, places: NDArray[np.float32], name: str = "", picture: bytes = b"") -> "Example":
        return cls(said, Quantised.of(places), name, picture)

    @property
    def places(self) -> NDArray[np.float32]:
        return self.features.places

    @property
    def seen(self) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        return self.features.seen

    def told(self, more: Told) -> "Example":
        """The example with more said of it; of one label the latest word counts."""
        shown, absent, complete = self.said
        shown, absent = (shown - more.absent) | more.labels, (absent - more.labels) | more.absent
        return replace(self, said=Told(shown, absent, complete or more.complete))


class FitSet(NamedTuple):
    """The digests of the examples that a label's fit looks at, each kind sorted."""

    yes: tuple[str, ...]
    no: tuple[str, ...]
    """Those that someone said do not show it,"""
    complete: tuple[str, ...]
    """complete ones that do not name it,"""
    unnamed: tuple[str, ...]
    """and others that do not."""


class CachedFit(NamedTuple):
    """A classifier, and what it was fitted to; that is left out where it is this very bank."""

    classifier: Fitted
    guide: NDArray[np.float32] | None = None
    fit_set: FitSet | None = None


@dataclass(frozen=True, eq=False)
class Bank:
    """Definitions by label and examples by digest, both sorted, and what follows from them.

    A label's classifier is a function of its definition and of some of the examples; it is fitted when it is first
    asked for, and taken over from the bank before where neither changed.
    """

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    examples: Mapping[str, Example] = field(default_factory=dict)
    fits: dict[str, CachedFit] = field(default_factory=dict)
    """Classifiers that a file held, or that an earlier bank was asked for."""
    _checked: set[str] = field(default_factory=set)
    """Labels whose classifier is known to be this bank's."""
    leave_out: ClassVar[bool] = False
    """Whether a fit tells what it would be without each example."""

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of the examples that show each label, sorted."""
        return self._by_label("labels")

    @cached_property
    def refused(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of the examples of which someone said that they do not show the label, sorted."""
        return self._by_label("absent")

    def _by_label(self, side: Literal["labels", "absent"]) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {label: [] for label in self.definitions}
        for key, example in self.examples.items():
            for label in getattr(example.said, side):
                found[label].append(key)
        return {label: tuple(keys) for label, keys in found.items()}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels that can be scored, sorted: one defined without words cannot until its first example."""
        known = self.definitions.items()
        return tuple(label for label, each in known if each.vector is not None or self.members[label])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Examples of each of the classes."""
        return np.array([len(self.members[label]) for label in self.classes], dtype=np.int64)

    def classifier(self, model: "Model", label: str) -> Fitted:
        """A label's classifier, fitted if need be."""
        fit, guide = self.fits.get(label), self.definitions[label].guide
        if fit is None or (fit.fit_set is not None and label not in self._checked):
            fit_set = self.fit_set(label)
            if fit is None or fit.guide is not guide or fit.fit_set != fit_set:
                fit = self.fits[label] = CachedFit(self._fit(model, label, fit_set), guide, fit_set)
            self._checked.add(label)
        return fit.classifier

    def _fit(self, model: "Model", label: str, fit_set: FitSet) -> Fitted:
        definition = self.definitions[label]
        chosen = [self.examples[key] for keys in fit_set for key in keys]
        weights = np.ones(len(chosen), np.float32)
        weights[len(chosen) - len(fit_set.unnamed) :] = model.strengths.unnamed
        shown = np.arange(len(chosen)) < len(fit_set.yes)
        space = model.space.basis.shape[1]
        places = np.empty((len(chosen), model.places, space), np.float32)
        for row, example in zip(places, chosen, strict=True):
            row[:] = example.places
        lengths = np.array([each.seen[0] for each in chosen], np.float32).reshape(places.shape[:2])
        whole = np.array([each.seen[1] for each in chosen], np.float32).reshape(len(chosen), space)
        evidence = replace(model.evidence, prior=OTHER + definition.thing * (THING - OTHER))
        pictures, meant = Pictures(places, lengths, whole), definition.guide
        # not by those that someone was asked about, which look like the label more often than others do
        compared = np.zeros(len(chosen), np.bool_)
        compared[len(fit_set.yes) + len(fit_set.no) :][:COMPARED] = True
        fitted = fit_label(
            pictures, shown, weights, meant, model.strengths, evidence, compared, leave_out=self.leave_out
        )
        # what stands in for pictures is the same at every place, and tells nothing of them
        told = [each.seen[2] for each in chosen if each.seen[2] < 0.999]
        coherence = (sum(told) + USUAL * model.calibration.coherence) / (len(told) + USUAL)
        return fitted._replace(coherence=float(np.float32(coherence)))  # as a bank keeps it

    def fit_set(self, label: str) -> FitSet:
        """Which examples speak for and against a label.

        Where there are too many, their digests draw lots, another draw for each label: neither the order of learning
        nor what else is in the bank decides who stays, and a new example seldom changes another label.
        """
        yes, no = (
            np.array([self._rows[key] for key in keys], np.int64) for keys in (self.members[label], self.refused[label])
        )
        silent = np.ones(len(self._keys), np.bool_)
        silent[yes] = silent[no] = False
        complete = self._drawn(label, np.flatnonzero(silent & self._complete), COMPLETE)
        unnamed = self._drawn(label, np.flatnonzero(silent & ~self._complete), UNNAMED)
        rows = self._drawn(label, yes, ANSWERS), self._drawn(label, no, ANSWERS), complete, unnamed
        return FitSet(*(tuple(self._keys[row] for row in some) for some in rows))

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self.examples)

    @cached_property
    def _rows(self) -> Mapping[str, int]:
        return {key: row for row, key in enumerate(self._keys)}

    @cached_property
    def _complete(self) -> NDArray[np.bool_]:
        return np.array([each.said.complete for each in self.examples.values()], np.bool_)

    @cached_property
    def _lots(self) -> NDArray[np.uint64]:
        return np.array([int(key[:16], 16) for key in self._keys], np.uint64)

    def _drawn(self, label: str, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        if len(rows) <= most:
            return rows
        lot = np.frombuffer(hashlib.sha256(label.encode()).digest()[:8], "<u8")
        return np.sort(rows[np.argpartition(self._lots[rows] ^ lot, most)[:most]])

    def speaking_of(self, label: str) -> tuple[str, ...]:
        """The digests of the examples that show a label, and then of those that do not."""
        silent = (key for key, each in self.examples.items() if each.said.complete and label not in each.said.labels)
        return tuple(dict.fromkeys((*self.members[label], *self.refused[label], *silent)))

    def called(self, label: str, example: str | int) -> list[str]:
        """Which of these a person means by a file's name, or by the number of one that shows the label, from 1 on."""
        keys, every = self.members[label], self.speaking_of(label)
        names = [self.examples[key].name for key in every]
        if not isinstance(example, str) or (example.isdecimal() and example not in names):
            if not 1 <= int(example) <= len(keys):
                raise InputError(f"label {label!r} has examples 1 to {len(keys)}, there is no number {example}")
            return [keys[int(example) - 1]]
        if example not in names:
            raise InputError(f"no example of label {label!r} is called {example!r}; they are {', '.join(names)}")
        return [key for key, name in zip(every, names, strict=True) if name == example]

    def find(self, label: object) -> str:
        """A label by its name; refuses one that is not known."""
        name = label_name(label)
        if name not in self.definitions:
            raise MissingError(f"there is no label {name!r}; {nearest(name, self.definitions)}")
        return name

    def definitions_to_keep(self, afresh: bool) -> dict[str, Definition]:
        """What is known of labels whatever is learnt now: afresh, only what a person said."""
        return {label: each for label, each in self.definitions.items() if each.explicit or not afresh}

    def definitions_of_absent(self, told: Sequence[Told], names: Sequence[str], afresh: bool) -> dict[str, Definition]:
        """What the labels that are absent alone mean; one that nobody taught is a slip of the pen, and refused."""
        known = self.definitions_to_keep(afresh)
        wanted = sorted(frozenset().union(*(each.absent for each in told)) - set(names))
        for label in wanted:
            if label not in known:
                hint = nearest(label, {*known, *names})
                raise InputError(f"label {label!r} is said to be absent, but it is not known; {hint}")
        return {label: known[label] for label in wanted}

    def learn(self, definitions: Mapping[str, Definition], examples: Mapping[str, Example], afresh: bool) -> "Bank":
        """With these examples too; of a picture known already it is said what is said now. Afresh: with these alone."""
        known: dict[str, Example] = {} if afresh else dict(self.examples)
        known |= {key: known[key].told(each.said) if key in known else each for key, each in examples.items()}
        return self._change({**definitions, **self.definitions_to_keep(afresh)}, known)

    def define(self, label: str, definition: Definition) -> "Bank":
        """Says anew what a label means; its threshold and prior stay."""
        before = self.definitions.get(label)
        if before is not None:
            definition = replace(definition, threshold=before.threshold, prior=before.prior)
        return self._change({**self.definitions, label: definition}, self.examples)

    def forget(self, label: str, keys: Iterable[str] | None = None) -> "Bank":
        """Without this label, or without what these examples say of it; those that are missing stay missing.

        A complete example says something of every label: without one of them it is a 'no' to the others that are known,
        and complete no more, else the label were absent rather than unknown. It goes if that label was all it named.
        """
        definitions, examples = dict(self.definitions), dict(self.examples)
        if keys is None:
            definitions.pop(label, None)
            keys = (*self.members.get(label, ()), *self.refused.get(label, ()))
        for key in keys:
            if example := examples.get(key):
                shown, absent, complete = example.said
                if complete and (shown | absent) - {label}:
                    absent |= set(self.definitions) - shown
                examples[key] = replace(example, said=Told(shown - {label}, absent - {label}))
        return self._change(definitions, examples)

    def rename(self, names: Mapping[str, str], meanings: Mapping[str, Definition]) -> "Bank":
        """Labels under other names, all at once; where one is a label already, the two become one.

        `meanings` are by the old names, for labels that mean what their name says.
        """
        definitions = {label: each for label, each in self.definitions.items() if label not in names}
        for old, new in names.items():
            if (before := self.definitions.get(old)) is not None:
                kept = meanings.get(old, before) if before.by_name else before
                kept = replace(kept, explicit=before.explicit, threshold=before.threshold, prior=before.prior)
                definitions.setdefault(new, kept)
        examples = dict(self.examples)
        for key, each in self.examples.items():
            shown, absent = (frozenset(names.get(label, label) for label in told) for told in each.said[:2])
            # who shows one of the two shows both
            examples[key] = replace(each, said=Told(shown, absent - shown, each.said.complete))
        return self._change(definitions, examples)

    def set(self, values: Mapping[str, Mapping[str, Any]]) -> "Bank":
        """Thresholds and priors of labels, by name: what `check` found or a person said."""
        changed = {label: replace(each, **values.get(label, {})) for label, each in self.definitions.items()}
        return self._change(changed, self.examples)

    def _change(self, definitions: Mapping[str, Definition], examples: Mapping[str, Example]) -> "Bank":
        """Another bank with these; labels that nobody defined go with their last example."""
        named = {label for example in examples.values() for label in (*example.said.labels, *example.said.absent)}
        kept = {label: each for label, each in sorted(definitions.items()) if each.explicit or label in named}
        # sorted, so that the order of learning leaves no trace, not even in the last bit of a sum
        spoken = {key: each for key, each in sorted(examples.items()) if each.said}
        fits = {
            label: each
            if each.fit_set is not None
            else CachedFit(each.classifier, self.definitions[label].guide, self.fit_set(label))
            for label, each in list(self.fits.items())  # who asks meanwhile may add to them
            if label in kept
        }
        return type(self)(kept, spoken, fits)


def words_of(name: str, model: "Model") -> tuple[str, ...]:
    """What a name is looked up by, the last of these: of a path such as "birds/heron" its last part, in English.

    Words of one's own are looked up as they are.
    """
    word = name.rpartition("/")[2].strip() or name
    meant = english(word) if model.words_source is None else None
    return (word,) if meant is None else (word, meant)


def by_name(name: str, model: "Model", *, explicit: bool = False) -> Definition | None:
    """A label by its own word; None where that is not known."""
    words = words_of(name, model)
    if words[-1] not in model.words:
        return None
    vector, thing = model.words.vector(words[-1]), names_a_thing(words[-1])
    guide = model.word_prototypes(vector[None])[0]
    return Definition("name", words, vector, guide, explicit, thing=thing if len(words) == 1 else FOREIGN * thing)


def by_names_or_none(names: Collection[str], model: "Model") -> dict[str, Definition]:
    """By their names; those that say nothing are learnt from pictures alone, with one warning for all of them."""
    found = {name: by_name(name, model) for name in names}
    if silent := [name for name, meaning in found.items() if meaning is None]:
        warn(_learnt_without(silent, model))
    return {name: meaning or Definition("none") for name, meaning in found.items()}


def _learnt_without(names: Sequence[str], model: "Model") -> str:
    if len(names) > 1:
        others = f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else ""
        return (
            f"labels {', '.join(map(repr, names[:3]))}{others} are no known words: they are learnt from their pictures "
            "alone; define them like words that are known, if there are some"
        )
    near = _unknown(names[0], model).nearest
    hint = f" (nearest known words: {', '.join(near)})" if near else ""
    return (
        f"label {names[0]!r} is no known word{hint}: it is learnt from its pictures alone; "
        "define it like words that are known, if there are some"
    )


def _unknown(name: str, model: "Model") -> UnknownWordError:
    """Why a name is refused, with the words that are near it and the ways out."""
    try:
        model.words.vector(words_of(name, model)[-1])
    except UnknownWordError as error:
        return error
    raise AssertionError(f"{name!r} is a known word")


def define(
    name: str, model: "Model", labels: Mapping[str, Definition], *, like: Like, vector: object, words: bool
) -> Definition:
    """What a person says it means; `labels` are those known already, whose meaning `like` may use."""
    if (like is not None) + (vector is not None) + (not words) > 1:
        raise InputError(f"label {name!r} is defined in two ways; give one of like, vector and words=False")
    if not words:
        return Definition("none", explicit=True)
    if vector is None and like is None:
        if (named := by_name(name, model, explicit=True)) is None:
            raise _unknown(name, model)
        return named
    listed = like.split(",") if isinstance(like, str) else () if like is None else like
    alike = tuple(label_name(word) for word in listed if str(word).strip())
    if vector is not None:
        meaning = _own_vector(name, vector, model)
    elif alike:
        others = {label: each.vector for label, each in labels.items() if each.vector is not None and label != name}
        known = [others[word] if word in others else model.words.vector(words_of(word, model)[-1]) for word in alike]
        meaning = np.stack(known).mean(axis=0)
    else:
        raise InputError(f"label {name!r} is like nothing; name at least one known word")
    guide = model.word_prototypes(meaning[None])[0]
    return Definition("like" if alike else "vector", alike, meaning, guide, explicit=True, thing=1.0)


def _own_vector(name: str, vector: object, model: "Model") -> NDArray[np.float32]:
    wanted = len(model.word_map.mean)
    has = f"words {model.words_name!r} have {wanted}"
    try:
        numbers = np.array(vector, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the vector of label {name!r} is not made of numbers; {has}") from error
    if numbers.shape != (wanted,):
        shape = " × ".join(map(str, numbers.shape)) or "single"
        raise InputError(f"the vector of label {name!r} has {shape} numbers, {has}; give as many")
    if not np.isfinite(numbers).all():
        raise InputError(f"the vector of label {name!r} holds numbers that are not finite; mend it")
    return numbers


def told_of(labels: object, absent: object | None, complete: bool, *, one: bool = False) -> list[Told]:
    """What is said of each picture; a bare string is one name. Of `one` picture the names may come without a list."""
    shown = _name_sets(labels, "labels", one)
    missing = [frozenset[str]()] * len(shown) if absent is None else _name_sets(absent, "absent labels", one)
    if len(missing) != len(shown):
        raise InputError(f"labels are given for {len(shown)} pictures and absent ones for {len(missing)}; give as many")
    told = [Told(*each, complete) for each in zip(shown, missing, strict=True)]
    for number, each in enumerate(told, 1):
        check_told(each, f"image number {number}")
    return told


def check_told(said: Told, image: str) -> None:
    """Refuses what says nothing, and what says both yes and no."""
    if not said:
        raise InputError(f"{image} has no label; name one thing it shows or does not show, or leave it out")
    if both := sorted(said.labels & said.absent):
        raise InputError(f"{image} is said to show {both[0]!r} and not to show it; take one of the two away")


def _name_sets(names: object, what: str, one: bool) -> list[frozenset[str]]:
    from fewtag.pictures.files import is_listing  # and with it Pillow, which a look at the labels does not need

    if isinstance(names, str) and one:
        names = [names]
    if isinstance(names, str) or not is_listing(names):
        instead = repr([[names]]) if isinstance(names, str) else '[["dog"], ["cat", "sofa"]], say'
        raise InputError(f"{what} are a list with the names of each picture, found {names!r}; use {instead}")
    listed = list(names)
    if one and all(isinstance(name, str) for name in listed):
        listed = [listed]
    found = []
    for number, given in enumerate(listed, 1):
        some = [given] if isinstance(given, str) else given
        if not is_listing(some):
            raise InputError(f"the {what} of image number {number} are {given!r}; give a list of names")
        found.append(frozenset(label_name(name, f" of image number {number}") for name in some))
    return found


def is_share(value: object) -> bool:
    """Whether it is a number from 0 to 1, by whatever library."""
    return isinstance(value, Real) and 0 <= float(value) <= 1


def renamed(known: Collection[str], old: str, new: str, *, merge: bool) -> dict[str, str]:
    """The new names by the old ones: of a label and of those that lie under it, be it a label itself or not.

    Refuses a name that is taken, unless the two shall become one. Those under a label that goes into one of them stay.

    >>> renamed(["birds", "birds/heron", "boat"], "birds", "animals", merge=False)
    {'birds': 'animals', 'birds/heron': 'animals/heron'}
    """
    stay = merge and new in known and new.startswith(f"{old}/")
    moved = {each: new + each[len(old) :] for each in known if each == old or (each.startswith(f"{old}/") and not stay)}
    if not merge and (taken := sorted((set(known) - set(moved)) & set(moved.values()))):
        raise TakenError(f"there is a label {taken[0]!r} already; choose another name, or merge the two")
    return moved


def label_name(name: object, where: str = "") -> str:
    """A name without stray blanks; refuses what is none, and what a table of tags could not hold."""
    if not isinstance(name, str):
        raise InputError(f"a label{where} is {name!r}, of type {type(name).__name__}; labels are names")
    # one spelling of each accent too: folders on a Mac are named with two characters for one
    cleaned = " ".join(unicodedata.normalize("NFC", name).split())
    if not cleaned:
        raise InputError(f"a label{where} is empty; give it a name")
    if not cleaned.isascii() and cleaned.encode(errors="replace").decode() != cleaned:  # of a folder in Latin 1, say
        raise InputError(f"label {cleaned!r}{where} is no text that could be written; name it otherwise")
    if ";" in cleaned:
        raise InputError(f'label {cleaned!r} contains ";", which separates labels in tables; name it otherwise')
    if cleaned.startswith("!"):
        raise InputError(f'label {cleaned!r} begins with "!", which means "does not show" in a table; say it is absent')
    return cleaned


def path_name(name: object) -> str:
    """A label's path without stray blanks and slashes; refuses what is none.

    >>> path_name(" birds / heron/")
    'birds/heron'
    """
    cleaned = label_name(name)
    return label_name("/".join(part.strip() for part in cleaned.split("/") if part.strip()))
