"""Paired t-tests with Holm's correction: whether two runs on the same episodes differ.

Tests are over episodes, over labels, and over training seeds if there are several: the widest interval decides.
"""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fewtag.research.bench.report.results import MeasuredRun, Systems, best_reading, closed_form
from fewtag.research.bench.results import ResultRow

LEVEL = 0.05
ONE_SEED = "one seed"
"""Stands in place of a test if a run was trained once: how much another seed would change it is unknown."""
PHASES = ("test", "mixed", "any")
"""The phases on which systems are compared."""
_EPISODE = ("data", "split", "phase", "shots", "queries", "data_digest", "episode")


class Difference(NamedTuple):
    """One run less another: the mean, half the width of its 95 % interval, the test's p-value, and what it is over."""

    mean: float
    interval: float
    p: float
    over: str = "episodes"

    @property
    def real(self) -> bool:
        """Whether the difference is significant."""
        return self.p < LEVEL


def paired(one: Sequence[ResultRow], other: Sequence[ResultRow]) -> bool:
    """Whether two runs were measured on the same episodes: pictures, draws and their order.

    If both have the digest of their draws, it decides; else the seed does, since draws follow from the pictures, the
    shots, the queries and the seed. Rows without the digest of their pictures are never paired.
    """
    if min(len(one), len(other)) < 2 or one[0].data_digest is None:
        return False
    draws = "seed" if None in (one[0].draws_digest, other[0].draws_digest) else "draws_digest"
    episode = attrgetter(*_EPISODE, draws)
    return list(map(episode, one)) == list(map(episode, other))


def difference(one: Sequence[ResultRow], other: Sequence[ResultRow], metric: str = "macro_ap") -> Difference | None:
    """`one` less `other`, by the episodes' differences; None for runs on different episodes."""
    if not paired(one, other):
        return None
    ours, theirs = ([getattr(row, metric) for row in rows] for rows in (one, other))
    apart = np.subtract(ours, theirs)
    mean = float(apart.mean())
    if np.ptp(apart) == 0:  # the test divides by the spread, which is zero for a run compared with itself
        return Difference(mean, 0.0, 1.0 if mean == 0 else 0.0)
    return _tested(mean, stats.ttest_rel(ours, theirs), "episodes")


def _tested(mean: float, test: Any, over: str) -> Difference:
    low, high = test.confidence_interval(0.95)
    return Difference(mean, float(high - low) / 2, float(test.pvalue), over)


def widest_difference(run: MeasuredRun, baseline: MeasuredRun, phase: str) -> Difference | None:
    """The difference of macro-AP, with the widest of its intervals over episodes, labels and training seeds."""
    found = difference(run.phases[phase], baseline.phases[phase])
    if found is None or (found.interval, found.mean) == (0.0, 0.0):
        return found
    one, other = run.label_aps(phase), baseline.label_aps(phase)
    candidates = [found]
    if one and one.keys() == other.keys() and len(one) > 1:
        ours, theirs = list(one.values()), [other[label] for label in one]
        if np.ptp(np.subtract(ours, theirs)) > 0:
            candidates.append(_tested(found.mean, stats.ttest_rel(ours, theirs), "labels"))
    if any(each.seeded and len(each.by_seed(phase)) == 1 for each in (run, baseline)):
        return max(candidates, key=lambda each: each.interval)._replace(p=1.0, over=ONE_SEED)
    ours, theirs = run.seed_means(phase), baseline.seed_means(phase)
    if len(ours) > 1 and len(theirs) > 1:
        candidates.append(_tested(found.mean, stats.ttest_ind(ours, theirs, equal_var=False), "seeds"))
    elif len(ours) > 1:
        candidates.append(_tested(found.mean, stats.ttest_1samp(ours, theirs[0]), "seeds"))
    elif len(theirs) > 1:
        candidates.append(_tested(found.mean, stats.ttest_1samp(theirs, ours[0]), "seeds"))
    return max(candidates, key=lambda each: each.interval)._replace(p=max(each.p for each in candidates))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the probability of even one false positive among all stays below the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, worst = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = worst
    return corrected


class Pair(NamedTuple):
    """A run and its baseline, on a phase."""

    run: MeasuredRun
    baseline: MeasuredRun
    phase: str = "test"


Differences = dict[Pair, Difference]


def compare(pairs: Iterable[Pair]) -> Differences:
    """Differences of macro-AP, with p-values corrected for their number; pairs on different episodes are left out."""
    found: Differences = {}
    for pair in pairs:
        if pair.phase in pair.run.phases and pair.phase in pair.baseline.phases:
            apart = widest_difference(pair.run, pair.baseline, pair.phase)
            if apart is not None:
                found[pair] = apart
    corrected = holm([each.p for each in found.values()])
    return {pair: each._replace(p=p) for (pair, each), p in zip(found.items(), corrected, strict=True)}


class SystemComparison(NamedTuple):
    """All comparisons of a data set's systems, corrected for their number."""

    systems: Systems
    baselines: Sequence[MeasuredRun]
    differences: Differences

    def as_json(self) -> dict[str, Any]:
        return {
            f"{run.reference} less {baseline.reference} on {run.shared.data} {phase}": difference._asdict()
            for (run, baseline, phase), difference in self.differences.items()
        }


def compare_systems(systems: Systems) -> SystemComparison:
    """Every run less the paper's best reading, and less the closed form."""
    reading = best_reading(systems.runs, systems.table)
    baselines = [run for run in (reading, closed_form(systems.runs, reading)) if run is not None]
    pairs = [
        Pair(run, baseline, phase)
        for number, baseline in enumerate(baselines, start=1)
        for run in systems.runs
        for phase in PHASES
        if run not in baselines[:number]
    ]
    return SystemComparison(systems, baselines, compare(pairs))
