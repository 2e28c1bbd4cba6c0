"""A small world whose structure is known, so that learning can be seen to work: `from synthetic import make_world`.

A label's pattern is a fixed linear function of its word vector, the same function for base and validation labels. An
image shows one to three labels, each at one or two places of its map; everywhere there is noise.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtag.research.bench.evaluate import Pool
from fewtag.research.bench.results import episode_metrics
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import Base, Episode, Method
from fewtag.research.types import pool as global_features

CHANNELS, DIMENSIONS, SIDE = 32, 10, 3


class World(NamedTuple):
    """Base labels to learn from, and validation labels that show whether the right thing was learnt."""

    base: Pool
    validation: Pool


def make_world(
    *, base_labels: int = 24, validation_labels: int = 8, images_per_label: int = 20, noise: float = 0.15, seed: int = 0
) -> World:
    """Both halves of the world; they share the function from words to patterns, and no label."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(base_labels + validation_labels, DIMENSIONS, generator=generator)
    patterns = F.normalize(words @ torch.randn(DIMENSIONS, CHANNELS, generator=generator), dim=-1)
    names = tuple(f"label {number}" for number in range(len(words)))
    halves = []
    for part in (slice(0, base_labels), slice(base_labels, None)):
        labels = names[part]
        targets = draw_targets(len(labels), images_per_label, generator)
        maps = draw_maps(targets, patterns[part], noise, generator)
        halves.append(Pool(labels, MemoryRows(maps), words[part], targets))
    return World(*halves)


def draw_targets(labels: int, images_per_label: int, generator: torch.Generator) -> Tensor:
    """As many images of each label, each with up to two other labels."""
    own = torch.arange(labels).repeat(images_per_label)
    targets = F.one_hot(own, labels).bool()
    for _ in range(2):
        other = torch.randint(labels, own.shape, generator=generator)
        another = torch.rand(own.shape, generator=generator) < 0.5
        targets |= F.one_hot(other, labels).bool() & another[:, None]
    return targets


def draw_maps(targets: Tensor, patterns: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Each shown label's pattern at one or two places (two draws of a place may agree), on noise."""
    chosen = torch.randint(SIDE * SIDE, (*targets.shape, 2), generator=generator)
    where = F.one_hot(chosen, SIDE * SIDE).amax(dim=2) * targets[:, :, None]
    seen = torch.einsum("ilp,lc->icp", where.float(), patterns)
    hidden = noise * torch.randn(seen.shape, generator=generator)
    return (seen + hidden).unflatten(2, (SIDE, SIDE))


def draw_episodes(pool: Pool, count: int, *, shots: int = 1, queries: int = 4, seed: int = 0) -> list[Episode]:
    """Episodes of all the pool's labels, drawn as the benchmark draws them."""
    sampler = EpisodeSampler(pool.targets.numpy(), pool.labels, shots=shots, queries=queries, seed=seed)
    return [pool.episode(sampler.draw(index)) for index in range(count)]


def introduce(method: Method, base: Pool) -> Method:
    """Shows the base labels to a method that solves on them or makes parts for them."""
    features = global_features(base.rows.take(range(len(base.rows))))
    method.prepare(Base(base.labels, base.words, base.targets, features))
    return method


def train(method: Method, episodes: Sequence[Episode], *, learning_rate: float = 1e-3, seed: int = 0) -> list[float]:
    """One step of Adam an episode, as the benchmark trains; returns the losses."""
    torch.manual_seed(seed)  # dropout
    optimizer = torch.optim.Adam(method.parameters(), lr=learning_rate)
    method.train()
    losses = []
    for episode in episodes:
        optimizer.zero_grad()
        loss = method.loss(episode)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    method.eval()
    return losses


@torch.no_grad()
def macro_ap(method: Method, episodes: Sequence[Episode]) -> float:
    """The mean macro-AP of the episodes, in points of 100."""
    method.eval()
    found = [
        episode_metrics(
            method.adapt(episode.support)(episode.maps).double().sigmoid().numpy(), episode.targets.numpy()
        )["macro_ap"]
        for episode in episodes
    ]
    return 100 * sum(found) / len(found)


def random_macro_ap(episodes: Sequence[Episode]) -> float:
    """What a random ranker gets on average, in points of 100, by the exact formula for each label.

    Over all orders of n images of which r are right: (r − 1)/(n − 1) + (n − r)/(n (n − 1)) · (1 + 1/2 + … + 1/n).
    """
    expected = []
    for episode in episodes:
        images, right = len(episode.targets), episode.targets.sum(dim=0).double()
        harmonic = (1 / torch.arange(1, images + 1).double()).sum()
        average = (right - 1) / (images - 1) + (images - right) / (images * (images - 1)) * harmonic
        expected.append(average.mean().item())
    return 100 * sum(expected) / len(expected)
