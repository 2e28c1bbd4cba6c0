"""What the services for other programs share: pictures in JSON, rows through the queue, errors as each has them."""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from fewtag.errors import InputError
from fewtag.files import digest
from fewtag.server.queue import Upload
from fewtag.server.service import Served, file_state
from fewtag.tagger.stream import Tagged

MOST_JSON = 16_000_000
"""Bytes of a JSON body where a service is asked for: its pictures come in it."""
_log = logging.getLogger("uvicorn.error")


def errors_with(fields: Callable[[int, str], dict[str, Any]]) -> type[APIRoute]:
    """The class of routes whose problems (RFC 9457) also have the fields by which another program knows an error."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handler(request: Request) -> Response:
                try:
                    return await handle(request)
                except Exception as error:
                    known = request.app.exception_handlers
                    reply = next(known[kind] for kind in type(error).__mro__ if kind in known)(request, error)
                    if reply.status_code == 500:  # which says that the terminal tells more
                        _log.error("an error in %s", request.url.path, exc_info=error)
                    facts = json.loads(reply.body)
                    facts |= fields(reply.status_code, facts["detail"])
                    headers = {key: value for key, value in reply.headers.items() if not key.startswith("content-")}
                    return JSONResponse(facts, reply.status_code, headers, "application/problem+json")

            return handler

    return Route


def from_base64(text: str, name: str) -> Upload:
    """A picture from a data URL, or from bare base64."""
    head, comma, content = text.partition(",")
    if not comma:
        head, content = "base64", text
    elif not head.startswith("data:"):
        raise InputError(f"{name} is no data URL; send data:image/jpeg;base64,…")
    if not head.endswith("base64"):
        return Upload.of(name, unquote_to_bytes(content))
    try:
        return Upload.of(name, base64.b64decode("".join(content.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{name} is no base64 ({error}); encode the picture's bytes by it") from error


async def tag_all(server: Served, uploads: Sequence[Upload]) -> list[Tagged]:
    """Their rows, in this order; the first that cannot be read is refused."""
    if len(uploads) > server.settings.most_files:
        most = server.settings.most_files
        raise InputError(f"the request has {len(uploads)} pictures; send at most {most} at once")
    rows = await asyncio.gather(*map(asyncio.wrap_future, await run_in_threadpool(server.tag, uploads)))
    for row in rows:
        if row.failure:
            raise InputError(row.failure)
    return rows


def name_of(server: Served) -> str:
    """What is served: the bank's file or the project's folder, without its ending."""
    return (server.studio.folder if server.is_project else server.bank.path).stem


def version_of(server: Served) -> str:
    """By which other programs know the state of the labels: another after each change."""
    if server.is_project:
        return f"{name_of(server)}-{server.studio.overview().version}"
    return f"{name_of(server)}-{digest(*map(str, file_state(server.bank.path)))[:12]}"
