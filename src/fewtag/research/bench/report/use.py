"""The page's sections on use: examples at the pictures' own frequencies, one label a picture, correction sessions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fewtag.research.bench.metrics import mean_and_interval
from fewtag.research.bench.report.markdown import NONE, markdown_table, shots_table
from fewtag.research.bench.report.results import MeasuredRun, Results, phases_of, shot_curves
from fewtag.research.bench.results import SessionRow


class Session(NamedTuple):
    """What sessions that are compared have in common."""

    data: str
    phase: str
    backbone: str
    words: str
    examples: int


def use_sections(results: Results) -> Iterator[str]:
    """Whatever of them was measured."""
    halves = [run for run in results.use if run.shared.sampling == "halves"]
    yield from _curves(
        halves,
        "Examples at the pictures' own frequencies",
        "Examples are drawn from one half of a phase's pictures, all of the other half measure; more examples of one "
        "draw include the fewer ones.",
    )
    yield from _curves(
        [run for run in results.use if run not in halves],
        "One label a picture",
        "Each support picture names the one label that it was drawn for, whatever else it shows.",
    )
    if results.sessions:
        yield "## Correction sessions\n"
        yield "AP in percent, the mean over labels and seeds, after so many answers; in brackets its lead on the"
        yield "closed form, which learns from positives only, with the 95 % interval over pairs of label and seed."
        yield "*Least* is how far a label falls below its start at worst, on the mean.\n"
    for session, runs in by_session(results.sessions).items():
        yield from _session_section(session, runs)


def _curves(runs: Sequence[MeasuredRun], title: str, says: str) -> Iterator[str]:
    if not runs:
        return
    yield f"## {title}\n"
    yield f"{says}\n"
    for data_set, methods in shot_curves(runs, fewest=1).items():
        yield f"### {data_set.data}\n"
        for phase in phases_of(run for curve in methods.values() for run in curve.values()):
            yield from shots_table(methods, phase)


Runs = dict[str, list[SessionRow]]


def by_session(rows: Sequence[SessionRow]) -> dict[Session, Runs]:
    """Each session's rows by run."""
    found: dict[Session, Runs] = {}
    for row in rows:
        session = Session(row.data, row.phase, row.backbone, row.words, row.examples)
        found.setdefault(session, {}).setdefault(row.run, []).append(row)
    return dict(sorted(found.items()))


def _session_section(session: Session, runs: Runs) -> Iterator[str]:
    start = f"{session.examples} example{'s' if session.examples > 1 else ''}" if session.examples else "the name alone"
    yield f"### {session.data}, {session.phase}: from {start} ({session.backbone}, {session.words})\n"
    rows = [row for mine in runs.values() for row in mine]
    answers = sorted({row.answers for row in rows})
    lines = [
        [order, _title(run, mine), *(_cell(runs, run, order, number) for number in answers), _least(mine, order)]
        for order in dict.fromkeys(row.order for row in rows)
        for run, mine in runs.items()
    ]
    yield from markdown_table(["asked first", "system", *map(str, answers), "least"], lines)


def _title(run: str, rows: Sequence[SessionRow]) -> str:
    return f"{run}, {rows[0].names} class names" if rows[0].names else run


def baseline_of(runs: Runs, run: str) -> str | None:
    """The closed form of the run's own class names; any, for a run that knows none."""
    names = runs[run][0].names
    closed = [other for other, (row, *_) in runs.items() if row.method == "closed-form" and names in (None, row.names)]
    return next(iter(closed), None)


def _cell(runs: Runs, run: str, order: str, answers: int) -> str:
    mine = precisions(runs[run], order, answers)
    if not mine:
        return NONE
    baseline = baseline_of(runs, run)
    mean = f"{100 * mean_and_interval(list(mine.values()))[0]:.1f}"
    if baseline is None or baseline == run:
        return mean
    theirs = precisions(runs[baseline], order, answers)
    lead, interval = mean_and_interval([mine[key] - theirs[key] for key in mine.keys() & theirs.keys()])
    return f"{mean} ({100 * lead:+.1f} ± {100 * interval:.1f})".replace("-", "−")


def precisions(rows: Sequence[SessionRow], order: str, answers: int) -> dict[tuple[int, str], float]:
    """AP of each seed and label after so many answers."""
    return {(row.session_seed, row.label): row.ap for row in rows if (row.order, row.answers) == (order, answers)}


def _least(rows: Sequence[SessionRow], order: str) -> str:
    mine = [row for row in rows if row.order == order]
    starts = precisions(mine, order, 0)
    last = max((row.answers for row in mine), default=0)
    falls = [row.least - starts[row.session_seed, row.label] for row in mine if row.answers == last and starts]
    return f"{100 * mean_and_interval(falls)[0]:.1f}".replace("-", "−") if falls else NONE
