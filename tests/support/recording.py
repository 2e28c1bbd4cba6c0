"""Exchanges over HTTP in files: recorded from another program, shown in the documentation, replayed by tests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"


class Exchange(NamedTuple):
    """A request and the reply to it."""

    method: str
    path: str
    request: Any
    status: int
    reply: Any


class Recorder:
    """A middleware that keeps what passes, without the headers: in them is the token."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        asked, told, status = bytearray(), bytearray(), 0

        async def hear() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def say(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            told.extend(message.get("body", b""))
            await send(message)

        await self.app(scope, hear, say)
        request = json.loads(asked) if asked else None
        self.exchanges.append(Exchange(scope["method"], scope["path"], request, status, json.loads(told)))
        return None

    def save(self, name: str, **facts: Any) -> None:
        content = facts | {"exchanges": [each._asdict() for each in self.exchanges]}
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def recorded(name: str) -> Iterator[Exchange]:
    for each in json.loads((RECORDED / name).read_text(encoding="utf-8"))["exchanges"]:
        yield Exchange(**each)
