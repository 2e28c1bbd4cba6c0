"""The FastAPI application over a bank or a studio project, its error replies, and its process, by uvicorn."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewtag import __version__
from fewtag.errors import InputError, MissingError
from fewtag.server import label_studio, models, routes, services, studio_routes
from fewtag.server.idempotency import Idempotency
from fewtag.server.queue import BusyError
from fewtag.server.security import Guard, Settings, problem
from fewtag.server.service import BankService, Served
from fewtag.server.uploads import Decoders
from fewtag.studio.studio import Studio

ABOUT = """Tag pictures with labels that were learnt from one example each, and teach it more.

Every request but those for pages, `/health` and `/ready` carries the token that the server printed when it started:
`Authorization: Bearer TOKEN`. Errors are `application/problem+json` with one sentence in `detail`. A POST may carry an
`Idempotency-Key`: sent again within a day, it gets the first one's reply. Where the server has too much to do, it says
503 and, in `Retry-After`, for how many seconds."""

SERVICES: dict[str, tuple[APIRouter, ...]] = {
    "label-studio": (label_studio.router,),
    "photoprism": (services.photoprism,),
    "kserve": (services.kserve_open, services.kserve),
}
"""For other programs, in their own words; each is there only where the command line asks for it."""
SILENT_SECONDS = 30
"""How long a connection may say nothing between two requests, or before its first."""


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
    if served.settings.label_studio:
        served.fetch = label_studio.OneHost(served.settings.label_studio, served.settings.most_bytes).fetch
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


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows would else let another program listen there, too
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}; name another --port, or 0 for any free one"
        ) from error
    return bound


class _Impatient(H11Protocol):
    """Lets go of who is connected and does not ask in time: for the head of a request uvicorn waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_after(self.cycle)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        self._expect_after(answered)

    def _expect_after(self, answered: object) -> None:
        def end() -> None:
            if self.cycle is answered:
                self.transport.close()

        self.loop.call_later(self.timeout_keep_alive, end)


class Server(uvicorn.Server):
    """Tells when it answers, and ends streams of events before it waits for what is open."""

    def __init__(self, served: Served, started: Callable[[Guard], None] = lambda _guard: None) -> None:
        self._guard = create_app(served)
        config = uvicorn.Config(
            self._guard,
            http=_Impatient,
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_level="error",
            access_log=False,  # which would write down what people look at
            server_header=False,
            proxy_headers=False,  # anyone may send them
            timeout_keep_alive=SILENT_SECONDS,
            timeout_graceful_shutdown=10,
        )
        super().__init__(config)
        self._served, self._when_started = served, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started(self._guard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.events.close()
        await super().shutdown(sockets)


def run(
    open_service: Callable[[Decoders], BankService | Studio],
    settings: Settings,
    bound: socket.socket,
    *,
    cache: Path | None = None,
    started: Callable[[Guard], None] = lambda _guard: None,
) -> None:
    """Serves until it is interrupted; then what is served is closed."""
    decoders = Decoders()
    with suppress(KeyboardInterrupt):  # which uvicorn hands on once it has ended in good order
        Server(Served(open_service(decoders), settings, decoders, cache), started).run([bound])
