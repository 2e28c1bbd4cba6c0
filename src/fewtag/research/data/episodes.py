"""Draw an episode's images: row numbers only, so that no pixel is needed to test it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from fewtag.errors import InputError
from fewtag.research.data.matching import assign, shortage

_TRIES = 50


@dataclass(frozen=True, slots=True)
class Draw:
    """An episode before its tensors: the row numbers of its support and query images."""

    support: tuple[int, ...]
    query: tuple[int, ...]


def check_counts(shots: int, queries: int, seed: int) -> None:
    """Refuses numbers that no episode could be drawn with."""
    for name, value, least in (("shots", shots, 1), ("queries", queries, 0), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"`{name}` is {value}; it must be at least {least}")


class EpisodeSampler:
    """Episodes over all labels: for each, `shots` support and `queries` query images that show it, all different."""

    def __init__(
        self,
        targets: Bool[np.ndarray, "images labels"],
        labels: Sequence[str],
        *,
        shots: int = 1,
        queries: int = 4,
        seed: int = 0,
    ) -> None:
        assert targets.shape[1] == len(labels), "a column for each label"
        check_counts(shots, queries, seed)
        self.shots, self.queries, self.seed = shots, queries, seed
        self._targets = targets
        self._wanted = shots + queries
        self._pools = [np.flatnonzero(targets[:, column]) for column in range(len(labels))]
        _refuse_impossible(targets, labels, self._pools, shots, queries)
        # the rarest label chooses first; ties by name, so that the order of the columns does not matter
        self._order = sorted(range(len(labels)), key=lambda column: (len(self._pools[column]), labels[column]))

    def draw(self, index: int) -> Draw:
        """Episode number `index`: the same for the same seed, in any order and in any process."""
        generator = np.random.default_rng([self.seed, index])
        for _ in range(_TRIES):
            chosen = self._choose(generator)
            if chosen is not None:
                break
        else:
            chosen = self._match(generator)
        # label by label: support[k * shots] shows label k, whatever else it shows
        return Draw(
            support=tuple(int(row) for rows in chosen for row in rows[: self.shots]),
            query=tuple(int(row) for rows in chosen for row in rows[self.shots :]),
        )

    def _choose(self, generator: np.random.Generator) -> list[np.ndarray] | None:
        """Each label in turn takes unused images at random; None where one finds too few left."""
        used = np.zeros(len(self._targets), dtype=bool)
        chosen: list[np.ndarray] = [np.empty(0, dtype=int)] * len(self._pools)
        for column in self._order:
            pool = self._pools[column]
            free = pool[~used[pool]]
            if len(free) < self._wanted:
                return None
            chosen[column] = generator.choice(free, self._wanted, replace=False)
            used[chosen[column]] = True
        return chosen

    def _match(self, generator: np.random.Generator) -> list[np.ndarray]:
        """An exact matching of a shuffled data set, for requests so tight that chance keeps missing."""
        rows = generator.permutation(len(self._targets))
        # shuffle in the order of _order, so that the order of the columns does not matter here either
        columns = generator.permutation(self._order)
        owner = assign(self._targets[np.ix_(rows, columns)], self._wanted)
        chosen: list[np.ndarray] = [np.empty(0, dtype=int)] * len(self._pools)
        for place, column in enumerate(columns):
            chosen[column] = generator.permutation(rows[owner == place])
        return chosen


def _refuse_impossible(
    targets: Bool[np.ndarray, "images labels"],
    labels: Sequence[str],
    pools: Sequence[np.ndarray],
    shots: int,
    queries: int,
) -> None:
    wanted = shots + queries
    needs = f"{wanted} ({shots} support + {queries} query)"
    for label, pool in zip(labels, pools, strict=True):
        if len(pool) < wanted:
            raise InputError(
                f"label {label!r} has {len(pool)} images, an episode needs {needs}; "
                "lower `shots` or `queries`, or drop the label"
            )
    found = shortage(targets, wanted)
    if found is not None:
        names = [labels[column] for column in found.labels]
        shown = ", ".join(repr(name) for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InputError(
            f"labels {shown} share {found.images} images, an episode needs {len(names) * wanted} different ones, "
            f"{needs} a label; lower `shots` or `queries`, or drop a label"
        )
