"""Heat-maps in their thread: what nobody waits for holds up nobody."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from album import digests

from fewtag.pictures.decode import Square
from fewtag.studio import heat
from fewtag.studio.studio import Studio


class LeftError(Exception):
    """Who asked has left."""


class Held:
    """The studio's pictures are read in the order of `begun`; the first waits until `go` is set."""

    def __init__(self, studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.began, self.begun = threading.Event(), threading.Event(), list[str]()
        square = studio.indexer.square

        def held(digest: str) -> Square:
            self.begun.append(digest)
            self.began.set()
            assert self.go.wait(60)
            return square(digest)

        monkeypatch.setattr(studio.indexer, "square", held)
        monkeypatch.setattr(heat, "_CHECK_SECONDS", 0.01)


@pytest.fixture
def held(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(studio, monkeypatch)


def test_a_map_that_nobody_waits_for_gives_way(studio: Studio, held: Held) -> None:
    pictures = list(digests(studio).values())[:20]
    studio.define("dog")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(studio.heat, pictures[0], "dog")
        assert held.began.wait(60)
        for each in pictures[1:]:
            studio.heat(each, "dog", at_once=True)  # glances of pictures that were passed by
        last = threads.submit(studio.heat, pictures[-1], "dog")
        held.go.set()
        assert first.result(60)
        assert last.result(60)
    assert held.begun == [pictures[0], pictures[-1]]


def test_who_waits_gets_a_map_however_many_come_after(studio: Studio, held: Held) -> None:
    pictures = list(digests(studio).values())[:12]
    studio.define("dog")
    with ThreadPoolExecutor(12) as threads:
        maps = [threads.submit(studio.heat, each, "dog") for each in pictures]
        assert held.began.wait(60)
        held.go.set()
        assert all(each.result(60) for each in maps)
    assert sorted(held.begun) == sorted(pictures)
    assert len(studio._heat._hidden_places) <= 12


def test_who_leaves_holds_up_nobody(studio: Studio, held: Held) -> None:
    first, left, last = list(digests(studio).values())[:3]
    studio.define("dog")

    def leave() -> None:
        raise LeftError

    with ThreadPoolExecutor() as threads:
        running = threads.submit(studio.heat, first, "dog")
        assert held.began.wait(60)
        with pytest.raises(LeftError):
            studio.heat(left, "dog", check=leave)
        after = threads.submit(studio.heat, last, "dog")
        held.go.set()
        assert running.result(60)
        assert after.result(60)
    assert held.begun == [first, last]


def test_a_map_that_failed_is_tried_again(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = next(iter(digests(studio).values()))
    studio.define("dog")

    def fail(_digest: str) -> Square:
        raise TimeoutError("a slow disk")

    with monkeypatch.context() as patched:
        patched.setattr(studio.indexer, "square", fail)
        with pytest.raises(TimeoutError, match="slow disk"):
            studio.heat(picture, "dog")
    assert studio.heat(picture, "dog")
