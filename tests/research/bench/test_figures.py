"""Plots: what they show comes from the rows, and they are pictures that can be looked at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from fewtag.research.bench.report.figures import OURS, PAPER, Mark, Point, draw_curves, draw_figures, draw_marks
from fewtag.research.bench.report.results import published, read_results
from fewtag.research.bench.results import ResultRow

WriteRun = Callable[..., list[ResultRow]]
Drawn = dict[str, tuple[Any, ...]]


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Drawn]:
    """What the plots on the rows under tmp_path were asked to show, by file name."""
    drawn: Drawn = {}

    def note(path: Path, *shown: object, **_: object) -> Path:
        drawn[path.name] = shown
        return path

    for name in ("draw_marks", "draw_curves"):
        monkeypatch.setattr(f"fewtag.research.bench.report.figures.{name}", note)

    def run() -> Drawn:
        draw_figures(read_results(tmp_path), published(), tmp_path / "plots")
        return drawn

    return run


def has_colour(path: Path, colour: str) -> bool:
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=float) / 255
    return bool((np.abs(pixels - to_rgb(colour)).max(axis=-1) < 0.06).any())


def test_systems_are_sorted_with_the_published_beside_the_measured(
    write_run: WriteRun, draw: Callable[[], Drawn]
) -> None:
    write_run("coco/protonet", [0.4, 0.6])
    write_run("coco/word-attention", [0.3, 0.3])
    write_run("baselines/maml", [0.2, 0.2])
    title, marks = draw()["coco.png"]
    assert title == "COCO, 1 example a label"
    assert [(mark.label, mark.published) for mark in marks[:4]] == [
        ("protonet", None),
        ("word-attention", 42.84),
        ("maml", 35.30),
        ("PLA", 30.61),
    ]
    assert marks[0].measured[:2] == pytest.approx((50.0, 12.7062 * 10))  # deviation 14.1, over √2
    assert marks[3].measured is None
    assert len(marks) == 3 + 9 - 2


def test_heads_are_a_curve_beside_the_papers(write_run: WriteRun, draw: Callable[[], Drawn]) -> None:
    write_run("coco/word-attention-frozen", [0.4, 0.4])
    assert "heads.png" not in draw(), "one point is no curve"
    write_run("heads/heads-16", [0.5, 0.5])
    _, along, curves, paper = draw()["heads.png"]
    assert along == "attention heads"
    assert curves == {"measured": [Point(40.0, 0.0, 8), Point(50.0, 0.0, 16)]}
    assert [(point.at, point.mean) for point in paper][:2] == [(1, 30.06), (2, 35.42)]
    assert len(paper) == 9


def test_words_show_the_papers_and_ours_that_it_does_not_have(write_run: WriteRun, draw: Callable[[], Drawn]) -> None:
    write_run("coco/word-attention-frozen", [0.4, 0.4])
    write_run("words/mpnet", [0.5, 0.5])
    _, marks = draw()["words.png"]
    found = {mark.label: mark for mark in marks}
    assert found["GloVe-300"] == Mark("GloVe-300", Point(40.0), 42.84)
    assert found["BERT"] == Mark("BERT", None, 36.46)
    assert found["MPNet (not in the paper)"] == Mark("MPNet (not in the paper)", Point(50.0), None)
    assert "MiniLM (not in the paper)" not in found


def test_shots_are_curves_of_one_method_and_backbone(write_run: WriteRun, draw: Callable[[], Drawn]) -> None:
    write_run("beyond/knn", [0.3, 0.3], method="knn")
    write_run("shots/knn-5-shots", [0.5, 0.5], method="knn", shots=5)
    assert "coco-shots.png" not in draw(), "two points are read in the table"
    write_run("shots/knn-2-shots", [0.4, 0.4], method="knn", shots=2)
    write_run("beyond/am3", [0.3, 0.3], backbone="lite2")
    write_run("shots/am3-5-shots", [0.4, 0.4], shots=5, method="am3")
    write_run("beyond/word-only", [0.3, 0.3], phase="mixed", method="word-only")
    write_run("shots/word-only-5-shots", [0.4, 0.4], shots=5, method="word-only")
    title, _, curves = draw()["coco-shots.png"]
    assert title == "COCO, more examples a label"
    assert curves == {"knn": [Point(30.0, 0.0, 1), Point(40.0, 0.0, 2), Point(50.0, 0.0, 5)]}


def test_two_splits_of_one_data_set_have_a_plot_of_shots_each(write_run: WriteRun, draw: Callable[[], Drawn]) -> None:
    for split, score in (("laso", 0.3), ("laso-novel-free", 0.6)):
        for shots in (1, 2, 5):
            write_run(f"{split}/knn-{shots}-shot", [score], data="laso", split=split, shots=shots, method="knn")
    plots = draw()
    found = {name: plots[f"{name}-shots.png"] for name in ("laso", "laso-novel-free")}
    assert [title for title, *_ in found.values()] == [
        "LaSO's setting, more examples a label",
        "laso-novel-free, more examples a label",
    ]
    assert [curves["knn"][0].mean for *_, curves in found.values()] == [30.0, 60.0]


def test_other_pictures_of_the_papers_labels_go_by_their_own_name(
    write_run: WriteRun, draw: Callable[[], Drawn]
) -> None:
    write_run("coco-original/protonet", [0.4, 0.6], data="coco-original")
    write_run("coco-original/knn", [0.4, 0.6], data="coco-original")
    assert draw()["coco-original.png"][0] == "coco-original, 1 example a label"


def test_a_single_episode_has_a_mark_without_an_interval(write_run: WriteRun, draw: Callable[[], Drawn]) -> None:
    write_run("coco/a", [0.4])
    write_run("coco/b", [0.5])
    _, marks = draw()["coco.png"]
    assert [mark.measured for mark in marks[:2]] == [Point(50.0), Point(40.0)]


@pytest.mark.parametrize(
    ("mark", "ours", "paper"),
    [(Mark("both", Point(43.0, 1.0), 30.0), True, True), (Mark("published", None, 30.0), False, True)],
)
def test_measured_and_published_have_their_colours(tmp_path: Path, mark: Mark, ours: bool, paper: bool) -> None:
    path = draw_marks(tmp_path / "plots" / "marks.png", "Title", [mark, mark])
    # the head of the column has its colour in any case
    with Image.open(path) as picture:
        size = picture.size
        picture.convert("RGB").crop((0, int(0.2 * size[1]), *size)).save(tmp_path / "below.png")
    assert (has_colour(tmp_path / "below.png", OURS), has_colour(tmp_path / "below.png", PAPER)) == (ours, paper)
    assert path.stat().st_size < 150_000


def test_curves_are_drawn_whole_and_the_same_each_time(tmp_path: Path) -> None:
    curves = {name: [Point(40.0 + place, 1.0, 1), Point(50.0, 1.0, 10)] for place, name in enumerate("abc")}
    first, second = (
        draw_curves(tmp_path / f"{name}.png", "Title", "examples", curves, [Point(30.0, 0.0, 1), Point(35.0, 0.0, 10)])
        for name in ("first", "second")
    )
    assert first.read_bytes() == second.read_bytes()
    with Image.open(first) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
    assert has_colour(first, PAPER)


def test_the_names_of_many_curves_stay_beside_their_plot(tmp_path: Path) -> None:
    close = {f"curve {number}": [Point(50, 1, 1), Point(80 + number / 10, 1, 5)] for number in range(15)}
    heights = []
    for curves in ({"curve": [Point(50, 1, 1), Point(80, 1, 5)]} | dict.fromkeys("ab", close["curve 0"]), close):
        with Image.open(draw_curves(tmp_path / "plot.png", "close at the end", "shots", curves)) as picture:
            blue = np.asarray(picture.convert("RGB"), dtype=int)
        (dark,) = np.nonzero((blue.sum(axis=-1) < 600).any(axis=1))
        heights.append(dark)
    few, many = heights
    assert many[0] == few[0]  # what stands highest is the title
