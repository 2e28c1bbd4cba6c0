"""The tagging engine: from sources over shards to one table, in this process or on Ray. A killed run can be resumed."""

import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fewtag import __version__
from fewtag.cache import ArrayRows
from fewtag.errors import InputError
from fewtag.pictures.prefetch import Advance, Begin, unwatched
from fewtag.tagger import stream
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH, Item, Scorer, Tagged, cached_places, tag_stream
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.sources import Shard, Source, open_source
from fewtag.tagging.tables import Counts, Output, Parts, names_in, open_output

LARGEST_SHARD, SMALLEST_SHARD = 1024, 64
LOCAL_SHARD = 256
# several, so that a slow worker takes fewer shards, instead of all others waiting for its last one
_SHARDS_A_WORKER = 4
_DOWNLOADS_AT_ONCE = 16
PRIOR_SAMPLE, SMALLEST_PRIOR_SAMPLE = 256, 100
"""Pictures by which the labels' priors are estimated, and the fewest that are enough."""


@dataclass(frozen=True)
class Options:
    """Settings that determine the rows (scores, threshold, prior), and those of how the work is done."""

    scores: bool = False
    threshold: float | None = None
    prior: float | Literal["estimate", "bank"] = "estimate"
    """The share of pictures that show a label: a number for all, estimated from a sample, or the bank's own."""
    batch: int = BATCH
    device: str = "auto"
    cache: Path | None = None
    shard: int | None = None
    max_attempts: int = 3
    """How often a shard may be started: its worker may have died of it."""


@dataclass(frozen=True)
class Summary:
    """Statistics of a run; `seconds` exclude start-up, but include encoding the sample by which priors are estimated.

    `cached` counts pictures whose features were in the cache when their row was made, including those of that sample.
    """

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
    """The Ray cluster to use, by default one of our own, and its workers, by default one per GPU or core."""

    address: str | None = None
    workers: int | None = None


Rows = Iterator[tuple[Item, Tagged]]
"""Pictures and their rows, as soon as they are known, with all scores."""


def tag(
    bank: Path,
    sources: Sequence[str],
    out: str,
    options: Options,
    *,
    ray: Cluster | None = None,
    force: bool = False,
    begin: Begin = unwatched,
    look: Callable[[Rows], None] | None = None,
) -> Summary:
    """Tags every picture into a table, or into a folder of Parquet parts if `out` has no table's ending.

    `look` may take as many of the rows as it likes, to show them. They have scores, except where the output is a folder
    of parts without scores.
    """
    since = time.time()
    source = open_source(sources)
    tagger = Tagger.load(bank, device=options.device)
    about = {
        "fewtag": __version__,
        "bank": tagger.saved_digest_,
        "source": source.locations,
        "scores": options.scores,
        "threshold": options.threshold,
        "prior": options.prior,
    }
    labels = tagger.scorer().labels
    with open_output(out, labels, about, scores=options.scores, shard=options.shard, force=force) as output:
        estimating = time.time()
        if output.begun is None:
            output.priors = priors_in(source, tagger, options, begin)
        estimated = time.time() - estimating
        scorer = tagger.scorer(options.threshold, output.priors)
        scored = labels if options.scores or (look is not None and output.parts.ending == "jsonl") else None
        if ray is not None:
            ready, workers = _tag_on_ray(ray, tagger, source, options, output, scored, begin)
        else:
            missing, workers = output.missing(source, options.shard or LOCAL_SHARD), 1
            ready = time.time()
            if missing:
                advance = begin(output.task, sum(shard.size for shard in missing))
                work = Work(b"", scored, options, output.parts, output.priors)
                with cached_places(tagger.model, options.cache) as cached:
                    output.done |= finish_shards(tagger.model, scorer, missing, work, cached, advance)
        ended = time.time()
        if look is not None:
            look(output.rows(source))
        output.finish(labels)
    counts = list(output.done.values())
    tagged, failed = sum(each.tagged for each in counts), sum(each.failed for each in counts)
    return Summary(
        pictures=tagged + failed,
        tagged=tagged,
        failed=failed,
        cached=sum(each.cached for each in counts),
        seconds=round(ended - ready + estimated, 3),
        startup_seconds=round(ready - since - estimated, 3),
        workers=min(workers, len(counts) - output.finished_before),
        shards=len(counts),
        finished_before=output.finished_before,
        out=out,
    )


def _tag_on_ray(
    ray: Cluster,
    tagger: Tagger,
    source: Source,
    options: Options,
    output: Output,
    scored: Sequence[str] | None,
    begin: Begin,
) -> tuple[float, int]:
    """Tags on the workers of a cluster; returns when the first one was ready, and how many there were."""
    from fewtag.tagging.ray_engine import allocate, finish_on_ray, open_cluster

    if output.begun is not None and not output.missing(source, 0):
        return time.time(), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.fewtag"
        tagger.save(path)  # as it was loaded: the bank file itself may be taught meanwhile
        work = Work(path.read_bytes(), scored, options, output.parts, output.priors)
    with open_cluster(ray.address) as nodes:
        allocation = allocate(nodes, ray.workers)
        missing = output.missing(source, options.shard or shard_size(len(source), allocation.workers))
        advance = begin(output.task, sum(shard.size for shard in missing))
        ready, finished = finish_on_ray(missing, work, allocation, advance)
    written = names_in(output.parts.folder)
    if lost := [name for name in map(output.parts.name, finished) if name not in written]:
        raise InputError(
            f"{len(lost)} of {len(finished)} parts are not in {output.parts.folder}, where the workers wrote "
            "them: --out must lie at the same path on every machine, or be a URL"
        )
    output.done |= finished
    return ready, allocation.workers


def tag_rows(bank: Path, sources: Sequence[str] | Source, options: Options, begin: Begin = unwatched) -> Rows:
    """Tags pictures without a table, in the memory of a few batches; nothing is written but the cache."""
    tagger = Tagger.load(bank, device=options.device)
    source = sources if isinstance(sources, Source) else open_source(sources)
    priors = priors_in(source, tagger, options, begin)
    waiting = deque[Item]()  # holds only items whose rows are not known yet, since those of a table carry their bytes

    def items() -> Iterator[Item]:
        for shard in source.shards(LOCAL_SHARD):
            for item in shard.items(options.batch):
                waiting.append(item)
                yield item

    scorer = tagger.scorer(options.threshold, priors)
    with cached_places(tagger.model, options.cache) as cached:
        for rows in tag_stream(tagger.model, scorer, items(), batch=options.batch, cache=cached):
            yield from ((waiting.popleft(), row) for row in rows)


def priors_in(source: Source, tagger: Tagger, options: Options, begin: Begin = unwatched) -> dict[str, float]:
    """The share of a source's pictures that show each label without a prior, estimated from a sample of them.

    A number given for all labels is fitted to the sample (`match_priors`) if that is large enough. The sample is the
    same for every run and engine, and in the cache afterwards. A label with its own threshold is left out, and keeps
    the probabilities that the threshold was chosen by.
    """
    if options.prior == "bank" or (options.prior == "estimate" and len(source) < SMALLEST_PRIOR_SAMPLE):
        return {}
    known = tagger.definitions_
    asked = [label for label in tagger.classes_ if known[label].prior is None and known[label].threshold is None]
    said = None if options.prior == "estimate" else options.prior
    unless_seen = {} if said is None else dict.fromkeys(asked, said)
    if not asked or len(source) < SMALLEST_PRIOR_SAMPLE:
        return unless_seen
    sample = source.sample(PRIOR_SAMPLE, options.batch)
    advance = begin("estimating how common each label is", len(sample))

    def items() -> Iterator[Item]:
        for item in sample:
            yield item
            advance(1)

    with cached_places(tagger.model, options.cache) as cached:
        places = stream.encode_stream(tagger.model, items(), batch=options.batch, cache=cached, skip_bad=True)
        found, count = stream.priors_by_sample(tagger.scorer(), places, said)
    return {label: round(found[label], 6) for label in asked} if count >= SMALLEST_PRIOR_SAMPLE // 2 else unless_seen


@dataclass(frozen=True)
class Work:
    """All that a worker needs to finish a shard."""

    bank: bytes
    scored: Sequence[str] | None
    options: Options
    parts: Parts
    priors: Mapping[str, float]

    def open(self, device: str, threads: int) -> tuple[Tagger, Scorer]:
        """The bank's tagger and scorer, in another process and perhaps on another machine."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bank.fewtag"
            path.write_bytes(self.bank)
            tagger = Tagger.load(path, device=device)
        tagger.model.network.limit = threads
        return tagger, tagger.scorer(self.options.threshold, self.priors)


def finish_shards(
    model: Model,
    scorer: Scorer,
    shards: Sequence[Shard],
    work: Work,
    cache: ArrayRows | None,
    advance: Advance = lambda _: None,
) -> dict[int, Counts]:
    """Writes each shard's rows as a part; the network does not idle between shards."""
    options = work.options
    items = (item for shard in shards for item in shard.items(options.batch))
    scores, loaders = work.scored is not None, _DOWNLOADS_AT_ONCE if shards[0].is_remote else None
    rows: list[Tagged] = []
    waiting = list(reversed(shards))
    finished = {}
    for batch in tag_stream(model, scorer, items, batch=options.batch, scores=scores, cache=cache, loaders=loaders):
        rows += batch
        advance(len(batch))
        while waiting and len(rows) >= waiting[-1].size:
            shard = waiting.pop()
            mine, rows = rows[: shard.size], rows[shard.size :]
            finished[shard.number] = work.parts.write(shard, mine, work.scored)
    if waiting:
        raise InputError(f"{waiting[-1].table or 'the source'} changed while it was read; run the same command again")
    return finished


def shard_size(pictures: int, workers: int) -> int:
    """Pictures per shard: many, but few enough for every worker to get several shards.

    >>> shard_size(1_000_000, 8), shard_size(2_000, 2), shard_size(100, 8)
    (1024, 250, 64)
    """
    return max(SMALLEST_SHARD, min(LARGEST_SHARD, math.ceil(pictures / (_SHARDS_A_WORKER * workers))))
