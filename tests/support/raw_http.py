"""HTTP by hand: requests that no client would send, and what comes back."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    port: int,
    method: str = "GET",
    path: str = "/health",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    host: str | None = None,
    length: bool = True,
) -> Reply:
    """One request on a connection of its own; a reply of status 0 is a connection that was closed without one."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {f'127.0.0.1:{port}' if host is None else host}"]
    if body and length:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace")
    return send(port, head + body)


def send(port: int, content: bytes) -> Reply:
    """These bytes, and all that the server says to them."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        received = bytearray()
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.sendall(content)
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return Reply(int(words[1]) if len(words) > 1 else 0, headers, body)


def form(*files: tuple[str, bytes], fields: Mapping[str, str] | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a multipart form."""
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in (fields or {}).items()
    ]
    for name, data in files:
        head = f'--edge\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts.append(head.encode("utf-8", "surrogateescape") + data + b"\r\n")
    return {"Content-Type": "multipart/form-data; boundary=edge"}, b"".join(parts) + b"--edge--\r\n"
