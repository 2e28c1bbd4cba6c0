"""Episodes in, numbers out."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fewtag.bench.metrics import episode_metrics
from fewtag.data.episodes import Draw
from fewtag.data.images import LabelledImages
from fewtag.features.store import Rows
from fewtag.methods.base import Episode, Method, Support
from fewtag.types import Targets, Words


class Pool(NamedTuple):
    """The pictures of one phase, ready to make episodes of."""

    labels: tuple[str, ...]
    rows: Rows
    words: Words
    targets: Targets

    @classmethod
    def of(cls, images: LabelledImages, rows: Rows, words: Words, device: torch.device) -> "Pool":
        return cls(images.labels, rows, words.to(device), torch.from_numpy(images.targets).to(device))

    def episode(self, draw: Draw) -> Episode:
        """The tensors of a draw, on the pool's device."""
        support, query = list(draw.support), list(draw.query)
        adapting = Support(self.labels, self.words, self._maps(support), self.targets[support])
        return Episode(adapting, self._maps(query), self.targets[query])

    def _maps(self, rows: list[int]) -> Tensor:
        taken = self.rows.take(rows).to(self.words.device, non_blocking=True)
        return taken if taken.dtype == torch.uint8 else taken.float()


def evaluate(
    method: Method, pool: Pool, draws: Sequence[Draw], *, advance: Callable[[int], None] = lambda _: None
) -> list[dict[str, float]]:
    """The eight metrics of each episode. Memory is bounded by one episode, whatever the size of the data set."""
    was_training = method.training
    method.eval()
    metrics = []
    with torch.no_grad():  # not inference mode: a method may train something small on the support
        for draw in draws:
            episode = pool.episode(draw)
            # double: in single precision all logits over 17 are probability 1, a tie that would spoil the ranking
            probabilities = method.adapt(episode.support)(episode.maps).cpu().double().sigmoid()
            metrics.append(episode_metrics(probabilities, episode.targets.cpu()))
            advance(1)
    method.train(was_training)
    return metrics
