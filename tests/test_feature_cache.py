"""The feature cache: nothing lost, nothing doubled, nothing wrong handed out, whatever stops a process."""

import logging
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import takewhile
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag import cache as cache_module
from fewtag.cache import FILE, PAGE_BYTES, ArrayRows, Cache, content_digest
from fewtag.cache_upkeep import CacheUpkeep
from fewtag.errors import InputError
from fewtag.files import UNITS, format_size, parse_size, user_cache_folder

FACTS = ("features", "tiny", "key", (10_000,), "float16")
ROW = 20_000


def digest(number: int) -> bytes:
    return content_digest(str(number).encode())


def values(numbers: Sequence[int]) -> np.ndarray:
    """Rows that follow from their numbers."""
    rows = [np.random.default_rng(number).normal(size=10_000) for number in numbers]
    return np.array(rows, np.float16).reshape(len(numbers), 10_000)


def open_space(folder: Path, limit: int | None = None) -> ArrayRows:
    return Cache(folder, limit).arrays(*FACTS)


def put(space: ArrayRows, numbers: Sequence[int]) -> None:
    space.put_many([digest(number) for number in numbers], values(numbers))


def held(space: ArrayRows, numbers: Sequence[int]) -> list[int]:
    """The numbers whose rows are there; they must be right."""
    found = space.get_many([digest(number) for number in numbers])
    there = [(number, row) for number, row in zip(numbers, found, strict=True) if row is not None]
    for number, row in there:
        assert np.array_equal(row, values([number])[0])
    return [number for number, _ in there]


def change(folder: Path, statement: str, *parameters: object) -> None:
    """Behind the cache's back."""
    connection = sqlite3.connect(folder / FILE)
    with connection:
        connection.execute(statement, parameters)
    connection.close()


def use(folder: Path, numbers: Sequence[int], when: float) -> None:
    for number in numbers:
        change(folder, "UPDATE rows SET used = ? WHERE digest = ?", when, digest(number))


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said so far; a list that the caller reads once, at the end."""
    caplog.set_level(logging.WARNING)

    class Messages(list[str]):
        def __iter__(self) -> Iterator[str]:
            return (record.getMessage() for record in caplog.records)

    return Messages()


def test_rows_come_back_as_they_went_in_also_to_another_cache_later(tmp_path: Path) -> None:
    with Cache(tmp_path) as first:
        put(first.arrays(*FACTS), [3, 0, 4])
    again = open_space(tmp_path)
    assert held(again, [0, 4, 1, 3, 0]) == [0, 4, 3, 0]
    (row,) = again.get_many([digest(3)])
    assert (row.shape, row.dtype, row.flags.writeable) == ((10_000,), np.float16, False)
    assert again.get_many([]) == []
    assert (len(again), digest(3) in again, digest(1) in again) == (3, True, False)


def test_opening_and_asking_make_no_folder(tmp_path: Path) -> None:
    with closing(CacheUpkeep(tmp_path / "none")) as cache:
        assert open_space(tmp_path / "none").get_many([digest(0)]) == [None]
        assert (cache.contents(), cache.size, cache.prune(0), cache.check(), cache.clear()) == ([], 0, 0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_put_again(tmp_path: Path) -> None:
    one, other = open_space(tmp_path), open_space(tmp_path)
    put(one, range(5))
    put(other, range(3, 8))
    put(one, [6, 6, 9])
    assert len(one) == 9
    assert held(one, range(9)) == list(range(8))


def test_more_rows_than_one_query_may_name(tmp_path: Path) -> None:
    space = Cache(tmp_path).arrays("features", "bytes", "key", (2,), "uint8")
    digests = [digest(number) for number in range(1500)]
    rows = np.arange(3000, dtype=np.uint16).astype(np.uint8).reshape(1500, 2)
    space.put_many(digests, rows)
    space.put_many(digests, rows)
    assert len(space) == 1500
    assert np.array_equal(np.stack(space.get_many(digests)), rows)


@pytest.mark.parametrize("other", [{2: "other"}, {3: (100, 100)}, {4: "int16"}, {0: "pixels"}])
def test_other_rows_have_a_space_of_their_own(tmp_path: Path, other: dict[int, object]) -> None:
    put(open_space(tmp_path), range(3))
    space = Cache(tmp_path).arrays(*(other.get(place, fact) for place, fact in enumerate(FACTS)))
    assert (len(space), space.get_many([digest(0)])) == (0, [None])


def test_a_space_is_cleared_alone(tmp_path: Path) -> None:
    space, other = open_space(tmp_path), Cache(tmp_path).arrays("pixels", *FACTS[1:])
    put(space, range(3))
    put(other, range(4))
    space.clear()
    assert (len(space), len(other)) == (0, 4)


# Eviction


@pytest.mark.slow
def test_the_least_recently_used_go_first_and_reading_is_use(tmp_path: Path) -> None:
    put(open_space(tmp_path), range(40))
    use(tmp_path, range(40), 1000.0)
    with Cache(tmp_path) as reader:
        assert held(reader.arrays(*FACTS), [5, 30]) == [5, 30]
    limit = 40 * ROW
    put(open_space(tmp_path, limit), range(100, 130))
    kept = held(open_space(tmp_path), range(130))
    assert set(kept) >= {5, 30, *range(100, 130)}
    assert len(kept) < 40
    assert (tmp_path / FILE).stat().st_size <= 40 * ROW + 16 * PAGE_BYTES


def test_a_row_read_again_and_again_costs_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(open_space(tmp_path), range(4))
    use(tmp_path, range(4), 1000.0)
    monkeypatch.setattr(cache_module, "TOUCH_SECONDS", 0.0)
    space, writes = open_space(tmp_path), []
    run = Cache.run
    spy = lambda cache, work, *, write=False: writes.extend([1] * write) or run(cache, work, write=write)  # noqa: E731
    monkeypatch.setattr(Cache, "run", spy)
    for _ in range(5):
        held(space, range(4))
    assert len(writes) == 1


def test_of_more_rows_than_fit_the_first_are_kept_pass_after_pass(tmp_path: Path) -> None:
    limit, kept = 50 * ROW, []
    for _ in range(3):
        with Cache(tmp_path, limit) as cache:
            space = cache.arrays(*FACTS)
            for start in range(0, 100, 10):
                numbers = range(start, start + 10)
                there = held(space, numbers)
                put(space, [number for number in numbers if number not in there])
            kept.append(held(space, range(100)))
    assert 30 < len(kept[0]) < 50
    assert kept[0] == list(range(len(kept[0])))
    assert kept[1] == kept[2] == kept[0], "going over them in turn does not evict each before it is asked for"


def test_the_file_never_takes_more_than_its_limit(tmp_path: Path) -> None:
    limit = 40 * ROW
    for turn in range(5):
        with Cache(tmp_path, limit) as cache:
            put(cache.arrays(*FACTS), range(100 * turn, 100 * turn + 60))
        assert (tmp_path / FILE).stat().st_size <= limit + 4 * PAGE_BYTES
    assert held(open_space(tmp_path), range(400)) == [], "older sessions' rows made room"
    with Cache(tmp_path, limit // 2) as cache:
        put(cache.arrays(*FACTS), [1000])
    assert (tmp_path / FILE).stat().st_size <= limit // 2 + 4 * PAGE_BYTES, "a lower limit shrinks it"
    assert held(open_space(tmp_path), [1000]) == [1000]


@pytest.mark.slow
def test_prune_gives_the_disk_back(tmp_path: Path) -> None:
    put(open_space(tmp_path), range(60))
    use(tmp_path, range(30), 1000.0)
    with closing(CacheUpkeep(tmp_path)) as cache:
        before = cache.size
        freed = cache.prune(30 * ROW)
        assert freed == before - cache.size
        assert cache.size <= 30 * ROW + 8 * PAGE_BYTES
    kept = held(open_space(tmp_path), range(60))
    assert set(kept) <= set(range(30, 60))
    assert len(kept) > 15


# Several processes

SCRIPT = """
import sys
from pathlib import Path
import importlib.util
spec = importlib.util.spec_from_file_location("these", sys.argv[1])
these = importlib.util.module_from_spec(spec)
spec.loader.exec_module(these)
space, start = these.open_space(Path(sys.argv[2])), int(sys.argv[3])
"""
APPEND = SCRIPT + "for turn in range(20): these.put(space, range(start + 3 * turn, start + 3 * turn + 5))"
FOREVER = SCRIPT + "for turn in range(10**6): these.put(space, range(3 * turn, 3 * turn + 3)); print(turn, flush=True)"


def run(script: str, folder: Path, start: int = 0) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", script, __file__, str(folder), str(start)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def is_sound(folder: Path) -> bool:
    connection = sqlite3.connect(folder / FILE)
    answers = connection.execute("PRAGMA integrity_check").fetchall()
    doubled = connection.execute("SELECT count(*) FROM rows GROUP BY space, digest HAVING count(*) > 1").fetchall()
    orphans = connection.execute("SELECT count(*) FROM contents WHERE id NOT IN (SELECT id FROM rows)").fetchone()
    connection.close()
    return answers == [("ok",)] and not doubled and orphans == (0,)


@pytest.mark.processes
def test_several_processes_put_at_once_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    processes = [run(APPEND, tmp_path, start) for start in (0, 0, 30)]  # the same and other rows, into no file yet
    for process in processes:
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    count = 30 + 3 * 19 + 5
    assert held(open_space(tmp_path), range(count + 1)) == list(range(count))
    assert len(open_space(tmp_path)) == count
    assert is_sound(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_kill_in_the_middle_of_writing_loses_no_finished_row(tmp_path: Path) -> None:
    finished = -1
    for delay in (0.0, 0.01, 0.033):
        process = run(FOREVER, tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0].split()
        finished = max([finished, 0, *map(int, said[:-1])])  # the last number may be cut
    space = open_space(tmp_path)
    assert held(space, range(3 * finished + 3)) == list(range(3 * finished + 3))
    assert len(space) % 3 == 0, "a transaction is kept whole or not at all"
    assert is_sound(tmp_path)


def _put_in_fork(space: ArrayRows, numbers: range) -> None:
    put(space, numbers)
    space.cache.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_opens_connections_of_its_own(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    put(space, range(3))
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_put_in_fork, args=(space, range(start, start + 5))) for start in (1, 10)]
    for child in children:
        child.start()
    put(space, range(20, 25))
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert held(space, range(30)) == [*range(6), *range(10, 15), *range(20, 25)]
    assert is_sound(tmp_path)


def test_threads_share_a_space(tmp_path: Path) -> None:
    space = open_space(tmp_path)

    def work(start: int) -> list[int]:
        put(space, range(start, start + 10))
        return held(space, range(start, start + 10))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(0, 80, 5))) == [list(range(start, start + 10)) for start in range(0, 80, 5)]
    assert len(space) == 85


def test_rows_survive_a_process_that_died_while_the_log_was_copied_into_the_file(tmp_path: Path) -> None:
    space = open_space(tmp_path / "alive")
    put(space, range(30))
    (tmp_path / "died").mkdir()
    for path in space.cache.files()[:2]:
        shutil.copy(path, tmp_path / "died")
    with (tmp_path / "died" / space.cache.path.name).open("r+b") as file:
        file.seek(28)
        file.write((1000).to_bytes(4, "big"))  # of the pages that the log holds, only the first has been copied
    assert held(open_space(tmp_path / "died"), range(30)) == list(range(30))
    assert is_sound(tmp_path / "died")


def test_whoever_has_a_cleared_cache_open_goes_on(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    put(space, range(30))
    with closing(CacheUpkeep(tmp_path)) as other:
        assert other.clear() > 30 * ROW // 2, "emptied, since it is in use"
        assert other.contents() == []
    put(space, [1])
    assert held(open_space(tmp_path), range(30)) == [1]
    space.cache.close()
    assert CacheUpkeep(tmp_path).clear() > 0
    assert list(tmp_path.iterdir()) == []
    put(space, [2])
    assert held(open_space(tmp_path), range(30)) == [2]


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE contents SET content = zeroblob(20000) WHERE id = 3",
        "UPDATE contents SET content = 'text' WHERE id = 3",
        "UPDATE contents SET content = (SELECT content FROM contents WHERE id = 4) WHERE id = 3",
        "DELETE FROM contents WHERE id = 3",
        "UPDATE rows SET checksum = checksum + 1 WHERE id = 3",
    ],
)
def test_a_damaged_row_is_dropped_and_put_anew(tmp_path: Path, warned: list[str], damage: str) -> None:
    with Cache(tmp_path) as cache:
        put(cache.arrays(*FACTS), range(6))
    change(tmp_path, damage)
    space = open_space(tmp_path)
    for _ in range(2):
        assert held(space, range(6)) == [0, 1, 3, 4, 5]
    assert len(space) == 5
    assert ["has damaged rows" in message for message in warned] == [True]
    put(space, range(6))
    assert held(space, range(6)) == list(range(6))


def test_every_row_can_be_checked(tmp_path: Path) -> None:
    put(open_space(tmp_path), range(20))
    change(tmp_path, "UPDATE contents SET content = zeroblob(20000) WHERE id IN (3, 7)")
    change(tmp_path, "UPDATE rows SET space = 99 WHERE id = 9")
    told: list[int] = []
    with closing(CacheUpkeep(tmp_path)) as cache:
        used = [contents.used for contents in cache.contents()]
        assert (cache.check(told.append), sum(told), len(cache)) == (3, 20, 17)
        assert [contents.used for contents in cache.contents()] == used, "to check rows is not to use them"
        assert cache.check() == 0


def scribble(path: Path, start: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(np.random.default_rng(start).bytes(length))


DAMAGES = {
    "random bytes": lambda path: path.write_bytes(np.random.default_rng(0).bytes(100_000)),
    "no header": lambda path: scribble(path, 0, 50),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 3),
    "a few bytes": lambda path: os.truncate(path, 30),
    "the schema": lambda path: scribble(path, 100, 16_000),
    "a letter of the schema, which SQLite's message then cites": lambda path: path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE contents", b"CR\xe8ATE TABLE contents")
    ),
    "pages": lambda path: scribble(path, 5 * PAGE_BYTES, 10 * PAGE_BYTES),
    "every other page": lambda path: [
        scribble(path, start, 200) for start in range(PAGE_BYTES, path.stat().st_size, 2 * 16_384)
    ],
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_database_is_begun_anew_and_says_nothing_wrong(
    tmp_path: Path, warned: list[str], name: str, is_open: bool
) -> None:
    before = open_space(tmp_path)
    put(before, range(30))
    before.cache.close()
    if is_open:
        held(before, range(2))
    DAMAGES[name](tmp_path / FILE)
    space = before if is_open else open_space(tmp_path)
    assert set(held(space, range(30))) <= set(range(30)), "right values are asserted there"
    put(space, range(40))
    held(space, range(40))
    put(space, range(40))
    assert held(space, range(40)) == list(range(40))
    after = open_space(tmp_path)
    held(after, range(40))  # that its header is gone is found by the next one to open a file
    put(after, range(40))
    assert held(open_space(tmp_path), range(40)) == list(range(40))
    assert len(list(warned)) <= 2


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 70 * ROW), st.integers(1, 3000)), min_size=1, max_size=4), st.booleans())
def test_whatever_is_overwritten_no_wrong_row_is_handed_out(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]], is_open: bool
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    space = open_space(folder)
    put(space, range(40))
    if not is_open:
        space.cache.close()
    for start, length in places:
        scribble(folder / FILE, 100 + start % (folder / FILE).stat().st_size, length)
    held(space, range(40))
    put(space, range(50))
    held(space, range(50))
    held(open_space(folder), range(50))
    CacheUpkeep(folder).check()
    put(open_space(folder), range(50))
    assert held(open_space(folder), range(50)) == list(range(50))


def test_what_is_no_database_is_set_aside_not_lost(tmp_path: Path, warned: list[str]) -> None:
    (tmp_path / FILE).write_text("a letter under this name")
    put(open_space(tmp_path), [1])
    assert (tmp_path / f"{FILE}.damaged").read_text() == "a letter under this name"
    assert held(open_space(tmp_path), [1]) == [1]
    assert len(list(warned)) == 1


def test_another_programs_database_is_never_touched(tmp_path: Path, warned: list[str]) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE rows (mine); INSERT INTO rows VALUES (1)")
    connection.close()
    content, listing = (tmp_path / FILE).read_bytes(), sorted(tmp_path.iterdir())
    space = open_space(tmp_path)
    put(space, [1])
    assert held(space, [1]) == []
    assert ["another program's database" in message for message in warned] == [True]
    with closing(CacheUpkeep(tmp_path)) as cache:
        for action in (cache.contents, cache.check, cache.clear, lambda: cache.prune(0)):
            with pytest.raises(InputError, match=r"another program's database; name another"):
                action()
    assert (sorted(tmp_path.iterdir()), (tmp_path / FILE).read_bytes()) == (listing, content)


def test_another_version_of_ours_is_begun_anew(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        put(cache.arrays(*FACTS), range(3))
    change(tmp_path, "PRAGMA user_version = 99")
    space = open_space(tmp_path)
    assert held(space, range(3)) == []
    put(space, [1])
    assert held(open_space(tmp_path), range(3)) == [1]
    assert not (tmp_path / f"{FILE}.damaged").exists(), "gigabytes, and nobody else's"


# What a cache cannot do without


def check_goes_on(space: ArrayRows, warned: list[str], reason: str) -> None:
    """Nothing is kept, nothing raised, and one sentence says so."""
    for _ in range(3):
        put(space, range(100, 103))
        assert held(space, range(100, 103)) == []
    (message,) = warned
    assert reason in message
    assert "--cache" in message
    assert "--no-cache" in message


def test_a_place_where_no_cache_can_be_is_told_of_once(tmp_path: Path, warned: list[str]) -> None:
    (tmp_path / "file").touch()
    check_goes_on(open_space(tmp_path / "file" / "cache"), warned, "Not a directory")


def test_a_full_disk_is_told_of_once_and_what_is_finished_stays(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path) as cache:
        put(cache.arrays(*FACTS), range(5))
    monkeypatch.setattr(cache_module, "_SETTINGS", (*cache_module._SETTINGS, "PRAGMA max_page_count = 10"))
    space = open_space(tmp_path)
    check_goes_on(space, warned, "disk is full")
    assert held(space, range(5)) == list(range(5))


def test_a_database_that_another_process_holds_is_told_of_once(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "BUSY_SECONDS", 0.05)
    put(open_space(tmp_path), range(5))
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    space = open_space(tmp_path)
    check_goes_on(space, warned, "locked")
    assert held(space, range(5)) == list(range(5)), "reading goes on"
    other.close()


def test_times_of_use_that_cannot_be_written_are_nothing_to_tell(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "BUSY_SECONDS", 0.05)
    put(open_space(tmp_path), range(5))
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    space = open_space(tmp_path)
    assert held(space, range(5)) == list(range(5))
    space.cache.close()
    assert list(warned) == []
    other.close()


def _use_as_another_user(folder: Path, answer: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("fewtag").addHandler(handler)
    with Cache(folder) as cache:
        space = cache.arrays(*FACTS)
        found = held(space, range(7))
        put(space, [5])
        put(space, [6])
        answer.send((found, held(space, range(7)), len(space), said))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_cache_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with Cache(folder) as cache:
        put(cache.arrays(*FACTS), range(3))
    use(folder, range(3), 1000.0)
    before = (folder / FILE).read_bytes()
    for parent in takewhile(Path(tempfile.gettempdir()).__ne__, tmp_path.parents):
        parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    (folder / FILE).chmod(0o444)
    folder.chmod(0o555)
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use_as_another_user, args=(folder, theirs))
    child.start()
    child.join()
    folder.chmod(0o755)
    assert child.exitcode == 0
    found, again, count, (message,) = mine.recv()
    assert (found, again, count) == ([0, 1, 2], [0, 1, 2], 3)
    assert "cannot be written" in message
    assert (folder / FILE).read_bytes() == before


# Sizes and places


@given(st.integers(0, 10**15))
def test_a_size_in_bytes_is_itself(size: int) -> None:
    assert parse_size(str(size), "--prune") == parse_size(f" {size} b", "--prune") == size


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_size_counts_its_unit_and_what_is_shown_can_be_given_back(number: int, unit: str) -> None:
    size = parse_size(f"{number}{unit.lower()}", "--prune")
    assert size == number * UNITS[unit]
    assert abs(parse_size(format_size(size), "--prune") - size) <= 0.05 * size


@given(st.text(max_size=8, alphabet=st.characters(exclude_characters="0123456789")))
def test_what_has_no_number_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match=r"--prune .* is no size; give a number with a unit"):
        parse_size(text, "--prune")


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "given/fewtag"),
        ("linux", None, "home/.cache/fewtag"),
        ("darwin", None, "home/Library/Caches/fewtag"),
        ("win32", "LOCALAPPDATA", "given/fewtag"),
        ("win32", None, "home/AppData/Local/fewtag"),
    ],
)
def test_the_users_cache_folder_is_the_platforms(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str | None, expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "given")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert user_cache_folder() == Path(expected)
