"""Splits: which labels belong to which phase, and which images serve it; the rules are data, in splits/*.json.

A classifier's classes that overlap a split's new labels are data as well, with reasons, in overlaps/*.json.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fewtag.errors import InputError, nearest
from fewtag.research.data.images import LabelledImages

Name = Annotated[str, StringConstraints(pattern=r"\S")]
Names = Annotated[list[Name], Field(min_length=1)]


class Phase(BaseModel):
    """A phase's labels, and those that its images must or must not show: groups in the file, labels once loaded."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: Names
    must_not_show: list[Name] = []
    must_show: list[Name] = []


class Split(BaseModel):
    """Disjoint groups of labels, combined into phases such as "train", "val" and "test"; all references are checked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    groups: Annotated[dict[str, Names], Field(min_length=1)]
    phases: Annotated[dict[str, Phase], Field(min_length=1)]
    words: dict[str, Name] = {}
    aliases: dict[str, Name] = {}

    @model_validator(mode="after")
    def _check(self) -> "Split":
        home: dict[str, str] = {}
        for group, labels in self.groups.items():
            for label in labels:
                if label in home:
                    raise ValueError(
                        f"label {label!r} is in group {home[label]!r} and again in {group!r}; list it once"
                    )
                home[label] = group
        for name, phase in self.phases.items():
            for key, named in phase:
                _refuse_unknown(named, self.groups, f"phase {name!r}: {key!r} has an unknown group")
            if len(set(phase.labels)) < len(phase.labels):
                raise ValueError(f"phase {name!r}: names a group of its labels twice; name it once")
            if both := set(phase.must_not_show) & {*phase.labels, *phase.must_show}:
                raise ValueError(f"phase {name!r}: forbids and wants group {min(both)!r} at once; remove one")
            for key, named in phase:
                setattr(phase, key, [label for group in named for label in self.groups[group]])
        _refuse_unknown(self.words, home, '"words" has an unknown label')
        _refuse_unknown(self.aliases.values(), home, '"aliases" leads to an unknown label')
        if clash := sorted(self.aliases.keys() & home.keys()):
            raise ValueError(f"{clash[0]!r} is both a label and an alias; remove one")
        return self

    @classmethod
    def load(cls, name_or_path: str) -> "Split":
        """A split that comes with the package ("coco", "voc", "laso"), or one's own JSON file."""
        folder = resources.files("fewtag.research.data") / "splits"
        packaged = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".json")}
        path = packaged.get(name_or_path, Path(name_or_path))
        if isinstance(path, Path) and path.suffix != ".json" and not path.is_file():
            raise InputError(
                f"there is no split {name_or_path!r}, and no such file; {nearest(name_or_path, packaged)} "
                "or give the path of a .json file"
            )
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the split {path} ({error}); check the path") from error
        except ValidationError as error:
            raise InputError(f"the split {name_or_path} {_wrong(error)}") from error

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for group in self.groups.values() for label in group)

    def spelt(self, label: str) -> str:
        """The words to look a label up by: "tvmonitor" is "tv monitor", most labels are themselves."""
        return self.words.get(label, label)

    def phase(
        self, images: LabelledImages, name: str, *, other_labels: Literal["refuse", "ignore"] = "refuse"
    ) -> LabelledImages:
        """The images that serve a phase; the columns are the phase's labels, in the split's order."""
        if name not in self.phases:
            raise InputError(f"split {self.name!r} has no phase {name!r}; {nearest(name, self.phases)}")
        phase = self.phases[name]
        columns = self._columns(images, other_labels)

        def targets(labels: Iterable[str]) -> np.ndarray:
            none = np.zeros(len(images), dtype=bool)
            return np.array([columns.get(label, none) for label in labels]).reshape(-1, len(images)).T.copy()

        kept = targets(phase.labels).any(axis=1) & ~targets(phase.must_not_show).any(axis=1)
        if phase.must_show:
            kept &= targets(phase.must_show).any(axis=1)
        rows = np.flatnonzero(kept)
        shown = targets(phase.labels)[rows]
        lacking = [phase.labels[column] for column in np.flatnonzero(~shown.any(axis=0))]
        if lacking:
            raise InputError(
                f"{len(lacking)} of the {len(phase.labels)} labels of phase {name!r} have no image among the "
                f"{len(rows)} that serve it, the first is {lacking[0]!r}; give a data set that shows it, or a split "
                "without it"
            )
        return replace(images.select(rows), labels=tuple(phase.labels), targets=shown)

    def _columns(self, images: LabelledImages, other_labels: Literal["refuse", "ignore"]) -> dict[str, np.ndarray]:
        """The data set's targets by the split's label names; two spellings of one label are merged."""
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


def _wrong(error: ValidationError) -> str:
    """The first thing that is wrong with a split."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"is not valid JSON ({first['msg']}); mend it there"
    if first["type"] == "value_error":  # raised by the checks above
        return f"is wrong: {first['ctx']['error']}"
    where = " → ".join(str(part) for part in first["loc"]) or "the whole"
    if first["type"] == "extra_forbidden":
        close = nearest(str(first["loc"][-1]), (Split if len(first["loc"]) == 1 else Phase).model_fields)
        return f"has an unknown key, {where!r}; {close}"
    return f"is wrong at {where!r} ({first['msg']}); mend it there"


def _refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{what}, {name!r}; {nearest(name, known)}")


def class_names(classes: str) -> list[str]:
    """The names of all classes, synonyms joined by commas: "tench, Tinca tinca"."""
    from timm.data.imagenet_info import ImageNetInfo  # imported here, so that a split does not wait for timm

    try:
        info = ImageNetInfo(classes)
    except AssertionError as error:
        raise InputError(f"timm knows no classes {classes!r}; write classes = 'imagenet-1k' in [names]") from error
    return [info.index_to_description(each) for each in range(info.num_classes())]


def overlapping_classes(classes: str, split: str) -> set[int]:
    """Numbers of classes that a clean list omits: those that are, contain, are a kind of or are named by a new label.

    The splits that have such a list come with the package.
    """
    folder = resources.files("fewtag.research.data") / "overlaps"
    known = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".json")}
    name = f"{classes}-{split}"
    if name not in known:
        raise InputError(
            f"there is no list of the classes of {classes!r} that overlap split {split!r}; "
            f"{nearest(name, known)} or write variant = 'all' in [names]"
        )
    content = json.loads(known[name].read_text(encoding="utf-8"))
    return {int(number) for each in content["overlaps"] for number in each["classes"]}
