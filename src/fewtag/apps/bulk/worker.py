"""What one process of the cluster does: it holds the model once and tags shard after shard."""

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from fewtag import __version__
from fewtag.apps.bulk.manifest import Options
from fewtag.apps.bulk.output import Counts, Output
from fewtag.apps.bulk.reading import read_shard
from fewtag.apps.bulk.sources import Shard
from fewtag.apps.tables import Tagged, arrow_table, tagged
from fewtag.errors import InputError
from fewtag.pictures.decode import stack
from fewtag.tagger.tagger import Tagger

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; the bank travels as bytes, since it need not lie on every machine."""

    bank: bytes
    out: str
    options: Options
    threads: int
    gpu: bool
    version: str = __version__


class Attempts:
    """How often each shard was begun, kept outside of the workers, since they may die of it."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, shard: int) -> int:
        self._begun[shard] += 1
        return self._begun[shard]


class Worker:
    """Ray Data makes one in each process, and again after a death; a refusal is an answer, never a death."""

    def __init__(self, job: Job, attempts: Any) -> None:
        self._job, self._attempts = job, attempts
        self._tagger: Tagger | None = None
        self._refusal = ""
        try:
            self._tagger = open_tagger(job)
        except InputError as error:
            self._refusal = str(error)
        self._ready = time.time()  # not monotonic: it is compared with another machine's

    def __call__(self, batch: dict[str, ndarray]) -> dict[str, list[Any]]:
        """A row for each shard: its counts, or why it could not be finished and whether the others cannot either."""
        answers = [self._tag(Shard.from_json(str(text))) for text in batch["shard"]]
        return {key: [answer[key] for answer in answers] for key in answers[0]}

    def _tag(self, shard: Shard) -> dict[str, Any]:
        import ray

        counts, refusal, final = Counts(0, 0), self._refusal, True
        if self._tagger is not None:
            attempts = ray.get(self._attempts.begin.remote(shard.number))
            try:
                table, failures = tag_shard(self._tagger, shard, self._job, attempts)
            except InputError as error:
                refusal, final = str(error), False
            else:
                counts, refusal = self._write(shard, table, failures)
        return {
            "shard": shard.number,
            "tagged": counts.tagged,
            "failed": counts.failed,
            "refusal": refusal,
            "final": final,
            "ready": self._ready,
        }

    def _write(self, shard: Shard, table: "pyarrow.Table", failures: Sequence[Tagged]) -> tuple[Counts, str]:
        try:
            return Output(self._job.out).write(shard, table, failures), ""
        except InputError as error:
            return Counts(0, 0), str(error)


def open_tagger(job: Job) -> Tagger:
    """The bank's tagger, on the GPU where the worker has one."""
    import torch

    if job.version != __version__:
        raise InputError(
            f"a worker has fewtag {__version__}, this is {job.version}; install the same one on every machine"
        )
    torch.set_num_threads(job.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.fewtag"
        path.write_bytes(job.bank)
        return Tagger.load(path).to("cuda" if job.gpu else "cpu")


def tag_shard(tagger: Tagger, shard: Shard, job: Job, attempt: int = 1) -> tuple["pyarrow.Table", list[Tagged]]:
    """Tags by picture, and the failures; a shard that its workers keep dying of is refused."""
    import pyarrow

    options = job.options
    if attempt > options.deaths:
        raise InputError(
            f"its worker died {options.deaths} times: too little memory, or a picture that kills its reader; "
            "give it fewer --workers, or move the pictures away that are suspect"
        )
    labels = tagger.classes_
    own = tagger.thresholds_
    thresholds = [own[label] if options.threshold is None else options.threshold for label in labels]
    scored = labels if options.scores else None
    failures: list[Tagged] = []
    tables: list[pyarrow.Table] = [arrow_table([], scored)]
    for read in read_shard(shard, tagger.model.backbone.size, options.batch):
        pixels = [found for _, found in read if not isinstance(found, InputError)]
        found = iter(tagger.probabilities(tagger.encode_pixels(stack(pixels))) if pixels else ())
        failures += [Tagged(name, failure=str(error)) for name, error in read if isinstance(error, InputError)]
        names = [name for name, picture in read if not isinstance(picture, InputError)]
        rows = [
            tagged(name, values.tolist(), labels, thresholds, scores=options.scores)
            for name, values in zip(names, found, strict=True)
        ]
        tables.append(arrow_table(rows, scored))
    return pyarrow.concat_tables(tables).combine_chunks(), failures
