"""Episodes at the images' own frequencies: one half teaches, the whole other half is asked."""

import numpy as np
import pytest

from fewtag.errors import InputError
from fewtag.research.data.sampling import HalvesSampler, halve

LABELS = ("cat", "dog", "sofa")
TARGETS = np.random.default_rng(0).random((60, 3)) < [0.4, 0.2, 0.1]


def draw(shots: int, index: int = 0, seed: int = 0, targets: np.ndarray = TARGETS):
    return HalvesSampler(targets, LABELS, shots=shots, seed=seed).draw(index)


def test_all_of_one_half_are_queries_and_the_examples_are_of_the_other() -> None:
    found = draw(2)
    assert len(found.query) == 30
    assert not set(found.query) & set(found.support)
    there = np.delete(TARGETS, found.query, axis=0).sum(axis=0)
    assert (TARGETS[list(found.support)].sum(axis=0) >= np.minimum(there, 2)).all()
    assert len(found.support) <= 6


def test_more_shots_add_examples_and_change_no_query() -> None:
    few, some, many = (draw(shots) for shots in (1, 3, 50))
    assert set(few.support) < set(some.support) < set(many.support)
    assert few.query == some.query == many.query
    assert set(many.support) == {row for row in range(60) if row not in many.query and TARGETS[row].any()}


def test_draws_differ_by_number_and_seed_and_repeat() -> None:
    assert draw(1) == draw(1)
    assert len({draw(1).query, draw(1, index=1).query, draw(1, seed=1).query}) == 3


def test_the_order_of_the_labels_does_not_matter() -> None:
    order = [2, 0, 1]
    turned = HalvesSampler(TARGETS[:, order], [LABELS[column] for column in order], shots=2).draw(0)
    assert turned == draw(2)


def test_both_halves_show_every_label() -> None:
    rare = np.zeros((20, 2), dtype=bool)
    rare[[3, 4], 0] = rare[[5, 6], 1] = True
    for seed in range(20):
        first = halve(rare, ("a", "b"), [seed])
        assert first.sum() == 10
        assert rare[first].any(axis=0).all()
        assert rare[~first].any(axis=0).all()


def test_labels_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(InputError, match="label 'b' has 1 images, and each half needs one"):
        halve(np.array([[1, 1], [1, 0]], dtype=bool), ("a", "b"), [0])
    triangle = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=bool)  # two of three images share a half
    with pytest.raises(InputError, match="no two halves of 3 images show every label"):
        halve(triangle, LABELS, [0])
