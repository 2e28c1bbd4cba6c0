"""LaSO: the set algebra against Python's sets, the losses by hand, and what it learns in worlds of known structure."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, introduce, macro_ap, make_world, random_macro_ap, train
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods import Base, Episode, Support
from fewtag.research.methods.laso import LaSO, operate
from fewtag.research.methods.linear import fit_head

LABELS = ("a", "b", "c", "d")


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_episode() -> Episode:
    shown = torch.eye(4, dtype=torch.bool) | (random(4, 4, seed=1) > 1)
    support = Support(LABELS, torch.zeros(4, 3), random(4, 5, 2, 2, seed=2), shown)
    return Episode(support, random(6, 5, 2, 2, seed=3), random(6, 4, seed=4) > 0)


def make_method(**options: float) -> LaSO:
    torch.manual_seed(0)
    method = LaSO(5, 3, hidden=8, **options).eval()  # type: ignore[arg-type]
    method.prepare(Base(LABELS, torch.zeros(4, 3), random(9, 4, seed=5) > 0))
    torch.nn.init.normal_(method.head.weight)
    return method


def unit(maps: Tensor) -> Tensor:
    """Global features of length √5, the root of the number of channels."""
    pooled = maps.mean(dim=(2, 3))
    return 5**0.5 * pooled / pooled.norm(dim=1, keepdim=True)


def labels(row: Tensor) -> set[int]:
    return set(row.nonzero().flatten().tolist())


def test_the_set_algebra_is_that_of_sets() -> None:
    left, right = random(50, 6, seed=0) > 0, random(50, 6, seed=1) > 0
    for row, found in enumerate(zip(*operate(left, right), strict=True)):
        one, other = labels(left[row]), labels(right[row])
        assert [labels(shown) for shown in found] == [one | other, one & other, one - other]


def terms_by_hand(method: LaSO, episode: Episode) -> tuple[float, float, float]:
    """The three terms of the loss, an image after the other; without training, each has its neighbour for partner."""
    features = unit(torch.cat([episode.support.maps, episode.maps]))
    targets = torch.cat([episode.support.targets, episode.targets])
    scores, wanted, swapped, rebuilt = [], [], [], []
    for row in range(len(features)):
        one, other = features[[row]], features[[row - 1]]
        made = [network(one, other) for network in (method.union, method.intersection, method.subtraction)]
        sets = targets[row] | targets[row - 1], targets[row] & targets[row - 1], targets[row] & ~targets[row - 1]
        scores.append([method.head(vector)[0].sigmoid().tolist() for vector in (one, *made)])
        wanted.append([shown.tolist() for shown in (targets[row], *sets)])
        swapped.append([(made[0] - method.union(other, one))[0].tolist()])
        swapped[-1].append((made[1] - method.intersection(other, one))[0].tolist())
        rebuilt.append((method.union(made[2], made[1]) - one)[0].tolist())
    judged = 4 * log_loss(np.ravel(wanted), np.ravel(scores))  # the sum of four means
    return judged, 2 * np.square(swapped).mean(), np.square(rebuilt).mean()


@pytest.mark.parametrize(("symmetry", "rebuild"), [(0.0, 0.0), (2.0, 0.0), (0.0, 3.0), (1.0, 1.0)])
def test_the_loss_is_the_sum_of_its_terms(symmetry: float, rebuild: float) -> None:
    method, episode = make_method(symmetry=symmetry, rebuild=rebuild), make_episode()
    judged, swapped, rebuilt = terms_by_hand(method, episode)
    np.testing.assert_allclose(method.loss(episode).item(), judged + symmetry * swapped + rebuild * rebuilt, rtol=1e-4)


def test_the_judge_learns_from_real_images_alone() -> None:
    method, episode = make_method(), make_episode()
    method.loss(episode).backward()
    features = unit(torch.cat([episode.support.maps, episode.maps]))
    targets = torch.cat([episode.support.targets, episode.targets]).float()
    expected = (method.head(features).sigmoid() - targets).T @ features / targets.numel()
    assert method.head.weight.grad is not None
    torch.testing.assert_close(method.head.weight.grad, expected)


def test_before_training_the_judge_knows_the_labels_frequencies_and_nothing_else() -> None:
    method, targets = LaSO(5, 3, hidden=8), torch.tensor([[1, 0], [1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    method.prepare(Base(("a", "b"), torch.zeros(2, 3), targets))
    torch.testing.assert_close(method.head(random(7, 5, seed=0)).sigmoid(), torch.tensor([0.75, 0.25]).expand(7, 2))


def test_training_draws_the_partners() -> None:
    method, episode = make_method(dropout=0.0).train(), make_episode()
    torch.manual_seed(1)
    first = method.loss(episode).item()
    again = method.loss(episode).item()
    torch.manual_seed(1)
    assert method.loss(episode).item() == first != again


@pytest.mark.parametrize("augment", ["none", "union", "all"])
def test_the_classifier_is_fitted_on_the_support_and_what_its_pairs_make(augment: str) -> None:
    method, episode = make_method(), make_episode()
    method.augment = augment  # type: ignore[assignment]
    features, targets = unit(episode.support.maps), episode.support.targets
    rows, shown = [*features], [*targets]
    for one, other in permutations(range(4), 2):
        pair = features[[one]], features[[other]]
        if augment in ("union", "all"):
            rows.append(method.union(*pair)[0])
            shown.append(targets[one] | targets[other])
        if augment == "all":
            rows += [method.intersection(*pair)[0], method.subtraction(*pair)[0]]
            shown += [targets[one] & targets[other], targets[one] & ~targets[other]]
    head = fit_head(torch.stack(rows), torch.stack(shown), epochs=40, learning_rate=5e-3, weight_decay=0.0)
    torch.testing.assert_close(method.adapt(episode.support)(episode.maps), head(unit(episode.maps)))


def test_networks_need_a_block() -> None:
    with pytest.raises(InputError, match="at least one block"):
        LaSO(5, 3, blocks=0)


def toy(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of up to three of six labels, whose features say which."""
    shown = torch.zeros(count, 6, dtype=torch.bool)
    shown.scatter_(1, torch.randint(6, (count, 3), generator=torch.Generator().manual_seed(seed)), True)
    return shown.float()[:, :, None, None], shown


@pytest.mark.slow
def test_networks_learn_the_set_operations_of_a_toy_world() -> None:
    torch.manual_seed(0)
    names, words = tuple("abcdef"), torch.zeros(6, 3)
    method = LaSO(6, 3, hidden=64, dropout=0.0)
    method.prepare(Base(names, words, toy(300, seed=0)[1]))

    def episode(number: int) -> Episode:
        maps, shown = toy(100, seed=number)
        return Episode(Support(names, words, maps[:20], shown[:20]), maps[20:], shown[20:])

    def right(
        network: Callable[[Tensor, Tensor], Tensor], operation: Callable[[set[int], set[int]], set[int]]
    ) -> float:
        """The share of unseen pairs for which the judge finds just the labels that it should."""
        (left, one), (right, other) = toy(200, seed=1001), toy(200, seed=1002)
        found = method.head(network(method._features(left), method._features(right))) > 0
        return np.mean(
            [labels(row) == operation(labels(a), labels(b)) for row, a, b in zip(found, one, other, strict=True)]
        )

    train(method, [episode(number) for number in range(200)], learning_rate=2e-2)
    for network, operation in (
        (method.union, set.union),
        (method.intersection, set.intersection),
        (method.subtraction, set.difference),
    ):
        assert right(network, operation) > 0.95
        assert right(network.plain, operation) < 0.9, "arithmetic alone would do"


def test_it_learns_unions_that_serve_labels_never_seen() -> None:
    torch.manual_seed(0)
    world = make_world()
    method = introduce(LaSO(CHANNELS, DIMENSIONS, hidden=64, dropout=0.2), world.base)
    validation = draw_episodes(world.validation, 8)
    losses = train(method, draw_episodes(world.base, 60), learning_rate=3e-3)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert macro_ap(method, validation) > random_macro_ap(validation) + 10
