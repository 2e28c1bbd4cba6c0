"""Label Studio's machine-learning backend: predictions for its tasks, and learning from its annotations.

The requests are those of its `ml/api_connector.py` and of its webhooks; a project's choices are the labels.
"""

import re
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from fewtag.errors import InputError, UnknownWordError
from fewtag.server.queue import Upload
from fewtag.server.routes import CHANGES, Server
from fewtag.server.security import authorised
from fewtag.server.service import Served
from fewtag.server.services import from_base64, version_of
from fewtag.studio.values import Answer
from fewtag.tagger.bank import label_name
from fewtag.tagger.stream import Tagged

router = APIRouter(prefix="/label-studio", tags=["Label Studio"], dependencies=[Depends(authorised)])
AT_ONCE = 16
"""Pictures that are fetched, and in memory, at the same time: Label Studio sends all tasks of a project together."""
LEARNT = frozenset({"ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED"})
_DECLARES = re.compile(r"<!(DOCTYPE|ENTITY)")
_ANSWERS = uuid.UUID("9d6fd1d5-8f0e-4f4e-a6a5-3a1b6f0d3c55")
"""The name space of answers' ids: a webhook that comes again is taken once."""


@dataclass(frozen=True)
class Control:
    """A `<Choices>` tag over a whole picture."""

    name: str
    picture: str
    """The name of the `<Image>` tag."""
    field: str
    """The key of a task's data that has the picture's link."""
    single: bool
    conditional: bool
    """Shown only after another answer, so that nothing chosen may mean that nothing was asked."""
    choices: Mapping[str, str]
    """Of each label what Label Studio calls it."""

    def item(self, labels: Sequence[str]) -> dict[str, Any]:
        """These labels as a result has them."""
        value = {"choices": [self.choices[label] for label in labels]}
        return {"from_name": self.name, "to_name": self.picture, "type": "choices", "value": value}

    def said(self, result: "Sequence[Item]") -> dict[str, str]:
        """What an annotation says of each label: chosen is yes; of the same control, unchosen is no."""
        chosen: set[str] = set()
        asked = not self.single and not self.conditional
        for item in result:
            if item.from_name == self.name and item.type == "choices":
                asked = True
                # a nested choice comes as the path to it
                chosen |= {each if isinstance(each, str) else each[-1] for each in item.value.choices}
        return {label: "yes" if called in chosen else "no" for label, called in self.choices.items()} if asked else {}


def controls(config: str) -> list[Control]:
    """The `<Choices>` tags over pictures of a project's labelling set-up; refuses one that has none.

    >>> tag, = controls('<View><Image name="i" value="$url"/><Choices name="c" toName="i" choice="multiple">'
    ...     '<Choice value="dog"/><Choice value="Sofa"/></Choices></View>')
    >>> tag.field, tag.single, list(tag.choices)
    ('url', False, ['dog', 'Sofa'])
    """
    try:
        if _DECLARES.search(config):
            raise InputError("the labelling set-up declares a document type; leave it out")
        root = ElementTree.fromstring(config)
    except ElementTree.ParseError as error:
        raise InputError(f"the labelling set-up is no XML ({error}); save it in Label Studio again") from error
    pictures = {tag.get("name", ""): tag.get("value", "").lstrip("$") for tag in root.iter("Image")}
    found = []
    for tag in root.iter("Choices"):
        over = tag.get("toName", "").split(",")[0]
        choices = {
            label_name(each.get("value")): each.get("alias") or each.get("value") or ""
            for each in tag.iter("Choice")
            if each.get("value", "").strip()
        }
        if over in pictures and choices and tag.get("perRegion") != "true":
            single = tag.get("choice", "single") != "multiple"
            hidden = tag.get("visibleWhen") is not None or tag.get("whenTagName") is not None
            found.append(Control(tag.get("name", ""), over, pictures[over], single, hidden, choices))
    if not found:
        raise InputError(
            "the project has no <Choices> with <Choice> tags over an <Image>, so that there is nothing to tag; "
            "add them in Settings, Labeling Interface"
        )
    return found


class Project(BaseModel):
    """What Label Studio says when it connects, and before each batch; its address and key are not taken from here."""

    label_config: Annotated[str, Field(alias="schema")]


class Task(BaseModel):
    """A task, as far as it matters."""

    id: int | str | None = None
    data: dict[str, Any] = {}


class Tasks(BaseModel):
    """Tasks to predict."""

    tasks: list[Task]
    label_config: str


class Chosen(BaseModel):
    """The value of a result."""

    choices: list[str | Annotated[list[str], Field(min_length=1)]] = []


class Item(BaseModel):
    """A result of an annotation; those of other controls than choices are not looked at."""

    from_name: str = ""
    type: str = ""
    value: Chosen = Chosen()


class Annotation(BaseModel):
    """What a person submitted."""

    id: int | str | None = None
    updated_at: str | None = None
    was_cancelled: bool | None = None
    result: list[Item] | None = None


class InProject(BaseModel):
    """The project of a webhook."""

    label_config: str = ""


class Hook(BaseModel):
    """A webhook: of all that may happen only annotations matter."""

    action: str
    project: InProject = InProject()
    task: Task | list[Task] | None = None
    annotation: Annotation | list[Annotation] | None = None


@router.get("")
@router.get("/health")
async def health() -> Response:
    """Whether the backend answers."""
    return JSONResponse({"status": "UP", "model_class": "fewtag"})


@router.post("/setup")
def setup(asked: Project, server: Server) -> Response:
    """Takes the project's choices for labels; those that are new are known by their names from now on."""
    _define(server, controls(asked.label_config))
    return JSONResponse({"model_version": version_of(server)})


@router.get("/versions")
def versions(server: Server) -> Response:
    """The one version that there is: the labels as they are now."""
    return JSONResponse({"versions": [version_of(server)]})


@router.post("/predict")
def predict(asked: Tasks, server: Server) -> Response:
    """A prediction for each task, in their order; its score is how sure the least sure label is.

    Label Studio's uncertainty sampling shows tasks with low scores first. A task whose picture cannot be had gets an
    empty prediction; where that is so for all of them, the request is refused with the reason.
    """
    tags = controls(asked.label_config)
    known = _define(server, tags)
    version, results, failures = version_of(server), list[dict[str, Any]](), list[str]()
    with ThreadPoolExecutor(8) as pool:
        for first in range(0, len(asked.tasks), AT_ONCE):
            some = asked.tasks[first : first + AT_ONCE]
            for task, rows in zip(some, _rows(server, some, tags, pool.map), strict=True):
                failed = [row.failure for row in rows.values() if row.failure]
                failures += failed[:1]
                result = [] if failed else [tag.item(_chosen(tag, rows[tag.field], known)) for tag in tags]
                sure = 0.0 if failed else min(_sureness(tag, rows[tag.field], known) for tag in tags)
                facts = {"task": task.id, "result": [item for item in result if item["value"]["choices"]]}
                results.append(facts | {"score": round(sure, 6), "model_version": version})
    if results and len(failures) == len(results):
        raise InputError(failures[0])
    return JSONResponse({"results": results})


@router.post("/webhook", status_code=201, dependencies=CHANGES)
def webhook(asked: Hook, server: Server) -> Response:
    """Learns from an annotation: what was chosen is there, the other choices of the same control are not."""
    if asked.action not in LEARNT or asked.annotation is None or asked.task is None:
        return JSONResponse({"result": f"nothing is learnt from {asked.action[:60]}", "status": "ok"}, 201)
    tags = controls(asked.project.label_config)
    known = _define(server, tags)
    annotations = asked.annotation if isinstance(asked.annotation, list) else [asked.annotation]
    tasks = asked.task if isinstance(asked.task, list) else [asked.task]
    if len(annotations) != len(tasks):
        raise InputError(f"the webhook has {len(annotations)} annotations and {len(tasks)} tasks; send as many of both")
    taken, failures = 0, list[InputError]()
    for annotation, task in zip(annotations, tasks, strict=True):
        try:
            taken += _learn(server, annotation, task, tags, known)
        except InputError as error:
            failures.append(error)
    if len(failures) == len(annotations) > 0:
        raise failures[0]
    facts = {"result": {"answers": taken, "model_version": version_of(server)}, "status": "ok"}
    return JSONResponse(facts, 201)


def _learn(
    server: Served, annotation: Annotation, task: Task, tags: Sequence[Control], known: Mapping[str, str]
) -> int:
    """How many answers there were in an annotation; all of them are taken, or none."""
    answers, uploads = list[Answer](), dict[str, Upload]()
    for tag in tags:
        said = {} if annotation.was_cancelled else tag.said(annotation.result or ())
        if said and tag.field not in uploads:
            uploads[tag.field] = _upload(server, task, tag.field)
        for label, answer in said.items():
            # the same each time that it is sent
            name = uuid.uuid5(_ANSWERS, f"{annotation.id} {annotation.updated_at} {tag.name} {label}")
            picture = uploads[tag.field].digest.hex()
            answers.append(Answer(str(name), picture, known[label], answer, "label-studio"))
    if not server.is_project:
        server.bank.recent.add(list(uploads.values()))
    if answers:
        server.actions.answer(answers)
    return len(answers)


def _define(server: Served, tags: Sequence[Control]) -> dict[str, str]:
    """What each choice's label is called here; a new one is known by its name, or by pictures to come."""
    names = {label.name.casefold(): label.name for label in server.actions.labels()}
    choices = [choice for tag in tags for choice in tag.choices]
    new = [choice for choice in dict.fromkeys(choices) if choice.casefold() not in names]
    if new and not server.settings.read_only:
        if server.is_project:
            for choice in new:
                try:
                    server.studio.define(choice)
                except UnknownWordError:
                    server.studio.define(choice, words=False)
        else:
            server.bank.define_all(new)  # Label Studio waits 3 seconds, however many there are
        names = {label.name.casefold(): label.name for label in server.actions.labels()} | names
    return {choice: names.get(choice.casefold(), choice) for choice in choices}


def _rows(
    server: Served, tasks: Sequence[Task], tags: Sequence[Control], each: Callable[..., Any]
) -> list[dict[str, Tagged]]:
    """Of each task a row for each picture that a control is about; fetched and tagged side by side."""
    asked = [(number, field) for number in range(len(tasks)) for field in dict.fromkeys(tag.field for tag in tags)]

    def fetched(place: tuple[int, str]) -> Upload | str:
        try:
            return _upload(server, tasks[place[0]], place[1])
        except InputError as error:
            return str(error)

    pictures = dict(zip(asked, each(fetched, asked), strict=True))
    uploads = [upload for upload in pictures.values() if isinstance(upload, Upload)]
    tagged = iter([future.result() for future in server.tag(uploads)]) if uploads else iter(())
    found: list[dict[str, Tagged]] = [{} for _ in tasks]
    for (number, field), picture in pictures.items():
        found[number][field] = Tagged("", failure=picture) if isinstance(picture, str) else next(tagged)
    return found


def _upload(server: Served, task: Task, field: str) -> Upload:
    link = task.data.get(field)
    if not isinstance(link, str) or not link:
        raise InputError(f"task {task.id} has no picture in its data's {field!r}; check the labelling set-up")
    if link.startswith("data:"):
        return from_base64(link, f"the picture of task {task.id}")
    assert server.one_host is not None  # the command line sees to it
    return Upload.of(link.rsplit("/", 1)[-1][-100:], server.one_host.fetch(link))


def _chosen(tag: Control, row: Tagged, known: Mapping[str, str]) -> list[str]:
    """The control's labels that a picture gets, likeliest first; of a single choice the likeliest alone."""
    given = [label for name in row.tags for label in tag.choices if known[label] == name]
    return given[:1] if tag.single else given


def _sureness(tag: Control, row: Tagged, known: Mapping[str, str]) -> float:
    """From 0.5, a label that may as well be there as not, to 1."""
    return min((max(p, 1 - p) for label in tag.choices if (p := row.scores.get(known[label])) is not None), default=0.5)
