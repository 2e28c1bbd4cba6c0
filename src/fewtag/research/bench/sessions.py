"""Correction sessions: a simulated person answers a system's questions, and what the system has learnt is measured.

Half of a phase's pictures can be asked about, the other half measures. Each label is a separate problem: it starts with
random examples or with its name alone, and the system asks about one picture after another, learning each answer before
the next question. All problems of an order advance together, so that one pass over the pictures scores all of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fewtag.core.metrics import average_precision
from fewtag.core.posterior import Classifiers, Fitted, Pictures, Places, Strengths, Vectors
from fewtag.errors import InputError
from fewtag.research.bench.distributed import Bench, collective_refusal, on_rank_zero
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import device_name, measured_rows, read_features, solve
from fewtag.research.bench.recipe import SessionSettings
from fewtag.research.bench.results import (
    SESSIONS,
    SessionRow,
    Summary,
    mean_over_labels,
    run_columns,
    session_aps,
    write_rows,
)
from fewtag.research.data.sampling import halve
from fewtag.research.features.rows import take_all
from fewtag.research.types import Maps, Words

AT_ONCE = 128
"""Pictures scored at once, so few that the intermediate arrays stay in the processor's cache."""


@runtime_checkable
class Corrigible(Protocol):
    """A method that can learn a label from single answers, in a whitened space."""

    strengths: Strengths
    serves_words_alone: bool

    def local(self, maps: Maps) -> Places: ...

    def word_prototypes(self, words: Words) -> Vectors: ...

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], word: NDArray[np.float32]) -> Fitted: ...


class Problem(NamedTuple):
    """A label in one split of the pictures into halves."""

    seed: int
    label: int
    askable: NDArray[np.bool_]
    """images"""
    shown: NDArray[np.bool_]
    """images"""
    first: tuple[int, ...]
    """The examples that it starts with."""


class Gallery:
    """All pictures of a phase, to be scored repeatedly."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def select(self, rows: Sequence[int]) -> Pictures:
        return self.pictures.take(np.array(rows, np.int64))

    def logits(self, classifiers: Classifiers, strengths: Strengths) -> NDArray[np.float32]:
        """problems × images"""
        chunks = np.array_split(self.pictures.places, range(AT_ONCE, len(self.pictures.places), AT_ONCE))
        return np.concatenate([classifiers.logits(some, strengths) for some in chunks]).T


def problems(targets: NDArray[np.bool_], labels: Sequence[str], settings: SessionSettings, seed: int) -> list[Problem]:
    """Every label in every split; the examples depend on the label's name, not on its column."""
    found = []
    for number in range(settings.seeds):
        askable = halve(targets, labels, [seed, number])
        for column, label in enumerate(labels):
            shown = targets[:, column]
            generator = np.random.default_rng([seed, number, *label.encode()])
            first = generator.permutation(np.flatnonzero(askable & shown))[: settings.examples]
            found.append(Problem(number, column, askable, shown, tuple(first.tolist())))
    return found


Measured = Callable[[NDArray[np.float32], Problem, Sequence[int]], float]
"""A measure of a problem's logits, given the pictures that were answered."""


def held_precision(logits: NDArray[np.float32], problem: Problem, _asked: Sequence[int]) -> float:
    """Average precision on the pictures that cannot be asked about."""
    held = ~problem.askable
    return average_precision(logits[held], problem.shown[held])


def run_sessions(
    method: Corrigible,
    gallery: Gallery,
    word_prototypes: Vectors,
    started: Sequence[Problem],
    order: str,
    most: int,
    measured: Measured = held_precision,
) -> Iterator[NDArray[np.float64]]:
    """The measure (by default average precision) of each problem before any answer, after the first, and so on."""
    asked = [list(problem.first) for problem in started]
    askable = np.stack([problem.askable for problem in started])
    for answer in range(most + 1):
        fitted = [
            method.fit_answers(gallery.select(rows), problem.shown[rows], word_prototypes[problem.label])
            for problem, rows in zip(started, asked, strict=True)
        ]
        logits = gallery.logits(Classifiers.of(fitted), method.strengths)
        yield np.array([measured(*one) for one in zip(logits, started, asked, strict=True)])
        likeliest = order == "likeliest" or (order == "mixed" and answer % 2 == 0)
        wish = np.where(askable, logits if likeliest else -np.abs(logits), -np.inf)
        for rows, wishes in zip(asked, wish, strict=True):
            wishes[rows] = -np.inf
            if np.isfinite(best := wishes.max()):
                rows.append(int(np.flatnonzero(wishes == best)[0]))


def session_columns(
    precisions: Sequence[NDArray[np.float64]],
    started: Sequence[Problem],
    labels: Sequence[str],
    settings: SessionSettings,
) -> Iterator[dict[str, object]]:
    """The results of each problem after each recorded number of answers."""
    least = np.minimum.accumulate(precisions, axis=0)
    for number, problem in enumerate(started):
        for answers in settings.answers:
            yield {
                "session_seed": problem.seed,
                "label": labels[problem.label],
                "answers": answers,
                "ap": round(float(precisions[answers][number]), 6),
                "least": round(float(least[answers, number]), 6),
            }


def measure_sessions(
    experiment: Experiment, bench: Bench, *, out: Path, command: str, force: bool = False
) -> dict[str, list[SessionRow]]:
    """The rows of each phase; a phase already measured with the same recipe is read back, not run again."""
    recipe, settings, fabric = experiment.recipe, experiment.recipe.sessions, bench.fabric
    assert settings is not None
    files = {phase: out / f"{recipe.name}.{phase}{SESSIONS}" for phase in recipe.evaluation.phases}
    rows = {} if force else on_rank_zero(fabric, lambda: measured_rows(SessionRow, files, experiment))
    if len(rows) == len(files):
        return rows
    with collective_refusal():
        backbone, method = experiment.build()
        if not isinstance(method, Corrigible) or (settings.examples == 0 and not method.serves_words_alone):
            start = "from answers" if settings.examples else "from a name alone"
            raise InputError(
                f"method {recipe.method.name!r} cannot learn {start}; docs/protocol.md names those that do"
            )
        backbone.to(fabric.device).eval()
    solve(method, experiment, backbone, bench)
    for phase in [phase for phase in files if phase not in rows]:
        with collective_refusal():
            images = experiment.phase(phase)
            started = problems(images.targets, images.labels, settings, recipe.seed)
            words = experiment.words(images.labels)
        maps = take_all(read_features(images, backbone, bench, phase), AT_ONCE)
        local = np.concatenate([method.local(some.float()) for some in maps])
        gallery, word_prototypes = Gallery(Pictures.of(local)), method.word_prototypes(words)
        since, most = time.perf_counter(), max(settings.answers)
        found: list[dict[str, object]] = []
        for order in settings.orders:
            advance, precisions = bench.begin(f"{recipe.name} on {phase}, {order}", most + 1), []
            for precision in run_sessions(method, gallery, word_prototypes, started, order, most):
                precisions.append(precision)
                advance(1)
            asked = {"examples": settings.examples, "order": order}
            found += [asked | columns for columns in session_columns(precisions, started, images.labels, settings)]
        shared = run_columns(recipe, phase, command=command, device=device_name(fabric.device))
        shared |= {"seconds": round(time.perf_counter() - since, 2), "data_digest": images.digest}
        rows[phase] = told = [SessionRow.model_validate(shared | one) for one in found]
        inputs = experiment.inputs_digest
        on_rank_zero(fabric, partial(write_rows, files[phase], told, SessionRow, recipe=recipe, inputs=inputs))
    return rows


def summarise_sessions(rows: Sequence[SessionRow]) -> dict[str, Summary]:
    """By order: the mean AP after each number of answers, with its 95 % interval over labels."""
    found: dict[str, Summary] = {row.order: {} for row in rows}
    for order, answers in sorted({(row.order, row.answers) for row in rows}):
        mean, interval = mean_over_labels(session_aps(rows, order, answers))
        found[order][f"AP after {answers}"] = {"mean": mean, "interval": interval}
    return found
