"""The page of results: the paper's tables beside our means and intervals, with paired tests, reasons and commands."""

import json
import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fewtag.errors import InputError
from fewtag.research.bench.report.page import write_report
from fewtag.research.bench.results import METRICS, ResultRow

WriteRun = Callable[..., list[ResultRow]]
Page = Callable[[], list[str]]
Cli = Callable[..., Any]
MINE = {"data": "mine", "split": "split.json"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The lines of the page on what was written under tmp_path; plots are drawn in their own tests."""
    for name in ("draw_marks", "draw_curves"):
        monkeypatch.setattr(f"fewtag.research.bench.report.figures.{name}", lambda path, *_, **__: path)
    return lambda: write_report(tmp_path, tmp_path / "RESULTS.md").page.read_text().splitlines()


def section(lines: list[str], start: str) -> list[str]:
    """The lines under a heading, up to the next."""
    (at,) = (number for number, line in enumerate(lines) if line.lstrip("#").strip().startswith(start))
    end = next((n for n in range(at + 1, len(lines)) if lines[n].startswith("#")), len(lines))
    return lines[at + 1 : end]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(lines: list[str], first: str = "") -> list[dict[str, str]]:
    """The first table among the lines, or the first whose first column has this title."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first}"))
    end = next(number for number in range(start, len(lines) + 1) if number == len(lines) or lines[number] == "")
    return [dict(zip(cells(lines[start]), cells(line), strict=True)) for line in lines[start + 2 : end]]


def write_reason(folder: Path, reference: str, reason: str) -> None:
    recipe, run = reference.split("/")
    (folder / recipe).mkdir(exist_ok=True)
    facts = {"run": run, "method": "m", "data": "coco", "reason": reason}
    (folder / recipe / f"{run}.not-measured.json").write_text(json.dumps(facts))


def test_our_numbers_are_means_in_percent_with_intervals(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/mine", [0.2, 0.4, 0.9], **MINE)
    write_run("recipe/mine", [0.1, 0.1, 0.1], phase="mixed", **MINE)
    # macro-AP has standard deviation √0.13
    expected = f"50.00 ± {100 * 4.302653 * math.sqrt(0.13) / math.sqrt(3):.2f}"
    (found,) = table(section(page(), "mine: 1 shot, 4 queries, 3 episodes"))
    assert found == {
        "system": "mine",
        "backbone, words": "resnet50, coco_glove300",
        "training": "none",
        "test": f"{expected} / {expected}",
        "mixed": "10.00 ± 0.00 / 10.00 ± 0.00",
        "`test`, ± over seeds and labels": "–",
        "seconds": "1.5",
    }


SEEDS = [[0.2, 0.4, 0.9], [0.3, 0.5, 1.0], [0.1, 0.3, 0.8]]


def test_runs_that_differ_in_their_seed_are_one_run_with_the_spread_over_seeds(write_run: WriteRun, page: Page) -> None:
    for seed, values in enumerate(SEEDS):
        write_run(f"recipe/mine-seed-{seed}", values, seed=seed, recipe_digest=str(seed), trained_episodes=10, **MINE)
    (found,) = table(section(page(), "mine: 1 shot, 4 queries, 3 episodes"))
    assert found["system"] == "mine"
    assert found["test"].startswith("50.00 ± 89.57 / ")  # the means over seeds have the first one's episodes
    half = 4.302653 * 10 / math.sqrt(3)  # the seeds' means are 50, 60 and 40
    assert found["`test`, ± over seeds and labels"] == f"3 seeds ± {half:.2f}"


def test_of_a_single_label_there_is_no_spread_over_labels(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/mine", [0.2, 0.4], label_aps='{"dog": 0.3}', **MINE)
    (found,) = table(section(page(), "mine: 1 shot, 4 queries, 2 episodes"))
    assert found["`test`, ± over seeds and labels"] == "–"


def test_seeds_on_other_episodes_are_refused(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/mine-seed-0", [0.2, 0.4], draws_digest="a", **MINE)
    write_run("recipe/mine-seed-1", [0.2, 0.4], draws_digest="b", **MINE)
    with pytest.raises(InputError, match="training seeds of mine-seed-0 were not measured on the same episodes"):
        page()


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([0], "frozen backbone on 25,617 base pictures, **kept untrained**: no later episode did better on validation"),
        ([0, 40], "best on validation (50.0) at episode 0 to 40 of at most 80, **1 of 2 seeds kept untrained**"),
        ([40, 40], "frozen backbone on 25,617 base pictures, best on validation (50.0) at episode 40 of at most 80"),
    ],
)
def test_a_row_whose_kept_weights_are_untrained_says_so(
    write_run: WriteRun, page: Page, kept: list[int], said: str
) -> None:
    facts = {"planned_episodes": 80, "validation_macro_ap": 0.5, "base_pictures": 25617, **MINE}
    for seed, episode in enumerate(kept):
        write_run(f"recipe/mine-seed-{seed}", [0.5, 0.6], seed=seed, trained_episodes=episode, **facts)
    (found,) = table(section(page(), "mine: 1 shot, 4 queries, 2 episodes"))
    assert said in found["training"]


def test_each_metric_stands_under_its_own_name(write_run: WriteRun, page: Page) -> None:
    metrics = {name: place / 100 for place, name in enumerate(METRICS)}
    write_run("recipe/mine", [0.0, 0.0], **metrics, **MINE)
    lines = section(page(), "mine: 1 shot")
    assert table(lines)[0]["test"] == "7.00 ± 0.00 / 3.00 ± 0.00"
    (details,) = table(lines[lines.index("<details><summary>Precision, recall and F1</summary>") :])
    for place, name in enumerate(METRICS):
        if not name.endswith("_ap"):
            assert details[name.replace("_", " ").replace("f1", "F1")] == f"{place}.00 ± 0.00"


def test_published_systems_stand_beside_their_runs(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention", [0.4, 0.4])
    write_run("coco/word-attention-frozen", [0.5, 0.5])
    write_run("baselines/maml", [0.3, 0.3])
    lines = section(page(), "COCO: 16 novel labels, one support image a label (coco)")
    overview = table(lines)
    names = ["word-attention-frozen", "*the paper's model, as published*", "word-attention", "maml"]
    assert [line["system"] for line in overview] == names
    assert overview[1]["test"] == "*42.84 / 35.30*"


def test_a_system_with_several_runs_has_several_lines(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention-frozen", [0.5, 0.5])
    write_run("coco/word-attention", [0.4, 0.4], phase="test")
    write_run("coco/word-attention", [0.3, 0.3], phase="mixed")
    lines = page()
    (at,) = (n for n, line in enumerate(lines) if line == "### COCO: 16 novel labels, one support image a label")
    found = table(lines[at:])
    assert [(line["system"], line["published"], line["run"]) for line in found[-3:]] == [
        ("MAML", "35.30 / 25.42", "–"),
        ("the paper's model", "42.84 / 35.30", "word-attention"),
        ("", "", "word-attention-frozen"),
    ]
    assert [(line["test"], line["mixed"]) for line in found[-3:]] == [
        ("–", "–"),
        ("40.00 ± 0.00 / 40.00 ± 0.00", "30.00 ± 0.00 / 30.00 ± 0.00"),
        ("50.00 ± 0.00 / 50.00 ± 0.00", "–"),
    ]
    assert found[-3]["how"] == "not measured here: no run yet"
    details = lines[lines.index("<details><summary>Precision, recall and F1</summary>") :]
    printed = next(line for line in table(details) if line["system"] == "*published:* the paper's model")
    assert list(printed.values())[1:] == ["34.50", "25.07", "28.91", "49.72", "26.60", "34.21"]


@pytest.mark.parametrize("facts", [{"shots": 5}, {"split": "mine.json"}])
def test_a_namesake_of_other_shots_or_split_does_not_stand_beside_the_papers(
    write_run: WriteRun, page: Page, facts: dict[str, object]
) -> None:
    write_run("baselines/maml", [0.4, 0.4])
    write_run("coco/word-attention", [0.9, 0.9], **facts)
    lines = page()
    (at,) = (n for n, line in enumerate(lines) if line == "### COCO: 16 novel labels, one support image a label")
    assert all("90.00" not in line["test"] for line in table(lines[at:]))
    beyond = lines[lines.index("## Beyond the paper") :]
    assert any(line.startswith("| word-attention |") and "90.00" in line for line in beyond)


def test_reasons_for_what_was_not_measured_are_given(write_run: WriteRun, page: Page, tmp_path: Path) -> None:
    write_run("coco/word-attention-frozen", [0.4, 0.4])
    write_run("words/glove-50", [0.3, 0.3])
    write_reason(tmp_path, "words/bert", "its | vectors are not to be had")
    write_reason(tmp_path, "words/glove-50", "out of date")
    write_reason(tmp_path, "extra/huge", "too large")
    lines = page()
    found = {line["system"]: line for line in table(section(lines, "Word vectors"))}
    assert found["BERT"]["how"] == r"not measured here: its \| vectors are not to be had"
    assert found["BERT"]["run"] == "bert"
    assert found["GloVe-200"]["how"] == "not measured here: no run yet"
    assert found["GloVe-50"]["test"].startswith("30.00")
    assert "MPNet (not in the paper)" not in found
    assert "out of date" not in "".join(lines)
    assert "- extra/huge was not measured here: too large" in lines


def test_a_difference_of_runs_trained_once_is_not_called_real(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention", [0.40, 0.42, 0.41, 0.43], trained_episodes=5, validation_macro_ap=0.6)
    write_run("coco/pla", [0.70, 0.71, 0.72, 0.73])
    lines = page()
    lines = lines[lines.index("## Which differences are real") :]
    assert "In 0 of 1 comparisons the difference is real.\n" in "\n".join(lines)
    assert table(lines, "system")[0]["less word-attention, test"] == "≈ +30.00 ± 1.30 (one seed)"


def test_runs_of_one_seed_or_of_other_settings_are_no_seeds_of_one_system(write_run: WriteRun, page: Page) -> None:
    for change in ({"seed": 0}, {"seed": 1, "backbone": "vit"}, {"seed": 1, "training": '{"shots": 5}'}):
        write_run("recipe/mine-seed-0", [0.2, 0.4], training='{"shots": 1, "cycle": 0}', **MINE)
        write_run("recipe/mine-seed-1", [0.2, 0.4], **{"training": '{"shots": 1}', **change}, **MINE)
        with pytest.raises(InputError, match="mine-seed-0, mine-seed-1 are no training seeds of one system"):
            page()
    write_run("recipe/mine-seed-1", [0.2, 0.4], training='{"shots": 1}', seed=1, **MINE)
    page()


def test_a_reason_that_is_none_is_refused_by_its_file(write_run: WriteRun, page: Page, tmp_path: Path) -> None:
    write_run("coco/protonet", [0.4, 0.4])
    (tmp_path / "coco" / "x.not-measured.json").write_text("[]")
    with pytest.raises(InputError, match=r"x\.not-measured\.json gives no reason .*; bench its recipe again"):
        page()


def test_variants_are_compared_with_the_full_model_on_the_same_episodes(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention-frozen", [0.40, 0.42, 0.41, 0.43])
    write_run("heads/heads-1", [0.30, 0.33, 0.30, 0.32])
    write_run("heads/heads-2", [0.41, 0.41, 0.42, 0.42])
    write_run("heads/heads-4", [0.30, 0.33, 0.30, 0.32], seed=1)
    found = {
        line["system"]: line["less the full model"] for line in table(section(page(), "Number of attention heads"))
    }
    # differences −10, −9, −11, −11: mean −10.25, standard error √(2.75 / 3 / 4), t(0.975, 3) = 3.18245
    assert found["1"] == f"−10.25 ± {3.18245 * math.sqrt(2.75 / 12):.2f}"
    assert found["2"].startswith("≈ +0.00 ± ")
    assert found["4"] == "–", "another seed draws other episodes"
    assert found["8"] == "–"


def test_systems_are_compared_with_the_reading_best_on_validation_and_the_closed_form(
    write_run: WriteRun, page: Page
) -> None:
    write_run("coco/word-attention", [0.50, 0.53, 0.52, 0.50], validation_macro_ap=0.6)
    write_run("coco/word-attention-reference", [0.40, 0.42, 0.41, 0.43], validation_macro_ap=0.7)
    write_run("another/other", [0.70, 0.71, 0.72, 0.73], method="closed-form", backbone="lite")
    write_run("beyond/closed", [0.60, 0.61, 0.60, 0.62], method="closed-form")
    write_run("coco/protonet", [0.40, 0.43, 0.41, 0.42])
    write_run("beyond/elsewhere", [0.1, 0.2, 0.1, 0.2], data_digest="other pictures")
    lines = page()
    lines = lines[lines.index("## Which differences are real") :]
    found = table(lines, "system")
    assert list(found[0]) == ["system", "less word-attention-reference, test", "less closed, test"]
    assert [line["system"] for line in found] == ["other", "closed", "word-attention", "protonet"]
    assert found[1]["less word-attention-reference, test"].startswith("+19.25 ± ")
    assert found[1]["less closed, test"] == "–"
    assert re.match(r"≈ \+0\.00 ± \d\.\d\d, p = 1\.000", found[3]["less word-attention-reference, test"])
    assert found[0]["less closed, test"].endswith("p < 0.001")
    assert "In 6 of 7 comparisons the difference is real.\n" in "\n".join(lines)


def test_systems_that_are_not_told_apart_are_named_once_by_what_from_and_where(write_run: WriteRun, page: Page) -> None:
    alike, apart = [0.40, 0.43, 0.41, 0.42], [0.70, 0.71, 0.72, 0.73]
    for phase in ("test", "mixed"):
        write_run("coco/word-attention", [0.40, 0.42, 0.41, 0.43], phase, validation_macro_ap=0.6)
        write_run("coco/protonet", alike, phase)
        write_run("coco/knn", alike, phase)
        write_run("coco/maml", alike if phase == "test" else apart, phase)
        write_run("coco/pla", apart, phase)
    lines = page()
    lines = lines[lines.index("## Which differences are real") :]
    assert "In 3 of 8 comparisons the difference is real.\n" in "\n".join(lines)
    assert [list(line.values()) for line in table(lines, "not told from")] == [
        ["word-attention", "`test`", "maml"],
        ["word-attention", "`test`, `mixed`", "knn, protonet"],
    ]


def test_where_all_differences_are_real_no_table_says_which_are_not(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention", [0.40, 0.42, 0.41, 0.43], validation_macro_ap=0.6)
    write_run("coco/pla", [0.70, 0.71, 0.72, 0.73])
    lines = page()
    assert "In 1 of 1 comparisons the difference is real.\n" in "\n".join(lines)
    assert not [line for line in lines if line.startswith("| not told")]


def test_where_nothing_was_validated_the_reading_that_did_best_on_the_last_backbone_stands_for_the_paper(
    write_run: WriteRun, page: Page
) -> None:
    for run, value in (
        ("word-attention-reference", 0.5),
        ("word-attention", 0.4),
        ("word-attention-inception-v3", 0.6),
    ):
        write_run(f"laso/{run}-1-shot", [value, value + 0.01, value], data="laso", split="laso")
    lines = page()
    found = table(lines[lines.index("## Which differences are real") :], "system")
    assert list(found[0]) == ["system", "less word-attention-reference-1-shot, test"]
    assert [line["system"] for line in found] == ["word-attention-inception-v3-1-shot", "word-attention-1-shot"]


def test_leads_on_the_next_are_marked_where_nothing_is_told(write_run: WriteRun, page: Page) -> None:
    write_run("coco/a", [0.60, 0.61, 0.60, 0.62])
    write_run("coco/b", [0.40, 0.43, 0.41, 0.42])
    write_run("coco/c", [0.41, 0.41, 0.42, 0.41])
    write_run("coco/d", [0.1, 0.2, 0.1, 0.2], data_digest="other pictures")
    lines = section(page(), "COCO: 16 novel labels, one support image a label (coco)")
    leads = {line["system"]: line["ahead of the next"] for line in table(lines)}
    assert re.match(r"\+19\.25 ± \d\.\d\d", leads["a"])
    assert leads["b"].startswith("≈ +0.25 ± ")
    assert leads["c"] == leads["d"] == "–"


def test_variants_of_the_model_do_not_crowd_the_overview(write_run: WriteRun, page: Page) -> None:
    for run in (
        "coco/word-attention-frozen",
        "heads/heads-1",
        "words/mpnet",
        "shots/protonet-5-shots",
        "coco/protonet",
    ):
        write_run(run, [0.4, 0.5], shots=5 if "shots" in run else 1)
    lines = section(page(), "COCO: 16 novel labels, one support image a label (coco)")
    assert {line["system"] for line in table(lines)} == {
        "*the paper's model, as published*",
        "word-attention-frozen",
        "protonet",
    }


def test_runs_of_more_shots_are_columns_beside_their_namesake(write_run: WriteRun, page: Page) -> None:
    write_run("beyond/knn", [0.3, 0.3])
    write_run("shots/knn-2-shots", [0.4, 0.4], shots=2, method="knn")
    write_run("shots/knn-10-shots", [0.5, 0.5], shots=10, method="knn")
    write_run("beyond/am3", [0.6, 0.6])
    lines = page()
    (found,) = table(section(lines, "coco: more examples a label"))
    assert list(found) == ["system, on `test`", "1 shot", "2 shots", "10 shots"]
    assert [cell.split()[0] for cell in found.values()] == ["knn", "30.00", "40.00", "50.00"]
    assert {line["system"] for line in table(section(lines, "coco: 1 shot"))} == {"knn", "am3"}
    assert not any(line.startswith("### coco: 2 shots") for line in lines)


def test_a_data_set_of_ones_own_shows_no_table_of_the_paper(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/a", [0.2, 0.3], **MINE)
    write_run("recipe/b", [0.6, 0.7], **MINE)
    write_run("recipe/c", [0.4, 0.5], **MINE, phase="val")
    write_run("recipe/longer", [0.4, 0.5, 0.6], **MINE, note="Drawn by hand.")
    lines = page()
    assert not any("published*" in line or "paper's tables" in line for line in lines)
    without_note = section(lines, "mine: 1 shot, 4 queries, 2 episodes")
    assert without_note[1].startswith("| system |")
    assert [line["system"] for line in table(without_note)] == ["b", "a", "c"]
    assert "Drawn by hand." in section(lines, "mine: 1 shot, 4 queries, 3 episodes")


def test_systems_on_data_of_ones_own_are_ranked_and_compared(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/protonet-1-shots", [0.60, 0.70, 0.66], method="protonet", **MINE)
    write_run("recipe/protonet-5-shots", [0.90, 0.91, 0.92], method="protonet", shots=5, **MINE)
    write_run("recipe/closed-form", [0.20, 0.31, 0.25], **MINE)
    lines = page()
    found = table(section(lines, "mine: 1 support image a label"))
    assert [line["system"] for line in found] == ["protonet-1-shots", "closed-form"]
    assert found[0]["ahead of the next"].startswith("+40.00 ± ")
    assert "![Macro-AP of every system on mine](plots/mine.png)" in lines
    (compared,) = table(lines[lines.index("### mine") :])
    assert compared["less closed-form, test"].startswith("+40.00 ± ")


def test_a_plot_is_shown_of_data_whose_name_has_a_space(write_run: WriteRun, page: Page) -> None:
    for run in ("a", "b"):
        write_run(f"recipe/{run}", [0.2, 0.3], **MINE | {"data": "my pictures"})
    assert "![Macro-AP of every system on my pictures](plots/my%20pictures.png)" in page()


def test_each_split_of_ones_own_data_has_a_plot_of_its_own(write_run: WriteRun, page: Page) -> None:
    for run, split in product(("a", "b"), ("fold-1.json", "fold-2.json")):
        write_run(f"{split}/{run}", [0.2, 0.3], **MINE | {"data": "my/birds", "split": split})
    shown = re.findall(r"\((plots/.+)\)", "\n".join(page()))
    assert shown == ["plots/my-birds.png", "plots/my-birds-2.png"]


def test_the_overview_of_ones_own_data_is_of_the_fewest_shots_that_several_have(
    write_run: WriteRun, page: Page
) -> None:
    write_run("recipe/word-only", [0.5, 0.6], shots=0, **MINE)
    assert "## Overview" not in page()  # one alone is ahead of nothing
    for name in ("a", "b"):
        write_run(f"recipe/{name}", [0.5, 0.6], shots=5, **MINE)
    assert [line["system"] for line in table(section(page(), "mine: 5 support images a label"))] == ["a", "b"]


def test_tables_of_the_paper_that_nothing_stands_in_are_left_out(write_run: WriteRun, page: Page) -> None:
    write_run("heads/heads-1", [0.4, 0.5])
    headings = [line for line in page() if line.startswith("### ")]
    assert "### Number of attention heads" in headings
    assert not {"### Word vectors", "### PASCAL VOC: 6 novel labels, one support image a label"} & set(headings)


def test_the_page_begins_with_links_to_all_its_sections(write_run: WriteRun, page: Page) -> None:
    write_run("coco/word-attention", [0.4, 0.5])
    write_run("recipe/a", [0.2, 0.3], **MINE)
    lines = page()
    contents = "\n".join(lines[: lines.index("## Overview")])
    headings = [line.lstrip("# ") for line in lines if line.startswith(("## ", "### "))]
    assert re.findall(r"\[(.+?)\]\(#", contents) == headings
    assert "(#coco-16-novel-labels-one-support-image-a-label-coco)" in contents  # as README has it


def test_headings_alike_have_a_link_each(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/a", [0.2, 0.3], sampling="halves", **MINE)
    write_run("recipe/b", [0.2, 0.3], supports="single", **MINE)
    contents = "\n".join(page())
    assert "[mine](#mine)" in contents
    assert "[mine](#mine-1)" in contents


def test_each_command_is_listed_with_its_commit(write_run: WriteRun, page: Page) -> None:
    write_run("coco/a", [0.2, 0.3])
    write_run("coco/a", [0.2, 0.3], phase="mixed")
    write_run("coco/b", [0.2, 0.3])
    write_run("coco/b", [0.2, 0.3], phase="mixed", commit="beef")
    lines = section(page(), "Where each row comes from")
    assert [line for line in lines if line.startswith("- ")] == [
        "- coco, coco/a, `test` and `mixed`: `fewtag bench recipes/coco.toml` at commit c0de",
        "- coco, coco/b, `test`: `fewtag bench recipes/coco.toml` at commit c0de",
        "- coco, coco/b, `mixed`: `fewtag bench recipes/coco.toml` at commit beef",
    ]


@pytest.mark.parametrize(("frozen", "how"), [(True, "frozen backbone"), (False, "end to end")])
def test_a_trained_row_says_what_it_learnt_from(write_run: WriteRun, page: Page, frozen: bool, how: str) -> None:
    facts = {"trained_episodes": 350, "planned_episodes": 4000, "validation_macro_ap": 0.4567, "frozen": frozen}
    write_run("recipe/mine", [0.2, 0.3], **facts, **MINE)
    (found,) = table(section(page(), "mine: 1 shot"))
    assert found["training"] == f"{how}, best on validation (45.7) at episode 350 of at most 4000"


def test_a_row_trained_without_validation_says_so(write_run: WriteRun, page: Page) -> None:
    write_run("recipe/mine", [0.2, 0.3], trained_episodes=350, planned_episodes=350, **MINE)
    assert table(section(page(), "mine: 1 shot"))[0]["training"] == "frozen backbone, 350 episodes, not validated"


def test_joined_backbones_and_words_are_told_in_short(write_run: WriteRun, page: Page) -> None:
    joined = {"backbone": "resnet50+lite2", "words": "words/labels.npz#coco_glove300+words/glove.txt+minilm"}
    write_run("coco/joined", [0.2, 0.3], **joined)
    (found,) = table(section(page(), "coco: 1 shot"))
    assert found["backbone, words"] == "resnet50 + lite2, glove300 + glove.txt + minilm"


def test_every_line_of_a_table_has_the_cells_of_its_head(write_run: WriteRun, page: Page, tmp_path: Path) -> None:
    for run in ("coco/protonet", "coco/word-attention-frozen", "heads/heads-1", "words/mpnet", "baselines/pla"):
        write_run(run, [0.4, 0.5])
        write_run(run, [0.3, 0.5], phase="mixed")
    write_run("voc/word-attention", [0.4, 0.5], data="voc", split="voc")
    write_run("laso/laso-5-shot", [0.4, 0.5], data="laso", split="laso", shots=5)
    write_run("laso/closed-form-1-shot", [0.4, 0.5], data="laso", split="laso", phase="val")
    write_run("recipe/single", [0.5], **MINE)
    write_reason(tmp_path, "words/bert", "a | b")
    width = None
    for line in page():
        if line.startswith("|"):
            width = width or len(cells(line))
            assert len(cells(line)) == width, line
        else:
            width = None


def test_the_report_does_not_depend_on_when_it_is_written(write_run: WriteRun, page: Page) -> None:
    write_run("coco/a", [0.2, 0.3])
    write_run("coco/b", [0.6, 0.7])
    assert page() == page()


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_without_rows_is_refused(write_run: WriteRun, tmp_path: Path, empty: bool) -> None:
    if empty:
        write_run("coco/a", [])
    with pytest.raises(InputError, match=r"no rows \(\*\.parquet\) under .*; measure some with fewtag bench"):
        write_report(tmp_path, tmp_path / "RESULTS.md")
    assert not (tmp_path / "RESULTS.md").exists()


def test_rows_of_before_parquet_are_refused_not_left_out(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("coco/a", [0.4, 0.5])
    (tmp_path / "coco" / "b.test.jsonl").write_text("{}")
    with pytest.raises(InputError, match=r"b\.test\.jsonl is of before .*; delete it, and measure its run"):
        write_report(tmp_path, tmp_path / "RESULTS.md")


def test_a_name_that_belies_its_shots_is_of_no_curve(write_run: WriteRun, page: Page) -> None:
    write_run("beyond/knn", [0.3, 0.3])
    write_run("shots/knn-2-shots", [0.4, 0.4], shots=5, method="knn")
    lines = page()
    assert "### coco: more examples a label" not in lines
    assert [line["system"] for line in table(section(lines, "coco: 5 shots"))] == ["knn-2-shots"]


def test_machines_get_the_numbers_and_the_comparisons(write_run: WriteRun, page: Page, tmp_path: Path) -> None:
    write_run("coco/word-attention", [0.50, 0.53, 0.52, 0.50])
    write_run("coco/protonet", [0.40, 0.43, 0.41, 0.42])
    page()
    found = write_report(tmp_path, tmp_path / "RESULTS.md")
    assert found.measured["coco/protonet on test"]["macro_ap"]["mean"] == pytest.approx(0.415)
    assert list(found.comparisons) == ["coco/protonet less coco/word-attention on coco test"]
    (difference,) = found.comparisons.values()
    assert difference["mean"] == pytest.approx(-0.0975)
    assert [path.name for path in found.plots] == ["coco.png"]


def test_the_command_writes_where_it_is_told_and_speaks_json(write_run: WriteRun, cli: Cli, tmp_path: Path) -> None:
    write_run("coco/word-attention", [0.50, 0.53, 0.52, 0.50])
    write_run("recipe/single", [0.40], **MINE)
    assert cli("report", tmp_path, "--out", "page.md").out.strip() == "page.md"
    found = json.loads(cli("report", tmp_path, "--out", "page.md", "--json").out)
    assert found["files"] == {"page": "page.md", "plots": []}
    assert found["measured"]["recipe/single on test"]["macro_ap"] == {"mean": 0.4, "interval": None}
    assert found["comparisons"] == {}


@pytest.mark.slow
def test_the_published_page_is_what_the_published_rows_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = Path(__file__).parents[3] / "results"
    for name in ("draw_marks", "draw_curves"):
        monkeypatch.setattr(f"fewtag.research.bench.report.figures.{name}", lambda path, *_, **__: path)
    made = write_report(results, tmp_path / "RESULTS.md")
    assert made.page.read_text() == (results / "RESULTS.md").read_text(), "run `fewtag report`"
    assert {plot.name for plot in made.plots} == {plot.name for plot in (results / "plots").iterdir()}
