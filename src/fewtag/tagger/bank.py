"""The bank: everything learnt, as one immutable value. It holds labels' definitions, examples and classifiers."""

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import ANSWERS
from fewtag.core.posterior import Fitted, Pictures, fit_label
from fewtag.errors import InputError, MissingError, TakenError, UnknownWordError, nearest, plural, warn
from fewtag.words.pieces import english, names_a_thing

if TYPE_CHECKING:
    from fewtag.tagger.model import Model

Kind = Literal["name", "like", "vector", "none"]
Like = Sequence[str] | str | None
"""Names of similar things, as a sequence or as one comma-separated string."""
THING, OTHER = 0.93, 0.05
"""Prior probabilities that a name means what its pictures show: for a word that names a thing, and for any other."""
FOREIGN = 0.5
"""Factor on that prior for a word of another language, since it may be a pet's name as well ("Luna")."""
COMPLETE, UNNAMED = 256, 64
"""The most other pictures in a fit: complete ones that do not name the label, and the rest, as weak negatives."""
MOST_IMPOSTORS = 64
"""How many of those pictures a name is judged against: more barely change the result."""
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u2060\ufeff\u00ad"))
"""Spaces without width and soft hyphens, which say nothing, and come along when text is copied."""
USUAL = 2
"""Pseudo-count, for calibration, of pictures with the model's mean coherence (chosen on validation labels)."""


@dataclass(frozen=True, eq=False)
class Definition:
    """What a label means before it has any picture."""

    kind: Kind
    words: tuple[str, ...] = ()
    """The names that were looked up; for a name in another language, the name itself and its English meaning."""
    vector: NDArray[np.float32] | None = None
    """The label's word vector; None if it is learnt from pictures alone."""
    prototype: NDArray[np.float32] | None = None
    """The vector's, one of the `guides` in files: stored, so that examples can change without loading the words."""
    explicit: bool = False
    """Whether a person defined the label: it then outlives its examples."""
    threshold: float | None = None
    """The probability from which the label is given; None unless it was set or chosen on a person's own pictures."""
    prior: float | None = None
    """The share of pictures that show the label; None unless a person gave it or `check` counted it."""
    thing: float = 0.0
    """How likely the word names a visible thing (`names_a_thing`), and is therefore trusted from the start; 1 where a
    person said what the label means."""

    @property
    def by_name(self) -> bool:
        """Whether the label means what its name says, even if that is nothing: renaming it looks the new name up."""
        return self.kind == "name" or (self.kind == "none" and not self.explicit)

    def __str__(self) -> str:
        if self.kind == "like":
            return f"like {', '.join(self.words)}"
        if self.kind == "name" and len(self.words) > 1:
            return f"its name ({self.words[-1]})"
        return {"name": "its name", "vector": "a vector of its own", "none": "pictures only"}[self.kind]


class Annotation(NamedTuple):
    """What a person says about a picture: the labels that it shows, and those that it does not."""

    labels: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    complete: bool = False
    """Whether the picture shows nothing but `labels`, which also holds for labels that are taught later."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.absent or self.complete)


class Pooled(NamedTuple):
    """What a fit needs of a picture besides its places."""

    lengths: NDArray[np.float32]
    """places: L2 norms"""
    mean: NDArray[np.float32]
    """space: the mean of the places, a unit vector"""
    coherence: float


@dataclass(frozen=True, eq=False)
class Quantised:
    """A picture's places in the model's space, quantised to one byte per number."""

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
    def pooled(self) -> Pooled:
        """Cached, since every label's fit needs it."""
        alone = Pictures.of(self.places[None])
        return Pooled(alone.lengths[0], alone.means[0], float(alone.coherence()[0]))


@dataclass(frozen=True, eq=False)
class Example:
    """A picture and what was said about it."""

    annotation: Annotation
    features: Quantised
    name: str = ""
    """The picture's file name, without its folder."""
    picture: bytes = b""
    """A small copy in WebP; empty if no copies are to be kept."""

    @classmethod
    def of(cls, annotation: Annotation, places: NDArray[np.float32], name: str = "", picture: bytes = b"") -> "Example":
        return cls(annotation, Quantised.of(places), name, picture)

    @property
    def labels(self) -> frozenset[str]:
        return self.annotation.labels

    @property
    def absent(self) -> frozenset[str]:
        return self.annotation.absent

    @property
    def complete(self) -> bool:
        return self.annotation.complete

    @property
    def places(self) -> NDArray[np.float32]:
        return self.features.places

    def annotated(self, more: Annotation) -> "Example":
        """The example with more said about it; for each label the latest statement counts."""
        shown, absent, complete = self.annotation
        shown, absent = (shown - more.absent) | more.labels, (absent - more.labels) | more.absent
        return replace(self, annotation=Annotation(shown, absent, complete or more.complete))


class FitSet(NamedTuple):
    """The digests of the examples that a label is fitted to, by kind, each sorted."""

    yes: tuple[str, ...]
    no: tuple[str, ...]
    """Examples that someone said do not show the label."""
    complete: tuple[str, ...]
    """Complete examples that do not name the label."""
    unnamed: tuple[str, ...]
    """Other examples that do not name it."""


class CachedFit(NamedTuple):
    """A classifier and what it was fitted to; the latter is omitted if it belongs to this very bank."""

    classifier: Fitted
    prototype: NDArray[np.float32] | None = None
    """That of the label's definition."""
    fit_set: FitSet | None = None


@dataclass(frozen=True, eq=False)
class Bank:
    """Definitions by label and examples by digest, both sorted, and what is derived from them.

    A label's classifier is a function of its definition and of some of the examples. It is fitted when first needed,
    and carried over from the previous bank if neither changed. That memo, `fits`, is all of a bank that ever changes.
    """

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    examples: Mapping[str, Example] = field(default_factory=dict)
    fits: dict[str, CachedFit] = field(default_factory=dict)
    """Classifiers read from a file, or fitted for this or an earlier bank."""
    _checked: set[str] = field(default_factory=set)
    """Labels whose cached classifier was verified to be up to date for this bank."""
    leave_out: ClassVar[bool] = False
    """Whether a fit also computes its leave-one-out scores."""

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of the examples that show each label, sorted."""
        return self._by_label("labels")

    @cached_property
    def refused(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of the examples that someone said do not show each label, sorted."""
        return self._by_label("absent")

    def _by_label(self, side: Literal["labels", "absent"]) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {label: [] for label in self.definitions}
        for key, example in self.examples.items():
            for label in getattr(example, side):
                found[label].append(key)
        return {label: tuple(keys) for label, keys in found.items()}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels that can be scored, sorted; a label without a word vector needs an example first."""
        known = self.definitions.items()
        return tuple(label for label, each in known if each.vector is not None or self.members[label])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of examples of each of the classes."""
        return np.array([len(self.members[label]) for label in self.classes], dtype=np.int64)

    @property
    def without_copies(self) -> int:
        """The number of examples of which no small copy is kept."""
        return sum(not example.picture for example in self.examples.values())

    def classifier(self, model: "Model", label: str) -> Fitted:
        """A label's classifier, fitted if need be."""
        fit, prototype = self.fits.get(label), self.definitions[label].prototype
        if fit is None or (fit.fit_set is not None and label not in self._checked):
            fit_set = self.fit_set(label)
            if fit is None or fit.prototype is not prototype or fit.fit_set != fit_set:
                fit = self.fits[label] = CachedFit(self._fit(model, label, fit_set), prototype, fit_set)
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
        lengths = np.array([each.features.pooled.lengths for each in chosen], np.float32).reshape(places.shape[:2])
        means = np.array([each.features.pooled.mean for each in chosen], np.float32).reshape(len(chosen), space)
        evidence = replace(model.evidence, prior=OTHER + definition.thing * (THING - OTHER))
        pictures, meant = Pictures(places, lengths, means), definition.prototype
        # not against refused examples: people are asked more often about pictures that look like the label
        impostors = np.zeros(len(chosen), np.bool_)
        impostors[len(fit_set.yes) + len(fit_set.no) :][:MOST_IMPOSTORS] = True
        fitted = fit_label(
            pictures, shown, weights, meant, model.strengths, evidence, impostors, leave_out=self.leave_out
        )
        # the stand-ins of a bank without examples have the same vector at every place, so their coherence means nothing
        known = [found for each in chosen if (found := each.features.pooled.coherence) < 0.999]
        coherence = (sum(known) + USUAL * model.calibration.coherence) / (len(known) + USUAL)
        return fitted._replace(coherence=float(np.float32(coherence)))  # in the precision of a bank file

    def fit_set(self, label: str) -> FitSet:
        """The examples that a label is fitted to.

        If there are too many, a pseudo-random sample is drawn by digest, another for each label. It depends neither on
        the order of learning nor on the rest of the bank, and a new example seldom changes another label.
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
        return np.array([each.complete for each in self.examples.values()], np.bool_)

    @cached_property
    def _lots(self) -> NDArray[np.uint64]:
        return np.array([int(key[:16], 16) for key in self._keys], np.uint64)

    def _drawn(self, label: str, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        if len(rows) <= most:
            return rows
        lot = np.frombuffer(hashlib.sha256(label.encode()).digest()[:8], "<u8")
        return np.sort(rows[np.argpartition(self._lots[rows] ^ lot, most)[:most]])

    def speaking_of(self, label: str) -> tuple[str, ...]:
        """The digests of the examples that show a label, followed by those that do not."""
        silent = (key for key, each in self.examples.items() if each.complete and label not in each.labels)
        return tuple(dict.fromkeys((*self.members[label], *self.refused[label], *silent)))

    def called(self, label: str, example: str | int) -> list[str]:
        """The label's example with this file name, or with this number among those that show it, from 1 on."""
        keys, every = self.members[label], self.speaking_of(label)
        names = [self.examples[key].name for key in every]
        if not isinstance(example, str) or (example.isdecimal() and example not in names):
            if not 1 <= int(example) <= len(keys):
                has = f"examples 1 to {len(keys)}" if keys else "no example"
                raise InputError(f"label {label!r} has {has}, there is no number {example}")
            return [keys[int(example) - 1]]
        if example not in names:
            raise InputError(f"no example of label {label!r} is called {example!r}; {nearest(example, names)}")
        found = [key for key, name in zip(every, names, strict=True) if name == example]
        if len(found) > 1:  # of several folders, say
            numbers = [str(number) for number, key in enumerate(keys, 1) if key in found]
            ways = f"number {' or '.join(numbers)}, or its picture" if numbers else "its picture"
            raise InputError(f"{len(found)} pictures that speak of label {label!r} are called {example!r}; give {ways}")
        return found

    def spelt(self, label: object) -> str:
        """A known label's name as it is, since older banks have names that are refused now; any other normalised."""
        return label if isinstance(label, str) and label in self.definitions else label_name(label)

    def find(self, label: object) -> str:
        """A label by its name; raises MissingError if it is unknown."""
        name = self.spelt(label)
        if name not in self.definitions:
            raise MissingError(f"there is no label {name!r}; {nearest(name, self.definitions)}")
        return name

    def definitions_to_keep(self, afresh: bool) -> dict[str, Definition]:
        """The definitions that stay whatever is learnt now; if `afresh`, only those that a person gave."""
        return {label: each for label, each in self.definitions.items() if each.explicit or not afresh}

    def absent_definitions(
        self, said: Sequence[Annotation], names: Sequence[str], afresh: bool
    ) -> dict[str, Definition]:
        """Definitions of labels that are only said to be absent; an unknown one is taken for a typo, and refused."""
        known = self.definitions_to_keep(afresh)
        wanted = sorted(frozenset().union(*(each.absent for each in said)) - set(names))
        for label in wanted:
            if label not in known:
                hint = nearest(label, {*known, *names})
                raise InputError(f"label {label!r} is said to be absent, but it is not known; {hint}")
        return {label: known[label] for label in wanted}

    def learn(self, definitions: Mapping[str, Definition], examples: Mapping[str, Example], afresh: bool) -> "Bank":
        """The bank with these examples added; statements about known pictures are merged. `afresh` drops all others."""
        known: dict[str, Example] = {} if afresh else dict(self.examples)
        known |= {key: known[key].annotated(new.annotation) if key in known else new for key, new in examples.items()}
        return self._change({**definitions, **self.definitions_to_keep(afresh)}, known)

    def define(self, label: str, definition: Definition) -> "Bank":
        """The bank with a label defined anew; its threshold and prior stay."""
        before = self.definitions.get(label)
        if before is not None:
            definition = replace(definition, threshold=before.threshold, prior=before.prior)
        return self._change({**self.definitions, label: definition}, self.examples)

    def forget(self, label: str, keys: Iterable[str] | None = None) -> "Bank":
        """The bank without this label, or without what these examples say about it; unknown keys are ignored.

        A complete example says something about every label. Without one of them it is no longer complete, else that
        label would count as absent rather than unknown: it becomes a 'no' to all other known labels that it does not
        show, or is dropped if this label was all it named.
        """
        definitions, examples = dict(self.definitions), dict(self.examples)
        if keys is None:
            definitions.pop(label, None)
            keys = (*self.members.get(label, ()), *self.refused.get(label, ()))
        for key in keys:
            if example := examples.get(key):
                shown, absent, complete = example.annotation
                if complete and (shown | absent) - {label}:
                    absent |= set(self.definitions) - shown
                examples[key] = replace(example, annotation=Annotation(shown - {label}, absent - {label}))
        return self._change(definitions, examples)

    def rename(self, names: Mapping[str, str], meanings: Mapping[str, Definition]) -> "Bank":
        """The bank with labels renamed, all at once; a label renamed to an existing one is merged into it.

        `meanings` are the new definitions, by old name, of labels that mean what their name says.
        """
        definitions = {label: each for label, each in self.definitions.items() if label not in names}
        for old, new in names.items():
            if (before := self.definitions.get(old)) is not None:
                kept = meanings.get(old, before) if before.by_name else before
                kept = replace(kept, explicit=before.explicit, threshold=before.threshold, prior=before.prior)
                definitions.setdefault(new, kept)
        examples = dict(self.examples)
        for key, each in self.examples.items():
            shown, absent = (frozenset(names.get(label, label) for label in side) for side in each.annotation[:2])
            # a picture that shows one of two merged labels shows the result
            examples[key] = replace(each, annotation=Annotation(shown, absent - shown, each.complete))
        return self._change(definitions, examples)

    def set(self, values: Mapping[str, Mapping[str, Any]]) -> "Bank":
        """The bank with new thresholds or priors for these labels."""
        changed = {label: replace(each, **values.get(label, {})) for label, each in self.definitions.items()}
        return self._change(changed, self.examples)

    def _change(self, definitions: Mapping[str, Definition], examples: Mapping[str, Example]) -> "Bank":
        """A new bank of these; a label that nobody defined is dropped with its last example."""
        named = {label for example in examples.values() for label in (*example.labels, *example.absent)}
        kept = {label: each for label, each in sorted(definitions.items()) if each.explicit or label in named}
        # sorted, so that the order of learning leaves no trace, not even in the last bit of a sum
        spoken = {key: each for key, each in sorted(examples.items()) if each.annotation}
        fits = {
            label: each
            if each.fit_set is not None
            else CachedFit(each.classifier, self.definitions[label].prototype, self.fit_set(label))
            for label, each in list(self.fits.items())  # a copy: another thread may be adding fits
            if label in kept
        }
        return type(self)(kept, spoken, fits)


def words_of(name: str, model: "Model") -> tuple[str, ...]:
    """The words that a name stands for, of which the last is looked up: the last part of a path such as "birds/heron",
    followed by its English meaning if it is of another language.

    With a word table of one's own, names are not translated.
    """
    word = name.rpartition("/")[2].strip() or name
    meant = english(word) if model.words_source is None else None
    return (word,) if meant is None else (word, meant)


def by_name(name: str, model: "Model", *, explicit: bool = False) -> Definition | None:
    """The definition of a label by its own name; None if that is no known word."""
    words = words_of(name, model)
    if words[-1] not in model.words:
        return None
    vector, thing = model.words.vector(words[-1]), names_a_thing(words[-1])
    prototype = model.word_prototypes(vector[None])[0]
    return Definition("name", words, vector, prototype, explicit, thing=thing if len(words) == 1 else FOREIGN * thing)


def by_names(names: Collection[str], model: "Model") -> dict[str, Definition]:
    """Definitions by name; unknown names are learnt from pictures alone, with one warning for all of them."""
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
    """The error for an unknown name, with the nearest known words and the ways out."""
    try:
        model.words.vector(words_of(name, model)[-1])
    except UnknownWordError as error:
        return error
    raise AssertionError(f"{name!r} is a known word")


def define(
    name: str, model: "Model", labels: Mapping[str, Definition], *, like: Like, vector: object, words: bool
) -> Definition:
    """The definition that a person gives a label; `labels` are the known ones, which `like` may refer to."""
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
    prototype = model.word_prototypes(meaning[None])[0]
    return Definition("like" if alike else "vector", alike, meaning, prototype, explicit=True, thing=1.0)


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


def annotations_of(labels: object, absent: object | None, complete: bool, *, one: bool = False) -> list[Annotation]:
    """What is said about each picture; a bare string is one name. For `one` picture names need not be nested."""
    shown = _name_sets(labels, "labels", one)
    missing = [frozenset[str]()] * len(shown) if absent is None else _name_sets(absent, "absent labels", one)
    if len(missing) != len(shown):
        raise InputError(f"labels are given for {len(shown)} pictures and absent ones for {len(missing)}; give as many")
    if not isinstance(complete, bool | np.bool_):
        raise InputError(f"complete is {complete!r}; give True or False, which holds for every picture of the call")
    annotations = [Annotation(*each, bool(complete)) for each in zip(shown, missing, strict=True)]
    for number, each in enumerate(annotations, 1):
        check_annotation(each, f"image number {number}")
    return annotations


def check_annotation(annotation: Annotation, image: str) -> None:
    """Refuses a statement that says nothing, or both yes and no about a label."""
    if not annotation:
        raise InputError(f"{image} has no label; name one thing it shows or does not show, or leave it out")
    if both := sorted(annotation.labels & annotation.absent):
        raise InputError(f"{image} is said to show {both[0]!r} and not to show it; take one of the two away")


def _name_sets(names: object, what: str, one: bool) -> list[frozenset[str]]:
    from fewtag.pictures.files import is_listing  # imported here: it brings Pillow, which listing labels does not need

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


def check_threshold(threshold: object) -> None:
    """Refuses what is neither a probability nor None."""
    if threshold is not None and not is_probability(threshold):
        raise InputError(f"the threshold is {threshold!r}; give one from 0 to 1, or none to take each label's own")


def is_probability(value: object) -> bool:
    """Whether a value is a number from 0 to 1, of any numeric library."""
    return isinstance(value, Real) and 0 <= float(value) <= 1


def renamed(known: Collection[str], old: str, new: str, *, merge: bool) -> dict[str, str]:
    """New names by old ones, for a label and for those below it in its path; `old` need not be a label itself.

    Refuses a name that is taken, unless labels are to be merged. If a label is merged into one below it, those below
    stay.

    >>> renamed(["birds", "birds/heron", "boat"], "birds", "animals", merge=False)
    {'birds': 'animals', 'birds/heron': 'animals/heron'}
    """
    stay = merge and new in known and new.startswith(f"{old}/")
    moved = {each: new + each[len(old) :] for each in known if each == old or (each.startswith(f"{old}/") and not stay)}
    if not merge and (taken := sorted((set(known) - set(moved)) & set(moved.values()))):
        raise TakenError(f"there is a label {taken[0]!r} already; choose another name, or merge the two")
    return moved


def label_name(name: object, where: str = "") -> str:
    """A label name in one spelling: in NFC, with blanks normalised, without invisible letters.

    Refuses what is no name, and what a table of tags could not hold.
    """
    if not isinstance(name, str):
        raise InputError(f"a label{where} is {name!r}, of type {type(name).__name__}; labels are names")
    # NFC, since macOS stores accented letters in folder names as two characters
    cleaned = " ".join(unicodedata.normalize("NFC", name).translate(_INVISIBLE).split())
    if not cleaned:
        raise InputError(f"a label{where} is empty; give it a name")
    if not cleaned.isascii() and cleaned.encode(errors="replace").decode() != cleaned:  # a folder in Latin 1, say
        raise InputError(f"label {cleaned!r}{where} is no text that could be written; name it otherwise")
    if not cleaned.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in cleaned):
        raise InputError(f"label {cleaned!r}{where} has a control character, which others could not read; take it out")
    if ";" in cleaned:
        raise InputError(f'label {cleaned!r} contains ";", which separates labels in tables; name it otherwise')
    if cleaned.startswith("!"):
        raise InputError(f'label {cleaned!r} begins with "!", which means "does not show" in a table; say it is absent')
    return cleaned


def path_name(name: object) -> str:
    """A label's path without stray blanks and slashes; refuses an empty one.

    >>> path_name(" birds / heron/")
    'birds/heron'
    """
    cleaned = label_name(name)
    return label_name("/".join(part.strip() for part in cleaned.split("/") if part.strip()))
