"""The closed form against torch's implementation and against sums done by hand."""

import math

import numpy as np
import pytest
import torch

from fewtag.core import closed_form
from fewtag.core.closed_form import Strengths, WordMap, attend, base_prototypes, fit_space, fit_words, mix, score, unit
from fewtag.research.methods.base import Base
from fewtag.research.methods.closed_form import ClosedForm

STRENGTHS = Strengths(shrinkage=2.0, separation=5.0, ridge=1.5, support_focus=4.0, query_focus=9.0, query_local=0.3)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.normal(size=shape).astype(np.float32)


def torch_method(channels: int, dimensions: int, space: int) -> ClosedForm:
    return ClosedForm(channels, dimensions, space=space, scale=1.0, **vars(STRENGTHS)).eval()


@pytest.mark.parametrize("space", [12, 5])
def test_a_fit_is_that_of_torch(generator: np.random.Generator, space: int) -> None:
    features, words = normal(generator, 60, 12) + 3, normal(generator, 7, 20)
    targets = generator.random((60, 7)) < 0.3
    method = torch_method(12, 20, space)
    base = Base(tuple("abcdefg"), *map(torch.from_numpy, (words, targets, features)))
    method.prepare(base)
    found = fit_space(features, space, STRENGTHS.shrinkage)
    np.testing.assert_allclose(found.mean, method.mean, atol=1e-5)
    # a direction may point either way: what both spaces agree on is inner products
    np.testing.assert_allclose(found.basis @ found.basis.T, method.basis @ method.basis.T, atol=1e-5)
    prototypes = base_prototypes(found.project(features), targets, STRENGTHS.separation)
    expected = method.base_prototypes(base).numpy()
    np.testing.assert_allclose(prototypes @ prototypes.T, expected @ expected.T, atol=1e-5)
    word_map = fit_words(words, expected, STRENGTHS.ridge)
    np.testing.assert_allclose(word_map.matrix, method.word_map, atol=1e-5)
    asked = normal(generator, 3, 20)
    np.testing.assert_allclose(
        word_map.prototypes(asked), method.word_prototypes(torch.from_numpy(asked)).numpy(), atol=1e-5
    )


def test_attention_mixing_and_scores_are_those_of_torch(generator: np.random.Generator) -> None:
    method = torch_method(6, 4, 6)
    places, guides = normal(generator, 5, 9, 6), unit(normal(generator, 3, 6))
    tensors = torch.from_numpy(places), torch.from_numpy(guides)
    np.testing.assert_allclose(attend(places, guides, STRENGTHS.support_focus), method.attend(*tensors), atol=1e-5)
    counts, visual = np.array([0, 1, 5]), normal(generator, 3, 6)
    mixed = method.mix(torch.from_numpy(visual), tensors[1], torch.from_numpy(counts).float())
    np.testing.assert_allclose(mix(visual, guides, counts, STRENGTHS), mixed, atol=1e-5)
    np.testing.assert_allclose(score(places, guides, STRENGTHS), method.score(*tensors), atol=1e-5)


def test_a_score_by_hand() -> None:
    """Two places, along the axes; the label lies on the first axis."""
    places = np.array([[[3.0, 0.0], [0.0, 1.0]]], np.float32)
    strengths = Strengths(query_focus=math.log(4.0), query_local=0.25)
    # the mean place is (1.5, 0.5); attention is 4 : 1, so that the pooled vector is (2.4, 0.2)
    expected = 0.75 * 1.5 / np.hypot(1.5, 0.5) + 0.25 * 2.4 / np.hypot(2.4, 0.2)
    assert score(places, np.array([[1.0, 0.0]], np.float32), strengths)[0, 0] == pytest.approx(expected, abs=1e-6)


def test_attention_by_hand() -> None:
    places = np.array([[[3.0, 0.0], [0.0, 1.0]]], np.float32)
    pooled = attend(places, np.array([[1.0, 0.0]], np.float32), math.log(4.0))
    np.testing.assert_allclose(pooled[0, 0], np.array([2.4, 0.2]) / np.hypot(2.4, 0.2), atol=1e-6)


def test_a_word_weighs_less_the_more_examples_there_are() -> None:
    visual, word = np.array([[1.0, 0.0]], np.float32), np.array([[0.0, 1.0]], np.float32)
    strengths = Strengths(word_weight=0.5, word_decay=0.5)
    for count, weight in ((1, 0.5), (4, 0.25), (100, 0.05)):
        expected = np.array([1.0, weight]) / np.hypot(1.0, weight)
        np.testing.assert_allclose(mix(visual, word, np.array([count]), strengths)[0], expected, atol=1e-6)
    np.testing.assert_allclose(mix(visual, word, np.array([0]), strengths), word)


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
    monkeypatch.setattr(closed_form, "LABELS_AT_ONCE", 10)
    np.testing.assert_allclose(score(places, prototypes, STRENGTHS), whole, atol=1e-6)
    assert score(places, prototypes[:0], STRENGTHS).shape == (2, 0)


def test_scores_are_cosines(generator: np.random.Generator) -> None:
    places = normal(generator, 3, 4, 8)
    found = score(places, unit(normal(generator, 30, 8)), STRENGTHS)
    assert np.abs(found).max() <= 1
    alike = np.repeat(places[:, :1], 4, axis=1)
    np.testing.assert_allclose(np.diag(score(alike, unit(alike[:, 0]), STRENGTHS)), 1, atol=1e-5)


def test_what_is_empty_stays_finite() -> None:
    nothing = np.zeros((1, 4, 3), np.float32)
    assert not score(nothing, np.eye(3, dtype=np.float32), STRENGTHS).any()
    assert not attend(nothing, np.eye(3, dtype=np.float32), 8.0).any()
    assert (
        not WordMap(np.ones(2, np.float32), np.ones((2, 3), np.float32)).prototypes(np.ones((1, 2), np.float32)).any()
    )
