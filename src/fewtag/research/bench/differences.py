"""Which differences between systems are real: each against the paper's model, and against the closed form."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fewtag.research.bench.compare import Difference, compare
from fewtag.research.bench.grouping import best_reading, closed_form
from fewtag.research.bench.measured import Measured
from fewtag.research.bench.published import PublishedTable
from fewtag.research.bench.tables import difference_cell, markdown

_PHASES = ("test", "mixed")


class Line(NamedTuple):
    """One run less another, on a phase."""

    run: Measured
    less: Measured
    phase: str
    difference: Difference


class Compared(NamedTuple):
    """All comparisons of a data set's systems, corrected for their number."""

    runs: Sequence[Measured]
    references: Sequence[Measured]
    lines: Sequence[Line]

    def find(self, run: Measured, less: Measured, phase: str) -> Difference | None:
        wanted = (id(run), id(less), phase)
        return next(
            (line.difference for line in self.lines if (id(line.run), id(line.less), line.phase) == wanted), None
        )

    def as_json(self) -> dict[str, Any]:
        return {
            f"{run.reference} less {less.reference} on {run.data} {phase}": difference._asdict()
            for run, less, phase, difference in self.lines
        }


def compare_systems(runs: Sequence[Measured], table: PublishedTable) -> Compared:
    """Every run less the paper's best reading, and less the closed form; runs on other episodes are left out."""
    reading = best_reading(runs, table)
    references = [run for run in (reading, closed_form(runs, reading)) if run is not None]
    wanted = [
        (run, less, phase)
        for place, less in enumerate(references)
        for run in runs
        for phase in _PHASES
        if run not in references[: place + 1] and phase in run.phases and phase in less.phases
    ]
    found = compare([(run.phases[phase], less.phases[phase]) for run, less, phase in wanted])
    lines = [Line(*names, each) for names, each in zip(wanted, found, strict=True) if each is not None]
    return Compared(runs, references, lines)


def differences_section(title: str, compared: Compared) -> Iterator[str]:
    """A sentence on all comparisons, and a table of them."""
    if not compared.lines:
        return
    yield f"### {title}\n"
    yield f"{_sentence(compared)}\n"
    phases = [phase for phase in _PHASES if any(line.phase == phase for line in compared.lines)]
    columns = [(less, phase) for less in compared.references for phase in phases]
    shown = {id(line.run) for line in compared.lines}
    yield from markdown(
        ["system", *(f"less {less.name}, {phase}" for less, phase in columns)],
        [
            [run.name, *(_cell(compared.find(run, less, phase)) for less, phase in columns)]
            for run in compared.runs
            if id(run) in shown
        ],
    )


def _sentence(compared: Compared) -> str:
    alike = [line for line in compared.lines if not line.difference.real]
    number = len(compared.lines)
    if not alike:
        return f"In each of {number} comparisons the difference is real."
    named = "; ".join(f"{line.run.name} and {line.less.name} on `{line.phase}`" for line in alike)
    return f"In {number - len(alike)} of {number} comparisons the difference is real. Not told apart: {named}."


def _cell(difference: Difference | None) -> str:
    if difference is None:
        return difference_cell(None)
    p = "< 0.001" if difference.p < 0.001 else f"= {difference.p:.3f}"
    return f"{difference_cell(difference)}, p {p}"
