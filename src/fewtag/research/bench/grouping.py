"""Which runs belong together on the page of results."""

from collections.abc import Sequence
from typing import NamedTuple

from fewtag.research.bench.measured import Measured, Results
from fewtag.research.bench.published import PAPER_MODEL, Published, PublishedSystem, PublishedTable

Curves = dict[str, dict[int, Measured]]


class DataSet(NamedTuple):
    """Pictures and a split of their labels."""

    data: str
    split: str


class Setting(NamedTuple):
    """What runs of one table have in common."""

    data: str
    split: str
    shots: int
    queries: int
    episodes: int


def systems(results: Results, paper: Published) -> dict[DataSet, list[Measured]]:
    """The runs measured as the paper compares systems, best first; variants of its model have tables of their own."""
    variants = {run for table in paper.tables if table.against for row in table.rows for run in row.runs}
    groups: dict[DataSet, list[Measured]] = {}
    for run in sorted(results.measured, key=lambda run: -run.mean() if "test" in run.phases else 0):
        table = paper.comparison(run.split)
        if table is None or run.shots != table.shots or "test" not in run.phases:
            continue
        if run.reference not in variants or system_of(run, table):
            groups.setdefault(DataSet(run.data, run.split), []).append(run)
    order = [table.data for table in paper.tables]
    return dict(sorted(groups.items(), key=lambda item: (order.index(item[0].split), item[0])))


def system_of(run: Measured, table: PublishedTable) -> PublishedSystem | None:
    """The published system that the run stands beside."""
    return next((row for row in table.rows if run.reference in row.runs), None)


def model_of(table: PublishedTable) -> PublishedSystem:
    """The line of the paper's own model; the last, where it has several."""
    return [row for row in table.rows if row.system.startswith(PAPER_MODEL)][-1]


def best_reading(runs: Sequence[Measured], table: PublishedTable) -> Measured | None:
    """Of the runs of the paper's model the best on the validation labels, the first named where none were validated.

    The test has no part in the choice.
    """
    named = model_of(table).runs
    return max(
        (run for run in runs if run.reference in named),
        key=lambda run: (run.about.get("validation_macro_ap", 0.0), -named.index(run.reference)),
        default=None,
    )


def closed_form(runs: Sequence[Measured], like: Measured | None) -> Measured | None:
    """The closed form on the backbone and words of the run that it is seen beside; else the first there is."""
    wanted = like.about if like else {}
    found = [run for run in runs if run.about.get("method") == "closed-form"]
    return min(
        found,
        key=lambda run: ([run.about[key] != wanted.get(key) for key in ("backbone", "words")], run.reference),
        default=None,
    )


def shot_curves(results: Results) -> dict[DataSet, Curves]:
    """Runs that differ in their number of shots alone: `name-5-shots` beside `name`, of one method and backbone."""
    groups: dict[tuple[DataSet, str, str, str], dict[int, Measured]] = {}
    for run in results.measured:
        key = (DataSet(run.data, run.split), run.family, str(run.about.get("method")), str(run.about["backbone"]))
        groups.setdefault(key, {})[run.shots] = run
    curves: dict[DataSet, Curves] = {}
    for (data, name, _, _), by_shots in sorted(groups.items(), key=lambda item: item[0]):
        if len(by_shots) > 1:
            curves.setdefault(data, {})[name] = dict(sorted(by_shots.items()))
    return curves


def beyond(results: Results, paper: Published) -> dict[Setting, list[Measured]]:
    """The runs that neither a published table nor a curve of shots shows, by setting."""
    shown = {id(run) for table in paper.tables for row in table.rows for run in results.beside(row, table)}
    for curves in shot_curves(results).values():
        shown |= {id(run) for curve in curves.values() for run in curve.values() if run.family != run.about["run"]}
    groups: dict[Setting, list[Measured]] = {}
    for run in results.measured:
        if id(run) not in shown:
            episodes = len(next(iter(run.phases.values())))
            setting = Setting(run.data, run.split, run.shots, int(run.about["queries"]), episodes)
            groups.setdefault(setting, []).append(run)
    return dict(sorted(groups.items()))
