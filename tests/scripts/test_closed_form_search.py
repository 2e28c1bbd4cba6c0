"""The search for strengths, and scores of labels that the fit never saw."""

import closed_form_search as module
import numpy as np
import pytest
import torch
from closed_form_search import Held, build, cross_fit, judge, project_all, score_episodes, search

from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods.base import Base

CHANNELS, DIMENSIONS = 12, 6


def world(labels: int, images: int, seed: int) -> tuple[Base, MemoryRows]:
    """Labels look like a linear map of their words, the same map in every world; an image shows one or two."""
    look = torch.randn(DIMENSIONS, CHANNELS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(labels, DIMENSIONS, generator=generator)
    targets = torch.zeros(images, labels, dtype=torch.bool)
    targets[torch.arange(images), torch.arange(images) % labels] = True
    targets |= torch.rand(images, labels, generator=generator) < 0.5 / labels
    global_features = targets.float() @ words @ look + 2 * torch.randn(images, CHANNELS, generator=generator)
    maps = global_features[:, :, None, None] + torch.randn(images, CHANNELS, 2, 2, generator=generator)
    names = tuple(f"label {seed}-{number}" for number in range(labels))
    return Base(names, words, targets, maps.mean(dim=(2, 3))), MemoryRows(maps)


def held_of(base: Base, rows: MemoryRows, shots: tuple[int, ...] = (1, 2)) -> Held:
    draws = {}
    for number in shots:
        sampler = EpisodeSampler(base.targets.numpy(), base.labels, shots=number, queries=3)
        draws[number] = [sampler.draw(index) for index in range(4)]
    return Held(base.labels, base.words, rows, base.targets, draws)


def test_the_search_never_ends_below_its_start_and_tells_of_every_try() -> None:
    (base, _), (unseen, rows) = world(8, 160, seed=1), world(5, 80, seed=2)
    tried: list[float] = []
    grid = {"ridge": (0.1, 30.0), "word_weight": (0.0, 0.5), "shrinkage": (1.0,)}
    best, score = search(base, held_of(unseen, rows), grid=grid, tell=lambda _, found: tried.append(found["mean"]))
    assert score["mean"] == max(tried) >= tried[0]
    assert set(best) <= set(grid)
    again = build(base, best)
    assert judge(again, project_all(again.space_, rows, range(len(rows))), held_of(unseen, rows)) == pytest.approx(
        score
    )


def test_words_help_where_looks_follow_from_words() -> None:
    (base, _), (unseen, rows) = world(12, 240, seed=1), world(5, 80, seed=2)
    held = held_of(unseen, rows, shots=(1,))
    found = {}
    for weight in (0.0, 1.0):
        method = build(base, {"word_weight": weight, "ridge": 0.1})
        found[weight] = judge(method, project_all(method.space_, rows, range(len(rows))), held)["mean"]
    assert found[1.0] > found[0.0] + 0.02


def test_scores_of_an_episode_are_those_of_adapt() -> None:
    from fewtag.research.methods.base import Support

    (base, _), (unseen, rows) = world(8, 160, seed=1), world(5, 80, seed=2)
    method, held = build(base, {}), held_of(unseen, rows, shots=(2,))
    draw = held.draws[2][0]
    support, query = list(draw.support), list(draw.query)
    classifier = method.adapt(Support(held.labels, held.words, rows.take(support), held.targets[support]))
    first = score_episodes(method, held._replace(draws={2: [draw]}))[2]
    expected = classifier(rows.take(query)).flatten() / method.scale
    torch.testing.assert_close(first.scores, expected, rtol=2e-2, atol=2e-3)  # places are kept in half precision
    assert torch.equal(first.shown, held.targets[query].flatten())


def test_cross_fitting_never_fits_on_what_it_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    base, rows = world(8, 240, seed=3)
    fitted: list[Base] = []
    scored: list[tuple[str, ...]] = []
    whole_build, whole_score = module.build, module.score_episodes
    monkeypatch.setattr(module, "build", lambda part, strengths: (fitted.append(part), whole_build(part, strengths))[1])

    def score(method, held, words_alone=False):
        scored.append(held.labels)
        return whole_score(method, held, words_alone)

    monkeypatch.setattr(module, "score_episodes", score)
    found = cross_fit(base, rows, {}, folds=4, shots=(1, 3), queries=2, episodes=2)
    assert sorted(found) == [0, 1, 3]
    assert {label for labels in scored for label in labels} == set(base.labels)
    for part, labels in zip(fitted, scored[::2], strict=True):
        assert not set(part.labels) & set(labels)
        inside = [base.labels.index(label) for label in labels]
        assert len(part.features) == int((~base.targets[:, inside].any(dim=1)).sum()), "an image shows a scored label"
    assert all(len(pairs.scores) == len(pairs.shown) for pairs in found.values())
    assert np.isfinite(found[0].scores.numpy()).all()
