"""Paired tests: two runs on the same episodes differ by what the episodes' differences say."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fewtag.research.bench.results import Row

LEVEL = 0.05
_DRAWS = "draws_digest"
_SAME = ("data", "split", "phase", "shots", "queries", "data_digest")


class Difference(NamedTuple):
    """One run less another: the mean over episodes, half the width of its 95 % interval, and the test's p-value."""

    mean: float
    interval: float
    p: float

    @property
    def real(self) -> bool:
        """Whether a difference of nothing would seldom look like this."""
        return self.p < LEVEL


def paired(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Whether two runs were measured on the same episodes: pictures, draws and their order.

    Where both tell the digest of their draws it decides; else the seed does, since draws follow from the pictures, the
    shots, the queries and the seed. Rows that do not tell these are of no pair.
    """
    if len(one) < 2 or len(one) != len(other):
        return False
    told = all(_DRAWS in rows[0] for rows in (one, other))
    same = (*_SAME, _DRAWS if told else "seed")
    return all(one[0].get(key) is not None for key in same) and all(
        mine.get("episode") == theirs.get("episode") and all(mine.get(key) == theirs.get(key) for key in same)
        for mine, theirs in zip(one, other, strict=True)
    )


def difference(one: Sequence[Row], other: Sequence[Row], metric: str = "macro_ap") -> Difference | None:
    """`one` less `other` by the episodes' differences; None for runs on different episodes."""
    if not paired(one, other):
        return None
    ours, theirs = ([row[metric] for row in rows] for rows in (one, other))
    apart = np.subtract(ours, theirs)
    mean = float(apart.mean())
    if np.ptp(apart) == 0:  # the test divides by the spread, which a run compared with itself has none of
        return Difference(mean, 0.0, 1.0 if mean == 0 else 0.0)
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(0.95)
    return Difference(mean, float(high - low) / 2, float(test.pvalue))


def compare(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]], metric: str = "macro_ap") -> list[Difference | None]:
    """The difference of each pair, with p-values corrected for their number."""
    found = [difference(one, other, metric) for one, other in pairs]
    corrected = iter(holm([each.p for each in found if each is not None]))
    return [None if each is None else each._replace(p=next(corrected)) for each in found]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of even one false difference among all stays below the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, worst = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = worst
    return corrected
