"""The report's pictures: scores with their intervals, the paper's numbers as hollow marks beside them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from fewtag.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER, INK, FAINT = "#1f5fa8", "#c8641b", "#333333", "#d9d9d9"
_COLUMNS = (1.08, 1.25)
"""Where the numbers stand, right of the axes by parts of their width."""
_SERIES = (OURS, "#2a8a5f", "#8a4fa3", "#b0324f", "#6b6b6b", "#a07a12", "#1d8ea3")


class Mark(NamedTuple):
    """A line of a plot, in percent: what was measured, what was published, or both."""

    label: str
    mean: float | None
    interval: float
    published: float | None


class Point(NamedTuple):
    """A place on a curve, in percent."""

    at: float
    mean: float
    interval: float


def draw_marks(path: Path, title: str, marks: Sequence[Mark]) -> Path:
    """A line for each mark from the top, its numbers written at the right."""
    with _axes(path, title, height=0.95 + 0.27 * len(marks)) as axes:
        heights = [float(height) for height in range(len(marks))][::-1]
        for height, mark in zip(heights, marks, strict=True):
            if mark.mean is not None:
                axes.errorbar(mark.mean, height, xerr=mark.interval, fmt="o", color=OURS, markersize=5, linewidth=1.6)
                _number(axes, _COLUMNS[0], height, mark.mean, OURS)
            if mark.published is not None:
                axes.plot(mark.published, height, "o", markerfacecolor="none", color=PAPER, markersize=6.5, zorder=3)
                _number(axes, _COLUMNS[1], height, mark.published, PAPER)
        axes.set_yticks(heights, [mark.label for mark in marks])
        axes.set_ylim(-0.7, len(marks) - 0.3)
        axes.margins(x=0.08)
        axes.locator_params(axis="x", steps=[1, 2, 5, 10])
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        for place, word, colour in zip(_COLUMNS, ("● measured", "○ published"), (OURS, PAPER), strict=True):
            _number(axes, place, len(marks) - 0.1, word, colour)
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
    """A curve for each name, named at its end; dotted once the colours are used up; the paper's dashed and hollow."""
    with _axes(path, title, height=max(3.6, 0.3 * len(curves))) as axes:
        ends: list[tuple[float, str, str]] = []
        for number, (name, points) in enumerate(curves.items()):
            at, means, intervals = zip(*points, strict=True)
            colour, dotted = _SERIES[number % len(_SERIES)], number >= len(_SERIES)
            style = "s:" if dotted else "o-"
            axes.errorbar(at, means, yerr=intervals, fmt=style, color=colour, markersize=4.5, linewidth=1.6)
            ends.append((means[-1], f"{name} (dotted)" if dotted else name, colour))
        if published:
            at, means, _ = zip(*published, strict=True)
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
    """Names right of the curves' ends, pushed apart where they would lie on each other."""
    low, high = axes.get_ylim()
    ordered = sorted(ends)
    places = [end[0] for end in ordered]
    gap = 0.065 * (high - low)
    for below, above in pairwise(range(len(places))):
        places[above] = max(places[above], places[below] + gap)
    for place, (_, name, colour) in zip(places, ordered, strict=True):
        axes.text(1.02, (place - low) / (high - low), name, color=colour, va="center", transform=axes.transAxes)


def _number(axes: "Axes", across: float, height: float, number: float | str, colour: str) -> None:
    place = axes.get_yaxis_transform()  # across as a part of the axes, upwards in lines
    text = number if isinstance(number, str) else f"{number:.1f}"
    axes.text(across, height, text, color=colour, ha="center", va="center_baseline", transform=place)


@contextmanager
def _axes(path: Path, title: str, *, height: float) -> Iterator["Axes"]:
    """Axes without frills, saved when done."""
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
    with replacing(path) as part, Image.open(drawn) as picture:
        # so few colours need no more than a palette, and a third of the bytes
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(part, format="png", optimize=True)
