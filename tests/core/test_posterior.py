"""The posterior against scipy's minimiser, Bayes' rule by densities, and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import norm

from fewtag.core.posterior import (
    VARIANCE_LEFT,
    Classifiers,
    NameEvidence,
    Pictures,
    Strengths,
    fit_label,
    leave_one_out,
    map_logistic,
    support_prototype,
    unit,
)

STRENGTHS = Strengths(kappa=5.0, offset=0.2, penalty=0.3, bias=0.4, query_local=0.7, word_weight=2.0, word_decay=0.5)
NEUTRAL = NameEvidence()


def random_places(seed: int, images: int, places: int = 4, space: int = 6) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(images, places, space)).astype(np.float32)


def random_word(seed: int, space: int = 6) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).normal(size=space)).astype(np.float32)


def fitted(seed: int, yes: int, no: int, weight: float = 1.0):  # type: ignore[no-untyped-def]
    places = random_places(seed, yes + no)
    shown = np.arange(yes + no) < yes
    weights = np.where(shown, 1.0, weight).astype(np.float32)
    word = random_word(seed + 1)
    return places, shown, weights, word, fit_label(Pictures.of(places), shown, weights, word, STRENGTHS, NEUTRAL)


@pytest.mark.parametrize(("yes", "no", "weight"), [(1, 0, 1.0), (1, 3, 0.25), (5, 20, 1.0)])
def test_the_posterior_is_where_scipy_finds_the_least_penalised_log_loss(yes: int, no: int, weight: float) -> None:
    places, shown, weights, word, found = fitted(3, yes, no, weight)
    pictures = Pictures.of(places)
    guide = support_prototype(Pictures.of(places[shown]), word, found.trust, STRENGTHS)
    focused = pictures.attend(guide, STRENGTHS.query_focus)
    local = STRENGTHS.query_local
    features = np.hstack(
        [
            math.sqrt(1 - local) * pictures.means,
            math.sqrt(local) * focused,
            np.full((len(places), 1), math.sqrt(STRENGTHS.bias)),
        ]
    ).astype(np.float64)
    similarity = (1 - local) * (pictures.means @ guide) + local * (focused @ guide)
    before = STRENGTHS.kappa * (similarity.astype(np.float64) - STRENGTHS.offset)

    def loss(vector: NDArray[np.float64]) -> float:
        logits = before + features @ vector
        misfit = weights @ (np.logaddexp(0, logits) - shown * logits)
        return float(misfit + 0.5 * STRENGTHS.penalty * vector @ vector)

    best = minimize(loss, np.zeros(features.shape[1]), method="BFGS", options={"gtol": 1e-9}).x
    expected = before + features @ best
    assert np.allclose(Classifiers.of([found]).logits(places, STRENGTHS)[:, 0], expected, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_left_out_logits_are_those_of_fits_without_each_picture(seed: int) -> None:
    """Up to what a second Newton step would change; the logits with the picture are much further off."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(24, 8))
    covariances, before = features @ features.T / 4, generator.normal(size=24)
    shown, weights = before + generator.normal(size=24) > 0, generator.uniform(0.3, 1, 24)

    def fit(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        dual = map_logistic(covariances[np.ix_(rows, rows)], before[rows], shown[rows], weights[rows])
        return before + covariances[:, rows] @ dual

    every = np.arange(24)
    logits, refitted = fit(every), np.array([fit(np.delete(every, row))[row] for row in every])
    error = np.abs(leave_one_out(covariances, logits, shown, weights) - refitted)
    assert error.mean() < 0.15 * np.abs(logits - refitted).mean()


def test_without_examples_a_label_has_the_score_of_its_word() -> None:
    places, word = random_places(0, 5), random_word(1)
    nothing = Pictures.of(random_places(0, 0))
    found = fit_label(nothing, np.zeros(0, np.bool_), np.zeros(0, np.float32), word, STRENGTHS, NEUTRAL)
    expected = STRENGTHS.kappa * (Pictures.of(places).scores(word, STRENGTHS)[:, None] - STRENGTHS.offset)
    assert np.allclose(Classifiers.of([found]).logits(places, STRENGTHS), expected, atol=1e-5)
    assert found.trust == 1


def test_the_order_of_the_examples_changes_nothing_but_rounding() -> None:
    places, shown, weights, word, found = fitted(5, 3, 7, 0.25)
    order = np.random.default_rng(0).permutation(len(places))
    again = fit_label(Pictures.of(places[order]), shown[order], weights[order], word, STRENGTHS, NEUTRAL)
    queries = random_places(9, 6)
    one, other = (Classifiers.of([each]).logits(queries, STRENGTHS) for each in (found, again))
    assert np.abs(one - other).max() < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_a_no_lowers_its_own_picture(seed: int) -> None:
    places, shown, weights, word, after = fitted(seed, 2, 1)
    before = fit_label(Pictures.of(places[:2]), shown[:2], weights[:2], word, STRENGTHS, NEUTRAL)
    one, other = (Classifiers.of([each]).logits(places[2:], STRENGTHS)[0, 0] for each in (before, after))
    assert other < one


def test_an_example_of_weight_zero_is_as_if_it_were_not_there() -> None:
    places, shown, _, word, _ = fitted(11, 2, 3)
    weights = np.array([1, 1, 1, 1, 0], np.float32)
    with_it = fit_label(Pictures.of(places), shown, weights, word, STRENGTHS, NEUTRAL)
    without = fit_label(Pictures.of(places[:4]), shown[:4], weights[:4], word, STRENGTHS, NEUTRAL)
    queries = random_places(2, 4)
    one, other = (Classifiers.of([each]).logits(queries, STRENGTHS) for each in (with_it, without))
    assert np.abs(one - other).max() < 1e-5


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000), st.floats(0.01, 100))
def test_newton_ends_where_the_gradient_vanishes(count: int, seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 3))
    gram = scale * features @ features.T
    before, shown = random.normal(size=count) * 5, random.random(count) < 0.5
    weights = random.random(count)
    dual = map_logistic(gram, before, shown, weights)
    logits = before + gram @ dual
    gradient = weights * (shown - 1 / (1 + np.exp(-logits))) - dual
    assert np.abs(gradient).max() < 1e-5


def test_trust_is_bayes_rule_on_the_two_densities() -> None:
    evidence = NameEvidence(right=0.4, wrong=0.1, between=0.08, within=0.12, prior=0.8)
    scores = np.array([0.2, 0.3, 0.15], np.float32)
    others, weights = np.array([0.2, -0.1], np.float32), np.array([1, 0.25], np.float32)
    usual = (1 * 0.2 + 0.25 * -0.1 + 1 * 0.1) / (1 + 0.25 + 1)
    spread = math.sqrt(0.08**2 + VARIANCE_LEFT * 0.12**2 / 3)
    right, wrong = (norm.pdf(float(scores.mean()) - usual, mean, spread) for mean in (0.3, 0.0))
    found = evidence.trust(scores, others, weights)
    assert found == pytest.approx(0.8 * right / (0.8 * right + 0.2 * wrong), rel=1e-5)


def test_a_name_that_suits_other_pictures_as_well_is_trusted_less() -> None:
    """But not by those that it is not to be compared by."""
    word = random_word(17)
    yes, same, away = random_places(1, 1) + word, random_places(2, 4) + word, random_places(3, 4) - word
    shown, weights = np.arange(5) < 1, np.ones(5, np.float32)

    def trust(places: NDArray[np.float32], compared: NDArray[np.bool_] | None = None) -> float:
        pictures = Pictures.of(np.concatenate([yes, places]))
        return fit_label(pictures, shown, weights, word, STRENGTHS, NEUTRAL, compared).trust

    assert trust(same) < trust(away)
    assert trust(same) == trust(same, ~shown)
    nothing = np.zeros(5, np.bool_)
    assert trust(same, nothing) == trust(away, nothing)


def test_a_name_that_pictures_contradict_ends_as_no_name() -> None:
    places = random_places(13, 3)
    against = unit(-places.mean(axis=(0, 1)))
    suspicious = NameEvidence(right=0.9, wrong=0.5, between=0.02, within=0.02, prior=0.5)
    shown, ones = np.ones(3, np.bool_), np.ones(3, np.float32)
    with_name, without = (
        fit_label(Pictures.of(places), shown, ones, word, STRENGTHS, suspicious) for word in (against, None)
    )
    assert with_name.trust < 1e-6
    assert np.allclose(with_name.prototype, without.prototype, atol=1e-4)


def test_coherence_is_how_much_of_the_places_length_their_mean_keeps() -> None:
    alike, across, against = [[3.0, 0], [1, 0]], [[2.0, 0], [0, 2]], [[1.0, 0], [-1, 0]]
    found = Pictures.of(np.array([alike, across, against, np.zeros((2, 2))], np.float32)).coherence()
    assert found.tolist() == pytest.approx([1, math.sqrt(0.5), 0, 0])


def test_many_labels_score_as_each_one_alone() -> None:
    found = [fitted(seed, 2, 3)[4] for seed in range(4)]
    queries = random_places(20, 5)
    together = Classifiers.of(found).logits(queries, STRENGTHS)
    alone = np.hstack([Classifiers.of([each]).logits(queries, STRENGTHS) for each in found])
    assert np.allclose(together, alone, atol=1e-4)
