"""Idempotency keys: a change that is sent again with the same `Idempotency-Key` gets the reply of the first."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS_WITH_KEY = frozenset({"POST", "PATCH", "DELETE"})
KEPT_SECONDS = 86_400.0
KEPT_BYTES = 64_000_000
LONGEST_KEY = 200
_ENTRY_BYTES = 2_000
"""Memory of a reply without its body, as measured."""


@dataclass
class _Reply:
    asked: bytes
    """A digest of the request."""
    since: float
    done: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] = field(default_factory=list)
    size: int = 0


class Idempotency:
    """The middleware, just inside the guard, which answers what is refused here: strangers get no stored reply.

    Errors are not stored: nothing was done, and the cause (a picture not read yet) may be gone by the next attempt.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app, self._size = app, 0
        self._replies: OrderedDict[str, _Reply] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        if key is None or scope["method"] not in METHODS_WITH_KEY or scope.get("fewtag") is None:
            return await self.app(scope, receive, send)
        if not key or len(key) > LONGEST_KEY:
            raise HTTPException(400, f"the `Idempotency-Key` has {len(key)} characters; send a UUID")
        body, asked = await _read(scope, receive)
        while (known := self._replies.get(key)) is not None and time.monotonic() - known.since < KEPT_SECONDS:
            if known.asked != asked:
                raise HTTPException(422, "this `Idempotency-Key` came with another request before; choose a new one")
            await known.done.wait()
            if known.messages:
                for message in known.messages:
                    await send(message)
                return None
        return await self._first(key, asked, scope, _replayed(body, receive), send)

    async def _first(self, key: str, asked: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        reply, kept = _Reply(asked, time.monotonic()), list[Message]()
        self._forget(key)  # if it is expired
        self._replies[key] = reply

        async def keep(message: Message) -> None:
            kept.append(message)
            await send(message)

        try:
            await self.app(scope, receive, keep)
            if kept and kept[0]["status"] < 400:
                reply.messages = kept
                reply.size = _ENTRY_BYTES + sum(len(each.get("body", b"")) for each in kept)
                self._size += reply.size
        finally:
            if not reply.messages:
                self._forget(key)
            reply.done.set()
        self._expire()

    def _expire(self) -> None:
        """Forgets the oldest replies, but none in progress; looks no further, since tens of thousands may be kept."""
        while (key := next((key for key, each in self._replies.items() if each.messages), None)) is not None:
            if self._size <= KEPT_BYTES and time.monotonic() - self._replies[key].since < KEPT_SECONDS:
                return
            self._forget(key)

    def _forget(self, key: str) -> None:
        if (reply := self._replies.pop(key, None)) is not None:
            self._size -= reply.size


async def _read(scope: Scope, receive: Receive) -> tuple[list[Message], bytes]:
    """The whole body, which the guard has limited, and a digest of the request."""
    where = repr((scope["method"], scope["path"], scope["query_string"]))
    total, messages = hashlib.sha256(where.encode()), list[Message]()
    while True:
        message = await receive()
        messages.append(message)
        total.update(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages, total.digest()


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()  # replayed messages are not kept

    return replay
