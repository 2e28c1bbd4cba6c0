"""Episodes in, numbers out."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtag.research.bench.metrics import episode_metrics
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import Draw
from fewtag.research.features.rows import MemoryRows, Rows
from fewtag.research.methods.base import Episode, Method, Precoded, Support
from fewtag.research.types import Logits, Targets, Words


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
        rows, shots = [*draw.support, *draw.query], len(draw.support)
        maps, targets = self.maps(rows), self.targets[rows]
        named = targets[:shots]
        if draw.named:
            named = F.one_hot(torch.tensor(draw.named, device=targets.device), len(self.labels)).bool()
        return Episode(Support(self.labels, self.words, maps[:shots], named), maps[shots:], targets[shots:])

    def maps(self, rows: list[int]) -> Tensor:
        taken = self.rows.take(rows).to(self.words.device, non_blocking=True)
        return taken if taken.dtype == torch.uint8 else taken.float()


MOST_ENCODED = 2**29
"""Bytes of encoded pictures that are kept for the episodes to come."""
ENCODED_AT_ONCE = 64


def encode_once(method: Precoded, pool: Pool, draws: Sequence[Draw]) -> tuple[Pool, Sequence[Draw]] | None:
    """A pool of the draws' pictures alone, encoded, and the draws by its row numbers.

    None where that would take too much memory, or no picture is used twice.
    """
    used = sorted({row for draw in draws for row in (*draw.support, *draw.query)})
    if not used or len(used) == sum(len(draw.support) + len(draw.query) for draw in draws):
        return None
    first = method.encode(pool.maps(used[:1]))
    if len(used) * first.nbytes > MOST_ENCODED:
        return None
    encoded = first.new_empty(len(used), *first.shape[1:])
    for start in range(0, len(used), ENCODED_AT_ONCE):
        encoded[start : start + ENCODED_AT_ONCE] = method.encode(pool.maps(used[start : start + ENCODED_AT_ONCE]))
    number = {row: new for new, row in enumerate(used)}
    renumbered = [
        Draw(tuple(number[row] for row in draw.support), tuple(number[row] for row in draw.query), draw.named)
        for draw in draws
    ]
    return pool._replace(rows=MemoryRows(encoded), targets=pool.targets[used]), renumbered


def score_draws(method: Method, pool: Pool, draws: Sequence[Draw]) -> Iterator[tuple[Logits, Targets]]:
    """Logits and targets of the query images of each draw."""
    adapt = method.adapt
    if isinstance(method, Precoded) and (encoded := encode_once(method, pool, draws)):
        (pool, draws), adapt = encoded, method.adapt_encoded
    for draw in draws:
        episode = pool.episode(draw)
        yield adapt(episode.support)(episode.maps), episode.targets


def evaluate(
    method: Method, pool: Pool, draws: Sequence[Draw], *, advance: Callable[[int], None] = lambda _: None
) -> list[dict[str, float]]:
    """The eight metrics of each episode. Memory is bounded by one episode and `MOST_ENCODED`."""
    was_training = method.training
    method.eval()
    metrics = []
    with torch.no_grad():  # not inference mode: a method may train something small on the support
        for logits, targets in score_draws(method, pool, draws):
            # double: in single precision all logits over 17 are probability 1, a tie that would spoil the ranking
            metrics.append(episode_metrics(logits.cpu().double().sigmoid(), targets.cpu()))
            advance(1)
    method.train(was_training)
    return metrics
