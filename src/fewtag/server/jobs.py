"""Jobs: long work in a thread of its own, with progress, a way to cancel it, and server-sent events."""

import asyncio
import json
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fewtag.errors import InputError, MissingError
from fewtag.server.queue import BusyError
from fewtag.studio.values import Progress

RUNNING, KEPT = 4, 16
"""The most jobs at once, and the most that are remembered."""
HEARTBEAT = 15.0
LISTENERS = 64
"""The most event streams at once."""


@dataclass(frozen=True)
class Job:
    """Work under way, or how it ended."""

    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled"]
    done: int
    total: int
    detail: str
    """Why it failed, in one sentence."""
    result: Any


class Jobs:
    """All jobs of a server; `events` announces each change of one."""

    def __init__(self, events: "Events") -> None:
        self._events, self._lock = events, threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._cancelled: set[str] = set()

    def start(self, kind: str, work: Callable[[Progress], Any]) -> Job:
        """Runs work in a thread of its own; its result must be JSON."""
        job = Job(str(uuid.uuid4()), kind, "running", 0, 0, "", None)
        with self._lock:
            self.check_room()
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT:
                del self._jobs[next(key for key, each in self._jobs.items() if each.state != "running")]
        threading.Thread(target=self._run, args=(job.id, work), daemon=True, name="fewtag-job").start()
        return job

    def check_room(self) -> None:
        """Raises BusyError if too many jobs are running."""
        if sum(each.state == "running" for each in list(self._jobs.values())) >= RUNNING:
            raise BusyError(5)

    def _run(self, number: str, work: Callable[[Progress], Any]) -> None:
        def progress(done: int, total: int) -> None:
            if number in self._cancelled:
                raise CancelledError  # ends the work
            self._note(number, done=done, total=total)

        try:
            result = work(progress)
            if number in self._cancelled:
                raise CancelledError
            self._note(number, state="done", result=result)
        except CancelledError:
            self._note(number, state="cancelled")
        except InputError as error:
            self._note(number, state="failed", detail=str(error))
        except Exception as error:  # clients that wait for the job must be told
            self._note(number, state="failed", detail=f"something went wrong ({type(error).__name__})")
            raise

    def _note(self, number: str, **facts: Any) -> None:
        with self._lock:
            job = self._jobs[number] = replace(self._jobs[number], **facts)
        self._events.tell("job", asdict(job))

    def list(self) -> list[Job]:
        with self._lock:
            return [*self._jobs.values()]

    def get(self, number: str) -> Job:
        with self._lock:
            if number not in self._jobs:
                raise MissingError(f"there is no job {number}; the server was started again since, or it was long ago")
            return self._jobs[number]

    def cancel(self, number: str) -> Job:
        """Asks a job to end, which it does at its next step."""
        job = self.get(number)
        self._cancelled.add(number)
        return job

    def close(self) -> None:
        with self._lock:
            self._cancelled |= self._jobs.keys()


class Events:
    """Server-sent events: sent from any thread, to any number of open pages."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # a stream that nobody reads any more is collected
        self._lock, self._closed = threading.Lock(), False

    def tell(self, event: str, value: Any) -> None:
        with self._lock:
            for stream in self._streams:
                stream.put((event, value))

    def listen(self) -> "Stream":
        """A stream of all later events; raises BusyError if there are too many."""
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
    """One page's stream of events: a bounded queue between threads and the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._queue = loop, asyncio.Queue[Event | None](1000)

    def put(self, event: Event | None) -> None:
        """Adds an event, from any thread; None ends the stream."""
        self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event | None) -> None:
        if self._queue.full():  # a page that does not read loses the oldest events
            self._queue.get_nowait()
        self._queue.put_nowait(event)

    async def lines(self, first: Event, job: str | None = None) -> AsyncIterator[str]:
        """The present state, then later events; for a `job` its own, until it ends. Comments keep proxies awake."""
        heard: Event | None = first
        while heard is not None:
            event, value = heard
            if job is None or (event == "job" and value["id"] == job):
                yield f"event: {event}\ndata: {json.dumps(value)}\n\n"
                if job is not None and value["state"] != "running":
                    return
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        heard = await self._queue.get()
                    break
                except TimeoutError:
                    yield ": still here\n\n"
