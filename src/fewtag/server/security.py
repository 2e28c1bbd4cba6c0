"""Access control and limits: Host, Origin, token or cookie, body limits, response headers.

It is one ASGI middleware before everything else, which never looks at the path: routes that need a token declare it by
`authorised`, and an unauthorised request must not have a body, whatever its path.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewtag.errors import InputError
from fewtag.server import TOKEN_VARIABLE

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-robots-tag": "noindex",
    "cache-control": "no-store",
}
"""Headers of every response; a route may set another cache-control."""
SHORTEST_TOKEN = 32
FAILURES, FAILURE_SECONDS = 10, 60.0
"""The number of wrong tokens within so many seconds, after which further ones must wait."""
ONCE_SECONDS = 120.0
"""How long a browser may take to open the page that it was started with."""
_SLOWEST = 50_000
"""The fewest bytes per second at which a body must arrive, after 30 seconds of grace."""
_GRACE = 30.0
_BODILESS = frozenset({"GET", "DELETE", "OPTIONS", "TRACE"})
_TYPES = ("application/json", "multipart/form-data")
Identity = Literal["bearer", "cookie"]


@dataclass(frozen=True)
class Settings:
    """Settings of exposure and limits, from the command line; none of them can be changed over HTTP."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    host: str = "127.0.0.1"
    port: int = 8766
    names: tuple[str, ...] = ()
    """Further host names that clients may use, as behind a proxy, with their port if it is another one."""
    read_only: bool = False
    most_bytes: int = 50_000_000
    """The most bytes of a request's body; JSON expands in memory, and has a lower limit."""
    most_json: int = 2_000_000
    most_files: int = 64
    most_fields: int = 100
    bytes_at_once: int = 256_000_000
    """The most bytes of all bodies in progress, which bounds the server's memory."""
    services: tuple[str, ...] = ()
    """Services for other programs: names in `app.SERVICES`."""
    label_studio: str = ""
    """Label Studio's address: the one host that pictures are fetched from."""
    keeps_token: bool = False
    """Whether the token stays the same over restarts; then it is not printed at each."""

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The exact values that a Host header may have."""
        names = {"localhost", "127.0.0.1", "[::1]"} if self.loopback else set()
        if self.host in {"0.0.0.0", "::"}:
            names |= _own_names()
        else:
            names.add(f"[{self.host}]" if ":" in self.host else self.host.lower())
        found = {f"{name}:{self.port}" for name in names} | {name.lower() for name in self.names}
        return frozenset(found | (names if self.port == 80 else set()))

    @cached_property
    def origins(self) -> frozenset[str]:
        """The values that an Origin header may have; https only behind a proxy."""
        plain = {f"http://{host}" for host in self.hosts}
        return frozenset(plain | {f"https://{name.lower()}" for name in self.names})

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies ignore ports, and two servers must not share one."""
        return f"fewtag-{self.port}"

    @cached_property
    def session(self) -> str:
        """The cookie's value: derived from the token, without revealing it."""
        return hmac.new(self.token.encode(), b"fewtag session", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own loopback.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    try:
        found = {str(each[4][0]).partition("%")[0] for each in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    return {"localhost", "127.0.0.1", "[::1]", name} | {f"[{each}]" if ":" in each else each for each in found}


def read_token(file: Path | None) -> tuple[str, bool]:
    """A token: from its file or the environment, for a service that is restarted; else a new one.

    Also returns whether it is such a permanent token.
    """
    if file is None:
        given, source = os.environ.get(TOKEN_VARIABLE, ""), f"the variable {TOKEN_VARIABLE}"
        if not given:
            return secrets.token_urlsafe(32), False
    else:
        source = f"the token file {file}"
        try:
            if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
                raise InputError(f"{source} can be read by others; run: chmod 600 {file}")
            given = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {source} ({error}); make one with 43 random characters") from error
    if len(given) < SHORTEST_TOKEN or not given.isascii() or not given.isprintable() or " " in given:
        raise InputError(
            f"{source} holds no token of {SHORTEST_TOKEN} or more letters and digits; make one with: "
            'python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return given, True


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **also: Any) -> Response:
    """An error reply as in RFC 9457, with our one sentence in `detail`."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body | also, status, headers, media_type="application/problem+json")


def session_reply(settings: Settings, headers: Headers) -> Response:
    """A cookie that stands for the token, for a client that has sent the token."""
    response = Response(status_code=204)
    response.set_cookie(
        settings.cookie,
        settings.session,
        httponly=True,
        samesite="strict",
        path="/",
        secure=headers.get("origin", "").startswith("https://"),  # behind a proxy
    )
    return response


async def authorised(request: Request) -> None:
    """The dependency of routes that need a token; async, since FastAPI would run a plain function in a thread."""
    if request.scope.get("fewtag") is None:
        raise HTTPException(401, TOKEN_NEEDED, BEARER)


BEARER = {"WWW-Authenticate": "Bearer"}
TOKEN_NEEDED = "a token is needed; send the one that the server printed as `Authorization: Bearer TOKEN`"
Observe = Callable[[Scope, int, float], None]


class Guard:
    """The middleware: checks each request before its body is read, and adds the response headers."""

    def __init__(self, app: ASGIApp, settings: Settings, observe: Observe = lambda *_: None) -> None:
        self.app, self.settings, self._observe = app, settings, observe
        self._token = hashlib.sha256(settings.token.encode()).digest()
        self._once: dict[bytes, float] = {}
        self._failures: list[float] = []
        self.in_flight = 0

    def one_time_token(self) -> str:
        """A token for one request soon, with which a page starts its session: all users of a machine can see the
        arguments that a browser is started with."""
        token = secrets.token_urlsafe(32)
        self._once[hashlib.sha256(token.encode()).digest()] = time.monotonic() + ONCE_SECONDS
        return token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["method"] == "HEAD":  # handled as a GET, of which the server omits the body
            scope = {**scope, "method": "GET"}
        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        length = 0
        try:
            length = self._judge(scope)
            self.in_flight += length
            await self.app(scope, _timed(receive, length), answer)
        except HTTPException as refusal:  # raised here; the application has answered its own
            # the body was not read, so the connection cannot be reused
            headers = {**(refusal.headers or {}), "Connection": "close"}
            await problem(refusal.status_code, refusal.detail, headers)(scope, receive, answer)
        except asyncio.CancelledError:  # the end of a server's grace, of which uvicorn would print a traceback
            if not status:
                why = "the server was ended before this was done; ask again once it runs"
                await problem(503, why, {"Connection": "close"})(scope, receive, answer)
        finally:
            self.in_flight -= length
            self._observe(scope, status or 500, time.perf_counter() - began)
        return None

    def _judge(self, scope: Scope) -> int:
        """The number of body bytes to accept; refuses what is not allowed, and notes the client's identity."""
        headers, safe = Headers(scope=scope), scope["method"] == "GET"
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.settings.hosts:
            raise HTTPException(400, "this server does not go by the name in `Host`; use the address that it printed")
        # pages that hide their origin send "null"
        if origins and (len(origins) > 1 or origins[0] not in self.settings.origins):
            raise HTTPException(403, "pages of another origin may not use this server; open its own page")
        same_site = headers.get("sec-fetch-site", "none") in {"same-origin", "none"}
        if not safe and not same_site:
            raise HTTPException(403, "pages of another site may not change anything here; open the server's own page")
        identity = scope["fewtag"] = self._identify(headers, scope, cookies=same_site)
        if not safe and identity == "cookie" and (not origins or headers.get("x-fewtag") != "1"):
            raise HTTPException(403, "changes by cookie need `Origin` and `X-Fewtag: 1`; or send the token as Bearer")
        return self._length(headers, scope["method"], identity)

    def _identify(self, headers: Headers, scope: Scope, *, cookies: bool) -> Identity | None:
        if (given := headers.get("authorization")) is not None:
            scheme, _, token = given.partition(" ")
            # Label Studio has no other way; browsers, which send passwords by themselves, are excluded by `cookies`
            if scheme.lower() == "basic" and "label-studio" in self.settings.services and cookies:
                scheme, token = "bearer", _password(token)
            found = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
            if scheme.lower() == "bearer":
                if hmac.compare_digest(found, self._token):
                    return "bearer"
                if found in self._once and _is_ours(scope) and time.monotonic() < self._once.pop(found):
                    return "bearer"
            self._refuse_token()
        cookie = cookie_parser(headers.get("cookie", "")).get(self.settings.cookie) if cookies else None
        if cookie is None or not hmac.compare_digest(cookie.encode(), self.settings.session.encode()):
            return None
        if self.settings.loopback and not self.settings.names and not _is_ours(scope):
            raise HTTPException(
                403,
                "the cookie came from a program of another user of this machine; open the page as the user who started "
                "the server, or, where a proxy is between, name that with --allow-host",
            )
        return "cookie"

    def _refuse_token(self) -> None:
        """Refuses a wrong token; only wrong ones have to wait, so that guessing cannot lock out the right one."""
        now = time.monotonic()
        times = [each for each in self._failures if now - each < FAILURE_SECONDS]
        self._failures = [*times[-FAILURES:], now]
        if len(times) >= FAILURES:
            raise HTTPException(
                429, "too many wrong tokens; wait a minute", {"Retry-After": str(round(FAILURE_SECONDS))}
            )
        raise HTTPException(401, "the token is wrong; send the one that the server printed", BEARER)

    def _length(self, headers: Headers, method: str, identity: Identity | None) -> int:
        if headers.get("transfer-encoding") is not None:
            raise HTTPException(411, "the body's length must be known before it comes; send `Content-Length`")
        given = headers.get("content-length", "0")
        if not given.isascii() or not given.isdigit() or len(given) > 15:
            raise HTTPException(400, "`Content-Length` is no number; send the body's length in bytes")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        length, most = int(given), self.settings.most_json if kind == _TYPES[0] else self.settings.most_bytes
        if not length:
            return 0
        if identity is None:
            raise HTTPException(401, TOKEN_NEEDED, BEARER)
        if method in _BODILESS:
            raise HTTPException(400, f"a {method} request has no body here; leave it out")
        if length > most:
            raise HTTPException(
                413, f"the body has {length:,} bytes, at most {most:,} are read; send fewer pictures, or smaller ones"
            )
        if kind not in _TYPES:
            raise HTTPException(415, f"the body must be one of {' and '.join(_TYPES)}; say which in `Content-Type`")
        if self.in_flight and self.in_flight + length > self.settings.bytes_at_once:
            raise HTTPException(
                503, "the server has too much to read at the moment; try again in a second", {"Retry-After": "1"}
            )
        return length


def _is_ours(scope: Scope) -> bool:
    """Whether the client is a program of this user, or root's, as far as is known; determined once per connection."""
    connection = scope.get("state", {}).get("connection", {})
    if "ours" not in connection:
        user = peer_user(scope.get("client"), scope.get("server"))
        connection["ours"] = user is None or user in {0, os.getuid()}
    return bool(connection["ours"])


Address = tuple[str, int] | None


def peer_user(client: Address, server: Address, tables: Path = Path("/proc/net")) -> int | None:
    """The user whose program holds the client's end of a local connection, by the kernel's table of connections.

    None if that is unknown: not on Linux, or through a relay; -1 if that end is already closed.
    """
    if client is None or server is None:
        return None
    try:
        ends = [_as_in_table(*client[:2]), _as_in_table(*server[:2])]
        rows = (tables / ("tcp6" if ":" in client[0] else "tcp")).read_text().splitlines()
    except (OSError, ValueError):
        return None
    found = next((facts for row in rows if (facts := row.split())[1:3] == ends), None)
    if found is None:
        return None
    return int(found[7]) if found[3] == "01" else -1  # in the table, closed connections belong to root


def _as_in_table(host: str, port: int) -> str:
    """An address in the format of the kernel's tables: 32-bit words in the machine's byte order."""
    packed = ipaddress.ip_address(host.partition("%")[0]).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"


def _password(credentials: str) -> str:
    """The password of HTTP basic authentication; the user name is ignored."""
    try:
        return base64.b64decode(credentials, validate=True).decode("latin-1").partition(":")[2]
    except ValueError:
        return ""


def _timed(receive: Receive, length: int) -> Receive:
    """A timeout for slow bodies: one that trickles is cut off."""
    until, complete = time.monotonic() + _GRACE + length / _SLOWEST, not length

    async def timed() -> Message:
        nonlocal complete
        if complete:
            return await receive()
        try:
            # within the grace period some of it must arrive, too: else five stalled bodies would block all others for
            # 15 minutes
            async with asyncio.timeout(min(_GRACE, until - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly; send it again") from None
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return timed
