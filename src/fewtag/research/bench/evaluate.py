"""Evaluation of methods on episodes: metrics for each episode."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.bench.results import episode_metrics, label_aps
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import Draw
from fewtag.research.features.rows import MemoryRows, Rows
from fewtag.research.methods.base import Episode, Method, Precoded, Support
from fewtag.research.types import Logits, Targets, Words


class Pool(NamedTuple):
    """The pictures of one phase, from which episodes are made."""

    labels: tuple[str, ...]
    rows: Rows
    words: Words
    targets: Targets

    @classmethod
    def of(cls, images: LabelledImages, rows: Rows, words: Words, device: torch.device) -> "Pool":
        return cls(images.labels, rows, words.to(device), torch.from_numpy(images.targets).to(device))

    def episode(self, draw: Draw) -> Episode:
        """The tensors of a draw, on the pool's device."""
        return as_named(self.split(torch.tensor([*draw.support, *draw.query]), len(draw.support)), draw)

    def split(self, rows: Int[Tensor, "*episodes rows"], shots: int) -> Episode:
        """An episode of these rows, the first of which are the support; or several episodes, stacked."""
        maps, targets = self.maps(rows.flatten()), self.targets[rows.flatten().to(self.targets.device)]
        sides = [
            torch.split(taken.reshape(*rows.shape, *taken.shape[1:]), [shots, rows.shape[-1] - shots], rows.ndim - 1)
            for taken in (maps, targets)
        ]
        (support, query), (shown, asked) = sides
        return Episode(Support(self.labels, self.words, support, shown), query, asked)

    def maps(self, rows: Int[Tensor, "rows"]) -> Tensor:
        taken = self.rows.take(rows) if isinstance(self.rows, MemoryRows) else self.rows.take(rows.tolist())
        taken = taken.to(self.words.device, non_blocking=True)
        return taken if taken.dtype == torch.uint8 else taken.float()


def as_named(episode: Episode, draw: Draw) -> Episode:
    """The episode with support pictures that name one label each, if the draw says so."""
    if not draw.named:
        return episode
    targets = episode.support.targets
    named = F.one_hot(torch.tensor(draw.named, device=targets.device), targets.shape[-1]).bool()
    return episode._replace(support=episode.support._replace(targets=named))


MOST_ENCODED = 2**29
"""The most bytes of encoded pictures that are kept for later episodes."""
ENCODED_AT_ONCE = 64
EPISODES_AT_ONCE = 8
"""Episodes stacked at once, if a method can: fewer calls, and their pictures still fit the processor's cache."""


def encode_once(
    method: Precoded, pool: Pool, rows: list[Int[Tensor, "_"]]
) -> tuple[Pool, list[Int[Tensor, "_"]]] | None:
    """A pool of only the episodes' pictures, encoded, and the episodes' row numbers in it.

    None if that would take too much memory, or no picture is used twice.
    """
    used, numbers = torch.unique(torch.cat(rows), return_inverse=True)
    if len(used) == len(numbers):
        return None
    first = method.encode(pool.maps(used[:1]))
    if len(used) * first.nbytes > MOST_ENCODED:
        return None
    encoded = first.new_empty(len(used), *first.shape[1:])
    for chunk, made in zip(torch.split(used, ENCODED_AT_ONCE), torch.split(encoded, ENCODED_AT_ONCE), strict=True):
        made.copy_(method.encode(pool.maps(chunk)))
    pool = pool._replace(rows=MemoryRows(encoded), targets=pool.targets[used.to(pool.targets.device)])
    return pool, list(torch.split(numbers, [len(each) for each in rows]))


def score_draws(method: Method, pool: Pool, draws: Sequence[Draw]) -> Iterator[tuple[Logits, Targets]]:
    """Logits and targets of the query images of each draw."""
    adapt = method.adapt
    rows = [torch.tensor([*draw.support, *draw.query]) for draw in draws]
    if draws and isinstance(method, Precoded) and (encoded := encode_once(method, pool, rows)):
        (pool, rows), adapt = encoded, method.adapt_encoded
        alike = len({(len(draw.support), len(draw.query)) for draw in draws}) == 1
        if method.stacks_episodes and alike and not any(draw.named for draw in draws):
            for stacked in torch.split(torch.stack(rows), EPISODES_AT_ONCE):
                episodes = pool.split(stacked, len(draws[0].support))
                yield from zip(adapt(episodes.support)(episodes.maps), episodes.targets, strict=True)
            return
    for draw, chosen in zip(draws, rows, strict=True):
        episode = as_named(pool.split(chosen, len(draw.support)), draw)
        yield adapt(episode.support)(episode.maps), episode.targets


class Judged(NamedTuple):
    """The results of one episode."""

    metrics: dict[str, float]
    label_aps: list[float]
    """The average precision of each label, in the pool's order."""


def evaluate(
    method: Method, pool: Pool, draws: Sequence[Draw], *, advance: Callable[[int], None] = lambda _: None
) -> list[Judged]:
    """The results of each episode. Memory is bounded by one episode and `MOST_ENCODED`."""
    was_training = method.training
    method.eval()
    judged = []
    with torch.no_grad():  # not inference mode, since a method may train something small on the support
        for logits, targets in score_draws(method, pool, draws):
            if logits.isnan().any():
                raise InputError(
                    "a score is not a number, and would be ranked as if it were; look at the features, the weights and "
                    "the method's options"
                )
            # by logits: all over 37 have probability 1, a tie that would spoil the ranking
            found = logits.cpu().double().numpy(), targets.cpu().numpy()
            judged.append(Judged(episode_metrics(*found, threshold=0.0), label_aps(*found)))
            advance(1)
    method.train(was_training)
    return judged
