"""Which rows make which plot. A plot is drawn where there are at least two points to see."""

from collections.abc import Iterable
from pathlib import Path

from fewtag.research.bench.grouping import DataSet, shot_curves, system_of, systems
from fewtag.research.bench.measured import Measured, Results
from fewtag.research.bench.metrics import mean_and_interval
from fewtag.research.bench.plots import Mark, Point, draw_curves, draw_marks
from fewtag.research.bench.published import Published, PublishedTable

_AS_MARKS = ("variations", "words")


def draw_figures(results: Results, paper: Published, folder: Path) -> dict[str, Path]:
    """The plots by the name of what they show: a data set's systems, a published table, or curves of shots."""
    drawn: dict[str, Path] = {}
    for (data, split), runs in systems(results, paper).items():
        table = paper.comparison(split)
        if len(runs) > 1 and table:
            title = f"{_called(paper, DataSet(data, split))}, one example a label"
            drawn[data] = draw_marks(folder / f"{data}.png", title, _systems(runs, table))
    for table in paper.tables:
        lines = _lines(results, table)
        if sum(run is not None for _, run in lines) < 2 or not table.against:
            continue
        path = folder / f"{table.name}.png"
        if table.name in _AS_MARKS:
            marks = [_mark(name, run, _number(table, name)) for name, run in lines]
            drawn[table.name] = draw_marks(path, table.title, marks)
        elif table.name == "heads":
            drawn[table.name] = _heads(path, results, table)
    for data_set, curves in shot_curves(results).items():
        points = {
            name: [_point(float(shots), run) for shots, run in curve.items() if "test" in run.phases]
            for name, curve in curves.items()
        }
        points = {name: curve for name, curve in points.items() if len(curve) > 1}
        if sum(map(len, points.values())) > 2:  # two points alone are better read in the table
            name = shots_name(data_set)
            title = f"{_called(paper, data_set)}, more examples a label"
            drawn[name] = draw_curves(folder / f"{name}.png", title, "examples a label", points, logarithmic=True)
    return drawn


def shots_name(data_set: DataSet) -> str:
    """What the plot of a data set's curves is called."""
    return f"{data_set.data}-shots"


def _called(paper: Published, data_set: DataSet) -> str:
    """`PASCAL VOC`, where the paper has a title for the data set; else its own name."""
    table = paper.comparison(data_set.split)
    original = data_set.data.endswith("-original")
    return table.title.partition(":")[0] if table and not original else data_set.data


def _systems(runs: Iterable[Measured], table: PublishedTable) -> list[Mark]:
    """Measured runs from the best down, then the published systems that none of them stands beside."""
    marks, seen = [], set()
    for run in runs:
        system = system_of(run, table)
        seen.add(system.system if system else "")
        marks.append(_mark(run.name, run, table.number(system, "macro_ap") if system else None))
    alone = [
        Mark(row.system, None, 0.0, number)
        for row in table.rows
        if row.system not in seen and (number := table.number(row, "macro_ap")) is not None
    ]
    return marks + sorted(alone, key=lambda mark: -(mark.published or 0.0))


def _lines(results: Results, table: PublishedTable) -> list[tuple[str, Measured | None]]:
    """Each system of a table with its first run on test, if it has one."""
    found = []
    for row in table.rows:
        runs = [run for run in results.beside(row, table) if "test" in run.phases]
        if runs or row.numbers:
            found.append((row.system, runs[0] if runs else None))
    return found


def _heads(path: Path, results: Results, table: PublishedTable) -> Path:
    measured = [_point(float(name), run) for name, run in _lines(results, table) if run]
    printed = [Point(float(row.system), number, 0.0) for row in table.rows if (number := _number(table, row.system))]
    return draw_curves(path, table.title, "attention heads", {"measured": measured}, printed)


def _number(table: PublishedTable, name: str) -> float | None:
    return next(table.number(row, "macro_ap") for row in table.rows if row.system == name)


def _mark(name: str, run: Measured | None, published: float | None) -> Mark:
    if run is None:
        return Mark(name, None, 0.0, published)
    point = _point(0.0, run)
    return Mark(name, point.mean, point.interval, published)


def _point(at: float, run: Measured) -> Point:
    mean, interval = mean_and_interval([row["macro_ap"] for row in run.phases["test"]])
    return Point(at, 100 * mean, 100 * interval if interval == interval else 0.0)
