"""PhotoPrism's and KServe's requests, as their programs send them; what the services share."""

import asyncio
import base64
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_http import Reply
from recording import basic, data_url, json_blocks, recorded, same, send, shows
from serving import TOKEN, Running, picture, serving_bank
from tiny import draw

from fewtag import InputError, Tagger
from fewtag.server import dialects
from fewtag.server.dialects import Tensor
from fewtag.server.security import Settings
from fewtag.tagger.stream import Scorer

ALL = ("photoprism", "kserve")
PAGES = {"label-studio.md": ["label-studio.json"], "http-services.md": ["photoprism.json", "kserve.json"]}


@pytest.fixture(scope="module")
def served(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("served") / "pets.fewtag"
    Tagger.load(taught).rename("dog", "animal/dog").save(path)
    with serving_bank(path, Settings(TOKEN, services=ALL, most_json=16_000_000)) as running:
        running.served.warm_up()
        yield running


@pytest.mark.parametrize("name", ["photoprism.json", "kserve.json"])
def test_the_exchange_of_the_documentation_is_what_happens(served: Running, name: str) -> None:
    for number, each in enumerate(recorded(name)):
        reply = send(served, each.method, each.path, each.request)
        assert reply.status == each.status, number
        assert same(json.loads(reply.body), each.reply), (number, json.loads(reply.body))


@pytest.mark.parametrize(("page", "names"), PAGES.items())
def test_what_a_page_shows_was_recorded(page: str, names: list[str]) -> None:
    told = [each for name in names for one in recorded(name) for each in (one.request, one.reply)]
    blocks = json_blocks(page)
    assert len(blocks) >= 4
    for block in blocks:
        assert any(shows(block, each) for each in told), block


def test_a_picture_of_a_service_is_counted_once(served: Running) -> None:
    pictures = served.served.metrics.pictures.labels("tagged")
    before = pictures._value.get()
    assert send(served, "POST", "/photoprism/labels", {"images": [data_url(7, "dog")]}).status == 200
    assert pictures._value.get() == before + 1


def test_photoprism_gets_the_tags_with_their_parents_as_categories(served: Running) -> None:
    asked = {
        "id": "7",
        "model": "fewtag",
        "images": [data_url(100, "dog")],
        "prompt": "",
        "suffix": "",
        "stream": False,
    }
    reply = json.loads(send(served, "POST", "/photoprism/labels", asked).body)
    row = next(iter(Tagger.load(served.served.bank.path).tag([picture(100, "dog")])))
    assert (reply["id"], reply["code"]) == ("7", 200)
    names = ["/".join([*each["categories"], each["name"]]) for each in reply["result"]["labels"]]
    assert names == list(row.tags)
    assert [each["confidence"] for each in reply["result"]["labels"]] == pytest.approx(
        [row.scores[tag] for tag in row.tags], abs=2e-6
    )
    assert ("dog", ["animal"]) in [(each["name"], each["categories"]) for each in reply["result"]["labels"]]


def test_several_views_of_one_picture_give_each_label_once_with_its_highest_confidence(served: Running) -> None:
    views = [data_url(100, "dog"), data_url(101, "cat"), data_url(102, "dog")]
    alone = [json.loads(send(served, "POST", "/photoprism/labels", {"images": [view]}).body) for view in views]
    together = json.loads(send(served, "POST", "/photoprism/labels", {"images": views}).body)
    highest: dict[str, float] = {}
    for reply in alone:
        for label in reply["result"]["labels"]:
            highest[label["name"]] = max(highest.get(label["name"], 0), label["confidence"])
    assert {each["name"]: each["confidence"] for each in together["result"]["labels"]} == pytest.approx(highest)


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({"images": ["https://photos.example/1.jpg"]}, 400, "FileScheme: data"),
        ({"url": "https://photos.example/1.jpg"}, 400, "FileScheme: data"),
        ({}, 400, "no pictures"),
        ({"images": ["data:image/png;base64,AAAA"]}, 400, "cannot be decoded"),
        ({"images": ["data:image/png;base64,?"]}, 400, "no base64"),
        ({"images": 3}, 422, "images"),
    ],
)
def test_photoprism_hears_in_its_own_fields_what_is_wrong(
    served: Running, asked: dict[str, Any], status: int, says: str
) -> None:
    reply = send(served, "POST", "/photoprism/labels", asked)
    facts = json.loads(reply.body)
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.status, facts["code"], facts["error"]) == (status, status, facts["detail"])
    assert says in facts["error"]


def infer(running: Running, tensor: dict[str, Any], **also: Any) -> Reply:
    return send(running, "POST", "/v2/models/pets/infer", {"inputs": [tensor]} | also)


def test_kserve_gets_every_labels_probability_for_files_and_for_pixels(served: Running) -> None:
    images = [draw(number, label) for number, label in ((100, "dog"), (101, "cat"))]
    texts = [base64.b64encode(picture(100, "dog")).decode(), base64.b64encode(picture(101, "cat")).decode()]
    tagger = Tagger.load(served.served.bank.path)
    files = json.loads(
        infer(served, {"name": "images", "shape": [2], "datatype": "BYTES", "data": texts}, id="42").body
    )
    outputs = {each["name"]: each for each in files["outputs"]}
    assert (files["model_name"], files["id"]) == ("pets", "42")
    assert outputs["labels"] == {"name": "labels", "datatype": "BYTES", "shape": [3], "data": list(tagger.classes_)}
    assert outputs["probabilities"]["shape"] == [2, 3]
    oracle = tagger.predict_proba(images)
    assert outputs["probabilities"]["data"] == pytest.approx(oracle.flatten().tolist(), abs=2e-6)
    assert outputs["thresholds"]["data"] == pytest.approx(
        [tagger.thresholds_[each] for each in tagger.classes_], abs=1e-6
    )

    pixels = np.stack([np.asarray(image) for image in images])
    tensor = {"name": "pixels", "shape": list(pixels.shape), "datatype": "UINT8"}
    for data in (pixels.tolist(), pixels.flatten().tolist()):
        reply = json.loads(infer(served, tensor | {"data": data}, outputs=[{"name": "probabilities"}]).body)
        assert [each["name"] for each in reply["outputs"]] == ["probabilities"]
        assert reply["outputs"][0]["data"] == pytest.approx(oracle.flatten().tolist(), abs=2e-6)
        assert "id" not in reply


def test_labels_are_made_ready_beside_the_event_loop(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other requests would wait for that."""
    ready, on_loop = served.served.bank.scorer, list[bool]()

    def scorer() -> Scorer:
        try:
            asyncio.get_running_loop()
            on_loop.append(True)
        except RuntimeError:
            on_loop.append(False)
        return ready()

    monkeypatch.setattr(served.served.actions, "scorer", scorer)
    texts = [base64.b64encode(picture(100, "dog")).decode()]
    assert infer(served, {"name": "images", "shape": [1], "datatype": "BYTES", "data": texts}).status == 200
    assert {*on_loop} == {False}


def test_kserve_tells_of_the_server_and_the_model_and_probes_need_no_token(served: Running) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert send(served, "GET", path, headers={}).status == 200
    assert json.loads(send(served, "GET", "/v2").body)["name"] == "fewtag"
    assert json.loads(send(served, "GET", "/v2/models/pets/ready").body) == {"name": "pets", "ready": True}
    about = json.loads(send(served, "GET", "/v2/models/pets").body)
    assert [each["name"] for each in about["inputs"]] == ["images", "pixels"]
    for path in ("/v2", "/v2/models/pets"):
        assert send(served, "GET", path, headers={}).status == 401


IMAGES = {"name": "images", "datatype": "BYTES"}
PIXELS = {"name": "pixels", "datatype": "UINT8"}


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (IMAGES | {"shape": [2], "data": ["AAAA"]}, "shape"),
        (IMAGES | {"shape": [0], "data": []}, "shape"),
        (IMAGES | {"shape": [1], "data": [7]}, "texts of base64"),
        (IMAGES | {"shape": [1], "data": ["!"]}, "no base64"),
        (IMAGES | {"shape": [2], "data": [["AAAA"], "AAAA"]}, "evenly nested"),
        ({"name": "images", "datatype": "FP32", "shape": [1], "data": [1.0]}, "not taken"),
        ({"name": "input0", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}, "not taken"),
        (PIXELS | {"shape": [1, 2, 2, 3], "data": [0] * 11}, "do not fill"),
        (PIXELS | {"shape": [1, 1, 1, 3], "data": [0, 0, 256]}, "0 to 255"),
        (PIXELS | {"shape": [1, 1, 1, 3], "data": [0, 0, "x"]}, "no whole numbers"),
        (PIXELS | {"shape": [1, 1, 1, 3], "data": [0.2, 0.5, 1.0]}, "no whole numbers"),
        (PIXELS | {"shape": [1, 1, 1, 3], "data": [0, 0, True]}, "no whole numbers"),
        (PIXELS | {"shape": [1, 1, 1, 3], "data": [0, 0, 2**64]}, "0 to 255"),
        (IMAGES | {"shape": [1], "data": ["data:image/png,\ud800"]}, "lone surrogate"),
        (PIXELS | {"shape": [1, 10**9, 10**9, 3], "data": [0]}, "at most"),
        (PIXELS | {"shape": [1, 1, 3], "data": [0, 0, 0]}, "send [pictures, height, width, 3]"),
    ],
)
def test_a_tensor_that_is_none_is_refused_in_one_sentence(served: Running, tensor: dict[str, Any], says: str) -> None:
    reply = infer(served, tensor)
    assert reply.status == 400
    assert says in json.loads(reply.body)["error"]


def test_texts_as_pixels_take_no_more_memory_than_they_have() -> None:
    texts = Tensor(**PIXELS, shape=[1, 4, 4, 3], data=["A" * 1_000_000] + [""] * 47)
    tracemalloc.start()
    with pytest.raises(InputError, match="no whole numbers"):
        dialects._uploads(texts, 64)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_another_model_and_another_output_are_refused_by_name(served: Running) -> None:
    tensor = IMAGES | {"shape": [1], "data": [base64.b64encode(picture(1, "dog")).decode()]}
    reply = send(served, "POST", "/v2/models/cats/infer", {"inputs": [tensor]})
    assert (reply.status, json.loads(reply.body)["error"]) == (404, "there is no model 'cats'; this server has 'pets'")
    reply = infer(served, tensor, outputs=[{"name": "probability"}])
    assert (reply.status, "'probabilities'" in json.loads(reply.body)["error"]) == (400, True)


def test_more_pictures_than_a_request_takes_are_refused(served: Running) -> None:
    text = base64.b64encode(picture(1, "dog")).decode()
    reply = infer(served, IMAGES | {"shape": [65], "data": [text] * 65})
    assert (reply.status, "at most 64" in json.loads(reply.body)["error"]) == (400, True)


def test_pictures_are_counted_before_they_are_made(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.server.dialects.Upload", None)
    reply = infer(served, PIXELS | {"shape": [65, 1, 1, 3], "data": [0] * 195})
    assert (reply.status, "at most 64" in json.loads(reply.body)["error"]) == (400, True)


def test_services_are_off_unless_asked_for(running: Running) -> None:
    for path in ("/photoprism/labels", "/v2/models/pets/infer", "/label-studio/setup"):
        assert send(running, "POST", path, {}).status == 404
    assert send(running, "GET", "/v2/health/live").status == 404
    assert send(running, "GET", "/health", headers=basic(TOKEN)).status == 401


def test_pictures_of_services_are_counted_and_share_the_queue(served: Running) -> None:
    send(served, "POST", "/photoprism/labels", {"images": [data_url(5, "dog")]})
    assert (
        'fewtag_requests_total{method="POST",route="/photoprism/labels",status="200"}'
        in served.client.get("/metrics").decode()
    )
