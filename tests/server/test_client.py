"""The client alone, against a server that says what no server of ours says yet."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fewtag.client import Client, Row

LABEL = {"name": "dog", "means": "dog", "examples": 1, "absent": 0, "threshold": 0.5, "prior": None, "trust": 1.0}
JOB = {"id": "1", "kind": "index", "state": "done", "done": 1, "total": 1, "detail": "", "result": None}


class Newer(BaseHTTPRequestHandler):
    """Of a later version, behind a path: every reply has a field more."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, bytes]]

    def log_message(self, *_: object) -> None: ...

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.path, body))
        rows = [{"image": "?", "digest": "d", "tags": ["dog"], "scores": {"dog": 1.0}, "later": 1}] * body.count(
            b"filename"
        )
        path = self.path.removeprefix("/behind")
        found = {"/v1/labels": {"labels": [LABEL | {"later": 1}]}, "/v1/jobs/1": JOB | {"later": 1}}
        text = json.dumps(found.get(path, {"rows": rows})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _reply  # noqa: N815


@pytest.fixture
def newer() -> Iterator[Client]:
    Newer.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Newer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Client(f"http://127.0.0.1:{server.server_port}/behind/")
    server.shutdown()
    server.server_close()


def test_fields_that_came_later_are_passed_over(newer: Client) -> None:
    assert [label.name for label in newer.labels()] == ["dog"]
    assert newer.job("1").state == "done"
    assert newer.tag([("a.jpg", b"x")]) == [Row("a.jpg", "d", ("dog",), {"dog": 1.0})]
    assert {path for path, _ in Newer.asked} == {"/behind/v1/labels", "/behind/v1/jobs/1", "/behind/v1/tag"}


def test_pictures_are_read_when_it_is_their_turn(newer: Client) -> None:
    requests = []

    def pictures() -> Iterator[bytes]:
        for number in range(130):
            requests.append(len(Newer.asked))
            yield b"%d" % number

    assert len(newer.tag(pictures())) == 130
    # one that did not fit is read before the request is sent
    assert requests == [*65 * [0], *64 * [1], 2]


def test_a_name_that_is_no_text_is_sent(newer: Client, tmp_path: Path) -> None:
    picture = tmp_path / b"z\xff.png".decode("utf-8", "surrogateescape")
    picture.write_bytes(b"x")
    assert [row.image for row in newer.tag([picture])] == [str(picture)]
    assert b'filename="z%FF.png"' in Newer.asked[0][1]
