"""Metrics against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from fewtag.core.metrics import average_precision, precision_recall_f1

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(pairs=PAIRS)
def test_average_precision_is_scikit_learns_with_ties(pairs: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in pairs], np.float32) / 5
    shown = np.array([truth for _, truth in pairs])
    found = average_precision(scores, shown)
    if shown.any():
        assert found == pytest.approx(average_precision_score(shown, scores))
    else:
        assert math.isnan(found)


def test_average_precision_is_scikit_learns_without_ties() -> None:
    generator = np.random.default_rng(0)
    scores, shown = generator.random(500), generator.random(500) < 0.1
    assert average_precision(scores, shown) == pytest.approx(average_precision_score(shown, scores))


@settings(max_examples=30, deadline=None)
@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_precision_recall_and_f1_are_scikit_learns(pairs: list[tuple[bool, bool]]) -> None:
    tagged, shown = np.array(pairs).T
    expected = precision_recall_fscore_support(shown, tagged, average="binary", zero_division=np.nan)[:3]
    np.testing.assert_allclose(precision_recall_f1(tagged, shown), expected)
