"""Methods beyond the paper, each against a calculation that shares no code with it."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import KNeighborsClassifier
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, introduce, macro_ap, make_world, random_macro_ap, train

from fewtag.errors import InputError
from fewtag.research.methods import Base, Method, Support, create_method
from fewtag.research.types import Maps

WORLD = make_world()
BASE_FEATURES = WORLD.base.rows.take(range(len(WORLD.base.rows))).double().mean(dim=(2, 3)).numpy()
(EPISODE,) = draw_episodes(WORLD.validation, 1, shots=2)
SHOWN = EPISODE.support.targets.numpy()
TRAINING_FREE = ["protonet-centred", "logistic-regression", "knn", "tip-adapter", "word-only"]


def make(name: str, **options: object) -> Method:
    torch.manual_seed(0)
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS, options=options).eval()
    return introduce(method, WORLD.base)


def scores(name: str, **options: object) -> np.ndarray:
    return make(name, **options).adapt(EPISODE.support)(EPISODE.maps).detach().numpy()


def pooled(maps: Maps) -> np.ndarray:
    return maps.double().mean(dim=(2, 3)).numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


SUPPORT, QUERY = pooled(EPISODE.support.maps), pooled(EPISODE.maps)


@pytest.mark.parametrize("name", TRAINING_FREE)
def test_without_any_training_new_labels_are_found_far_better_than_by_chance(name: str) -> None:
    episodes = draw_episodes(WORLD.validation, 20)
    assert macro_ap(make(name), episodes) > random_macro_ap(episodes) + 10
    assert list(make(name).parameters()) == []


@pytest.mark.parametrize("name", [*TRAINING_FREE, "am3", "classifier"])
def test_half_precision_around_a_method_leaves_its_scores_alone(name: str) -> None:
    method = make(name)
    with torch.no_grad():
        full = method.adapt(EPISODE.support)(EPISODE.maps)
        with torch.autocast("cpu", torch.bfloat16):
            half = method.adapt(EPISODE.support)(EPISODE.maps)
    assert torch.equal(half, full)


def test_centred_prototypes_are_protonet_on_features_from_the_base_mean() -> None:
    mean = BASE_FEATURES.mean(axis=0)
    prototypes = np.stack([SUPPORT[SHOWN[:, label]].mean(axis=0) for label in range(SHOWN.shape[1])])
    expected = 7 * cosine_similarity(QUERY - mean, prototypes - mean)
    np.testing.assert_allclose(scores("protonet-centred", scale=7.0), expected, atol=1e-4)


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("penalty", [1.0, 1e-3])
def test_logistic_regression_is_scikit_learns_on_the_whole_features(
    unit_length: bool, balanced: bool, penalty: float
) -> None:
    support, query = (unit(SUPPORT), unit(QUERY)) if unit_length else (SUPPORT, QUERY)
    weights = "balanced" if balanced else None
    expected = [
        LogisticRegression(C=1 / penalty, class_weight=weights, tol=1e-10, max_iter=10_000)
        .fit(support, shown)
        .decision_function(query)
        for shown in SHOWN.T
    ]
    found = scores("logistic-regression", penalty=penalty, balanced=balanced, unit_length=unit_length)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-3, rtol=1e-3)


def test_logistic_regression_searches_the_span_also_where_images_outnumber_channels_or_repeat() -> None:
    generator = np.random.default_rng(0)
    features = np.repeat(generator.normal(size=(20, 5)), 2, axis=0)
    shown = generator.random((40, 1)) < 0.4
    support = Support(("a",), torch.zeros(1, 2), torch.from_numpy(features)[:, :, None, None], torch.from_numpy(shown))
    method = create_method(
        "logistic-regression", channels=5, dimensions=2, options={"unit_length": False, "penalty": 0.01}
    )
    oracle = LogisticRegression(C=1 / 0.01, class_weight="balanced", tol=1e-10, max_iter=10_000).fit(
        features, shown[:, 0]
    )
    found = method.adapt(support)(support.maps)[:, 0].numpy()
    np.testing.assert_allclose(found, oracle.decision_function(features), atol=1e-3, rtol=1e-3)


def test_a_label_that_every_support_image_shows_has_its_bias_penalised_too() -> None:
    targets = EPISODE.support.targets.clone()
    targets[:, 0] = True
    method = make("logistic-regression", penalty=0.1)
    found = method.adapt(EPISODE.support._replace(targets=targets))(EPISODE.maps)
    inputs = np.hstack([unit(SUPPORT), np.ones((len(SUPPORT), 1))])

    def objective(point: np.ndarray) -> float:
        return 0.5 * np.logaddexp(0, -inputs @ point).sum() + 0.05 * point @ point

    optimum = minimize(objective, np.zeros(inputs.shape[1]), tol=1e-10).x
    expected = np.hstack([unit(QUERY), np.ones((len(QUERY), 1))]) @ optimum
    np.testing.assert_allclose(found[:, 0].numpy(), expected, atol=1e-3)
    np.testing.assert_allclose(found[:, 1:].numpy(), scores("logistic-regression", penalty=0.1)[:, 1:], atol=1e-4)


@pytest.mark.parametrize("k", [1, 5, 10_000])
def test_neighbours_vote_as_scikit_learns_do(k: int) -> None:
    oracle = KNeighborsClassifier(
        min(k, len(SUPPORT)), metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / 0.2)
    )
    votes = [oracle.fit(SUPPORT, shown).predict_proba(QUERY)[:, 1] for shown in SHOWN.T]
    found = 1 / (1 + np.exp(-scores("knn", k=k, temperature=0.2)))
    np.testing.assert_allclose(found, np.stack(votes, axis=1), atol=1e-4)


@pytest.mark.parametrize("options", [{"k": 0}, {"temperature": 0.0}])
def test_no_neighbour_or_no_temperature_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="at least one neighbour"):
        make("knn", **options)


def word_scores(words: torch.Tensor, ridge: float, shrinkage: float) -> np.ndarray:
    """Cosine of the query images with what scikit-learn's PCA and ridge regression make of the words."""
    components = PCA().fit(BASE_FEATURES)
    variances = components.explained_variance_ * (len(BASE_FEATURES) - 1) / len(BASE_FEATURES)
    deviations = np.sqrt(variances + shrinkage * variances.mean())
    base, query = (components.transform(features) / deviations for features in (BASE_FEATURES, QUERY))
    prototypes = unit(np.stack([base[shown].mean(axis=0) for shown in WORLD.base.targets.numpy().T]))
    known = WORLD.base.words.double().numpy()
    regression = Ridge(alpha=ridge, fit_intercept=False).fit(unit(known - known.mean(axis=0)), prototypes)
    return cosine_similarity(query, regression.predict(unit(words.double().numpy() - known.mean(axis=0))))


@pytest.mark.parametrize(("ridge", "shrinkage"), [(0.1, 3.0), (10.0, 0.1)])
def test_the_word_alone_is_ridge_regression_to_whitened_features_and_a_cosine(ridge: float, shrinkage: float) -> None:
    expected = 5 * word_scores(EPISODE.support.words, ridge, shrinkage)
    found = scores("word-only", ridge=ridge, shrinkage=shrinkage, scale=5.0)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_more_channels_than_the_space_holds_are_cut_to_the_strongest_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 600, generator=generator)
    method = create_method("word-only", channels=600, dimensions=2)
    method.prepare(Base(("a", "b"), torch.randn(2, 2, generator=generator), torch.rand(40, 2) < 0.5, features))
    strongest = np.linalg.svd((features - features.mean(dim=0)).numpy(), full_matrices=False)[2][:39]
    kept = np.linalg.qr(method.space_.basis.astype(np.float64))[0]
    assert kept.shape == (600, 512)
    np.testing.assert_allclose(np.linalg.norm(strongest @ kept, axis=1), 1, atol=1e-3)


def test_the_word_map_survives_a_base_label_without_image() -> None:
    base = WORLD.base
    targets = base.targets.clone()
    targets[:, 0] = False
    method = create_method("word-only", channels=CHANNELS, dimensions=DIMENSIONS)
    method.prepare(Base(base.labels, base.words, targets, torch.from_numpy(BASE_FEATURES).float()))
    assert method.adapt(EPISODE.support)(EPISODE.maps).isfinite().all()


def test_the_cache_takes_over_labels_by_affinity_and_the_word_adds_its_evidence() -> None:
    words, mean = word_scores(EPISODE.support.words, 2.0, 1.0), BASE_FEATURES.mean(axis=0)
    expected = np.zeros_like(words)
    for row, image in enumerate(QUERY):
        affinity = [math.exp(-9 * (1 - cosine)) for cosine in cosine_similarity([image - mean], SUPPORT - mean)[0]]
        for label in range(SHOWN.shape[1]):
            share = sum(a for a, shown in zip(affinity, SHOWN[:, label], strict=True) if shown) / sum(affinity)
            expected[row, label] = math.log(share / (1 - share)) + 4 * words[row, label]
    found = scores("tip-adapter", sharpness=9.0, word_weight=4.0, ridge=2.0, shrinkage=1.0)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_cached_label_without_image_is_scored_by_its_word_alone() -> None:
    targets = EPISODE.support.targets.clone()
    targets[:, 2] = False
    method = make("tip-adapter", word_weight=4.0, ridge=2.0, shrinkage=1.0)
    found = method.adapt(EPISODE.support._replace(targets=targets))(EPISODE.maps)[:, 2]
    np.testing.assert_allclose(found.numpy(), 4 * word_scores(EPISODE.support.words, 2.0, 1.0)[:, 2], atol=1e-3)


def test_mixed_prototypes_are_the_sums_of_the_source() -> None:
    method = make("am3", hidden=7)
    state = {key: value.double().numpy() for key, value in method.state_dict().items()}

    def network(name: str, inputs: np.ndarray) -> np.ndarray:
        inner = np.maximum(state[f"{name}.0.weight"] @ inputs + state[f"{name}.0.bias"], 0)
        return state[f"{name}.3.weight"] @ inner + state[f"{name}.3.bias"]

    expected = np.zeros((len(QUERY), SHOWN.shape[1]))
    for label, word in enumerate(EPISODE.support.words.double().numpy()):
        seen = unit(unit(SUPPORT)[SHOWN[:, label]].mean(axis=0))
        said = unit(network("transform", word))
        share = 1 / (1 + np.exp(-network("weigh", said)))
        prototype = share * seen + (1 - share) * said
        for row, image in enumerate(unit(QUERY)):
            expected[row, label] = 20 * (1 - ((image - prototype) ** 2).sum())
    np.testing.assert_allclose(scores("am3", hidden=7), expected, atol=1e-3)


def test_mixing_learns_on_base_labels_what_serves_new_ones() -> None:
    method, fresh = make("am3", hidden=32), draw_episodes(WORLD.validation, 10)
    before = macro_ap(method, fresh)
    losses = train(method, draw_episodes(WORLD.base, 60), learning_rate=1e-2)
    after = macro_ap(method, fresh)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    assert after > before + 5
    assert after > random_macro_ap(fresh) + 10
    assert after > macro_ap(make("protonet"), fresh), "the words have taught it something"
