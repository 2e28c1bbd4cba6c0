"""The posterior of scripts/measure_posterior.py against independent optimisers and metrics."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score


@pytest.fixture(scope="module")
def posterior() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "measure_posterior.py"
    spec = importlib.util.spec_from_file_location("measure_posterior", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_dual_weights_are_those_of_the_penalised_logistic_regression(posterior: ModuleType) -> None:
    random = np.random.default_rng(0)
    features = np.c_[random.normal(size=(30, 12)), np.ones(30)]
    targets, weights = (random.random(30) < 0.3).astype(float), random.random(30)
    prior, penalty = random.normal(size=30), 0.05

    def loss(vector: np.ndarray) -> float:
        logits = prior + features @ vector
        misfit = np.logaddexp(0, logits) - targets * logits
        return float(weights @ misfit + 0.5 * penalty * vector @ vector)

    expected = minimize(loss, np.zeros(13), options={"gtol": 1e-8}).x
    gram, *others = (torch.from_numpy(array)[None] for array in (features @ features.T, prior, targets, weights))
    dual = posterior.solve(gram, *others, penalty)[0].numpy()
    assert features.T @ dual == pytest.approx(expected, abs=1e-4)


def test_average_precision_equals_scikit_learns(posterior: ModuleType) -> None:
    random = np.random.default_rng(1)
    scores, targets = random.random((3, 40)), random.random((3, 40)) < 0.3
    found = posterior.average_precision(torch.from_numpy(scores), torch.from_numpy(targets))
    expected = [average_precision_score(target, score) for target, score in zip(targets, scores, strict=True)]
    assert found.numpy() == pytest.approx(np.array(expected))


def test_support_order_does_not_matter(posterior: ModuleType) -> None:
    torch.manual_seed(0)
    targets = torch.eye(4, dtype=torch.bool).repeat(15, 1)
    places = torch.randn(60, 6, 16) + torch.randn(4, 16).repeat(15, 1)[:, None]
    pool = posterior.Pool(tuple("abcd"), places, targets, posterior.unit(torch.randn(4, 16)))
    support, query = torch.arange(8)[None], torch.arange(20, 60)[None]
    scored = [
        posterior.measure(pool, posterior.Draws(rows, query, 2), posterior.Strengths()).logits
        for rows in (support, support.flip(1))
    ]
    assert torch.allclose(*scored, atol=1e-4)
