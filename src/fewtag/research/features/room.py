"""The cache as a whole: what lies in it, how much room it may take, and what goes first when it takes more."""

import fcntl
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fewtag.errors import InputError

LIMIT_VARIABLE = "FEWTAG_CACHE_LIMIT"
LIMIT = "10GB"
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
DESCRIPTION = "space.json"


class Piece(NamedTuple):
    """The least that can go: a segment of a space, or a whole folder of an older fewtag."""

    used: float
    size: int
    path: Path


def cache_limit() -> int:
    """The most bytes that a cache may take."""
    return parse_size(os.environ.get(LIMIT_VARIABLE) or LIMIT, LIMIT_VARIABLE)


def parse_size(text: str, source: str) -> int:
    """Bytes from a number and a unit; `source` is for messages.

    >>> parse_size("5GB", "--prune"), parse_size("0.5 kb", "--prune"), parse_size("700", "--prune")
    (5000000000, 500, 700)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip().upper())
    if found is None:
        raise InputError(f"{source} {text!r} is no size; give a number with a unit, such as 500MB or 10GB")
    return int(float(found[1]) * UNITS[found[2] or "B"])


def format_size(size: int) -> str:
    """For people.

    >>> format_size(12), format_size(3_210_000)
    ('12 B', '3.2 MB')
    """
    unit = next((unit for unit in reversed(UNITS) if size >= UNITS[unit]), "B")
    return f"{size} B" if unit == "B" else f"{size / UNITS[unit]:.1f} {unit}"


def space_folders(root: Path) -> list[Path]:
    """The spaces of a cache; those that a killed run meant for itself alone lie one folder deeper."""
    return sorted(path.parent for pattern in ("*", "tmp*/*") for path in root.glob(f"{pattern}/{DESCRIPTION}"))


def old_folders(root: Path) -> list[Path]:
    """Caches of the first version, named by files' places and times; nothing reads them any more."""
    return sorted(path.parent for path in root.glob("*/rows.bin") if (path.parent / "done.bin").exists())


def pieces(root: Path) -> list[Piece]:
    """All that takes room, least recently used first; what nothing reads any more before that."""
    found = [Piece(0.0, sum(_sizes(folder)), folder) for folder in old_folders(root)]
    for folder in space_folders(root):
        for path in folder.glob("*.rows"):
            try:
                stat = path.stat()
                index = path.with_suffix(".index")
                found.append(Piece(stat.st_mtime, stat.st_size + (index.stat().st_size if index.exists() else 0), path))
            except FileNotFoundError:  # somebody else made room
                continue
    return sorted(found)


def make_room(root: Path, limit: int, *, unused_since: float = math.inf) -> int:
    """Removes what was used least recently until the rest fits, or all that is left was in use since; what went.

    A space that somebody is writing to is left to them: they look at the limit when they are done.
    """
    found = pieces(root)
    total = before = sum(piece.size for piece in found)
    for piece in found:
        if total <= limit or piece.used > unused_since:
            break
        if _remove(piece.path):
            total -= piece.size
    return before - total


def taken(root: Path) -> int:
    """The bytes that a cache takes."""
    return sum(piece.size for piece in pieces(root))


def clear(root: Path) -> int:
    """Removes all that fewtag put there, and nothing else; the bytes that went."""
    freed = taken(root)
    for folder in old_folders(root):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in space_folders(root):
        with locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
        if folder.parent != root and not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    return freed


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Alone in a space, made where there is none; without waiting, whether nobody else is."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(handle, folder / "lock"):
                yield True
                return
        except BlockingIOError:
            yield False
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the file is still there: the cache may be cleared while one waits for its lock."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> bool:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return True
    with locked(path.parent, wait=False) as alone:
        if alone:
            path.unlink(missing_ok=True)
            # rows are what makes a segment: an index that a kill left alone goes with the next
            for index in path.parent.glob("*.index"):
                if not index.with_suffix(".rows").exists():
                    index.unlink(missing_ok=True)
        return alone


def _sizes(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.iterdir() if path.is_file())
