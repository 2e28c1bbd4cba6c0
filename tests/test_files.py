"""Files are written whole or not at all, locked between processes, and refused where a single bit has changed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fewtag.errors import InputError
from fewtag.files import (
    digest,
    locked,
    read_arrays,
    read_json,
    replacing,
    write_arrays,
    write_atomically,
)

KIND = "fewtag-thing"
ARRAYS = {"codes": np.arange(24, dtype=np.int8).reshape(2, 3, 4), "scales": np.linspace(0, 1, 6, dtype=np.float32)}
HEADER = {"format": 2, "labels": [{"name": "café"}, {"name": "dog"}]}


def test_a_header_that_is_too_long_is_one_sentence_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    write_arrays(path, KIND, HEADER, ARRAYS)
    before = path.read_bytes()
    with pytest.raises(InputError, match="would have too long a header"):
        write_arrays(path, KIND, {**HEADER, "more": "x" * 100_000_000}, ARRAYS)
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    write_atomically(path, b"old")

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"cannot write .*rows\.jsonl: No space left on device"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    write_atomically(path, b"old")
    code = (
        "import os, sys; from pathlib import Path; from fewtag.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as part:\n"
        "    part.write_bytes(b'half'); os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_an_interrupt_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    write_atomically(path, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:  # noqa: PT012
        part.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_on_disk_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before the name, the name before anyone is told."""
    events: list[str] = []
    opened: dict[int, str] = {}
    real_open, real_replace = os.open, Path.replace

    def note_open(path: Path, flags: int, *mode: int) -> int:
        descriptor = real_open(path, flags, *mode)
        opened[descriptor] = "folder" if Path(path) == tmp_path else "file"
        return descriptor

    def note_replace(self: Path, target: Path) -> Path:
        events.append("replace")
        return real_replace(self, target)

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(f"sync {opened[descriptor]}"))
    monkeypatch.setattr(Path, "replace", note_replace)
    write_atomically(tmp_path / "bank", b"x")
    assert events == ["sync file", "replace", "sync folder"]


def test_a_folder_that_cannot_be_synced_is_no_failure_but_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(what: Callable[[Path], bool]) -> None:
        real = os.open

        def open_(path: Path, flags: int, *mode: int) -> int:
            if what(Path(path)):
                raise PermissionError(13, "Permission denied")
            return real(path, flags, *mode)

        monkeypatch.setattr(os, "open", open_)

    refuse(Path.is_dir)  # as on Windows
    write_atomically(tmp_path / "bank", b"x")
    assert (tmp_path / "bank").read_bytes() == b"x"
    refuse(Path.is_file)
    with pytest.raises(InputError, match=r"cannot write .*bank: Permission denied"):
        write_atomically(tmp_path / "bank", b"y")
    assert (tmp_path / "bank").read_bytes() == b"x"


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "c.txt", b"x")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"x"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make the folder .*file"):
        write_atomically(tmp_path / "file" / "x", b"")


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "bank").write_bytes(b"old")
    (tmp_path / "bank").symlink_to(Path("disk", "bank"))
    (tmp_path / "later").symlink_to(tmp_path / "new" / "bank")
    for link, there in (("bank", "disk"), ("later", "new")):
        write_atomically(tmp_path / link, b"x")
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / there / "bank").read_bytes() == b"x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank", "disk", "later", "new"]


def test_a_lock_by_a_link_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "bank").symlink_to(tmp_path / "disk" / "bank")
    with locked(tmp_path / "bank"), pytest.raises(InputError, match="in use"), locked(tmp_path / "disk" / "bank", 0.0):
        pass
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_the_permissions_of_the_old_file_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "bank"
    path.write_bytes(b"old")
    path.chmod(mode)
    with replacing(path) as part:
        assert part.stat().st_mode & 0o077 == mode & 0o077, "nobody else reads what is half written"
        part.write_bytes(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)


def test_a_file_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "file") as part:
        part.write_bytes(b"x")
        part.chmod(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


COUNT = """
import sys
from pathlib import Path
from fewtag.files import locked
path = Path(sys.argv[1])
for _ in range(25):
    with locked(path):
        path.write_text(str(int(path.read_text()) + 1))
"""


@pytest.mark.slow
def test_four_processes_do_not_write_over_each_other(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    writers = [subprocess.Popen([sys.executable, "-c", COUNT, str(path)]) for _ in range(4)]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    assert path.read_text() == "100"


def test_who_dies_lets_go_of_the_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from fewtag.files import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "bank")]).returncode == 9
    with locked(tmp_path / "bank", seconds=0.1):
        pass


def test_a_lock_that_is_held_too_long_is_told_of(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "bank"),
        pytest.raises(InputError, match="bank is in use by another process"),
        locked(tmp_path / "bank", seconds=0.01),
    ):
        raise AssertionError("two hold it")
    with locked(tmp_path / "bank", seconds=0.01):
        pass


def test_a_place_where_no_lock_can_be_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".bank.lock").mkdir()
    for may, why in ((True, "unable to open"), (False, "its folder may only be read; name another")):
        monkeypatch.setattr("os.access", lambda *_, may=may: may)
        with pytest.raises(InputError, match=rf"cannot write beside .*bank: {why}"), locked(tmp_path / "bank"):
            raise AssertionError("no lock")


def test_digests_tell_lists_of_parts_apart() -> None:
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("ab", "c", "")}) == 4
    assert digest("é") == digest("é".encode())


def test_json_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no recipe .*x\.json"):
        read_json(tmp_path / "x.json", "recipe")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match=r"recipe .*x\.json is no JSON"):
        read_json(tmp_path / "x.json", "recipe")
    with pytest.raises(InputError, match="cannot read the recipe"):
        read_json(tmp_path, "recipe")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "thing"
    write_arrays(path, KIND, HEADER, ARRAYS)
    return path


def test_what_is_read_is_what_was_written(written: Path) -> None:
    header, arrays = read_arrays(written, KIND)
    assert {key: header[key] for key in HEADER} == HEADER
    assert read_arrays(written, KIND, header_alone=True)[0] == header
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)


def test_arrays_need_not_lie_in_a_row(tmp_path: Path) -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    write_arrays(tmp_path / "x", KIND, {}, {"a": turned})
    assert np.array_equal(read_arrays(tmp_path / "x", KIND)[1]["a"], turned)


@pytest.mark.slow
def test_any_single_flipped_bit_is_refused(written: Path, tmp_path: Path) -> None:
    """Also in the names of the sums themselves."""
    sound, path = written.read_bytes(), tmp_path / "flipped"
    names = [8 * place + bit for name in (b"sha256", b"arrays") for place in span(sound, name) for bit in range(8)]
    for place in [*names, *np.random.default_rng(0).integers(8 * len(sound), size=300).tolist()]:
        content = bytearray(sound)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            read_arrays(path, KIND)
        except InputError:
            continue
        pytest.fail(f"bit {place % 8} of byte {place // 8} may flip")


def span(content: bytes, name: bytes) -> range:
    first = content.index(name)
    return range(first, first + len(name))


@settings(max_examples=30, deadline=None)
@given(part=st.floats(0, 0.999))
def test_a_truncated_file_is_refused(written: Path, tmp_path_factory: pytest.TempPathFactory, part: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "x"
    path.write_bytes(written.read_bytes()[: int(part * written.stat().st_size)])
    with pytest.raises(InputError, match="cannot be read: it is no thing, or damaged"):
        read_arrays(path, KIND)


def test_appended_bytes_are_refused(written: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(written.read_bytes() + b"x")
    with pytest.raises(InputError, match="damaged"):
        read_arrays(tmp_path / "x", KIND)


def test_what_is_another_kind_or_missing_is_named(written: Path, tmp_path: Path) -> None:
    save_file({"weight": np.zeros(3)}, tmp_path / "x", metadata={"format": "pt"})
    with pytest.raises(InputError, match="x is no thing, but another safetensors file"):
        read_arrays(tmp_path / "x", KIND)
    save_file({"weight": np.zeros(3)}, tmp_path / "y")
    with pytest.raises(InputError, match="y is no thing, but another safetensors file"):
        read_arrays(tmp_path / "y", KIND)
    with pytest.raises(InputError, match="is no bank, but another safetensors file"):
        read_arrays(written, "fewtag-bank", header_alone=True)
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="there is no thing"):
            read_arrays(path, KIND)


def test_a_file_that_may_not_be_read_is_not_called_damaged(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match="may not be read: Permission denied; check its permissions"):
        read_arrays(written, KIND)


HEADERS = {
    "a list": "[]",
    "a number": "7",
    "no JSON": "{",
    "deep": "[" * 100_000,
    "a long number": '{"a": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
def test_a_crafted_header_is_one_sentence(tmp_path: Path, text: str) -> None:
    save_file({"a": np.zeros(3)}, tmp_path / "x", metadata={KIND: text, "sha256": digest(text)})
    with pytest.raises(InputError, match="it is no thing, or damaged") as refused:
        read_arrays(tmp_path / "x", KIND)
    assert "\n" not in str(refused.value)


def test_sums_cannot_be_left_out_of_a_file_that_has_them(written: Path, tmp_path: Path) -> None:
    text = json.dumps(read_arrays(written, KIND, header_alone=True)[0] | {"labels": []})
    save_file(ARRAYS, tmp_path / "x", metadata={KIND: text})
    with pytest.raises(InputError, match="damaged"):
        read_arrays(tmp_path / "x", KIND, header_alone=True)


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "thing"
    path.write_bytes(written.read_bytes())
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        write(self, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"cannot write .*thing: No space left on device"):
        write_arrays(path, KIND, HEADER, ARRAYS)
    assert path.read_bytes() == written.read_bytes()


def test_the_same_content_makes_the_same_bytes(written: Path, tmp_path: Path) -> None:
    for _ in range(5):
        write_arrays(tmp_path / "again", KIND, HEADER, dict(reversed(ARRAYS.items())))
        assert (tmp_path / "again").read_bytes() == written.read_bytes()
