"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from fewtag.errors import InputError
from fewtag.files import replacing, write_atomically


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    write_atomically(path, b"old")
    with pytest.raises(RuntimeError), replacing(path) as part:
        part.write_bytes(b"half of the n")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "c.txt", b"x")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"x"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make the folder .*file"):
        write_atomically(tmp_path / "file" / "x", b"")
