"""Calibration against scikit-learn and by hand."""

import json
import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from fewtag.core.calibration import (
    Calibration,
    best_threshold,
    calibration_error,
    estimate_shares,
    fit_curve,
    log_odds,
    sigmoid,
)


def pairs(count: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose probability of being right is σ(8·s − 3)."""
    generator = np.random.default_rng(seed)
    scores = generator.uniform(-1, 1, count).astype(np.float32)
    return scores, generator.random(count) < sigmoid(8 * scores - 3)


def test_the_curve_is_scikit_learns_logistic_regression() -> None:
    scores, shown = pairs()
    oracle = LogisticRegression(C=1e9, tol=1e-10).fit(scores[:, None], shown)
    slope, offset = fit_curve(scores, shown)
    assert slope == pytest.approx(oracle.coef_[0, 0], rel=0.02)
    assert offset == pytest.approx(oracle.intercept_[0], rel=0.02)


@pytest.mark.parametrize("count", [8, 40])
def test_the_curve_has_platts_targets(count: int) -> None:
    """With few pairs they move it: a weighted logistic regression on (n+1)/(n+2) and 1/(n+2) is the oracle."""
    scores, shown = pairs(count, seed=3)
    positives, negatives = shown.sum(), (~shown).sum()
    targets = np.where(shown, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    oracle = LogisticRegression(C=1e9, tol=1e-12, max_iter=10_000).fit(
        np.concatenate([scores, scores])[:, None],
        np.repeat([True, False], count),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    slope, offset = fit_curve(scores, shown)
    assert slope == pytest.approx(oracle.coef_[0, 0], rel=1e-3)
    assert offset == pytest.approx(oracle.intercept_[0], rel=1e-3)


def test_a_curve_over_scores_that_separate_perfectly_is_gentle() -> None:
    """Without Platt's targets the slope would be 73, and rise with every step."""
    scores, shown = np.array([0.1, 0.2, 0.8, 0.9], np.float32), np.array([False, False, True, True])
    slope, offset = fit_curve(scores, shown)
    told_right, told_wrong = sigmoid(slope * scores + offset)[[2, 0]]
    assert 2 < slope < 4
    assert told_right == pytest.approx(0.75, abs=0.1)
    assert told_wrong == pytest.approx(0.25, abs=0.1)


def test_no_score_overflows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (np.float32, np.float64):
            found = sigmoid(np.array([-1e30, -1000, -2, 0, 2, 1000, 1e30], kind))
            np.testing.assert_allclose(found, [0, 0, 1 / (1 + np.exp(2)), 0.5, 1 / (1 + np.exp(-2)), 1, 1], atol=1e-6)
            assert found.dtype == kind


def test_the_best_threshold_beats_every_other_by_f1() -> None:
    scores, shown = pairs(100)
    probabilities = sigmoid(8 * scores - 3)
    found = best_threshold(probabilities, shown)
    best = max(f1_score(shown, probabilities >= cut) for cut in probabilities)
    assert f1_score(shown, probabilities >= found) == pytest.approx(best)


def test_calibration_error_by_hand() -> None:
    probabilities = np.array([0.95, 0.95, 0.05, 0.05], np.float32)
    shown = np.array([True, False, False, False])
    assert calibration_error(probabilities, shown, bins=10) == pytest.approx(0.5 * 0.45 + 0.5 * 0.05, abs=1e-6)


def test_honest_probabilities_have_a_small_calibration_error() -> None:
    scores, shown = pairs(20_000)
    slope, offset = fit_curve(scores, shown)
    assert calibration_error(sigmoid(slope * scores + offset), shown) < 0.02
    assert calibration_error(sigmoid(3 * slope * scores), shown) > 0.1


def test_between_two_numbers_of_examples_the_curve_lies_between() -> None:
    calibration = Calibration((1, 5), (10.0, 20.0), (-1.0, -3.0), 0.2, (0.2,), ((0.3,), (0.5,)))
    counts, usual = np.array([0, 1, 3, 5, 50]), np.full(5, 0.2, np.float32)
    thresholds = calibration.threshold(counts, usual).tolist()
    assert thresholds[0] == thresholds[1] == pytest.approx(0.3)
    assert thresholds[2] == pytest.approx(0.3 + 0.2 * np.log(2) / np.log(3), abs=1e-6), "a line over log(1 + examples)"
    assert thresholds[3] == thresholds[4] == pytest.approx(0.5)
    slopes, offsets = calibration.curves(counts, usual)
    found = sigmoid(slopes * np.full(5, 0.2, np.float32) + offsets)
    assert found[1] == pytest.approx(1 / (1 + np.exp(-1)))
    assert found[3] == pytest.approx(1 / (1 + np.exp(-1)))
    assert slopes[2] == pytest.approx(10 + 10 * np.log(2) / np.log(3), abs=1e-5)


def test_another_share_of_the_pictures_moves_the_odds_by_bayes_rule() -> None:
    """Probability p where a share s shows the label: the likelihood ratio is odds(p) / odds(s), whatever the share."""
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3)
    counts, scores = np.zeros(3, np.int64), np.float32(0.7)
    shares = np.array([0.3, 0.01, 0.9], np.float32)
    slopes, offsets = calibration.curves(counts, shares)
    found = sigmoid(slopes * scores + offsets).astype(np.float64)
    usual = 1 / (1 + np.exp(-(2.0 * 0.7 - 0.5)))
    ratio = usual / (1 - usual) / (0.3 / 0.7)
    for share, chance in zip((0.3, 0.01, 0.9), found, strict=True):
        odds = ratio * share / (1 - share)
        assert chance == pytest.approx(odds / (1 + odds), rel=1e-5)


def test_thresholds_follow_the_share_in_a_line_over_its_log_odds() -> None:
    calibration = Calibration((0, 5), (1.0, 1.0), (0.0, 0.0), 0.3, (0.01, 0.3), ((0.1, 0.3), (0.2, 0.4)))
    shares = np.array([0.001, 0.01, 0.05, 0.3, 0.9], np.float32)
    found = calibration.threshold(np.zeros(5, np.int64), shares).tolist()
    part = (np.log(0.05 / 0.95) - np.log(0.01 / 0.99)) / (np.log(0.3 / 0.7) - np.log(0.01 / 0.99))
    assert found == pytest.approx([0.1, 0.1, 0.1 + 0.2 * part, 0.3, 0.3], abs=1e-6)
    assert calibration.threshold(np.full(5, 9), shares).tolist() == pytest.approx(
        [0.2, 0.2, 0.2 + 0.2 * part, 0.4, 0.4], abs=1e-6
    )


def test_a_calibration_is_read_from_what_json_makes_of_it() -> None:
    calibration = Calibration((0, 5), (1.0, 2.0), (0.0, -1.0), 0.3, (0.01, 0.3), ((0.1, 0.3), (0.2, 0.4)))
    assert Calibration.read(json.loads(json.dumps(vars(calibration)))) == calibration


def sampled(shares: np.ndarray, pictures: int, apart: float, seed: int) -> np.ndarray:
    """Log-likelihood ratios of pictures, so many of which show each label: of two normals that lie apart."""
    random = np.random.default_rng(seed)
    shown = random.random((pictures, len(shares))) < shares
    seen = random.normal(size=shown.shape) + np.where(shown, apart, 0)
    return (apart * seen - apart**2 / 2).astype(np.float32)


def test_shares_are_found_that_labels_were_drawn_with() -> None:
    """Wherever the search starts; to within four standard errors of a sample of that size."""
    shares = np.array([0.01, 0.05, 0.2, 0.5, 0.8], np.float32)
    evidence = sampled(shares, 4000, 3.0, 0)
    found = estimate_shares(evidence, np.full(5, 0.08, np.float32))
    assert np.abs(found - shares).max() < 4 * np.sqrt(0.25 / 4000)
    other = estimate_shares(evidence, np.full(5, 0.6, np.float32))
    assert np.abs(found - other).max() < 1e-3


def test_a_small_sample_without_any_sign_leaves_a_small_share_not_none() -> None:
    found = estimate_shares(np.full((100, 1), -20, np.float32), np.full(1, 0.3, np.float32))
    assert found[0] == pytest.approx(0.01 * 20 / 120, rel=1e-3)
    full = estimate_shares(np.full((100, 1), 20, np.float32), np.full(1, 0.3, np.float32))
    assert 0.8 < full[0] < 1


def test_log_odds_by_hand() -> None:
    assert log_odds(np.array([0.5, 0.2])).tolist() == pytest.approx([0, np.log(0.25)])
