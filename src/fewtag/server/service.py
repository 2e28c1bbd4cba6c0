"""What is served: a bank that several clients teach and ask, or a project; and the parts of a running server."""

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
"""Of pictures that were tagged lately, so that an answer about one can teach."""
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
        """The upload of this digest; refuses one that was not tagged lately."""
        with self._lock:
            found = self._uploads.get(bytes.fromhex(digest))
        if found is None:
            raise MissingError(f"no picture {digest} was tagged here lately; tag it again, and then answer")
        return found


class BankService:
    """A bank behind the HTTP API. Whatever changes it is on disk, under the bank's lock, before the method returns.

    Another process may teach the same file: its changes are read when they are there, and none is lost.
    """

    def __init__(self, path: Path, tagger: Tagger, decoders: Decoders) -> None:
        self.path, self._tagger, self._seen = path, tagger, file_state(path)
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._known_scorer: tuple[object, Scorer] | None = None
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._decoders, self.recent = decoders, Recent()

    @property
    def tagger(self) -> Tagger:
        """The tagger of the bank as its file is now."""
        if not self._writing.locked():  # else a change of our own is on its way to the file
            self._catch_up()
        return self._tagger

    def _catch_up(self) -> None:
        with self._reading, _unavailable():
            if file_state(self.path) != self._seen:
                self._load()

    def _load(self) -> None:
        state = file_state(self.path)
        self._tagger = Tagger.load(self.path, model=self._tagger.model)
        self._seen = state  # not before: a file that cannot be loaded would be an error once, and then the old bank

    def scorer(self) -> Scorer:
        """The labels as they are now; made once for each state of the bank."""
        tagger, known = self.tagger, self._known_scorer
        if known is None or known[0] is not tagger.bank_:
            known = self._known_scorer = tagger.bank_, tagger.scorer()
        return known[1]

    def labels(self) -> list[LabelRow]:
        tagger = self.tagger
        counts, numbers = (tagger.counts_, tagger.absent_counts_), (tagger.thresholds_, tagger.priors_, tagger.trusts_)
        found = []
        for name, meant in sorted(tagger.definitions_.items()):
            rounded = [None if (value := each.get(name)) is None else round(value, DIGITS) for each in numbers]
            found.append(LabelRow(name, str(meant), *(each.get(name, 0) for each in counts), *rounded))
        return found

    def label(self, name: str) -> LabelRow:
        found = self.tagger.bank_.find(name)
        return next(label for label in self.labels() if label.name == found)

    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> LabelRow:
        self._change(lambda tagger: tagger.define(name, like=like, words=words))
        return self.label(name)

    def define_all(self, names: Sequence[str]) -> None:
        """Labels by their names, or where those are no known words, by pictures to come; saved once."""

        def define(tagger: Tagger) -> None:
            for name in names:
                try:
                    tagger.define(name)
                except UnknownWordError:
                    tagger.define(name, words=False)

        self._change(define)

    def teach(self, name: str, uploads: Sequence[Upload]) -> LabelRow:
        """Examples of a known or a new label."""
        examples = self._examples(uploads)
        self._change(lambda tagger: tagger.partial_fit(examples, [[name]] * len(examples)))
        return self.label(name)

    def rename(self, old: str, new: str, *, merge: bool = False) -> LabelRow:
        self._change(lambda tagger: tagger.rename(old, new, merge=merge))
        name = label_name(new)  # of a group the first under it
        return next(each for each in self.labels() if each.name == name or each.name.startswith(f"{name}/"))

    def forget(self, name: str) -> None:
        self._change(lambda tagger: tagger.forget(name))

    def set_threshold(self, name: str, threshold: float | None) -> LabelRow:
        self._change(lambda tagger: tagger.set_thresholds({name: threshold}))
        return self.label(name)

    def answer(self, answers: Sequence[Answer]) -> Acknowledged:
        """All of them are taken or none; one whose id was acknowledged before is not taken again."""
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
        """The probability, and how much the label leans on each of 5 × 5 parts of the picture."""
        tagger = self.tagger
        square = self._decoders.submit(upload.data, upload.name, tagger.model.size).result().pixels
        (found,) = tagger.leaning(square, [label]).values()
        return Explanation.of(*found)

    def _examples(self, uploads: Sequence[Upload]) -> list[Decoded]:
        """Decoded by workers; one that cannot be read is refused."""
        size = self._tagger.model.size
        found = [self._decoders.submit(each.data, each.name, size, example=True) for each in uploads]
        return [future.result() for future in found]

    def _change(self, change: Callable[[Tagger], object]) -> None:
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
                        self._load()  # what is not on disk was not learnt
                raise
            with self._reading:  # a reader may have loaded what another process wrote meanwhile, without this change
                self._tagger, self._seen = tagger, file_state(self.path)


@contextmanager
def _unavailable() -> Iterator[None]:
    """What is wrong with the bank's file is not the mistake of who asks."""
    try:
        yield
    except InputError as error:
        raise UnavailableError(str(error)) from error


def file_state(path: Path) -> tuple[int, ...]:
    """Time, size and inode, by which a change of the bank's file is noticed; refuses one that is gone."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"the bank {path} cannot be read: {error.strerror}; put it back") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


class Metrics:
    """For Prometheus: requests, pictures, batches, the queue; in a registry of their own, as servers do not add up."""

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
        """A number that is looked up when it is asked for."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Routes by their pattern, methods by the four in use: strangers cannot make up new rows."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in {"GET", "POST", "PATCH", "DELETE"} else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not route.endswith("/events"):  # which last as long as their page is open
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
        self.fetch: Callable[[str], bytes] | None = None  # of pictures by links, where another program sends those
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
        """Rows to come; BusyError where too many wait. Refused where there is no label yet."""
        self.actions.scorer()
        rows = self.queue.submit(uploads)
        for row in rows:
            row.add_done_callback(self._count)
        if isinstance(self.actions, BankService):
            self.actions.recent.add(uploads)
        return rows

    async def tag_all(self, uploads: Sequence[Upload]) -> list[Tagged]:
        """Tags pictures: their rows, in this order; the first that cannot be read is refused."""
        if len(uploads) > (most := self.settings.most_files):
            raise InputError(f"the request has {len(uploads)} pictures; send at most {most} at once")
        rows = await asyncio.gather(*map(asyncio.wrap_future, await run_in_threadpool(self.tag, uploads)))
        for row in rows:
            if row.failure:
                raise InputError(row.failure)
        return rows

    @property
    def label_names(self) -> list[str]:
        """What the labels are called: their numbers, which take a while, are not worked out."""
        if isinstance(self.actions, Studio):
            return [label.name for label in self.actions.project.fold.labels.values()]
        return list(self.actions.tagger.definitions_)

    @property
    def name(self) -> str:
        """What is served: the bank's file or the project's folder, without its ending."""
        return (self.studio.folder if self.is_project else self.bank.path).stem

    @property
    def version(self) -> str:
        """A version of the labels for other programs: another after each change."""
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
