"""The report's plots: scores with their intervals, and the paper's numbers as hollow marks beside them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import chain, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from fewtag.errors import plural
from fewtag.files import replacing
from fewtag.research.bench.report.results import (
    DataSet,
    MeasuredRun,
    Published,
    PublishedTable,
    Results,
    shot_curves,
    systems,
    tested,
)
from fewtag.research.bench.results import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER, INK, FAINT = "#1f5fa8", "#c8641b", "#333333", "#d9d9d9"
_COLUMNS = (1.08, 1.25)
"""Positions of the columns of numbers, right of the axes, in units of their width."""
_SERIES = (OURS, "#2a8a5f", "#8a4fa3", "#b0324f", "#6b6b6b", "#a07a12", "#1d8ea3")


class Point(NamedTuple):
    """A score in percent; on a curve, with its place."""

    mean: float
    interval: float = 0.0
    at: float = 0.0


class Mark(NamedTuple):
    """A line of a plot: a measured score, a published one in percent, or both."""

    label: str
    measured: Point | None
    published: float | None


def draw_figures(results: Results, paper: Published, folder: Path) -> dict[object, Path]:
    """The plots by what they show: a data set's systems, a published table, or a data set's curves over shots.

    A plot is drawn only if it has at least two points.
    """
    drawn: dict[object, Path] = {}

    def place(name: str) -> Path:
        """A file of this name; with a number if that of another split of the same data has it."""
        plain = name.replace("/", "-")
        paths = chain([folder / f"{plain}.png"], (folder / f"{plain}-{number}.png" for number in count(2)))
        return next(path for path in paths if path not in drawn.values())

    for data_set, table, runs in systems(results, paper):
        if len(runs) > 1:
            title = f"{_title(paper, data_set)}, {plural(runs[0].shared.shots, 'example')} a label"
            drawn[data_set] = draw_marks(place(data_set.name), title, _system_marks(runs, table))
    for table in paper.tables:
        path, variants, numbers = folder / f"{table.name}.png", _variants(results, table), _numbers(table)
        if sum(run is not None for run in variants.values()) < 2:
            continue
        if table.figure == "marks":
            marks = [Mark(name, _point(run) if run else None, numbers[name]) for name, run in variants.items()]
            drawn[table.name] = draw_marks(path, table.title, marks)
        elif table.figure == "curve":
            measured = [_point(run, float(name)) for name, run in variants.items() if run]
            printed = [Point(number, at=float(name)) for name, number in numbers.items() if number]
            drawn[table.name] = draw_curves(path, table.title, table.along, {"measured": measured}, printed)
    for data_set, curves in shot_curves(results.runs).items():
        points = {
            name: [_point(run, shots) for shots, run in curve.items() if "test" in run.phases]
            for name, curve in curves.items()
        }
        points = {name: curve for name, curve in points.items() if len(curve) > 1}
        if sum(map(len, points.values())) > 2:  # two points are better read in the table
            path, title = place(f"{data_set.name}-shots"), f"{_title(paper, data_set)}, more examples a label"
            drawn["shots", data_set] = draw_curves(path, title, "examples a label", points, logarithmic=True)
    return drawn


def _title(paper: Published, data_set: DataSet) -> str:
    """The paper's title of the data set (`PASCAL VOC`), if it has one, else its own name."""
    table = paper.comparison(data_set.split)
    return table.title.partition(":")[0] if table and table.data == data_set.data else data_set.name


def _system_marks(runs: Sequence[MeasuredRun], table: PublishedTable | None) -> list[Mark]:
    """Measured runs, the best first, then the published systems without a run."""
    numbers = _numbers(table) if table else {}
    beside = [system.system if table and (system := table.system_of(run)) else "" for run in runs]
    marks = [Mark(run.run, _point(run), numbers.get(name)) for run, name in zip(runs, beside, strict=True)]
    alone = [Mark(name, None, number) for name, number in numbers.items() if name not in beside and number is not None]
    return marks + sorted(alone, key=lambda mark: -(mark.published or 0.0))


def _variants(results: Results, table: PublishedTable) -> dict[str, MeasuredRun | None]:
    """Each system of a table with its first run on test; systems with neither a run nor numbers are left out."""
    first = {row.system: next(iter(tested(results.beside(row, table))), None) for row in table.rows}
    return {row.system: first[row.system] for row in table.rows if first[row.system] or row.numbers}


def _numbers(table: PublishedTable) -> dict[str, float | None]:
    """The published macro-AP of each system."""
    return {row.system: table.number(row, "macro_ap") for row in table.rows}


def _point(run: MeasuredRun, at: float = 0.0) -> Point:
    mean, interval = mean_and_interval(run.values())
    return Point(100 * mean, 0.0 if math.isnan(interval) else 100 * interval, at)


def draw_marks(path: Path, title: str, marks: Sequence[Mark]) -> Path:
    """Draws a line for each mark, from the top, with its numbers at the right."""
    with _axes(path, title, height=0.95 + 0.27 * len(marks)) as axes:
        heights = [float(height) for height in range(len(marks))][::-1]
        for height, mark in zip(heights, marks, strict=True):
            if point := mark.measured:
                axes.errorbar(point.mean, height, xerr=point.interval, fmt="o", color=OURS, markersize=5, linewidth=1.6)
                _write(axes, _COLUMNS[0], height, point.mean, OURS)
            if mark.published is not None:
                axes.plot(mark.published, height, "o", markerfacecolor="none", color=PAPER, markersize=6.5, zorder=3)
                _write(axes, _COLUMNS[1], height, mark.published, PAPER)
        axes.set_yticks(heights, [mark.label for mark in marks])
        axes.set_ylim(-0.7, len(marks) - 0.3)
        axes.margins(x=0.08)
        axes.locator_params(axis="x", steps=[1, 2, 5, 10])
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        _write(axes, _COLUMNS[0], len(marks) - 0.1, "● measured", OURS)
        if any(mark.published is not None for mark in marks):
            _write(axes, _COLUMNS[1], len(marks) - 0.1, "○ published", PAPER)
        axes.set_xlabel("macro-AP in percent, with 95 % intervals over episodes")
    return path


def draw_curves(
    path: Path,
    title: str,
    along: str,
    curves: Mapping[str, Sequence[Point]],
    published: Sequence[Point] = (),
    *,
    logarithmic: bool = False,
) -> Path:
    """Draws a curve per name, labelled at its end, dotted once colours run out; the paper's is dashed and hollow."""
    with _axes(path, title, height=max(3.6, 0.3 * len(curves))) as axes:
        ends: list[tuple[float, str, str]] = []
        for number, (name, points) in enumerate(curves.items()):
            means, intervals, at = zip(*points, strict=True)
            colour, dotted = _SERIES[number % len(_SERIES)], number >= len(_SERIES)
            style = "s:" if dotted else "o-"
            axes.errorbar(at, means, yerr=intervals, fmt=style, color=colour, markersize=4.5, linewidth=1.6)
            ends.append((means[-1], f"{name} (dotted)" if dotted else name, colour))
        if published:
            means, _, at = zip(*published, strict=True)
            axes.plot(at, means, "o--", color=PAPER, markerfacecolor="white", markersize=5.5, linewidth=1.2)
            ends.append((means[-1], "published", PAPER))
        ticks = sorted({point.at for points in (*curves.values(), published) for point in points})
        if logarithmic:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        _name_ends(axes, ends)
        axes.set_xlabel(along)
        axes.set_ylabel("macro-AP in percent")
    return path


def _name_ends(axes: "Axes", ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes names at the right ends of the curves, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ordered = sorted(ends)
    heights = [end[0] for end in ordered]
    gap = min(0.065, 1 / len(ends)) * (high - low)
    for below, above in pairwise(range(len(heights))):
        heights[above] = max(heights[above], heights[below] + gap)
    heights[-1] = min(heights[-1], high)  # and down again, if they rose above the plot
    for above, below in pairwise(reversed(range(len(heights)))):
        heights[below] = min(heights[below], heights[above] - gap)
    for height, (_, name, colour) in zip(heights, ordered, strict=True):
        axes.text(1.02, (height - low) / (high - low), name, color=colour, va="center", transform=axes.transAxes)


def _write(axes: "Axes", across: float, height: float, number: float | str, colour: str) -> None:
    transform = axes.get_yaxis_transform()  # x in units of the axes, y in data units
    text = number if isinstance(number, str) else f"{number:.1f}"
    axes.text(across, height, text, color=colour, ha="center", va="center_baseline", transform=transform)


@contextmanager
def _axes(path: Path, title: str, *, height: float) -> Iterator["Axes"]:
    """Plain axes, which are saved to the file at the end."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(
        {"font.size": 9, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    ):
        figure = Figure(figsize=(7.5, height), layout=None)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.tick_params(length=0)
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=14)
        axes.set_axisbelow(True)
        yield axes
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=150, bbox_inches="tight", facecolor="white")
    with replacing(path) as part, Image.open(drawn, formats=("PNG",)) as picture:
        # with so few colours a palette is enough, at a third of the bytes
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(part, format="png", optimize=True)
