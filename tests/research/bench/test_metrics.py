"""The eight numbers against scikit-learn's, ties included."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from fewtag.research.bench.results import (
    METRICS,
    episode_metrics,
    mean_and_interval,
)


@st.composite
def episodes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of few values, so that many tie, and targets where every label is shown at least once."""
    images, labels = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    levels = st.sampled_from([0.0, 0.2, 0.49, 0.5, 0.51, 0.9, 1.0])
    probabilities = draw(arrays(np.float64, (images, labels), elements=levels))
    targets = draw(arrays(bool, (images, labels)))
    for label in range(labels):
        targets[draw(st.integers(0, images - 1)), label] = True
    return probabilities, targets


def measure(probabilities: np.ndarray, targets: np.ndarray, **options: float) -> dict[str, float]:
    return episode_metrics(probabilities, targets, **options)


@settings(max_examples=30, deadline=None)
@given(episodes())
def test_precision_recall_and_ap_are_scikit_learns(episode: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, targets = episode
    found = measure(probabilities, targets)
    for scope in ("micro", "macro"):
        how = {"average": scope, "zero_division": 0}
        assert found[f"{scope}_precision"] == pytest.approx(precision_score(targets, probabilities > 0.5, **how))
        assert found[f"{scope}_recall"] == pytest.approx(recall_score(targets, probabilities > 0.5, **how))
        ap = average_precision_score(targets, probabilities, average=scope)
        assert found[f"{scope}_ap"] == pytest.approx(ap, abs=1e-6)
    assert found["micro_f1"] == pytest.approx(f1_score(targets, probabilities > 0.5, average="micro", zero_division=0))


@settings(max_examples=25, deadline=None)
@given(episodes())
def test_macro_f1_is_the_harmonic_mean_of_macro_precision_and_recall(episode: tuple[np.ndarray, np.ndarray]) -> None:
    found = measure(*episode)
    precision, recall = found["macro_precision"], found["macro_recall"]
    expected = 0.0 if precision == recall == 0 else 2 / (1 / precision + 1 / recall)
    assert found["macro_f1"] == pytest.approx(expected)


def test_macro_f1_is_not_the_mean_of_the_labels_f1() -> None:
    probabilities = np.array([[0.9, 0.9], [0.1, 0.9], [0.1, 0.9]])
    targets = np.array([[True, True], [True, False], [True, False]])
    found = measure(probabilities, targets)
    # precision 1 and 1/3, recall 1/3 and 1: both means are 2/3, either label's F1 is 1/2
    assert found["macro_f1"] == pytest.approx(2 / 3)
    assert f1_score(targets, probabilities > 0.5, average="macro") == pytest.approx(1 / 2)


def test_one_half_is_not_enough_to_be_tagged() -> None:
    targets = np.array([[True], [True]])
    just_over = np.nextafter(0.5, 1)
    assert measure(np.array([[0.5], [0.5]]), targets)["micro_recall"] == 0
    assert measure(np.array([[0.5], [just_over]]), targets)["micro_recall"] == 0.5


def test_another_threshold_moves_precision_and_recall_alone() -> None:
    probabilities, targets = np.array([[0.3, 0.1], [0.1, 0.4]]), np.eye(2, dtype=bool)
    strict, lenient = measure(probabilities, targets), measure(probabilities, targets, threshold=0.2)
    assert (strict["macro_recall"], lenient["macro_recall"]) == (0, 1)
    assert strict["macro_ap"] == lenient["macro_ap"] == 1


def test_a_perfect_ranker_has_ap_one_even_if_all_is_under_the_threshold() -> None:
    generator = np.random.default_rng(0)
    targets = generator.random((20, 4)) < 0.4
    probabilities = np.where(targets, 0.3, 0.2) + generator.random((20, 4)) / 20
    found = measure(probabilities, targets)
    assert (found["micro_ap"], found["macro_ap"]) == (1, 1)
    assert found["micro_recall"] == found["micro_f1"] == found["macro_f1"] == 0


def test_micro_ap_ranks_all_labels_together_and_macro_ap_each_alone() -> None:
    # each label ranks its images rightly, but the second one's best is under the first one's worst
    found = measure(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([[True, False], [False, True]]))
    assert found["macro_ap"] == 1
    assert found["micro_ap"] == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("levels", [10, 1000, 2**52], ids=["many ties", "some", "none"])
def test_ap_of_large_episodes_is_scikit_learns(levels: int) -> None:
    generator = np.random.default_rng(0)
    for _ in range(10):
        probabilities, targets = generator.integers(levels, size=(64, 16)) / levels, generator.random((64, 16)) < 0.1
        targets[0] |= ~targets.any(axis=0)
        found = measure(probabilities, targets)
        for scope in ("micro", "macro"):
            ap = average_precision_score(targets, probabilities, average=scope)
            assert found[f"{scope}_ap"] == pytest.approx(ap, abs=1e-6)


def test_a_label_that_no_image_shows_has_ap_zero() -> None:
    found = measure(np.array([[0.9, 0.9], [0.1, 0.1]]), np.array([[True, False], [False, False]]))
    assert found["macro_ap"] == 0.5


def test_the_eight_come_in_one_order() -> None:
    names = ("precision", "recall", "f1", "ap")
    assert tuple(f"{scope}_{name}" for scope in ("micro", "macro") for name in names) == METRICS
    assert tuple(measure(np.array([[0.9]]), np.array([[True]]))) == METRICS


def test_the_interval_is_students() -> None:
    mean, half = mean_and_interval([0.2, 0.4, 0.9])
    assert mean == pytest.approx(0.5)
    low, high = scipy.stats.t.interval(0.95, 2, 0.5, math.sqrt((0.09 + 0.01 + 0.16) / 2) / math.sqrt(3))
    assert half == pytest.approx((high - low) / 2)


def test_one_episode_has_a_mean_and_no_interval() -> None:
    mean, half = mean_and_interval([0.25])
    assert mean == 0.25
    assert math.isnan(half)
