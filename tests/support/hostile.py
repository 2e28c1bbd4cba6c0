"""Requests that want what they must not get: paths, hosts, origins, bodies, pictures; the same for the same seed."""

import json
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
from raw_http import Reply, form
from serving import TOKEN, picture

BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}
SECRET = "the-canary-that-no-reply-may-hold"


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and is a few bytes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def hostile(generator: np.random.Generator, canary: Path, port: int) -> tuple[str, str, dict[str, str], bytes, str]:
    """Method, path, headers, body and host of a request that wants what it must not get."""

    def one(choices: list[str]) -> str:
        return choices[generator.integers(len(choices))]

    up = one(["../", "..%2f", "%2e%2e/", "..\\", "%2e%2e%5c", "....//", "..%252f", "%c0%ae%c0%ae/", "..;/", "\\..\\"])
    target = one([str(canary), str(canary)[1:], "etc/passwd", "C:\\Windows\\win.ini", canary.name, f"file://{canary}"])
    evil = up * int(generator.integers(0, 9)) + target + one(["", "%00", "%00.png", "?", "#", "/", ".webp"])
    place = one(
        ["/static/", "/", "/v1/pictures/", "/v1/labels/", "/v1/deliveries/", "/v1/jobs/", "/docs/", "//", "/%2f"]
    )
    noise = generator.bytes(int(generator.integers(1, 400)))
    valid = picture(1, "dog")
    cut = bytearray(valid)
    for at in generator.integers(8, len(cut), 5):
        cut[at] = generator.integers(256)
    pictures = [
        *(noise, b"", bytes(cut), valid[: len(valid) // 2], valid + noise, bomb(30_000, 30_000), bomb(0, 0)),
        *(b"GIF89a" + noise, b"\xff\xd8\xff\xe0" + noise, b"II*\x00" + noise, b"RIFF\xff\xff\xff\xffWEBP" + noise),
        *(b"<svg><image href='file:///etc/passwd'/></svg>", f"<!ENTITY x SYSTEM 'file://{canary}'>".encode()),
        *(pickle.dumps({"a": noise}), b"\x00\x00\x00\x1cftypheic" + noise, str(canary).encode(), b"#!/bin/sh\nid\n"),
    ]
    bodies = [
        *(
            b"{",
            b"[" * 100_000,
            b'{"name":' * 20_000,
            b'{"name": NaN}',
            b'{"name": 1e999}',
            noise,
            b"null",
            b"[]",
            b'"x"',
        ),
        *(json.dumps({"pictures": [evil]}).encode(), json.dumps({"picture": evil, "label": evil}).encode()),
        *(json.dumps({"name": evil, "like": [evil], "path": str(canary)}).encode(), b'{"name": "\\ud800"}'),
        json.dumps({"answers": [{"id": evil, "picture": evil, "label": evil, "answer": evil}]}).encode(),
        json.dumps({"__proto__": {}, "constructor": 1, "name": "x" * 1000}).encode(),
    ]
    posts = ["/v1/tag", "/v1/labels", "/v1/answers", "/v1/explain", f"/v1/labels/{evil}/examples", f"/v1/{evil}"]
    match int(generator.integers(5)):
        case 0:
            return one(["GET", "HEAD", "DELETE", "PUT", "PROPFIND", "TRACE"]), place + evil, BEARER, b"", ""
        case 1:
            return "GET", "/v1/labels", BEARER, b"", one(["evil.example", f"127.0.0.1:{port}@evil", "0.0.0.0", evil])
        case 2:
            origin = one(["null", "http://evil.example", f"http://127.0.0.1:{port}.evil", f"file://{canary}", evil])
            return one(["GET", "POST", "PATCH"]), "/v1/labels", BEARER | {"Origin": origin}, b"", ""
        case 3:
            body = bodies[generator.integers(len(bodies))]
            return one(["POST", "PATCH"]), one(posts), BEARER | JSON, body, ""
        case _:
            name = one([evil, "a.png", "x" * 2_000, 'a"; name="b', "\r\nX: y", "..", "con", "\x00"])
            headers, body = form((name.replace("\r\n", "\r\n "), pictures[generator.integers(len(pictures))]))
            return "POST", one(posts), BEARER | headers, body, ""


def harmless(reply: Reply) -> bool:
    """Refused; or, of a picture, a row that says it could not be read or was read as a picture."""
    if SECRET.encode() in reply.body or b"root:" in reply.body or reply.status >= 500:
        return False
    if reply.status == 200:
        rows = json.loads(reply.body or b"{}").get("rows", [])
        return bool(rows) and all("failure" in row or set(row["scores"]) <= {"cat", "dog", "sofa"} for row in rows)
    return reply.status == 0 or 400 <= reply.status < 500
