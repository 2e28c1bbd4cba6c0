"""The studio's inputs and outputs: frozen values that map one to one to the JSON of the HTTP API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fewtag.studio.log import Verdict
from fewtag.tagger.explain import CELLS, heat_map
from fewtag.tagger.stream import DIGITS

Order = Literal["sure", "unsure", "missed", "audit"]
ORDERS: tuple[Order, ...] = ("sure", "unsure", "missed", "audit")
MOST_AT_ONCE = 1000
"""The most answers in a group, cells on a page, and pictures in a request."""
MOST_TAUGHT = 50_000
"""The most pictures that a label is taught with at once: a whole selection is one change, which one undo takes back."""
PAGE = "page"
"""The source of answers about pictures that Review chose."""
AUDIT = "audit"
"""The source of answers in an audit, which measure precision."""
STACK = "stack"
"""The source of answers that a picture gets from another one of its stack."""
UNTAUGHT = (AUDIT, STACK)
"""Sources of answers from which nothing is learnt, though they are facts about their pictures: an exam whose questions
were taught measures nothing, and a burst is one example, however many shots it has."""


@dataclass(frozen=True)
class Answer:
    """A person's word on one picture and one label; the same `id` again is the same answer."""

    id: str
    """A UUID."""
    picture: str
    """The picture's digest."""
    label: str
    answer: str
    """yes, no or unknown."""
    source: str = "click"
    stack: bool = False
    """Whether it holds for all pictures of the stack, except those that were answered individually."""
    marked: bool = False
    """Whether it is the page's own mark, which the person left as it was: it does not overrule what was answered since
    the page was drawn. (`Cell.marked` is what that mark says.)"""


@dataclass(frozen=True)
class Acknowledged:
    """Answers that are on disk, and what takes them back together."""

    acknowledged: tuple[str, ...]
    undo: str | None = None
    """The UUID of the group, to undo it; None if it cannot be undone, or all answers were already known."""
    pictures: int = 0
    """How many pictures the answers hold for, including those of stacks, without marks that overruled nothing."""


@dataclass(frozen=True)
class Reverted:
    """What an undo did to one picture and label; `id` is that of the answer that was taken back or came back."""

    id: str
    picture: str
    label: str
    was: Verdict | None
    now: Verdict | None


@dataclass(frozen=True)
class Undone:
    """What an undo or a redo did; of a change of labels `undone` is empty and `what` says it."""

    id: str
    """The id of the undo itself: undoing it is a redo."""
    what: str
    """A description for people: "48 answers about heron taken back", "the name egret done again"."""
    undone: tuple[Reverted, ...]
    left: int
    """How many groups can still be undone, or redone."""


@dataclass(frozen=True)
class LabelRow:
    """What a label means and from how many pictures; the last three in a project alone."""

    name: str
    means: str
    examples: int
    absent: int
    threshold: float | None
    prior: float | None
    trust: float | None
    tags: int | None = None
    """The number of pictures that have the label: over the threshold and not refused, or confirmed."""
    waiting: int | None = None
    """The number of unanswered pictures near the threshold."""
    expected_precision: float | None = None
    """The mean calibrated probability of tagged pictures, with confirmed ones counting as 1; None if there are none."""


@dataclass(frozen=True)
class Changed(LabelRow):
    """A label after a change of it."""

    undo: str | None = None
    """In a project, the UUID of the change, to undo it; of several changes at once, of the last."""


@dataclass(frozen=True)
class Overview:
    """The project in numbers."""

    id: str
    """The project's own UUID, which stays when its folder is moved."""
    name: str
    pictures: int
    """The number of pictures found so far, including unreadable ones."""
    indexed: int
    failures: int
    model: str
    folders: tuple[str, ...]
    labels: int
    answers: int
    can_undo: bool
    can_redo: bool
    version: int
    """Rises with every change, so that a page can tell whether what it shows is up to date."""
    indexing: bool = False
    notice: str = ""
    """One sentence about a problem of the whole project, such as a missing folder; else empty."""
    files: int = 0
    """Rises when files of pictures come, change, move or go, so that a list can tell whether it is up to date."""


@dataclass(frozen=True)
class CellTag:
    """A label on a picture: by a person's word, or by the model's."""

    label: str
    p: float
    state: Literal["yes", "no", "model"]


@dataclass(frozen=True)
class Cell:
    """A picture in a grid."""

    digest: str
    name: str
    width: int
    height: int
    p: float | None
    """The query's score, if it ranks pictures."""
    tags: tuple[CellTag, ...]
    stack: int
    """The number of pictures in its stack, including itself and those that the query hides: an answer holds for all of
    them. 1 if stacks are not asked for."""
    marked: bool | None = None
    """In a review: whether the page would answer yes. (`Answer.marked` tells whether a person left it so.)"""


@dataclass(frozen=True)
class Meaning:
    """What a part of a query was taken for."""

    text: str
    taken_as: Literal["label", "word", "name", "state", "folder", "date", "like"]
    detail: str = ""

    # for the schema of the API
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"alias_generator": lambda name: _JSON_NAMES.get(name, name)}


@dataclass(frozen=True)
class Page:
    """Some of the pictures that a query finds."""

    total: int
    """The number of cells; a stack is one."""
    members: int
    """The number of pictures that the query finds, including those of stacks."""
    offset: int
    query_means: tuple[Meaning, ...]
    pictures: tuple[Cell, ...]
    digests: tuple[str, ...] | None = None
    """If only digests are asked for: those of all cells, not only of a page, in their order."""


@dataclass(frozen=True)
class Because:
    """An example that speaks for a label, and how much."""

    digest: str
    weight: float


@dataclass(frozen=True)
class PictureLabel:
    """A label's probability for one picture, and why."""

    label: str
    p: float
    threshold: float
    answer: Verdict | None
    because: tuple[Because, ...]


@dataclass(frozen=True)
class PictureDetail:
    """All that is known of a picture."""

    digest: str
    name: str
    path: str
    width: int
    height: int
    taken: str | None
    """The time taken, in ISO 8601 without a time zone, as cameras write it."""
    bytes: int
    labels: tuple[PictureLabel, ...]
    stack: tuple[str, ...]
    would_write: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Where a label is seen: rows of heat, from the top left, each from 0 to the label's probability."""

    probability: float
    heat: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, logits: NDArray[np.floating], chance: float) -> "Explanation":
        """The explanation from the log-odds of a picture and of its copies with a part hidden."""
        heat = heat_map(logits, chance, (CELLS, CELLS)).tolist()
        return cls(round(chance, DIGITS), tuple(tuple(round(each, 4) for each in row) for row in heat))


@dataclass(frozen=True)
class CurvePoint:
    """What a threshold would tag."""

    threshold: float
    tags: int
    expected_precision: float | None
    recall: float | None


@dataclass(frozen=True)
class Histogram:
    """How many pictures lie between two edges of probability: unanswered, confirmed, rejected."""

    edges: tuple[float, ...]
    model: tuple[int, ...]
    yes: tuple[int, ...]
    no: tuple[int, ...]


@dataclass(frozen=True)
class Audited:
    """Precision by a random sample of what is tagged, with its 95 % interval (Wilson)."""

    precision: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Answered:
    """How often a label was answered, each picture by its latest word."""

    yes: int
    no: int
    unknown: int


@dataclass(frozen=True)
class Influence:
    """An example, and how much the expected precision falls without it; none where that is not worked out, or never is:
    of an example without any other answer, and of all but the first two dozen."""

    digest: str
    influence: float | None


@dataclass(frozen=True)
class MistakenFor:
    """Another label that pictures were said to show which this one was refused for."""

    label: str
    count: int


@dataclass(frozen=True)
class ReviewPage:
    """A page of pictures with one question, and what is known of the label."""

    label: str
    version: int
    """The project's version when the page was drawn."""
    order: Order
    question: str
    pictures: tuple[Cell, ...]
    left: int
    """How many pictures this order would still ask about, including those on the page."""
    answered: Answered
    threshold: float
    curve: tuple[CurvePoint, ...]
    histogram: Histogram
    audited: Audited | None
    enough: str
    examples: tuple[Influence, ...]
    mistaken_for: tuple[MistakenFor, ...]
    settled: bool = False
    """Whether the influences of all examples that will have one have been computed; otherwise they will be soon."""


@dataclass(frozen=True)
class Failure:
    """A picture that could not be read."""

    name: str
    reason: str


@dataclass(frozen=True)
class Delivery:
    """What was written, or would be."""

    format: str
    dry_run: bool
    rows: int
    changes: int
    """Rows that differ from the last delivery of this format, all of them the first time; or sidecars that change."""
    sample: tuple[Mapping[str, Any], ...]
    file: str | None = None
    """Its name in the project's folder `deliveries`: a file for a table, else a folder."""
    failures: int = 0
    """The number of pictures whose sidecars could not be written; the sample says why."""


@dataclass(frozen=True)
class Checked:
    """What a check of the project found; `problems` are sentences, none where all is well."""

    answers: int
    labels: int
    pictures: int
    problems: tuple[str, ...]


Progress = Callable[[int, int], None]
"""Called with the number done and the total; an exception ends the work, of which then nothing is written."""
Listener = Callable[[str, Any], None]
"""Called with an event's name and its value: ("project", Overview) on progress and changes."""
_JSON_NAMES: Mapping[str, str] = {"taken_as": "as"}


def as_json(value: Any) -> Any:
    """A value as JSON; a field whose name is a Python keyword ("as") gets the API's name."""
    if is_dataclass(value):
        return {_JSON_NAMES.get(each.name, each.name): as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple | list):
        return [as_json(each) for each in value]
    return {key: as_json(each) for key, each in value.items()} if isinstance(value, Mapping) else value
