"""MAML against backpropagation written out in numpy, finite differences, and first-order gradients by hand."""

from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, macro_ap, make_world, random_macro_ap, train
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods import Episode, Support
from fewtag.research.methods.maml import MAML, FastWeights, balanced_bce, inner_loop

SHOWN = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]], dtype=torch.bool)
RATES = torch.tensor([0.3, 0.2, 0.5, 0.7], dtype=torch.float64)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_start(labels: int = 3) -> FastWeights:
    return FastWeights(random(6, 5, seed=1), random(6, seed=2), random(labels, 6, seed=3), random(labels, seed=4))


def make_episode() -> Episode:
    words, maps = torch.zeros(3, 4), random(4, 5, 2, 2, seed=5).float()
    return Episode(
        Support(("a", "b", "c"), words, maps, SHOWN), random(6, 5, 2, 2, seed=6).float(), SHOWN[[0, 1, 2, 3, 2, 2]]
    )


def step_by_hand(learner: FastWeights, features: Tensor, targets: Tensor, rates: Tensor) -> list[np.ndarray]:
    """One step, backpropagated on paper: a label's images count for half of its loss, all others for the other half."""
    first, first_bias, second, second_bias = (part.numpy() for part in learner)
    inputs, shown = features.numpy(), targets.numpy().astype(float)
    before = inputs @ first.T + first_bias
    hidden = np.maximum(before, 0)
    probabilities = 1 / (1 + np.exp(-(hidden @ second.T + second_bias)))
    share = np.where(shown == 1, 1 / shown.sum(axis=0), 1 / (1 - shown).sum(axis=0))
    error = share * (probabilities - shown)  # of each label's own loss
    back = (error / shown.shape[1]) @ second * (before > 0)  # of the labels' mean loss
    slopes = back.T @ inputs, back.sum(axis=0), error.T @ hidden, error.sum(axis=0)
    return [part.numpy() - rate * slope for part, rate, slope in zip(learner, rates.numpy(), slopes, strict=True)]


def test_a_step_is_the_gradient_step_of_paper_and_pencil() -> None:
    start, features = make_start(), random(4, 5, seed=7)
    found = inner_loop(start, features, SHOWN, RATES, steps=1, order=2)
    for part, expected in zip(found, step_by_hand(start, features, SHOWN, RATES), strict=True):
        np.testing.assert_allclose(part.numpy(), expected, atol=1e-12)


def test_several_steps_are_one_step_after_another() -> None:
    features, learner = random(4, 5, seed=7), make_start()
    found = inner_loop(learner, features, SHOWN, RATES, steps=3, order=2)
    for _ in range(3):
        learner = FastWeights(*(torch.from_numpy(part) for part in step_by_hand(learner, features, SHOWN, RATES)))
    for part, expected in zip(found, learner, strict=True):
        torch.testing.assert_close(part, expected)


def query_loss(order: Literal[1, 2], rates: Tensor, *start: Tensor) -> Tensor:
    learner = inner_loop(FastWeights(*start), random(4, 5, seed=7), SHOWN, rates, steps=2, order=order)
    return balanced_bce(learner(random(4, 5, seed=8)), SHOWN.roll(1, dims=1))


def test_second_order_gradients_are_those_of_finite_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in (RATES.clone(), *make_start())]
    assert torch.autograd.gradcheck(lambda rates, *start: query_loss(2, rates, *start), inputs)


def test_first_order_gradients_are_the_query_gradients_where_the_steps_ended() -> None:
    start = [part.requires_grad_() for part in make_start()]
    found = torch.autograd.grad(query_loss(1, RATES, *start), start)
    ended = inner_loop(make_start(), random(4, 5, seed=7), SHOWN, RATES, steps=2, order=2)
    there = [part.detach().requires_grad_() for part in ended]
    loss = balanced_bce(FastWeights(*there)(random(4, 5, seed=8)), SHOWN.roll(1, dims=1))
    for gradient, expected in zip(found, torch.autograd.grad(loss, there), strict=True):
        torch.testing.assert_close(gradient, expected)
    second = torch.autograd.grad(query_loss(2, RATES, *start), start)
    assert all((one - two).abs().max() > 1e-3 for one, two in zip(found, second, strict=True))


def test_the_number_of_labels_does_not_change_the_steps_of_one() -> None:
    features, twice = random(4, 5, seed=7), [0, 1, 2, 0, 1, 2]
    start = make_start()
    doubled = start._replace(weight=start.weight[twice], bias=start.bias[twice])
    few = inner_loop(start, features, SHOWN, RATES, steps=3, order=2)
    many = inner_loop(doubled, features, SHOWN[:, twice], RATES, steps=3, order=2)
    torch.testing.assert_close(many(features)[:, :3], few(features))


def scores_by_hand(method: MAML, episode: Episode, steps: int) -> Tensor:
    def features(maps: Tensor) -> Tensor:
        pooled = maps.mean(dim=(2, 3))
        return 2 * pooled / pooled.norm(dim=1, keepdim=True)

    start = FastWeights(method.hidden.weight, method.hidden.bias, torch.zeros(3, 8), torch.zeros(3))
    rates = torch.full((4,), 0.3)
    return inner_loop(start, features(episode.support.maps), SHOWN, rates, steps=steps, order=2)(features(episode.maps))


def test_adapt_takes_the_test_steps_and_the_loss_those_of_training() -> None:
    torch.manual_seed(0)
    method, episode = MAML(5, 4, hidden=8, scale=2.0, steps=1, test_steps=3), make_episode()
    torch.testing.assert_close(method.adapt(episode.support)(episode.maps), scores_by_hand(method, episode, steps=3))
    wrong = log_loss(episode.targets.flatten().numpy(), scores_by_hand(method, episode, 1).flatten().sigmoid().tolist())
    np.testing.assert_allclose(method.loss(episode).item(), wrong, rtol=1e-5)


def test_of_order_one_the_query_loss_is_balanced_like_the_supports() -> None:
    torch.manual_seed(0)
    method, episode = MAML(5, 4, hidden=8, scale=2.0, steps=1, order=1), make_episode()
    probabilities, losses = scores_by_hand(method, episode, steps=1).sigmoid().tolist(), []
    for label in range(3):
        for shown in (True, False):
            rows = [
                row[label] for row, target in zip(probabilities, episode.targets, strict=True) if target[label] == shown
            ]
            losses.append(np.mean([-np.log(p if shown else 1 - p) for p in rows]) if rows else 0.0)
    np.testing.assert_allclose(method.loss(episode).item(), np.sum(losses) / 3, rtol=1e-5)


@pytest.mark.parametrize("order", [1, 2])
def test_of_order_one_only_query_images_teach_a_backbone(order: Literal[1, 2]) -> None:
    method, episode = MAML(5, 4, order=order), make_episode()
    support, query = episode.support.maps.requires_grad_(), episode.maps.requires_grad_()
    method.loss(episode).backward()
    assert query.grad is not None
    assert query.grad.abs().max() > 0
    assert (support.grad is not None) == (order == 2)


def test_rates_are_learnt_or_left_alone() -> None:
    for learn_rates in (True, False):
        method = MAML(5, 4, learn_rates=learn_rates, inner_rate=0.2)
        torch.testing.assert_close(method.log_rates.exp(), torch.full((4,), 0.2))
        method.loss(make_episode()).backward()
        assert (method.log_rates.grad is not None) == learn_rates


def test_it_learns_in_full_precision_whatever_surrounds_it() -> None:
    torch.manual_seed(0)
    method, episode = MAML(5, 4).eval(), make_episode()
    expected = method.adapt(episode.support)(episode.maps)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(method.adapt(episode.support)(episode.maps), expected)


@pytest.mark.parametrize("options", [{"steps": 0}, {"test_steps": 0}, {"inner_rate": 0.0}])
def test_steps_and_rates_must_be_positive(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be positive"):
        MAML(5, 4, **options)  # type: ignore[arg-type]


def test_it_learns_a_start_that_serves_labels_never_seen() -> None:
    torch.manual_seed(0)
    world = make_world()
    # short features and few steps, as the world's are: few channels and little to adapt
    method = MAML(CHANNELS, DIMENSIONS, hidden=64, scale=3.0, steps=3, test_steps=10)
    validation = draw_episodes(world.validation, 8)
    untrained = macro_ap(method, validation)
    losses = train(method, draw_episodes(world.base, 30), learning_rate=1e-2)
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    trained = macro_ap(method, validation)
    assert trained > random_macro_ap(validation) + 10
    assert trained > untrained + 1
