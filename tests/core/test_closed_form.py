"""The closed form against scikit-learn, plain loops and sums done by hand."""

import math

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge

from fewtag.core import posterior
from fewtag.core.posterior import (
    Classifiers,
    Pictures,
    Strengths,
    WordMap,
    base_prototypes,
    fit_space,
    fit_words,
    prototype_classifier,
    support_prototype,
    unit,
)

PLAIN = {"kappa": 1.0, "offset": 0.0}
"""A classifier of a prototype alone is then its score."""
STRENGTHS = Strengths(
    **PLAIN, shrinkage=2.0, separation=5.0, ridge=1.5, support_focus=4.0, query_focus=9.0, query_local=0.3
)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def score(places: np.ndarray, prototypes: np.ndarray, strengths: Strengths) -> np.ndarray:
    return Classifiers.of([prototype_classifier(each, strengths) for each in prototypes]).logits(places, strengths)


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [12, 5])
def test_the_space_is_pca_with_softened_whitening(generator: np.random.Generator, size: int) -> None:
    features = normal(generator, 60, 12) + 3
    pca = PCA(size).fit(features.astype(np.float64))
    variances = pca.explained_variance_ * 59 / 60
    expected = pca.transform(features) / np.sqrt(variances + 2 * variances.mean())
    found = fit_space(features, size, shrinkage=2.0).project(features)[:, ::-1]  # ours rise
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)


def test_base_prototypes_are_least_squares(generator: np.random.Generator) -> None:
    """Of the images' features on what they show, as scikit-learn's ridge regression has it."""
    projected, targets = normal(generator, 60, 5), generator.random((60, 7)) < 0.3
    ridge = Ridge(alpha=5.0, fit_intercept=False).fit(targets.astype(np.float64), projected)
    np.testing.assert_allclose(base_prototypes(projected, targets, 5.0), unit(ridge.coef_.T), atol=1e-5)


def test_base_prototypes_tell_apart_labels_that_occur_together() -> None:
    targets = np.array([[1, 1], [1, 1], [1, 1], [0, 1]] * 5, bool)
    projected = targets.astype(np.float32)
    means = unit(np.stack([projected[targets[:, label]].mean(axis=0) for label in (0, 1)]))
    solved = base_prototypes(projected, targets, 0.01)
    assert solved[0] @ solved[1] < means[0] @ means[1]


def test_words_are_mapped_by_scikit_learns_ridge_regression(generator: np.random.Generator) -> None:
    words, prototypes, asked = normal(generator, 7, 20), unit(normal(generator, 7, 5)), normal(generator, 3, 20)
    word_map = fit_words(words, prototypes, 1.5)
    ridge = Ridge(alpha=1.5, fit_intercept=False).fit(unit(words - words.mean(axis=0)), prototypes)
    np.testing.assert_allclose(word_map.matrix, ridge.coef_.T, atol=1e-5)
    expected = unit(ridge.predict(unit(asked - words.mean(axis=0))))
    np.testing.assert_allclose(word_map.prototypes(asked), expected, atol=1e-5)


def test_attention_and_scores_equal_plain_loops(generator: np.random.Generator) -> None:
    places, guides = normal(generator, 5, 9, 6), unit(normal(generator, 3, 6))
    pooled = [Pictures.of(places).attend(guide, 4.0) for guide in guides]
    scores = score(places, guides, STRENGTHS)
    for image, of_image in enumerate(places.astype(np.float64)):
        for label, guide in enumerate(guides):
            np.testing.assert_allclose(pooled[label][image], unit(weighted(of_image, guide, 4.0)), atol=1e-5)
            whole, focused = unit(of_image.mean(axis=0)) @ guide, unit(weighted(of_image, guide, 9.0)) @ guide
            assert scores[image, label] == pytest.approx(0.7 * whole + 0.3 * focused, abs=1e-5)


def weighted(places: np.ndarray, guide: np.ndarray, focus: float) -> np.ndarray:
    """The places, each by how much it looks like the guide."""
    weights = [math.exp(focus * float(unit(place) @ guide)) for place in places]
    return sum(weight / sum(weights) * place for weight, place in zip(weights, places, strict=True))


def test_a_score_by_hand() -> None:
    """Two places, along the axes; the label lies on the first axis."""
    places = np.array([[[3.0, 0.0], [0.0, 1.0]]], np.float32)
    strengths = Strengths(**PLAIN, query_focus=math.log(4.0), query_local=0.25)
    # the mean place is (1.5, 0.5); attention is 4 : 1, so that the pooled vector is (2.4, 0.2)
    expected = 0.75 * 1.5 / np.hypot(1.5, 0.5) + 0.25 * 2.4 / np.hypot(2.4, 0.2)
    assert score(places, np.array([[1.0, 0.0]], np.float32), strengths)[0, 0] == pytest.approx(expected, abs=1e-6)


def test_attention_by_hand() -> None:
    places = np.array([[[3.0, 0.0], [0.0, 1.0]]], np.float32)
    pooled = Pictures.of(places).attend(np.array([1.0, 0.0], np.float32), math.log(4.0))
    np.testing.assert_allclose(pooled[0], np.array([2.4, 0.2]) / np.hypot(2.4, 0.2), atol=1e-6)


def test_a_word_weighs_less_the_more_examples_there_are() -> None:
    place, word = np.array([[[1.0, 0.0]]], np.float32), np.array([0.0, 1.0], np.float32)
    strengths = Strengths(word_weight=0.5, word_decay=0.5)
    for count, weight in ((1, 0.5), (4, 0.25), (100, 0.05)):
        expected = np.array([1.0, weight]) / np.hypot(1.0, weight)
        found = support_prototype(Pictures.of(np.repeat(place, count, axis=0)), word, 1.0, strengths)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(support_prototype(Pictures.of(place[:0]), word, 1.0, strengths), word)


def test_few_labels_and_many_are_scored_alike(generator: np.random.Generator) -> None:
    """By the pooled vectors where labels are fewer than places, by the places' inner products where they are more."""
    places, prototypes = normal(generator, 4, 9, 16), unit(normal(generator, 40, 16))
    many = score(places, prototypes, STRENGTHS)
    few = np.concatenate([score(places, prototypes[first : first + 5], STRENGTHS) for first in range(0, 40, 5)], axis=1)
    np.testing.assert_allclose(many, few, atol=1e-5)


def test_thousands_of_labels_are_scored_in_parts_and_alike(
    generator: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, prototypes = normal(generator, 2, 4, 8), unit(normal(generator, 25, 8))
    whole = score(places, prototypes, STRENGTHS)
    monkeypatch.setattr(posterior, "LABELS_AT_ONCE", 10)
    np.testing.assert_allclose(score(places, prototypes, STRENGTHS), whole, atol=1e-6)


def test_scores_are_cosines(generator: np.random.Generator) -> None:
    places = normal(generator, 3, 4, 8)
    found = score(places, unit(normal(generator, 30, 8)), STRENGTHS)
    assert np.abs(found).max() <= 1
    alike = np.repeat(places[:, :1], 4, axis=1)
    np.testing.assert_allclose(np.diag(score(alike, unit(alike[:, 0]), STRENGTHS)), 1, atol=1e-5)


def test_what_is_empty_stays_finite() -> None:
    nothing = np.zeros((1, 4, 3), np.float32)
    assert not score(nothing, np.eye(3, dtype=np.float32), STRENGTHS).any()
    assert not Pictures.of(nothing).attend(np.ones(3, np.float32), 8.0).any()
    assert (
        not WordMap(np.ones(2, np.float32), np.ones((2, 3), np.float32)).prototypes(np.ones((1, 2), np.float32)).any()
    )
