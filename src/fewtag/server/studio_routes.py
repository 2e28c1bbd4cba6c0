"""The studio's own routes, thin wrappers of `Studio`: search, pictures, review, undo, deliver, events."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from anyio import from_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from fewtag.errors import InputError
from fewtag.server import bodies
from fewtag.server.front import thumbnail_reply
from fewtag.server.jobs import Job
from fewtag.server.routes import NEEDS_WRITE, Server, event_stream
from fewtag.server.security import authorised
from fewtag.studio import values
from fewtag.studio.values import as_json

router = APIRouter(prefix="/v1", tags=["Studio"], dependencies=[Depends(authorised)])
_WEBP: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}}}
Offset = Annotated[int, Query(ge=0)]
LabelName = Annotated[str, Query(min_length=1, max_length=200)]


@router.get("/project", response_model=values.Overview)
def project(server: Server) -> Response:
    """The project in numbers; its `version` rises with every change."""
    return JSONResponse(as_json(server.studio.overview()))


@router.get("/failures", response_model=bodies.Failures)
def failures(server: Server) -> Response:
    """The pictures that could not be read, and why."""
    return JSONResponse({"failures": as_json(server.studio.failures())})


@router.post("/rescan", response_model=values.Overview)
def rescan(server: Server) -> Response:
    """Looks through the folders again, soon, instead of within a minute or so; also for what could not be read."""
    server.studio.rescan()
    return JSONResponse(as_json(server.studio.overview()))


@router.post("/search", response_model=values.Page)
def search(asked: bodies.Search, server: Server) -> Response:
    """Pictures by labels, words, states, folders and dates; or like a picture, or like a part of it."""
    return JSONResponse(as_json(server.studio.search(**dict(asked))))


@router.get("/pictures", response_model=values.Page)
def pictures(
    server: Server,
    query: Annotated[str, Query(max_length=1000)] = "",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=values.MOST_AT_ONCE)] = 200,
    stacked: bool = True,
) -> Response:
    """The same by a link."""
    return JSONResponse(as_json(server.studio.search(query, offset=offset, limit=limit, stacked=stacked)))


@router.get("/pictures/{digest}", response_model=values.PictureDetail)
def picture(digest: bodies.Digest, server: Server) -> Response:
    """All that is known of a picture."""
    return JSONResponse(as_json(server.studio.picture(digest)))


@router.get("/pictures/{digest}/thumbnail", response_class=Response, responses=_WEBP)
def thumbnail(digest: bodies.Digest, server: Server, size: Literal["256", "1024"] = "256") -> Response:
    """A copy of the picture, made anew: of the file itself no byte is served."""
    return thumbnail_reply(server.studio.thumbnail(digest, 256 if size == "256" else 1024))


@router.get("/pictures/{digest}/heat", response_class=Response, responses=_WEBP)
def heat(digest: bodies.Digest, label: LabelName, server: Server, request: Request, at_once: bool = False) -> Response:
    """Where the label is seen, to be laid over the picture; `at_once` a first glance while that is worked out."""

    def check() -> None:
        if from_thread.run(request.is_disconnected):
            raise ClientDisconnect

    headers = {"Content-Disposition": "inline"}
    return Response(server.studio.heat(digest, label, at_once=at_once, check=check), 200, headers, "image/webp")


@router.get("/review", response_model=values.ReviewPage)
def review(
    label: LabelName,
    server: Server,
    order: Literal["sure", "unsure", "missed", "audit", "auto"] = "auto",
    size: Annotated[int, Query(ge=1, le=200)] = 48,
    offset: Offset = 0,
) -> Response:
    """A page of pictures with one question, and what is known of the label."""
    return JSONResponse(as_json(server.studio.review(label, order, size, offset)))


@router.post("/undo", response_model=values.Undone, dependencies=NEEDS_WRITE)
def undo(asked: bodies.Undo, server: Server) -> Response:
    """Takes back the last group of answers or the last change of a label; or the one of this id."""
    return JSONResponse(as_json(server.studio.undo(str(asked.id) if asked.id else None)))


@router.post("/redo", response_model=values.Undone, dependencies=NEEDS_WRITE)
def redo(asked: bodies.Undo, server: Server) -> Response:
    """Takes back the last undo."""
    return JSONResponse(as_json(server.studio.redo(str(asked.id) if asked.id else None)))


@router.post(
    "/deliver",
    response_model=values.Delivery,
    responses={202: {"model": Job, "description": "Not a dry run: a job whose result names the file."}},
    dependencies=NEEDS_WRITE,
)
def deliver(asked: bodies.Deliver, server: Server) -> Response:
    """Writes all tags into the project's folder `deliveries`, or as sidecars; `dry_run` only tells."""
    if asked.take_back and asked.format != "xmp":
        raise InputError(f"a delivery as {asked.format} is a file of its own and needs no taking back; delete the file")
    write = partial(server.studio.deliver, asked.format, confirmed_only=asked.confirmed_only, scores=asked.scores)
    act = server.studio.take_back_sidecars if asked.take_back else write
    if asked.dry_run:
        return JSONResponse(as_json(act(dry_run=True)))
    return JSONResponse(asdict(server.jobs.start("deliver", lambda progress: as_json(act(progress=progress)))), 202)


@router.get("/deliveries/{name}", response_class=FileResponse)
def delivery(name: str, server: Server) -> Response:
    """A table that was delivered, by the name that its job told."""
    return FileResponse(server.studio.delivery(name), media_type="application/octet-stream", filename=name)


@router.get("/events", response_class=StreamingResponse)
async def events(server: Server) -> Response:
    """Server-sent events: `project`, with the numbers of now, at each change; `job`, at each step of one."""
    stream = server.events.listen()
    return event_stream(stream.lines(("project", as_json(await run_in_threadpool(server.studio.overview)))))
