"""Label Studio's machine-learning backend, against its recorded requests and a host that stands in for it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_http import Reply, ask
from recording import basic, data_url, recorded, same, send
from serving import TOKEN, Running, picture, serving, serving_bank
from tiny import draw

from fewtag import InputError, Tagger
from fewtag.server.label_studio import KEY_VARIABLE, Item, OneHost, controls
from fewtag.server.security import Settings
from fewtag.server.uploads import TOKEN_VARIABLE, Decoders
from fewtag.studio.studio import Studio

KEY = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """<View><Image name="image" value="$image"/><Choices name="shown" toName="image" choice="multiple">
  <Choice value="Dog"/><Choice value="Cat"/><Choice value="Zebra"/></Choices></View>"""
PICTURES = {"first.png": picture(40, "zebra"), "second.png": picture(41, "zebra"), "dog.png": picture(42, "dog")}


class StandIn(BaseHTTPRequestHandler):
    """Pictures by the last part of their name, for whoever has the key; and what a host should not do."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization"), self.headers["Host"]))
        name = self.path.rsplit("-", 1)[-1].rsplit("=", 1)[-1]
        if self.headers.get("Authorization") not in {f"Token {KEY}", "Bearer access"}:
            self.answer(401, b"no key")
        elif name == "away":
            self.answer(302, b"", Location="http://127.0.0.1:1/secret")
        elif name == "large":
            self.answer(200, b"x" * 200_000)
        elif name in PICTURES:
            self.answer(200, PICTURES[name])
        else:
            self.answer(404, b"nothing")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, None, self.headers["Host"]))
        good = self.path == "/api/token/refresh/" and body == {"refresh": "a.personal.token"}
        self.answer(200 if good else 401, b'{"access": "access"}' if good else b"{}")

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def url(host: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{host.server_address[1]}"


@contextmanager
def backend(path: Path, host: ThreadingHTTPServer, **settings: Any) -> Iterator[Running]:
    with serving_bank(path, Settings(TOKEN, services=("label-studio",), label_studio=url(host), **settings)) as running:
        yield running


@pytest.fixture
def connected(pets: Path, host: ThreadingHTTPServer) -> Iterator[Running]:
    with backend(pets, host) as running:
        yield running


def predict(running: Running, *links: str, config: str = CONFIG) -> Reply:
    tasks = [{"id": number, "data": {"image": link}, "project": 1} for number, link in enumerate(links, 1)]
    asked = {"tasks": tasks, "project": "1.1700000000", "label_config": config, "params": {"context": None}}
    return send(running, "POST", "/label-studio/predict", asked)


def annotate(running: Running, link: str, *chosen: str, config: str = CONFIG, **also: Any) -> Reply:
    result = [{"from_name": "shown", "to_name": "image", "type": "choices", "value": {"choices": list(chosen)}}]
    annotation = {"id": 7, "updated_at": "2026-11-16T05:00:00Z", "result": result if chosen else []} | also
    asked = {"action": "ANNOTATION_CREATED", "annotation": annotation, "project": {"id": 1, "label_config": config}}
    return send(running, "POST", "/label-studio/webhook", asked | {"task": {"id": 1, "data": {"image": link}}})


def results(reply: Reply) -> list[list[str]]:
    assert reply.status == 200, reply.body
    found = json.loads(reply.body)["results"]
    return [[name for item in each["result"] for name in item["value"]["choices"]] for each in found]


def test_the_exchange_of_the_documentation_is_what_happens(connected: Running) -> None:
    """As Label Studio itself sent it; versions are other ones each time."""
    versions = []
    for number, each in enumerate(recorded("label-studio.json")):
        reply = send(connected, each.method, each.path, each.request)
        told = json.loads(reply.body)
        assert (reply.status, same(told, each.reply)) == (each.status, True), (number, told)
        versions.append(told.get("model_version"))
    assert len(set(versions) - {None}) >= 2
    assert Tagger.load(connected.served.bank.path).counts_["Zebra"] == 1


def test_choices_become_labels_by_name_and_known_ones_are_found_whatever_their_case(connected: Running) -> None:
    reply = send(
        connected, "POST", "/label-studio/setup", {"project": "1.17", "schema": CONFIG, "hostname": "http://x"}
    )
    assert json.loads(reply.body)["model_version"].startswith("pets-")
    assert [label.name for label in connected.client.labels()] == ["Zebra", "cat", "dog", "sofa"]
    again = send(connected, "POST", "/label-studio/setup", {"project": "1.17", "schema": CONFIG})
    assert again.body == reply.body


def test_predictions_are_the_taggers_and_the_score_is_that_of_the_least_sure_label(connected: Running) -> None:
    reply = predict(connected, "/data/upload/1/ab-dog.png", data_url(43, "cat"))
    tagger = Tagger.load(connected.served.bank.path)
    rows = list(tagger.tag([PICTURES["dog.png"], picture(43, "cat")]))
    names = {"dog": "Dog", "cat": "Cat", "Zebra": "Zebra"}
    assert results(reply) == [[names[tag] for tag in row.tags if tag in names] for row in rows]
    for each, row in zip(json.loads(reply.body)["results"], rows, strict=True):
        assert each["score"] == pytest.approx(
            min(max(row.scores[name], 1 - row.scores[name]) for name in names), abs=1e-5
        )


def test_an_annotation_teaches_what_was_chosen_and_what_was_not(connected: Running) -> None:
    before = json.loads(predict(connected, "/data/upload/1/ab-second.png").body)["results"][0]
    reply = annotate(connected, "/data/upload/1/ab-first.png", "Zebra")
    assert (reply.status, json.loads(reply.body)["result"]["answers"]) == (201, 3)
    labels = {label.name: label for label in connected.client.labels()}
    assert (labels["Zebra"].examples, labels["dog"].absent, labels["cat"].absent, labels["sofa"].absent) == (1, 1, 1, 0)
    after = json.loads(predict(connected, "/data/upload/1/ab-second.png").body)["results"][0]
    assert after["result"][0]["value"]["choices"] == ["Zebra"]
    assert before["model_version"] != after["model_version"] == json.loads(reply.body)["result"]["model_version"]


def test_a_webhook_that_comes_again_is_taken_once_and_a_later_version_replaces_it(connected: Running) -> None:
    annotate(connected, "/data/upload/1/ab-first.png", "Zebra")
    before = connected.served.bank.path.read_bytes()
    annotate(connected, "/data/upload/1/ab-first.png", "Zebra")
    assert connected.served.bank.path.read_bytes() == before
    annotate(connected, "/data/upload/1/ab-first.png", "Dog", updated_at="2026-11-16T06:00:00Z")
    tagger = Tagger.load(connected.served.bank.path)
    assert (tagger.counts_["dog"], tagger.absent_counts_["Zebra"]) == (3, 1)


def test_nothing_chosen_of_several_is_a_no_to_each_but_a_skipped_task_says_nothing(connected: Running) -> None:
    assert (
        json.loads(annotate(connected, "/data/upload/1/a-dog.png", was_cancelled=True).body)["result"]["answers"] == 0
    )
    single = CONFIG.replace("multiple", "single")
    assert json.loads(annotate(connected, "/data/upload/1/a-dog.png", config=single).body)["result"]["answers"] == 0
    assert json.loads(annotate(connected, "/data/upload/1/a-dog.png").body)["result"]["answers"] == 3
    assert Tagger.load(connected.served.bank.path).absent_counts_["dog"] == 1


def test_what_is_no_annotation_is_answered_and_ignored(connected: Running) -> None:
    for action in ("PROJECT_UPDATED", "TASKS_CREATED", "ANNOTATIONS_DELETED", "START_TRAINING"):
        reply = send(connected, "POST", "/label-studio/webhook", {"action": action, "project": {"id": 1}, "tasks": []})
        assert (reply.status, json.loads(reply.body)["status"]) == (201, "ok")


def test_several_annotations_of_one_webhook_are_all_learnt(connected: Running) -> None:
    items = [
        {"id": n, "result": [{"from_name": "shown", "type": "choices", "value": {"choices": [name]}}]}
        for n, name in enumerate(["Zebra", "Dog"])
    ]
    tasks = [{"id": n, "data": {"image": f"/data/upload/1/a-{n}"}} for n in ("first.png", "dog.png")]
    items.append(items[0] | {"id": 9})
    tasks.append({"id": 9, "data": {"image": "/data/upload/1/a-gone"}})  # which does not keep the others back
    asked = {"action": "ANNOTATIONS_CREATED", "annotation": items, "task": tasks, "project": {"label_config": CONFIG}}
    assert json.loads(send(connected, "POST", "/label-studio/webhook", asked).body)["result"]["answers"] == 6
    assert Tagger.load(connected.served.bank.path).counts_ == {"Zebra": 1, "cat": 2, "dog": 3, "sofa": 2}


CONFIGS = {
    "<View></View>": "no <Choices>",
    '<View><Text name="t" value="$t"/><Choices name="c" toName="t"><Choice value="a"/></Choices></View>': "<Image>",
    '<View><Image name="i" value="$i"/><Choices name="c" toName="i" value="$options"/></View>': "no <Choices>",
    CONFIG.replace("<Choices ", '<Choices perRegion="true" '): "no <Choices>",
    "<View>": "no XML",
    '<!DOCTYPE v [<!ENTITY a "b">]><View>&a;</View>': "document type",
}


def test_a_project_without_choices_over_pictures_is_one_sentence(connected: Running) -> None:
    for config, says in CONFIGS.items():
        for path, key in (("setup", "schema"), ("predict", "label_config")):
            reply = send(connected, "POST", f"/label-studio/{path}", {key: config, "tasks": []})
            assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
            assert says in json.loads(reply.body)["detail"]
        assert annotate(connected, "/data/upload/1/a-dog.png", "Dog", config=config).status == 400


@given(st.text(alphabet="<>/=\"' ViewChoicesImage&;!$\n", max_size=60) | st.text(max_size=30))
def test_any_labelling_set_up_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert controls(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    "tasks",
    "task",
    "annotation",
    "label_config",
    "schema",
    "project",
    "action",
    "data",
    "result",
    "value",
    "choices",
)


@st.composite
def mangled(draw_one: Any) -> Any:
    """A request of Label Studio's with one thing replaced by anything."""
    item = {"from_name": "shown", "type": "choices", "value": {"choices": ["Dog"]}}
    task, said = {"id": 1, "data": {"image": data_url(1, "dog")}}, {"id": 1, "result": [item]}
    body: dict[str, Any] = {"tasks": [task], "task": task, "annotation": said, "action": "ANNOTATION_CREATED"}
    body |= {"label_config": CONFIG, "schema": CONFIG, "project": {"label_config": CONFIG}}
    key, junk = draw_one(st.sampled_from(FIELDS)), draw_one(ANYTHING)
    text = json.dumps(body)
    place = text.find(f'"{key}": ') + len(key) + 4
    _, end = json.JSONDecoder().raw_decode(text, place)
    return json.loads(text[:place] + json.dumps(junk) + text[end:])


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(body=mangled(), path=st.sampled_from(["setup", "predict", "webhook"]))
def test_a_request_with_anything_in_it_is_taken_or_refused_in_one_sentence(
    connected: Running, body: Any, path: str
) -> None:
    reply = send(connected, "POST", f"/label-studio/{path}", body)
    assert reply.status in {200, 201, 400, 422}, reply.body
    assert reply.status < 400 or ";" in json.loads(reply.body)["detail"]


def test_many_choices_are_saved_at_once(connected: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    saves, save = [], Tagger.save
    monkeypatch.setattr(Tagger, "save", lambda tagger, path: (saves.append(path), save(tagger, path)))
    choices = "".join(f'<Choice value="thing {number}"/>' for number in range(200)) + '<Choice value="zzqxv"/>'
    config = f'<View><Image name="i" value="$i"/><Choices name="c" toName="i">{choices}</Choices></View>'
    assert send(connected, "POST", "/label-studio/setup", {"schema": config}).status == 200
    assert len(saves) == 1
    assert Tagger.load(connected.served.bank.path).definitions_["zzqxv"].kind == "none"


def test_an_alias_and_a_nested_choice_are_what_label_studio_calls_them_and_say_what_they_are_under() -> None:
    (tag,) = controls(
        '<View><Image name="i" value="$i"/><Choices name="c" toName="i" allowNested="true" choice="multiple">'
        '<Choice value="Dog" alias="d"/><Choice value="cats"><Choice value="Manx"/><Choice value="Korat"/></Choice>'
        "</Choices></View>"
    )
    assert tag.item(["cats", "Manx", "Dog"])["value"]["choices"] == [["cats", "Manx"], ["d"]], "what can be chosen"
    item = {"from_name": "c", "type": "choices", "value": {"choices": ["d", ["cats", "Manx"]]}}
    assert tag.said([Item.model_validate(item)]) == {"Dog": "yes", "cats": "yes", "Manx": "yes", "Korat": "no"}
    flat = '<View><Image name="i" value="$i"/><Choices name="c" toName="i"><View><Choice value="Dog" alias="d"/></View>'
    (tag,) = controls(flat + '<Choice value="cats"><Choice value="Manx"/></Choice></Choices></View>')
    assert tag.item(["Dog", "cats"])["value"]["choices"] == ["d"], "one, not in a path"
    assert list(tag.choices) == ["Dog", "cats"], "none that is not shown"


ELSEWHERE = "nothing else is fetched"
REFUSED = {
    "http://127.0.0.1:1/data/x": ELSEWHERE,
    "http://169.254.169.254/data/meta": ELSEWHERE,
    "https://example.org/1.jpg": ELSEWHERE,
    "//example.org/data/1.jpg": ELSEWHERE,
    "http://example.org:99999/data/1.jpg": ELSEWHERE,
    "s3://bucket/1.jpg": ELSEWHERE,
    "file:///etc/passwd": ELSEWHERE,
    "/api/users": "not under /data/",
    "/data/../api/users": "not under /data/",
    "/data/%2e%2E/api/users": "not under /data/",
    "/data/..%2Fapi/users": "not under /data/",
    "/data/upload/1/a-away": "answers 302",
    "/data/upload/1/a-gone": "answers 404",
    "/data/upload/1/a-large": "more than 100,000 bytes",
    "": "no picture",
}


def test_nothing_is_fetched_but_from_label_studio_itself(pets: Path, host: ThreadingHTTPServer) -> None:
    with backend(pets, host, most_bytes=100_000) as running:
        for link, says in REFUSED.items():
            reply = predict(running, link)
            assert (reply.status, says in json.loads(reply.body)["detail"]) == (400, True), reply.body
            assert annotate(running, link, "Dog").status == 400
        assert results(predict(running, *REFUSED, data_url(1, "dog"))) == [*([[]] * len(REFUSED)), ["Dog"]]
        own = url(host).replace("//", "//someone:secret@")
        assert ELSEWHERE in json.loads(predict(running, f"{own}/data/upload/1/a-dog.png").body)["detail"]
    assert Tagger.load(pets).counts_["dog"] == 2


def test_links_of_label_studio_are_fetched_with_the_key_of_the_environment(
    connected: Running, host: ThreadingHTTPServer
) -> None:
    links = [
        "/data/upload/1/a-dog.png",
        "/data/local-files/?d=some%20folder/b-dog.png",
        f"{url(host)}/data/upload/2/c-dog.png",
        "/data/upload/1/good..d-dog.png",
    ]
    assert results(predict(connected, *links)) == 4 * [["Dog"]]
    assert {key for _, key, _ in host.asked} == {f"Token {KEY}"}
    assert {name for _, _, name in host.asked} == {url(host).removeprefix("http://")}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="a process's variables cannot be read here")
def test_decoders_do_not_get_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "the token of the environment")
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    decoders = Decoders(1)
    decoders.submit(picture(1, "dog"), "a.png", 32).result()
    (worker,) = decoders.workers
    variables = Path(f"/proc/{worker}/environ").read_bytes()
    decoders.close()
    assert b"PYTHONPATH=" in variables
    assert KEY.encode() not in variables
    assert b"the token" not in variables


def test_a_personal_access_token_is_exchanged_once(
    pets: Path, host: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a.personal.token")
    with backend(pets, host) as running:
        assert results(predict(running, "/data/upload/1/a-dog.png", "/data/upload/1/b-dog.png")) == [["Dog"], ["Dog"]]
    assert [path for path, _, _ in host.asked].count("/api/token/refresh/") == 1
    monkeypatch.setenv(KEY_VARIABLE, "another.personal.token")
    with pytest.raises(InputError, match=f"does not take the key in {KEY_VARIABLE}"):
        OneHost(url(host), 1_000_000).fetch("/data/upload/1/a-dog.png")


def test_without_a_key_the_sentence_says_which_variable_to_set(
    pets: Path, host: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    with backend(pets, host) as running:
        assert f"set {KEY_VARIABLE}" in json.loads(predict(running, "/data/upload/1/a-dog.png").body)["detail"]


def test_the_address_is_pinned_when_the_server_starts(
    host: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = host.server_address[1]
    source = OneHost(f"http://localhost:{port}", 1_000_000)
    source.addresses = ["127.0.0.1"]

    def moved(*_: object, **__: object) -> None:
        raise AssertionError("the name is looked up again")

    def connect(where: tuple[str, int], timeout: float) -> socket.socket:
        found = socket.socket()
        found.settimeout(timeout)
        found.connect(where)
        return found

    monkeypatch.setattr("socket.getaddrinfo", moved)
    monkeypatch.setattr("socket.create_connection", connect)
    assert source.fetch("/data/upload/1/a-dog.png") == PICTURES["dog.png"]


def test_another_address_of_the_name_is_asked_where_the_first_does_not_answer(host: ThreadingHTTPServer) -> None:
    source = OneHost(url(host), 1_000_000)
    with socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))  # bound, and not listening: refused
        source.addresses = ["127.0.0.2", *source.addresses]
        assert source.fetch("/data/upload/1/a-dog.png") == PICTURES["dog.png"]


def test_what_is_no_link_is_refused_in_one_sentence(host: ThreadingHTTPServer) -> None:
    with pytest.raises(InputError, match="is no link"):
        OneHost(url(host), 1_000_000).fetch("http://[x/a.png")


def test_the_password_is_the_token_and_browsers_are_refused(connected: Running) -> None:
    assert send(connected, "GET", "/label-studio/health", headers=basic(TOKEN)).status == 200
    assert json.loads(send(connected, "GET", "/label-studio/health").body)["status"] == "UP"
    for headers in ({}, basic("wrong"), {"Authorization": "Basic ?"}, basic(TOKEN) | {"Sec-Fetch-Site": "cross-site"}):
        assert ask(connected.settings.port, "GET", "/label-studio/health", headers).status == 401


def test_a_read_only_server_predicts_and_refuses_to_learn(pets: Path, host: ThreadingHTTPServer) -> None:
    before = pets.read_bytes()
    with backend(pets, host, read_only=True) as running:
        assert results(predict(running, "/data/upload/1/a-dog.png")) == [["Dog"]]
        assert annotate(running, "/data/upload/1/a-dog.png", "Zebra").status == 403
    assert pets.read_bytes() == before


def test_a_project_learns_from_annotations_of_its_own_pictures(
    tiny_model: Path, tmp_path: Path, host: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "first.png").write_bytes(PICTURES["first.png"])
    draw(9, "cat").save(tmp_path / "album" / "cat.png")
    opened = Studio.open(tmp_path / "project", [tmp_path / "album"], model=str(tiny_model), cache=tmp_path / "cache")
    settings = Settings(TOKEN, services=("label-studio",), label_studio=url(host))
    with serving(lambda _decoders: opened, settings) as running:
        assert opened.wait(300.0)
        assert annotate(running, "/data/upload/1/a-first.png", "Zebra").status == 201
        assert opened.label("Zebra").examples == 1
        assert annotate(running, "/data/upload/1/a-dog.png", "Dog", id=8).status == 404
        odd = CONFIG.replace('"Zebra"', '"zzqxv"').replace('"Cat"', '"pets / Cat"')
        with monkeypatch.context() as patched:
            patched.setattr(opened.ranking, "refresh", None)  # nothing is scored: Label Studio waits 3 seconds
            assert send(running, "POST", "/label-studio/setup", {"schema": odd}).status == 200
        assert opened.label("zzqxv").means == "pictures only"
        reply = annotate(running, "/data/upload/1/a-first.png", "pets / Cat", id=9, config=odd)
        assert (reply.status, opened.label("pets/Cat").examples) == (201, 1)
        assert sorted(label.name for label in opened.labels()) == ["Cat", "Dog", "Zebra", "pets/Cat", "zzqxv"]


def test_the_command_line_refuses_the_service_without_its_host(cli: Any, bank: Path) -> None:
    said = cli("serve", bank, "--service", "label-studio")
    assert (said.code, "--label-studio http://localhost:8080" in said.err) == (2, True)
    said = cli("serve", bank, "--port", "0", "--label-studio", "ftp://x")
    assert (said.code, "is no address" in said.err) == (2, True)
    assert cli("serve", bank, "--service", "nothing").code == 2
