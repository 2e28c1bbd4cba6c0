"""The FastAPI application over a bank or a studio project, its error replies, and its process, by uvicorn."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
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
    for kind in (ClientDisconnect, InputError, BusyError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _reply)
    app.include_router(routes.open_routes)
    app.include_router(routes.router)
    if served.is_project:
        app.include_router(studio_routes.router)
    if served.settings.label_studio:
        served.fetch = label_studio.OneHost(served.settings.label_studio, served.settings.most_bytes).fetch
    for service in served.settings.services:
        for router in SERVICES[service]:
            app.include_router(router)
    guard = Guard(Idempotency(app), served.settings, served.metrics.observe)
    served.metrics.watch("fewtag_bytes_in_flight", "Of request bodies at work.", lambda: guard.in_flight)
    return guard


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    served: Served = app.state.served
    threading.Thread(target=served.warm_up, daemon=True, name="fewtag-warm-up").start()
    yield
    served.close()


def _reply(request: Request, error: Exception) -> Response:
    """Whatever went wrong, in one sentence; with the fields by which another program knows an error of its service."""
    headers: Mapping[str, str] | None = None
    match error:
        case ClientDisconnect():  # nobody reads it
            status, said = 400, "the request ended too early; send it again"
        case InputError():
            status, said = 404 if isinstance(error, MissingError) else 400, str(error)
        case BusyError():
            status, said, headers = 503, str(error), {"Retry-After": str(error.seconds)}
        case RequestValidationError():
            first: dict[str, Any] = error.errors()[0]
            # without the names of our models, of which one is tried after the other
            where = ".".join(str(part) for part in first["loc"] if part != "body" and not str(part)[:1].isupper())
            wrong = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
            status, said = 422, f"{where or 'the body'} is not as it should be: {wrong}; mend it"
        case HTTPException():
            status, said, headers = error.status_code, _refusal(request, error), error.headers
        case _:
            status = 500
            said = f"something went wrong in the server ({type(error).__name__}); its terminal says what"
    path = getattr(request.scope.get("route"), "path", "")
    return problem(status, said, headers, **services.error_fields(path, status, said))


def _refusal(request: Request, error: HTTPException) -> str:
    """Starlette's own words are not ours: who is refused hears what to do."""
    if error.status_code == 405:
        return f"{request.method} is not for this address; /docs lists what is"
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    if error.status_code == 404:
        return "there is nothing at this address; /docs lists what there is"
    return "the request was refused; /docs says what is taken"


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
