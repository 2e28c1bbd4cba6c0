"""How seconds grow with labels, pictures and shots: the tagger's own work on random places, without the network."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fewtag import Tagger
from fewtag.files import write_atomically
from fewtag.research.bench.report.figures import FAINT, INK, OURS
from fewtag.tagger.bank import Bank, Definition, Example

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH = 32
PLACES = 49
LABELS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PICTURES = (100, 300, 1_000, 3_000, 10_000)
SHOTS = (1, 2, 5, 10, 20, 50)


class Curve(NamedTuple):
    """Seconds of something at several sizes."""

    title: str
    along: str
    points: Sequence[tuple[int, float]]


def growth(rounds: int = 3) -> dict[str, Curve]:
    """The least seconds of some rounds, by what grows; all sizes in turns, so that other load hits all of them."""
    tagger = Tagger()
    return {
        "labels": Curve(f"scoring {BATCH} pictures", "labels", least(scoring_labels(tagger), rounds)),
        "pictures": Curve("scoring for 100 labels", "pictures", least(scoring_pictures(tagger), rounds)),
        "shots": Curve("learning a label", "pictures of it", least(learning_shots(tagger), 3 * rounds)),
        "known": Curve("learning one label more", "labels known", least(learning_beside(tagger), 3 * rounds)),
    }


def figures(curves: Mapping[str, Curve]) -> dict[str, float]:
    """The fitted exponents, and the first and last seconds of each curve."""
    found: dict[str, float] = {}
    for name, curve in curves.items():
        found[f"growth_{name}_exponent"] = exponent(curve.points)
        for size, seconds in (curve.points[0], curve.points[-1]):
            found[f"growth_{name}_seconds_at_{size}"] = seconds
    return found


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Of size, by least squares of the logarithms over the upper half, where what is fixed no longer hides it.

    >>> round(exponent([(1, 5.0), (10, 5.1), (100, 30.0), (1_000, 300.0), (10_000, 3_000.0)]), 6)
    1.0
    """
    upper = points[len(points) // 2 :]
    sizes, seconds = (np.log([point[side] for point in upper]) for side in (0, 1))
    return float(np.polyfit(sizes, seconds, 1)[0])


def least(contenders: Mapping[int, Callable[[], object]], rounds: int) -> list[tuple[int, float]]:
    """The least seconds of each, taken in turns, after a first turn that does not count."""
    found = dict.fromkeys(contenders, math.inf)
    for turn in range(rounds + 1):
        for size, work in contenders.items():
            since = time.perf_counter()
            work()
            if turn:
                found[size] = min(found[size], time.perf_counter() - since)
    return list(found.items())


def scoring_labels(tagger: Tagger) -> dict[int, Callable[[], object]]:
    """One batch; a label of a bank without examples is scored like any other."""
    places = random_places(tagger, BATCH)
    banks = {count: random_bank(tagger, count) for count in LABELS}
    return {count: lambda bank=bank: tagger._probabilities(bank, places) for count, bank in banks.items()}


def scoring_pictures(tagger: Tagger) -> dict[int, Callable[[], object]]:
    """In batches, all probabilities kept; the same pictures over and over, to need little memory."""
    places, bank = random_places(tagger, BATCH), random_bank(tagger, 100)

    def score(count: int) -> np.ndarray:
        sizes = [min(BATCH, count - start) for start in range(0, count, BATCH)]
        return np.concatenate([tagger._probabilities(bank, places[:size]) for size in sizes])

    return {count: lambda count=count: score(count) for count in PICTURES}


def learning_shots(tagger: Tagger) -> dict[int, Callable[[], object]]:
    """Beside 100 labels of five pictures each."""
    bank = random_bank(tagger, 100, examples=5)
    return {shots: lambda shots=shots: learn(tagger, bank, shots) for shots in SHOTS}


def learning_beside(tagger: Tagger) -> dict[int, Callable[[], object]]:
    """From one picture, beside labels of one picture each: all but the new one are kept as they are."""
    banks = {count: random_bank(tagger, count, examples=1) for count in LABELS}
    return {count: lambda bank=bank: learn(tagger, bank, 1) for count, bank in banks.items()}


def random_places(tagger: Tagger, pictures: int) -> Float[Tensor, "images places space"]:
    return torch.randn(pictures, PLACES, tagger.model.method.space, generator=torch.Generator().manual_seed(0))


def random_bank(tagger: Tagger, labels: int, *, examples: int = 0) -> Bank:
    """Labels with a vector each and so many examples, which share one picture's places to need little memory."""
    names = [f"label {number:05d}" for number in range(labels)]
    vectors = torch.randn(labels, tagger.model.method.dimensions, generator=torch.Generator().manual_seed(0))
    definitions = {
        name: Definition("vector", vector=vector, told=True) for name, vector in zip(names, vectors, strict=True)
    }
    return Bank().change(tagger.model.method, definitions, random_examples(tagger, names, examples))


def random_examples(tagger: Tagger, names: Sequence[str], each: int, since: int = 0) -> dict[str, Example]:
    pattern = Example.of(frozenset(), random_places(tagger, 1)[0])
    return {
        f"{since + number:064x}": Example(frozenset({names[number // each]}), pattern.codes, pattern.scales)
        for number in range(len(names) * each)
    }


def learn(tagger: Tagger, bank: Bank, shots: int) -> Bank:
    """One more label, from so many encoded pictures."""
    new = Definition("vector", vector=torch.ones(tagger.model.method.dimensions))
    more = random_examples(tagger, ["zebra"], shots, since=10**9)
    return bank.change(tagger.model.method, {**bank.definitions, "zebra": new}, {**bank.examples, **more})


def draw_growth(path: Path, curves: Mapping[str, Curve]) -> Path:
    """A small plot a curve, both axes logarithmic, the fitted exponent beside the upper half that it is of."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(
        {"font.size": 8, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.labelcolor": INK}
    ):
        figure = Figure(figsize=(10.5, 2.7), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, curve in zip(figure.subplots(1, len(curves)), curves.values(), strict=True):
            draw_curve(axes, curve)
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=150, facecolor="white")
    write_atomically(path, drawn.getvalue())
    return path


def draw_curve(axes: "Axes", curve: Curve) -> None:
    sizes, seconds = zip(*curve.points, strict=True)
    axes.loglog(sizes, seconds, "o-", color=OURS, markersize=4, linewidth=1.5)
    middle = curve.points[(3 * len(curve.points)) // 4]
    axes.annotate(
        f"n$^{{{exponent(curve.points):.2f}}}$",
        middle,
        xytext=(-6, 6),
        textcoords="offset points",
        ha="right",
        color=OURS,
        fontsize=10,
    )
    axes.set_title(curve.title, loc="left", fontsize=9, fontweight="bold")
    axes.set_xlabel(curve.along)
    axes.set_ylabel("seconds")
    axes.margins(y=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(length=0, which="both")
    axes.grid(axis="y", color=FAINT, linewidth=0.7)


if __name__ == "__main__":
    measured = growth()
    for name, value in figures(measured).items():
        print(f"{name}: {value:.6f}")
    print(draw_growth(Path("growth.png"), measured))
