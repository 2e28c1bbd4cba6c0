"""A real server in a thread, over a bank of the tiny model or over a project."""

import atexit
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from PIL import Image
from starlette.types import ASGIApp
from tiny import draw

from fewtag import Tagger
from fewtag.client import Client
from fewtag.server.front import Server, listen
from fewtag.server.security import Settings
from fewtag.server.service import BankService, Served
from fewtag.server.uploads import Decoders
from fewtag.studio.studio import Studio

TOKEN = "a-token-of-the-tests-with-43-characters-abc"


@dataclass
class Running:
    """A server, and one who may ask it."""

    served: Served
    settings: Settings
    client: Client
    server: Server


class Lasting(Decoders):
    """For all servers of the tests: to start a worker takes longer than most of them."""

    def close(self) -> None:
        """Only when the tests end."""


@cache
def lasting() -> Decoders:
    found = Lasting(1)
    atexit.register(Decoders.close, found)
    return found


@contextmanager
def serving(
    open_service: Callable[[Decoders], BankService | Studio],
    settings: Settings | None = None,
    *,
    cache: Path | None = None,
    decoders: Decoders | None = None,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[Running]:
    decoders = decoders or lasting()
    with listen("127.0.0.1", 0) as bound:
        settings = replace(settings or Settings(TOKEN), port=bound.getsockname()[1])
        actions = open_service(decoders)
        server = Server(
            lambda _: actions,
            settings,
            page=dict if isinstance(actions, Studio) else None,
            cache=cache,
            decoders=decoders,
        )
        server.config.app = wrap(server.config.app)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        server.front.app.result(120)
        assert server.served is not None
        try:
            yield Running(server.served, settings, Client(settings.url, settings.token), server)
        finally:
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive()


@contextmanager
def serving_bank(path: Path, settings: Settings | None = None, **options: object) -> Iterator[Running]:
    with serving(lambda decoders: BankService(path, Tagger.load(path), decoders), settings, **options) as running:
        yield running


def png(image: Image.Image, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


def picture(number: int, *labels: str) -> bytes:
    """An encoded picture of these labels; the same each time."""
    return png(draw(number, *labels))
