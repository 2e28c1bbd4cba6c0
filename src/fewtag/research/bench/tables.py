"""The report's tables in Markdown. A cell of scores is macro-AP / micro-AP in percent, each with its interval."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from fewtag.research.bench.compare import Difference, compare
from fewtag.research.bench.measured import Measured, Results, phases_of
from fewtag.research.bench.metrics import mean_and_interval
from fewtag.research.bench.published import PublishedSystem, PublishedTable
from fewtag.research.bench.results import Row

NONE = "–"
_DETAILS = tuple(f"{scope}_{name}" for scope in ("macro", "micro") for name in ("precision", "recall", "f1"))


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; a bar in a cell does not end it."""
    for number, cells in enumerate((head, *lines)):
        assert len(cells) == len(head), cells
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        if number == 0:
            yield "|" + "---|" * len(head)
    yield ""


def score(run: Measured, phase: str) -> str:
    """`43.17 ± 0.48 / 33.33 ± 0.53`, if the run was measured on the phase."""
    if phase not in run.phases:
        return NONE
    return " / ".join(percent(run.phases[phase], metric) for metric in ("macro_ap", "micro_ap"))


def percent(rows: Sequence[Row], metric: str) -> str:
    mean, interval = mean_and_interval([row[metric] for row in rows])
    return f"{100 * mean:.2f}" + ("" if math.isnan(interval) else f" ± {100 * interval:.2f}")


def difference_cell(difference: Difference | None) -> str:
    """`+4.55 ± 0.40`, or `≈ +0.13 ± 0.52` where the test does not tell it from nothing."""
    if difference is None:
        return NONE
    mean = f"{100 * difference.mean:+z.2f}".replace("-", "−")
    return f"{'' if difference.real else '≈ '}{mean} ± {100 * difference.interval:.2f}"


def made_of(run: Measured) -> str:
    """The backbone and the words, as short as they can be told."""
    words = [part.rpartition("#")[2].rpartition("/")[2] for part in str(run.about["words"]).split("+")]
    short = " + ".join(word.removeprefix(f"{run.data.removesuffix('-original')}_") for word in words)
    return f"{str(run.about['backbone']).replace('+', ' + ')}, {short}"


def training(row: Row) -> str:
    """What the row's model had learnt from, in a few words."""
    if "trained_episodes" not in row:
        return "none"
    how = "frozen backbone" if row["frozen"] else "end to end"
    if "validation_macro_ap" not in row:
        return f"{how}, {row['trained_episodes']} episodes, not validated"
    best = f"best on validation ({100 * row['validation_macro_ap']:.1f})"
    return f"{how}, {best} at episode {row['trained_episodes']} of at most {row['planned_episodes']}"


def seconds(run: Measured) -> str:
    """How long its first phase took to measure."""
    return str(run.about.get("seconds", NONE))


def overview(runs: Sequence[Measured], table: PublishedTable, model: PublishedSystem) -> Iterator[str]:
    """The runs by their macro-AP, each with its lead on the next one; the paper's own number among them."""
    phases = [phase for phase in phases_of(runs) if phase in ("test", "mixed")]
    leads = compare([(run.phases["test"], next_.phases["test"]) for run, next_ in pairwise(runs)])
    lines = [
        (run.mean() * 100, [run.name, made_of(run), *(score(run, phase) for phase in phases), difference_cell(lead)])
        for run, lead in zip(runs, [*leads, None], strict=True)
    ]
    printed = table.number(model, "macro_ap") or 0.0
    blank = [NONE] * (len(phases) - 1)
    lines.append((printed, [f"*{model.system}, as published*", "", f"*{_published(table, model)}*", *blank, ""]))
    lines.sort(key=lambda line: -line[0])
    yield from markdown(["system", "backbone, words", *phases, "ahead of the next"], [cells for _, cells in lines])


def beside_published(table: PublishedTable, results: Results) -> Iterator[str]:
    """The paper's table, with a line for each run that stands beside a system, or the reason why there is none."""
    runs = [run for system in table.rows for run in results.beside(system, table)]
    phases = phases_of(runs) or ["test"]
    full = next((run for run in runs if run.reference == table.against and "test" in run.phases), None)
    against = _against(runs, full) if full else {}
    head = ["system", "published", "run", *phases, *(["less the full model"] if full else []), "seconds", "how"]
    lines: list[list[str]] = []
    for system in table.rows:
        found: list[list[str]] = []
        for run in results.beside(system, table):
            less = [difference_cell(against.get(id(run)))] if full else []
            how = f"{made_of(run)}; training: {training(run.about)}"
            found.append([run.name, *(score(run, phase) for phase in phases), *less, seconds(run), how])
        reasons = results.why_not(system)
        if not found and not reasons and system.numbers:
            reasons = {NONE: "no run yet"}
        blank = [NONE] * (len(head) - 4)
        found += [[run, *blank, f"not measured here: {reason}"] for run, reason in reasons.items()]
        for number, cells in enumerate(found):
            lines.append([*((system.system, _published(table, system)) if number == 0 else ("", "")), *cells])
    yield from markdown(head, lines)


def _against(runs: Sequence[Measured], full: Measured) -> Mapping[int, Difference | None]:
    """Each run's difference to the full model on test, corrected for the number of them."""
    others = {id(run): run for run in runs if run is not full and "test" in run.phases}
    found = compare([(run.phases["test"], full.phases["test"]) for run in others.values()])
    return dict(zip(others, found, strict=True))


def precision_and_recall(runs: Sequence[Measured], table: PublishedTable | None = None) -> Iterator[str]:
    """Precision, recall and F1 on test, the paper's first."""
    lines = []
    for system in table.rows if table else ():
        numbers = [table.number(system, metric) for metric in _DETAILS] if table else []
        lines.append([f"*published:* {system.system}", *(NONE if n is None else f"{n:.2f}" for n in numbers)])
    lines += [[run.name, *(percent(run.phases["test"], metric) for metric in _DETAILS)] for run in runs]
    yield from markdown(["system", *(name.replace("_", " ").replace("f1", "F1") for name in _DETAILS)], lines)


def plain(runs: Sequence[Measured]) -> Iterator[str]:
    """Runs that no published system stands beside, by their macro-AP."""
    phases = phases_of(runs)
    first = phases[0]
    ranked = sorted(runs, key=lambda run: (first not in run.phases, -run.mean(next(iter(run.phases)))))
    yield from markdown(
        ["system", "backbone, words", "training", *phases, "seconds"],
        [
            [run.name, made_of(run), training(run.about), *(score(run, phase) for phase in phases), seconds(run)]
            for run in ranked
        ],
    )


def by_shots(curves: Mapping[str, Mapping[int, Measured]], phase: str) -> Iterator[str]:
    """A line a method, a column a number of examples."""
    shots = sorted({number for curve in curves.values() for number in curve})
    lines = [
        [name, *(score(curve[number], phase) if number in curve else NONE for number in shots)]
        for name, curve in curves.items()
    ]
    yield from markdown([f"system, on `{phase}`", *(f"{n} shot{'s' if n > 1 else ''}" for n in shots)], lines)


def _published(table: PublishedTable, system: PublishedSystem) -> str:
    numbers = [table.number(system, metric) for metric in ("macro_ap", "micro_ap")]
    return " / ".join(f"{number:.2f}" for number in numbers if number is not None) or NONE
