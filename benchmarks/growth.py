"""How seconds grow with labels, pictures and shots: the tagger's own work on random places, without the network."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from measuring import Figure
from numpy.typing import NDArray

from fewtag import Tagger
from fewtag.tagger.bank import Bank, Definition, Example
from fewtag.tagger.stream import BATCH, Scorer

LABELS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PICTURES = (100, 300, 1_000, 3_000, 10_000)
SHOTS = (1, 2, 5, 10, 20, 50)


def growth(rounds: int = 3, *, quick: bool = False) -> Iterator[Figure]:
    """The exponent of each, fitted over the upper half of the sizes, and the seconds at both ends."""
    tagger = Tagger()
    for what, contenders in (
        (f"scoring {BATCH} pictures, by labels", scoring_labels(tagger, LABELS[:3] if quick else LABELS)),
        ("scoring for 100 labels, by pictures", scoring_pictures(tagger, PICTURES[:3] if quick else PICTURES)),
        ("learning a label, by pictures of it", learning_shots(tagger, SHOTS)),
        ("learning one label more, by labels known", learning_beside(tagger, LABELS[:3] if quick else LABELS)),
    ):
        points = least(contenders, rounds)
        ends = {f"milliseconds at {size:,}": round(1000 * seconds, 3) for size, seconds in (points[0], points[-1])}
        yield Figure(f"{what}: exponent", exponent(points), facts=ends)


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Of size, by least squares of the logarithms over the upper half, where what is fixed no longer hides it."""
    upper = points[len(points) // 2 :]
    sizes, seconds = (np.log([point[side] for point in upper]) for side in (0, 1))
    return float(np.polyfit(sizes, seconds, 1)[0])


def least(contenders: Mapping[int, Callable[[], object]], rounds: int) -> list[tuple[int, float]]:
    """The least seconds of each, taken in turns, after a first turn that does not count."""
    found = dict.fromkeys(contenders, math.inf)
    for turn in range(rounds + 1):
        for size, work in contenders.items():
            since = time.perf_counter()
            work()
            if turn:
                found[size] = min(found[size], time.perf_counter() - since)
    return list(found.items())


def scoring_labels(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """One batch; a label of a bank without examples is scored like any other."""
    places = random_places(tagger, BATCH)
    scorers = {count: scorer_of(tagger, random_bank(tagger, count)) for count in sizes}
    return {count: lambda scorer=scorer: scorer.probabilities(places) for count, scorer in scorers.items()}


def scoring_pictures(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """In batches, all probabilities kept; the same pictures over and over, to need little memory."""
    places, scorer = random_places(tagger, BATCH), scorer_of(tagger, random_bank(tagger, 100))

    def score(count: int) -> NDArray[np.float32]:
        parts = [min(BATCH, count - start) for start in range(0, count, BATCH)]
        return np.concatenate([scorer.probabilities(places[:part]) for part in parts])

    return {count: lambda count=count: score(count) for count in sizes}


def learning_shots(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """Beside 100 labels of five pictures each."""
    bank = random_bank(tagger, 100, examples=5)
    return {shots: lambda shots=shots: learn(tagger, bank, shots) for shots in sizes}


def learning_beside(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """From one picture, beside labels of one picture each: all but the new one are kept as they are."""
    banks = {count: random_bank(tagger, count, examples=1) for count in sizes}
    return {count: lambda bank=bank: learn(tagger, bank, 1) for count, bank in banks.items()}


def scorer_of(tagger: Tagger, bank: Bank) -> Scorer:
    return Scorer(bank, tagger.model.calibration, tagger.model.strengths)


def random_places(tagger: Tagger, pictures: int) -> NDArray[np.float32]:
    shape = pictures, tagger.model.places, tagger.model.space.size
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def random_bank(tagger: Tagger, labels: int, *, examples: int = 0) -> Bank:
    """Labels with a vector each and so many examples, which share one picture's places to need little memory."""
    names = [f"label {number:05d}" for number in range(labels)]
    vectors = np.random.default_rng(0).standard_normal((labels, len(tagger.model.own_map.mean)), np.float32)
    definitions = {
        name: Definition("vector", vector=vector, explicit=True) for name, vector in zip(names, vectors, strict=True)
    }
    return Bank().learn(tagger.model, definitions, random_examples(tagger, names, examples), afresh=False)


def random_examples(tagger: Tagger, names: Sequence[str], each: int, since: int = 0) -> dict[str, Example]:
    pattern = Example.of(frozenset(), random_places(tagger, 1)[0])
    return {
        f"{since + number:064x}": Example(frozenset({names[number // each]}), pattern.codes, pattern.scales)
        for number in range(len(names) * each)
    }


def learn(tagger: Tagger, bank: Bank, shots: int) -> Bank:
    """One more label, from so many encoded pictures."""
    new = Definition("vector", vector=np.ones(len(tagger.model.own_map.mean), np.float32))
    more = random_examples(tagger, ["zebra"], shots, since=10**9)
    return bank.learn(tagger.model, {"zebra": new}, more, afresh=False)
