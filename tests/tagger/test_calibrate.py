"""Calibration against scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from fewtag.tagger.calibrate import Calibration, best_threshold, calibration_error, fit_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score


def pairs(count: int = 4000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores whose probability of being right is σ(8·s − 3)."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator) * 2 - 1
    return scores, torch.rand(count, generator=generator) < torch.sigmoid(8 * scores - 3)


def test_the_curve_is_scikit_learns_logistic_regression() -> None:
    scores, shown = pairs()
    oracle = LogisticRegression(C=1e9, tol=1e-10).fit(scores[:, None].numpy(), shown.numpy())
    slope, offset = fit_curve(scores, shown)
    assert slope == pytest.approx(oracle.coef_[0, 0], rel=0.02)
    assert offset == pytest.approx(oracle.intercept_[0], rel=0.02)


def test_a_curve_stays_finite_where_scores_separate_perfectly() -> None:
    slope, offset = fit_curve(torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([False, False, True, True]))
    assert 0 < slope < 100
    assert np.isfinite(offset)


def test_the_best_threshold_beats_every_other_by_f1() -> None:
    scores, shown = pairs(300)
    probabilities = torch.sigmoid(8 * scores - 3)
    found = best_threshold(probabilities, shown)
    best = max(f1_score(shown, probabilities >= cut) for cut in probabilities)
    assert f1_score(shown, probabilities >= found) == pytest.approx(best)


def test_calibration_error_by_hand() -> None:
    probabilities = torch.tensor([0.95, 0.95, 0.05, 0.05])
    shown = torch.tensor([True, False, False, False])
    assert calibration_error(probabilities, shown, bins=10) == pytest.approx(0.5 * 0.45 + 0.5 * 0.05, abs=1e-6)


def test_honest_probabilities_have_a_small_calibration_error() -> None:
    scores, shown = pairs(20_000)
    slope, offset = fit_curve(scores, shown)
    assert calibration_error(torch.sigmoid(slope * scores + offset), shown) < 0.02
    assert calibration_error(torch.sigmoid(3 * slope * scores), shown) > 0.1


def test_between_two_numbers_of_examples_the_curve_lies_between() -> None:
    calibration = Calibration((1, 5), (10.0, 20.0), (-1.0, -3.0), (0.3, 0.5))
    counts = torch.tensor([0, 1, 3, 5, 50])
    thresholds = calibration.threshold(counts).tolist()
    assert thresholds[0] == thresholds[1] == pytest.approx(0.3)
    assert 0.3 < thresholds[2] < 0.5
    assert thresholds[3] == thresholds[4] == pytest.approx(0.5)
    found = calibration.probabilities(torch.full((1, 5), 0.2), counts)[0]
    assert found[1].item() == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item())
    assert found[3].item() == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item())
