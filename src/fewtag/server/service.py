"""What is served: a bank that several clients teach and query, or a project; and the parts of a running server."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from fewtag.errors import InputError, MissingError, UnavailableError, UnknownWordError
from fewtag.files import digest
from fewtag.pictures.decode import Decoded
from fewtag.server.jobs import Events, Jobs
from fewtag.server.queue import TagQueue, Upload
from fewtag.server.security import Settings
from fewtag.server.uploads import Decoders
from fewtag.studio.studio import Studio
from fewtag.studio.values import Acknowledged, Answer, Explanation, LabelRow, as_json
from fewtag.tagger.bank import label_name
from fewtag.tagger.stream import DIGITS, Scorer, Tagged
from fewtag.tagger.tagger import Tagger

RECENT_BYTES = 128_000_000
"""The most bytes of recently tagged pictures that are kept, so that answers about them can teach."""
_ANSWERS_KNOWN = 100_000
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Recent:
    """Least-recently-used memory of uploads by digest, bounded in bytes."""

    def __init__(self, most: int = RECENT_BYTES) -> None:
        self.most, self._size = most, 0
        self._uploads: OrderedDict[bytes, Upload] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, uploads: Sequence[Upload]) -> None:
        with self._lock:
            for upload in uploads:
                if self._uploads.pop(upload.digest, None) is None:
                    self._size += len(upload.data)
                self._uploads[upload.digest] = upload
            while self._size > self.most:
                self._size -= len(self._uploads.popitem(last=False)[1].data)

    def get(self, digest: str) -> Upload:
        """The upload with this digest; raises MissingError if it was not tagged recently."""
        with self._lock:
            found = self._uploads.get(bytes.fromhex(digest))
        if found is None:
            raise MissingError(f"no picture {digest} was tagged here lately; tag it again, and then answer")
        return found


class BankService:
    """A bank behind the HTTP API. Every change is on disk, under the bank's lock, before the method returns.

    Another process may teach the same file: its changes are picked up, and none is lost.
    """

    def __init__(self, path: Path, tagger: Tagger, decoders: Decoders) -> None:
        self.path, self._tagger, self._seen = path, tagger, file_state(path)
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._known_scorer: tuple[object, Scorer] | None = None
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._decoders, self.recent = decoders, Recent()

    @property
    def tagger(self) -> Tagger:
        """The tagger of the bank in its present file."""
        if not self._writing.locked():  # otherwise a change of our own is being saved
            self._catch_up()
        return self._tagger

    def _catch_up(self) -> None:
        with self._reading, _unavailable():
            if file_state(self.path) != self._seen:
                self._load()

    def _load(self) -> None:
        state = file_state(self.path)
        self._tagger = Tagger.load(self.path, model=self._tagger.model)
        self._seen = state  # only now, so that a file that cannot be loaded fails each time

    def scorer(self) -> Scorer:
        """A scorer of the current labels; made once for each state of the bank."""
        tagger, known = self.tagger, self._known_scorer
        if known is None or known[0] is not tagger.bank_:
            known = self._known_scorer = tagger.bank_, tagger.scorer()
        return known[1]

    def labels(self) -> list[LabelRow]:
        return _rows(_as_now(self.tagger))

    def label(self, name: str) -> LabelRow:
        return _row(_as_now(self.tagger), name)

    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> LabelRow:
        return _row(self._change(lambda tagger: tagger.define(name, like=like, words=words)), name)

    def define_all(self, names: Sequence[str]) -> None:
        """Defines labels by their names or, if those are no known words, by pictures to come; saves once."""

        def define(tagger: Tagger) -> None:
            for name in names:
                try:
                    tagger.define(name)
                except UnknownWordError:
                    tagger.define(name, words=False)

        self._change(define)

    def teach(self, name: str, uploads: Sequence[Upload]) -> LabelRow:
        """Adds examples of a known or a new label."""
        examples = self._examples(uploads)
        return _row(self._change(lambda tagger: tagger.partial_fit(examples, [[name]] * len(examples))), name)

    def rename(self, old: str, new: str, *, merge: bool = False) -> LabelRow:
        rows = _rows(self._change(lambda tagger: tagger.rename(old, new, merge=merge)))
        name = label_name(new)  # for a group, the first label below it
        return next(each for each in rows if each.name == name or each.name.startswith(f"{name}/"))

    def forget(self, name: str) -> None:
        self._change(lambda tagger: tagger.forget(name))

    def set_threshold(self, name: str, threshold: float | None) -> LabelRow:
        return _row(self._change(lambda tagger: tagger.set_thresholds({name: threshold})), name)

    def answer(self, answers: Sequence[Answer]) -> Acknowledged:
        """Records answers, all of them or none; one whose id was acknowledged before is skipped."""
        new = [answer for answer in answers if answer.id not in self._answered]
        uploads = {answer.picture: self.recent.get(answer.picture) for answer in new}
        for answer in new:
            self.tagger.bank_.find(answer.label)
        read = dict(zip(uploads, self._examples(list(uploads.values())), strict=True))

        def take(tagger: Tagger) -> None:
            for answer in new:
                example, label = read[answer.picture], tagger.bank_.find(answer.label)
                if answer.answer == "unknown":
                    bank = tagger.bank_
                    if example.key in bank.members[label] or example.key in bank.refused[label]:
                        tagger.forget(label, example)
                elif answer.answer == "yes":
                    tagger.partial_fit([example], [[label]])
                else:
                    tagger.partial_fit([example], [[]], absent=[[label]])

        if new:
            self._change(take)
        for answer in new:
            self._answered[answer.id] = None
        while len(self._answered) > _ANSWERS_KNOWN:
            self._answered.popitem(last=False)
        return Acknowledged(tuple(answer.id for answer in answers), pictures=len({each.picture for each in answers}))

    def explain(self, upload: Upload, label: str) -> Explanation:
        """The probability, and how much the label depends on each of 5 × 5 parts of the picture."""
        tagger = self.tagger
        square = self._decoders.submit(upload.data, upload.name, tagger.model.size).result().pixels
        (found,) = tagger.leaning(square, [label]).values()
        return Explanation.of(*found)

    def _examples(self, uploads: Sequence[Upload]) -> list[Decoded]:
        """Uploads decoded by workers; one that cannot be read is refused."""
        size = self._tagger.model.size
        found = [self._decoders.submit(each.data, each.name, size, example=True) for each in uploads]
        return [future.result() for future in found]

    def _change(self, change: Callable[[Tagger], object]) -> Tagger:
        """Changes the bank, on disk too; returns it as it is then, whatever other clients do next."""
        with self._writing:
            self._catch_up()
            tagger, before = self._tagger, self._tagger.bank_
            try:
                change(tagger)
                with _unavailable():
                    tagger.save(self.path)
            except BaseException:
                if tagger.bank_ is not before:
                    with self._reading:
                        self._load()  # forgets what is not on disk
                raise
            with self._reading:  # a reader may meanwhile have loaded another process's file, without this change
                self._tagger, self._seen = tagger, file_state(self.path)
            return _as_now(tagger)


def _as_now(tagger: Tagger) -> Tagger:
    """A tagger with the present labels, which nobody teaches."""
    return Tagger(tagger.model, bank=tagger.bank_)


def _rows(tagger: Tagger) -> list[LabelRow]:
    counts, numbers = (tagger.counts_, tagger.absent_counts_), (tagger.thresholds_, tagger.priors_, tagger.trusts_)
    found = []
    for name, meant in sorted(tagger.definitions_.items()):
        rounded = [None if (value := each.get(name)) is None else round(value, DIGITS) for each in numbers]
        found.append(LabelRow(name, str(meant), *(each.get(name, 0) for each in counts), *rounded))
    return found


def _row(tagger: Tagger, name: str) -> LabelRow:
    found = tagger.bank_.find(name)
    return next(row for row in _rows(tagger) if row.name == found)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Turns errors of the bank's file into UnavailableError, since they are not the client's fault."""
    try:
        yield
    except InputError as error:
        raise UnavailableError(str(error)) from error


def file_state(path: Path) -> tuple[int, ...]:
    """Time, size and inode, by which a change of the bank's file is noticed; raises InputError if it is missing."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"the bank {path} cannot be read: {error.strerror}; put it back") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


class Metrics:
    """Prometheus metrics: requests, pictures, batches, the queue; each server has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self._requests = Counter("fewtag_requests", "Requests answered.", ["method", "route", "status"], registry=here)
        self._seconds = Histogram(
            "fewtag_request_seconds",
            "From head of request to end of reply.",
            ["route"],
            buckets=_SECONDS,
            registry=here,
        )
        self.pictures = Counter("fewtag_pictures", "Pictures tagged, or failed.", ["outcome"], registry=here)
        self.batches = Histogram(
            "fewtag_batch_pictures", "Pictures in the network at once.", buckets=(1, 2, 4, 8, 16, 32), registry=here
        )

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is read when it is asked for."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts a request, by route pattern and by one of four methods, so that strangers cannot create new series."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in {"GET", "POST", "PATCH", "DELETE"} else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not route.endswith("/events"):  # these last as long as their page is open
            self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Served:
    """All parts of a running server: what is served, the queue before the network, jobs, events, metrics."""

    def __init__(
        self, actions: BankService | Studio, settings: Settings, decoders: Decoders, cache: Path | None = None
    ) -> None:
        self.actions, self.settings, self.decoders = actions, settings, decoders
        self.metrics, self.events = Metrics(), Events()
        self.jobs = Jobs(self.events)
        self.queue = TagQueue(
            actions.tagger.model, actions.scorer, decoders, cache=cache, on_batch=self.metrics.batches.observe
        )
        self.metrics.watch("fewtag_queue_pictures", "Pictures that wait to be tagged.", lambda: self.queue.waiting)
        self.metrics.watch("fewtag_decoder_deaths", "Uploads that their decoder died of.", lambda: decoders.deaths)
        self.fetch: Callable[[str], bytes] | None = None  # fetches pictures by link, if another program sends links
        self._warm: tuple[bool, str] = False, "the network is being loaded"
        self._unlisten = actions.listen(self._tell) if isinstance(actions, Studio) else None

    @property
    def studio(self) -> Studio:
        assert isinstance(self.actions, Studio)
        return self.actions

    @property
    def bank(self) -> BankService:
        assert isinstance(self.actions, BankService)
        return self.actions

    @property
    def is_project(self) -> bool:
        return isinstance(self.actions, Studio)

    def _tell(self, event: str, value: Any) -> None:
        self.events.tell(event, as_json(value))

    def warm_up(self) -> None:
        """Loads the network, so that the first picture does not wait for it."""
        model = self.queue.model
        try:
            model.encode(np.zeros((1, 3, model.size, model.size), np.uint8))
            self._warm = True, ""
        except InputError as error:
            self._warm = False, str(error)

    def ready(self) -> tuple[bool, str]:
        return self.actions.ready() if isinstance(self.actions, Studio) and self._warm[0] else self._warm

    def tag(self, uploads: Sequence[Upload]) -> list[Future[Tagged]]:
        """Futures of rows; raises BusyError if too many wait, and InputError if there is no label yet."""
        self.actions.scorer()
        rows = self.queue.submit(uploads)
        for row in rows:
            row.add_done_callback(self._count)
        if isinstance(self.actions, BankService):
            self.actions.recent.add(uploads)
        return rows

    async def tag_all(self, uploads: Sequence[Upload]) -> list[Tagged]:
        """Tags pictures and returns their rows, in order; raises InputError for the first that cannot be read."""
        if len(uploads) > (most := self.settings.most_files):
            raise InputError(f"the request has {len(uploads)} pictures; send at most {most} at once")
        rows = await asyncio.gather(*map(asyncio.wrap_future, await run_in_threadpool(self.tag, uploads)))
        for row in rows:
            if row.failure:
                raise InputError(row.failure)
        return rows

    @property
    def label_names(self) -> list[str]:
        """The names of the labels, without their numbers, which take a while to compute."""
        if isinstance(self.actions, Studio):
            return [label.name for label in self.actions.project.fold.labels.values()]
        return list(self.actions.tagger.definitions_)

    @property
    def name(self) -> str:
        """The name of what is served: the bank's file without its ending, or the project's folder."""
        return (self.studio.folder if self.is_project else self.bank.path).stem

    @property
    def version(self) -> str:
        """A version of the labels for other programs, which changes with every edit."""
        state = (
            self.studio.overview().version if self.is_project else digest(*map(str, file_state(self.bank.path)))[:12]
        )
        return f"{self.name}-{state}"

    def _count(self, row: Future[Tagged]) -> None:
        failed = row.exception() is not None or row.result().failure
        self.metrics.pictures.labels("failed" if failed else "tagged").inc()

    def close(self) -> None:
        self.events.close()
        self.jobs.close()
        if self._unlisten is not None:
            self._unlisten()
        self.decoders.close()
        self.queue.close()
        if isinstance(self.actions, Studio):
            self.actions.close()
