"""A shard's pictures as pixels, read and decoded ahead of the network; memory is that of a few batches."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from fewtag.apps.bulk.locations import file_system, is_url, local_path, reason
from fewtag.apps.bulk.rows import Row, read_rows
from fewtag.apps.bulk.sources import Shard
from fewtag.errors import InputError
from fewtag.pictures.decode import squash_bytes
from fewtag.pictures.files import Picture
from fewtag.pictures.prefetch import batches, prefetch

# a store far away answers late, not slowly
_DOWNLOADS_AT_ONCE = 16
_TRIES = 3
Read = tuple[str, UInt8[np.ndarray, "3 size size"] | InputError]
"""A picture's name with its pixels, or why it could not be read."""


def read_shard(shard: Shard, size: int, batch: int) -> Iterator[Sequence[Read]]:
    """Batches in the order of the shard; threads are two batches ahead."""

    def decode(row: Row | tuple[str, InputError]) -> Read:
        if not isinstance(row, Row):
            return row
        try:
            row.name.encode()
            return row.name, squash_bytes(_bytes(row), row.name, size)
        except UnicodeEncodeError:
            return row.name, InputError("the file's name is no UTF-8 text; rename it")
        except InputError as error:
            return row.name, error

    rows = _rows_of(shard, batch)
    if any(is_url(location) for _, location in shard.pictures[:1]) or shard.table:
        fetched = prefetch(_download, rows, most=2 * batch, threads=_DOWNLOADS_AT_ONCE)
        return batches(prefetch(decode, fetched, most=2 * batch), batch)
    return batches(prefetch(decode, rows, most=2 * batch), batch)


def _rows_of(shard: Shard, batch: int) -> Iterator[Row]:
    for name, location in shard.pictures:
        yield Row(name, location)
    if shard.table:
        found = read_rows(shard.table, shard.first, shard.size, batch)
        # in a thread of its own, a batch ahead; after the last one there are empty ones
        for rows in prefetch(lambda _: next(found, []), itertools.count(), most=1, threads=1):
            if not rows:
                return
            yield from rows


def _download(row: Row) -> Row | tuple[str, InputError]:
    """A picture that is far away, with its bytes."""
    if row.location is None or local_path(row.location) is not None:
        return row
    try:
        return Row(row.name, data=_fetch(row.location, row.name))
    except InputError as error:
        return row.name, error


def _fetch(url: str, name: str) -> bytes:
    system, path = file_system(url)
    for tried in range(1, _TRIES + 1):
        try:
            return system.cat_file(path)
        except Exception as error:  # each file system has errors of its own
            if tried == _TRIES or isinstance(error, FileNotFoundError | PermissionError):
                raise InputError(f"cannot read image {name}: {reason(error)}; check the path") from error
    raise AssertionError("the last try answers or fails")


def _bytes(row: Row) -> bytes:
    if row.data is not None:
        return row.data
    if row.location is None:
        raise InputError(f"image {row.name} is an empty cell of its table; fill it or leave the row out")
    path = local_path(row.location)
    assert path is not None, "downloaded before"
    return Picture(Path(path), name=row.name).read()
