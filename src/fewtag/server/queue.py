"""The queue before the network: several requests' pictures share batches. Bounded: what does not fit is refused."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from fewtag.cache import content_digest
from fewtag.errors import InputError
from fewtag.pictures.decode import Decoded
from fewtag.server.uploads import Decoders
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH, Read, Scorer, Tagged, cached_places, tag_reads

MOST = 512
"""The most pictures that may wait; one request has at most 64."""
LINGER = 0.01
"""Seconds that a batch waits for pictures that are still being decoded."""
_ENCODERS = 2
"""Batches in the network at once: a core that is done with one goes on with the next."""


class Upload(NamedTuple):
    """An encoded picture, the client's name for it, and its digest."""

    name: str
    data: bytes
    digest: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> "Upload":
        return cls(name, data, content_digest(data))


class BusyError(Exception):
    """The queue is full; there should be room after `seconds`."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(f"the server has more to do than it can take; try again in {seconds} seconds")


Waiting = tuple[Future[Tagged], Read]


class TagQueue:
    """Turns uploads into rows: looked up in the cache, decoded by workers, encoded in batches, and scored."""

    def __init__(
        self,
        model: Model,
        scorer: Callable[[], Scorer],
        decoders: Decoders,
        *,
        cache: Path | None = None,
        most: int = MOST,
        on_batch: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.model, self.most = model, most
        self._scorer, self._decoders, self._on_batch = scorer, decoders, on_batch
        self._opened = ExitStack()
        self._space = self._opened.enter_context(cached_places(model, cache))
        # not SimpleQueue: up to Python 3.12 its get(timeout) may wait forever if another thread takes the item
        self._ready: queue.Queue[Waiting | None] = queue.Queue()
        self._lock = threading.Lock()
        self.waiting = self._decoding = 0
        self._rate = 10.0  # pictures a second, until it is measured
        self._threads = [threading.Thread(target=self._work, daemon=True, name="fewtag-tag") for _ in range(_ENCODERS)]
        for thread in self._threads:
            thread.start()

    def check_room(self) -> None:
        """Raises BusyError if not even one picture would be accepted, before its bytes are read."""
        if self.waiting >= self.most:
            raise self._busy()

    def _busy(self) -> BusyError:
        return BusyError(max(1, min(60, round(self.waiting / self._rate))))

    def submit(self, uploads: Sequence[Upload]) -> list[Future[Tagged]]:
        """Futures of a row for each upload; all are accepted, or none if the queue is full. It reads the cache, so it
        must not run in an event loop."""
        keys = [upload.digest for upload in uploads]
        known = self._space.get_many(keys) if self._space is not None else [None] * len(keys)
        with self._lock:
            # an empty queue accepts any request, since one larger than the queue could never be accepted otherwise
            if self.waiting and self.waiting + len(uploads) > self.most:
                raise self._busy()
            self.waiting += len(uploads)
            self._decoding += sum(places is None for places in known)
        reads = [Read(each.name, each.digest, places=places) for each, places in zip(uploads, known, strict=True)]
        return [self._begin(read, upload.data) for read, upload in zip(reads, uploads, strict=True)]

    def _begin(self, read: Read, data: bytes) -> Future[Tagged]:
        row: Future[Tagged] = Future()
        row.set_running_or_notify_cancel()  # so that it cannot be cancelled, which would fail the others of its batch
        row.add_done_callback(self._leave)
        if read.places is not None:
            self._ready.put((row, read))
            return row

        def decoded(found: Future[Decoded]) -> None:
            with self._lock:
                self._decoding -= 1
            try:
                self._ready.put((row, read._replace(pixels=found.result().pixels)))
            except InputError as error:
                row.set_result(Tagged(read.name, failure=str(error)))
            except BaseException as error:  # the server is closing
                row.set_exception(error)

        self._decoders.submit(data, read.name, self.model.size).add_done_callback(decoded)
        return row

    def _leave(self, _row: Future[Tagged]) -> None:
        with self._lock:
            self.waiting -= 1

    def _work(self) -> None:
        while (first := self._ready.get()) is not None:
            batch, until = [first], time.monotonic() + LINGER
            while len(batch) < BATCH:
                try:
                    more = self._ready.get(timeout=max(0.0, until - time.monotonic()) if self._decoding else 0)
                except queue.Empty:
                    break
                if more is None:
                    self._ready.put(None)  # for the next round, which ends this thread
                    break
                batch.append(more)
            began = time.monotonic()
            try:
                self._answer(batch)
            except Exception as error:  # none of them may wait forever
                for row, _ in batch:
                    if not row.done():
                        row.set_exception(error)
            speed = _ENCODERS * len(batch) / max(time.monotonic() - began, 1e-3)
            self._rate += 0.2 * (speed - self._rate)

    def _answer(self, batch: Sequence[Waiting]) -> None:
        tagged = tag_reads(self.model, self._scorer(), [read for _, read in batch], self._space)
        for (row, _), each in zip(batch, tagged, strict=True):
            row.set_result(each)
        self._on_batch(len(batch))

    def close(self) -> None:
        """Stops the threads; rows that are still pending fail."""
        with suppress(queue.Empty):
            while (waiting := self._ready.get_nowait()) is not None:
                waiting[0].set_exception(RuntimeError("the server is closing"))
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()
        self._opened.close()
