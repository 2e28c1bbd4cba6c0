"""The server's process, by uvicorn: it answers at once, while the application is loaded in the background.

Opening a project of ten thousand pictures and importing FastAPI take longer than a person should wait. So the process
listens first, and then opens what it serves. Meanwhile a page gets its files, and its first requests are answered from
what the last session stored; any other request waits for the application.
"""

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewtag.errors import InputError
from fewtag.server.security import Guard, Settings, session_reply

if TYPE_CHECKING:
    from fewtag.server.service import BankService, Served
    from fewtag.server.uploads import Decoders
    from fewtag.studio.studio import Studio

PATIENT_SECONDS = 1.0
"""How long loading waits, so that quick answers come first; a request that needs the application ends the wait."""
SILENT_SECONDS = 30
"""How long a connection may be silent between two requests, or before its first."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".webp": "image/webp",
    ".png": "image/png",
}
_PROBES = {
    "/health": ({"status": "ok"}, 200),
    "/ready": ({"ready": False, "detail": "what is served is being opened"}, 503),
}
_IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable", "Content-Disposition": "inline"}


@cache
def page_files() -> dict[str, tuple[Path, str]]:
    """The studio's files and their media types, by name, with slashes."""
    folder = Path(__file__).parents[1] / "studio" / "web"
    return {
        path.relative_to(folder).as_posix(): (path, _TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }


def page_file(path: str) -> Response | None:
    """A file of the studio's page, by a name from a fixed list: no path is built from what a client sends."""
    found = page_files().get("index.html" if path == "/" else path.removeprefix("/static/"))
    return found and Response(found[0].read_bytes(), media_type=found[1], headers={"Cache-Control": "no-cache"})


def thumbnail_reply(content: bytes) -> Response:
    """A thumbnail, which never changes."""
    return Response(content, 200, _IMMUTABLE, "image/webp")


class Front:
    """An ASGI application that stands in for another until that is loaded; for a project it keeps serving the page."""

    def __init__(self, settings: Settings, *, page: bool) -> None:
        self.settings, self.page = settings, page
        self.first: Future[Mapping[str, bytes]] = Future()
        self.app: Future[ASGIApp] = Future()
        self.wanted = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply: ASGIApp | None = self._of_probe(scope) or (await self._of_page(scope) if self.page else None)
        if reply is None:
            self.wanted.set()
            reply = await self._application()
        await reply(scope, receive, send)

    def _of_probe(self, scope: Scope) -> Response | None:
        """The reply to a health probe, which need not wait for the application."""
        found = None if self.app.done() or scope["method"] != "GET" else _PROBES.get(scope["path"])
        return found and JSONResponse(*found)

    async def _of_page(self, scope: Scope) -> Response | None:
        """The reply to what a page starts with; None for what the application must answer."""
        method, path = scope["method"], scope["path"]
        if method == "GET" and (path == "/" or path.startswith("/static/")):
            return page_file(path)
        if self.app.done() or scope["fewtag"] is None:
            return None
        if (method, path) == ("POST", "/v1/session") and scope["fewtag"] == "bearer":
            return session_reply(self.settings, Headers(scope=scope))
        asked = "?".join(filter(None, (path, scope["query_string"].decode("latin-1"))))
        if method != "GET" or (kept := (await asyncio.shield(asyncio.wrap_future(self.first))).get(asked)) is None:
            return None
        return thumbnail_reply(kept) if "thumbnail" in path else Response(kept, media_type=_TYPES[".json"])

    async def _application(self) -> ASGIApp:
        try:
            # once it is loaded, as for nearly all requests, without a turn of the event loop
            return self.app.result() if self.app.done() else await asyncio.shield(asyncio.wrap_future(self.app))
        except InputError as error:
            raise HTTPException(503, str(error)) from error


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol given, asyncio sets TCP_NODELAY: otherwise each reply would wait 40 ms for the next
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # otherwise Windows would let another program listen there, too
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        way = "if a studio or server is running there, use that one, or name another --port, or 0 for any free one"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            way = "name an address of this machine by --host, 0.0.0.0 for all of them"
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror}; {way}") from error
    return bound


class _Impatient(H11Protocol):
    """A timeout for idle connections: uvicorn would wait forever for the head of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, "connection": {}}  # facts about this connection, for the guard
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
    """uvicorn's server: reports when it answers, then opens what it serves, and closes it at the end.

    With a project comes a page; `page` returns the stored replies for it, until the project is open.
    """

    def __init__(
        self,
        open_service: "Callable[[Decoders], BankService | Studio]",
        settings: Settings,
        *,
        page: Callable[[], Mapping[str, bytes]] | None = None,
        cache: Path | None = None,
        decoders: "Decoders | None" = None,
        started: Callable[[Guard], None] = lambda _guard: None,
    ) -> None:
        self.front = Front(settings, page=page is not None)
        self.guard = Guard(self.front, settings, self._observe)
        config = uvicorn.Config(
            self.guard,
            http=_Impatient,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,  # uvicorn's own needs a standard output
            log_level="error",
            access_log=False,  # it would record what people look at
            server_header=False,
            proxy_headers=False,  # anyone could send them
            timeout_keep_alive=SILENT_SECONDS,
            timeout_graceful_shutdown=10,
        )
        super().__init__(config)
        self.served: Served | None = None
        self._open_service, self._settings, self._cache, self._decoders = open_service, settings, cache, decoders
        self._when_started, self._page = started, page
        self._opener = threading.Thread(target=self._open, name="fewtag-opener", daemon=True)

    def _open(self) -> None:
        front = self.front
        try:
            front.first.set_result(self._page() if self._page is not None else {})
            if front.first.result():
                front.wanted.wait(PATIENT_SECONDS)
            from fewtag.server.uploads import Decoders

            decoders = self._decoders or Decoders()
            actions = self._open_service(decoders)
            from fewtag.server.app import create_app
            from fewtag.server.service import Served

            self.served = Served(actions, self._settings, decoders, self._cache)
            in_flight = "fewtag_bytes_in_flight", "Of request bodies at work."
            self.served.metrics.watch(*in_flight, lambda: self.guard.in_flight)
            front.app.set_result(create_app(self.served))
        except BaseException as error:
            if not front.first.done():
                front.first.set_result({})
            front.app.set_exception(error)
            self.should_exit = True
        else:
            self.served.warm_up()

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        if self.served is not None:
            self.served.metrics.observe(scope, status, seconds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started(self.guard)
            self._opener.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.front.wanted.set()
        if self._opener.is_alive():
            await asyncio.to_thread(self._opener.join)
        if self.served is not None:
            self.served.events.close()  # otherwise open streams would be waited for
        await super().shutdown(sockets)
        if self.served is not None:
            await asyncio.to_thread(self.served.close)


def run(server: Server, bound: socket.socket) -> None:
    """Serves until it is interrupted, or its terminal window is closed; raises the error if opening failed."""
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    ours = threading.current_thread() is threading.main_thread()  # only the main thread may set signal handlers
    if ours and hang_up is not None and signal.getsignal(hang_up) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(hang_up, lambda *_: signal.raise_signal(signal.SIGINT))
    with suppress(KeyboardInterrupt):  # which uvicorn raises again after an orderly shutdown
        server.run([bound])
    if server.front.app.done():
        server.front.app.result()
