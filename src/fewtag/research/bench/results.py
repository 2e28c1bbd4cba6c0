"""Result rows: one per episode, with all that is needed to measure it again, in Parquet files."""

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from statistics import fmean, stdev
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float
from pydantic import Json, ValidationError
from scipy.special import stdtrit

import fewtag
from fewtag.core.metrics import average_precision, average_precisions
from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.research.bench.recipe import Recipe, Settings
from fewtag.research.methods import METHODS

METRICS = tuple(f"{scope}_{name}" for scope in ("micro", "macro") for name in ("precision", "recall", "f1", "ap"))


def episode_metrics(
    scores: Float[np.ndarray, "images labels"],
    targets: Bool[np.ndarray, "images labels"],
    threshold: float = 0.5,
) -> dict[str, float]:
    """Precision, recall, F1 and AP, micro and macro, of one episode's query images by their probabilities or logits.

    Macro-F1 is the harmonic mean of macro-precision and macro-recall, as in the paper, not the mean of the labels' F1.
    AP is not interpolated. A label that no image is tagged with has precision 0, one that no image shows has AP 0.
    """
    predicted = scores > threshold
    right, tagged, shown = (np.sum(each, axis=0) for each in (predicted & targets, predicted, targets))
    values = {
        "micro_precision": right.sum() / max(tagged.sum(), 1),
        "micro_recall": right.sum() / max(shown.sum(), 1),
        "micro_ap": np.nan_to_num(average_precision(scores.ravel(), targets.ravel())),
        "macro_precision": np.mean(right / np.maximum(tagged, 1)),
        "macro_recall": np.mean(right / np.maximum(shown, 1)),
        "macro_ap": np.mean(label_aps(scores, targets)),
    }
    for scope in ("micro", "macro"):
        precision, recall = values[f"{scope}_precision"], values[f"{scope}_recall"]
        values[f"{scope}_f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {name: float(values[name]) for name in METRICS}


def label_aps(scores: Float[np.ndarray, "images labels"], targets: Bool[np.ndarray, "images labels"]) -> list[float]:
    """The average precision of each label, whose mean is macro-AP."""
    return [float(value) for value in np.nan_to_num(average_precisions(scores.T, targets.T))]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean over episodes, seeds or labels and the half width of its 95 % interval by Student's t.

    >>> mean_and_interval([1.0, 2.0, 3.0])
    (2.0, 2.48...)
    """
    if len(values) < 2:
        return fmean(values), math.nan
    return fmean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))


def mean_over_labels(values: Mapping[tuple[int, str], float]) -> tuple[float, float]:
    """Mean and interval over labels of a number per seed and label: seeds split the same pictures anew, no new labels.

    >>> mean_over_labels({(0, "dog"): 1.0, (1, "dog"): 3.0, (0, "cat"): 5.0})[0]
    3.5
    """
    labels = dict.fromkeys(label for _, label in values)
    return mean_and_interval([fmean(each for (_, name), each in values.items() if name == label) for label in labels])


Summary = dict[str, dict[str, float]]


class MeasuredRow(Settings):
    """The columns about a run that every row has. An unknown value is None, and null in the file."""

    run: str
    method: str
    options: Json[dict[str, Any]]
    """The method's options in the recipe, given and stored as JSON."""
    data: str
    split: str
    phase: str
    note: str
    backbone: str
    frozen: bool
    size: int
    words: str
    names: str | None = None
    """Which class names the method used: all, or a clean list without those that overlap new labels."""
    space: str | None = None
    """The whitened space in which a method without its own worked."""
    seed: int
    recipe_digest: str
    command: str
    commit: str
    device: str | None = None
    torch: str | None = None
    timm: str | None = None
    seconds: float | None = None
    """The duration of the whole phase."""
    data_digest: str | None = None


class ResultRow(MeasuredRow):
    """One episode of one run on one phase."""

    sampling: str | None = None
    supports: str | None = None
    shots: int
    queries: int
    draws_digest: str | None = None
    base_pictures: int | None = None
    """The number of pictures that the method learnt from, by training or solving."""
    training: Json[dict[str, Any]] | None = None
    """All training settings, given and stored as JSON."""
    trained_episodes: int | None = None
    """The episode of the kept weights, the best on validation labels if there are any; 0: untrained; None: never
    trained."""
    planned_episodes: int | None = None
    episodes_a_step: int | None = None
    validation_macro_ap: float | None = None
    label_aps: Json[dict[str, float]] | None = None
    """Each label's average precision, averaged over the phase's episodes, given and stored as JSON."""
    episode: int
    micro_precision: float
    micro_recall: float
    micro_f1: float
    micro_ap: float
    macro_precision: float
    macro_recall: float
    macro_f1: float
    macro_ap: float


class SessionRow(MeasuredRow):
    """One label of one session after a number of answers."""

    examples: int
    order: str
    session_seed: int
    label: str
    answers: int
    ap: float
    """Average precision on the half that measures."""
    least: float
    """The lowest average precision since the session began."""


def session_aps(rows: Sequence[SessionRow], order: str, answers: int) -> dict[tuple[int, str], float]:
    """AP of each seed and label after a number of answers."""
    return {(row.session_seed, row.label): row.ap for row in rows if (row.order, row.answers) == (order, answers)}


SESSIONS = ".sessions.parquet"
"""The ending of the names of files of session rows."""

Row = TypeVar("Row", bound=MeasuredRow)
_ARROW_TYPES = {str: pa.string(), dict: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _arrow_type(annotation: Any) -> pa.DataType:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return _ARROW_TYPES[get_origin(annotation) or annotation]


def schema(kind: type[MeasuredRow]) -> pa.Schema:
    """The columns of a file of such rows, the same in every file."""
    return pa.schema([(name, _arrow_type(field.annotation)) for name, field in kind.model_fields.items()])


def run_columns(recipe: Recipe, phase: str, *, command: str, device: str) -> dict[str, Any]:
    """The columns of `MeasuredRow` that depend only on the recipe and on where it runs."""
    names, space = recipe.names, recipe.space
    return {
        "run": recipe.name,
        "method": recipe.method.name,
        "options": json.dumps(recipe.method.options),
        "data": recipe.data.name,
        "split": recipe.data.split,
        "phase": phase,
        "note": recipe.data.note,
        "backbone": recipe.backbone.name,
        "frozen": recipe.backbone.frozen,
        "size": recipe.backbone.size,
        "words": recipe.words.source,
        "names": names.variant if names is not None and METHODS[recipe.method.name].uses_names else None,
        "space": None if space is None else f"{space.size}, shrinkage {space.shrinkage:g}",
        "seed": recipe.seed,
        "recipe_digest": recipe.digest,
        "command": command,
        "commit": commit(),
        "device": device,
        "torch": version("torch"),
        "timm": version("timm"),
    }


def result_rows(
    recipe: Recipe,
    phase: str,
    metrics: Sequence[Mapping[str, float]],
    *,
    command: str,
    device: str,
    facts: Mapping[str, Any] | None = None,
) -> list[ResultRow]:
    """A row for each episode's metrics; `facts` (about training, say) are columns that the recipe does not set."""
    evaluation, training = recipe.evaluation, recipe.training
    shared = {
        **run_columns(recipe, phase, command=command, device=device),
        **evaluation.model_dump(include={"sampling", "supports", "shots", "queries"}),
        "training": None if training is None else training.model_dump_json(),
        **(facts or {}),
    }
    return [
        ResultRow.model_validate({**shared, "episode": episode} | {name: round(numbers[name], 6) for name in METRICS})
        for episode, numbers in enumerate(metrics)
    ]


def write_rows(
    path: Path,
    rows: Sequence[MeasuredRow],
    kind: type[MeasuredRow] = ResultRow,
    *,
    recipe: Recipe | None = None,
    inputs: str = "",
) -> None:
    """Writes all rows or nothing; the file's metadata has the recipe, with every default, and the inputs' digest."""
    table = pa.Table.from_pylist([row.model_dump(round_trip=True) for row in rows], schema=schema(kind))
    content = BytesIO()
    # statistics and a second schema would take half of a file with a few hundred rows
    options = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(content, table.schema, **options) as writer:
        writer.write_table(table)
        if recipe is not None:
            writer.add_key_value_metadata({"recipe": recipe.effective.model_dump_json(), "inputs": inputs})
    write_atomically(path, content.getvalue())


def read_rows(path: Path) -> list[ResultRow]:
    """The episodes' rows of one file; columns that were added after the file was written are None."""
    return read_rows_of(ResultRow, path)


def read_rows_of(kind: type[Row], path: Path) -> list[Row]:
    """The rows of this kind in a file."""
    try:
        return [kind.model_validate(row) for row in pq.read_table(BytesIO(path.read_bytes())).to_pylist()]
    except pa.ArrowException as error:
        raise InputError(f"{path} is no Parquet file, or a part of one; measure it again: bench --force") from error
    except ValidationError as error:
        wrong = error.errors()[0]
        column = f"column {wrong['loc'][0]}: {wrong['msg']}"
        raise InputError(f"{path} holds no result rows ({column}); move it elsewhere, or bench --force") from error


def read_inputs(path: Path) -> str:
    """The digest of what the rows of a file were made from; empty in files of before it was kept."""
    return (pq.read_metadata(path).metadata or {}).get(b"inputs", b"").decode()


def write_reason(folder: Path, recipe: Recipe) -> None:
    """Records why a run has no rows, beside the rows of the others."""
    facts = {"run": recipe.name, "method": recipe.method.name, "data": recipe.data.name, "reason": recipe.not_measured}
    write_atomically(folder / f"{recipe.name}.not-measured.json", json.dumps(facts, indent=2).encode())


def summarise(rows: Sequence[ResultRow]) -> Summary:
    """The mean of each metric over the episodes, with the half width of its 95 % interval."""
    found = {name: mean_and_interval([getattr(row, name) for row in rows]) for name in METRICS}
    return {name: {"mean": mean, "interval": interval} for name, (mean, interval) in found.items()}


def commit() -> str:
    """The commit of this code; where it runs outside its repository, FEWTAG_COMMIT gives it."""
    return os.environ.get("FEWTAG_COMMIT") or _commit_of_repository()


@cache
def _commit_of_repository() -> str:
    """With `-dirty` if more than rows changed since: those that are being written say nothing about the code."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"fewtag {fewtag.__version__}"  # an installed copy
