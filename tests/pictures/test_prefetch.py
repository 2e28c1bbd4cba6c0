"""Prefetch: in order, a few ahead, and no further."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fewtag.pictures import prefetch as prefetching
from fewtag.pictures.prefetch import batches, prefetch, usable_cores


def test_results_come_in_order_whoever_finishes_first() -> None:
    first = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert first.wait(120)
        if number == 3:
            first.set()
        return number * number

    assert list(prefetch(work, range(20), 5, threads=4)) == [number * number for number in range(20)]


def test_no_more_is_taken_than_so_many_ahead() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = prefetch(abs, endless(), 4)
    for number in range(1, 4):
        assert next(results) == number
        assert taken <= number + 4
    results.close()  # type: ignore[attr-defined]


def test_an_error_arrives_where_its_result_would_have() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number

    results = prefetch(work, range(9), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_whoever_leaves_early_waits_for_no_thread() -> None:
    """A join in a generator that the garbage collector closes while some thread starts would never end."""
    free = threading.Event()
    results = prefetch(lambda number: number == 0 or free.wait(120), range(9), 3, threads=2)
    assert next(results)
    leaving = threading.Thread(target=results.close, daemon=True)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(60)
    stuck = leaving.is_alive()
    free.set()
    assert not stuck


def test_batches_are_lists_of_so_many() -> None:
    assert list(batches(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_number_of_cores_is_known_where_the_system_tells_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert usable_cores() == 1


QUOTAS = {"200000 100000\n": 2, "150000 100000": 2, "1000 100000": 1, "max 100000": 8, "9900000 100000": 8, "": 8}


@pytest.mark.parametrize(("quota", "cores"), QUOTAS.items())
def test_a_containers_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    """As `docker run --cpus 2` sets it, and Kubernetes for a limit."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(8), raising=False)
    monkeypatch.setattr(prefetching, "QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == 8
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores() == cores
