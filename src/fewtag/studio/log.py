"""The log of changes, and the state that is its fold.

A change is a group of answers, or something done to a label; an undo is a change too, and takes another one back, be it
an undo. Whatever is in memory is what the changes that stand amount to, in the order of their numbers: clocks decide
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fewtag.errors import MissingError, nearest, plural

Verdict = Literal["yes", "no", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("yes", "no", "unknown")


class Said(NamedTuple):
    """An answer as the log keeps it: a verdict on one picture and one label, and who gave it."""

    id: str
    picture: str
    label: int
    """The label's number; 0 for the one that the same change defines, until that has one."""
    answer: Verdict
    source: str


class Label(NamedTuple):
    """A label by what a person did to it; it is known by the number of the change that made it, whatever its name."""

    id: int
    name: str
    like: tuple[str, ...] | None = None
    words: bool = True
    threshold: float | None = None
    prior: float | None = None
    """The share of pictures that showed it when its threshold was set."""


class Change(NamedTuple):
    """A row of the log, with its answers."""

    n: int
    op: str
    kind: str
    facts: Mapping[str, Any]
    undoes: int | None
    answers: tuple[Said, ...] = ()


@dataclass
class Fold:
    """What changes amount to; a later change makes another one, so that nobody who reads this one is disturbed."""

    labels: dict[int, Label] = field(default_factory=dict)
    latest: dict[int, dict[str, Said]] = field(default_factory=dict)
    """Of each label the latest answers, by picture."""
    merged: dict[int, int] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Adds a change; one of a label that is not there, since its making was undone, does nothing."""
        facts, kind = change.facts, change.kind
        label = self.labels.get(facts.get("label", change.n))
        if kind == "define":
            like = None if facts["like"] is None else tuple(facts["like"])
            known = label or Label(change.n, facts["name"])
            self.labels[known.id] = known._replace(like=like, words=facts["words"])
            self.latest.setdefault(known.id, {})
        elif kind in ("rename", "merge"):
            # those under it go along
            names, merged = {**facts.get("under", {})}, {**facts.get("merged", {})}
            (names if kind == "rename" else merged)[facts["label"]] = facts["name" if kind == "rename" else "into"]
            for number, name in names.items():
                if (moved := self.labels.get(int(number))) is not None:
                    self.labels[moved.id] = moved._replace(name=name)
            for number, other in merged.items():
                self._merge(int(number), other)
        elif label is not None and kind == "threshold":
            self.labels[label.id] = label._replace(threshold=facts["threshold"], prior=facts["prior"])
        elif label is not None and kind == "forget":
            del self.labels[label.id]
        for said in change.answers:
            self.latest.setdefault(self.resolve(said.label), {})[said.picture] = said

    def _merge(self, label: int, other: int) -> None:
        into = self.resolve(other)
        if label not in self.labels or into not in self.labels:
            return
        self.merged[label] = into
        del self.labels[label]
        for picture, said in self.latest[label].items():
            before = self.latest[into].get(picture)
            # who shows one of the two shows both
            if before is None or before.answer == "unknown" or said.answer == "yes":
                self.latest[into][picture] = said

    def after(self, change: Change) -> "Fold":
        latest = {label: dict(each) for label, each in self.latest.items()}
        fold = Fold(dict(self.labels), latest, dict(self.merged))
        fold.apply(change)
        return fold

    def about(self, label: int) -> Mapping[str, Said]:
        """A label's latest answers by picture; none of a label that was taken back while somebody still looks at it."""
        return self.latest.get(label, {})

    def resolve(self, label: int) -> int:
        """The label that a label was merged into in the end, or itself."""
        while label in self.merged:
            label = self.merged[label]
        return label

    def get(self, name: str) -> Label | None:
        return next((label for label in self.labels.values() if label.name == name), None)

    def find(self, name: str) -> Label:
        """A label by its name; refuses one that is not known."""
        from fewtag.tagger.bank import label_name  # with numpy behind it: a project is opened without

        wanted = label_name(name)
        if (found := self.get(wanted)) is not None:
            return found
        known = nearest(wanted, [label.name for label in self.labels.values()])
        raise MissingError(f"there is no label {wanted!r}; {known}")


class Log:
    """The changes, which of them stand, and their fold."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.changes: dict[int, Change] = {}
        self._undone_by: dict[int, int] = {}  # the last change that takes each one back
        self.number_of: dict[str, int] = {}
        for change in changes:
            self._keep(change)
        self.fold = self.folded()
        self._sort_out()
        self.version = len(self.changes)
        """How many changes the fold is made of: who reads it first has a fold that is at least as new."""

    def _keep(self, change: Change) -> None:
        self.changes[change.n] = change
        self.number_of[change.op] = change.n
        self.number_of.update((said.id, change.n) for said in change.answers)
        if change.undoes is not None:
            self._undone_by[change.undoes] = change.n

    def find(self, name: str) -> Label:
        """A label by its name, or by one that it had, and no other has; refuses one that is not known."""
        try:
            return self.fold.find(name)
        except MissingError:
            from fewtag.tagger.bank import label_name

            wanted, had = label_name(name), 0
            for change in list(self.changes.values()):  # undone ones, too: a page may know of nothing else
                facts = change.facts
                names = {facts.get("label", change.n): facts.get("name"), **facts.get("under", {})}
                had = next((int(number) for number, its in names.items() if its == wanted), had)
            known = self.fold.labels.get(self.fold.resolve(had))
            if known is None:
                raise
            return known

    def stands(self, n: int) -> bool:
        """Whether a change counts: nothing takes it back, or what does was taken back itself."""
        by = self._undone_by.get(n)
        return by is None or not self.stands(by)

    def folded(self) -> Fold:
        fold = Fold()
        for change in self.changes.values():
            if change.undoes is None and self.stands(change.n):
                fold.apply(change)
        return fold

    def add(self, change: Change) -> None:
        self._keep(change)
        if change.undoes is None:
            self.fold = self.fold.after(change)
            if change.kind != "carry":  # no person's doing
                self.done.append(change.n)
                self.undone.clear()
        else:
            self.fold = self.folded()
            self._sort_out()
        self.version = len(self.changes)

    def _sort_out(self) -> None:
        """Undo and redo stacks, the next one last: changes that stand, and undos since the last fresh change."""
        self.done, self.undone = list[int](), list[int]()
        for n, change in self.changes.items():
            if change.kind == "carry":
                continue
            if change.undoes is None:
                self.undone.clear()
                if self.stands(n):
                    self.done.append(n)
            elif self.changes[change.undoes].undoes is None and self.stands(n):
                self.undone.append(n)

    def with_undo(self, n: int) -> Fold:
        """The fold as it would be if this change were taken back."""
        undo = Change(max(self.changes) + 1, "", "undo", {}, n)
        return Log([*self.changes.values(), undo]).fold


def told(change: Change, fold: Fold, *, back: bool) -> str:
    """What was taken back, or done again, for people."""
    facts = change.facts
    names = {label.id: label.name for label in fold.labels.values()}
    if change.kind in ("answers", "carry"):
        labels = sorted({names[number] for each in change.answers if (number := fold.resolve(each.label)) in names})
        said = f"{plural(len(change.answers), 'answer')} about {', '.join(labels) or 'a label that is gone'}"
    elif change.kind == "define":
        said = f"the label {facts['name']}"
    elif change.kind == "rename":
        said = f"the name {facts['name']}"
    else:
        said = {"merge": "a merge", "forget": "a label's deletion", "threshold": "a threshold"}[change.kind]
    return f"{said} {'taken back' if back else 'done again'}"
