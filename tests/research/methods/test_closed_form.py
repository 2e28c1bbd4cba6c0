"""The closed form hands its tensors over to the core: the same numbers as the core's functions, one after the other."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fewtag.core import posterior as core
from fewtag.errors import InputError
from fewtag.research.methods import Base, Support
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.research.types import places

CHANNELS, DIMENSIONS, SPACE = 12, 5, 4
OPTIONS = {
    "shrinkage": 2.0,
    "separation": 3.0,
    "ridge": 0.7,
    "word_weight": 0.8,
    "word_decay": 0.6,
    "support_focus": 5.0,
    "query_focus": 7.0,
    "query_local": 0.3,
}
STRENGTHS = core.Strengths(**OPTIONS)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_base(labels: int = 6, images: int = 80) -> Base:
    targets = random(images, labels, seed=1) > 0.7
    features = targets.float() @ random(labels, CHANNELS, seed=2) + 0.3 * random(images, CHANNELS, seed=3) + 1
    return Base(
        tuple(f"label {number}" for number in range(labels)), random(labels, DIMENSIONS, seed=4), targets, features
    )


def test_scores_are_those_of_the_core_step_by_step() -> None:
    base, targets = make_base(), torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]], dtype=torch.bool)
    method = ClosedForm(CHANNELS, DIMENSIONS, space=SPACE, scale=10.0, **OPTIONS).eval()
    method.prepare(base)
    support = Support(("a", "b"), random(2, DIMENSIONS, seed=5), random(4, CHANNELS, 2, 3, seed=6), targets)
    maps = random(3, CHANNELS, 2, 3, seed=7)

    space = core.fit_space(base.features.numpy(), SPACE, STRENGTHS.shrinkage)
    prototypes = core.base_prototypes(space.project(base.features.numpy()), base.targets.numpy(), STRENGTHS.separation)
    word_prototypes = core.fit_words(base.words.numpy(), prototypes, STRENGTHS.ridge).prototypes(support.words.numpy())
    shown, asked = space.project(places(support.maps).numpy()), space.project(places(maps).numpy())
    for label, word in enumerate(word_prototypes):
        mine = core.Pictures.of(shown[targets[:, label].numpy()])
        visual = core.unit(mine.attend(word, STRENGTHS.support_focus).sum(axis=0))
        mixed = core.unit(visual + STRENGTHS.word_weight * len(mine.places) ** -STRENGTHS.word_decay * word)
        expected = 10 * core.Pictures.of(asked).scores(mixed, STRENGTHS)
        np.testing.assert_allclose(method.adapt(support)(maps)[:, label], expected, atol=1e-5)


def test_its_strengths_default_to_the_cores() -> None:
    assert ClosedForm(CHANNELS, DIMENSIONS).strengths == core.Strengths()


def test_a_label_without_image_is_its_word() -> None:
    method, words = ClosedForm(CHANNELS, DIMENSIONS, space=SPACE), random(1, DIMENSIONS, seed=8).numpy()
    method.prepare(make_base())
    pictures = core.Pictures.of(method.encode(random(2, CHANNELS, 2, 2, seed=9)).numpy())
    (word,) = method.word_map_.prototypes(words)
    np.testing.assert_array_equal(method.prototype(pictures, np.zeros(2, bool), word), word)


def test_no_gradient_flows_through() -> None:
    method = ClosedForm(CHANNELS, DIMENSIONS, space=SPACE)
    method.prepare(make_base())
    maps = random(2, CHANNELS, 2, 2, seed=9).requires_grad_()
    support = Support(("a",), random(1, DIMENSIONS, seed=8), maps, torch.ones(2, 1, dtype=torch.bool))
    assert not method.adapt(support)(maps).requires_grad


def test_joined_networks_are_whitened_each_for_itself() -> None:
    features = (random(60, CHANNELS, seed=11) * torch.linspace(1, 9, CHANNELS)).numpy()
    joined = ClosedForm(CHANNELS, DIMENSIONS, space=3, parts=[8, CHANNELS - 8]).fit_space(features)
    assert joined.basis.shape == (CHANNELS, 6)
    for columns, part in ((slice(0, 3), slice(0, 8)), (slice(3, 6), slice(8, CHANNELS))):
        alone = core.fit_space(features[:, part], 3, core.Strengths().shrinkage)
        np.testing.assert_array_equal(joined.basis[part, columns], alone.basis)
        np.testing.assert_array_equal(joined.mean[part], alone.mean)
        outside = [row for row in range(CHANNELS) if row not in range(*part.indices(CHANNELS))]
        assert not joined.basis[outside, columns].any()


def test_parts_that_are_not_all_channels_are_refused() -> None:
    with pytest.raises(InputError, match=r"parts 4 \+ 5 are 9 channels, the maps have 12"):
        ClosedForm(CHANNELS, DIMENSIONS, parts=[4, 5])
