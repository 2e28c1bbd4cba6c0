"""The log of changes, and its fold: the state that they add up to.

A change is a group of answers, or an action on a label; an undo is a change too, which reverts another one, even an
undo. The state in memory is the result of all changes that stand, in the order of their numbers: clocks decide nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fewtag.errors import MissingError, nearest, plural

Verdict = Literal["yes", "no", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("yes", "no", "unknown")


class Said(NamedTuple):
    """An answer in the log: a verdict on one picture and one label, and its source."""

    id: str
    picture: str
    label: int
    """The label's number; 0 for the label that the same change defines, until it has one."""
    answer: Verdict
    source: str
    former: bool = False
    """Whether it went on to an edited file: it stays a fact about this picture, but is learnt from that one alone."""


class Label(NamedTuple):
    """A label's settings; it is identified by the number of the change that created it, whatever its name."""

    id: int
    name: str
    like: tuple[str, ...] | None = None
    words: bool = True
    threshold: float | None = None
    prior: float | None = None
    """The share of pictures that showed the label when its threshold was set."""


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
    """The result of changes; treated as immutable: a later change makes a new one, which does not disturb readers."""

    labels: dict[int, Label] = field(default_factory=dict)
    latest: dict[int, dict[str, Said]] = field(default_factory=dict)
    """For each label the latest answers, by picture."""
    merged: dict[int, int] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Applies a change; one about a label that does not exist, since its creation was undone, does nothing."""
        facts, kind = change.facts, change.kind
        label = self.labels.get(facts.get("label", change.n))
        if kind == "define" and (label is not None or "label" not in facts):
            like = None if facts["like"] is None else tuple(facts["like"])
            known = label or Label(change.n, facts["name"])
            self.labels[known.id] = known._replace(like=like, words=facts["words"])
            self.latest.setdefault(known.id, {})
        elif kind in ("rename", "merge"):
            # labels below it are renamed too
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
            latest = self.latest.setdefault(self.resolve(said.label), {})
            if kind != "carry":
                latest[said.picture] = said
                continue
            # to an edited file goes what still stands of the one before, unless that was so for another copy of it
            before = latest.get(facts["from"])
            if before is not None and not (before.former and said.picture in latest):
                latest[said.picture] = said._replace(answer=before.answer, source=before.source)
                latest[facts["from"]] = before._replace(former=True)

    def _merge(self, label: int, other: int) -> None:
        into = self.resolve(other)
        if label not in self.labels or into not in self.labels or label == into:  # each was merged into the other
            return
        self.merged[label] = into
        del self.labels[label]
        for picture, said in self.latest[label].items():
            before = self.latest[into].get(picture)
            # a picture that shows one of two merged labels shows the result
            if before is None or before.answer == "unknown" or said.answer == "yes":
                self.latest[into][picture] = said

    def after(self, change: Change) -> "Fold":
        latest = {label: dict(each) for label, each in self.latest.items()}
        fold = Fold(dict(self.labels), latest, dict(self.merged))
        fold.apply(change)
        return fold

    def about(self, label: int) -> Mapping[str, Said]:
        """A label's latest answers by picture; empty for a label that was removed while somebody still looks at it."""
        return self.latest.get(label, {})

    @property
    def answers(self) -> int:
        """How many answers there are; one that went on to an edited file counts there alone."""
        return sum(not said.former for label in self.labels for said in self.latest[label].values())

    def resolve(self, label: int) -> int:
        """The label that a label was merged into in the end, or itself."""
        while label in self.merged:
            label = self.merged[label]
        return label

    def get(self, name: str) -> Label | None:
        return next((label for label in self.labels.values() if label.name == name), None)

    def find(self, name: str) -> Label:
        """A label by its name; raises MissingError if it is unknown."""
        from fewtag.tagger.bank import label_name  # imported here: it brings numpy, without which a project is opened

        wanted = name if self.get(name) else label_name(name)  # older projects have names that are refused now
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
        """The number of changes in the fold; read before the fold, it belongs to a fold that is at least as new."""

    def _keep(self, change: Change) -> None:
        self.changes[change.n] = change
        self.number_of[change.op] = change.n
        self.number_of.update((said.id, change.n) for said in change.answers)
        if change.undoes is not None:
            self._undone_by[change.undoes] = change.n

    def find(self, name: str) -> Label:
        """A label by its name, or by a former name that no other label has; raises MissingError if it is unknown."""
        try:
            return self.fold.find(name)
        except MissingError:
            from fewtag.tagger.bank import label_name

            wanted, had = label_name(name), 0
            for change in list(self.changes.values()):  # undone ones too, since a page may not know any later name
                facts = change.facts
                names = {facts.get("label", change.n): facts.get("name"), **facts.get("under", {})}
                had = next((int(number) for number, its in names.items() if its == wanted), had)
            known = self.fold.labels.get(self.fold.resolve(had))
            if known is None:
                raise
            return known

    def stands(self, n: int) -> bool:
        """Whether a change counts: nothing reverts it, or what reverts it was itself reverted."""
        return self.reverted_by(n) is None

    def reverted_by(self, n: int) -> Change | None:
        """The undo by which a change does not count."""
        by = self._undone_by.get(n)
        return self.changes[by] if by is not None and self.stands(by) else None

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
            if change.kind != "carry":  # not made by a person
                self.done.append(change.n)
                self.undone.clear()
        else:
            self.fold = self.folded()
            self._sort_out()
        self.version = len(self.changes)

    def _sort_out(self) -> None:
        """Rebuilds the undo and redo stacks, the next last: changes that stand, and undos since the last new change."""
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
        """The fold as it would be if this change were undone."""
        undo = Change(max(self.changes) + 1, "", "undo", {}, n)
        return Log([*self.changes.values(), undo]).fold


def told(change: Change, before: Fold, fold: Fold, *, back: bool) -> str:
    """A description, for people, of what was undone or redone between these two states."""
    facts = change.facts
    names = {label.id: label.name for each in (before, fold) for label in each.labels.values()}

    def called(*numbers: int) -> str:
        known = sorted({names[number] for each in numbers for number in [fold.resolve(each)] if number in names})
        return ", ".join(known) or "a label that is gone"

    if change.kind in ("answers", "carry"):
        said = f"{plural(len(change.answers), 'answer')} about {called(*(each.label for each in change.answers))}"
    elif change.kind == "define":
        said = f"the label {facts['name']}"
    elif change.kind == "rename":
        said = f"the name {facts['name']}"
    elif change.kind == "merge":
        said = f"the merge of {names.get(facts['label'], 'a label')} into {called(facts['into'])}"
    else:
        said = f"the {'deletion' if change.kind == 'forget' else 'threshold'} of {called(facts['label'])}"
    return f"{said} {'taken back' if back else 'done again'}"
