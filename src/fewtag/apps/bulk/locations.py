"""Files wherever fsspec finds them: paths here, s3, gs, http."""

from typing import TYPE_CHECKING

from fewtag.errors import InputError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def is_url(location: str) -> bool:
    """Whether fsspec is to be asked; a Windows drive is no protocol.

    >>> is_url("s3://bucket/photos"), is_url("photos"), is_url("C:/photos")
    (True, False, False)
    """
    return "://" in location


def local_path(location: str) -> str | None:
    """The path behind file://, or the path that it is; None elsewhere."""
    return location.removeprefix("file://") if location.startswith("file://") or not is_url(location) else None


def file_system(url: str) -> tuple["AbstractFileSystem", str]:
    """Who serves this URL or path, and its name there."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f'{url} needs fsspec; install it with: pip install "fewtag[ray]"') from error
    try:
        return url_to_fs(url)
    except ImportError as error:
        # fsspec says which package it is: "Install s3fs to access S3"
        raise InputError(f"{url} cannot be opened here: {error}, here and on every machine of the cluster") from error
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {error}; use a path, s3://, gs:// or https://") from error


def join(folder: str, name: str) -> str:
    """A name in a folder, be it a path or a URL.

    >>> join("s3://bucket/lists/", "a.jpg"), join("/lists", "../a.jpg")
    ('s3://bucket/lists/a.jpg', '/lists/../a.jpg')
    """
    return f"{folder.rstrip('/')}/{name}"


def reason(error: Exception) -> str:
    """Why reading failed, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
