"""Jobs: long work in a thread of its own, with progress, a way to cancel it, and server-sent events."""

import asyncio
import json
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fewtag.errors import InputError, MissingError
from fewtag.server.queue import BusyError

State = Literal["running", "done", "failed", "cancelled"]
RUNNING, KEPT = 4, 16
"""Jobs at once, and jobs that are remembered."""
HEARTBEAT = 15.0
LISTENERS = 64
"""Event streams at once."""


@dataclass(frozen=True)
class Job:
    """Work under way, or how it ended."""

    id: str
    kind: str
    state: State = "running"
    done: int = 0
    total: int = 0
    detail: str = ""
    """Why it failed, in one sentence."""
    result: Any = None


class CancelledError(Exception):
    """Raised by `Progress` in the job's own thread, so that the work ends."""


class Progress:
    """What a job's work is given: tells of progress, and ends the work where that was asked for."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self._tell, self._cancelled = tell, threading.Event()

    def __call__(self, done: int, total: int) -> None:
        if self.cancelled():
            raise CancelledError
        self._tell(done, total)

    def cancel(self) -> None:
        self._cancelled.set()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class Jobs:
    """All jobs of a server; `events` has each change of one."""

    def __init__(self, events: "Events") -> None:
        self._events, self._lock = events, threading.Lock()
        self._jobs: OrderedDict[str, tuple[Job, Progress]] = OrderedDict()

    def start(self, kind: str, work: Callable[[Progress], Any]) -> Job:
        """Work in a thread of its own; its result must be JSON."""
        number = str(uuid.uuid4())
        progress = Progress(lambda done, total: self._note(number, done=done, total=total))
        job = Job(number, kind)
        with self._lock:
            self.check_room()
            self._jobs[number] = job, progress
            while len(self._jobs) > KEPT:
                oldest = next(key for key, (each, _) in self._jobs.items() if each.state != "running")
                del self._jobs[oldest]
        threading.Thread(target=self._run, args=(number, work, progress), daemon=True, name="fewtag-job").start()
        return job

    def check_room(self) -> None:
        """Refused where too many run."""
        if sum(each.state == "running" for each, _ in list(self._jobs.values())) >= RUNNING:
            raise BusyError(5)

    def _run(self, number: str, work: Callable[[Progress], Any], progress: Progress) -> None:
        try:
            result = work(progress)
            state: State = "cancelled" if progress.cancelled() else "done"
            self._note(number, state=state, result=result if state == "done" else None)
        except CancelledError:
            self._note(number, state="cancelled")
        except InputError as error:
            # a delivery that is stopped says so in a sentence of its own
            self._note(number, state="cancelled" if progress.cancelled() else "failed", detail=str(error))
        except Exception as error:  # whoever waits for it must hear of it
            self._note(number, state="failed", detail=f"something went wrong ({type(error).__name__})")
            raise

    def _note(self, number: str, **facts: Any) -> None:
        with self._lock:
            job, progress = self._jobs[number]
            job = replace(job, **facts)
            self._jobs[number] = job, progress
        self._events.tell("job", asdict(job))

    def list(self) -> list[Job]:
        with self._lock:
            return [job for job, _ in self._jobs.values()]

    def get(self, number: str) -> Job:
        with self._lock:
            if number not in self._jobs:
                raise MissingError(f"there is no job {number}; it may have been long ago")
            return self._jobs[number][0]

    def cancel(self, number: str) -> Job:
        """It ends at its next step."""
        job = self.get(number)
        self._jobs[number][1].cancel()
        return job

    def close(self) -> None:
        for _, progress in self._jobs.values():
            progress.cancel()


class Events:
    """Server-sent events: told from any thread, heard by any number of open pages."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # one that nobody reads any more is gone
        self._lock, self._closed = threading.Lock(), False

    def tell(self, event: str, value: Any) -> None:
        with self._lock:
            for stream in self._streams:
                stream.put((event, value))

    def listen(self) -> "Stream":
        """All that is told from now on; refused where too many listen."""
        stream = Stream(asyncio.get_running_loop())
        with self._lock:
            if len(self._streams) >= LISTENERS or self._closed:
                raise BusyError(5)
            self._streams.add(stream)
        return stream

    def close(self) -> None:
        """Ends all streams."""
        with self._lock:
            self._closed = True
            for stream in self._streams:
                stream.put(None)


Event = tuple[str, Any]


class Stream:
    """What one page hears."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._queue = loop, asyncio.Queue[Event | None](1000)

    def put(self, event: Event | None) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event | None) -> None:
        if self._queue.full():  # a page that does not listen loses what is oldest
            self._queue.get_nowait()
        self._queue.put_nowait(event)

    async def lines(
        self, first: Sequence[Event], wanted: Callable[[Event], bool], last: Callable[[Event], bool]
    ) -> AsyncIterator[str]:
        """What is so already, then what is `wanted`, until the `last`; a comment now and then keeps proxies awake."""
        for event in first:
            yield _line(*event)
            if last(event):
                return
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    heard = await self._queue.get()
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if heard is None:
                return
            if wanted(heard):
                yield _line(*heard)
                if last(heard):
                    return


def _line(event: str, value: Any) -> str:
    return f"event: {event}\ndata: {json.dumps(value)}\n\n"
