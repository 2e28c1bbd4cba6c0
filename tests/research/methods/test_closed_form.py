"""The closed form against scikit-learn, numpy and plain loops."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods import Base, Support
from fewtag.research.methods.closed_form import ClosedForm

CHANNELS, DIMENSIONS, SPACE = 12, 5, 4


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_base(labels: int = 6, images: int = 80) -> Base:
    targets = random(images, labels, seed=1) > 0.7
    features = targets.float() @ random(labels, CHANNELS, seed=2) + 0.3 * random(images, CHANNELS, seed=3) + 1
    return Base(
        tuple(f"label {number}" for number in range(labels)), random(labels, DIMENSIONS, seed=4), targets, features
    )


def fitted(**strengths: float) -> ClosedForm:
    method = ClosedForm(CHANNELS, DIMENSIONS, space=SPACE, **strengths).eval()  # type: ignore[arg-type]
    method.prepare(make_base())
    return method


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_the_space_is_pca_with_softened_whitening() -> None:
    base, method = make_base(), fitted(shrinkage=10.0)
    features = base.features.double().numpy()
    pca = PCA(SPACE).fit(features)
    variances = pca.explained_variance_ * (len(features) - 1) / len(features)
    expected = pca.transform(features) / np.sqrt(variances + 10 * variances.mean())
    found = method.project(base.features[:, :, None, None])[:, 0].double().numpy()[:, ::-1]  # ours rise
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)


def test_words_are_mapped_by_scikit_learns_ridge_regression() -> None:
    base, method = make_base(), fitted(ridge=0.7)
    inputs = unit((base.words - base.words.mean(dim=0)).double().numpy())
    ridge = Ridge(alpha=0.7, fit_intercept=False).fit(inputs, method.base_prototypes(base).double().numpy())
    np.testing.assert_allclose(method.word_map.numpy(), ridge.coef_.T, atol=1e-4)
    np.testing.assert_allclose(method.word_prototypes(base.words).numpy(), unit(ridge.predict(inputs)), atol=1e-4)


def test_base_prototypes_tell_apart_labels_that_occur_together() -> None:
    targets = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 1]] * 5, dtype=torch.bool)
    features = targets.float() @ torch.eye(2, CHANNELS)
    method = ClosedForm(CHANNELS, DIMENSIONS, space=2, separation=0.01)
    method.fit_space(features)
    means = torch.stack(
        [method.project(features[targets[:, label]][:, :, None, None]).mean(dim=(0, 1)) for label in (0, 1)]
    )
    solved = method.base_prototypes(Base(("a", "b"), random(2, DIMENSIONS, seed=0), targets, features))
    assert torch.cosine_similarity(*solved, dim=0) < torch.cosine_similarity(*means, dim=0)


def loop_prototype(method: ClosedForm, local: np.ndarray, word: np.ndarray) -> np.ndarray:
    """One label's prototype from its images' places, place by place."""
    total = np.zeros(SPACE)
    for image in local:
        weights = np.exp([method.support_focus * unit(place) @ word for place in image])
        total += unit(sum(weight * place for weight, place in zip(weights / weights.sum(), image, strict=True)))
    weight = method.word_weight * len(local) ** -method.word_decay
    return unit(unit(total) + weight * word)


def loop_score(method: ClosedForm, image: np.ndarray, prototype: np.ndarray) -> float:
    weights = np.exp([method.query_focus * unit(place) @ prototype for place in image])
    focused = sum(weight * place for weight, place in zip(weights / weights.sum(), image, strict=True))
    whole = unit(image.mean(axis=0)) @ prototype
    return (1 - method.query_local) * whole + method.query_local * unit(focused) @ prototype


def test_scores_equal_a_plain_loop_over_labels_images_and_places() -> None:
    method = fitted(word_weight=0.8, word_decay=0.6, support_focus=5.0, query_focus=7.0, query_local=0.3)
    targets = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]], dtype=torch.bool)
    support = Support(("a", "b"), random(2, DIMENSIONS, seed=5), random(4, CHANNELS, 2, 3, seed=6), targets)
    maps = random(3, CHANNELS, 2, 3, seed=7)
    found = method.adapt(support)(maps).numpy() / method.scale

    words = method.word_prototypes(support.words).double().numpy()
    shown, query = method.project(support.maps).double().numpy(), method.project(maps).double().numpy()
    prototypes = [loop_prototype(method, shown[targets[:, label].numpy()], words[label]) for label in (0, 1)]
    expected = [[loop_score(method, image, prototype) for prototype in prototypes] for image in query]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_more_examples_the_less_the_word_weighs() -> None:
    method, word = fitted(word_weight=1.0, word_decay=1.0), torch.eye(1, SPACE)
    visual = torch.eye(SPACE)[1:2]
    pull = [(method.mix(visual, word, torch.tensor([float(count)])) @ word.T).item() for count in (1, 2, 5, 50)]
    assert pull == sorted(pull, reverse=True)
    assert pull[0] == pytest.approx(2**-0.5)


def test_a_label_without_image_is_its_word() -> None:
    method, words = fitted(), random(1, DIMENSIONS, seed=8)
    support = Support(("a",), words, random(2, CHANNELS, 2, 2, seed=9), torch.zeros(2, 1, dtype=torch.bool))
    prototypes = method.label_prototypes(method.project(support.maps), support.targets, words)
    torch.testing.assert_close(prototypes, method.word_prototypes(words))


def test_relevance_peaks_where_the_label_is() -> None:
    method = fitted()
    prototype = torch.nn.functional.normalize(random(1, SPACE, seed=3), dim=-1)
    maps = 0.1 * random(1, CHANNELS, 3, 3, seed=4) + method.mean[:, None, None]
    maps[0, :, 1, 2] += torch.linalg.pinv(method.basis.T) @ prototype[0] * 5
    assert method.relevance(maps, prototype)[0, 0].flatten().argmax() == 1 * 3 + 2


def test_joined_networks_are_whitened_each_for_itself() -> None:
    features = random(60, CHANNELS, seed=11) * torch.linspace(1, 9, CHANNELS)
    joined = ClosedForm(CHANNELS, DIMENSIONS, space=3, parts=[8, CHANNELS - 8])
    joined.fit_space(features)
    assert joined.basis.shape == (CHANNELS, 6)
    for columns, part in ((slice(0, 3), slice(0, 8)), (slice(3, 6), slice(8, CHANNELS))):
        alone = ClosedForm(features[:, part].shape[1], DIMENSIONS, space=3)
        alone.fit_space(features[:, part])
        torch.testing.assert_close(joined.basis[part, columns], alone.basis)
        outside = [row for row in range(CHANNELS) if row not in range(*part.indices(CHANNELS))]
        assert not joined.basis[outside, columns].any()


def test_parts_that_are_not_all_channels_are_refused() -> None:
    with pytest.raises(InputError, match=r"parts 4 \+ 5 are 9 channels, the maps have 12"):
        ClosedForm(CHANNELS, DIMENSIONS, parts=[4, 5])
