"""The page's tables in Markdown. A cell of scores is macro-AP / micro-AP in percent, each with its interval."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from fewtag.errors import plural
from fewtag.research.bench.report.comparison import (
    ONE_SEED,
    PHASES,
    Difference,
    Differences,
    Pair,
    SystemComparison,
    compare,
)
from fewtag.research.bench.report.results import (
    Curves,
    MeasuredRun,
    PublishedSystem,
    PublishedTable,
    Results,
    Systems,
    phases_of,
    tested,
)
from fewtag.research.bench.results import mean_and_interval

NONE = "–"
SPREAD = "`test`, ± over seeds and labels"
_DETAILS = tuple(f"{scope}_{name}" for scope in ("macro", "micro") for name in ("precision", "recall", "f1"))


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; bars in cells are escaped."""
    for number, cells in enumerate((head, *lines)):
        assert len(cells) == len(head), cells
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        if number == 0:
            yield "|" + "---|" * len(head)
    yield ""


def score_cell(run: MeasuredRun, phase: str) -> str:
    """`43.17 ± 0.48 / 33.33 ± 0.53`, if the run was measured on the phase."""
    if phase not in run.phases:
        return NONE
    return " / ".join(_percent(run, phase, metric) for metric in ("macro_ap", "micro_ap"))


def difference_cell(difference: Difference | None) -> str:
    """`+4.55 ± 0.40`, or `≈ +0.13 ± 0.52` if it is not significant; followed by what it is over, if not episodes."""
    if difference is None:
        return NONE
    mean = f"{100 * difference.mean:+z.2f}".replace("-", "−")
    over = "" if difference.over == "episodes" else f" ({difference.over})"
    return f"{'' if difference.real else '≈ '}{mean} ± {100 * difference.interval:.2f}{over}"


def spread_cell(run: MeasuredRun) -> str:
    """`5 seeds ± 0.61; labels ± 9.80`: intervals of macro-AP on test over what the episodes do not vary."""
    if "test" not in run.phases:
        return NONE
    seeds, labels = run.seed_means("test"), list(run.label_aps("test").values())
    told = []
    if len(seeds) > 1:
        told.append(f"{len(seeds)} seeds ± {100 * mean_and_interval(seeds)[1]:.2f}")
    elif run.shared.trained_episodes is not None:
        told.append("one seed")
    if len(labels) > 1:
        told.append(f"{len(labels)} labels ± {100 * mean_and_interval(labels)[1]:.1f}")
    return "; ".join(told) or NONE


def overview_table(systems: Systems) -> Iterator[str]:
    """The runs by macro-AP, each with its lead over the next one; the paper's own number among them."""
    _, table, runs = systems
    phases = [phase for phase in phases_of(runs) if phase in PHASES]
    neighbours = {run: Pair(run, next_) for run, next_ in pairwise(runs)}
    leads = compare(neighbours.values())
    lines = []
    for run in runs:
        lead = difference_cell(leads.get(neighbours[run]) if run in neighbours else None)
        pictures = run.shared.base_pictures
        made_of = _made_of(run) + ("" if pictures is None else f"; {pictures:,} base pictures") + _untrained(run)
        cells = [run.run, made_of, *(score_cell(run, phase) for phase in phases), spread_cell(run), lead]
        lines.append((run.mean() * 100, cells))
    if table is not None:
        printed = table.number(table.model, "macro_ap") or 0.0
        blank = [NONE] * len(phases)
        cells = [f"*{table.model.system}, as published*", "", f"*{_published_cell(table, table.model)}*", *blank, ""]
        lines.append((printed, cells))
        lines.sort(key=lambda line: -line[0])
    yield from markdown_table(
        ["system", "backbone, words", *phases, SPREAD, "ahead of the next"], [cells for _, cells in lines]
    )


def comparison_section(comparison: SystemComparison) -> Iterator[str]:
    """The number of significant differences, a table of systems not told apart, and one of all comparisons."""
    differences = comparison.differences
    if not differences:
        return
    yield f"### {comparison.systems.data_set.name}\n"
    real = sum(difference.real for difference in differences.values())
    yield f"In {real} of {len(differences)} comparisons the difference is real.\n"
    yield from _not_told_apart(differences)
    phases = [phase for phase in PHASES if any(pair.phase == phase for pair in differences)]
    columns = [(baseline, phase) for baseline in comparison.baselines for phase in phases]
    shown = {pair.run for pair in differences}
    yield from markdown_table(
        ["system", *(f"less {baseline.run}, {phase}" for baseline, phase in columns)],
        [
            [run.run, *(_tested_cell(differences.get(Pair(run, *column))) for column in columns)]
            for run in comparison.systems.runs
            if run in shown
        ],
    )


def published_table(table: PublishedTable, results: Results) -> Iterator[str]:
    """The paper's table, with a line for each run beside its system, or the reason why there is none."""
    runs = [run for system in table.rows for run in results.beside(system, table)]
    phases = phases_of(runs) or ["test"]
    measured = {run.reference: run for run in tested(results.runs)}
    full = {run: measured[table.baseline(run)] for run in runs if table.baseline(run) in measured}
    against = compare(Pair(run, baseline) for run, baseline in full.items() if run != baseline)
    less_full = ["less the full model"] if full else []
    head = ["system", "published", "run", *phases, SPREAD, *less_full, "seconds", "how"]
    lines: list[list[str]] = []
    for system in table.rows:
        beside: list[list[str]] = []
        for run in results.beside(system, table):
            less = [difference_cell(against.get(Pair(run, full[run])) if run in full else None)] if full else []
            how = f"{_made_of(run)}; training: {training_cell(run)}"
            scores = [*(score_cell(run, phase) for phase in phases), spread_cell(run)]
            beside.append([run.run, *scores, *less, _seconds(run), how])
        reasons = {run.rpartition("/")[2]: results.reasons[run] for run in system.runs if run in results.reasons}
        if not beside and not reasons and system.numbers:
            reasons = {NONE: "no run yet"}
        blank = [NONE] * (len(head) - 4)
        beside += [[run, *blank, f"not measured here: {reason}"] for run, reason in reasons.items()]
        for number, cells in enumerate(beside):
            lines.append([*((system.system, _published_cell(table, system)) if number == 0 else ("", "")), *cells])
    yield from markdown_table(head, lines)


def precision_and_recall_table(runs: Sequence[MeasuredRun], table: PublishedTable | None = None) -> Iterator[str]:
    """Precision, recall and F1 on test, the paper's first."""
    lines = []
    for system in table.rows if table else ():
        numbers = [table.number(system, metric) for metric in _DETAILS] if table else []
        lines.append([f"*published:* {system.system}", *(NONE if n is None else f"{n:.2f}" for n in numbers)])
    lines += [[run.run, *(_percent(run, "test", metric) for metric in _DETAILS)] for run in runs]
    yield from markdown_table(["system", *(name.replace("_", " ").replace("f1", "F1") for name in _DETAILS)], lines)


def setting_table(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Runs of one setting that belong to no published system, by macro-AP."""
    phases = phases_of(runs)
    ranked = sorted(runs, key=lambda run: (phases[0] not in run.phases, -run.mean(next(iter(run.phases)))))
    yield from markdown_table(
        ["system", "backbone, words", "training", *phases, SPREAD, "seconds"],
        [
            [
                run.run,
                _made_of(run),
                training_cell(run),
                *(score_cell(run, phase) for phase in phases),
                spread_cell(run),
                _seconds(run),
            ]
            for run in ranked
        ],
    )


def shots_tables(curves: Curves) -> Iterator[str]:
    """A table per phase: a line per method, a column per number of examples."""
    shots = sorted({number for curve in curves.values() for number in curve})
    for phase in phases_of(run for curve in curves.values() for run in curve.values()):
        lines = [
            [name, *(score_cell(curve[number], phase) if number in curve else NONE for number in shots)]
            for name, curve in curves.items()
        ]
        yield from markdown_table([f"system, on `{phase}`", *(plural(number, "shot") for number in shots)], lines)


def _percent(run: MeasuredRun, phase: str, metric: str) -> str:
    mean, interval = mean_and_interval(run.values(phase, metric))
    return f"{100 * mean:.2f}" + ("" if math.isnan(interval) else f" ± {100 * interval:.2f}")


def _published_cell(table: PublishedTable, system: PublishedSystem) -> str:
    numbers = [table.number(system, metric) for metric in ("macro_ap", "micro_ap")]
    return " / ".join(f"{number:.2f}" for number in numbers if number is not None) or NONE


def _made_of(run: MeasuredRun) -> str:
    """The backbone and the words, abbreviated."""
    words = [part.rpartition("#")[2].rpartition("/")[2] for part in run.shared.words.split("+")]
    short = " + ".join(word.removeprefix(f"{run.shared.split}_") for word in words)
    names = f", {run.shared.names} class names" if run.shared.names else ""
    space = ", whitened" if run.shared.space else ""
    return f"{run.shared.backbone.replace('+', ' + ')}{space}, {short}{names}"


def training_cell(run: MeasuredRun) -> str:
    """What the run's model, or the models of its seeds, learnt from, in a few words."""
    row, seeds = run.shared, [rows[0] for rows in run.by_seed(next(iter(run.phases)))]
    pictures = "" if row.base_pictures is None else f" on {row.base_pictures:,} base pictures"
    if row.trained_episodes is None:
        return f"none; solved{pictures}" if pictures else "none"
    how = ("frozen backbone" if row.frozen else "end to end") + pictures
    kept = sorted(each.trained_episodes or 0 for each in seeds)
    at = f"{kept[0]}" if kept[0] == kept[-1] else f"{kept[0]} to {kept[-1]}"
    scores = [each.validation_macro_ap for each in seeds if each.validation_macro_ap is not None]
    if not scores:
        return f"{how}, {at} episodes, not validated"
    best = f"{100 * sum(scores) / len(scores):.1f}"
    if kept[-1] == 0:
        return f"{how}{_untrained(run)}: no later episode did better on validation ({best})"
    if (row.training or {}).get("keep") == "last":
        return f"{how}, {at} episodes, not stopped (validation at the end {best})"
    return f"{how}, best on validation ({best}) at episode {at} of at most {row.planned_episodes}{_untrained(run)}"


def _untrained(run: MeasuredRun) -> str:
    """A remark that training was validated and the untrained weights were kept, by all seeds or by some; else empty."""
    kept = [rows[0].trained_episodes for rows in run.by_seed(next(iter(run.phases)))]
    if 0 not in kept:
        return ""
    return ", **kept untrained**" if not any(kept) else f", **{kept.count(0)} of {len(kept)} seeds kept untrained**"


def _seconds(run: MeasuredRun) -> str:
    """The duration of measuring the first phase."""
    return NONE if run.shared.seconds is None else str(run.shared.seconds)


def _not_told_apart(differences: Differences) -> Iterator[str]:
    """A line for each baseline and the phases on which the same systems are not told from it; each named once."""
    phases: dict[tuple[MeasuredRun, MeasuredRun], list[str]] = {}
    for (run, baseline, phase), difference in differences.items():
        if not difference.real:
            phases.setdefault((baseline, run), []).append(f"`{phase}`")
    systems: dict[tuple[str, str], list[str]] = {}
    for (baseline, run), names in phases.items():
        systems.setdefault((baseline.run, ", ".join(names)), []).append(run.run)
    if systems:
        lines = [[*key, ", ".join(names)] for key, names in systems.items()]
        yield from markdown_table(["not told from", "on", "systems"], sorted(lines))


def _tested_cell(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    if difference.over == ONE_SEED:  # there was no test
        return difference_cell(difference)
    p = "< 0.001" if difference.p < 0.001 else f"= {difference.p:.3f}"
    return f"{difference_cell(difference)}, p {p}"
