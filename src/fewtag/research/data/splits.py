"""Splits: which labels belong to which phase, and which images serve it; rules kept as data, in splits/*.json.

A classifier's classes that overlap a split's new labels are data as well, with reasons, in overlaps/*.json.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fewtag.errors import InputError, nearest
from fewtag.research.data.images import LabelledImages

_LISTS = resources.files("fewtag.research.data") / "overlaps"
Name = Annotated[str, StringConstraints(pattern=r"\S")]
Names = Annotated[list[Name], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase's labels, and what its images must not, or must also, show."""

    name: str
    labels: tuple[str, ...]
    must_not_show: frozenset[str] = frozenset()
    must_show: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Split:
    """Disjoint groups of labels, made into phases such as "train", "val" and "test"."""

    name: str
    phases: dict[str, Phase]
    labels: tuple[str, ...]
    spelt: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, name_or_path: str) -> "Split":
        """A split that comes with the package ("coco", "voc", "laso"), or a JSON file of one's own."""
        file = _read(name_or_path)
        return cls(
            name=file.name,
            phases={name: rule.phase(name, file.groups) for name, rule in file.phases.items()},
            labels=tuple(label for group in file.groups.values() for label in group),
            spelt=file.words,
            aliases=file.aliases,
        )

    def words(self, label: str) -> str:
        """What to look up for a label: "tvmonitor" is "tv monitor", most labels are themselves."""
        return self.spelt.get(label, label)

    def phase(
        self, images: LabelledImages, name: str, *, other_labels: Literal["refuse", "ignore"] = "refuse"
    ) -> LabelledImages:
        """The images that serve a phase; the columns are the phase's labels, in the split's order."""
        if name not in self.phases:
            raise InputError(f"split {self.name!r} has no phase {name!r}; {nearest(name, self.phases)}")
        phase = self.phases[name]
        columns = self._columns(images, other_labels)
        none = np.zeros(len(images), dtype=bool)
        targets = np.stack([columns.get(label, none) for label in phase.labels], axis=1)
        forbidden = _any(columns, phase.must_not_show, none)
        kept = targets.any(axis=1) & ~forbidden
        if phase.must_show:
            kept &= _any(columns, phase.must_show, none)
        rows = np.flatnonzero(kept)
        lacking = [phase.labels[column] for column in np.flatnonzero(~targets[rows].any(axis=0))]
        if lacking:
            raise InputError(
                f"{len(lacking)} of the {len(phase.labels)} labels of phase {name!r} have no image among the "
                f"{len(rows)} that serve it, the first is {lacking[0]!r}; give a data set that shows it, or a split "
                "without it"
            )
        return LabelledImages(
            ids=tuple(images.ids[row] for row in rows),
            pictures=tuple(images.pictures[row] for row in rows),
            labels=phase.labels,
            targets=targets[rows],
        )

    def _columns(self, images: LabelledImages, other_labels: Literal["refuse", "ignore"]) -> dict[str, np.ndarray]:
        """The data set's targets by the split's names; two spellings of one label are one column."""
        known = set(self.labels)
        columns: dict[str, np.ndarray] = {}
        for number, spelling in enumerate(images.labels):
            label = self.aliases.get(spelling, spelling)
            if label in known:
                shown = images.targets[:, number]
                columns[label] = columns[label] | shown if label in columns else shown
            elif other_labels == "refuse":
                close = nearest(spelling, known | self.aliases.keys())
                raise InputError(
                    f"split {self.name!r} does not know the data set's label {spelling!r}; {close} "
                    'rename it, or leave it out with other_labels="ignore"'
                )
        return columns


def _any(
    columns: Mapping[str, np.ndarray], labels: frozenset[str], none: Bool[np.ndarray, "images"]
) -> Bool[np.ndarray, "images"]:
    """Which images show at least one of the labels."""
    return np.logical_or.reduce([none, *(columns[label] for label in labels if label in columns)])


class PhaseRule(BaseModel):
    """A phase in a split's JSON: the groups of its labels, and those its images must not, or must also, show."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: Names
    must_not_show: list[Name] = []
    must_show: list[Name] = []

    def phase(self, name: str, groups: Mapping[str, list[str]]) -> Phase:
        """The rule with its groups' labels filled in."""
        labels, hidden, shown = (
            [label for group in chosen for label in groups[group]]
            for chosen in (self.labels, self.must_not_show, self.must_show)
        )
        return Phase(name, tuple(labels), frozenset(hidden), frozenset(shown))

    def check(self, groups: Iterable[str]) -> None:
        """Refuses groups that are unknown, named twice, or wanted and forbidden at once."""
        for key in ("labels", "must_not_show", "must_show"):
            _refuse_unknown(getattr(self, key), groups, f"{key!r} has an unknown group")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("names a group of its labels twice; name it once")
        both = set(self.must_not_show) & {*self.labels, *self.must_show}
        if both:
            raise ValueError(f"forbids and wants group {min(both)!r} at once; remove one")


class SplitFile(BaseModel):
    """A split's JSON: groups are disjoint and not empty, and every name in it refers to something."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    groups: Annotated[dict[str, Names], Field(min_length=1)]
    phases: Annotated[dict[str, PhaseRule], Field(min_length=1)]
    words: dict[str, Name] = {}
    aliases: dict[str, Name] = {}

    @model_validator(mode="after")
    def _check(self) -> "SplitFile":
        home: dict[str, str] = {}
        for group, labels in self.groups.items():
            for label in labels:
                if label in home:
                    raise ValueError(
                        f"label {label!r} is in group {home[label]!r} and again in {group!r}; list it once"
                    )
                home[label] = group
        for name, rule in self.phases.items():
            try:
                rule.check(self.groups)
            except ValueError as error:
                raise ValueError(f"phase {name!r}: {error}") from error
        _refuse_unknown(self.words, home, '"words" has an unknown label')
        _refuse_unknown(self.aliases.values(), home, '"aliases" leads to an unknown label')
        clash = sorted(self.aliases.keys() & home.keys())
        if clash:
            raise ValueError(f"{clash[0]!r} is both a label and an alias; remove one")
        return self


def _read(name_or_path: str) -> SplitFile:
    """A packaged split by name, or a file by path (something with a folder or an ending in it)."""
    folder = resources.files("fewtag.research.data") / "splits"
    packaged = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".json")}
    if name_or_path in packaged:
        return _parse(packaged[name_or_path].read_text(encoding="utf-8"), name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".json" and not path.is_file():
        raise InputError(
            f"there is no split {name_or_path!r}, and no such file; {nearest(name_or_path, packaged)} "
            "or give the path of a .json file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the split {path} ({error}); check the path") from error
    return _parse(text, str(path))


def _parse(text: str, source: str) -> SplitFile:
    """A valid split; otherwise the first thing that is wrong with it, in one sentence."""
    try:
        return SplitFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise InputError(f"the split {source} is not valid JSON ({first['msg']}); mend it there") from error
        if first["type"] == "value_error":  # of the checks above
            raise InputError(f"the split {source}: {first['msg'].removeprefix('Value error, ')}") from error
        where = " → ".join(str(part) for part in first["loc"]) or "the whole"
        if first["type"] == "extra_forbidden":
            model = SplitFile if len(first["loc"]) == 1 else PhaseRule
            close = nearest(str(first["loc"][-1]), model.model_fields)
            raise InputError(f"the split {source} has an unknown key, {where!r}; {close}") from error
        raise InputError(f"the split {source} is wrong at {where!r} ({first['msg']}); mend it there") from error


def _refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{what}, {name!r}; {nearest(name, known)}")


class Overlap(NamedTuple):
    """Classes that are, contain, are a kind of or are called by a validation or novel label."""

    label: str
    reason: str
    classes: dict[int, str]
    """The classes' first names by number."""


def class_names(classes: str) -> list[str]:
    """The names of all classes, synonyms joined by commas: "tench, Tinca tinca"."""
    from timm.data.imagenet_info import ImageNetInfo  # not above: a split does not wait for timm

    try:
        info = ImageNetInfo(classes)
    except AssertionError as error:
        raise InputError(f"timm knows no classes {classes!r}; write classes = 'imagenet-1k' in [names]") from error
    return [info.index_to_description(each) for each in range(info.num_classes())]


def overlaps(classes: str, split: str) -> list[Overlap]:
    """What a clean list of names leaves out for a split; the splits that have one come with the package."""
    known = {file.name.removesuffix(".json"): file for file in _LISTS.iterdir() if file.name.endswith(".json")}
    name = f"{classes}-{split}"
    if name not in known:
        raise InputError(
            f"there is no list of the classes of {classes!r} that overlap split {split!r}; "
            f"{nearest(name, known)} or write variant = 'all' in [names]"
        )
    content = json.loads(known[name].read_text(encoding="utf-8"))
    return [
        Overlap(each["label"], each["reason"], {int(number): first for number, first in each["classes"].items()})
        for each in content["overlaps"]
    ]
