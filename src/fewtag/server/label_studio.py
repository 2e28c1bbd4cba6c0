"""Label Studio's machine-learning backend: predictions for its tasks, and learning from its annotations.

The requests are those of its `ml/api_connector.py` and of its webhooks; a project's choices are the labels.
"""

import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from fewtag.errors import InputError
from fewtag.pictures.prefetch import batches
from fewtag.server.dialects import from_base64
from fewtag.server.queue import Upload
from fewtag.server.routes import NEEDS_WRITE, Server
from fewtag.server.security import authorised
from fewtag.server.service import Served
from fewtag.studio.values import Answer
from fewtag.tagger.bank import label_name
from fewtag.tagger.stream import Tagged

router = APIRouter(prefix="/label-studio", tags=["Label Studio"], dependencies=[Depends(authorised)])
AT_ONCE = 16
"""Pictures that are fetched, and in memory, at once: Label Studio sends all tasks of a project together."""
LEARNT = frozenset({"ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED"})
_DECLARES = re.compile(r"<!(DOCTYPE|ENTITY)")
_ANSWERS = uuid.UUID("9d6fd1d5-8f0e-4f4e-a6a5-3a1b6f0d3c55")
"""The namespace of answers' ids: a webhook that is sent again is counted once."""
KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
PLACES = ("/data/", "/storage-data/")
"""Where Label Studio keeps pictures; nothing else is requested from it, since requests carry its key."""
SECONDS = 20.0
"""The time limit for one picture."""
_STEP_SECONDS = 5.0
_KEY_SECONDS = 200.0
"""How long an access token is used, which was exchanged for a refresh token and is valid for 5 minutes."""
_PORTS = {"http": 80, "https": 443}
_SAFE = "/%~!$&'()*+,;=:@-._?"
_REFRESH_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")


@dataclass(frozen=True)
class Control:
    """A `<Choices>` tag over a whole picture."""

    name: str
    picture: str
    """The name of the `<Image>` tag."""
    field: str
    """The key in a task's data that has the picture's link."""
    single: bool
    conditional: bool
    """Whether it is shown only after another answer, so that an empty choice may mean that nothing was asked."""
    choices: Mapping[str, tuple[str, ...]]
    """For each label Label Studio's value, after those of the choices that it lies under."""
    nested: bool
    """Whether a choice is given as that path, and chosen only if no other lies under it."""

    def item(self, labels: Sequence[str]) -> dict[str, Any]:
        """A result of Label Studio with these labels."""
        paths = [self.choices[label] for label in labels]
        above = {path[:end] for path in self.choices.values() for end in range(1, len(path))}
        shown = [list(path) for path in paths if path not in above] if self.nested else [path[0] for path in paths]
        value = {"choices": shown[:1] if self.single else shown}
        return {"from_name": self.name, "to_name": self.picture, "type": "choices", "value": value}

    def said(self, result: "Sequence[Item]") -> dict[str, str]:
        """What an annotation says about each label: chosen ones are yes; unchosen ones of the same control are no."""
        chosen: set[str] = set()
        asked = not self.single and not self.conditional
        for item in result:
            if item.from_name == self.name and item.type == "choices":
                asked = True
                # a nested choice is given as its path, all of which it says: a Manx is a cat
                chosen.update(*([each] if isinstance(each, str) else each for each in item.value.choices))
        return {label: "yes" if path[-1] in chosen else "no" for label, path in self.choices.items()} if asked else {}


def controls(config: str) -> list[Control]:
    """The `<Choices>` tags over pictures in a project's labelling set-up; refuses a set-up that has none.

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
        nested, choices = tag.get("allowNested", "").lower() == "true", dict[str, tuple[str, ...]]()
        parents = {child: parent for parent in tag.iter() for child in parent}
        for each in tag.iter("Choice"):
            way = [each]
            while (parent := parents[way[0]]) is not tag:
                way.insert(0, parent)
            path = tuple(step.get("alias") or step.get("value") or "" for step in way if step.tag == "Choice")
            if each.get("value", "").strip() and (nested or len(path) == 1):  # Label Studio shows no others
                choices[label_name(each.get("value"))] = path
        if over in pictures and choices and tag.get("perRegion") != "true":
            single = tag.get("choice", "single") != "multiple"
            hidden = tag.get("visibleWhen") is not None or tag.get("whenTagName") is not None
            found.append(Control(tag.get("name", ""), over, pictures[over], single, hidden, choices, nested))
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


@router.get("", include_in_schema=False)
@router.get("/health")
async def label_studio_health() -> Response:
    """Whether the backend answers."""
    return JSONResponse({"status": "UP", "model_class": "fewtag"})


@router.post("/setup")
def setup(asked: Project, server: Server) -> Response:
    """Takes the project's choices for labels; those that are new are known by their names from now on."""
    _define(server, controls(asked.label_config))
    return JSONResponse({"model_version": server.version})


@router.get("/versions")
def versions(server: Server) -> Response:
    """The one version that there is: the labels as they are now."""
    return JSONResponse({"versions": [server.version]})


@router.post("/predict")
def predict(asked: Tasks, server: Server) -> Response:
    """A prediction for each task, in their order; its score is how sure the least sure label is.

    Label Studio's uncertainty sampling shows tasks with low scores first. A task whose picture cannot be had gets an
    empty prediction; where that is so for all of them, the request is refused with the reason.
    """
    tags = controls(asked.label_config)
    known = _define(server, tags)
    version, results, failures = server.version, list[dict[str, Any]](), list[str]()
    with ThreadPoolExecutor(8) as pool:
        for some in batches(iter(asked.tasks), AT_ONCE):
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


@router.post("/webhook", status_code=201, dependencies=NEEDS_WRITE)
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
    facts = {"result": {"answers": taken, "model_version": server.version}, "status": "ok"}
    return JSONResponse(facts, 201)


def _learn(
    server: Served, annotation: Annotation, task: Task, tags: Sequence[Control], known: Mapping[str, str]
) -> int:
    """Records the answers of an annotation, all of them or none; returns their number."""
    answers, uploads = list[Answer](), dict[str, Upload]()
    for tag in tags:
        said = {} if annotation.was_cancelled else tag.said(annotation.result or ())
        if said and tag.field not in uploads:
            uploads[tag.field] = _upload(server, task, tag.field)
        for label, answer in said.items():
            # the same id each time that it is sent
            name = uuid.uuid5(_ANSWERS, f"{annotation.id} {annotation.updated_at} {tag.name} {label}")
            picture = uploads[tag.field].digest.hex()
            answers.append(Answer(str(name), picture, known[label], answer, "label-studio"))
    if not server.is_project:
        server.bank.recent.add(list(uploads.values()))
    if answers:
        server.actions.answer(answers)
    return len(answers)


def _define(server: Served, tags: Sequence[Control]) -> dict[str, str]:
    """The name here of each choice's label; a new label is known by its name, or by pictures to come."""
    choices = {choice: _folded(choice) for tag in tags for choice in tag.choices}
    names = {_folded(name): name for name in server.label_names}
    new = [choice for choice, folded in choices.items() if folded not in names]
    if new and not server.settings.read_only:
        server.actions.define_all(new)  # in one call: Label Studio waits for only 3 seconds
        names = {_folded(name): name for name in server.label_names} | names
    return {choice: names.get(folded, choice) for choice, folded in choices.items()}


def _folded(name: str) -> str:
    """A name in canonical spelling, to compare choices and labels: without case or blanks around slashes."""
    return re.sub(r"\s*/\s*", "/", name).casefold()


def _rows(
    server: Served, tasks: Sequence[Task], tags: Sequence[Control], each: Callable[..., Any]
) -> list[dict[str, Tagged]]:
    """For each task a row per picture that a control is about; pictures are fetched and tagged concurrently."""
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
    assert server.fetch is not None  # ensured by the command line
    return Upload.of(link.rsplit("/", 1)[-1][-100:], server.fetch(link))


def _chosen(tag: Control, row: Tagged, known: Mapping[str, str]) -> list[str]:
    """The control's labels that a picture gets, likeliest first."""
    return [label for name in row.tags for label in tag.choices if known[label] == name]


def _sureness(tag: Control, row: Tagged, known: Mapping[str, str]) -> float:
    """How certain the least certain label is, from 0.5 to 1."""
    return min((max(p, 1 - p) for label in tag.choices if (p := row.scores.get(known[label])) is not None), default=0.5)


class OneHost:
    """Fetches from Label Studio's address only, without redirects: protects from server-side request forgery.

    Its name is resolved once, at the start.
    """

    def __init__(self, url: str, most_bytes: int) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:  # half an IPv6 address
            parts = urlsplit("")
        if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.query:
            raise InputError(f"--label-studio {url!r} is no address; give one like http://localhost:8080")
        self.scheme, self.host, self.base = parts.scheme, parts.hostname, parts.path.rstrip("/")
        try:
            self.port = parts.port or _PORTS[parts.scheme]
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self.addresses = [str(each[4][0]) for each in found]  # all, since localhost is ::1 first, where few listen
        except (OSError, ValueError) as error:
            raise InputError(f"--label-studio {url!r} cannot be found ({error}); check its name") from error
        named = f"[{self.host}]" if ":" in self.host else self.host
        self._places = {f"{named}:{self.port}", named} if self.port == _PORTS[self.scheme] else {f"{named}:{self.port}"}
        self.most_bytes = most_bytes
        self._key, self._access = os.environ.get(KEY_VARIABLE, ""), ("", 0.0)
        self._lock = threading.Lock()

    def fetch(self, link: str) -> bytes:
        """Fetches a picture by its link in a task; refuses a link to anywhere else."""
        try:
            parts = urlsplit(link)
        except ValueError as error:
            raise InputError(f"the picture {link[:100]!r} is no link ({error}); upload it to Label Studio") from error
        ours = parts.scheme == self.scheme and parts.netloc.lower() in self._places
        if (parts.scheme or parts.netloc) and not ours:
            raise InputError(
                f"the picture {link[:100]!r} is not at {self.scheme}://{self.host}:{self.port}, and nothing else is "
                "fetched; upload it to Label Studio, or serve it as one of its local files"
            )
        path = parts.path if self.base and parts.path.startswith(self.base + "/") else self.base + parts.path
        inside = path.removeprefix(self.base)
        if not inside.startswith(PLACES) or ".." in unquote(inside).split("/"):
            raise InputError(
                f"the picture {link[:100]!r} is not under {' or '.join(PLACES)}; upload it to Label Studio"
            )
        asked = quote(path, safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
        status, content = self._ask("GET", asked, self._headers())
        if status != 200:
            said = {401: f"set {KEY_VARIABLE}", 403: f"set {KEY_VARIABLE}", 404: "upload it again"}.get(status)
            raise InputError(f"Label Studio answers {status} to {link[:100]!r}; {said or 'look at its log'}")
        return content

    def _headers(self) -> dict[str, str]:
        """The authorisation: a legacy token as it is; a personal access token is exchanged for a short-lived one."""
        if not self._key:
            return {}
        if not _REFRESH_TOKEN.fullmatch(self._key):
            return {"Authorization": f"Token {self._key}"}
        with self._lock:
            access, since = self._access
            if time.monotonic() - since > _KEY_SECONDS or not access:
                body = json.dumps({"refresh": self._key}).encode()
                kind = {"Content-Type": "application/json"}
                status, content = self._ask("POST", f"{self.base}/api/token/refresh/", kind, body)
                try:
                    access = str(json.loads(content)["access"]) if status == 200 else ""
                except (ValueError, KeyError, TypeError):
                    access = ""
                if not access.isascii() or not access.isprintable() or not access:
                    raise InputError(f"Label Studio does not take the key in {KEY_VARIABLE} ({status}); make a new one")
                self._access = access, time.monotonic()
            return {"Authorization": f"Bearer {access}"}

    def _open(self) -> socket.socket:
        for address in self.addresses[:-1]:
            with suppress(OSError):
                return socket.create_connection((address, self.port), timeout=_STEP_SECONDS)
        return socket.create_connection((self.addresses[-1], self.port), timeout=_STEP_SECONDS)

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port)
        until = time.monotonic() + SECONDS
        try:
            bound = self._open()
            if self.scheme == "https":
                bound = ssl.create_default_context().wrap_socket(bound, server_hostname=self.host)
            connection.sock = bound
            connection.request(method, path, body, headers)
            response, content = connection.getresponse(), bytearray()
            while part := response.read1(65536):
                content += part
                if len(content) > self.most_bytes:
                    raise InputError(f"the picture {path[:100]!r} has more than {self.most_bytes:,} bytes; shrink it")
                if time.monotonic() > until:
                    raise InputError(f"the picture {path[:100]!r} came too slowly; try again")
        except (OSError, http.client.HTTPException) as error:
            where = f"{self.scheme}://{self.host}:{self.port}"
            raise InputError(f"Label Studio at {where} cannot be asked ({error}); is it running?") from error
        finally:
            connection.close()
        return response.status, bytes(content)
