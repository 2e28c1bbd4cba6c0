"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from fewtag.errors import InputError
from fewtag.files import replacing, write_atomically


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


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "c.txt", b"x")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"x"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make the folder .*file"):
        write_atomically(tmp_path / "file" / "x", b"")


def test_a_file_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "file") as part:
        part.write_bytes(b"x")
        part.chmod(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
