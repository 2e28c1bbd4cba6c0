"""The search for strengths on labels that the fit never saw."""

import pytest
import torch
from search_strengths import Held, Strengths, episode_scores, judge, project_all, search

from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods.base import Base, Support
from fewtag.research.methods.closed_form import ClosedForm

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


def build(base: Base, strengths: Strengths) -> ClosedForm:
    method = ClosedForm(CHANNELS, DIMENSIONS, **strengths).eval()
    method.prepare(base)
    return method


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
    (base, _), (unseen, rows) = world(8, 160, seed=1), world(5, 80, seed=2)
    method, held = build(base, {}), held_of(unseen, rows, shots=(2,))
    draw = held.draws[2][0]
    support, query = list(draw.support), list(draw.query)
    classifier = method.adapt(Support(held.labels, held.words, rows.take(support), held.targets[support]))
    scores, shown = episode_scores(method, project_all(method.space_, rows, range(len(rows))), held, draw)
    expected = classifier(rows.take(query))
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=2e-2, atol=4e-2)  # places in half precision
    assert (shown == held.targets[query].numpy()).all()
