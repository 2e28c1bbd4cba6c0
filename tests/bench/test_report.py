"""The page of tables: our means and intervals beside the paper's numbers, each row with its command."""

import math
from pathlib import Path

import pytest

from fewtag.bench.metrics import METRICS
from fewtag.bench.report import summarise, write_report
from fewtag.bench.results import Row, write_rows
from fewtag.errors import InputError


def make_rows(run: str, values: list[float], data: str = "coco", phase: str = "test", **facts: object) -> list[Row]:
    about = {
        "run": run,
        "data": data,
        "phase": phase,
        "shots": 1,
        "queries": 4,
        "backbone": "resnet50",
        "words": "labels.npz#glove300",
        "recipe": "r",
        "command": f"fewtag bench {run}",
        "commit": "c0de",
    }
    return [
        {**about, "episode": number, **dict.fromkeys(METRICS, value), **facts} for number, value in enumerate(values)
    ]


def report(folder: Path, *measured: list[Row]) -> list[str]:
    for rows in measured:
        write_rows(folder / rows[0]["data"] / f"{rows[0]['run']}.{rows[0]['phase']}.jsonl", rows)
    return write_report(folder, folder / "RESULTS.md").read_text().splitlines()


def cells(lines: list[str], start: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_summary_is_the_mean_and_interval_of_each_metric() -> None:
    rows: list[Row] = [{name: place + episode for place, name in enumerate(METRICS)} for episode in (0.0, 1.0, 2.0)]
    summary = summarise(rows)
    assert list(summary) == list(METRICS)
    for place, name in enumerate(METRICS):
        assert summary[name]["mean"] == place + 1
        assert summary[name]["interval"] == pytest.approx(1.96 / math.sqrt(3))


def test_our_numbers_are_means_in_percent_with_intervals(tmp_path: Path) -> None:
    lines = report(tmp_path, make_rows("mine", [0.2, 0.4, 0.9]))
    # standard deviation √0.13
    expected = f"50.00 ± {100 * 1.96 * math.sqrt(0.13) / math.sqrt(3):.2f}"
    assert cells(lines, "mine") == ["mine", "resnet50, glove300", "none", *[expected] * 8]
    assert "### coco, phase `test`, 1 shot, 3 episodes" in lines


def test_columns_and_published_numbers_stand_in_one_order(tmp_path: Path) -> None:
    lines = report(tmp_path, make_rows("mine", [0.2, 0.4]))
    heads = ["macro-AP", "micro-AP", "micro-precision", "micro-recall", "micro-F1"]
    assert cells(lines, "system")[3:] == [*heads, "macro-precision", "macro-recall", "macro-F1"]
    paper = ["42.84", "35.30", "49.72", "26.60", "34.21", "34.50", "25.07", "28.91"]
    assert cells(lines, "*published:* the paper's model")[3:] == paper
    assert cells(lines, "*published:* LaSO")[3:5] == ["25.41", "16.83"]


def test_each_metric_stands_under_its_own_name(tmp_path: Path) -> None:
    rows = [
        {**row, **{name: place / 100 for place, name in enumerate(METRICS)}} for row in make_rows("mine", [0.0, 0.0])
    ]
    lines = report(tmp_path, rows)
    found = dict(zip(cells(lines, "system")[3:], cells(lines, "mine")[3:], strict=True))
    for place, name in enumerate(METRICS):
        assert found[name.replace("_", "-").replace("-ap", "-AP").replace("-f1", "-F1")] == f"{place}.00 ± 0.00"


def test_runs_are_sorted_by_macro_ap(tmp_path: Path) -> None:
    lines = report(tmp_path, make_rows("a", [0.2, 0.3]), make_rows("b", [0.6, 0.7]), make_rows("c", [0.4, 0.5]))
    assert [line[2] for line in lines if line[:4] in ("| a ", "| b ", "| c ")] == ["b", "c", "a"]


def test_data_sets_and_phases_have_tables_of_their_own(tmp_path: Path) -> None:
    lines = report(
        tmp_path,
        make_rows("mine", [0.1, 0.2], phase="mixed"),
        make_rows("mine", [0.3, 0.4]),
        make_rows("mine", [0.5, 0.6], data="voc"),
        make_rows("mine", [0.7, 0.8], data="my-pictures"),
    )
    heads = [line.split(",")[0] + line.split("`")[1] for line in lines if line.startswith("### ")]
    assert heads == ["### cocotest", "### cocomixed", "### my-picturestest", "### voctest"]
    published = [line for line in lines if line.startswith("| *published:* the paper's model")]
    assert [line.split("|")[4].strip() for line in published] == ["42.84", "53.26"]
    assert "## my-pictures" in lines


def test_each_command_is_listed_with_its_commit(tmp_path: Path) -> None:
    lines = report(tmp_path, make_rows("a", [0.2, 0.3]), make_rows("b", [0.6, 0.7], phase="mixed"))
    assert "- coco, a, `test`: `fewtag bench a` at commit c0de" in lines
    assert "- coco, b, `mixed`: `fewtag bench b` at commit c0de" in lines


@pytest.mark.parametrize(("frozen", "how"), [(True, "frozen backbone"), (False, "end to end")])
def test_a_trained_row_says_what_it_learnt_from(tmp_path: Path, frozen: bool, how: str) -> None:
    facts = {"trained_episodes": 350, "planned_episodes": 4000, "validation_macro_ap": 0.4567, "frozen": frozen}
    training = cells(report(tmp_path, make_rows("mine", [0.2, 0.3], **facts)), "mine")[2]
    assert training.startswith(f"{how}, best on validation (45.7) at episode 350 of at most 4000")


def test_the_report_does_not_depend_on_when_it_is_written(tmp_path: Path) -> None:
    first = report(tmp_path, make_rows("a", [0.2, 0.3]), make_rows("b", [0.6, 0.7]))
    assert report(tmp_path) == first


@pytest.mark.parametrize("content", [None, ""])
def test_a_folder_without_rows_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"no rows \(\*\.jsonl\) under .*; measure some with fewtag bench"):
        write_report(tmp_path, tmp_path / "RESULTS.md")
    assert not (tmp_path / "RESULTS.md").exists()


def test_runs_of_other_shots_or_episodes_have_a_table_of_their_own(tmp_path: Path) -> None:
    lines = report(
        tmp_path,
        make_rows("one", [0.2, 0.4]),
        make_rows("five", [0.2, 0.4], shots=5),
        make_rows("longer", [0.2, 0.4, 0.6]),
    )
    heads = [line for line in lines if line.startswith("###")]
    assert len(heads) == 3
    five = lines.index("### coco, phase `test`, 5 shot, 2 episodes")
    assert not any("published" in line for line in lines[five : five + 6]), "the paper's rows are of one shot"
