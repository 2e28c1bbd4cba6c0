"""Calibration against scikit-learn and by hand."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from fewtag.core.calibration import (
    ALONE,
    ANSWERS,
    EASE,
    GUESS,
    LEAN,
    MANY,
    SLACK,
    Calibration,
    Pairs,
    best_threshold,
    calibrate,
    calibration_error,
    estimate_priors,
    fit_logistic,
    log_odds,
    match_priors,
    sigmoid,
)


def pairs(count: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose probability of being right is σ(8·s − 3)."""
    generator = np.random.default_rng(seed)
    scores = generator.uniform(-1, 1, count).astype(np.float32)
    return scores, generator.random(count) < sigmoid(8 * scores - 3)


def fit_curve(scores: np.ndarray, shown: np.ndarray) -> tuple[float, float]:
    """Slope and offset of the likeliest curve."""
    inputs = np.stack([scores, np.ones(len(scores))], axis=1).astype(np.float64)
    slope, offset = fit_logistic(inputs, shown, np.ones(len(scores)))
    return float(slope), float(offset)


def test_the_curve_is_scikit_learns_logistic_regression() -> None:
    scores, shown = pairs()
    oracle = LogisticRegression(C=1e9, tol=1e-10).fit(scores[:, None], shown)
    slope, offset = fit_curve(scores, shown)
    assert slope == pytest.approx(oracle.coef_[0, 0], rel=1e-3)
    assert offset == pytest.approx(oracle.intercept_[0], rel=1e-3)


def test_a_pair_of_weight_three_counts_like_three() -> None:
    scores, shown = pairs(300)
    inputs = np.stack([scores, np.ones(300)], axis=1).astype(np.float64)
    weights = np.random.default_rng(0).integers(1, 4, 300)
    oracle = LogisticRegression(C=1e9, tol=1e-10).fit(scores[:, None], shown, sample_weight=weights)
    found = fit_logistic(inputs, shown, weights.astype(np.float64))
    assert found.tolist() == pytest.approx([oracle.coef_[0, 0], oracle.intercept_[0]], rel=1e-3)
    probabilities = sigmoid(8 * scores - 3)
    repeated = best_threshold(np.repeat(probabilities, weights), np.repeat(shown, weights))
    assert best_threshold(probabilities, shown, weights.astype(np.float64)) == pytest.approx(repeated)


def test_curves_over_scores_that_separate_perfectly_are_finite() -> None:
    scores, shown = np.array([0.1, 0.2, 0.8, 0.9], np.float32), np.array([False, False, True, True])
    slope, offset = fit_curve(scores, shown)
    assert np.isfinite([slope, offset]).all()
    assert sigmoid(slope * scores + offset)[[2, 0]] == pytest.approx([1, 0], abs=0.01)


def drawn_label(examples: int, noes: float, count: int, share: float, seed: int) -> Pairs:
    """Pictures whose odds of showing the label at a share of 0.2 are exp(2·logit − 1 + 0.5·log(1 + noes))."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, 40 * count)
    at_share = 2 * logits - 1 + 0.5 * np.log1p(noes)
    shown = random.random(len(logits)) < sigmoid(at_share)
    # then as many of each kind as make up a share of one's own
    yes, no = np.flatnonzero(shown)[: int(share * count)], np.flatnonzero(~shown)[: int((1 - share) * count)]
    chosen = np.concatenate([yes, no])
    return Pairs(examples, noes, logits[chosen].astype(np.float32), shown[chosen])


def test_calibration_finds_slopes_and_the_weight_of_the_noes_whatever_the_labels_shares() -> None:
    """Offsets hold where the pairs' weights put the share; slopes and the noes' number are those that drew them."""
    labels = [
        drawn_label(examples, noes, 3000, share, seed)
        for seed, (examples, noes, share) in enumerate(
            (examples, noes, share) for examples in (0, 5) for noes in (0.0, 3.0, 15.0) for share in (0.1, 0.3, 0.5)
        )
    ]
    found = calibrate(labels, 0.2, (0.01, 0.2))
    assert found.examples == (0, 5)
    assert (found.share, found.shares) == (0.2, (0.01, 0.2))
    assert found.slopes == pytest.approx((2, 2), rel=0.1)
    shown, weights = np.concatenate([each.shown for each in labels]), []
    said = []
    for each in labels:
        slope, offset = found.curves(
            np.array([each.examples]), np.array([each.noes], np.float32), np.array([0.2], np.float32)
        )
        said.append(sigmoid(slope * each.logits + offset))
        weights.append(np.where(each.shown, 0.2 / each.shown.sum(), 0.8 / (~each.shown).sum()))
    assert np.average(np.concatenate(said), weights=np.concatenate(weights)) == pytest.approx(0.2, abs=0.005)
    assert np.average(shown, weights=np.concatenate(weights)) == pytest.approx(0.2)


@pytest.mark.slow
def test_calibrated_thresholds_have_the_best_f1_but_for_a_point_at_each_share() -> None:
    labels = [drawn_label(1, 0.0, 400, 0.3, seed) for seed in range(3)]
    shares = (0.05, 0.2)
    found = calibrate(labels, 0.2, shares)
    shown = np.concatenate([each.shown for each in labels])
    for column, share in enumerate(shares):
        weights = np.concatenate(
            [np.where(each.shown, share / each.shown.sum(), (1 - share) / (~each.shown).sum()) for each in labels]
        )
        slope, offset = found.curves(np.array([1]), np.zeros(1, np.float32), np.array([share], np.float32))
        said = sigmoid(slope * np.concatenate([each.logits for each in labels]) + offset)

        def f1(cut: float, said: np.ndarray = said, weights: np.ndarray = weights) -> float:
            return f1_score(shown, said >= cut, sample_weight=weights)

        best = max(f1(cut) for cut in said[::7])
        assert f1(found.thresholds[0][column]) >= best - SLACK - 2e-3


def test_slack_in_f1_buys_precision() -> None:
    scores, shown = pairs(200)
    probabilities = sigmoid(8 * scores - 3)
    plain, precise = (best_threshold(probabilities, shown, slack=slack) for slack in (0.0, 0.03))
    given, fewer = (probabilities >= cut for cut in (plain, precise))
    assert f1_score(shown, fewer) >= f1_score(shown, given) - 0.03
    assert precise > plain
    assert fewer.sum() < given.sum()


def test_the_slope_follows_the_weight_of_the_noes() -> None:
    curves = Calibration(slopes=(2.0,), offsets=(1.0,), noes=0.5, noes_slope=-0.1)
    slopes, offsets = curves.curves(np.zeros(2, np.int64), np.array([0, 9], np.float32), np.full(2, 0.5, np.float32))
    assert slopes == pytest.approx([2, 2 - 0.1 * np.log(10)], abs=1e-6)
    assert offsets == pytest.approx([1, 1 + 0.5 * np.log(10)], abs=1e-6)


def test_no_score_overflows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (np.float32, np.float64):
            found = sigmoid(np.array([-1e30, -1000, -2, 0, 2, 1000, 1e30], kind))
            np.testing.assert_allclose(found, [0, 0, 1 / (1 + np.exp(2)), 0.5, 1 / (1 + np.exp(-2)), 1, 1], atol=1e-6)
            assert found.dtype == kind


def test_what_is_equally_likely_is_given_together_or_not_at_all() -> None:
    shown = np.array([True, False, False])
    assert best_threshold(np.array([0.5, 0.5, 0.5], np.float32), shown) == 0.25
    assert best_threshold(np.array([0.5, 0.5, 0.2], np.float32), shown) == pytest.approx(0.35)


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
    line = 0.3 + 0.2 * np.log(2) / np.log(3)  # over log(1 + examples)
    assert thresholds == pytest.approx([EASE * 0.3, EASE * 0.3, EASE * line, EASE * 0.5, EASE * 0.5], abs=1e-6)
    slopes, offsets = calibration.curves(counts, np.zeros(5, np.float32), usual)
    found = sigmoid(slopes * np.full(5, 0.2, np.float32) + offsets)
    assert found[1] == pytest.approx(1 / (1 + np.exp(-1)))
    assert found[3] == pytest.approx(1 / (1 + np.exp(-1)))
    assert slopes[2] == pytest.approx(10 + 10 * np.log(2) / np.log(3), abs=1e-5)


def test_beyond_the_most_examples_that_curves_were_fitted_for_the_offset_goes_on_in_its_line() -> None:
    """The fit's intercept grows with them: with hundreds nearly every picture would get the label."""
    calibration = Calibration((1, 5, 20), (10.0, 9.0, 8.0), (-1.0, -3.0, -5.0), 0.2)
    counts, usual = np.array([5, 20, 100, ANSWERS, 10 * ANSWERS]), np.full(5, 0.2, np.float32)
    slopes, offsets = calibration.curves(counts, np.zeros(5, np.float32), usual)
    line = [-3 - 2 * np.log((1 + count) / 6) / np.log(21 / 6) for count in (5, 20, 100, ANSWERS, ANSWERS)]
    assert offsets.tolist() == pytest.approx(line, abs=1e-5), "no more are fitted to than ANSWERS"
    assert slopes.tolist() == [9, 8, 8, 8, 8]


def test_a_name_alone_is_held_down_less_by_hundreds_of_pictures_that_do_not_show_it() -> None:
    """The fit puts all that they say into the intercept, though none of them was chosen for being like the label."""
    calibration = Calibration((0, 1), (3.0, 3.0), (1.0, 1.0), 0.2, noes=1.0)
    noes, usual = np.array([0, MANY, 255], np.float32), np.full(3, 0.2, np.float32)
    for count, more in ((0, ALONE * np.log(256 / (MANY + 1))), (1, 0)):
        _, offsets = calibration.curves(np.full(3, count), noes, usual)
        assert offsets.tolist() == pytest.approx([1, 1 + np.log(MANY + 1), 1 + np.log(256) + more], abs=1e-5)


def test_another_share_of_the_pictures_moves_the_odds_by_bayes_rule() -> None:
    """Probability p where a share s shows the label: the likelihood ratio is odds(p) / odds(s), whatever the share."""
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3)
    counts, scores = np.full(3, 5), np.float32(0.7)
    shares = np.array([0.3, 0.01, 0.9], np.float32)
    slopes, offsets = calibration.curves(counts, np.zeros(3, np.float32), shares)
    found = sigmoid(slopes * scores + offsets).astype(np.float64)
    usual = 1 / (1 + np.exp(-(2.0 * 0.7 - 0.5)))
    ratio = usual / (1 - usual) / (0.3 / 0.7)
    for share, chance in zip((0.3, 0.01, 0.9), found, strict=True):
        odds = ratio * share / (1 - share)
        assert chance == pytest.approx(odds / (1 + odds), rel=1e-5)


def test_the_curve_of_a_rare_label_with_few_examples_is_steeper() -> None:
    """About the picture that says nothing for or against it, whose probability is the share."""
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3)
    even = np.float32((log_odds(np.array(0.3)) + 0.5) / 2)
    shares = np.array([0.5, 0.06, 0.02, 0.001], np.float32)
    for count, steeper in ((1, 1.2), (2, 1.2 - 0.2 * np.log(3 / 2) / np.log(3)), (5, 1.0), (50, 1.0)):
        slopes, offsets = calibration.curves(np.full(4, count), np.zeros(4, np.float32), shares)
        assert slopes.tolist() == pytest.approx([2, 2, 2 * steeper, 2 * steeper], abs=1e-5)
        assert sigmoid(slopes * even + offsets).tolist() == pytest.approx(shares.tolist(), rel=1e-4)


def test_curves_of_rare_labels_are_steeper_for_plain_pictures_and_flatter_for_crowded_ones() -> None:
    """By e^0.3 for each 0.05 of coherence, about the picture that says nothing for or against a label."""
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3, coherence=0.75)
    even, counts = np.float32((log_odds(np.array(0.3)) + 0.5) / 2), np.full(4, 9)
    none, shares = np.zeros(4, np.float32), np.array([0.01, 0.001, 0.01, 0.3], np.float32)
    coherence = np.array([0.8, 0.7, 0.75, 0.8], np.float32)
    slopes, offsets = calibration.curves(counts, none, shares, coherence)
    assert slopes.tolist() == pytest.approx([2 * 1.34986, 2 / 1.34986, 2, 2], rel=1e-4)
    assert sigmoid(slopes * even + offsets).tolist() == pytest.approx(shares.tolist(), rel=1e-4)


@pytest.mark.parametrize(("of_model", "of_label"), [(0.75, 0.0), (0.0, 0.9)])
def test_curves_stay_as_they_are_where_no_coherence_is_known(of_model: float, of_label: float) -> None:
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3, coherence=of_model)
    given = np.zeros(1, np.int64), np.zeros(1, np.float32), np.array([0.3], np.float32)
    assert calibration.steeper(np.full(1, 9), np.array([of_label], np.float32)).tolist() == [1.0]
    slopes, offsets = calibration.curves(*given, np.array([of_label], np.float32))
    assert (slopes.tolist(), offsets.tolist()) == ([2.0], pytest.approx([-0.5]))


def test_the_weight_of_the_noes_lifts_the_odds_by_its_logarithm() -> None:
    calibration = Calibration((0,), (2.0,), (-0.5,), 0.3, noes=0.75)
    _, offsets = calibration.curves(np.zeros(2, np.int64), np.array([0, 15], np.float32), np.full(2, 0.3, np.float32))
    assert offsets.tolist() == pytest.approx([-0.5, -0.5 + 0.75 * np.log(16)])


def test_thresholds_follow_the_share_in_a_line_over_its_log_odds() -> None:
    calibration = Calibration((0, 5), (1.0, 1.0), (0.0, 0.0), 0.3, (0.01, 0.3), ((0.1, 0.3), (0.2, 0.4)))
    shares = np.array([0.001, 0.01, 0.06, 0.3, 0.9], np.float32)
    found = calibration.threshold(np.zeros(5, np.int64), shares).tolist()
    part = (np.log(0.06 / 0.94) - np.log(0.01 / 0.99)) / (np.log(0.3 / 0.7) - np.log(0.01 / 0.99))
    eased = np.array([1, 1, 0.8, 0.8, 0.8])
    assert found == pytest.approx((eased * [0.1, 0.1, 0.1 + 0.2 * part, 0.3, 0.3]).tolist(), abs=1e-6)
    assert calibration.threshold(np.full(5, 9), shares).tolist() == pytest.approx(
        (eased * [0.2, 0.2, 0.2 + 0.2 * part, 0.4, 0.4]).tolist(), abs=1e-6
    )


def sampled(shares: np.ndarray, pictures: int, apart: float, seed: int) -> np.ndarray:
    """Log-likelihood ratios of pictures, so many of which show each label: of two normals that lie apart."""
    random = np.random.default_rng(seed)
    shown = random.random((pictures, len(shares))) < shares
    seen = random.normal(size=shown.shape) + np.where(shown, apart, 0)
    return (apart * seen - apart**2 / 2).astype(np.float32)


def test_a_threshold_can_be_reached_whatever_the_share() -> None:
    for asked in (0.3, 0.9, 0.99):
        curves = Calibration((1,), (1.0,), (0.0,), 0.08, (0.08,), ((asked,),))
        found = curves.threshold(np.full(5, 1), np.array([0.001, 0.01, 0.02, 0.03, 0.5], np.float32))
        assert found.max() < 1
        assert (np.diff(found) <= 1e-6).all(), "rarer labels need more"


def test_shares_are_found_that_labels_were_drawn_with() -> None:
    """Nearly: the guess draws each share to itself, by less than a third, and no less among more pictures."""
    shares = np.array([0.01, 0.05, 0.2, 0.5, 0.8], np.float32)
    found = [estimate_priors(sampled(shares, pictures, 5.0, 0)) for pictures in (500, 20_000)]
    for each in found:
        assert shares[0] < each[0] < GUESS
        assert (shares[1:] < 1.5 * each[1:]).all()
        assert (each[1:] < shares[1:]).all()
    assert np.abs(found[0] - found[1]).max() < 0.05


def test_an_estimate_is_the_most_probable_share() -> None:
    """Found on a fine grid: the likelihood of a mixture, and a log-normal share as firm as forty pictures."""
    shares, pictures = np.array([0.01, 0.1, 0.4], np.float32), 300
    evidence = sampled(shares, pictures, 2.0, 1).astype(np.float64)
    grid = sigmoid(np.linspace(-9, 5, 20_000))[:, None]
    for column, found in enumerate(estimate_priors(evidence.astype(np.float32))):
        likelihood = np.log1p(grid * np.expm1(evidence[:, column])).mean(axis=1)
        best = grid[np.argmax(likelihood - LEAN * np.log(grid[:, 0] / GUESS) ** 2 / 2), 0]
        assert found == pytest.approx(best, rel=2e-3)


def test_log_odds_are_finite_where_single_precision_has_no_share() -> None:
    assert np.isfinite(log_odds(np.array([1e-50, 1 - 1e-12], np.float32))).all()
    assert log_odds(np.array([0.25, 1e-20], np.float32)).tolist() == pytest.approx([-np.log(3), np.log(1e-20)])


def test_a_sample_without_any_sign_leaves_a_small_share_not_none() -> None:
    assert 0.01 < estimate_priors(np.full((100, 1), -20, np.float32))[0] < GUESS
    assert estimate_priors(np.full((100, 1), 20, np.float32))[0] > 0.99


def test_a_share_that_is_known_mends_a_curve_that_is_off() -> None:
    """Of many pictures; right curves stay, and of few pictures little is believed."""
    said = np.full(4, 0.05, np.float32)
    off = np.array([-2, 0, 0, 2], np.float32)
    evidence = sampled(said, 20_000, 3.0, 1) + off
    steeper = np.ones(4, np.float32)
    moved = log_odds(match_priors(evidence, steeper, said)) - log_odds(said)
    assert moved.tolist() == pytest.approx((-off).tolist(), abs=0.2)
    sums = sigmoid(evidence + log_odds(said) + moved).sum(axis=0)
    assert sums.tolist() == pytest.approx([1000] * 4, rel=0.01)
    few = log_odds(match_priors(evidence[:20], steeper, said)) - log_odds(said)
    assert np.abs(few).max() < 2
    assert (np.abs(few) <= np.abs(20 * said - sigmoid(evidence[:20] + log_odds(said)).sum(axis=0)) + 1e-4).all()


def test_answers_about_pictures_chosen_by_score_mend_a_curve_that_is_off() -> None:
    """All near the threshold, though they are nothing like a random sample of the pictures."""
    share, off = np.array([0.05], np.float32), 1.5
    generator = np.random.default_rng(3)
    evidence = np.sort(generator.normal(-2, 3, 5_000))[3_500:4_500].astype(np.float32)
    shown = generator.random(1_000) < sigmoid(evidence + log_odds(share))
    found = match_priors(evidence[:, None] - np.float32(off), np.ones(1, np.float32), share, shown=float(shown.sum()))
    assert log_odds(found) - log_odds(share) == pytest.approx(off, abs=0.3)
    few = match_priors(evidence[:1, None], np.ones(1, np.float32), share, shown=1.0)
    assert 0 < log_odds(few) - log_odds(share) < 1


def test_log_odds_by_hand() -> None:
    assert log_odds(np.array([0.5, 0.2])).tolist() == pytest.approx([0, np.log(0.25)])
