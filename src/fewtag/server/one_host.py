"""Fetching from one host and no other (against server-side request forgery): no redirects, its address pinned."""

import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from urllib.parse import quote, urlsplit

from fewtag.errors import InputError

KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
PLACES = ("/data/", "/storage-data/")
"""Where Label Studio keeps pictures; nothing else is asked of it, since what is asked carries its key."""
SECONDS = 20.0
"""For one picture."""
_STEP_SECONDS = 5.0
_KEY_SECONDS = 200.0
"""An access token that a refresh token was exchanged for lives 5 minutes."""
_SAFE = "/%~!$&'()*+,;=:@-._?"
_REFRESH_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")


class OneHost:
    """Label Studio at one address. What its name stood for at the start it stands for until the end."""

    def __init__(self, url: str, most_bytes: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise InputError(f"--label-studio {url!r} is no address; give one like http://localhost:8080")
        self.scheme, self.host, self.base = parts.scheme, parts.hostname, parts.path.rstrip("/")
        try:
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self.addresses = [str(each[4][0]) for each in found]  # localhost is ::1 first, where few listen
        except (OSError, ValueError) as error:
            raise InputError(f"--label-studio {url!r} cannot be found ({error}); check its name") from error
        self.most_bytes = most_bytes
        self._key, self._access = os.environ.get(KEY_VARIABLE, ""), ("", 0.0)
        self._lock = threading.Lock()

    def fetch(self, link: str) -> bytes:
        """A picture by its link in a task; refuses what is elsewhere."""
        try:
            parts = urlsplit(link)
        except ValueError as error:
            raise InputError(f"the picture {link[:100]!r} is no link ({error}); upload it to Label Studio") from error
        if (parts.scheme or parts.netloc) and self._where(link) != (self.scheme, self.host, self.port):
            raise InputError(
                f"the picture {link[:100]!r} is not at {self.scheme}://{self.host}:{self.port}, and nothing else is "
                "fetched; upload it to Label Studio, or serve it as one of its local files"
            )
        path = parts.path if self.base and parts.path.startswith(self.base + "/") else self.base + parts.path
        inside = path.removeprefix(self.base)
        if not inside.startswith(PLACES) or ".." in inside.replace("%2e", ".").replace("%2E", "."):
            raise InputError(
                f"the picture {link[:100]!r} is not under {' or '.join(PLACES)}; upload it to Label Studio"
            )
        asked = quote(path, safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
        status, content = self._ask("GET", asked, self._headers())
        if status != 200:
            said = {401: f"set {KEY_VARIABLE}", 403: f"set {KEY_VARIABLE}", 404: "upload it again"}.get(status)
            raise InputError(f"Label Studio answers {status} to {link[:100]!r}; {said or 'look at its log'}")
        return content

    @staticmethod
    def _where(link: str) -> tuple[str, str | None, int] | None:
        parts = urlsplit(link)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return None
        return None if parts.username is not None else (parts.scheme, parts.hostname, port)

    def _headers(self) -> dict[str, str]:
        """A legacy token goes as it is; a personal access token is exchanged for one that lives for minutes."""
        if not self._key:
            return {}
        if not _REFRESH_TOKEN.fullmatch(self._key):
            return {"Authorization": f"Token {self._key}"}
        with self._lock:
            access, since = self._access
            if time.monotonic() - since > _KEY_SECONDS or not access:
                body = json.dumps({"refresh": self._key}).encode()
                kind = {"Content-Type": "application/json"}
                status, content = self._ask("POST", f"{self.base}/api/token/refresh/", kind, body)
                try:
                    access = str(json.loads(content)["access"]) if status == 200 else ""
                except (ValueError, KeyError, TypeError):
                    access = ""
                if not access.isascii() or not access.isprintable() or not access:
                    raise InputError(f"Label Studio does not take the key in {KEY_VARIABLE} ({status}); make a new one")
                self._access = access, time.monotonic()
            return {"Authorization": f"Bearer {access}"}

    def _open(self) -> socket.socket:
        for address in self.addresses[:-1]:
            with suppress(OSError):
                return socket.create_connection((address, self.port), timeout=_STEP_SECONDS)
        return socket.create_connection((self.addresses[-1], self.port), timeout=_STEP_SECONDS)

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port)
        until = time.monotonic() + SECONDS
        try:
            bound = self._open()
            if self.scheme == "https":
                bound = ssl.create_default_context().wrap_socket(bound, server_hostname=self.host)
            connection.sock = bound
            connection.request(method, path, body, headers)
            response, content = connection.getresponse(), bytearray()
            while part := response.read1(65536):
                content += part
                if len(content) > self.most_bytes:
                    raise InputError(f"the picture {path[:100]!r} has more than {self.most_bytes:,} bytes; shrink it")
                if time.monotonic() > until:
                    raise InputError(f"the picture {path[:100]!r} came too slowly; try again")
        except (OSError, http.client.HTTPException) as error:
            where = f"{self.scheme}://{self.host}:{self.port}"
            raise InputError(f"Label Studio at {where} cannot be asked ({error}); is it running?") from error
        finally:
            connection.close()
        return response.status, bytes(content)
