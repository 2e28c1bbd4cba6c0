"""Evaluation: how good a bank is on one's own labelled pictures."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import best_threshold, calibration_error, reliability
from fewtag.core.metrics import average_precision, precision_recall_f1
from fewtag.core.posterior import Places, unit
from fewtag.errors import InputError, nearest, plural
from fewtag.pictures.prefetch import Begin, unwatched
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model
from fewtag.tagger.stream import SAME, Scorer, cached_places, items_of, tag_stream
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.examples import Shown
from fewtag.tagging.run import Options, priors_in
from fewtag.tagging.sources import Entry, Source

BINS = 5
FEWEST = 5
"""The fewest pictures that must show a label for its best threshold to be more than chance."""


@dataclass(frozen=True)
class LabelCheck:
    """Precision, recall, F1 and AP of one label; a number that is undefined, for want of pictures, is None."""

    pictures: int
    """How many pictures show the label."""
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None
    threshold: float | None = None
    best_threshold: float | None = None
    """The threshold of the best F1; None if too few pictures show the label, or every picture would get it."""


@dataclass(frozen=True)
class Bin:
    """A bin of the reliability diagram: mean probability, share of true picture-label pairs, and their number."""

    said: float
    true: float
    pairs: int


@dataclass(frozen=True)
class Check:
    """The evaluation of all labels, and of how far the probabilities can be trusted."""

    pictures: int
    skipped: list[str]
    labels: dict[str, LabelCheck]
    micro: LabelCheck
    macro_average_precision: float | None
    calibration_error: float
    reliability: list[Bin]
    unknown: list[str] = field(default_factory=list)
    """Labels of the pictures that the bank does not know; they are not counted."""
    prior: str = "bank"
    """Source of the priors of labels for which the bank has none: "bank", "estimate", or a number."""
    shares: dict[str, float] = field(default_factory=dict)
    """The share of pictures that are assumed to show each label."""
    taught: int = 0
    """The number of pictures that are, or nearly are, examples of the bank."""

    @property
    def best_thresholds(self) -> dict[str, float | None]:
        return {label: each.best_threshold for label, each in self.labels.items() if each.best_threshold is not None}

    @property
    def priors(self) -> dict[str, float | None]:
        """The share of pictures that show each label, smoothed so that it is never 0 or 1."""
        return {label: (each.pictures + 0.5) / (self.pictures + 1) for label, each in self.labels.items()}

    def table(self) -> dict[str, dict[str, Any]]:
        every = {**self.labels, " all together": self.micro}  # no label begins with a blank
        columns = {name: name for name in ("pictures", "precision", "recall", "f1")}
        columns |= {"ap": "average_precision", "from": "threshold", "best from": "best_threshold"}  # to fit a terminal
        return {label: {name: getattr(each, of) for name, of in columns.items()} for label, each in every.items()}

    def sentences(self) -> list[str]:
        said = ", ".join(f"{each.said:.2f} → {each.true:.2f} ({each.pairs})" for each in self.reliability)
        near = {name: nearest(name, self.labels) for name in self.unknown}
        unknown = [f"{name!r} ({hint})" if hint.endswith("?") else repr(name) for name, hint in near.items()]
        unsettled = [repr(name) for name, each in self.labels.items() if each.pictures and each.best_threshold is None]
        return [
            f"said → true (pairs): {said}",
            f"expected calibration error {self.calibration_error:.3f}",
            _PRIORS.get(self.prior, f"priors: {self.prior} (--prior), where the bank has none"),
            *([f"no best threshold for {', '.join(unsettled)}: {_UNSETTLED}"] if unsettled else []),
            *([f"{plural(self.taught, 'picture')} of these {_FLATTERS}"] if self.taught else []),
            *([f"the bank does not know {', '.join(unknown)}: not counted"] if unknown else []),
            *(f"skipped: {reason}" for reason in self.skipped),
        ]


_UNSETTLED = f"fewer than {FEWEST} pictures show it, or every picture would get it; the bank's own threshold stays"
_FLATTERS = "the bank was taught with, which flatters it; take others"
_PRIORS = {
    "bank": "priors: the bank's own",
    "estimate": "priors: estimated by a sample of these pictures, as `fewtag tag` does (--prior bank: the bank's own)",
}


def priors_of(shown: Sequence[Shown], tagger: Tagger, options: Options, begin: Begin = unwatched) -> dict[str, float]:
    """The priors that `tag` would assume for these pictures."""
    pictures = [each.picture for each in shown]
    entries = [
        Entry(str(each), str(each.path.absolute()), None, each.offset, each.size, "", each.box) for each in pictures
    ]
    return priors_in(Source(entries), tagger, options, begin)


def check_bank(
    tagger: Tagger,
    shown: Sequence[Shown],
    *,
    prior: float | str = "bank",
    priors: Mapping[str, float] | None = None,
    cache: Path | None = None,
    skip_bad: bool = False,
    progress: Callable[[int], None] = lambda _count: None,
) -> Check:
    """Scores every label of the bank on every picture; `priors`, made by `prior`, are for labels without one."""
    scorer = _MeasuringScorer(tagger.bank_, tagger.model, priors=priors)
    labels = scorer.labels
    unknown = sorted({name for each in shown for name in each.labels} - set(labels))
    if unknown and not set(labels) & {name for each in shown for name in each.labels}:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InputError(f"none of the pictures shows a label of the bank: they show {', '.join(unknown[:5])}{more}")
    rows, targets, skipped = [], [], []
    with cached_places(tagger.model, cache) as cached:
        batches = tag_stream(tagger.model, scorer, items_of([each.picture for each in shown]), cache=cached)
        for row, each in zip(itertools.chain.from_iterable(batches), shown, strict=True):
            progress(1)
            if row.failure:
                if not skip_bad:
                    raise InputError(f"{row.failure} (--skip-bad leaves out what cannot be read)")
                skipped.append(row.failure)
                continue
            rows.append([row.scores[label] for label in labels])
            targets.append([label in each.labels for label in labels])
    if not rows:
        raise InputError(f"none of the {len(shown)} pictures can be read; the first: {skipped[0]}")
    thresholds = dict(zip(labels, scorer.thresholds.tolist(), strict=True))
    taken = {label: round(prior, 6) for label, prior in zip(labels, scorer.priors.tolist(), strict=True)}
    found = _check(np.array(rows, np.float32), np.array(targets, bool), thresholds, skipped)
    whence = str(prior) if priors else "bank"
    return replace(found, unknown=unknown, prior=whence, shares=taken, taught=sum(scorer.taught))


class _MeasuringScorer(Scorer):
    """A scorer that rounds nothing, since rare labels' probabilities differ in later digits, and that counts pictures
    that the bank was taught with, whose scores say nothing about other pictures."""

    def __init__(self, bank: Bank, model: Model, priors: Mapping[str, float] | None) -> None:
        super().__init__(bank, model, priors=priors)
        self._examples = np.array([each.features.pooled.mean for each in bank.examples.values()], np.float32)
        self.taught = [0]

    def probabilities(self, places: Places) -> NDArray[np.float32]:
        if len(self._examples):
            # one number per batch, since several threads score
            self.taught.append(int((unit(places.mean(axis=1)) @ self._examples.T > SAME).any(axis=1).sum()))
        return super().probabilities(places)

    def scores(self, probabilities: NDArray[np.float32]) -> list[dict[str, float]]:
        return [dict(zip(self.labels, values, strict=True)) for values in probabilities.tolist()]


def _check(
    probabilities: NDArray[np.float32], targets: NDArray[np.bool_], thresholds: dict[str, float], skipped: list[str]
) -> Check:
    found = {}
    for chances, shown, (label, threshold) in zip(probabilities.T, targets.T, thresholds.items(), strict=True):
        measured = _measured(int(shown.sum()), chances, (chances >= np.float32(threshold)) & (chances > 0), shown)
        best = round(best_threshold(chances, shown), 6) if shown.sum() >= FEWEST else None
        best = None if best is None or (chances >= best).all() else best
        found[label] = replace(measured, threshold=round(threshold, 6), best_threshold=best)
    given = (probabilities >= np.array(list(thresholds.values()), np.float32)) & (probabilities > 0)
    flat, true = probabilities.ravel(), targets.ravel()
    micro = _measured(int(targets.any(axis=1).sum()), flat, given.ravel(), true)
    scored = [each.average_precision for each in found.values() if each.average_precision is not None]
    macro = round(float(np.mean(scored)), 6) if scored else None
    error = round(calibration_error(flat, true), 6)
    bins = [Bin(round(said, 4), round(so, 4), pairs) for said, so, pairs in reliability(flat, true, BINS)]
    return Check(len(targets), skipped, found, micro, macro, error, bins)


def _measured(
    pictures: int, probabilities: NDArray[np.float32], given: NDArray[np.bool_], shown: NDArray[np.bool_]
) -> LabelCheck:
    precision, recall, f1 = map(_number, precision_recall_f1(given, shown))
    return LabelCheck(pictures, precision, recall, f1, _number(average_precision(probabilities, shown)))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
