"""Paths and URLs alike: folders of files here, or wherever fsspec finds them."""

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fewtag.errors import InputError
from fewtag.files import write_atomically

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def is_url(location: str) -> bool:
    """Whether fsspec is to be asked; a Windows drive is no protocol.

    >>> is_url("s3://bucket/photos"), is_url("photos"), is_url("C:/photos")
    (True, False, False)
    """
    return "://" in location


def local_path(location: str) -> Path | None:
    """The path behind file://, or the path that it is; None elsewhere."""
    if location.startswith("file://"):
        return Path(location.removeprefix("file://"))
    return None if is_url(location) else Path(location)


def absolute(location: str) -> str:
    """The same place wherever it is named from: paths in full, URLs without a last slash."""
    path = local_path(location)
    return location.rstrip("/") if path is None else str(path.resolve())


def join(folder: str, name: str) -> str:
    """A name in a folder, be it a path or a URL.

    >>> join("s3://bucket/lists/", "a.jpg"), join("/lists", "../a.jpg")
    ('s3://bucket/lists/a.jpg', '/lists/../a.jpg')
    """
    return f"{folder.rstrip('/')}/{name}"


def file_system(url: str) -> tuple["AbstractFileSystem", str]:
    """Who serves this URL or path, and its name there."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f'{url} needs fsspec; install it with: pip install "fewtag[urls]"') from error
    try:
        return url_to_fs(url)
    except ImportError as error:
        # fsspec says which package it is: "Install s3fs to access S3"
        raise InputError(f"{url} cannot be opened here: {error}, here and on every machine of the cluster") from error
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {error}; use a path, s3://, gs:// or https://") from error


def reason(error: Exception) -> str:
    """Why reading failed, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


class Folder:
    """A folder that files are read from and written to whole, here or behind a URL."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") or location
        self.path = local_path(self.location)

    def names(self) -> set[str]:
        """Of the files in it; none where there is no folder."""
        try:
            if self.path is not None:
                if self.path.is_file():
                    raise InputError(f"{self.location} is a file; name a folder")
                return {entry.name for entry in os.scandir(self.path)} if self.path.is_dir() else set()
            system, path = file_system(self.location)
            system.invalidate_cache()
            if system.isfile(path):
                raise InputError(f"{self.location} is a file; name a folder")
            return {str(name).rstrip("/").rsplit("/", 1)[1] for name in system.ls(path, detail=False)}
        except FileNotFoundError:
            return set()
        except (OSError, NotImplementedError) as error:
            raise InputError(f"cannot read the folder {self.location}: {reason(error)}; check it") from error

    def read(self, name: str) -> bytes:
        if self.path is not None:
            return (self.path / name).read_bytes()
        system, path = file_system(join(self.location, name))
        return system.cat_file(path)

    def write(self, name: str, content: bytes) -> None:
        """Whole or not at all: under another name first, since a store may take a file that broke off."""
        if self.path is not None:
            write_atomically(self.path / name, content)
            return
        system, path = file_system(join(self.location, name))
        part = f"{path}.{uuid.uuid4().hex[:8]}.part"
        try:
            system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            system.pipe_file(part, content)
            system.mv(part, path)
        except Exception as error:  # each file system has errors of its own
            raise InputError(f"cannot write {join(self.location, name)}: {reason(error)}; check --out") from error

    def remove(self, name: str) -> None:
        if self.path is not None:
            (self.path / name).unlink(missing_ok=True)
        else:
            system, path = file_system(join(self.location, name))
            system.rm_file(path)

    def remove_if_empty(self) -> None:
        """A store behind a URL has no empty folders."""
        if self.path is not None:
            with suppress(OSError):
                self.path.rmdir()
