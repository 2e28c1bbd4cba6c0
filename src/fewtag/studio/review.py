"""Review: which pictures to ask about, and what the answers say about a label's precision. Arrays in, values out."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import log_odds, sigmoid
from fewtag.core.posterior import Classifiers
from fewtag.errors import InputError, nearest, plural
from fewtag.studio.values import ORDERS, Answered, Audited, CurvePoint, Histogram, Order
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model

FEW = 10
"""The fewest answers with which a label can count as known well enough."""
NEAR = 1.0
"""Log-odds from the threshold within which a picture counts as unsure."""
STRATA = 4
WRONG_ENOUGH = 0.1
"""The expected share of wrong tags up to which a label is good enough."""
BY_CHANCE = 0.001
"""The probability below which the audited pictures are taken to be no random sample of the tags."""
_POINTS, _BINS = 50, 20
_LOOKED_AT = 60
CROWD = 200
"""The most examples of a label whose influences are computed: one of more changes next to nothing, and takes as long
to leave out as all of them to fit."""
_WIDER, _FIRST = 3, 8
"""A page is chosen from the first 3 pages' worth, at most an eighth of all candidates: small albums have few unsure."""
SINGLY = 8
"""Up to this many answered pictures, including examples, unsure ones are asked about one at a time."""
YES, NO, UNKNOWN = 1, 2, 3
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ground:
    """The review data of a label: a number for each picture of the library."""

    chances: NDArray[np.float32]
    """Calibrated probabilities, by the model alone."""
    verdicts: NDArray[np.int8]
    """A person's latest verdict: 0 for none, else YES, NO or UNKNOWN."""
    audited: NDArray[np.bool_]
    """Whether the verdict was given in an audit."""
    never: NDArray[np.bool_]
    """Pictures that are the same as a refused one."""
    alive: NDArray[np.bool_]
    threshold: float
    logits: NDArray[np.float32]
    """The classifier's log-odds, before calibration."""

    @property
    def over(self) -> NDArray[np.bool_]:
        """Pictures that the model alone would tag."""
        return self.alive & (self.chances >= self.threshold) & ~self.never

    @property
    def tagged(self) -> NDArray[np.bool_]:
        """Pictures that are tagged: a person's verdict takes precedence."""
        return (self.over & (self.verdicts != NO)) | (self.alive & (self.verdicts == YES))

    @property
    def open(self) -> NDArray[np.bool_]:
        """Pictures without an answer."""
        return self.alive & (self.verdicts == 0) & ~self.never

    @property
    def believed(self) -> NDArray[np.float32]:
        """The probability of each picture, with a person's verdict taken as certain."""
        certain = np.where(self.verdicts == YES, 1.0, np.where((self.verdicts == NO) | self.never, 0.0, self.chances))
        return certain.astype(np.float32)

    @property
    def near(self) -> NDArray[np.bool_]:
        """Open pictures that could go either way."""
        return self.open & (self.distance <= NEAR)

    @property
    def distance(self) -> NDArray[np.float32]:
        """Absolute difference in log-odds between a picture and the threshold."""
        bounds = np.clip(np.array([self.threshold]), 1e-6, 1 - 1e-6)
        return np.abs(log_odds(np.clip(self.chances, 1e-6, 1 - 1e-6)) - log_odds(bounds))


def choose_order(order: str, ground: Ground) -> Order:
    """The order that was asked for, or for "auto" the most helpful now: unsure as long as there are such pictures.

    Those teach most, at the beginning and later on; then pages of sure ones are confirmed, and then missed ones are
    looked for.
    """
    if order == "auto":
        if int((ground.verdicts > 0).sum()) < FEW or ground.near.any():
            return "unsure"
        return "sure" if (ground.open & ground.over).any() else "missed"
    for known in ORDERS:
        if order == known:
            return known
    raise InputError(f"there is no order {order!r}; {nearest(order, [*ORDERS, 'auto'])}")


def ask(
    order: Order, ground: Ground, means: NDArray[np.float32], seed: str, digests: Sequence[str]
) -> tuple[Rows, int]:
    """The rows to ask about, in order, and how many of them are worth it."""
    open_rows, chances = np.flatnonzero(ground.open), ground.chances
    if order == "sure":
        rows = np.flatnonzero(ground.open & ground.over)
        return _by(rows, -chances[rows]), len(rows)
    if order == "unsure":
        # with few answers the threshold is a guess, so the classifier's own boundary is used
        keys = np.abs(ground.logits) if int((ground.verdicts > 0).sum()) <= SINGLY else ground.distance
        return _by(open_rows, keys[open_rows]), int(ground.near.sum())
    if order == "missed":
        rows = np.flatnonzero(ground.open & ~ground.over)
        likely = _by(rows, -chances[rows])
        confirmed = np.flatnonzero(ground.verdicts == YES)
        if len(confirmed):
            alike = (means @ means[confirmed[-_LOOKED_AT:]].T).max(axis=1, initial=-1.0)
            likely = _in_turn(likely, _by(rows, -alike[rows]))
        return likely, int((ground.near & ~ground.over).sum())
    rows = np.flatnonzero(ground.over & (ground.verdicts == 0))
    return _stratified(rows, chances, seed, digests), len(rows)


def spread(rows: Rows, means: NDArray[np.float32], size: int) -> Rows:
    """Farthest-first traversal: a page of rows from the first ones, unlike each other, in their order; then the others.

    A page is answered before anything is learnt from it, so the second of two look-alikes would teach little.
    """
    some = means[rows[: max(size, min(_WIDER * size, len(rows) // _FIRST))]]
    alike, chosen = np.full(len(some), -1.0, np.float32), list[int]()
    while len(chosen) < min(size, len(some)):
        chosen.append(int(alike.argmin()))
        alike = np.maximum(alike, some @ some[chosen[-1]])
        alike[chosen] = np.inf
    return np.concatenate([rows[np.sort(chosen)], np.delete(rows, chosen)])


def page_size(answered: int, most: int) -> int:
    """Pages of unsure pictures: single ones first, then as many as were answered before, up to `most`.

    They are chosen by what was learnt before: a larger first page would consist of what a single example is unsure of.
    """
    return 1 if answered <= SINGLY else min(most, answered)


def _by(rows: Rows, keys: NDArray[Any]) -> Rows:
    return rows[np.argsort(keys, kind="stable")]


def _in_turn(one: Rows, other: Rows) -> Rows:
    """Merges two orders of the same rows, taking one from each in turn."""
    both = np.stack([one, other], axis=1).reshape(-1)
    _, first = np.unique(both, return_index=True)
    return both[np.sort(first)]


def _stratified(rows: Rows, chances: NDArray[np.float32], seed: str, digests: Sequence[str]) -> Rows:
    """A stratified random order, from each quarter of the probabilities in turn: every prefix is a fair sample.

    The order is drawn from the pictures' digests, so that the sample is the same however often it is asked for.
    """
    drawn = [hashlib.blake2b(f"{seed} {digests[row]}".encode(), digest_size=8) for row in rows.tolist()]
    lots = np.array([int.from_bytes(lot.digest(), "little") for lot in drawn], np.uint64)
    ranked = _by(rows, -chances[rows])
    place = {row: number for number, row in enumerate(ranked.tolist())}
    strata: list[list[int]] = [[] for _ in range(STRATA)]
    for row in _by(rows, lots).tolist():
        strata[place[row] * STRATA // len(rows)].append(row)
    # when shorter strata are used up, the longer ones go on
    longest = max((len(stratum) for stratum in strata), default=0)
    mixed = [stratum[turn] for turn in range(longest) for stratum in strata if turn < len(stratum)]
    return np.array(mixed, np.int64)


def wilson(right: int, count: int, z: float = 1.96) -> Audited | None:
    """Wilson's 95 % score interval of a share, which stays within 0 and 1 and is valid for small counts."""
    if not count:
        return None
    share, square = right / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return Audited(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)), count)


def audit(ground: Ground) -> Audited | None:
    """Precision of the model's tags by the answers of audits only, since those are of a random sample.

    None if these cannot be a sample of today's tags: too large a share of the tags, for chance, lies below all that
    were asked about. That happens if the threshold was lowered since.
    """
    asked = _asked_about(ground)
    right, wrong = (int((asked & (ground.verdicts == verdict)).sum()) for verdict in (YES, NO))
    if right + wrong:
        below = (ground.chances[ground.over] < ground.chances[asked].min()).mean()
        if (1 - below) ** (right + wrong) < BY_CHANCE:
            return None
    return wilson(right, right + wrong)


def _asked_about(ground: Ground) -> NDArray[np.bool_]:
    sure = (ground.verdicts == YES) | (ground.verdicts == NO)
    return ground.audited & ground.alive & sure & (ground.chances >= ground.threshold)


def expected_precision(ground: Ground) -> float | None:
    """The mean probability of tagged pictures, to four digits: further ones would depend on the order of the rows."""
    tagged = ground.tagged
    return round(float(ground.believed[tagged].mean(dtype=np.float64)), 4) if tagged.any() else None


def curve(ground: Ground) -> tuple[CurvePoint, ...]:
    """What thresholds from 0.02 to 0.98, and the present one, would tag, with their expected precision and recall."""
    believed, certain = ground.believed, ground.alive & (ground.verdicts == YES)
    free = ground.alive & ~certain & (ground.verdicts != NO) & ~ground.never
    order = np.argsort(-ground.chances[free], kind="stable")
    ranked, sums = (
        ground.chances[free][order],
        np.concatenate([[0.0], np.cumsum(believed[free][order], dtype=np.float64)]),
    )
    total, sure = float(believed[ground.alive].sum()), int(certain.sum())
    points = []
    for threshold in sorted({*np.linspace(0.02, 0.98, _POINTS - 1).round(4).tolist(), round(ground.threshold, 6)}):
        count = int(np.searchsorted(-ranked, -threshold, side="right"))
        tags, right = count + sure, float(sums[count]) + sure
        points.append(CurvePoint(threshold, tags, right / tags if tags else None, right / total if total else None))
    return tuple(points)


def histogram(ground: Ground) -> Histogram:
    edges = np.linspace(0, 1, _BINS + 1)
    model, yes, no = (
        tuple(np.histogram(ground.chances[ground.alive & (ground.verdicts == verdict)], edges)[0].tolist())
        for verdict in (0, YES, NO)
    )
    return Histogram(tuple(edges.round(4).tolist()), model, yes, no)


def answered(ground: Ground) -> Answered:
    return Answered(*(int((ground.verdicts == verdict).sum()) for verdict in (YES, NO, UNKNOWN)))


def enough(ground: Ground, name: str) -> str:
    """One sentence on whether to go on."""
    given = answered(ground)
    count = given.yes + given.no
    rest = ground.open & ground.over
    above, wrong = int(rest.sum()), float((1 - ground.chances[rest]).sum())
    missed = float(ground.chances[ground.open & ~ground.over].sum())
    tags = int(ground.tagged.sum())
    if count < FEW:
        return f"Not yet: {plural(FEW - count, 'more answer')} will tell how well {name!r} is known; begin with Unsure."
    if not above:
        return f"Done: every picture above the threshold is answered, about {missed:.0f} below it may show {name!r}."
    if (sample := audit(ground)) is not None:
        expected = float(ground.chances[_asked_about(ground)].mean())  # of the same pictures, by the model alone
        if not sample.low <= expected <= sample.high:
            return (
                f"Look again: {expected:.0%} right was expected, the audit found {sample.precision:.0%} "
                f"({sample.low:.0%}–{sample.high:.0%}); answer some Unsure ones, or move the threshold."
            )
    if tags and wrong > WRONG_ENOUGH * tags:
        return f"Not yet: of {plural(tags, 'tag')} about {wrong:.0f} are wrong; answer Unsure, or raise the threshold."
    return f"Sure enough: {above} more above the threshold, about {wrong:.0f} of them wrong; about {missed:.0f} missed."


def influences(
    bank: Bank, model: Model, label: str, curve: tuple[float, float], stop: Callable[[], bool], most: int = 24
) -> dict[str, float] | None:
    """Leave-one-out influences: by how much the other answers' probability of being right falls without each example.

    By key, for at most `most` examples; negative for examples that the others contradict. None if `stop` tells that
    they are no longer needed: each takes a fit.
    """
    fitted_to = bank.fit_set(label)
    keys = [*fitted_to.yes[:_LOOKED_AT], *(*fitted_to.no, *fitted_to.complete)[:_LOOKED_AT]]
    if not 2 <= sum(map(len, fitted_to)) <= CROWD or not fitted_to.yes:
        return {}
    places = np.stack([bank.examples[key].places for key in keys])
    shown = np.arange(len(keys)) < len(fitted_to.yes[:_LOOKED_AT])
    slope, offset = curve

    def right(which: Bank) -> NDArray[np.float32]:
        logits = Classifiers.of([which.classifier(model, label)]).logits(places, model.strengths)[:, 0]
        return np.where(shown, *(sigmoid(sign * (slope * logits + offset)) for sign in (1, -1)))

    now = right(bank)
    found: dict[str, float] = {}
    for number, key in enumerate(keys):
        if stop():
            return None
        if len(found) == most:
            break
        if shown[number] and len(fitted_to.yes) == 1 and bank.definitions[label].vector is None:
            continue  # nothing would be left of the label
        others = np.arange(len(keys)) != number
        found[key] = float((now - right(bank.forget(label, [key])))[others].mean())
    return found
