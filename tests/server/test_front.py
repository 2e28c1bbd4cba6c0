"""The start of a server: its page at once, with its first pictures where they were kept, all else when it can."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_http import Reply, ask
from serving import TOKEN, lasting
from tiny import draw

from fewtag.errors import InputError
from fewtag.server import front, security
from fewtag.server.security import Settings
from fewtag.studio import first_page
from fewtag.studio.project import Project
from fewtag.studio.studio import Studio

BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}
FIRST = ("/v1/project", "/v1/pictures", "/v1/labels", "/v1/pictures/{}/thumbnail?size=256")


@pytest.fixture(scope="module")
def known(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project of twelve pictures that were indexed before."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "album").mkdir()
    for number in range(12):
        draw(number, ["dog", "cat", "sofa"][number % 3]).save(folder / "album" / f"{number:02}.png")
    options = {"model": str(tiny_model), "cache": folder / "cache"}
    with Studio.open(folder / "project", [folder / "album"], **options) as studio:
        assert studio.wait(300.0)
    return folder


def kept(known: Path) -> Callable[[], dict[str, bytes]]:
    """What the last studio kept, as the command reads it."""

    def read() -> dict[str, bytes]:
        with closing(Project(known / "project")) as project:
            return first_page.read(project, known / "cache")

    return read


@contextmanager
def starting(
    open_service: Callable[[object], Studio],
    ended: list[BaseException],
    page: Callable[[], Mapping[str, bytes]] = dict,
) -> Iterator[int]:
    """The port of a server as its command starts it, whose address was just told; then what it ended with."""
    told = threading.Event()
    with front.listen("127.0.0.1", 0) as bound:
        settings = Settings(TOKEN, port=bound.getsockname()[1])
        server = front.Server(open_service, settings, page=page, decoders=lasting(), started=lambda _guard: told.set())

        def run() -> None:
            try:
                front.run(server, bound)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert told.wait(120)
        try:
            yield settings.port
        finally:
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive()


def test_a_page_begins_before_its_project_is_open_with_what_that_will_say(known: Path) -> None:
    gate, ended = threading.Event(), list[BaseException]()

    def open_late(_decoders: object) -> Studio:
        assert gate.wait(120)
        return Studio.open(known / "project", cache=known / "cache")

    with starting(open_late, ended, kept(known)) as port, ThreadPoolExecutor(8) as clients:

        def get(path: str, method: str = "GET", **headers: str) -> Reply:
            return ask(port, method, path, BEARER | headers)

        for path, said in (("/", b"<!doctype html>"), ("/static/app.js", b"import")):
            reply = ask(port, path=path)
            assert (reply.status, said in reply.body) == (200, True)
        session = ask(port, "POST", "/v1/session", BEARER)
        assert (session.status, "httponly" in session.headers["set-cookie"].lower()) == (204, True)
        page = json.loads(get("/v1/pictures").body)
        assert (page["total"], len(page["pictures"])) == (12, 12)
        shown = [*FIRST[:3], *(FIRST[3].format(cell["digest"]) for cell in page["pictures"])]
        cookie = {"Cookie": session.headers["set-cookie"].partition(";")[0]}
        before = [ask(port, path=path, headers=cookie) for path in shown]  # another tab
        assert {reply.status for reply in before} == {200}
        for reply in before:
            for name, value in security.HEADERS.items():
                assert reply.headers[name] == value or (name, value) == ("cache-control", "no-store")
        # what may not be asked is refused at once, whatever is kept
        assert [ask(port, path=path, headers=BEARER | {"Host": "evil.example"}).status for path in shown[:4]] == 4 * [
            400
        ]
        assert [get(path, Origin="http://evil.example").status for path in shown[:4]] == 4 * [403]
        assert get(shown[0], Authorization="Bearer wrong").status == 401
        # who has no token, and whoever wants something else, waits for the application; nothing is lost
        label = {"name": "dog", "words": False}
        late = [
            *(clients.submit(ask, port, path=path) for path in shown[:4]),
            clients.submit(get, "/v1/pictures?limit=5"),
            clients.submit(get, FIRST[3].format(32 * "0")),
            clients.submit(ask, port, "POST", "/v1/labels", BEARER | JSON, json.dumps(label).encode()),
        ]
        assert not any(each.done() for each in late)
        gate.set()
        assert [each.result().status for each in late] == [401, 401, 401, 401, 200, 404, 201]
        after = [get(path) for path in shown]
        assert [reply.body for reply in after[3:]] == [reply.body for reply in before[3:]]
        assert [reply.headers["content-type"] for reply in after] == [r.headers["content-type"] for r in before]
        assert json.loads(after[2].body)["labels"][0]["name"] == "dog", "what is kept is over"
        assert get("/static/../front.py").status == 404
    assert not ended


def test_probes_are_answered_while_the_project_is_being_opened(known: Path) -> None:
    gate, ended = threading.Event(), list[BaseException]()

    def open_late(_decoders: object) -> Studio:
        assert gate.wait(120)
        return Studio.open(known / "project", cache=known / "cache", index=False)

    with starting(open_late, ended) as port:
        health, ready = (ask(port, path=path) for path in ("/health", "/ready"))
        assert (health.status, json.loads(health.body)) == (200, {"status": "ok"})
        assert (ready.status, json.loads(ready.body)["ready"]) == (503, False)
        assert ask(port, "HEAD", "/health").status == 200
        assert ask(port, path="/health", headers={"Host": "evil.example"}).status == 400
        gate.set()
        assert ask(port, path="/v1/project", headers=BEARER).status == 200
        health = ask(port, path="/health")
        assert (health.status, json.loads(health.body)) == (200, {"status": "ok"})
    assert not ended


def test_the_kept_replies_are_those_of_the_application(known: Path) -> None:
    ended: list[BaseException] = []
    found = kept(known)()
    with starting(lambda _: Studio.open(known / "project", cache=known / "cache", index=False), ended) as port:
        for path, body in found.items():
            reply = ask(port, path=path, headers=BEARER)
            if path == "/v1/project":
                assert json.loads(reply.body) | {"indexing": True} == json.loads(body)
            else:
                assert reply.body == body
    assert len(found) == 3 + 12
    assert not ended


def test_what_cannot_be_opened_is_told_to_the_page_and_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ended = threading.Event(), list[BaseException]()
    monkeypatch.setattr(front.Front, "_application", _telling(front.Front._application, asked))

    def refuse(_decoders: object) -> Studio:
        assert asked.wait(120)
        raise InputError("there is no model 'none'; choose another")

    with starting(refuse, ended) as port:
        reply = ask(port, path="/v1/project", headers=BEARER)
        assert (reply.status, json.loads(reply.body)["detail"]) == (503, "there is no model 'none'; choose another")
    assert [str(error) for error in ended] == ["there is no model 'none'; choose another"]


def _telling(work: Callable[..., Any], begun: threading.Event) -> Callable[..., Any]:
    def told(*given: Any) -> Any:
        begun.set()
        return work(*given)

    return told


def test_a_server_that_is_ended_while_it_opens_lets_go_of_the_project(known: Path) -> None:
    begun, ended = threading.Event(), list[BaseException]()

    def open_it(_decoders: object) -> Studio:
        begun.set()
        return Studio.open(known / "project", cache=known / "cache")

    with starting(open_it, ended):
        assert begun.wait(120)
    assert not ended
    Studio.open(known / "project", cache=known / "cache", index=False).close()


def test_replies_are_sent_at_once() -> None:
    """asyncio lets small pieces go without waiting for others only where a socket says that it is TCP's."""
    with front.listen("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_the_page_waits_for_no_heavy_import() -> None:
    program = "import sys, fewtag.server.front, fewtag.studio.first_page; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"fastapi", "pydantic", "numpy", "PIL", "onnxruntime", "prometheus_client"} & set(done.stdout.split())
