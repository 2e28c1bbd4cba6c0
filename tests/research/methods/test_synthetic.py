"""The synthetic world the methods' tests learn in: it is what it says."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from synthetic import draw_episodes, macro_ap, make_world, random_macro_ap

from fewtag.research.methods import Support, create_method
from fewtag.research.methods.base import Classifier, Method


def test_the_two_halves_share_the_function_from_words_to_patterns_and_no_label() -> None:
    world = make_world(noise=0.0)
    assert not set(world.base.labels) & set(world.validation.labels)
    sums = [half.rows.take(range(len(half.rows))).sum(dim=(2, 3)) for half in world]
    # without noise every image lies in the span of the base labels' patterns, those of validation labels too
    basis = np.linalg.svd(sums[0].numpy(), full_matrices=False)[2][: world.base.words.shape[1]]
    left_over = sums[1].numpy() - sums[1].numpy() @ basis.T @ basis
    assert np.abs(left_over).max() < 1e-4 < np.abs(sums[1].numpy()).max()


def test_images_show_one_to_three_labels() -> None:
    for half in make_world():
        assert set(half.targets.sum(dim=1).tolist()) == {1, 2, 3}


class Random(Method):
    """Scores by dice."""

    def adapt(self, support: Support) -> Classifier:
        generator = torch.Generator().manual_seed(int(support.maps.abs().sum() * 1e4))
        return lambda maps: torch.rand(len(maps), len(support.labels), generator=generator)


def test_a_random_ranker_gets_what_the_formula_says() -> None:
    episodes = draw_episodes(make_world().validation, 300)
    assert macro_ap(Random(1, 1), episodes) == pytest.approx(random_macro_ap(episodes), abs=1)


def test_macro_ap_is_scikit_learns() -> None:
    episodes = draw_episodes(make_world().validation, 3)
    method = create_method("protonet", channels=1, dimensions=1)
    found = [
        average_precision_score(episode.targets.numpy(), method.adapt(episode.support)(episode.maps).numpy())
        for episode in episodes
    ]
    assert macro_ap(method, episodes) == pytest.approx(100 * np.mean(found), abs=1e-4)


def test_prototypes_find_the_labels_but_not_perfectly() -> None:
    episodes = draw_episodes(make_world().validation, 20)
    found = macro_ap(create_method("protonet", channels=1, dimensions=1), episodes)
    assert random_macro_ap(episodes) + 10 < found < 90
