"""Correction sessions measured on the archive that a person works through."""

import numpy as np
import pytest
from measure_sessions import archive_precision, archives

from fewtag.core.posterior import Pictures
from fewtag.research.bench.sessions import Problem


def test_a_yes_stands_first_and_a_no_last_but_for_a_system_that_forgets_it() -> None:
    shown = np.array([False, True, False, True])
    problem = Problem(0, 0, np.ones(4, np.bool_), shown, ())
    logits = np.array([4, 3, 2, 1], np.float32)
    assert archive_precision(logits, problem, [], noes=True) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert archive_precision(logits, problem, [3], noes=True) == pytest.approx((1 + 2 / 3) / 2)
    assert archive_precision(logits, problem, [3, 0], noes=True) == 1
    assert archive_precision(logits, problem, [3, 0], noes=False) == pytest.approx((1 + 2 / 3) / 2)
    assert logits.tolist() == [4, 3, 2, 1]


def test_an_archive_has_the_pictures_that_can_be_asked_about() -> None:
    random = np.random.default_rng(0)
    pictures = Pictures.of(random.normal(size=(6, 2, 3)).astype(np.float32))
    shown = np.array([True, False, True, False, True, False])
    cuts = np.array([True, False, True, True, False, False]), np.array([False, True, True, False, True, True])
    started = [Problem(seed, 0, askable, shown, (2,)) for seed, askable in enumerate(cuts)]
    for (some, (problem,)), askable in zip(archives(started, pictures), cuts, strict=True):
        assert np.array_equal(some.places, pictures.places[askable])
        assert np.array_equal(problem.shown, shown[askable])
        assert problem.askable.all()
        assert np.array_equal(some.means[problem.first[0]], pictures.means[2])
