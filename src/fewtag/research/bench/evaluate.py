"""Episodes in, numbers out."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fewtag.research.bench.metrics import metrics_of_each
from fewtag.research.data.episodes import Draw
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.rows import Rows
from fewtag.research.methods.base import ByProducts, Episode, Method, Precoded, Products, Support, refuse_unshown
from fewtag.research.types import Encoded, Targets, Words


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
STACKED_AT_ONCE = 2**23
"""Bytes of encoded pictures in a batch of episodes."""

Scored = tuple[Float[Tensor, "episodes images labels"], Bool[Tensor, "episodes images labels"]]


class EncodedRows:
    """Encoded pictures, by the numbers that they have in their data set: `used`, which is sorted."""

    def __init__(self, tensor: Encoded, used: Sequence[int]) -> None:
        self.tensor, self.used = tensor, torch.tensor(used, device=tensor.device)

    def __len__(self) -> int:
        return len(self.used)

    def take(self, rows: Sequence[int]) -> Encoded:
        return self.tensor[self.places(torch.tensor(rows, dtype=torch.long, device=self.used.device))]

    def places(self, rows: Int[Tensor, "*several"]) -> Int[Tensor, "*several"]:
        """Where the rows are in the tensor."""
        return torch.searchsorted(self.used, rows)


def encode_once(method: Precoded, pool: Pool, draws: Sequence[Draw]) -> EncodedRows | None:
    """All pictures of the draws, encoded; None where that would take too much memory, or save nothing."""
    used = sorted({row for draw in draws for row in (*draw.support, *draw.query)})
    if not used or len(used) == sum(len(draw.support) + len(draw.query) for draw in draws):
        return None
    first = method.encode(pool.maps(used[:1]))
    if len(used) * first.nbytes > MOST_ENCODED:
        return None
    encoded = first.new_empty(len(used), *first.shape[1:])
    for start in range(0, len(used), ENCODED_AT_ONCE):
        encoded[start : start + ENCODED_AT_ONCE] = method.encode(pool.maps(used[start : start + ENCODED_AT_ONCE]))
    return EncodedRows(encoded, used)


def score_draws(method: Method, pool: Pool, draws: Sequence[Draw]) -> Iterator[Scored]:
    """Logits and targets of the query images in the order of the draws, one episode at a time or several."""
    adapt = method.adapt
    if isinstance(method, Precoded) and (encoded := encode_once(method, pool, draws)):
        if isinstance(method, ByProducts):
            yield from score_batches(method, pool, encoded, draws)
            return
        pool, adapt = pool._replace(rows=encoded), method.meet
    for draw in draws:
        episode = pool.episode(draw)
        yield adapt(episode.support)(episode.maps)[None], episode.targets[None]


def score_batches(method: ByProducts, pool: Pool, encoded: EncodedRows, draws: Sequence[Draw]) -> Iterator[Scored]:
    """The same of encoded pictures, consecutive episodes of equal size together."""
    features = encoded.tensor.flatten(1).float()
    lengths = features.norm(dim=1)
    for (shots, queries), alike in groupby(draws, lambda draw: (len(draw.support), len(draw.query))):
        numbers = np.array([(*draw.support, *draw.query) for draw in alike])  # which torch would read more slowly
        rows = torch.from_numpy(numbers).to(encoded.used.device)
        at_once = max(1, STACKED_AT_ONCE // ((shots + queries) * features[0].nbytes))
        # one room for all batches: to be given fresh memory each time takes longer than the scores
        room = features.new_empty(min(at_once, len(rows)) * (shots + queries), features.shape[1])
        for some in rows.split(at_once):  # type: ignore[no-untyped-call]
            places, targets = encoded.places(some), pool.targets[some]
            refuse_unshown(pool.labels, targets[:, :shots])
            taken = torch.index_select(features, 0, places.flatten(), out=room[: places.numel()])
            stacked = taken.view(*places.shape, -1)
            with torch.autocast(features.device.type, enabled=False):
                products = stacked @ stacked[:, :shots].mT
                found = Products(products[:, :shots], products[:, shots:], lengths[places[:, shots:]])
                logits = method.score(found, targets[:, :shots])
            yield logits, targets[:, shots:]


def evaluate(
    method: Method, pool: Pool, draws: Sequence[Draw], *, advance: Callable[[int], None] = lambda _: None
) -> list[dict[str, float]]:
    """The eight metrics of each episode. Memory is bounded by one episode, `MOST_ENCODED` and `STACKED_AT_ONCE`."""
    was_training = method.training
    method.eval()
    metrics = []
    with torch.no_grad():  # not inference mode: a method may train something small on the support
        for logits, targets in score_draws(method, pool, draws):
            # double: in single precision all logits over 17 are probability 1, a tie that would spoil the ranking
            metrics += metrics_of_each(logits.cpu().double().sigmoid(), targets.cpu())
            advance(len(targets))
    method.train(was_training)
    return metrics
