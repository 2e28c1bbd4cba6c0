"""The client alone, against a server that says what no server of ours says yet."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from serving import TOKEN, Running
from tiny import draw

from fewtag import Tagger
from fewtag.client import ApiError, Client, Row

LABEL = {"name": "dog", "means": "dog", "examples": 1, "absent": 0, "threshold": 0.5, "prior": None, "trust": 1.0}
JOB = {"id": "1", "kind": "index", "state": "done", "done": 1, "total": 1, "detail": "", "result": None}


class Newer(BaseHTTPRequestHandler):
    """Of a later version, behind a path: every reply has a field more."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, bytes]]
    keys: list[str | None]
    lost: int
    """Replies that are lost first, and the connection with them."""
    busy: list[tuple[str, str]]
    """The headers of each 503 that comes first."""

    def log_message(self, *_: object) -> None: ...

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.path, body))
        self.keys.append(self.headers["Idempotency-Key"])
        if len(self.asked) <= self.lost:
            self.close_connection = True
            return
        if self.busy:
            self.send_response(503)
            self.send_header(*self.busy.pop())
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
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
    Newer.asked, Newer.keys, Newer.lost, Newer.busy = [], [], 0, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Newer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with Client(f"http://127.0.0.1:{server.server_port}/behind/") as client:
        yield client
    server.shutdown()
    server.server_close()


def test_another_programs_page_is_one_sentence(newer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda *_: "<!doctype html><title>another program</title>")
    for ask in (newer.labels, newer.search, lambda: newer.tag([("a.jpg", b"x")]), lambda: newer.job("1")):
        with pytest.raises(
            ConnectionError, match=r"no fewtag answers at http://127.0.0.1:\d+/behind, .*check the address"
        ):
            ask()
    assert not newer.health()
    assert newer.get("/other").startswith(b"<!doctype html>")


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


def test_one_picture_is_a_list_of_one(newer: Client, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"x")
    for one in (picture, str(picture), b"x"):
        assert len(newer.tag(one)) == 1


def test_a_picture_that_cannot_be_read_is_a_row_as_in_the_tagger(
    running: Running, taught: Path, tmp_path: Path
) -> None:
    good, notes, gone = tmp_path / "good.png", tmp_path / "notes.txt", tmp_path / "gone.png"
    draw(1, "dog").save(good)
    notes.write_text("no picture")
    pictures = [gone, good, notes, gone, good]
    rows = running.client.tag(pictures)
    for row, by_tagger in zip(rows, Tagger.load(taught).tag(pictures), strict=True):
        assert (row.image, row.tags) == (by_tagger.image, by_tagger.tags)
        assert bool(row.failure) == bool(by_tagger.failure)
    assert rows[0].failure == f"cannot read image {gone}: there is no such file; check the path"
    assert [row.failure for row in running.client.tag(gone)] == [rows[0].failure]
    with pytest.raises(ValueError, match="there is no such file"):
        running.client.teach("dog", [good, gone])


def test_a_picture_that_is_too_large_fails_alone(running: Running, tmp_path: Path) -> None:
    good, large = tmp_path / "good.png", tmp_path / "large.tif"
    draw(1, "dog").save(good)
    with large.open("wb") as file:
        file.truncate(51_000_000)
    rows = running.client.tag([good, large, good])
    assert [bool(row.failure) for row in rows] == [False, True, False]
    assert "51,000," in rows[1].failure


def test_a_request_whose_reply_was_lost_is_repeated_once_with_its_key(newer: Client) -> None:
    Newer.lost = 1
    assert newer.post("/v1/answers", {}) == {"rows": []}, "on the first connection, too"
    assert len(Newer.keys) == 2
    assert len({*Newer.keys} - {None}) == 1
    Newer.lost = 1000
    newer.close()
    with pytest.raises(ConnectionError):
        newer.post("/v1/answers", {})
    assert len(Newer.keys) == 4, "who never answers is left"
    assert len({*Newer.keys}) == 2, "another request has another key"


def test_what_changes_nothing_has_no_key_since_the_server_would_keep_its_reply(newer: Client) -> None:
    newer.tag(b"x")
    newer.search("dog")
    newer.labels()
    assert Newer.keys == [None] * 3


def test_only_who_says_how_long_is_waited_for(newer: Client) -> None:
    Newer.busy = [("Retry-After", "0")]
    assert len(newer.tag(b"x")) == 1
    for asked, said in enumerate((("X-Lasting", "fault"), ("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT")), 3):
        Newer.busy = [said]
        with pytest.raises(ApiError) as refused:
            newer.tag(b"x")
        assert (refused.value.status, len(Newer.asked)) == (503, asked), "a lasting fault is told at once"


def test_a_server_that_is_not_there_is_not_ready_and_told_of_with_its_address() -> None:
    client = Client("http://127.0.0.1:9", TOKEN)
    assert (client.health(), client.ready()) == (False, False)
    for ask in (client.labels, lambda: next(client.follow("1"))):
        with pytest.raises(ConnectionError, match=r"no server answers at http://127.0.0.1:9 \(.*refused\); start it"):
            ask()


def test_a_page_of_another_program_is_no_server(newer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for reply in (b"<html>", b"", b"[]", b"{}", b"{"):
        monkeypatch.setattr(newer, "_request", lambda *_, reply=reply: (200, reply, None))
        assert (newer.health(), newer.ready()) == (False, False), reply


def test_who_follows_a_job_is_told_that_the_server_ended_before_it(running: Running) -> None:
    finish = threading.Event()
    job = running.served.jobs.start("tag", lambda _progress: finish.wait(60))
    followed = running.client.follow(job.id)
    assert next(followed).state == "running"
    running.served.events.close()
    with pytest.raises(ConnectionError, match=f"ended before the job {job.id}"):
        next(followed)
    finish.set()


@pytest.mark.filterwarnings("error")
def test_closed_it_leaves_no_connection_open(running: Running) -> None:
    with ThreadPoolExecutor(2) as threads, Client(running.settings.url, TOKEN) as client:
        assert all(threads.map(lambda _: client.labels(), range(4)))
    assert [each.sock for each in client._connections] == [None] * len(client._connections)
    assert client.labels(), "a later request opens another"
    client.close()
