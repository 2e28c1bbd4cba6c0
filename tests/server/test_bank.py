"""A bank over HTTP, from end to end: a real server, through the client."""

import http.client
import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raw_http import ask
from serving import TOKEN, Running, picture, png, serving_bank
from tiny import draw

from fewtag import InputError, Tagger
from fewtag.cache import content_digest
from fewtag.client import ApiError, Client
from fewtag.server.security import Settings
from fewtag.server.service import BankService
from fewtag.server.uploads import Decoders


def test_rows_are_those_of_the_tagger_in_the_order_sent(running: Running, pets: Path) -> None:
    sent = [("a.png", picture(100, "dog")), ("b.png", b"no picture"), ('ä "c".png', picture(101, "cat"))]
    rows = running.client.tag(sent)
    good = [data for _, data in sent if data != b"no picture"]
    oracle = list(Tagger.load(pets).tag(good))
    assert [row.image for row in rows] == ["a.png", "b.png", 'ä "c".png']
    assert [row.tags for row in rows if not row.failure] == [row.tags for row in oracle]
    assert [row.scores for row in rows if not row.failure] == [pytest.approx(row.scores, abs=2e-6) for row in oracle]
    assert "cannot be decoded" in rows[1].failure
    assert rows[1].digest == ""


def test_what_is_taught_is_in_the_bank_before_the_reply(running: Running, pets: Path) -> None:
    label = running.client.teach("zebra", [picture(1, "zebra"), picture(2, "zebra")])
    assert (label.name, label.examples) == ("zebra", 2)
    assert Tagger.load(pets).counts_["zebra"] == 2
    assert "zebra" in running.client.tag([picture(3, "zebra")])[0].tags


def test_a_bank_without_copies_of_its_pictures_gets_none(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "private.fewtag"
    Tagger(tiny_model, keep_pictures=False).fit(draw(1, "dog"), "dog").save(path)
    with serving_bank(path) as running:
        running.client.teach("cat", picture(2, "cat"))
        running.client.answer(running.client.tag(picture(3, "sofa"))[0].digest, "dog", "no")
    assert [each.picture for each in Tagger.load(path).bank_.examples.values()] == 3 * [b""]


def test_teaching_over_http_is_the_same_as_learning_from_the_file(running: Running, pets: Path) -> None:
    alone = Tagger.load(pets).partial_fit([picture(1, "zebra")], [["zebra"]])
    running.client.teach("zebra", [picture(1, "zebra")])
    assert list(Tagger.load(pets).bank_.examples) == list(alone.bank_.examples)


def test_labels_are_defined_renamed_merged_given_thresholds_and_forgotten(running: Running, pets: Path) -> None:
    client = running.client
    assert client.define("ball").means == "its name"
    assert client.define("birds/heron", like=["bird", "water"]).means == "like bird, water"
    assert client.set_threshold("birds/heron", 0.7).threshold == 0.7
    assert client.set_threshold("birds/heron", None).threshold != 0.7
    assert client.rename("birds/heron", "egret").name == "egret"
    with pytest.raises(ApiError, match="already") as refused:
        client.rename("egret", "dog")
    assert refused.value.status == 409
    assert client.rename("egret", "dog", merge=True).examples == 2
    client.forget("ball")
    client.define("birds/heron")
    assert client.rename("birds", "fowl").name == "fowl/heron", "a group that is no label"
    client.forget("fowl/heron")
    assert [label.name for label in client.labels()] == ["cat", "dog", "sofa"] == sorted(Tagger.load(pets).classes_)


def test_an_answer_teaches_and_the_latest_counts(running: Running, pets: Path) -> None:
    data = picture(5, "ball")
    row = running.client.tag([data])[0]
    running.client.answer(row.digest, "dog", "no")
    assert Tagger.load(pets).absent_counts_["dog"] == 1
    assert running.client.tag([data])[0].scores["dog"] == 0
    running.client.answer(row.digest, "dog", "yes")
    assert (Tagger.load(pets).counts_["dog"], Tagger.load(pets).absent_counts_["dog"]) == (3, 0)
    running.client.answer(row.digest, "dog", "unknown")
    assert (Tagger.load(pets).counts_["dog"], Tagger.load(pets).absent_counts_["dog"]) == (2, 0)


def test_an_answer_that_comes_again_is_acknowledged_and_not_taken_again(running: Running, pets: Path) -> None:
    digest = running.client.tag([picture(5, "ball")])[0].digest
    first = running.client.answer(digest, "dog", "yes")
    running.client.answer(digest, "dog", "no")
    assert running.client.answer(digest, "dog", "yes", id=first) == first
    assert Tagger.load(pets).absent_counts_["dog"] == 1


def test_of_several_answers_all_are_taken_or_none(running: Running, pets: Path) -> None:
    digest = running.client.tag([picture(5, "ball")])[0].digest
    good = {"id": str(uuid.uuid4()), "picture": digest, "label": "dog", "answer": "yes"}
    for bad in ({"picture": 32 * "0"}, {"label": "unicorn"}):
        with pytest.raises(ApiError) as refused:
            running.client.post("/v1/answers", {"answers": [good, good | bad | {"id": str(uuid.uuid4())}]})
        assert refused.value.status == 404
    assert Tagger.load(pets).counts_["dog"] == 2


def test_what_is_wrong_with_a_body_is_named(running: Running) -> None:
    good = {"id": str(uuid.uuid4()), "picture": 32 * "0", "label": "dog", "answer": "yes"}
    for path, asked, where in (
        ("/v1/answers", {"answers": [good | {"answer": "maybe"}]}, "answers.0.answer"),
        ("/v1/answers", {"answers": []}, "answers"),
        ("/v1/answers", good | {"id": 7}, "id"),
        ("/v1/tag", {"pictures": []}, "pictures"),
        ("/v1/labels/dog/examples", {"pictures": 1_001 * [32 * "0"]}, "pictures"),
        (f"/v1/labels/{201 * 'x'}/examples", {"pictures": [32 * "0"]}, "path.name"),
        ("/v1/labels", {"name": 201 * "x"}, "name"),
        ("/v1/labels", {"nam": "dog"}, "nam"),
    ):
        with pytest.raises(ApiError, match=f"^{where}.* is not as it should be"):
            running.client.post(path, asked)
    bearer = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for path in ("/v1/tag", "/v1/labels"):
        reply = ask(running.settings.port, "POST", path, bearer, b"{,")
        assert (reply.status, b"the body is no JSON (" in reply.body) == (422, True)
    reply = ask(running.settings.port, "POST", "/v1/labels", bearer, 100_000 * b"[")
    assert (reply.status, b"nested too deeply" in reply.body) == (400, True)
    for threshold in (True, "0.5", 7):
        assert (
            ask(
                running.settings.port, "PATCH", "/v1/labels/dog", bearer, json.dumps({"threshold": threshold}).encode()
            ).status
            == 422
        )


def test_pictures_tagged_before_are_known_by_their_digests(running: Running) -> None:
    rows = running.client.tag([picture(5, "dog"), picture(6, "cat")])
    again = running.client.tag_known([rows[1].digest, rows[0].digest])
    assert [row.scores for row in again] == [rows[1].scores, rows[0].scores]
    assert running.client.teach_known("ball", [rows[0].digest]).examples == 1


def test_only_so_many_bytes_of_pictures_are_remembered(running: Running) -> None:
    running.served.bank.recent.most = 5_000
    rows = running.client.tag([picture(number, "dog") for number in range(4)])
    with pytest.raises(ApiError, match="tag it again") as refused:
        running.client.tag_known([rows[0].digest])
    assert refused.value.status == 404
    assert running.client.tag_known([rows[-1].digest])[0].tags == rows[-1].tags


def test_the_heat_is_where_the_label_is(running: Running, pets: Path) -> None:
    image = draw(7, size=(64, 64))
    image.paste("red", (40, 40, 62, 62))
    chance, heat = running.client.explain(png(image), "dog")
    assert chance == pytest.approx(Tagger.load(pets).predict_proba([image])[0, 1], abs=2e-6)
    rows = len(heat)
    assert {len(row) for row in heat} == {rows}
    assert max(max(row[rows // 2 :]) for row in heat[rows // 2 :]) > 0.9
    assert max(max(row[: rows // 2]) for row in heat[: rows // 2]) < 0.5


def test_a_read_only_server_tags_and_refuses_changes(pets: Path) -> None:
    before = pets.read_bytes()
    with serving_bank(pets, Settings(read_only=True)) as running:
        digest = running.client.tag([picture(1, "dog")])[0].digest
        changes = [
            lambda: running.client.define("ball"),
            lambda: running.client.teach("ball", [picture(1, "ball")]),
            lambda: running.client.rename("dog", "hound"),
            lambda: running.client.forget("dog"),
            lambda: running.client.answer(digest, "dog", "no"),
        ]
        for change in changes:
            with pytest.raises(ApiError, match="only reads") as refused:
                change()
            assert refused.value.status == 403
    assert pets.read_bytes() == before


def test_what_another_process_teaches_is_noticed_and_nothing_is_lost(running: Running, pets: Path) -> None:
    running.client.define("ball")
    Tagger.load(pets).define("zebra").save(pets)
    assert {"ball", "zebra"} <= {label.name for label in running.client.labels()}
    running.client.define("sea")
    assert {"ball", "zebra", "sea"} <= set(Tagger.load(pets).classes_)


def test_a_bank_that_cannot_be_read_any_more_is_an_error_each_time(running: Running, pets: Path) -> None:
    good, hasty = pets.read_bytes(), Client(running.settings.url, TOKEN, patience=0)
    for damage in (lambda: pets.write_bytes(b"no bank"), pets.unlink):
        damage()
        for asked in (hasty.labels, lambda: hasty.tag(picture(1, "dog")), lambda: hasty.define("ball")):
            with pytest.raises(ApiError) as refused:
                asked()
            assert refused.value.status == 503, "nobody asked anything wrong"
    pets.write_bytes(good)
    assert hasty.labels()


def test_what_could_not_be_saved_was_not_learnt(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise InputError("cannot write the bank: No space left on device; free some room")

    with monkeypatch.context() as patched:
        patched.setattr(Tagger, "save", full)
        with pytest.raises(ApiError, match=r"No space left .*\(503\)"):
            Client(running.settings.url, TOKEN, patience=0).define("ball")
    assert "ball" not in {label.name for label in running.client.labels()}
    assert running.client.define("ball").name == "ball"


def test_an_unreadable_example_is_refused_and_nothing_is_learnt(running: Running, pets: Path) -> None:
    with pytest.raises(ApiError, match="cannot be decoded") as refused:
        running.client.teach("ball", [picture(1, "ball"), b"nothing"])
    assert refused.value.status == 400
    assert "ball" not in Tagger.load(pets).definitions_


def test_a_label_without_meaning_is_refused_with_the_ways_out(running: Running) -> None:
    with pytest.raises(ApiError, match="name known words that it is like"):
        running.client.define("zzqxv flurbish")
    assert running.client.define("zzqxv flurbish", words=False).means == "pictures only"


def test_many_clients_teach_at_once_and_nothing_is_lost(running: Running, pets: Path) -> None:
    names = [f"thing {number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: running.client.define(name, words=False), names))
    assert set(names) <= set(Tagger.load(pets).definitions_)


def test_a_change_is_answered_as_it_was_made_whatever_another_client_does_next(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = BankService(pets, Tagger.load(pets), Decoders(1))
    change = service._change

    def and_then(what: Callable[[Tagger], object]) -> Tagger:
        made = change(what)
        change(lambda tagger: [tagger.forget(label) for label in {"zebra", "horse"} & {*tagger.definitions_}])
        return made

    monkeypatch.setattr(service, "_change", and_then)
    assert service.define("zebra").name == "zebra"
    assert service.rename("dog", "horse").name == "horse"
    assert [each.name for each in service.labels()] == ["cat", "sofa"]


def test_more_pictures_than_one_request_takes_are_sent_in_several(running: Running) -> None:
    rows = running.client.tag([(f"{number}.png", picture(number, "dog")) for number in range(70)])
    assert [row.image for row in rows] == [f"{number}.png" for number in range(70)]


def test_a_tagging_job_tells_of_its_progress(running: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.settings.port)
    body = json.dumps({"pictures": [running.client.tag([picture(1, "dog")])[0].digest]})
    headers = {"Authorization": f"Bearer {running.settings.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/tag", body, headers | {"Prefer": "respond-async"})
    response = connection.getresponse()
    started = json.loads(response.read())
    assert response.status == 202
    states = list(running.client.follow(started["id"]))
    assert states[-1].state == "done"
    assert states[-1].result["rows"][0]["tags"] == ["dog"]
    assert running.client.job(started["id"]) == states[-1]
    connection.close()


def test_the_same_key_and_body_get_the_first_reply_and_another_body_is_refused(running: Running, pets: Path) -> None:
    def send(key: str, name: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", running.settings.port)
        headers = {"Authorization": f"Bearer {running.settings.token}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/labels", json.dumps({"name": name}), headers | {"Idempotency-Key": key})
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    key = str(uuid.uuid4())
    first = send(key, "ball")
    Tagger.load(pets).define("ball", words=False).save(pets)
    assert send(key, "ball") == first == (201, first[1])
    assert Tagger.load(pets).definitions_["ball"].kind == "none"
    assert send(key, "sea")[0] == 422
    assert send(str(uuid.uuid4()), "sea")[0] == 201


@pytest.mark.parametrize("change", ["define", "rename", "forget"])
def test_a_change_whose_reply_was_lost_is_done_once(
    running: Running, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, real, lost = running.client, http.client.HTTPConnection.getresponse, list[int]()
    assert client.labels()  # the connection is open: a fresh one would not be tried again

    def lose_the_first(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        response = real(connection)
        if not lost:
            lost.append(response.status)
            raise http.client.RemoteDisconnected("after it was done")
        return response

    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", lose_the_first)
    act = {"define": ("ball",), "rename": ("dog", "hound"), "forget": ("dog",)}[change]
    getattr(client, change)(*act)
    assert lost in ([200], [201], [204])
    names = {"define": {"ball", "cat", "dog", "sofa"}, "rename": {"cat", "hound", "sofa"}, "forget": {"cat", "sofa"}}
    assert {label.name for label in client.labels()} == names[change]


def test_what_was_refused_may_be_tried_again_with_the_same_key(running: Running) -> None:
    def send() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", running.settings.port)
        headers = {"Authorization": f"Bearer {running.settings.token}", "Content-Type": "application/json"}
        body = json.dumps({"pictures": [content_digest(picture(5, "dog")).hex()]})
        connection.request("POST", "/v1/tag", body, headers | {"Idempotency-Key": "again"})
        status = connection.getresponse().status
        connection.close()
        return status

    assert send() == 404
    running.client.tag([picture(5, "dog")])
    assert send() == 200


def test_the_cache_spares_the_network_a_picture_it_has_seen(pets: Path, tmp_path: Path) -> None:
    with serving_bank(pets, cache=tmp_path / "cache", decoders=Decoders(1)) as running:
        first = running.client.tag([picture(1, "dog")])
        running.served.decoders.close()  # nobody is left who could decode it
        assert running.client.tag([picture(1, "dog")]) == first


def test_the_server_is_ready_once_its_network_is_loaded(running: Running) -> None:
    assert running.client.health()
    running.served.warm_up()
    assert running.client.ready()
    stranger = Client(running.settings.url)
    assert stranger.health()
    assert stranger.ready()


def test_metrics_count_requests_and_pictures(running: Running) -> None:
    running.client.tag([picture(1, "dog"), b"nothing"])
    text = running.client.get("/metrics").decode()
    assert 'fewtag_requests_total{method="POST",route="/v1/tag",status="200"} 1.0' in text
    assert 'fewtag_pictures_total{outcome="tagged"} 1.0' in text
    assert 'fewtag_pictures_total{outcome="failed"} 1.0' in text
    assert "fewtag_queue_pictures 0.0" in text
