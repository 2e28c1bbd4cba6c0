"""Which labels belong to which phase, and which images serve it: rules kept as data, in splits/*.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool

from fewtag.errors import InputError, nearest
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.split_files import Content, load_content


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
        content = load_content(name_or_path)
        return cls(
            name=content.name,
            phases={name: _phase(name, rule, content) for name, rule in content.phases.items()},
            labels=tuple(label for group in content.groups.values() for label in group),
            spelt=content.words,
            aliases=content.aliases,
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


def _phase(name: str, rule: Mapping[str, list[str]], content: Content) -> Phase:
    def members(key: str) -> tuple[str, ...]:
        return tuple(label for group in rule.get(key, []) for label in content.groups[group])

    return Phase(name, members("labels"), frozenset(members("must_not_show")), frozenset(members("must_show")))


def _any(
    columns: Mapping[str, np.ndarray], labels: frozenset[str], none: Bool[np.ndarray, "images"]
) -> Bool[np.ndarray, "images"]:
    """Which images show at least one of the labels."""
    return np.logical_or.reduce([none, *(columns[label] for label in labels if label in columns)])
