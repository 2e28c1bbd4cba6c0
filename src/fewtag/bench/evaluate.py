"""Episodes in, numbers out."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Num
from torch import Tensor

from fewtag.bench.metrics import episode_metrics
from fewtag.data.episodes import Draw
from fewtag.data.images import LabelledImages
from fewtag.features.rows import MemoryRows, Rows
from fewtag.methods.base import Episode, Method, Precoded, Support
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
        adapting = Support(self.labels, self.words, self.maps(support), self.targets[support])
        return Episode(adapting, self.maps(query), self.targets[query])

    def maps(self, rows: list[int]) -> Tensor:
        taken = self.rows.take(rows).to(self.words.device, non_blocking=True)
        return taken if taken.dtype == torch.uint8 else taken.float()


MOST_ENCODED = 2**29
ENCODED_AT_ONCE = 64


def encode_once(method: Precoded, pool: Pool, draws: Sequence[Draw]) -> Rows | None:
    """All pictures of the draws, encoded; None where that would take too much memory, or save nothing."""
    used = sorted({row for draw in draws for row in (*draw.support, *draw.query)})
    if not used or len(used) == sum(len(draw.support) + len(draw.query) for draw in draws):
        return None
    first = method.encode(pool.maps(used[:1]))
    if len(used) * first.nbytes > MOST_ENCODED:
        return None
    place = {row: number for number, row in enumerate(used)}
    encoded = first.new_empty(len(used), *first.shape[1:])
    for start in range(0, len(used), ENCODED_AT_ONCE):
        encoded[start : start + ENCODED_AT_ONCE] = method.encode(pool.maps(used[start : start + ENCODED_AT_ONCE]))
    return RenumberedRows(MemoryRows(encoded), place)


class RenumberedRows:
    """Some of the rows of a data set, by the numbers that they have there."""

    def __init__(self, rows: Rows, place: Mapping[int, int]) -> None:
        self.rows, self.place = rows, place

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: Sequence[int]) -> Num[Tensor, "images channels height width"]:
        return self.rows.take([self.place[row] for row in rows])


def evaluate(
    method: Method, pool: Pool, draws: Sequence[Draw], *, advance: Callable[[int], None] = lambda _: None
) -> list[dict[str, float]]:
    """The eight metrics of each episode. Memory is bounded by one episode, and by `MOST_ENCODED` bytes."""
    was_training = method.training
    method.eval()
    metrics = []
    adapt = method.adapt
    with torch.no_grad():  # not inference mode: a method may train something small on the support
        if isinstance(method, Precoded) and (encoded := encode_once(method, pool, draws)):
            pool, adapt = pool._replace(rows=encoded), method.meet
        for draw in draws:
            episode = pool.episode(draw)
            # double: in single precision all logits over 17 are probability 1, a tie that would spoil the ranking
            probabilities = adapt(episode.support)(episode.maps).cpu().double().sigmoid()
            metrics.append(episode_metrics(probabilities, episode.targets.cpu()))
            advance(1)
    method.train(was_training)
    return metrics
