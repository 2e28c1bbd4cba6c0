"""A bounded stretch of a cache: rows in one file, and in another whose rows they are and what they sum up to."""

import errno
import mmap
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

DIGEST_BYTES = 16
RECORD = np.dtype([("digest", f"V{DIGEST_BYTES}"), ("check", "<u4")])
"""What the index says of a row: the digest of its picture, and the row's CRC-32."""
DROPPED = bytes(DIGEST_BYTES)
"""Stands in the index instead of a digest whose row was damaged."""
USED_EVERY = 60.0
"""Seconds after which a segment in use is marked as used again."""


class Segment:
    """Rows of one size, mapped into memory. Only ever grows; once unlinked, it serves whoever has it open."""

    def __init__(self, path: Path, row_bytes: int) -> None:
        self.path, self.row_bytes = path, row_bytes
        self.index_path = path.with_suffix(".index")
        self._file = os.open(path, os.O_RDONLY)
        self._map: mmap.mmap | None = None
        self._checks: list[int] = []
        self._sound: set[int] = set()
        self._used = 0.0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        """How many rows the index told of when it was read last."""
        return len(self._checks)

    def news(self) -> list[tuple[int, bytes]] | None:
        """Slots and digests that came since the last call; None if the index lost some, so that none can be trusted.

        Half a record at the end, which a kill leaves, is not one.
        """
        known = len(self._checks)
        try:
            with self.index_path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                count = file.tell() // RECORD.itemsize
                file.seek(known * RECORD.itemsize)
                content = file.read((count - known) * RECORD.itemsize) if count > known else b""
        except FileNotFoundError:  # a kill came before the first record, or the segment is being removed
            count, content = 0, b""
        if count < known:
            self._sound.clear()  # whoever appends next writes over the rows that were lost
            return None
        records = np.frombuffer(content, RECORD)
        self._checks += records["check"].tolist()
        digests = (digest.tobytes() for digest in records["digest"])
        return [(known + number, digest) for number, digest in enumerate(digests) if digest != DROPPED]

    def append(self, digests: Sequence[bytes], rows: UInt8[np.ndarray, "rows bytes"]) -> None:
        """Rows first, records once those are safe. The caller holds the lock and has read all news."""
        records = np.empty(len(digests), RECORD)
        records["digest"] = np.frombuffer(b"".join(digests), RECORD["digest"])
        records["check"] = [zlib.crc32(row) for row in rows]
        # what a kill left beyond the last record is written over
        _write(self.path, rows, len(self) * self.row_bytes, sync=True)
        _write(self.index_path, records, len(self) * RECORD.itemsize, sync=False)

    def read(self, slot: int, into: UInt8[np.ndarray, "bytes"]) -> bool:
        """Copies a row out; whether it is what was written, which is checked the first time."""
        start, end = slot * self.row_bytes, (slot + 1) * self.row_bytes
        if os.fstat(self._file).st_size < end:  # to read a map beyond its file's end would kill the process
            return False
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self._file, 0, prot=mmap.PROT_READ)
        into[:] = np.frombuffer(self._map, np.uint8, self.row_bytes, start)
        if slot not in self._sound:
            if zlib.crc32(into.data) != self._checks[slot]:
                return False
            self._sound.add(slot)
        return True

    def release(self, *, used: bool = True) -> None:
        """Gives back the memory of what was read, and marks the segment as used, if it was."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        if used and time.monotonic() - self._used > USED_EVERY:
            self._used = time.monotonic()
            try:
                os.utime(self.path)
            except OSError:  # unlinked by now, or a cache that may only be read
                return

    def drop(self, slot: int, digest: bytes) -> None:
        """Strikes a damaged row out of the index, if that still tells of it."""
        try:
            with self.index_path.open("r+b") as file:
                file.seek(slot * RECORD.itemsize)
                if file.read(DIGEST_BYTES) == digest:
                    file.seek(slot * RECORD.itemsize)
                    file.write(DROPPED)
        except OSError:  # gone already, or a cache that may only be read: then whoever reads it finds out again
            return


def _write(path: Path, values: np.ndarray, offset: int, *, sync: bool) -> None:
    """All of it, or an OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    content = values.view(np.uint8).reshape(-1).data
    try:
        while content:
            written = os.pwrite(handle, content, offset)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            content, offset = content[written:], offset + written
        if sync:
            os.fdatasync(handle)
    finally:
        os.close(handle)
