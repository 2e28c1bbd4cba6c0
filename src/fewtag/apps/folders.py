"""Pictures of a folder: found, and decoded ahead of the network."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from fewtag.errors import InputError
from fewtag.pictures.files import IMAGE_ENDINGS, Picture, is_image_name
from fewtag.pictures.prefetch import batches, prefetch

Result = TypeVar("Result")


def find_pictures(source: Path) -> list[Picture]:
    """A folder's pictures, sub-folders too, sorted, known by their path from the folder; or the one file."""
    if source.is_dir():
        names = sorted(_walk(source, "", frozenset()))
        if not names:
            raise InputError(
                f"the folder {source} holds no picture ({', '.join(sorted(IMAGE_ENDINGS))}); check the path"
            )
        return [Picture(source / name, name=name) for name in names]
    if not source.is_file():
        raise InputError(f"there is no folder or picture {source}; check the path")
    return [Picture(source, name=source.name)]


def _walk(folder: Path, prefix: str, above: frozenset[Path]) -> Iterator[str]:
    """Follows links to folders, but not round in circles."""
    real = folder.resolve()
    if real in above:
        return
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}; check its permissions") from error
    for entry in entries:
        if entry.is_dir():
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", above | {real})
        # a link to nowhere is a picture that fails; a pipe would block
        elif is_image_name(entry.name) and (entry.is_file() or entry.is_symlink()):
            yield f"{prefix}{entry.name}"


def decode_ahead(
    pictures: Sequence[Picture], read: Callable[[Picture], Result], batch: int
) -> Iterator[Sequence[tuple[Picture, Result | InputError]]]:
    """Batches of pictures with what `read` made of each, or why it could not; threads are two batches ahead."""

    def attempt(picture: Picture) -> tuple[Picture, Result | InputError]:
        try:
            return picture, read(picture)
        except InputError as error:
            return picture, error

    return batches(prefetch(attempt, pictures, most=2 * batch), batch)
