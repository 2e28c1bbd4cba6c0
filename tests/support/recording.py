"""Exchanges over HTTP in files: recorded from another program, shown in the documentation, replayed by tests."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from raw_http import Reply, ask
from serving import TOKEN, Running, picture
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CHANGING = frozenset({"version", "model_version"})


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

    def save(self, name: str, under: str, **facts: Any) -> None:
        """What was asked under a path."""
        kept = [each._asdict() for each in self.exchanges if each.path.startswith(under)]
        content = facts | {"exchanges": kept}
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def recorded(name: str) -> Iterator[Exchange]:
    for each in json.loads((RECORDED / name).read_text(encoding="utf-8"))["exchanges"]:
        yield Exchange(**each)


def json_blocks(page: str) -> list[Any]:
    """What a page of the documentation has in fences of JSON."""
    text = (RECORDED.parent / page).read_text(encoding="utf-8")
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", text, flags=re.S | re.M)]


def shows(part: Any, whole: Any) -> bool:
    """Whether all that is shown is there; fields may be left out."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and shows(each, whole[key]) for key, each in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(shows, part, whole))
    return bool(part == whole)


def send(running: Running, method: str, path: str, body: Any = None, headers: dict[str, str] = BEARER) -> Reply:
    content = b"" if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if content else {}
    return ask(running.settings.port, method, path, headers | kind, content)


def data_url(number: int, *labels: str) -> str:
    return "data:image/png;base64," + base64.b64encode(picture(number, *labels)).decode()


def same(one: Any, other: Any) -> bool:
    """Probabilities may differ somewhat: a better tagger speaks the same language."""
    if isinstance(other, float):
        return isinstance(one, float) and abs(one - other) < 0.1
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other.keys() - CHANGING)
    return one == other


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"fewtag:{password}".encode()).decode()}
