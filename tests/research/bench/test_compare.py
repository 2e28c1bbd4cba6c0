"""Paired tests against scipy and calculations by hand; runs on other episodes are never compared."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fewtag.research.bench.report.comparison import (
    Difference,
    Pair,
    compare,
    difference,
    holm,
    paired,
    widest_difference,
)
from fewtag.research.bench.report.results import MeasuredRun
from fewtag.research.bench.results import ResultRow

WriteRun = Callable[..., list[ResultRow]]
ONE, OTHER = [0.50, 0.55, 0.61, 0.42], [0.48, 0.50, 0.60, 0.43]


def test_a_difference_is_the_mean_of_the_episodes_differences_with_students_interval(write_run: WriteRun) -> None:
    found = difference(write_run("coco/one", ONE), write_run("coco/other", OTHER))
    assert found is not None
    # differences 0.02, 0.05, 0.01, −0.01: mean 0.0175, variance 0.001875 / 3; t(0.975, 3) = 3.18245
    assert found.mean == pytest.approx(0.0175)
    assert found.interval == pytest.approx(3.18245 * math.sqrt(0.001875 / 3 / 4), rel=1e-5)
    assert found.p == pytest.approx(stats.ttest_1samp(np.subtract(ONE, OTHER), 0).pvalue)


def test_the_metric_compared_is_the_one_asked_for(write_run: WriteRun) -> None:
    one = [row.model_copy(update={"micro_ap": row.micro_ap + 0.25}) for row in write_run("coco/one", ONE)]
    other = write_run("coco/other", OTHER)
    found = difference(one, other, "micro_ap")
    assert found is not None
    assert found.mean == pytest.approx(0.2675)


def test_episodes_that_vary_together_tell_apart_what_separate_intervals_do_not(write_run: WriteRun) -> None:
    luck = np.random.default_rng(0).normal(0.5, 0.1, 50)
    noise = np.random.default_rng(1).normal(0, 0.005, 50)
    one, other = write_run("coco/one", [*(luck + 0.01 + noise)]), write_run("coco/other", [*luck])
    found = difference(one, other)
    assert found is not None
    assert found.real
    assert found.interval < 0.1 * 1.96 * luck.std() / math.sqrt(50)


@pytest.mark.parametrize(
    "facts",
    [
        {"data": "voc"},
        {"split": "laso"},
        {"phase": "mixed"},
        {"shots": 5},
        {"queries": 8},
        {"seed": 1},
        {"data_digest": "other pictures"},
        {"data_digest": None},
        {"episode": 7},
    ],
)
def test_runs_on_other_episodes_are_never_compared(write_run: WriteRun, facts: dict[str, object]) -> None:
    one, other = write_run("coco/one", ONE), write_run("coco/other", OTHER)
    assert paired(one, other)
    changes = [row.model_copy(update=facts) for row in other]
    for changed in (changes, [*other[:-1], changes[-1]], other[:-1]):
        assert not paired(one, changed)
        assert difference(one, changed) is None
        assert difference(changed, one) is None


def test_rows_that_do_not_tell_their_pictures_are_of_no_pair(write_run: WriteRun) -> None:
    old = write_run("coco/one", ONE, data_digest=None)
    assert not paired(old, old)


def test_a_single_episode_is_no_comparison(write_run: WriteRun) -> None:
    assert difference(write_run("coco/one", [0.5]), write_run("coco/other", [0.4])) is None


def test_a_run_does_not_differ_from_itself(write_run: WriteRun) -> None:
    rows = write_run("coco/one", ONE)
    assert difference(rows, rows) == (0.0, 0.0, 1.0, "episodes")


def test_an_equal_gain_on_every_episode_is_real(write_run: WriteRun) -> None:
    found = difference(write_run("coco/one", [0.75, 0.5]), write_run("coco/other", [0.5, 0.25]))
    assert found == (0.25, 0.0, 0.0, "episodes")


@pytest.mark.parametrize(("p", "real"), [(0.049, True), (0.05, False)])
def test_a_difference_is_real_below_five_percent(p: float, real: bool) -> None:
    assert Difference(0.1, 0.1, p).real == real


def test_holm_multiplies_the_smallest_by_all_and_never_falls_back() -> None:
    # by hand: 4 × 0.005, 3 × 0.01, 2 × 0.03, then 0.04 is lifted to what went before
    assert holm([0.04, 0.005, 0.03, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_rejects_what_the_step_down_rule_rejects() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        values = (generator.random(9) ** 4).tolist()
        ordered = sorted(values)
        stop = next((k for k, p in enumerate(ordered) if p > 0.05 / (9 - k)), 9)
        assert [p <= 0.05 for p in holm(values)] == [p in ordered[:stop] for p in values]


def measured(rows: list[ResultRow]) -> MeasuredRun:
    return MeasuredRun(Path("coco"), rows[0].run, rows[0].recipe_digest, {rows[0].phase: rows})


def test_comparisons_are_corrected_for_those_that_could_be_made(write_run: WriteRun) -> None:
    one, other, shorter = (
        measured(write_run(f"coco/{name}", values))
        for name, values in (("one", ONE), ("other", OTHER), ("shorter", OTHER[:-1]))
    )
    alone = difference(one.phases["test"], other.phases["test"])
    assert alone is not None
    there, back = Pair(one, other), Pair(other, one)
    found = compare([there, Pair(one, shorter), back, Pair(one, other, "mixed")])
    assert list(found) == [there, back]
    assert found[there].p == pytest.approx(2 * alone.p)
    assert found[back].mean == -found[there].mean


def test_a_run_is_known_by_its_folder_name_and_recipe(write_run: WriteRun) -> None:
    run = measured(write_run("coco/one", ONE))
    assert {run: "found"}[measured(write_run("coco/one", OTHER))] == "found"
    assert measured(write_run("coco/one", ONE, recipe_digest="changed")) != run
    assert measured(write_run("coco/other", ONE)) != run


def test_draws_that_both_tell_decide_and_else_the_seed_does(write_run: WriteRun) -> None:
    old, told = write_run("coco/old", ONE), write_run("coco/told", ONE, draws_digest="a")
    assert paired(old, told)
    assert not paired(write_run("coco/other-seed", ONE, seed=1), told)
    assert paired(write_run("coco/same-draws", ONE, seed=1, draws_digest="a"), told)
    assert not paired(write_run("coco/other-draws", ONE, draws_digest="b"), told)


def seeded(rows: list[list[ResultRow]]) -> MeasuredRun:
    """A run with the rows of several training seeds, of which the first stand for their mean."""
    return MeasuredRun(Path("coco"), "run", "r", {"test": rows[0]}, {"test": rows} if len(rows) > 1 else {})


def test_the_widest_of_episodes_labels_and_seeds_decides(write_run: WriteRun) -> None:
    one = [[0.50, 0.56, 0.61, 0.42], [0.46, 0.52, 0.57, 0.38], [0.54, 0.60, 0.65, 0.46]]
    other = [0.45, 0.50, 0.57, 0.36]
    run = seeded([write_run(f"coco/one-{seed}", values) for seed, values in enumerate(one)])
    baseline = seeded([write_run("coco/other", other)])
    found = widest_difference(run, baseline, "test")
    assert found is not None
    over_seeds = stats.ttest_1samp([np.mean(values) for values in one], np.mean(other))
    low, high = over_seeds.confidence_interval(0.95)
    assert (found.over, found.interval) == ("seeds", pytest.approx((high - low) / 2))
    assert found.p == pytest.approx(over_seeds.pvalue)
    assert found.mean == pytest.approx(np.mean(one[0]) - np.mean(other))


def test_several_seeds_are_tested_beside_what_trains_nothing_not_beside_one_seed(
    write_run: WriteRun,
) -> None:
    seeds = [write_run(f"coco/one-{seed}", [mean, mean + 0.001]) for seed, mean in enumerate([0.50, 0.46, 0.54])]
    solved, trained = (
        measured(write_run(f"coco/{episodes}", [0.3, 0.301], trained_episodes=episodes)) for episodes in (None, 100)
    )
    exact, drawn = (widest_difference(seeded(seeds), baseline, "test") for baseline in (solved, trained))
    assert exact is not None
    assert drawn is not None
    assert exact.interval == pytest.approx(stats.t.ppf(0.975, 2) * 0.04 / math.sqrt(3))
    assert (exact.over, exact.real) == ("seeds", True)
    assert (drawn.over, drawn.real) == ("one seed", False)


def test_two_runs_of_several_seeds_are_compared_by_welchs_test(write_run: WriteRun) -> None:
    """By hand: their spreads need not be alike, nor their numbers of seeds."""
    ours, theirs = [0.50, 0.40, 0.60], [0.30, 0.31, 0.30, 0.29, 0.30]
    one, other = (
        seeded([write_run(f"coco/{mean}-{seed}", [mean, mean + 0.001]) for seed, mean in enumerate(means)])
        for means in (ours, theirs)
    )
    found = widest_difference(one, other, "test")
    spread, theirs_spread = np.var(ours, ddof=1) / 3, np.var(theirs, ddof=1) / 5
    freedom = (spread + theirs_spread) ** 2 / (spread**2 / 2 + theirs_spread**2 / 4)
    assert found is not None
    assert found.over == "seeds"
    assert found.interval == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(spread + theirs_spread))


def test_the_largest_p_value_counts_even_where_another_test_has_the_widest_interval(write_run: WriteRun) -> None:
    """Few seeds have a narrow interval and a large p-value beside many labels."""
    labels = {str(number): 0.45 + 0.0813 * (-1) ** number for number in range(16)}
    means = [0.45, 0.4327, 0.4673]
    run = seeded(
        [write_run(f"coco/{mean}", [mean, mean + 0.001], label_aps=json.dumps(labels)) for mean in means],
    )
    baseline = seeded([write_run("coco/other", [0.4, 0.401], label_aps=json.dumps(dict.fromkeys(labels, 0.4)))])
    found = widest_difference(run, baseline, "test")
    by_labels, by_seeds = (stats.ttest_1samp(values, 0.4) for values in (list(labels.values()), means))
    assert by_labels.pvalue < by_seeds.pvalue
    assert found is not None
    assert (found.over, found.p) == ("labels", pytest.approx(by_seeds.pvalue))


def test_of_runs_that_were_trained_once_each_no_difference_is_real(write_run: WriteRun) -> None:
    one, other = (
        measured(write_run(f"coco/{name}", values, trained_episodes=100))
        for name, values in (("one", [0.50, 0.51, 0.50]), ("other", [0.30, 0.32, 0.30]))
    )
    found = widest_difference(one, other, "test")
    assert found is not None
    assert (found.over, found.real) == ("one seed", False)
    assert found.interval > 0


def test_a_gain_on_one_label_of_four_is_not_told_from_nothing(write_run: WriteRun) -> None:
    aps = ['{"a": 0.9, "b": 0.5, "c": 0.5, "d": 0.5}', '{"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}']
    run, baseline = (
        seeded(
            [write_run(f"coco/{number}", [0.6 - 0.1 * number, 0.61 - 0.1 * number, 0.6 - 0.1 * number], label_aps=ap)]
        )
        for number, ap in enumerate(aps)
    )
    found = widest_difference(run, baseline, "test")
    assert found is not None
    assert (found.over, found.real) == ("labels", False)
    assert difference(run.phases["test"], baseline.phases["test"]).real  # type: ignore[union-attr]
