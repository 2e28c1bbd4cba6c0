"""Writing tags to XMP sidecars or, by exiftool, into pictures: planned, shown, atomic, and undone to the byte."""

import difflib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from fewtag.errors import InputError
from fewtag.files import digest, locked, sync_to_disk, user_cache_folder
from fewtag.interop.carried import ENDING, Folders, read_embedded, read_sidecar, tags_in
from fewtag.interop.keywords import NO_TAGS
from fewtag.interop.xmp import EMPTY, MOST_BYTES, Packet, Wanted, rewrite
from fewtag.pictures.decode import decode, pixel_digest
from fewtag.pictures.files import Picture, as_text, walk, walk_files
from fewtag.pictures.prefetch import Begin, batches, unwatched

PART = ".fewtag-part"
"""Part of the names of temporary files, before they replace others."""
_THREADS = 8
_AT_ONCE = 50


@dataclass(frozen=True)
class Change:
    """A planned change of one picture's tags: the file, and its packet before and after."""

    image: str
    path: Path
    """The sidecar, or the picture itself."""
    before: bytes | None
    after: bytes | None
    failure: str = ""

    @property
    def changes(self) -> bool:
        return not self.failure and self.before != self.after

    def diff(self) -> str:
        """A unified diff of the packet, for people."""
        old, new = ((content or b"").decode(errors="replace").splitlines() for content in (self.before, self.after))
        was, becomes = (str(self.path) if content is not None else os.devnull for content in (self.before, self.after))
        return "\n".join([*difflib.unified_diff(old, new, was, becomes, lineterm="", n=2), ""])


@dataclass
class Report:
    """Counts of what was done, and failures."""

    pictures: int = 0
    written: int = 0
    """Files that were created or changed."""
    removed: int = 0
    """Sidecars that fewtag had created and that are now empty, and hence deleted."""
    unchanged: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False

    def count(self, change: Change) -> None:
        self.pictures += 1
        if change.failure:
            self.failures[change.image] = change.failure
        elif not change.changes:
            self.unchanged += 1
        elif change.after is None and change.path.suffix.lower() == ENDING:
            self.removed += 1
        else:
            self.written += 1


@dataclass(frozen=True)
class Options:
    embed: bool = False
    adobe_names: bool = False
    """Whether new sidecars are called photo.xmp instead of photo.jpg.xmp."""
    dry_run: bool = False
    tell: Callable[[Change], None] = lambda _: None
    begin: Begin = unwatched


def write_tags(
    root: Path, rows: Iterable[tuple[str, Path, Wanted | InputError]], total: int, options: Options
) -> Report:
    """Writes tags: `rows` are names, pictures and their wanted tags, or why these are unknown; `root` is the folder.

    Tags that fewtag wrote before and that are no longer wanted are removed; anyone else's tags never are.
    """
    folders = Folders()

    def plan(name: str, path: Path, wanted: Wanted | InputError) -> Change:
        if isinstance(wanted, InputError):
            raise wanted
        if not path.is_file():
            raise InputError(f"there is no picture {name}; it was moved or deleted since it was tagged")
        if options.embed:
            return _plan_embedded(folders, name, path, wanted)
        return _plan_sidecar(folders, name, path, wanted, adobe_names=options.adobe_names)

    plans = ((row[0], partial(plan, *row)) for row in rows)
    return _carry_out(root, plans, options, "writing", total)


def undo(root: Path, options: Options) -> Report:
    """Removes all that fewtag wrote to the sidecars of a folder or picture, or with `embed` into the pictures."""
    folders = Folders()
    if options.embed:
        found = walk(root) if root.is_dir() else [Picture(root, name=root.name)]
        pictures = [(each.name, each.path) for each in found if not each.problem]
        plans = [(name, partial(_plan_undo_embedded, folders, name, path)) for name, path in pictures]
    else:
        plans = [(str(path), partial(_plan_undo, folders, path)) for path in _sidecars(root)]
    return _carry_out(root, plans, options, "taking back", len(plans), back=True)


Plan = Callable[[], Change]


def _carry_out(
    root: Path, plans: Iterable[tuple[str, Plan]], options: Options, task: str, total: int, *, back: bool = False
) -> Report:
    if options.embed and not options.dry_run and shutil.which("exiftool") is None:
        raise InputError(
            "--embed writes into the pictures by exiftool, which is not installed; install it "
            "(apt install libimage-exiftool-perl, brew install exiftool), or write sidecars without --embed"
        )
    report, advance = Report(dry_run=options.dry_run), options.begin(task, total)
    # one process at a time writes below a folder; the lock file is in the user's cache, not among the pictures
    lock = user_cache_folder() / "writing" / digest(str(root.resolve()))[:16]
    with locked(lock, seconds=0.5, what=root), ThreadPoolExecutor(_THREADS) as pool:
        for path in _files(root) if not options.dry_run else ():
            if path.name.startswith(".") and PART in path.name:  # left half-written by a kill
                with suppress(OSError):
                    path.unlink()

        def put(some: Sequence[Change]) -> list[Change]:
            return _put_embedded(some, back=back) if options.embed else list(pool.map(_put, some))

        changed, seen = set[Path](), set[str]()
        for group in batches(iter(plans), _AT_ONCE):
            planned = [change for change in pool.map(_planned, group) if _is_first(change, seen)]
            done = planned if options.dry_run else put(planned)
            for change in done:
                report.count(change)
                options.tell(change)
                if change.changes:
                    changed.add(change.path.parent)
            advance(len(group))
        if not options.dry_run:
            for changed_folder in changed:  # the files' content is on disk already; this syncs their names
                sync_to_disk(changed_folder)
    return report


def _planned(plan: tuple[str, Plan]) -> Change:
    name, make = plan
    try:
        return make()
    except InputError as error:
        return Change(name, Path(name), None, None, str(error))


def _is_first(change: Change, seen: set[str]) -> bool:
    """Whether this is the first change of its file: a link to a folder gives a picture several names."""
    if change.failure:
        return True
    known = len(seen)
    seen.add(os.path.realpath(change.path))
    return len(seen) > known


def _plan_sidecar(folders: Folders, name: str, picture: Path, wanted: Wanted, *, adobe_names: bool) -> Change:
    own, shared = folders.sidecars(picture)
    if len(own) > 1:
        raise InputError(
            f"{name} has two sidecars, {own[0].name} and {own[1].name}, and programs differ in which they read; "
            "keep one of them"
        )
    alone = adobe_names and not folders.has_twin(picture)
    path = own[0] if own else picture.with_suffix(ENDING) if alone else picture.with_name(f"{picture.name}{ENDING}")
    before = read_sidecar(path) if own else None
    if before is None and not wanted.labels:
        return Change(name, path, None, None)
    elsewhere = read_embedded(picture).tags(name).joined(tags_in(shared))
    return Change(name, path, before, rewrite(before, f"the sidecar {path}", wanted, elsewhere))


def _plan_embedded(folders: Folders, name: str, picture: Path, wanted: Wanted) -> Change:
    found = read_embedded(picture)
    elsewhere = tags_in(chain(*folders.sidecars(picture))).joined(found._replace(packet=None).tags(name))
    # exiftool makes packets in a PNG read-only
    empty = EMPTY.replace(b'end="w"', b'end="r"') if picture.suffix.lower() == ".png" else EMPTY
    after = rewrite(found.packet, f"the XMP in {name}", wanted, elsewhere, empty=empty)
    return Change(name, picture, found.packet, after)


def _plan_undo(folders: Folders, path: Path) -> Change:
    packet, elsewhere = Packet(read_sidecar(path), f"the sidecar {path}"), NO_TAGS
    if packet.ledger is not None and packet.ledger.seeded:
        for picture in folders.pictures(path):
            others = [each for each in chain(*folders.sidecars(picture)) if each != path]
            with suppress(InputError):  # in that case no tag is known to be elsewhere, and copies of tags are kept
                elsewhere = elsewhere.joined(read_embedded(picture).tags(picture.name)).joined(tags_in(others))
    return Change(str(path), path, packet.data, packet.without_ours(elsewhere))


def _plan_undo_embedded(folders: Folders, name: str, picture: Path) -> Change:
    found = read_embedded(picture)
    if found.packet is None:
        return Change(name, picture, None, None)
    packet, elsewhere = Packet(found.packet, f"the XMP in {name}"), found._replace(packet=None).tags(name)
    if packet.ledger is not None and packet.ledger.seeded:
        with suppress(InputError):
            elsewhere = elsewhere.joined(tags_in(chain(*folders.sidecars(picture))))
    return Change(name, picture, found.packet, packet.without_ours(elsewhere))


def _sidecars(root: Path) -> list[Path]:
    """The sidecars below a folder that contain our ledger; for a picture, its own."""
    if not root.is_dir():
        return [path for path in chain(*Folders().sidecars(root)) if _is_ours(path)]
    first: dict[str, Path] = {}  # a link to a folder gives a sidecar several names
    for path in sorted(path for path in _files(root) if path.name.casefold().endswith(ENDING) and _is_ours(path)):
        first.setdefault(os.path.realpath(path), path)
    return list(first.values())


def _files(root: Path) -> Iterator[Path]:
    """The files below a folder, or beside a picture."""
    if root.is_dir():
        found = (entry for _, entry in walk_files(root) if not isinstance(entry, OSError))
        return (Path(entry.path) for entry in found if entry.is_file())
    try:
        return (path for path in list(root.parent.iterdir()) if path.is_file())
    except OSError:
        return iter(())


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_size <= MOST_BYTES and b"urn:fewtag:xmp/" in path.read_bytes()
    except OSError:
        return False


def _put(change: Change) -> Change:
    """Writes a sidecar atomically: after a kill or a power cut there is the old one or the new one."""
    if not change.changes:
        return change
    path = change.path.resolve() if change.path.is_symlink() else change.path
    # a short name: that of the sidecar may be as long as names can be
    part = path.with_name(f".{os.getpid()}-{digest(os.fsencode(path.name))[:16]}{PART}")
    try:
        now = path.read_bytes() if path.exists() else None
        if now != change.before:
            why = f"{path} was changed by another program meanwhile; run the same command again"
            return replace(change, failure=why)
        if now is not None and not os.access(path, os.W_OK):
            raise PermissionError(13, "it may only be read")
        if change.after is None:
            path.unlink()
            return change
        with part.open("wb") as file:
            file.write(change.after)
            file.flush()
            os.fsync(file.fileno())
        if now is not None:
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        why = f"cannot write {path}: {error.strerror}; check the folder's permissions and its room"
        return replace(change, failure=why)
    return change


def _put_embedded(changes: Sequence[Change], *, back: bool) -> list[Change]:
    """Writes into pictures, with one run of exiftool for all, since starting it takes longer than a picture.

    It writes copies, which replace the pictures once they are complete and, unless this is an undo (`back`), once it is
    proved that the change can be undone to the byte.
    """
    pictures = [change for change in changes if change.changes]
    if not pictures:
        return list(changes)
    with tempfile.TemporaryDirectory() as folder:
        lines, parts, failures = list[str](), list[tuple[Path, Path | None]](), dict[str, str]()
        for number, each in enumerate(pictures):
            there = each.path.resolve()
            part = there.with_name(f".{os.getpid()}-{number}{PART}{there.suffix}")
            again = Path(folder, f"back{number}{there.suffix}")
            parts.append((part, None if back else again))
            if not _unspeakable(there):
                lines += _arguments(there, part, each.after, folder)
                lines += [] if back else _arguments(part, again, each.before, folder)
        arguments = Path(folder, "arguments.txt")
        arguments.write_text("\n".join(lines), encoding="utf-8")
        done = subprocess.run(["exiftool", "-@", str(arguments)], capture_output=True, check=False)
        said = done.stderr.decode("utf-8", "replace")
        for each, (part, undone) in zip(pictures, parts, strict=True):
            failures[each.image] = _take_place(each, part, undone, said)
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return [replace(change, failure=failures.get(change.image, change.failure)) for change in changes]


def _unspeakable(path: Path) -> str:
    """Why a path cannot be a line of a text file; empty if it can."""
    text = str(path)
    return "has a line break" if "\n" in text else "has what is no text" if as_text(text) != text else ""


def _arguments(source: Path, target: Path, packet: bytes | None, folder: str) -> list[str]:
    """The arguments for exiftool, one per line."""
    block = Path(folder, f"{target.name}.xmp")
    if packet is not None:
        block.write_bytes(packet)
    erase_or_set = "-XMP:all=" if packet is None else f"-XMP<={block}"
    return ["-charset", "filename=utf8", "-q", "-q", "-o", str(target), erase_or_set, str(source), "-execute"]


def _take_place(each: Change, part: Path, undone: Path | None, said: str) -> str:
    picture, instead = each.path.resolve(), "write a sidecar without --embed"
    if why := _unspeakable(picture):
        return f"{each.image!r} {why} in its name; rename it"
    try:
        if not part.exists():
            # what it says of a file ends in " - " and its path; all else is of the run
            paths = (str(picture), part.name)
            mine = (line for line in said.splitlines() if " - " not in line or any(path in line for path in paths))
            why = next(mine, "")
            reason = " ".join(why.split())[:200] or "this version of it writes no such files"
            return f"exiftool cannot write into {each.image} ({reason}); {instead}"
        original = picture.read_bytes()
        if undone is not None and (not undone.exists() or undone.read_bytes() != original):
            most = "as in most HEIC files"
            return f"what exiftool writes into {each.image} could not be taken back to the byte, {most}; {instead}"
        if undone is not None and read_embedded(part).packet != each.after:
            return f"what exiftool writes into {each.image} could not be found again to take it back; {instead}"
        if pixel_digest(decode(part.read_bytes(), each.image)) != pixel_digest(decode(original, each.image)):
            return f"exiftool would change the pixels of {each.image}; {instead}"
        status = picture.stat()
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        part.chmod(stat.S_IMODE(status.st_mode))
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        part.replace(picture)
    except OSError as error:
        return f"cannot write {picture}: {error.strerror}; check the folder's permissions and its room"
    except InputError as error:
        return str(error)
    return ""
