"""The tagging engine: sources to shards to one table, in this process or on Ray. Run again after a kill, it goes on."""

import hashlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtag import __version__
from fewtag.cache import Cache
from fewtag.cache import Space as CacheSpace
from fewtag.errors import InputError
from fewtag.tagger.bank_file import read_header
from fewtag.tagger.stream import BATCH, Item, Scorer, Tagged, place_space, tag_stream
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.sources import Shard, Source, open_source
from fewtag.tagging.tables import Counts, Parts, open_output

LARGEST_SHARD, SMALLEST_SHARD = 1024, 64
LOCAL_SHARD = 256
# a worker that is slower than the others then takes fewer, rather than all waiting for its last one
_SHARDS_A_WORKER = 4
_DOWNLOADS_AT_ONCE = 16


@dataclass(frozen=True)
class Options:
    """What decides the rows (scores, threshold), and how the work is done."""

    scores: bool = False
    threshold: float | None = None
    batch: int = BATCH
    device: str = "auto"
    cache: str | None = None
    shard: int | None = None
    max_attempts: int = 3
    """How often a shard may be given to another worker after its worker died."""


@dataclass(frozen=True)
class Summary:
    """How it went; `cached` are pictures that the network did not see, `seconds` are without starting up."""

    pictures: int
    tagged: int
    failed: int
    cached: int
    seconds: float
    startup_seconds: float
    workers: int
    shards: int
    finished_before: int
    out: str


@dataclass(frozen=True)
class Cluster:
    """Where Ray is asked for, and for how many workers."""

    address: str | None = None
    workers: int | None = None


Advance = Callable[[int], None]
Begin = Callable[[str, int], Advance]
"""Told what is about to be done and of how many pictures; answers with what to tell of each batch."""


def tag(
    bank: Path,
    sources: Sequence[str],
    out: str,
    options: Options,
    *,
    ray: Cluster | None = None,
    force: bool = False,
    begin: Begin = lambda _task, _total: lambda _count: None,
) -> Summary:
    """Tags every picture into a table, or into a folder of Parquet parts where `out` ends like no table."""
    source = open_source(sources)
    content, labels = _read_bank(bank)
    with open_output(out, labels, scores=options.scores, force=force) as output:
        about = {
            "fewtag": __version__,
            "bank": hashlib.sha256(content).hexdigest(),
            "source": source.locations,
            "scores": options.scores,
            "threshold": options.threshold,
        }
        work = Work(content, labels if options.scores else None, options, output.parts)
        run = _Run(work, source, about, begin)
        outcome = run.on_ray(ray) if ray is not None else run.here()
        output.finish(outcome.counts, work.scored, about)
    return _summary(out, outcome)


def tag_rows(bank: Path, sources: Sequence[str], options: Options) -> Iterator[tuple[Item, Tagged]]:
    """Pictures and their rows as soon as they are known, with all scores; nothing is written but the cache."""
    content, _ = _read_bank(bank)
    tagger = open_tagger(Work(content, None, options, Parts("", "jsonl")), options.device)
    items = [item for shard in open_source(sources).shards(LOCAL_SHARD) for item in shard.items(options.batch)]
    scorer = Scorer(tagger.bank_, tagger.model.calibration, tagger.model.strengths, options.threshold)
    waiting = iter(items)
    with opened_cache(tagger, options.cache) as space:
        for rows in tag_stream(tagger.model, scorer, items, batch=options.batch, space=space):
            yield from ((next(waiting), row) for row in rows)


@dataclass(frozen=True)
class Work:
    """What a worker needs to know to finish a shard."""

    bank: bytes
    scored: Sequence[str] | None
    options: Options
    parts: Parts


@dataclass(frozen=True)
class _Outcome:
    counts: dict[int, Counts]
    finished_before: int
    workers: int = 0
    seconds: float = 0.0
    startup_seconds: float = 0.0


class _Run:
    """One run: which shards there are, which are finished, and who finishes the others."""

    def __init__(self, work: Work, source: Source, about: dict[str, Any], begin: Begin) -> None:
        self.work, self.source, self.about, self.begin = work, source, about, begin
        before = work.parts.begun(about, work.options.shard)
        self.begun = before is not None
        self.size = int(before["shard"]) if before else 0
        self.done = work.parts.finished(source.shards(self.size)) if before else {}

    def here(self) -> _Outcome:
        """In this process."""
        since = time.perf_counter()
        missing = self._missing(self.work.options.shard or LOCAL_SHARD)
        if not missing:
            return _Outcome(self.done, len(self.done))
        tagger = open_tagger(self.work, self.work.options.device)
        self._start()
        advance = self._begin(missing)
        started = time.perf_counter()
        with opened_cache(tagger, self.work.options.cache) as space:
            finished = dict(finish_shards(tagger, missing, self.work, space, advance))
        ended = time.perf_counter()
        times = round(ended - started, 3), round(started - since, 3)
        return _Outcome(self.done | finished, len(self.done), 1, *times)

    def on_ray(self, ray: Cluster) -> _Outcome:
        """By the workers of a cluster."""
        from fewtag.tagging.ray_engine import finish_on_ray, open_cluster

        if self.begun and not self._missing(self.size):
            return _Outcome(self.done, len(self.done))
        since = time.time()
        with open_cluster(ray.address) as nodes:
            share = nodes.share(ray.workers)
            missing = self._missing(self.work.options.shard or shard_size(len(self.source), share.workers))
            self._start()
            ready, finished = finish_on_ray(missing, self.work, share, self._begin(missing))
            ended = time.time()
        times = round(ended - ready, 3), round(ready - since, 3)
        return _Outcome(self.done | finished, len(self.done), min(share.workers, len(missing)), *times)

    def _missing(self, size: int) -> list[Shard]:
        """The shards that are not finished; of this size, if nothing was begun."""
        self.size = self.size or size
        return [shard for shard in self.source.shards(self.size) if shard.number not in self.done]

    def _start(self) -> None:
        """Once nothing is left to be refused: what is refused leaves nothing behind."""
        if not self.begun:
            self.work.parts.begin(self.about | {"shard": self.size})

    def _begin(self, missing: Sequence[Shard]) -> Advance:
        before = sum(counts.tagged + counts.failed for counts in self.done.values())
        task = f"tagging ({before} done before)" if before else "tagging"
        return self.begin(task, sum(map(len, missing)))


def finish_shards(
    tagger: Tagger, shards: Sequence[Shard], work: Work, space: CacheSpace | None, advance: Advance = lambda _: None
) -> Iterator[tuple[int, Counts]]:
    """Each shard's rows into a part; the network does not wait between one shard and the next."""
    options = work.options
    scorer = Scorer(tagger.bank_, tagger.model.calibration, tagger.model.strengths, options.threshold)
    remote = any(shard.is_remote for shard in shards[:1])
    stream = tag_stream(
        tagger.model,
        scorer,
        (item for shard in shards for item in shard.items(options.batch)),
        batch=options.batch,
        scores=options.scores,
        space=space,
        loaders=_DOWNLOADS_AT_ONCE if remote else None,
    )
    rows: list[Tagged] = []
    waiting = list(reversed(shards))
    for batch in stream:
        rows += batch
        advance(len(batch))
        while waiting and len(rows) >= len(waiting[-1]):
            shard = waiting.pop()
            mine, rows = rows[: len(shard)], rows[len(shard) :]
            yield shard.number, work.parts.write(shard, mine, work.scored)
    if waiting:
        raise InputError(f"{waiting[-1].table or 'the source'} changed while it was read; run the same command again")


def open_tagger(work: Work, device: str, threads: int | None = None) -> Tagger:
    """The bank's tagger, from the bytes that the run began with: the bank may be taught meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.fewtag"
        path.write_bytes(work.bank)
        tagger = Tagger.load(path, device=device)
    if threads is not None:
        tagger.model.network.limit = threads
    return tagger


@contextmanager
def opened_cache(tagger: Tagger, folder: str | None) -> Iterator[CacheSpace | None]:
    """The cache's rows of this model, or nothing without a cache."""
    if folder is None:
        yield None
        return
    with Cache(Path(folder)) as cache:
        yield place_space(tagger.model, cache)


def shard_size(pictures: int, workers: int) -> int:
    """Large, but small enough for every worker to have some.

    >>> shard_size(1_000_000, 8), shard_size(2_000, 2), shard_size(100, 8)
    (1024, 250, 64)
    """
    return max(SMALLEST_SHARD, min(LARGEST_SHARD, math.ceil(pictures / (_SHARDS_A_WORKER * workers))))


def _read_bank(bank: Path) -> tuple[bytes, list[str]]:
    """The bank as it is now, and the labels that it can score."""
    header = read_header(bank)
    labels = [label["name"] for label in header["labels"] if label["examples"] or label["kind"] != "none"]
    if not labels:
        raise InputError(f"the bank {bank} knows no label yet; teach it some with fewtag learn or fewtag define")
    return bank.read_bytes(), labels


def _summary(out: str, outcome: _Outcome) -> Summary:
    counts = list(outcome.counts.values())
    tagged, failed = sum(each.tagged for each in counts), sum(each.failed for each in counts)
    return Summary(
        pictures=tagged + failed,
        tagged=tagged,
        failed=failed,
        cached=sum(each.cached for each in counts),
        seconds=outcome.seconds,
        startup_seconds=outcome.startup_seconds,
        workers=outcome.workers,
        shards=len(counts),
        finished_before=outcome.finished_before,
        out=out,
    )
