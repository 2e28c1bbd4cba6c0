"""Requests of the API, which refuse unknown fields, and replies that are no values of the studio."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fewtag.server.jobs import Job
from fewtag.studio.log import Verdict
from fewtag.studio.values import MOST_AT_ONCE, MOST_TAUGHT, Failure, LabelRow

Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
"""A picture's digest: the first 16 bytes of the SHA-256 of its encoded bytes, in hexadecimal digits."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A label's name; "birds/heron" is below "birds"."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Pictures(_Asked):
    """Pictures that the server knows, by their digests."""

    pictures: Annotated[list[Digest], Field(min_length=1, max_length=MOST_AT_ONCE)]
    stacks: bool = False
    """For examples in a project: whether each stands for all pictures of its stack."""


class Examples(Pictures):
    """Pictures that show a label, by their digests."""

    pictures: Annotated[list[Digest], Field(min_length=1, max_length=MOST_TAUGHT)]


class NewLabel(_Asked):
    """A label by its name alone, like other words, or without words."""

    name: Name
    like: Annotated[list[Name], Field(max_length=100)] | None = None
    words: bool = True


class ChangedLabel(_Asked):
    """Another name, another threshold, or both; a threshold of null goes back to the model's own."""

    name: Name | None = None
    merge: bool = False
    threshold: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None


class OneAnswer(_Asked):
    """A person's word on one picture and one label; the same id again is the same answer."""

    id: UUID
    picture: Digest
    label: Name
    answer: Verdict
    source: Annotated[str, StringConstraints(pattern="^[a-z-]{1,20}$")] = "click"
    stack: bool = False
    """In a project: whether it holds for all pictures of the stack, except those that were answered individually."""
    marked: bool = False
    """In a project: whether it is a page's own mark, left as it was, which does not overrule an existing answer."""


class SeveralAnswers(_Asked):
    """All are taken, or none."""

    answers: Annotated[list[OneAnswer], Field(min_length=1, max_length=MOST_AT_ONCE)]


class Explained(_Asked):
    """Which picture, and what to look for in it."""

    picture: Digest
    label: Name


class Undo(_Asked):
    """The last group of changes, or the one of this id."""

    id: UUID | None = None


class Search(_Asked):
    """Labels, words, states, folders and dates in one line; or what is like a picture, or like a part of it."""

    query: Annotated[str, StringConstraints(max_length=1000)] = ""
    like: Digest | None = None
    box: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=4, max_length=4)] | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = 200
    stacked: bool = True
    only: Literal["digests"] | None = None
    """Instead of a page, the digests of all cells, in the order of the pages; `offset` and `limit` are ignored."""


class Deliver(_Asked):
    """All tags as a table, as another program's data set or as sidecars beside the pictures; or the bank as a graph."""

    format: Literal["csv", "jsonl", "parquet", "xmp", "imagefolder", "fiftyone", "label-studio", "coco", "onnx"]
    confirmed_only: bool = False
    scores: bool = False
    take_back: bool = False
    """For sidecars: removes what was written, to the byte, instead of writing."""
    dry_run: bool = False


class Row(BaseModel):
    """A picture with its tags, likeliest first, and every label's probability; or why it could not be read."""

    image: str
    digest: Digest | None = None
    tags: list[str] | None = None
    scores: dict[str, float] | None = None
    failure: str | None = None


class Rows(BaseModel):
    """In the order of the request."""

    rows: list[Row]


class Labels(BaseModel):
    """Sorted by name."""

    labels: list[LabelRow]


class JobList(BaseModel):
    """Those of this run of the server."""

    jobs: list[Job]


class Failures(BaseModel):
    """All of them."""

    failures: list[Failure]


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Whether it can tag yet, and if not, what it waits for."""

    ready: bool
    detail: str = ""


class Problem(BaseModel):
    """What was wrong, what was found and what to do, in one sentence in `detail` (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
