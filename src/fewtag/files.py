"""Writing files whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtag.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` once all is written: a kill leaves the old file."""
    make_folder(path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # some libraries write files that only their owner can read
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another folder or free some room") from error
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    with replacing(path) as part:
        part.write_bytes(content)


def make_folder(folder: Path) -> None:
    """Refuses a place where no folder can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; name another") from error
