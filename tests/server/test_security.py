"""Each rule of the threat model (SECURITY.md), as a fact about a running server."""

import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.routing import APIRoute
from hostile import SECRET, bomb, harmless, hostile
from PIL import Image
from raw_http import ask, form, send
from serving import TOKEN, Running, picture, serving_bank

from fewtag import InputError
from fewtag.client import ApiError, Client
from fewtag.server import front, idempotency, routes, security, studio_routes, uploads
from fewtag.server.security import HEADERS, Settings, authorised, peer_user, read_token
from fewtag.server.uploads import Decoders

BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}
OPEN = {"/health", "/ready", "/metrics", "/docs", "/", "/static/{name:path}"}


@pytest.fixture(scope="module")
def server(taught: Path) -> Iterator[Running]:
    """One for all tests that change nothing."""
    with serving_bank(taught, Settings(TOKEN, read_only=True)) as running:
        yield running


@pytest.fixture
def port(server: Running) -> int:
    return server.settings.port


def cookie(port: int) -> dict[str, str]:
    """What a browser sends once its page has begun a session."""
    given = ask(port, "POST", "/v1/session", BEARER).headers["set-cookie"]
    return {"Cookie": given.partition(";")[0]}


# no authentication on a local port


def test_every_address_but_the_open_ones_needs_the_token(port: int) -> None:
    paths = json.loads(ask(port, path="/openapi.json", headers=BEARER).body)["paths"]
    closed = [(method.upper(), path) for path, methods in paths.items() for method in methods if path not in OPEN]
    assert len(closed) >= 12
    for method, path in [*closed, ("GET", "/openapi.json")]:
        reply = ask(port, method, path.replace("{name}", "dog").replace("{job}", "1"))
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        assert reply.headers["content-type"] == "application/problem+json"


def test_the_server_is_bound_to_the_loopback_unless_both_options_say_otherwise(cli: Callable, pets: Path) -> None:
    assert Settings().host == "127.0.0.1"
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        refused = cli("serve", pets, "--host", host)
        assert refused.code == 2
        assert "--allow-network" in refused.err


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites_nor_tells_the_token(port: int) -> None:
    given = ask(port, "POST", "/v1/session", BEARER).headers["set-cookie"]
    assert given.startswith(f"fewtag-{port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in given.split(";")}
    assert TOKEN not in given
    assert ask(port, path="/v1/labels", headers=cookie(port)).status == 200
    assert ask(port, "POST", "/v1/session", cookie(port) | {"X-Fewtag": "1"}).status == 403


def test_a_browser_is_started_with_a_token_that_is_good_for_one_request(server: Running, port: int) -> None:
    once = {"Authorization": f"Bearer {server.server.guard.one_time_token()}"}
    assert ask(port, "POST", "/v1/session", once).status == 204
    assert ask(port, "POST", "/v1/session", once).status in {401, 429}


def test_the_token_that_a_browser_is_started_with_is_good_for_a_while(
    server: Running, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "ONCE_SECONDS", 0.0)
    late = {"Authorization": f"Bearer {server.server.guard.one_time_token()}"}
    assert ask(port, "POST", "/v1/session", late).status in {401, 429}


def test_what_another_user_of_the_machine_got_hold_of_is_of_no_use(
    server: Running, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see what a browser is started with, and a cookie goes to all servers of the machine, whatever their port."""
    once, seen = {"Authorization": f"Bearer {server.server.guard.one_time_token()}"}, cookie(port)
    with monkeypatch.context() as other:
        other.setattr(security, "peer_user", lambda _client, _server: 12345)
        assert ask(port, "POST", "/v1/session", once).status in {401, 429}
        assert ask(port, path="/v1/labels", headers=seen).status == 403
        assert ask(port, path="/v1/labels", headers=BEARER).status == 200, "who has the token itself was given it"
    assert ask(port, path="/v1/labels", headers=seen).status == 200
    assert ask(port, "POST", "/v1/session", once).status == 204, "they did not spend it either"


def test_behind_a_proxy_all_users_are_one(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "peer_user", lambda _client, _server: 12345)
    with serving_bank(pets, Settings(TOKEN, names=("tags.example.org",))) as running:
        port = running.settings.port
        assert ask(port, path="/v1/labels", headers=cookie(port)).status == 200


def test_the_system_tells_whose_the_other_end_of_a_connection_is(tmp_path: Path) -> None:
    if Path("/proc/net/tcp").exists():
        with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_connection(ours.getsockname()) as theirs:
            assert peer_user(theirs.getsockname(), ours.getsockname()) == os.getuid()
            assert peer_user(("127.0.0.1", 1), ours.getsockname()) is None
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: {} {} {} 00000000:00000000 00:00000000 00000000  {}        0 114304 1 00000000a87c1020 100\n"
    order = "0100007F" if sys.byteorder == "little" else "7F000001"
    server, client = f"{order}:223E", f"{order}:9F1B"
    rows = (client, f"{order}:270F", "01", 7), (server, client, "01", 5), (client, server, "01", 1001)
    (tmp_path / "tcp").write_text(head + "".join(row.format(*each) for each in rows))
    assert peer_user(("127.0.0.1", 0x9F1B), ("127.0.0.1", 8766), tmp_path) == 1001
    six = f"{24 * '0'}{'01000000' if sys.byteorder == 'little' else '00000001'}"
    closed = row.format(f"{six}:9F1B", f"{six}:223E", "06", 0)
    (tmp_path / "tcp6").write_text(head + row.format(f"{six}:9F1C", f"{six}:223E", "01", 1002) + closed)
    assert peer_user(("::1", 0x9F1C), ("::1", 8766), tmp_path) == 1002
    assert peer_user(("::1", 0x9F1B), ("::1", 8766), tmp_path) == -1, "it is closed, and nobody's any more"
    assert peer_user(("::1", 1), ("::1", 8766), tmp_path / "none") is None, "on another system"
    assert peer_user(None, None, tmp_path) is None


def test_who_has_no_token_brings_no_body_in(port: int) -> None:
    head = f"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 40000000\r\n\r\n"
    assert send(port, head.encode()).status == 401  # before a byte of it came


# DNS rebinding


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "0.0.0.0:{port}",
        "localhost:{port}@evil",
        "[::]:{port}",
        "127.1:{port}",
        "2130706433:{port}",
        "",
        "127.0.0.1:{port}/v1",
        " ",
    ],
)
def test_a_host_that_is_not_ours_to_the_letter_is_refused_before_anything_else(port: int, host: str) -> None:
    assert ask(port, headers=BEARER, host=host.format(port=port)).status == 400


def test_a_request_without_host_or_with_two_is_refused(port: int) -> None:
    assert send(port, b"GET /health HTTP/1.0\r\n\r\n").status == 400
    two = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n"
    assert send(port, two.encode()).status == 400


# a Host header that poisons path checks


def test_authorisation_hangs_on_routes_and_not_on_paths() -> None:
    found = [*routes.open_routes.routes, *routes.router.routes, *studio_routes.router.routes]
    assert len(found) >= 30
    for route in found:
        assert isinstance(route, APIRoute)
        needs_token = authorised in [each.dependency for each in route.dependencies]
        assert needs_token != (route.path in OPEN), route.path


def test_no_part_of_the_host_becomes_part_of_the_path(port: int) -> None:
    for host in (f"127.0.0.1:{port}/health?", f"127.0.0.1:{port}#", f"x@127.0.0.1:{port}"):
        assert ask(port, path="/v1/labels", host=host).status == 400
    assert ask(port, path=f"http://127.0.0.1:{port}/health").status in {400, 404}


# any website may send requests to this machine


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "https://127.0.0.1:{port}",
        "file://",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}/",
        "http://evil.example/127.0.0.1:{port}",
        "",
        "HTTP://127.0.0.1:{port}",
        "http://127.0.0.1:{port}0",
        "http://localhost.evil:{port}",
        "moz-extension://1",
    ],
)
def test_an_origin_that_is_not_ours_is_refused_even_with_the_token(port: int, origin: str) -> None:
    given = {"Origin": origin.format(port=port)}
    for method, path in (("GET", "/health"), ("GET", "/v1/labels"), ("POST", "/v1/tag")):
        for who in ({}, BEARER, cookie(port)):
            assert ask(port, method, path, given | who).status == 403


def test_our_own_origin_is_taken(port: int) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert ask(port, path="/v1/labels", headers=BEARER | {"Origin": f"http://{name}:{port}"}).status == 200


def test_a_change_by_cookie_needs_our_origin_and_a_header_that_forms_cannot_send(port: int) -> None:
    ours, mark = {"Origin": f"http://127.0.0.1:{port}"}, {"X-Fewtag": "1"}
    body = json.dumps({"pictures": [32 * "0"]}).encode()
    for headers in ({}, ours, mark, ours | {"X-Fewtag": "0"}):
        assert ask(port, "POST", "/v1/tag", JSON | cookie(port) | headers, body).status == 403
    assert ask(port, "POST", "/v1/tag", JSON | cookie(port) | ours | mark, body).status == 404  # no such picture


def test_a_request_of_another_site_neither_changes_nor_uses_the_cookie(port: int) -> None:
    for site in ("cross-site", "same-site"):  # another port of this machine is of the same site
        assert ask(port, "POST", "/v1/tag", BEARER | {"Sec-Fetch-Site": site}).status == 403
        assert ask(port, path="/v1/labels", headers=cookie(port) | {"Sec-Fetch-Site": site}).status == 401
    for site in ("same-origin", "none"):
        assert ask(port, path="/v1/labels", headers=cookie(port) | {"Sec-Fetch-Site": site}).status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/plain; application/json"]
)
def test_a_body_that_a_plain_form_could_send_is_refused(port: int, kind: str) -> None:
    assert ask(port, "POST", "/v1/labels", BEARER | {"Content-Type": kind}, b'{"name": "x"}').status == 415


def test_no_reply_has_a_cors_header(port: int) -> None:
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    ours = {"Origin": f"http://127.0.0.1:{port}", "Access-Control-Request-Method": "POST"}
    for reply in (ask(port, "OPTIONS", "/v1/tag", preflight), ask(port, "OPTIONS", "/v1/tag", ours), ask(port)):
        assert not [name for name in reply.headers if name.startswith("access-control")]
    assert ask(port, "OPTIONS", "/v1/tag", ours).status == 405


def test_head_is_get_without_the_body(port: int) -> None:
    for path, headers in (("/health", {}), ("/v1/labels", BEARER), ("/v1/labels", {}), ("/none", {})):
        get, head = (ask(port, method, path, headers) for method in ("GET", "HEAD"))
        assert (head.status, head.headers["content-length"], head.body) == (get.status, str(len(get.body)), b"")


def test_there_is_no_websocket(port: int) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert ask(port, path="/v1/events", headers=upgrade | BEARER).status == 404  # a bank has no events


# open redirects, and tokens that leak


def test_nothing_redirects(port: int) -> None:
    for path in ("/v1/labels/", "//evil.example", "/docs/", "/?next=http://evil.example", "/static", "/v1"):
        reply = ask(port, path=path, headers=BEARER)
        assert reply.status not in range(300, 400), path
        assert "location" not in reply.headers


def test_a_token_in_the_query_counts_for_nothing(port: int) -> None:
    for name in ("token", "access_token", "key", "authorization"):
        assert ask(port, path=f"/v1/labels?{name}={TOKEN}").status == 401


@pytest.mark.slow
def test_the_token_is_in_no_reply_and_in_no_log(pets: Path) -> None:
    environment = os.environ | {"FEWTAG_TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "fewtag", "serve", str(pets), "--port", "0", "--json", "--no-cache"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        port = int(started["url"].rpartition(":")[2])
        try:
            assert started["token"] == TOKEN
            for path in ("/", "/docs", "/metrics", "/v1/labels", "/openapi.json", f"/?token={TOKEN}"):
                assert TOKEN.encode() not in ask(port, path=path, headers=BEARER).body
            Client(started["url"], TOKEN).tag([picture(1, "dog"), b"nothing"])
            # a picture's worker does not know it either
            if (tasks := Path(f"/proc/{process.pid}/task")).exists():
                workers = [each for task in tasks.iterdir() for each in (task / "children").read_text().split()]
                assert workers
                for worker in workers:
                    assert TOKEN.encode() not in Path(f"/proc/{worker}/environ").read_bytes()
        finally:
            process.terminate()
        said = process.stdout.read() + (process.stderr.read() if process.stderr else b"")
    assert TOKEN.encode() not in said


# files read by path


def test_no_address_takes_a_path(port: int) -> None:
    schema = json.loads(ask(port, path="/openapi.json", headers=BEARER).body)
    names = {
        each["name"] for path in schema["paths"].values() for op in path.values() for each in op.get("parameters", [])
    }
    fields = {name for each in schema["components"]["schemas"].values() for name in each.get("properties", {})}
    assert not {"path", "folder", "file", "filename", "dir", "root", "url"} & (names | fields - {"files"})
    for path in (
        "/static/../pyproject.toml",
        "/static/%2e%2e/studio.py",
        "/static//etc/passwd",
        "/static/index.html/..",
    ):
        assert ask(port, path=path).status == 404


# an upload that is served as a page


@pytest.mark.parametrize(
    "content",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        b"<?xml version='1.0'?><svg/>",
        b"<!doctype html><p>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"P6 1 1 255 abc",
        b"SIMPLE  =                    T",
        b"%PDF-1.7",
    ],
)
def test_what_is_no_photograph_is_never_decoded(server: Running, content: bytes) -> None:
    (row,) = server.client.tag([("photo.jpg", content)])
    assert "cannot be decoded" in row.failure


def test_names_come_back_as_text_of_a_type_that_no_browser_runs(running: Running) -> None:
    name = "<script>alert(1)</script>"
    running.client.define(name, words=False)
    reply = ask(running.settings.port, path="/v1/labels", headers=BEARER)
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in ask(running.settings.port, path="/docs").body.replace(b"&lt;script&gt;", b"")


# no content security policy


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/docs"), ("GET", "/nowhere"), ("PUT", "/v1/tag"), ("GET", "/v1/labels")]
)
def test_every_reply_has_the_strict_policy(port: int, method: str, path: str) -> None:
    for headers in ({}, BEARER, {"Origin": "null"}):
        reply = ask(port, method, path, headers)
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS


def test_the_policy_lets_no_script_in_but_our_own() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in security.CONTENT_POLICY.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"


# requests to other machines, made for a stranger


def test_no_request_makes_the_server_fetch_an_address(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.5)
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/a.jpg"
        headers, body = form((url, url.encode()), fields={"url": url, "label": url})
        ask(port, "POST", "/v1/tag", BEARER | headers, body)
        ask(port, "POST", "/v1/tag", BEARER | JSON, json.dumps({"pictures": [url]}).encode())
        ask(port, "POST", "/v1/explain", BEARER | JSON, json.dumps({"picture": url, "label": "dog"}).encode())
        with pytest.raises(TimeoutError):
            trap.accept()


# forms that eat memory and time


def test_a_body_without_a_length_is_refused(port: int) -> None:
    chunked = BEARER | JSON | {"Transfer-Encoding": "chunked"}
    assert ask(port, "POST", "/v1/labels", chunked, b"5\r\n{}   \r\n0\r\n\r\n", length=False).status == 411


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(port: int) -> None:
    for kind, length in (("multipart/form-data; boundary=x", 50_000_001), ("application/json", 2_000_001)):
        headers = BEARER | {"Content-Type": kind, "Content-Length": str(length)}
        reply = ask(port, "POST", "/v1/tag", headers)
        assert reply.status == 413
        assert "are read" in json.loads(reply.body)["detail"]


def test_more_than_64_files_or_100_fields_are_refused(port: int) -> None:
    headers, body = form(*[(f"{number}.png", b"x") for number in range(65)])
    assert ask(port, "POST", "/v1/tag", BEARER | headers, body).status == 413
    headers, body = form(("a.png", b"x"), fields={f"f{number}": "x" for number in range(101)})
    assert ask(port, "POST", "/v1/tag", BEARER | headers, body).status == 413


def test_a_large_picture_that_is_sent_is_not_written_to_the_disk(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollover(_: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", rollover)
    (row,) = server.client.tag([picture(1, "dog") + bytes(3_000_000)])  # bytes after its end are no fault
    assert row.tags == ("dog",)


def test_bodies_that_are_read_at_once_are_bounded(pets: Path) -> None:
    with serving_bank(pets, Settings(TOKEN, bytes_at_once=1_000_000)) as running:
        port = running.settings.port
        head = (
            f"POST /v1/tag HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 900000\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(head.encode())
            _wait_until(lambda: running.server.guard.in_flight == 900_000)
            headers, body = form(("a.png", 200_000 * b"x"))
            reply = ask(port, "POST", "/v1/tag", BEARER | headers, body)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert ask(port).status == 200
        _wait_until(lambda: running.server.guard.in_flight == 0)
        assert ask(port, "POST", "/v1/tag", BEARER | headers, body).status == 200


def _wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.01)


def test_a_body_that_trickles_is_cut_off(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "_GRACE", 0.2)
    monkeypatch.setattr(security, "_SLOWEST", 1_000_000)
    with serving_bank(pets) as running:
        headers = BEARER | JSON | {"Content-Length": "100"}
        for more in ({}, {"Idempotency-Key": "1"}):
            assert ask(running.settings.port, "POST", "/v1/labels", headers | more, b"{", length=False).status == 408


def test_a_body_that_stalls_is_cut_off_long_before_all_of_it_could_have_come(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_GRACE", 0.2)
    monkeypatch.setattr(security, "_SLOWEST", 1)  # a byte a second would do for a quarter of an hour
    with serving_bank(pets) as running:
        headers = BEARER | JSON | {"Content-Length": "1000"}
        assert ask(running.settings.port, "POST", "/v1/labels", headers, b"{", length=False).status == 408


@pytest.mark.parametrize("said", [b"", b"GET /health HT"], ids=["nothing", "half a request"])
def test_a_connection_that_says_nothing_ends(pets: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(front, "SILENT_SECONDS", 0.2)
    with serving_bank(pets) as running:
        with socket.create_connection(("127.0.0.1", running.settings.port), timeout=60) as silent:
            silent.sendall(said)
            assert silent.recv(100) == b""
        assert ask(running.settings.port).status == 200


def test_a_form_is_one_however_its_type_is_spelt(port: int) -> None:
    headers, body = form(("a.png", picture(1, "dog")))
    shouted = {"Content-Type": headers["Content-Type"].replace("multipart/form-data", "Multipart/Form-Data")}
    assert ask(port, "POST", "/v1/tag", BEARER | shouted, body).status == 200
    odd = {"Content-Type": headers["Content-Type"] + "; charset=undefined"}
    assert ask(port, "POST", "/v1/tag", BEARER | odd, body).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"--edge\r\n" + 2_000_000 * b"A" + b": x\r\n\r\n",
        b"--edge\r\n" + 200_000 * b"a: b\r\n" + b"\r\n",
        5_000_000 * b"\r",
        b'--edge\r\nContent-Disposition: form-data; name="files"; filename="' + 2_000_000 * b"\\" + b'"\r\n\r\n',
    ],
    ids=["long header", "many headers", "carriage returns", "backslashes"],
)
def test_a_hostile_form_costs_no_time(port: int, body: bytes) -> None:
    began = time.process_time()
    reply = ask(port, "POST", "/v1/tag", BEARER | {"Content-Type": "multipart/form-data; boundary=edge"}, body)
    assert reply.status in {400, 413, 422}
    assert time.process_time() - began < 20


def test_ranges_are_not_served(port: int) -> None:
    reply = ask(port, path="/docs", headers={"Range": "bytes=" + ",".join(f"{n}-" for n in range(2000))})
    assert reply.status == 200
    assert "content-range" not in reply.headers


# bugs and bombs in decoders


def test_a_picture_of_more_than_100_megapixels_is_refused_by_its_header(server: Running) -> None:
    for size in ((10_001, 10_000), (2**31 - 1, 2**31 - 1)):
        (row,) = server.client.tag([bomb(*size)])
        assert row.failure


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no process by a signal")
def test_a_decoder_that_hangs_and_dies_takes_its_picture_with_it_and_nothing_else(pets: Path) -> None:
    with serving_bank(pets, decoders=Decoders(1)) as running:
        running.client.tag([picture(1, "dog")])  # so that the worker is there
        (worker,) = running.served.decoders.workers
        running.served.decoders._idle[0].seconds = 0.5  # its followers have all the time they need to start
        os.kill(worker, signal.SIGSTOP)
        hung, good = running.client.tag([picture(2, "cat"), picture(1, "dog")])
        assert "its decoder died" in hung.failure
        assert good.tags == ("dog",)
        assert running.served.decoders.deaths == 1
        os.kill(*running.served.decoders.workers, signal.SIGKILL)  # while it waits: nobody's picture is lost
        assert running.client.tag([picture(2, "cat")])[0].tags == ("cat",)
        assert running.served.decoders.workers != [worker]


def test_a_picture_is_decoded_without_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = Decoders(1)
    try:
        decoders.submit(picture(1, "dog"), "a.png", 32).result()
        monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        decoders.submit(picture(1, "dog"), "a.png", 32).result()
    finally:
        decoders.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of this kind")
def test_a_worker_may_not_take_more_memory_nor_write_files() -> None:
    content = io.BytesIO()
    Image.new("RGB", (9_000, 9_000)).save(content, "PNG", compress_level=1)
    decoders = Decoders(1, memory=400_000_000)
    try:
        with pytest.raises(InputError, match=r"cannot be decoded|too much memory"):
            decoders.submit(content.getvalue(), "large.png", 32).result()
        assert decoders.submit(picture(1, "dog"), "small.png", 32).result().pixels.shape == (3, 32, 32)
        limits = Path(f"/proc/{decoders.workers[0]}/limits")
        if limits.exists():
            found = {line[:25].strip(): line[26:].split()[0] for line in limits.read_text().splitlines()}
            assert found["Max address space"] == "400000000"
            assert found["Max file size"] == found["Max core file size"] == "0"
            assert found["Max cpu time"].isdigit()
    finally:
        decoders.close()


def test_a_worker_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    decoders = Decoders(1)
    try:
        assert decoders.submit(picture(1, "dog"), "a.png", 32).result().pixels.any()
    finally:
        decoders.close()


def test_a_system_that_refuses_a_limit_still_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        """As macOS does."""

        RLIMIT_AS = RLIMIT_FSIZE = RLIMIT_CORE = RLIMIT_CPU = RUSAGE_SELF = 0

        def setrlimit(self, *_: object) -> None:
            raise ValueError("current limit exceeds maximum limit")

        def getrlimit(self, _: int) -> tuple[int, int]:
            return -1, -1

        def getrusage(self, _: int) -> SimpleNamespace:
            return SimpleNamespace(ru_utime=1.0, ru_stime=0.0)

    monkeypatch.setattr(uploads, "_resource", Refusing)
    uploads._restrict(10**9)
    uploads._allow_seconds(60.0)


def test_stored_replies_keep_to_their_bound(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "KEPT_BYTES", 20_000)
    with serving_bank(pets) as running:
        for number in range(30):
            running.client.define(f"thing {number}", words=False)
        kept = running.server.front.app.result()
        assert isinstance(kept, idempotency.Idempotency)
        while not all(reply.done.is_set() for reply in list(kept._replies.values())):
            time.sleep(0.001)  # the last one is kept after it is sent
        assert 0 < kept._size <= 20_000
        assert kept._size == sum(reply.size for reply in kept._replies.values())
        assert all(reply.size > 1_000 for reply in kept._replies.values())


def test_only_the_oldest_replies_are_looked_at_and_none_in_progress_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    class Watched(OrderedDict[str, idempotency._Reply]):
        def items(self) -> Iterator[tuple[str, idempotency._Reply]]:  # type: ignore[override]
            return ((key, value) for key, value in super().items() if not looked.append(key))

    def kept(number: int) -> idempotency._Reply:
        messages = [{"type": "http.response.start", "status": 200}] if number else []
        return idempotency._Reply(b"", time.monotonic(), messages=messages, size=100 if number else 0)

    store = idempotency.Idempotency(lambda *_: None)  # type: ignore[arg-type]
    store._replies = Watched((str(number), kept(number)) for number in range(1_000))
    store._size = sum(each.size for each in store._replies.values())
    store._expire()
    assert looked == ["0", "1"]
    monkeypatch.setattr(idempotency, "KEPT_BYTES", store._size - 250)
    store._expire()
    assert list(store._replies) == ["0", *map(str, range(4, 1_000))]
    assert store._size == sum(each.size for each in store._replies.values())


def test_the_word_of_a_worker_that_was_taken_over_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders, real = Decoders(1), uploads._receive
    try:
        for answer in (b"[]\n", b"{}\n", b'{"key": 1, "thumbnail": "zz"}\n', pickle.dumps(object()), b""):
            monkeypatch.setattr(uploads, "_receive", lambda _, size, said=answer: real(io.BytesIO(said), size))
            with pytest.raises(InputError, match="its decoder died"):
                decoders.submit(picture(1, "dog"), "a.png", 32).result()
    finally:
        decoders.close()


# secrets in code, and pickles


def test_a_token_has_256_bits_of_its_own_at_each_start() -> None:
    tokens = {read_token(None)[0] for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {43}


def test_a_token_file_that_others_can_read_or_that_could_be_guessed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    assert read_token(file) == (TOKEN, True)
    if os.name == "posix":
        file.chmod(0o644)
        with pytest.raises(InputError, match="chmod 600"):
            read_token(file)
    for bad in ("secret", 43 * "ä", "a token of more than 32 characters with blanks"):
        monkeypatch.setenv("FEWTAG_TOKEN", bad)
        with pytest.raises(InputError, match="no token"):
            read_token(None)


def test_a_bank_that_is_a_pickle_is_refused_and_never_loaded(cli: Callable, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path(tmp_path / "exploded").touch, ())

    (tmp_path / "evil.fewtag").write_bytes(pickle.dumps(Bomb()))
    assert cli("serve", tmp_path / "evil.fewtag").code == 2
    assert not (tmp_path / "exploded").exists()


# settings that can be changed over the web


def test_nothing_of_the_settings_can_be_changed_over_http(server: Running, port: int) -> None:
    before = repr(server.settings), server.settings.token
    with pytest.raises(AttributeError):
        server.settings.host = "0.0.0.0"  # type: ignore[misc]
    for path in ("/v1/settings", "/v1/config", "/v1/project", "/settings", "/v1/labels/dog"):
        for method in ("PUT", "POST", "PATCH"):
            body = json.dumps({"host": "0.0.0.0", "read_only": False, "token": "x", "allow_network": True}).encode()
            assert ask(port, method, path, BEARER | JSON, body).status in {403, 404, 405, 422}
    assert (repr(server.settings), server.settings.token) == before


# and besides


def test_wrong_tokens_are_told_to_wait_and_the_right_one_is_not_locked_out(pets: Path) -> None:
    with serving_bank(pets) as running:
        port = running.settings.port
        wrong = [ask(port, path="/v1/labels", headers={"Authorization": f"Bearer {n}"}).status for n in range(15)]
        assert wrong == 10 * [401] + 5 * [429]
        assert ask(port, path="/v1/labels", headers=BEARER).status == 200
        for nearly in (f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", TOKEN, "Bearer \xff"):
            assert ask(port, path="/v1/labels", headers={"Authorization": nearly}).status == 429


def test_metrics_need_the_token_where_others_could_ask(pets: Path) -> None:
    with serving_bank(pets, Settings(TOKEN)) as running:
        assert ask(running.settings.port, path="/metrics").status == 200
    with serving_bank(pets, Settings(TOKEN, host="0.0.0.0", names=("tagger.example",))) as running:
        assert ask(running.settings.port, path="/metrics", host="tagger.example").status == 401
        assert ask(running.settings.port, path="/metrics", host="tagger.example", headers=BEARER).status == 200


def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_alone(pets: Path) -> None:
    with serving_bank(pets, Settings(TOKEN, names=("tagger.example",))) as running:
        ours = BEARER | {"Origin": "https://tagger.example"}
        reply = ask(running.settings.port, "POST", "/v1/session", ours, host="tagger.example")
        assert "Secure" in reply.headers["set-cookie"]


def test_an_error_says_nothing_of_the_code(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(type(running.served.bank), "labels", break_down)
    reply = ask(running.settings.port, path="/v1/labels", headers=BEARER)
    assert reply.status == 500
    assert SECRET.encode() not in reply.body
    assert b"Traceback" not in reply.body


# 500 crafted requests


@pytest.mark.slow
def test_500_hostile_requests_are_refused_and_nothing_is_read_or_written_outside(taught: Path, tmp_path: Path) -> None:
    canary = tmp_path / "private" / "secret.txt"
    canary.parent.mkdir()
    canary.write_text(SECRET)
    folder = tmp_path / "served"
    folder.mkdir()
    bank = folder / "pets.fewtag"
    bank.write_bytes(taught.read_bytes())
    generator = np.random.default_rng(12)
    with serving_bank(bank, Settings(TOKEN, read_only=True), decoders=Decoders(2)) as running:
        port = running.settings.port
        oracle = running.client.tag([picture(1, "dog")])
        for number in range(500):
            method, path, headers, body, host = hostile(generator, canary, port)
            path = path.replace(" ", "%20") or "/"
            reply = ask(port, method, path, headers, body, host=host or None)
            assert harmless(reply), (number, method, path, headers, body[:200], host, reply)
        assert running.client.tag([picture(1, "dog")]) == oracle
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "private/secret.txt",
        "served/pets.fewtag",
    }
    assert bank.read_bytes() == taught.read_bytes()
    assert canary.read_text() == SECRET


def test_hostile_requests_leave_a_writable_bank_readable(pets: Path) -> None:
    generator = np.random.default_rng(13)
    with serving_bank(pets) as running:
        for _ in range(100):
            method, path, headers, body, host = hostile(generator, pets, running.settings.port)
            reply = ask(running.settings.port, method, path.replace(" ", "%20"), headers, body, host=host or None)
            assert reply.status < 500, (method, path, body[:200], reply)
        assert {"dog", "cat", "sofa"} & {label.name for label in running.client.labels()}
        with pytest.raises(ApiError):
            running.client.define("")
