"""The studio over HTTP: a real project, a real server, through the client."""

import http.client
import io
import json
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hostile import SECRET, hostile
from PIL import Image
from raw_http import ask
from serving import TOKEN, Running, picture, serving
from tiny import draw

from fewtag import Tagger
from fewtag.cache import content_digest
from fewtag.client import ApiError
from fewtag.studio.studio import Studio
from fewtag.studio.values import MOST_AT_ONCE

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for number in range(12):
        draw(number, ["dog", "cat", "sofa"][number % 3]).save(folder / f"{number:02}.png")
    (folder / "broken.jpg").write_bytes(b"nothing")
    return folder


@contextmanager
def serving_project(folder: Path, album: Path, model: Path) -> Iterator[Running]:
    opened = Studio.open(folder / "project", [album], model=str(model), cache=folder / "cache")
    with serving(lambda _decoders: opened) as running:
        assert opened.wait(300.0)
        yield running


@pytest.fixture
def studio(album: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Running]:
    with serving_project(tmp_path, album, tiny_model) as running:
        yield running


@pytest.fixture(scope="module")
def unchanged(album: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """For tests that change nothing."""
    with serving_project(tmp_path_factory.mktemp("studio"), album, tiny_model) as running:
        yield running


def digests(running: Running) -> dict[str, str]:
    return {Path(each["name"]).name: each["digest"] for each in running.client.search()["pictures"]}


def test_a_generated_client_reads_every_field_that_a_page_has(unchanged: Running) -> None:
    schema = unchanged.client.get("/openapi.json")
    for name, reply in (
        ("Page", unchanged.client.search("dog -is:unsure 00")),
        ("Overview", unchanged.client.get("/v1/project")),
        ("PictureDetail", unchanged.client.get(f"/v1/pictures/{digests(unchanged)['00.png']}")),
    ):
        declared = schema["components"]["schemas"][name]
        jsonschema.validate(reply, declared | {"components": schema["components"]})
        assert reply.keys() <= declared["properties"].keys()


def test_pictures_are_searched_looked_at_and_shown(studio: Running) -> None:
    found = digests(studio)
    assert len(found) == 12
    label = studio.client.teach_known("hound", [found["00.png"]])
    assert (label.examples, label.tags is not None) == (1, True)
    page = studio.client.search("hound", limit=5)
    assert page["pictures"][0]["p"] is not None
    assert page["query_means"][0]["as"] == "label"
    assert studio.client.get("/v1/pictures", query="hound", limit=5) == page
    detail = studio.client.get(f"/v1/pictures/{found['00.png']}")
    assert detail["labels"][0]["answer"] == "yes"
    assert detail["bytes"] > 0
    assert studio.client.search(like=found["00.png"], box=[0.1, 0.1, 0.9, 0.9])["total"] >= 1
    for size in (256, 1024):
        shown = studio.client.get(f"/v1/pictures/{found['00.png']}/thumbnail", size=size)
        assert Image.open(io.BytesIO(shown)).format == "WEBP"
    heat = studio.client.get(f"/v1/pictures/{found['00.png']}/heat", label="hound")
    assert Image.open(io.BytesIO(heat)).mode == "RGBA"
    explained = studio.client.post("/v1/explain", {"picture": found["00.png"], "label": "hound"})
    assert 0 <= explained["probability"] <= 1
    assert explained["heat"]


def test_the_digests_of_a_whole_search_are_one_request(unchanged: Running) -> None:
    page = unchanged.client.search()
    only = unchanged.client.search(only="digests", limit=1)
    assert only["digests"] == [cell["digest"] for cell in page["pictures"]]
    assert (only["pictures"], only["total"]) == ([], 12)


def test_a_page_has_as_many_cells_as_the_schema_says(unchanged: Running) -> None:
    for ask_for in (
        lambda limit: unchanged.client.search(limit=limit),
        lambda limit: unchanged.client.get("/v1/pictures", limit=limit),
    ):
        assert len(ask_for(MOST_AT_ONCE)["pictures"]) == 12
        with pytest.raises(ApiError, match=f"less than or equal to {MOST_AT_ONCE}"):
            ask_for(MOST_AT_ONCE + 1)


def test_folders_are_looked_through_again_when_somebody_asks(album: Path, tiny_model: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(album, tmp_path / "album"))
    with serving_project(tmp_path, own, tiny_model) as studio:
        draw(40, "dog").save(own / "40.png")
        draw(41, "dog").save(own / "broken.jpg")
        assert studio.client.post("/v1/rescan", {})["indexing"]
        assert studio.served.studio.wait(300.0)
        assert len(digests(studio)) == 14
        assert studio.client.get("/v1/failures")["failures"] == []


def test_a_thumbnail_is_an_image_made_anew_that_a_browser_keeps_and_never_runs(studio: Running, album: Path) -> None:
    digest = digests(studio)["00.png"]
    reply = ask(studio.settings.port, path=f"/v1/pictures/{digest}/thumbnail", headers=BEARER)
    assert reply.headers["content-type"] == "image/webp"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-disposition"] == "inline"
    assert "immutable" in reply.headers["cache-control"]
    assert reply.body != (album / "00.png").read_bytes()


def test_review_asks_and_answers_are_undone_and_redone(studio: Running) -> None:
    found = digests(studio)
    studio.client.teach_known("hound", [found["00.png"]])
    page = studio.client.get("/v1/review", label="hound", size=4)
    assert page["question"]
    asked = [each["digest"] for each in page["pictures"]]
    answers = [{"id": str(uuid.uuid4()), "picture": each, "label": "hound", "answer": "no"} for each in asked]
    taken = studio.client.post("/v1/answers", {"answers": answers})
    assert taken["acknowledged"] == [each["id"] for each in answers]
    assert studio.client.post("/v1/answers", {"answers": answers})["acknowledged"] == taken["acknowledged"]
    undone = studio.client.post("/v1/undo", {"id": taken["undo"]})
    assert {each["picture"] for each in undone["undone"]} == set(asked)
    redone = studio.client.post("/v1/redo", {})
    assert {each["now"] for each in redone["undone"]} == {"no"}
    assert studio.client.get("/v1/project")["can_undo"]


def test_every_change_of_a_label_is_undone_by_its_id_whatever_was_done_since(studio: Running) -> None:
    client, port = studio.client, studio.settings.port
    client.define("cat")
    pictures = client.search("")["pictures"]
    before = [(label.name, label.examples) for label in client.labels()]

    def changed(method: str, path: str, asked: dict[str, object]) -> str:
        kind = BEARER | ({"Content-Type": "application/json"} if asked else {})
        reply = ask(port, method, f"/v1/labels{path}", kind, json.dumps(asked).encode() if asked else b"")
        return str(json.loads(reply.body)["undo"]) if reply.body else reply.headers["fewtag-undo"]

    ids = [
        changed("POST", "", {"name": "dog"}),
        changed("POST", "/dog/examples", {"pictures": [pictures[0]["digest"]]}),
        changed("PATCH", "/dog", {"threshold": 0.9}),
        changed("PATCH", "/dog", {"name": "hound"}),
        changed("DELETE", "/hound", {}),
    ]
    client.answer(pictures[1]["digest"], "cat", "yes")
    for number in ids:
        client.post("/v1/undo", {"id": number})
    assert [(label.name, label.examples) for label in client.labels()] == [("cat", before[0][1] + 1)]


def test_more_pictures_than_a_request_holds_answers_are_taught_at_once(studio: Running) -> None:
    digests = [cell["digest"] for cell in studio.client.search("")["pictures"]]
    studio.client.teach_known("dog", digests * (2 * MOST_AT_ONCE // len(digests)))
    assert studio.client.labels()[0].examples == len(digests)
    studio.client.post("/v1/undo", {})
    assert studio.client.labels() == []


def test_the_projects_bank_is_one_that_other_commands_can_use(studio: Running, tmp_path: Path) -> None:
    studio.client.teach_known("hound", [digests(studio)["00.png"]])
    studio.client.define("zebra")
    assert studio.served.studio.wait(300.0)
    assert set(Tagger.load(tmp_path / "project" / "bank.fewtag").classes_) == {"hound", "zebra"}


def test_uploads_and_known_pictures_are_tagged_by_the_projects_labels(studio: Running) -> None:
    found = digests(studio)
    with pytest.raises(ApiError, match="no label"):
        studio.client.tag([picture(0, "dog")])
    studio.client.teach_known("hound", [found["00.png"], found["03.png"]])
    rows = studio.client.tag([("new.png", picture(50, "dog")), ("bad", b"nothing")])
    assert rows[0].scores.keys() == {"hound"}
    assert rows[1].failure
    (known,) = studio.client.tag_known([found["00.png"]])
    assert known.tags == ("hound",)
    with pytest.raises(ApiError, match="their digests") as refused:
        studio.client.teach("hound", [picture(1, "dog")])
    assert refused.value.status == 415


def test_a_delivery_is_told_of_written_and_fetched(studio: Running) -> None:
    studio.client.teach_known("hound", [digests(studio)["00.png"]])
    dry = studio.client.post("/v1/deliver", {"format": "csv", "dry_run": True})
    assert dry["rows"] >= 1
    started = studio.client.post("/v1/deliver", {"format": "csv"})
    *_, ended = studio.client.follow(started["id"])
    assert ended.state == "done", ended.detail
    reply = ask(studio.settings.port, path=f"/v1/deliveries/{ended.result['file']}", headers=BEARER)
    assert reply.headers["content-disposition"].startswith("attachment")
    assert b"hound" in reply.body
    for other in ("studio.sqlite", "..%2fstudio.sqlite", "%2e%2e/bank.fewtag", "nothing.csv"):
        assert ask(studio.settings.port, path=f"/v1/deliveries/{other}", headers=BEARER).status == 404


def test_sidecars_are_taken_back_over_http_and_tables_are_not(studio: Running) -> None:
    studio.client.teach_known("hound", [digests(studio)["00.png"]])
    for take_back, kept in ((False, True), (True, False)):
        started = studio.client.post("/v1/deliver", {"format": "xmp", "take_back": take_back})
        *_, ended = studio.client.follow(started["id"])
        assert ended.state == "done", ended.detail
        assert ended.result["changes"] >= 1
        folder = Path(studio.client.get("/v1/project")["folders"][0])
        assert (folder / "00.png.xmp").exists() == kept
    with pytest.raises(ApiError, match="delete the file"):
        studio.client.post("/v1/deliver", {"format": "csv", "take_back": True})


def test_events_tell_of_changes_as_they_come(studio: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", studio.settings.port, timeout=120)
    connection.request("GET", "/v1/events", headers=BEARER)
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    threading.Timer(0.3, studio.client.define, ["zebra"]).start()
    seen = []
    for line in response:
        if line.startswith(b"data: "):
            seen.append(json.loads(line[6:])["labels"])
        if seen and seen[-1] == 1:
            break
    assert seen[0] == 0
    connection.close()


def test_failures_are_listed_with_their_reasons(unchanged: Running) -> None:
    (failure,) = unchanged.client.get("/v1/failures")["failures"]
    assert failure["name"].endswith("broken.jpg")
    assert failure["reason"]
    project = unchanged.client.get("/v1/project")
    assert (project["indexed"], project["failures"]) == (12, 1)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/pictures/{32 * '0'}", None),
        ("GET", f"/v1/pictures/{32 * '0'}/thumbnail", None),
        ("GET", "/v1/review?label=unicorn", None),
        ("POST", "/v1/undo", {"id": str(uuid.uuid4())}),
        ("POST", "/v1/search", {"like": 32 * "0"}),
        ("POST", "/v1/labels/x/examples", {"pictures": [32 * "0"]}),
        ("DELETE", "/v1/labels/unicorn", None),
        ("PATCH", "/v1/labels/unicorn", {"threshold": 0.5}),
    ],
)
def test_what_is_not_there_is_a_problem_in_one_sentence(
    unchanged: Running, method: str, path: str, body: dict[str, object] | None
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    headers = BEARER | ({"Content-Type": "application/json"} if body else {})
    reply = ask(unchanged.settings.port, method, path, headers, content)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json"), reply
    assert json.loads(reply.body)["detail"]


@pytest.mark.parametrize("digest", ["..", "%2e%2e%2fstudio.sqlite", "0" * 31, "g" * 32, "A" * 32, "0" * 33, "%00"])
def test_a_picture_is_asked_for_by_its_digest_and_nothing_else(unchanged: Running, digest: str) -> None:
    for what in ("", "/thumbnail", "/heat?label=x"):
        reply = ask(unchanged.settings.port, path=f"/v1/pictures/{digest}{what}", headers=BEARER)
        assert reply.status in {404, 422}


def test_hostile_requests_get_nothing_out_of_a_project(unchanged: Running, album: Path, tmp_path: Path) -> None:
    canary = tmp_path / "secret.txt"
    canary.write_text(SECRET)
    folder = unchanged.served.studio.folder
    before = unchanged.client.get("/v1/project"), sorted(path.name for path in folder.iterdir())
    generator = np.random.default_rng(14)
    for _ in range(150):
        method, path, headers, body, host = hostile(generator, canary, unchanged.settings.port)
        path = path.replace("/v1/labels", "/v1/review") if method == "POST" else path  # nothing may be changed here
        reply = ask(unchanged.settings.port, method, path.replace(" ", "%20"), headers, body, host=host or None)
        assert reply.status < 500, (method, path, body[:200], reply)
        assert SECRET.encode() not in reply.body
    assert (unchanged.client.get("/v1/project"), sorted(path.name for path in folder.iterdir())) == before
    assert len(list(album.iterdir())) == 13


def test_a_link_that_leads_out_of_the_folders_is_not_followed(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    draw(1, "dog").save(tmp_path / "album" / "mine.png")
    draw(2, "cat").save(tmp_path / "private.png")
    (tmp_path / "album" / "link.png").symlink_to(tmp_path / "private.png")
    with serving_project(tmp_path, tmp_path / "album", tiny_model) as running:
        assert set(digests(running)) == {"mine.png"}
        private = content_digest((tmp_path / "private.png").read_bytes()).hex()
        for what in ("", "/thumbnail"):
            with pytest.raises(ApiError) as refused:
                running.client.get(f"/v1/pictures/{private}{what}")
            assert refused.value.status == 404


def test_a_project_that_cannot_be_written_is_no_mistake_of_who_asks(studio: Running) -> None:
    found = digests(studio)
    studio.client.teach_known("hound", [found["00.png"]])
    writer = studio.served.studio.project._writer
    writer.execute("PRAGMA query_only = ON")  # what a closed folder is to SQLite
    with pytest.raises(ApiError, match="may only be read; make it writable") as refused:
        studio.client.answer(found["01.png"], "hound", "no")
    assert refused.value.status == 503, "so that an answer is kept, and sent again later"
    writer.execute("PRAGMA query_only = OFF")
    assert studio.client.answer(found["01.png"], "hound", "no")


def test_a_map_whose_page_went_on_holds_up_nobody(studio: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    first, left, last = list(digests(studio).values())[:3]
    studio.client.define("dog")
    indexer, go, begun, waited = studio.served.studio.indexer, threading.Event(), list[str](), threading.Event()
    square = indexer.square

    def held(digest: str) -> np.ndarray:
        begun.append(digest)
        assert go.wait(60)
        return square(digest)

    monkeypatch.setattr(indexer, "square", held)
    heat = studio.served.studio._heat

    def get(digest: str) -> bytes:
        return ask(studio.settings.port, path=f"/v1/pictures/{digest}/heat?label=dog", headers=BEARER).body

    with ThreadPoolExecutor() as threads:
        running = threads.submit(get, first)
        while not begun:
            waited.wait(0.01)
        with socket.create_connection(("127.0.0.1", studio.settings.port)) as connection:
            head = f"GET /v1/pictures/{left}/heat?label=dog HTTP/1.1\r\nHost: 127.0.0.1:{studio.settings.port}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            while not heat._waiting[left]:
                waited.wait(0.01)
        while heat._waiting[left]:  # until the server has seen that nobody reads it
            waited.wait(0.01)
        after = threads.submit(get, last)
        while not heat._waiting[last]:
            waited.wait(0.01)
        go.set()
        assert running.result(60)[8:12] == after.result(60)[8:12] == b"WEBP"
    assert begun == [first, last]
