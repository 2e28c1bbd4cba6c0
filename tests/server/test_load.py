"""More requests than the server can answer: bounded, honest, never wrong."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from raw_http import ask, form
from serving import TOKEN, Running, picture, serving_bank

from fewtag import Tagger
from fewtag.client import Client
from fewtag.pictures.decode import Decoded
from fewtag.server.queue import BusyError, TagQueue, Upload
from fewtag.server.uploads import Decoders
from fewtag.tagger.model import Model

BEARER = {"Authorization": f"Bearer {TOKEN}"}
ANSWERED, CLIENTS, MOST = 25, 40, 16
PICTURE_SECONDS = 0.05
"""So slow is the network made: 20 pictures a second, where 40 clients ask for hundreds."""


def memory() -> int:
    """Bytes of this process that are in memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system does not tell a process's memory")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


@pytest.mark.slow
def test_at_many_times_its_capacity_it_refuses_in_order_and_answers_right(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [picture(number, *labels) for number, labels in enumerate([["dog"], ["cat"], ["sofa"], ["dog", "cat"]] * 4)]
    oracle = [row.scores for row in Tagger.load(pets).tag(sent)]
    encode, turn = Model.encode, threading.Lock()

    def slow(model: Model, pixels: object) -> object:
        with turn:
            time.sleep(PICTURE_SECONDS * len(pixels))  # type: ignore[arg-type]
        return encode(model, pixels)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "encode", slow)
    statuses: Counter[int] = Counter()
    wrong, deepest = list[object](), list[int]()
    with serving_bank(pets) as running:
        running.served.queue.most = MOST
        ask(running.settings.port)
        before = memory()

        def ask_on_and_on(seed: int) -> None:
            generator = np.random.default_rng(seed)
            while statuses[200] < ANSWERED:
                chosen = generator.integers(len(sent), size=2)
                headers, body = form(*[(f"{number}.png", sent[number]) for number in chosen])
                reply = ask(running.settings.port, "POST", "/v1/tag", BEARER | headers, body)
                statuses[reply.status] += 1
                deepest.append(running.served.queue.waiting)
                if reply.status == 200:
                    for row, number in zip(json.loads(reply.body)["rows"], chosen, strict=True):
                        if row["image"] != f"{number}.png" or row["scores"] != pytest.approx(oracle[number], abs=2e-6):
                            wrong.append(row)
                elif not 1 <= int(reply.headers["retry-after"]) <= 60 or not json.loads(reply.body)["detail"]:
                    wrong.append(reply)
                else:
                    time.sleep(0.03)  # impatient: it was told to wait for a second at least

        threads = [threading.Thread(target=ask_on_and_on, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert running.client.tag(sent[:1])[0].scores == pytest.approx(oracle[0], abs=2e-6)
        assert running.served.queue.waiting == 0
        grown = memory() - before
    assert not wrong
    assert set(statuses) == {200, 503}
    assert statuses[503] > statuses[200]
    assert max(deepest) <= MOST
    assert grown < 100_000_000


def test_pictures_of_several_requests_share_batches(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, encode = list[int](), Model.encode

    def noted(model: Model, pixels: object) -> object:
        sizes.append(len(pixels))  # type: ignore[arg-type]
        while not ready.is_set():  # until all have come and are decoded
            if (queue.waiting, queue._decoding) == (12, 0):
                ready.set()
            time.sleep(0.01)
        return encode(model, pixels)  # type: ignore[arg-type]

    with serving_bank(pets) as running:
        queue, ready = running.served.queue, threading.Event()
        running.client.tag([picture(0, "dog")])
        monkeypatch.setattr(Model, "encode", noted)
        threads = [threading.Thread(target=running.client.tag, args=([picture(n, "dog")],)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(sizes) == 12
    assert max(sizes) >= 3, "two batches at once, and then two for those who came meanwhile"


def test_a_full_queue_takes_all_of_a_request_or_nothing(pets: Path) -> None:
    tagger, decoders, gate = Tagger.load(pets), Decoders(1), threading.Event()

    def scorer() -> object:
        gate.wait()
        return tagger.scorer()

    queue = TagQueue(tagger.model, scorer, decoders, most=4)  # type: ignore[arg-type]
    uploads = [Upload.of(str(number), picture(number, "dog")) for number in range(3)]
    rows = queue.submit(uploads)
    with pytest.raises(BusyError) as busy:
        queue.submit(uploads)
    assert 1 <= busy.value.seconds <= 60
    assert queue.waiting == 3
    more = queue.submit(uploads[:1])
    gate.set()
    assert [row.result(300).image for row in [*rows, *more]] == ["0", "1", "2", "0"]
    assert queue.waiting == 0
    queue.close()
    decoders.close()


class Slow(Decoders):
    """Decoders, of which the first picture is decoded at once and the others when they are told to."""

    def __init__(self) -> None:
        self.rest, self.first = list[Future[Decoded]](), True

    def submit(self, _data: bytes, _name: str, side: int, **_: object) -> Future[Decoded]:  # type: ignore[override]
        found: Future[Decoded] = Future()
        self.rest.append(found)
        if self.first:
            self.first = False
            self.finish(side)
        return found

    def finish(self, side: int) -> None:
        while self.rest:
            self.rest.pop().set_result(Decoded(np.zeros((3, side, side), np.uint8)))


def test_a_picture_does_not_wait_for_one_that_is_still_decoded_and_one_who_went_spoils_no_batch(pets: Path) -> None:
    tagger, decoders = Tagger.load(pets), Slow()
    queue = TagQueue(tagger.model, tagger.scorer, decoders)
    rows = queue.submit([Upload.of(str(number), b"") for number in range(3)])
    assert rows[0].result(300).image == "0"
    assert not rows[1].cancel(), "its batch would fail"
    decoders.finish(tagger.model.size)
    assert [row.result(300).image for row in rows] == ["0", "1", "2"]
    queue.close()


def test_a_failing_network_is_an_error_of_the_request_and_not_of_the_server(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Model, "encode", broken)
        headers, body = form(("a.png", picture(1, "dog")))
        assert ask(running.settings.port, "POST", "/v1/tag", BEARER | headers, body).status == 500
    assert running.client.tag([picture(1, "dog")])[0].tags == ("dog",)


def test_a_client_waits_for_a_busy_server_as_long_as_it_was_told(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_bank(pets) as running:
        full = iter([True, True, False])
        submit = TagQueue.submit

        def sometimes(queue: TagQueue, uploads: object) -> object:
            if next(full):
                raise BusyError(1)
            return submit(queue, uploads)  # type: ignore[arg-type]

        monkeypatch.setattr(TagQueue, "submit", sometimes)
        began = time.monotonic()
        assert Client(running.settings.url, TOKEN).tag([picture(1, "dog")])[0].tags == ("dog",)
        assert time.monotonic() - began >= 2
