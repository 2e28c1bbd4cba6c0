"""The server's process: a socket, uvicorn, and an orderly end."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewtag.errors import InputError
from fewtag.server.app import create_app
from fewtag.server.security import Guard, Settings
from fewtag.server.service import BankService, Served
from fewtag.server.uploads import Decoders
from fewtag.studio.studio import Studio

SILENT_SECONDS = 30
"""How long a connection may say nothing between two requests, or before its first."""


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
