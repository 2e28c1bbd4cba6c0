"""The paper's numbers as the package has them, some compared by hand; and ours, as the pages have them."""

import re
from collections import defaultdict
from math import sqrt
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from scipy import stats

from fewtag.research.bench.report.results import MeasuredRun, PublishedTable, published

ROOT = Path(__file__).parents[3]
SCORES = re.compile(r"(\d+\.\d)(?: ± (\d+\.\d))? / (\d+\.\d)(?: ± (\d+\.\d))?")
"""`44.7 ± 1.4 / 39.3 ± 1.8`, macro-AP / micro-AP, each with or without its interval."""
TABLES = {table.name: table for table in published().tables}


@pytest.mark.parametrize(
    ("table", "system", "metrics", "numbers"),
    [
        ("coco", "the paper's model", ("macro_ap", "micro_ap", "micro_precision"), (42.84, 35.30, 49.72)),
        ("coco", "MAML", ("macro_ap", "micro_ap", "macro_f1"), (35.30, 25.42, 23.82)),
        ("coco", "LaSO", ("micro_precision", "micro_recall", "micro_f1"), (12.31, 19.77, 15.09)),
        ("coco", "PLA (GloVe)", ("macro_precision", "macro_recall", "micro_recall"), (13.51, 53.21, 55.83)),
        ("voc", "the paper's model", ("macro_ap", "micro_ap", "macro_recall"), (53.26, 46.28, 85.44)),
        ("voc", "ResNet-101 classifier", ("macro_ap", "micro_ap", "micro_f1"), (30.11, 19.23, 23.86)),
        ("laso-1-shot", "KGGR (ResNet-101)", ("macro_ap",), (52.3,)),
        ("laso-5-shot", "the paper's model (ResNet-101)", ("macro_ap",), (68.12,)),
        ("variations", "low-rank bilinear pooling", ("macro_ap", "micro_ap"), (33.41, 24.69)),
        ("fine-tuning", "with fine-tuning", ("macro_ap", "micro_ap"), (45.27, 35.70)),
        ("words", "word2vec (skip-gram)", ("macro_ap", "micro_ap"), (38.67, 29.47)),
        ("words", "BERT", ("macro_ap", "micro_ap"), (36.46, 28.33)),
        ("heads", "14", ("macro_ap", "micro_ap"), (40.18, 35.75)),
        ("scale", "336 × 336 pixels", ("macro_ap", "micro_ap"), (43.79, 36.41)),
        ("local-query", "local features, sum of the top k", ("macro_ap", "micro_ap"), (42.91, 35.59)),
    ],
)
def test_numbers_are_the_papers(table: str, system: str, metrics: tuple[str, ...], numbers: tuple[float, ...]) -> None:
    (row,) = (row for row in TABLES[table].rows if row.system == system)
    assert tuple(TABLES[table].number(row, metric) for metric in metrics) == numbers


def test_f1_is_a_little_below_the_harmonic_mean_but_for_the_two_slips_that_are_noted() -> None:
    """A mean of harmonic means is at most the harmonic mean of the means, so a mistyped number would show here."""
    above = set()
    for name in ("coco", "voc"):
        for row in TABLES[name].rows:
            for scope in ("micro", "macro"):
                precision, recall, f1 = (
                    TABLES[name].number(row, f"{scope}_{metric}") or 0.0 for metric in ("precision", "recall", "f1")
                )
                apart = f1 - 2 * precision * recall / (precision + recall)
                assert apart > -1.2
                if apart > 0.05:  # rounding
                    above.add((name, row.system, scope))
                    assert f"{f1:.2f}" in TABLES[name].note
    assert above == {("coco", "ResNet-50 classifier", "macro"), ("voc", "ResNet-50 classifier", "macro")}


def test_the_full_model_has_the_same_numbers_wherever_it_stands() -> None:
    for table in TABLES.values():
        if table.against:
            (full,) = (row for row in table.rows if table.against in row.runs)
            assert full.numbers == [42.84, 35.30], table.name


def test_what_was_trained_for_so_many_episodes_is_compared_with_the_full_model_after_as_many() -> None:
    baselines = {
        run: table.baseline(MeasuredRun(Path(recipe), name, "r", {}))
        for table in published().tables
        if table.against
        for row in table.rows
        for run in row.runs
        for recipe, name in [run.split("/")]
    }
    assert baselines["equal/no-cmw-loss-after-4000"] == "equal/word-attention-after-4000"
    assert baselines["equal/local-query-after-100"] == "equal/word-attention-after-100"
    assert baselines["equal/fine-tuning-after-400"] == "equal/word-attention-after-400"
    assert baselines["ablations/no-cmw-loss"] == "coco/word-attention-frozen"


def test_a_system_without_numbers_says_that_it_is_not_the_papers() -> None:
    for table in TABLES.values():
        for row in table.rows:
            assert bool(row.numbers) != row.system.endswith("(not in the paper)")


def test_runs_are_named_once_a_table() -> None:
    for table in TABLES.values():
        runs = [run for row in table.rows for run in row.runs]
        assert len(runs) == len(set(runs)), table.name
        assert all(run.count("/") == 1 for run in runs)


def test_a_split_finds_the_table_that_compares_systems() -> None:
    for split, name in (("coco", "coco"), ("voc", "voc"), ("laso", "laso-1-shot")):
        table = published().comparison(split)
        assert table is not None
        assert table.name == name
    assert published().comparison("mine") is None


def test_a_table_with_a_number_too_few_is_no_table() -> None:
    facts = TABLES["heads"].model_dump()
    facts["rows"][0]["numbers"] = [30.06]
    with pytest.raises(ValueError, match="heads"):
        PublishedTable.model_validate(facts)


def test_every_table_of_systems_has_the_papers_own_model_and_no_other_system_is_it() -> None:
    for table in TABLES.values():
        own = [row.system for row in table.rows if row.own]
        assert own == [row.system for row in table.rows if row.system.startswith("the paper's model")]
        assert bool(own) != bool(table.against)


def test_systems_of_a_curve_are_named_by_numbers() -> None:
    (table,) = (table for table in TABLES.values() if table.figure == "curve")
    assert [float(row.system) for row in table.rows] == [1, 2, 4, 6, 8, 10, 12, 14, 16]
    assert table.along == "attention heads"


def test_the_pages_show_the_scores_of_rows_each_rounded_once() -> None:
    """Those with an interval, which is over training seeds."""
    means: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    for path in (ROOT / "results").glob("*/*.parquet"):
        if not path.name.endswith(".sessions.parquet"):
            run, phase, _ = path.name.rsplit(".", 2)
            columns = pyarrow.parquet.read_table(path, columns=["macro_ap", "micro_ap"])
            scores = [100 * np.mean(columns[name].to_numpy()) for name in columns.column_names]
            means[f"{path.parent.name}/{re.sub(r'-seed-[0-9]+$', '', run)}", phase].append(np.array(scores))
    measured = set()
    for seeds in (each for each in means.values() if len(each) > 1):
        wide = stats.t.ppf(0.975, len(seeds) - 1) * np.std(seeds, axis=0, ddof=1) / sqrt(len(seeds))
        (macro, micro), (macro_wide, micro_wide) = np.mean(seeds, axis=0), wide
        told = f"{macro:.1f}", f"{macro_wide:.1f}", f"{micro:.1f}", f"{micro_wide:.1f}"
        measured |= {told, (*told[:3], ""), (told[0], "", *told[2:])}
    pages = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("paper-notes", "methods", "protocol"))]
    shown = {scores for page in pages for scores in SCORES.findall(re.sub(r"\s+", " ", page.read_text("utf-8")))}
    over_seeds = {scores for scores in shown if scores[1] or scores[3]}
    assert len(over_seeds) > 40
    assert over_seeds - measured == {("49.9", "0.7", "40.8", "")}  # ProtoNet, which trains nothing: over episodes
