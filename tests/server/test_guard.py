"""The guard by itself: whatever the headers, what is behind it is reached only by the rules."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TOKEN
from starlette.types import Message, Receive, Scope, Send

from fewtag.server.security import HEADERS, Guard, Settings

SETTINGS = Settings(TOKEN, port=8000)
OURS = ("127.0.0.1:8000", "localhost:8000", "[::1]:8000")
COOKIE = f"{SETTINGS.cookie}={SETTINGS.session}"
text = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=40)


def among(*usual: str) -> st.SearchStrategy[str]:
    """What is usual, something near it, or anything at all."""
    return (
        st.sampled_from(usual) | st.sampled_from(usual).flatmap(lambda each: text.map(lambda more: each + more)) | text
    )


HEADERS_SENT = st.fixed_dictionaries(
    {"host": among(*OURS, "evil.example")},
    optional={
        "origin": among(*(f"http://{host}" for host in OURS), "null", "http://evil.example"),
        "authorization": among(f"Bearer {TOKEN}", "Bearer", "Basic x"),
        "cookie": among(COOKIE, "fewtag=1"),
        "sec-fetch-site": among("same-origin", "none", "same-site", "cross-site"),
        "x-fewtag": among("1", "0"),
        "content-length": among("0", "5", "2000000", "2000001", "50000000", "50000001", "9" * 5000),
        "content-type": among("application/json", "multipart/form-data; boundary=x", "text/plain"),
        "transfer-encoding": among("chunked"),
    },
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"])


def reach(method: str, headers: dict[str, str]) -> tuple[str | None, int, dict[str, str]]:
    """Who was let through to the other side, if anyone; the status and headers of the reply."""
    let_in: list[str | None] = []
    sent: list[Message] = []

    async def inner(scope: Scope, _receive: Receive, send: Send) -> None:
        let_in.append(scope["fewtag"] or "nobody")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": "/", "headers": raw, "client": ("127.0.0.1", 1)}
    asyncio.run(Guard(inner, SETTINGS)(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return (let_in[0] if let_in else None), sent[0]["status"], found


@pytest.mark.slow
@given(METHODS, HEADERS_SENT)
@settings(max_examples=150, deadline=None)
def test_whatever_the_headers_the_rules_hold(method: str, headers: dict[str, str]) -> None:
    who, status, reply = reach(method, headers)
    assert HEADERS.items() <= reply.items()
    assert not [name for name in reply if name.startswith("access-control")]
    if who is None:
        assert 400 <= status < 500 or status == 503
        return
    write, length = method not in {"GET", "HEAD"}, int(headers.get("content-length", "0"))
    assert headers["host"].lower() in OURS
    assert headers.get("origin", f"http://{OURS[0]}") in {f"http://{host}" for host in OURS}
    same_site = headers.get("sec-fetch-site", "none") in {"same-origin", "none"}
    assert same_site or not write
    if who == "bearer":
        assert headers["authorization"].split(" ", 1)[1].strip() == TOKEN
    else:
        assert "authorization" not in headers  # a wrong one is refused, never passed over
    if who == "cookie":
        assert SETTINGS.session in headers["cookie"]
        assert same_site
        assert not write or ("origin" in headers and headers["x-fewtag"] == "1")
    assert "transfer-encoding" not in headers
    if length:
        assert who != "nobody"
        assert method in {"POST", "PATCH", "PUT"}
        kind = headers["content-type"].partition(";")[0].strip().lower()
        assert length <= {"application/json": 2_000_000, "multipart/form-data": 50_000_000}[kind]


def test_what_the_rules_allow_is_let_in() -> None:
    host, ours = {"host": OURS[0]}, {"origin": f"http://{OURS[0]}"}
    body = {"content-length": "5", "content-type": "application/json"}
    assert reach("GET", host)[0] == "nobody"
    assert reach("POST", host | body | {"authorization": f"Bearer {TOKEN}"})[0] == "bearer"
    assert reach("GET", host | {"cookie": COOKIE})[0] == "cookie"
    assert reach("POST", host | ours | body | {"cookie": COOKIE, "x-fewtag": "1"})[0] == "cookie"


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_closing_server_cuts_off_is_answered_and_is_no_fault(begun: bool) -> None:
    """uvicorn printed a traceback for each."""
    sent: list[Message] = []

    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    async def cut_off() -> None:
        headers = [(b"host", OURS[0].encode())]
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": None}
        task = asyncio.create_task(Guard(inner, SETTINGS)(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(cut_off())
    assert [message.get("status") for message in sent] == ([200] if begun else [503, None])
