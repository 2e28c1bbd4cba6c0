"""The classifier on a backbone: its fresh head against Adam by hand, its base stage against sums by hand."""

import numpy as np
import pytest
import torch
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, introduce, macro_ap, make_world, random_macro_ap, train
from torch import nn

from fewtag.errors import InputError
from fewtag.research.methods import EndToEnd, Episode, Method, Support, create_method

SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.bool)


def make(**options: object) -> Method:
    return create_method("classifier", channels=CHANNELS, dimensions=DIMENSIONS, options=options)


def random_maps(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, CHANNELS, 2, 3, generator=torch.Generator().manual_seed(seed))


def adam_by_hand(features: np.ndarray, shown: np.ndarray, epochs: int, rate: float, decay: float) -> np.ndarray:
    """A row of weights and the bias for each label, after so many steps on all images at once."""
    inputs = np.hstack([features, np.ones((len(features), 1))])
    head = np.zeros((shown.shape[1], inputs.shape[1]))
    first, second = np.zeros_like(head), np.zeros_like(head)
    for step in range(1, epochs + 1):
        gradient = (1 / (1 + np.exp(-head @ inputs.T)) - shown.T) @ inputs / shown.size
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        head *= 1 - rate * decay
        head -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return head


@pytest.mark.parametrize("unit_length", [True, False])
def test_the_fresh_head_is_forty_epochs_of_adam_from_zero(unit_length: bool) -> None:
    maps, query = random_maps(4, seed=0), random_maps(6, seed=1)
    method = make(learning_rate=0.05, weight_decay=0.1, unit_length=unit_length)
    logits = method.adapt(Support(("a", "b", "c"), torch.zeros(3, DIMENSIONS), maps, SHOWN))(query)

    pooled, asked = (images.double().mean(dim=(2, 3)).numpy() for images in (maps, query))
    if unit_length:
        pooled, asked = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (pooled, asked))
    head = adam_by_hand(pooled, SHOWN.numpy().astype(float), epochs=40, rate=0.05, decay=0.1)
    np.testing.assert_allclose(logits.numpy(), asked @ head[:, :-1].T + head[:, -1], atol=1e-3)


def test_the_head_is_trained_where_gradients_are_off_and_leaves_none_behind() -> None:
    support = Support(("a", "b", "c"), torch.zeros(3, DIMENSIONS), random_maps(4, seed=0), SHOWN)
    with torch.no_grad():
        frozen = make().adapt(support)(support.maps)
    trained = make().adapt(support)(support.maps)
    assert torch.equal(frozen, trained)
    assert not trained.requires_grad


def test_the_base_stage_is_the_mean_cross_entropy_of_support_and_query_images() -> None:
    world = make_world()
    (episode,) = draw_episodes(world.base, 1)
    method = introduce(make(), world.base)
    loss = method.loss(episode).item()

    weight, bias = (value.detach().double().numpy() for value in method.base_head.parameters())
    losses = []
    for maps, targets in ((episode.support.maps, episode.support.targets), (episode.maps, episode.targets)):
        for image, shown in zip(maps.double().mean(dim=(2, 3)).numpy(), targets.numpy(), strict=True):
            probability = 1 / (1 + np.exp(-(weight @ image + bias)))
            losses += np.where(shown, -np.log(probability), -np.log(1 - probability)).tolist()
    assert loss == pytest.approx(np.mean(losses), abs=1e-5)


def test_at_test_time_the_base_head_and_the_words_have_no_say() -> None:
    world = make_world()
    (episode,) = draw_episodes(world.validation, 1)
    one, other = introduce(make(), world.base), make()
    elsewhere = episode.support._replace(words=-episode.support.words)
    assert torch.equal(one.adapt(episode.support)(episode.maps), other.adapt(elsewhere)(episode.maps))


def test_the_base_stage_teaches_the_backbone_what_helps_new_labels() -> None:
    world = make_world()
    torch.manual_seed(0)
    # an eighth of the channels: chance keeps too little of the patterns, training must choose
    method = EndToEnd(nn.Conv2d(CHANNELS, CHANNELS // 8, 1), introduce(narrow(), world.base))
    fresh = draw_episodes(world.validation, 10)
    before = macro_ap(method, fresh)
    losses = train(method, draw_episodes(world.base, 60), learning_rate=3e-2)
    after = macro_ap(method, fresh)
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    assert after > before + 3
    assert after > random_macro_ap(fresh) + 10


def narrow() -> Method:
    return create_method("classifier", channels=CHANNELS // 8, dimensions=DIMENSIONS)


def test_an_episode_of_other_labels_is_no_base_stage() -> None:
    world = make_world()
    (episode,) = draw_episodes(world.validation, 1)
    with pytest.raises(InputError, match="prepared for 24 base labels"):
        introduce(make(), world.base).loss(Episode(*episode))
