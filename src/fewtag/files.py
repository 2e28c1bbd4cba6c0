"""File utilities: atomic writes, locks, digests, sizes, the user's cache folder, and checksummed files of arrays."""

import hashlib
import json
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag.errors import InputError

if TYPE_CHECKING:
    import numpy as np

StrPath = str | os.PathLike[str]
LOCK_SECONDS = 60.0
LIMIT_VARIABLE = "FEWTAG_CACHE_LIMIT"
LIMIT = "10GB"
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SUM = "sha256"


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Atomic replacement: yields a path to write to, which replaces `path` once all of it is on disk.

    File and folder are synced, so that after a kill or a power cut there is either the old file or the new one; without
    `sync` a power cut may damage it, which suits files whose damage would be noticed and cost little. A symbolic link
    is kept, and its target replaced; the permissions stay those of the old file.
    """
    target = _behind(path)
    make_folder(target.parent)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.touch()
        mode = (target if target.is_file() else part).stat().st_mode
        part.chmod(mode | stat.S_IWUSR)  # before it has any content that others could read
        yield part
        if sync:
            sync_to_disk(part)
        part.chmod(mode)  # some libraries write files that only their owner can read
        part.replace(target)
        if sync:
            sync_to_disk(target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another folder or free some room") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _behind(path: Path) -> Path:
    """The target of a symbolic link, whether it exists or not; any other path unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def sync_to_disk(path: Path) -> None:
    """Syncs a file or folder to disk; folders are skipped where they cannot be opened, as on Windows."""
    try:
        descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems can sync only files
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    with replacing(path, sync=sync) as part:
        part.write_bytes(content)


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents; raises InputError where that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # a service may have no home folder
        homeless = folder.is_relative_to(user_cache_folder())
        way_out = "let HOME or XDG_CACHE_HOME be a folder of yours" if homeless else "name another"
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; {way_out}") from error


def check_writable(path: Path) -> None:
    """Refuses a file that could not be written, before the work rather than after it; leaves nothing behind."""
    from tempfile import TemporaryFile  # imported here: few commands need it

    try:
        with TemporaryFile(dir=next(each for each in Path(os.path.realpath(path)).parents if each.exists())):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another folder") from error


@contextmanager
def locked(path: Path, seconds: float = LOCK_SECONDS, what: Path | None = None) -> Iterator[None]:
    """A lock between processes on the file `path`, for which other processes wait. `what` is its name in messages.

    The lock is held by SQLite, in a hidden file beside `path` that is left in place: SQLite can lock files on every
    system, and a process that dies releases its lock. A symbolic link and its target share one lock.
    """
    target = _behind(path)
    make_folder(target.parent)
    hidden = target.with_name(f".{target.name}.lock")
    try:
        # the lock may be released by another thread than the one that took it
        opened = sqlite3.connect(hidden, timeout=seconds, isolation_level=None, check_same_thread=False)
        with closing(opened) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise InputError(f"{what or path} is in use by another process; try again when that is done") from error
        why = error if os.access(target.parent, os.W_OK) else "its folder may only be read"
        raise InputError(f"cannot write beside {path}: {why}; name another folder") from error


def digest(*parts: bytes | str) -> str:
    """SHA-256 of these parts, each with its length, so that different lists of parts never have the same content."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        total.update(f"{len(content)}:".encode())
        total.update(content)
    return total.hexdigest()


def user_cache_folder() -> Path:
    """fewtag's folder within the platform's folder for a user's caches."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home gets a folder that cannot be made, about which the cache warns
        home = Path(os.devnull)
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = home / "Library" / "Caches"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return folder / "fewtag"


def cache_limit() -> int:
    """The maximum size of a cache in bytes."""
    return parse_size(os.environ.get(LIMIT_VARIABLE) or LIMIT, LIMIT_VARIABLE)


def parse_size(text: str, source: str) -> int:
    """Bytes from a number and a unit; `source` is for messages.

    >>> parse_size("5GB", "--prune"), parse_size("0.5 kb", "--prune"), parse_size("700", "--prune")
    (5000000000, 500, 700)
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMGT]?B)?", text.strip().upper())
    if found is None:
        raise InputError(f"{source} {text!r} is no size; give a number with a unit, such as 500MB or 10GB")
    return round(float(found[1]) * UNITS[found[2] or "B"])


def format_size(size: int) -> str:
    """A number of bytes for people to read.

    >>> format_size(12), format_size(3_210_000)
    ('12 B', '3.2 MB')
    """
    unit = next((unit for unit in reversed(UNITS) if size >= UNITS[unit]), "B")
    return f"{size} B" if unit == "B" else f"{size / UNITS[unit]:.1f} {unit}"


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON file; `what` names the file in the error if it is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))  # some programs on Windows begin it with a mark
    except FileNotFoundError as error:
        raise InputError(f"there is no {what} {path}; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read the {what} {path}: {error.strerror}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the {what} {path} is no JSON ({error}); mend it or make it anew") from error


def write_arrays(path: Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, "np.ndarray"]) -> None:
    """Writes a safetensors file of this kind: arrays and a JSON header, with checksums that reveal damage to either."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": _sum_of(contiguous)}, ensure_ascii=True)
    try:
        content = save(contiguous, metadata={kind: text, _SUM: digest(text)})
    except SafetensorError as error:  # of more than 100 MB
        raise InputError(f"{path} would have too long a header ({error}); put fewer examples into one file") from error
    # with safetensors' own header sorted: it writes the same facts in another order each time
    size = int.from_bytes(content[:8], "little")
    facts = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    facts += b" " * (-len(facts) % 8)
    write_atomically(path, len(facts).to_bytes(8, "little") + facts + content[8 + size :])


def read_arrays(path: Path, kind: str, *, header_alone: bool = False) -> tuple[dict[str, Any], dict[str, "np.ndarray"]]:
    """Header and arrays of a file that `write_arrays` wrote, or only its header; refuses a damaged file."""
    from safetensors import SafetensorError, safe_open

    name = kind.removeprefix("fewtag-")
    try:
        if not path.is_file():
            raise InputError(f"there is no {name} {path}; check the path")
        try:
            path.open("rb").close()
        except OSError as error:
            raise InputError(f"{name} {path} may not be read: {error.strerror}; check its permissions") from error
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if kind not in metadata:
                raise InputError(f"{path} is no {name}, but another safetensors file; name one that fewtag wrote")
            text = metadata[kind]
            header = json.loads(text)
            if not isinstance(header, dict):
                raise damaged(path, kind)
            # files from before there were checksums have neither of the two
            if ("arrays" in header or _SUM in metadata) and metadata.get(_SUM) != digest(text):
                raise damaged(path, kind)
            keys = () if header_alone else file.keys()
            arrays = {key: file.get_tensor(key) for key in keys}
            if not header_alone and "arrays" in header and header["arrays"] != _sum_of(arrays):
                raise damaged(path, kind)
            return header, arrays
    except InputError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(path, kind) from error


def _sum_of(arrays: Mapping[str, "np.ndarray"]) -> str:
    facts = [(name, f"{array.dtype} {array.shape}", array.data) for name, array in sorted(arrays.items())]
    return digest(*(part for name, shape, data in facts for part in (name, shape, bytes(data))))


def damaged(path: Path, kind: str) -> InputError:
    name = kind.removeprefix("fewtag-")
    return InputError(f"{name} {path} cannot be read: it is no {name}, or damaged; name one that fewtag wrote")
