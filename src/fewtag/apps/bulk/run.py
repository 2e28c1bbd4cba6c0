"""`fewtag tag --engine ray`: every picture of an archive tagged by the workers of a cluster, shard by shard."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag import __version__
from fewtag.apps.bulk.cluster import Share, check_address, cluster, share
from fewtag.apps.bulk.manifest import Options, check_same, describe, everywhere
from fewtag.apps.bulk.output import Counts, Output, part_name
from fewtag.apps.bulk.sources import Shard, open_source
from fewtag.apps.progress import Bars
from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.apps.bulk.worker import Job

LARGEST_SHARD, SMALLEST_SHARD = 1024, 64
# a worker that is slower than the others then takes fewer, rather than all waiting for its last one
_SHARDS_A_WORKER = 4


@dataclass(frozen=True)
class Summary:
    """How it went; `seconds` from the first worker being ready on, `startup_seconds` before that."""

    pictures: int
    tagged: int
    failed: int
    seconds: float
    startup_seconds: float
    workers: int
    shards: int
    finished_before: int
    out: str


def tag_archive(
    bank: Path,
    source: str,
    out: str,
    options: Options,
    *,
    address: str | None = None,
    workers: int | None = None,
    shard: int | None = None,
    bars: Bars | None = None,
) -> Summary:
    """Shards that an earlier run of the same bank, source and options finished are left as they are."""
    _check(out, address)
    output, found = Output(everywhere(out)), open_source(source)
    content = _read_bank(bank)
    about = describe(content, source, options)
    size = _size_before(output, about, shard)
    shards = found.shards(size) if size else []
    done = output.finished(shards) if size else {}
    if size and len(done) == len(shards):
        return _summary(done, out, finished_before=len(done))
    since = time.time()
    with cluster(address) as nodes:
        given = share(nodes, workers)
        if not size:
            size = shard or shard_size(len(found), given.workers)
            shards = found.shards(size)
            output.begin(about | {"shard": size})
        missing = [shard for shard in shards if shard.number not in done]
        bars = bars or Bars(shown=False)
        bars.start(f"tagging ({len(done)} shards done before)" if done else "tagging", sum(map(len, missing)))
        ready, finished = _finish(missing, _answers(missing, _job(content, output.out, options, given), given), bars)
        ended = time.time()
    return _summary(
        done | finished,
        out,
        finished_before=len(done),
        workers=min(given.workers, len(missing)),
        seconds=round(ended - ready, 3),
        startup_seconds=round(ready - since, 3),
    )


def _check(out: str, address: str | None) -> None:
    """Refuses before anything is listed, started or written."""
    if out.lower().endswith((".csv", ".jsonl")):
        raise InputError(
            f"--out {out} ends like a table; --engine ray writes a folder of Parquet shards: name a folder"
        )
    if address is not None:
        check_address(address)


def _read_bank(bank: Path) -> bytes:
    """Its model is left to the workers to load."""
    from fewtag.tagger.bank_file import read_header

    labels = read_header(bank)["labels"]
    if not any(label["examples"] or label["kind"] != "none" for label in labels):
        raise InputError(f"the bank {bank} knows no label yet; teach it some with fewtag learn or fewtag define")
    return bank.read_bytes()


def _job(bank: bytes, out: str, options: Options, given: Share) -> "Job":
    from fewtag.apps.bulk.worker import Job

    return Job(bank, out, options, given.threads, given.gpu)


def _size_before(output: Output, about: dict[str, Any], shard: int | None) -> int | None:
    """How large the shards are that were begun there; None where none were."""
    before = output.manifest()
    if before is None:
        return None
    check_same(before, about | {"shard": shard or before.get("shard")}, output.out)
    return int(before["shard"])


def shard_size(pictures: int, workers: int) -> int:
    """Large, but small enough for every worker to have some.

    >>> shard_size(1_000_000, 8), shard_size(2_000, 2), shard_size(100, 8)
    (1024, 250, 64)
    """
    return max(SMALLEST_SHARD, min(LARGEST_SHARD, math.ceil(pictures / (_SHARDS_A_WORKER * workers))))


def _answers(shards: Sequence[Shard], job: "Job", given: Share) -> Iterator[dict[str, Any]]:
    """What the workers say of each shard, as they finish; Ray restarts one that dies and gives its shard out again."""
    import ray
    import ray.data
    from ray.exceptions import RayError

    from fewtag.apps.bulk.worker import Attempts, Worker

    # Ray Data tries for ever after a death, so we count; its own limit goes with Ray 2.64
    attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    items = [{"shard": shard.to_json()} for shard in shards]
    tagged = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        Worker,
        batch_size=1,
        fn_constructor_args=(job, attempts),
        # one at a time: a shard that waits in a worker would die with it
        compute=ray.data.ActorPoolStrategy(
            size=min(given.workers, len(items)), max_tasks_in_flight_per_actor=1, max_concurrent_calls_per_actor=1
        ),
        num_cpus=given.cores,
        num_gpus=1 if given.gpu else None,
    )
    try:
        yield from tagged.iter_rows()
    except RayError as error:
        said = str(error).strip().splitlines()[-1]
        raise InputError(
            f"the workers cannot go on: {said}; see that fewtag {__version__} is installed on every machine, "
            "then run the same command again: finished shards are kept"
        ) from error


def _finish(shards: Sequence[Shard], answers: Iterator[dict[str, Any]], bars: Bars) -> tuple[float, dict[int, Counts]]:
    """When the first worker was ready, and the counts of each shard; refuses if some could not be finished."""
    sizes = {shard.number: len(shard) for shard in shards}
    ready, finished, refusals = math.inf, dict[int, Counts](), dict[int, str]()
    for answer in answers:
        ready = min(ready, answer["ready"])
        number = int(answer["shard"])
        if not answer["refusal"]:
            finished[number] = Counts(int(answer["tagged"]), int(answer["failed"]))
            bars.advance(sizes[number])
            continue
        refusals[number] = answer["refusal"]
        if answer["final"]:
            raise InputError(f"{answer['refusal']} (finished shards are kept: the same command goes on from there)")
    if refusals:
        number, why = min(refusals.items())
        raise InputError(
            f"{len(refusals)} of {len(sizes)} shards could not be tagged, the first is {part_name(number)}: {why} "
            "(the others are finished: the same command goes on from there)"
        )
    assert finished.keys() == sizes.keys(), "Ray Data answers for every shard"
    return ready, finished


def _summary(
    counts: dict[int, Counts],
    out: str,
    *,
    finished_before: int,
    workers: int = 0,
    seconds: float = 0.0,
    startup_seconds: float = 0.0,
) -> Summary:
    tagged = sum(found.tagged for found in counts.values())
    failed = sum(found.failed for found in counts.values())
    return Summary(
        tagged + failed, tagged, failed, seconds, startup_seconds, workers, len(counts), finished_before, out
    )
