"""The cache's rows: nothing lost, nothing doubled, nothing damaged handed out, whatever stops a process."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.errors import InputError
from fewtag.research.features.room import locked, make_room
from fewtag.research.features.segments import RECORD
from fewtag.research.features.store import About, Space, address, open_space

ABOUT = About("features", "tiny", "key", (2, 3), "float16")
ROW = 2 * 3 * 2


def digest(number: int) -> bytes:
    return address(str(number).encode())


def values(numbers: range | list[int]) -> np.ndarray:
    """A row that follows from its number."""
    return np.stack([np.random.default_rng(number).normal(size=(2, 3)) for number in numbers]).astype(np.float16)


def append(space: Space, numbers: range | list[int]) -> None:
    space.append([digest(number) for number in numbers], values(numbers))


def held(space: Space, numbers: range | list[int]) -> list[int]:
    """The numbers whose rows are there; they must be right."""
    found, missing = space.read([space.find(digest(number)) for number in numbers])
    there = [place for place in range(len(numbers)) if place not in missing]
    assert np.array_equal(found[there], values(numbers)[there])
    return [numbers[place] for place in there]


def files(root: Path, ending: str = "rows") -> list[Path]:
    return sorted(root.glob(f"*/*.{ending}"))


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def test_rows_come_back_as_they_went_in_even_to_another_process_later(tmp_path: Path) -> None:
    append(Space(tmp_path, ABOUT), [3, 0, 4])
    again = Space(tmp_path, ABOUT)
    assert held(again, [0, 4, 1, 3, 0]) == [0, 4, 3, 0]
    found, missing = again.read([])
    assert (found.shape, found.dtype, missing) == ((0, 2, 3), np.float16, [])


def test_what_is_there_is_not_appended_again(tmp_path: Path) -> None:
    one, other = Space(tmp_path, ABOUT), Space(tmp_path, ABOUT)
    append(one, range(5))
    append(other, range(3, 8))  # it has not looked since
    append(one, [6, 6, 9])
    assert len(one) == 9
    assert held(one, range(9)) == list(range(8))
    assert sum(path.stat().st_size for path in files(tmp_path)) == 9 * ROW


@pytest.mark.parametrize("other", [{"key": "other"}, {"shape": (3, 2)}, {"dtype": "float32"}, {"kind": "pixels"}])
def test_other_rows_have_a_place_of_their_own(tmp_path: Path, other: dict[str, object]) -> None:
    append(Space(tmp_path, ABOUT), range(5))
    about = About(**{**ABOUT.__dict__, **other})
    assert len(Space(tmp_path, about)) == 0


def test_a_space_opens_by_its_folder_unless_its_description_is_damaged(tmp_path: Path) -> None:
    space = Space(tmp_path, ABOUT)
    append(space, range(5))
    again = open_space(space.folder)
    assert again is not None
    assert again.about == ABOUT
    assert held(again, range(5)) == list(range(5))
    for damaged in (b'{"kind": "feat', b"[]", (space.folder / "space.json").read_bytes().replace(b"[2, 3]", b"[2, 9]")):
        (space.folder / "space.json").write_bytes(damaged)
        assert open_space(space.folder) is None
    append(space, [7])
    assert open_space(space.folder) is not None, "whoever appends mends it"


APPEND = """
import sys
from pathlib import Path
from test_store import ABOUT, Space, append
import fewtag.research.features.store
fewtag.research.features.store.SEGMENT_BYTES = 700
space, start = Space(Path(sys.argv[1]), ABOUT), int(sys.argv[2])
for turn in range(40):
    append(space, range(start + 5 * turn, start + 5 * turn + 8))
"""


def run(script: str, *arguments: object) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stderr=subprocess.PIPE, env=environment
    )


def test_several_processes_append_at_once_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    processes = [run(APPEND, tmp_path, start) for start in (0, 50, 100)]
    for process in processes:
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    count = 100 + 39 * 5 + 8
    assert held(Space(tmp_path, ABOUT), range(count + 1)) == list(range(count))
    assert sum(path.stat().st_size for path in files(tmp_path)) == count * ROW
    assert len(files(tmp_path)) == -(-count // (700 // ROW))


KILLED = """
import os, signal, sys
from pathlib import Path
from test_store import ABOUT, Space, append
space = Space(Path(sys.argv[1]), ABOUT)
append(space, range(5))
write = os.pwrite
def killing(handle, content, offset):
    # half of the index is written when the kill comes
    if os.readlink(f"/proc/self/fd/{handle}").endswith(".index"):
        write(handle, content[:int(sys.argv[2])], offset)
        os.kill(os.getpid(), signal.SIGKILL)
    return write(handle, content, offset)
os.pwrite = killing
append(space, range(5, 10))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(("written", "kept"), [(0, 5), (2 * RECORD.itemsize + 7, 7)])
def test_a_writer_killed_between_rows_and_index_loses_and_doubles_nothing(
    tmp_path: Path, written: int, kept: int
) -> None:
    process = run(KILLED, tmp_path, written)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    space = Space(tmp_path, ABOUT)
    assert held(space, range(10)) == list(range(kept))
    append(space, range(8, 12))  # not the rows that lie where the kill left them
    append(space, range(12))
    assert held(Space(tmp_path, ABOUT), range(12)) == list(range(12))
    assert sum(path.stat().st_size for path in files(tmp_path)) == 12 * ROW


def test_a_turned_bit_is_found_and_the_row_appended_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(Space(tmp_path, ABOUT), range(10))
    for number in (3, 8):
        flip(files(tmp_path)[0], number * ROW + 4)
    space = Space(tmp_path, ABOUT)
    assert held(space, range(10)) == [0, 1, 2, 4, 5, 6, 7, 9]
    assert len(caplog.records) == 1, "one line, however many rows"
    assert (space.damaged, len(space), len(Space(tmp_path, ABOUT))) == (2, 8, 8)
    append(space, range(10))
    for found in (space, Space(tmp_path, ABOUT)):
        assert held(found, range(10)) == list(range(10))


def test_a_turned_bit_in_the_index_costs_a_row_at_most(tmp_path: Path) -> None:
    append(Space(tmp_path, ABOUT), range(10))
    flip(files(tmp_path, "index")[0], 2 * RECORD.itemsize + 3)  # whose row
    flip(files(tmp_path, "index")[0], 5 * RECORD.itemsize + 18)  # what it sums up to
    assert held(Space(tmp_path, ABOUT), range(10)) == [0, 1, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_truncated_segment_keeps_what_is_left(tmp_path: Path, mapped: bool) -> None:
    space = Space(tmp_path, ABOUT)
    append(space, range(10))
    if mapped:
        assert held(space, range(10)) == list(range(10))
    os.truncate(files(tmp_path)[0], 6 * ROW + 5)
    assert held(space, range(10)) == list(range(6))
    append(space, range(10))
    assert held(Space(tmp_path, ABOUT), range(10)) == list(range(10))


def test_a_truncated_index_keeps_what_is_left_and_nobody_reads_others_rows(tmp_path: Path) -> None:
    space, other = Space(tmp_path, ABOUT), Space(tmp_path, ABOUT)
    append(space, range(10))
    entries = [space.find(digest(number)) for number in range(10)]
    assert space.read(entries)[1] == []
    os.truncate(files(tmp_path, "index")[0], 6 * RECORD.itemsize + 3)
    append(other, range(20, 23))
    append(space, [30])
    assert space.read(entries)[1] == [6, 7, 8, 9]
    for found in (space, other, Space(tmp_path, ABOUT)):
        found.refresh()
        assert held(found, [*range(10), *range(20, 23), 30]) == [*range(6), *range(20, 23), 30]


def test_every_row_can_be_checked_at_once(tmp_path: Path) -> None:
    append(Space(tmp_path, ABOUT), range(200))
    for number in (0, 100, 199):
        flip(files(tmp_path)[0], number * ROW)
    space, told = Space(tmp_path, ABOUT), list[int]()
    assert space.check(told.append) == 3
    assert sum(told) == 200
    assert (Space(tmp_path, ABOUT).check(), len(Space(tmp_path, ABOUT))) == (0, 197)


def full_after(bytes_left: int, *, short: bool) -> Callable[[int, bytes, int], int]:
    """An os.pwrite onto a disk that fills up; a real one may first write a part of what it is given."""
    pwrite, left = os.pwrite, bytes_left

    def write(handle: int, data: bytes, offset: int) -> int:
        nonlocal left
        if len(data) > left and not (short and left):
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(handle, data[:left], offset)
        left -= written
        return written

    return write


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("room", [18, 2 * ROW + 25])  # for one row and a half; for two and a record and a half
def test_a_full_disk_is_one_sentence_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool, room: int
) -> None:
    space = Space(tmp_path, ABOUT)
    append(space, [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_after(room, short=short))
        with pytest.raises(InputError, match=r"No space left.*; free some room there, .*\(what is finished is kept\)"):
            append(space, [2, 3])
    assert held(space, range(5))[:2] == [0, 1]
    append(space, [2, 3, 4])
    for found in (space, Space(tmp_path, ABOUT)):
        assert held(found, range(5)) == list(range(5))
    assert sum(path.stat().st_size for path in files(tmp_path)) == 5 * ROW


def test_a_row_is_told_of_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(tmp_path, ABOUT)

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, f"Input/output error of {handle}")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(InputError, match="Input/output error"):
        append(space, [0])
    assert (len(space), len(Space(tmp_path, ABOUT))) == (0, 0)


def test_a_place_where_no_cache_can_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot write to the cache .*file.*: .*name another --cache"):
        append(Space(tmp_path / "file", ABOUT), [0])


def test_what_was_removed_can_be_read_by_whoever_holds_it_and_is_forgotten_by_the_others(tmp_path: Path) -> None:
    space = Space(tmp_path, ABOUT)
    entries = space.append([digest(0)], values([0]))
    files(tmp_path)[0].unlink()
    append(space, [1])
    assert held(space, [0, 1]) == [1]
    assert np.array_equal(space.read(entries)[0], values([0]))


def test_a_segment_never_has_the_name_of_one_that_was_removed(tmp_path: Path) -> None:
    space, other = Space(tmp_path, ABOUT), Space(tmp_path, ABOUT)
    append(space, [0])
    other.refresh()
    assert make_room(tmp_path, 0) > 0
    append(space, [1])
    other.refresh()
    assert held(other, [0, 1]) == [1]


def test_whoever_waits_while_the_cache_is_cleared_is_alone_in_the_new_one(tmp_path: Path) -> None:
    space = Space(tmp_path, ABOUT)
    append(space, [0])
    with ThreadPoolExecutor(1) as pool:
        with locked(space.folder):
            waiting = pool.submit(append, space, [1])
            time.sleep(0.2)
            assert not waiting.done()
            shutil.rmtree(space.folder)
        waiting.result()
    assert (space.folder / "lock").exists(), "the lock that it held is the one that others find"
    assert held(Space(tmp_path, ABOUT), [0, 1]) == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_memory_does_not_grow_with_the_rows_read(tmp_path: Path) -> None:
    def mapped_megabytes() -> float:
        found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) / 1000

    about = About("features", "large", "key", (500_000,), "float16")
    space = Space(tmp_path, about)
    for number in range(40):
        space.append([digest(number)], np.full((1, 500_000), number, np.float16))
    before = mapped_megabytes()
    for number in range(40):
        found, missing = space.read([space.find(digest(number))])
        assert (found[0, -1], missing) == (number, [])
    assert mapped_megabytes() < before + 10


Action = st.tuples(
    st.sampled_from(["append", "read", "flip", "reopen", "cut rows", "cut index"]), st.sets(st.integers(0, 12))
)


@settings(max_examples=60, deadline=None)
@given(st.lists(Action, max_size=12))
def test_a_space_never_says_anything_else_than_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, set[int]]]
) -> None:
    root = tmp_path_factory.mktemp("space")
    space, expected = Space(root, ABOUT), set[int]()
    whole = True
    for action, some in actions:
        numbers = sorted(some)
        if action == "append" and numbers:
            append(space, numbers)
            expected |= some
            assert set(numbers) >= set(held(space, numbers)), "right values are asserted there"
        elif action == "reopen":
            space = Space(root, ABOUT)
        elif action == "read" and numbers:
            found = held(space, numbers)
            assert not whole or found == [number for number in numbers if number in expected]
            assert set(found) <= expected
        elif files(root):
            whole = False
            path = files(root)[-1]
            if action == "flip" and path.stat().st_size:
                # damage that comes after a row was read is not looked for again
                space = Space(root, ABOUT)
                flip(path, (7 * sum(some)) % path.stat().st_size)
            elif action == "cut rows":
                os.truncate(path, path.stat().st_size // 2)
                space = Space(root, ABOUT)
            elif action == "cut index" and files(root, "index"):
                path = files(root, "index")[-1]
                os.truncate(path, path.stat().st_size * 2 // 3)
    for _ in range(2):  # that the index was cut is seen when something is appended
        missing = [number for number in range(13) if number not in held(space, range(13))]
        if missing:
            append(space, missing)
    assert held(space, range(13)) == list(range(13))
