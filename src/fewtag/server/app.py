"""The FastAPI application over a bank or a studio project: its parts, its error replies, its life."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fewtag import __version__
from fewtag.errors import InputError, MissingError
from fewtag.server import kserve, label_studio, models, photoprism, routes, studio_routes
from fewtag.server.idempotency import Idempotency
from fewtag.server.queue import BusyError
from fewtag.server.security import Guard, problem
from fewtag.server.service import Served

ABOUT = """Tag pictures with labels that were learnt from one example each, and teach it more.

Every request but those for pages, `/health` and `/ready` carries the token that the server printed when it started:
`Authorization: Bearer TOKEN`. Errors are `application/problem+json` with one sentence in `detail`. A POST may carry an
`Idempotency-Key`: sent again within a day, it gets the first one's reply. Where the server has too much to do, it says
503 and, in `Retry-After`, for how many seconds."""

SERVICES: dict[str, tuple[APIRouter, ...]] = {
    "label-studio": (label_studio.router,),
    "photoprism": (photoprism.router,),
    "kserve": (kserve.open_routes, kserve.router),
}
"""For other programs, in their own words; each is there only where the command line asks for it."""


def create_app(served: Served) -> Guard:
    """The application, guarded; it closes what it serves when the server ends."""
    app = FastAPI(
        title="fewtag",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own page loads its code from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_life,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        responses={
            "4XX": {"model": models.Problem, "description": "What was wrong, and what to do."},
            503: {"model": models.Problem, "description": "Too much to do; `Retry-After` says for how long."},
        },
    )
    app.state.served = served
    for kind, reply in _REPLIES.items():
        app.add_exception_handler(kind, reply)
    app.include_router(routes.open_routes)
    app.include_router(routes.router)
    if served.is_project:
        app.include_router(studio_routes.router)
    for service in served.settings.services:
        for router in SERVICES[service]:
            app.include_router(router)
    app.add_middleware(Idempotency)
    guard = Guard(app, served.settings, served.metrics.observe)
    served.metrics.watch("fewtag_bytes_in_flight", "Of request bodies at work.", lambda: guard.in_flight)
    return guard


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    served: Served = app.state.served
    threading.Thread(target=served.warm_up, daemon=True, name="fewtag-warm-up").start()
    yield
    served.close()


def _missing(_request: Request, error: Exception) -> Response:
    return problem(404, str(error))


def _gone(_request: Request, _error: Exception) -> Response:
    """Which nobody reads: the client went away in the middle of its request."""
    return problem(400, "the request ended too early; send it again")


def _bad_input(_request: Request, error: Exception) -> Response:
    return problem(400, str(error))


def _busy(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BusyError)
    return problem(503, str(error), {"Retry-After": str(error.seconds)})


def _http(request: Request, error: Exception) -> Response:
    """Starlette's own words are not ours: who is refused hears what to do."""
    assert isinstance(error, HTTPException)
    said = error.detail if error.detail != HTTPStatus(error.status_code).phrase else ""
    if error.status_code == 404 and not said:
        said = "there is nothing at this address; /docs lists what there is"
    if error.status_code == 405:
        said = f"{request.method} is not for this address; /docs lists what is"
    return problem(error.status_code, said or "the request was refused; /docs says what is taken", error.headers)


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    # without the names of our models, of which one is tried after the other
    where = ".".join(str(part) for part in first["loc"] if part != "body" and not str(part)[:1].isupper())
    return problem(
        422, f"{where or 'the body'} is not as it should be: {first['msg'][:1].lower()}{first['msg'][1:]}; mend it"
    )


def _failed(_request: Request, error: Exception) -> Response:
    return problem(500, f"something went wrong in the server ({type(error).__name__}); its terminal says what")


_REPLIES: dict[int | type[Exception], Any] = {
    ClientDisconnect: _gone,
    MissingError: _missing,
    InputError: _bad_input,
    BusyError: _busy,
    HTTPException: _http,
    RequestValidationError: _invalid,
    Exception: _failed,
}
