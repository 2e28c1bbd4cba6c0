"""The routes that banks and projects share: tag, labels, answers, explain, jobs; and those that need no token."""

import asyncio
import html
import json
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from fewtag.server import bodies
from fewtag.server.jobs import Job
from fewtag.server.queue import Upload
from fewtag.server.security import authorised, session_reply
from fewtag.server.service import Served
from fewtag.studio.values import Acknowledged, Answer, Changed, Explanation, LabelRow, Progress, as_json
from fewtag.tagger.stream import Tagged

LONGEST_NAME = 1_000
_IN_PROJECTS = ("tags", "waiting", "expected_precision")


async def served_by(request: Request) -> Served:
    """The dependency that gives a route the server's parts."""
    return request.app.state.served


Server = Annotated[Served, Depends(served_by)]


async def writable(server: Server) -> None:
    """The dependency of each route that changes something."""
    if server.settings.read_only:
        raise HTTPException(403, "this server only reads; start it without --read-only to change anything")


open_routes = APIRouter(tags=["The server"])
OPEN: dict[str, Any] = {"security": []}
"""The schema's marker of a route that needs no token."""
router = APIRouter(prefix="/v1", dependencies=[Depends(authorised)])
NEEDS_WRITE = [Depends(writable)]


@open_routes.get("/health", response_model=bodies.Health, openapi_extra=OPEN)
async def health() -> Response:
    """Whether the server answers. Needs no token."""
    return JSONResponse({"status": "ok"})


@open_routes.get("/ready", response_model=bodies.Ready, responses={503: {"model": bodies.Ready}}, openapi_extra=OPEN)
async def ready(server: Server) -> Response:
    """Whether it can tag yet: 200, or 503. Needs no token."""
    is_ready, detail = server.ready()
    return JSONResponse({"ready": is_ready, "detail": detail}, 200 if is_ready else 503)


@open_routes.get("/metrics", response_class=Response)
async def metrics(request: Request, server: Server) -> Response:
    """Numbers for Prometheus. Needs the token, unless the server is bound to the loopback."""
    if not server.settings.loopback:
        await authorised(request)
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@open_routes.get("/openapi.json", dependencies=[Depends(authorised)], include_in_schema=False)
def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@open_routes.get("/docs", include_in_schema=False)
def documentation(request: Request) -> Response:
    return Response(documented(request.app.openapi()), media_type="text/html; charset=utf-8")


@open_routes.get("/", include_in_schema=False)
def start_page(request: Request) -> Response:
    """The start page of a bank; a project's is the studio."""
    return documentation(request)


@router.post("/session", status_code=204, tags=["The server"], response_class=Response)
def session(request: Request, server: Server) -> Response:
    """Takes the token, as Bearer, and gives a cookie that stands for it: what the studio's page begins with."""
    if request.scope["fewtag"] != "bearer":
        raise HTTPException(401, "a session begins with the token; send it as `Authorization: Bearer TOKEN`")
    return session_reply(server.settings, request.headers)


def _takes(model: type[BaseModel], **fields: Any) -> dict[str, Any]:
    """The schema of a request that is sent as files or as JSON."""
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": 64}
    form = {"type": "object", "required": ["files", *fields], "properties": {"files": files, **fields}}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


Files = list[tuple[str, bytes]]
"""Names and contents."""


class _Form(MultiPartParser):
    """Starlette's parser, which would write a file of more than a megabyte to the disk: the guard bounds what comes."""

    spool_max_size = 0  # no limit


async def _read(request: Request, model: type[BaseModel]) -> tuple[Files, dict[str, str], Any]:
    """Files and fields of a form; or, for a JSON body, the validated model."""
    server: Served = request.app.state.served
    if not request.headers.get("content-type", "").lower().startswith("multipart/"):
        try:
            return [], {}, model.model_validate_json(await request.body())
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False, include_input=False)) from error
    files, fields = Files(), dict[str, str]()
    try:
        limits = {"max_files": server.settings.most_files, "max_fields": server.settings.most_fields}
        form = await _Form(request.headers, request.stream(), **limits, max_part_size=10_000).parse()
    except MultiPartException as error:
        status, what = 413 if "Too many" in error.message else 400, error.message.rstrip(".")
        most = server.settings.most_files
        raise HTTPException(
            status, f"the form cannot be read ({what}); send at most {most} pictures, as `files`"
        ) from error
    except UnicodeError as error:
        raise HTTPException(400, "the form's `charset` cannot be used; leave it out") from error
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields[name] = value
        elif name == "files":
            files.append((value.filename or f"number {len(files) + 1}", await value.read()))
        else:
            raise HTTPException(422, f"a file came as {name[:100]!r}; send pictures as `files`")
    if not files:
        raise HTTPException(422, "the form has no pictures; send them as `files`")
    if (longest := max(len(name) for name, _ in files)) > LONGEST_NAME:
        raise HTTPException(422, f"a picture's name has {longest} characters, at most {LONGEST_NAME} are taken")
    return files, fields, None


def _uploads(server: Served, files: Files, asked: Any) -> list[Upload]:
    """Uploads from a form's files, whose digests take a while, or those that the bank was sent before."""
    if asked is None:
        return [Upload.of(*each) for each in files]
    return [server.bank.recent.get(digest) for digest in asked.pictures]


@router.post(
    "/tag",
    response_model=bodies.Rows,
    openapi_extra=_takes(bodies.Pictures),
    responses={202: {"model": Job, "description": "With `Prefer: respond-async`: a job that will have rows."}},
    tags=["Pictures"],
)
async def tag(request: Request, server: Server) -> Response:
    """Tags pictures: files of a form, or digests that it returned before; a row for each, in their order.

    With the header `Prefer: respond-async` the reply is a job, whose result has the rows.
    """
    server.queue.check_room()
    files, _, asked = await _read(request, bodies.Pictures)
    if asked is not None and server.is_project:
        found = await run_in_threadpool(server.studio.tag, asked.pictures)
        rows = [_row(row, digest) for row, digest in zip(found, asked.pictures, strict=True)]
        return JSONResponse({"rows": rows})
    is_job = "respond-async" in request.headers.get("prefer", "")
    if is_job:
        server.jobs.check_room()  # before its pictures enter the queue

    def begin() -> tuple[list[Upload], list[Future[Tagged]]]:
        uploads = _uploads(server, files, asked)
        return uploads, server.tag(uploads)

    uploads, futures = await run_in_threadpool(begin)  # in one call, since each switch of threads costs time

    def finish(progress: Progress) -> dict[str, Any]:
        rows = []
        for number, (future, upload) in enumerate(zip(futures, uploads, strict=True), 1):
            rows.append(_row(future.result(), upload.digest.hex()))
            progress(number, len(uploads))
        return {"rows": rows}

    if is_job:
        return JSONResponse(asdict(server.jobs.start("tag", finish)), 202, {"Preference-Applied": "respond-async"})
    done = await asyncio.gather(*map(asyncio.wrap_future, futures))
    return JSONResponse({"rows": [_row(row, upload.digest.hex()) for row, upload in zip(done, uploads, strict=True)]})


def _row(row: Tagged, digest: str) -> dict[str, Any]:
    if row.failure:
        return {"image": row.image, "failure": row.failure}
    return {"image": row.image, "digest": digest, "tags": list(row.tags), "scores": dict(row.scores)}


@router.get("/labels", response_model=bodies.Labels, tags=["Labels"])
def labels(server: Server) -> Response:
    """All labels, sorted by name."""
    return JSONResponse({"labels": [_label(server, label) for label in server.actions.labels()]})


@router.post("/labels", response_model=Changed, status_code=201, dependencies=NEEDS_WRITE, tags=["Labels"])
def define(asked: bodies.NewLabel, server: Server) -> Response:
    """Defines a label by its name alone, like other words, or without words; a known one means this from now on."""
    return JSONResponse(_label(server, server.actions.define(asked.name, like=asked.like, words=asked.words)), 201)


@router.post(
    "/labels/{name:path}/examples",
    response_model=Changed,
    openapi_extra=_takes(bodies.Examples),
    dependencies=NEEDS_WRITE,
    tags=["Labels"],
)
async def teach(name: bodies.Name, request: Request, server: Server) -> Response:
    """Teaches a known or a new label by pictures that show it: files, or digests; a project takes digests alone."""
    # a bank decodes them all, and holds them meanwhile
    files, _, asked = await _read(request, bodies.Examples if server.is_project else bodies.Pictures)
    if server.is_project:
        if asked is None:
            raise HTTPException(415, "a project learns from its own pictures; send their digests, as JSON")
        teach = partial(server.studio.teach, name, asked.pictures, stacks=asked.stacks)
        return JSONResponse(_label(server, await run_in_threadpool(teach)))
    learn = partial(server.bank.teach, name)
    return JSONResponse(_label(server, await run_in_threadpool(lambda: learn(_uploads(server, files, asked)))))


@router.patch("/labels/{name:path}", response_model=Changed, dependencies=NEEDS_WRITE, tags=["Labels"])
def change(name: str, asked: bodies.ChangedLabel, server: Server) -> Response:
    """Renames a label and those under it, merges it into another, or sets the probability from which it is given."""
    sets = "threshold" in asked.model_fields_set
    if sets or asked.name is None:
        label = server.actions.label(name)
    if asked.name is not None:
        label = server.actions.rename(name, asked.name, merge=asked.merge)
    if sets:
        label = server.actions.set_threshold(label.name, asked.threshold)
    return JSONResponse(_label(server, label))


@router.delete(
    "/labels/{name:path}", status_code=204, response_class=Response, dependencies=NEEDS_WRITE, tags=["Labels"]
)
def forget(name: str, server: Server) -> Response:
    """Forgets a label; in a project that can be undone, by the id in the header `Fewtag-Undo`."""
    undo = server.actions.forget(name)
    return Response(status_code=204, headers={"Fewtag-Undo": undo} if undo else None)


@router.post("/answers", response_model=Acknowledged, dependencies=NEEDS_WRITE, tags=["Labels"])
def answer(asked: bodies.OneAnswer | bodies.SeveralAnswers, server: Server) -> Response:
    """Says of pictures whether they show a label; on disk before the reply. An id that comes again counts once.

    A bank takes answers about pictures that it tagged lately. Where one label or picture is unknown, nothing is taken.
    """
    several = asked.answers if isinstance(asked, bodies.SeveralAnswers) else [asked]
    answers = [Answer(**dict(each) | {"id": str(each.id)}) for each in several]
    return JSONResponse(as_json(server.actions.answer(answers)))


@router.post(
    "/explain",
    response_model=Explanation,
    openapi_extra=_takes(bodies.Explained, label={"type": "string"}),
    tags=["Pictures"],
)
async def explain(request: Request, server: Server) -> Response:
    """Where in a picture a label is seen: one file of a form and its `label`, or a digest and a label."""
    files, fields, asked = await _read(request, bodies.Explained)
    if asked is not None and server.is_project:
        return JSONResponse(as_json(await run_in_threadpool(server.studio.explain, asked.picture, asked.label)))
    if server.is_project:
        raise HTTPException(415, "a project explains its own pictures; send a digest, as JSON")
    label = asked.label if asked is not None else fields.get("label", "")
    upload = server.bank.recent.get(asked.picture) if asked is not None else Upload.of(*files[0])
    return JSONResponse(as_json(await run_in_threadpool(server.bank.explain, upload, label)))


def _label(server: Served, label: LabelRow) -> dict[str, Any]:
    facts: dict[str, Any] = as_json(label)
    return facts if server.is_project else {key: value for key, value in facts.items() if key not in _IN_PROJECTS}


@router.get("/jobs", response_model=bodies.JobList, tags=["Jobs"])
def jobs(server: Server) -> Response:
    """All jobs of this run of the server, as far as they are remembered."""
    return JSONResponse({"jobs": [asdict(job) for job in server.jobs.list()]})


@router.get("/jobs/{job}", response_model=Job, tags=["Jobs"])
def job(job: str, server: Server) -> Response:
    """How far a job is."""
    return JSONResponse(asdict(server.jobs.get(job)))


@router.delete("/jobs/{job}", response_model=Job, tags=["Jobs"])
def cancel(job: str, server: Server) -> Response:
    """Asks a job to end; it does at its next step."""
    return JSONResponse(asdict(server.jobs.cancel(job)))


@router.get("/jobs/{job}/events", response_class=StreamingResponse, tags=["Jobs"])
async def job_events(job: str, server: Server) -> Response:
    """Server-sent events, `event: job`, each with the job as it is then; the last says how it ended."""
    stream = server.events.listen()
    return event_stream(stream.lines(("job", asdict(server.jobs.get(job))), job))


def event_stream(lines: Any) -> Response:
    return StreamingResponse(lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def documented(schema: dict[str, Any]) -> str:
    """The API as one page of plain HTML: no script, no style, nothing to load."""
    parts = [_text("p", paragraph) for paragraph in schema["info"]["description"].split("\n\n")]
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            said = _operation(method.upper(), path, operation)
            groups.setdefault(operation.get("tags", ["Others"])[0], []).append(said)
    for group, operations in groups.items():
        parts += [_text("h2", group), *operations]
    parts.append(_text("h2", "Schemas"))
    for name, each in schema["components"]["schemas"].items():
        parts.append(f"<details id={json.dumps(html.escape(name))}>{_text('summary', name)}{_code(each)}</details>")
    title = f"{schema['info']['title']} {schema['info']['version']}: HTTP API"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8">{_text("title", title)}'
    return head + _text("h1", title) + "\n".join(parts) + "</html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [_text("summary", f"{method} {path}")]
    parts += [_text("p", paragraph) for paragraph in operation.get("description", "").split("\n\n")]
    if parameters := operation.get("parameters"):
        parts += [_text("h4", "Parameters"), _code({each["name"]: each["schema"] for each in parameters})]
    if body := operation.get("requestBody"):
        parts += [_text("h4", "Request"), _code(body["content"])]
    replies = {code: reply.get("content", {}) for code, reply in operation["responses"].items() if code != "4XX"}
    parts += [_text("h4", "Replies"), _code(replies)]
    return f"<details>{''.join(parts)}</details>"


def _text(tag: str, text: str) -> str:
    return f"<{tag}>{html.escape(text)}</{tag}>"


def _code(value: Any) -> str:
    return _text("pre", json.dumps(value, indent=2, ensure_ascii=False))
