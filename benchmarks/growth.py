"""How seconds grow with labels, pictures and shots: the tagger's own work on random places, without the network.

python benchmarks/growth.py        # refitting a bank of 1,000 labels with five examples each, as JSON
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from measuring import Figure
from numpy.typing import NDArray

from fewtag import Tagger
from fewtag.tagger.bank import Annotation, Bank, Definition, Example, Quantised
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
    return {count: partial(scorer.probabilities, places) for count, scorer in scorers.items()}


def scoring_pictures(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """In batches, all probabilities kept; the same pictures over and over, to need little memory."""
    places, scorer = random_places(tagger, BATCH), scorer_of(tagger, random_bank(tagger, 100))

    def score(count: int) -> NDArray[np.float32]:
        parts = [min(BATCH, count - start) for start in range(0, count, BATCH)]
        return np.concatenate([scorer.probabilities(places[:part]) for part in parts])

    return {count: partial(score, count) for count in sizes}


def learning_shots(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """Beside 100 labels of five pictures each."""
    bank = random_bank(tagger, 100, examples=5)
    return {shots: partial(learn, tagger, bank, shots) for shots in sizes}


def learning_beside(tagger: Tagger, sizes: Sequence[int]) -> dict[int, Callable[[], object]]:
    """From one picture, beside labels of one picture each, whose classifiers are known."""
    banks = {count: random_bank(tagger, count, examples=1) for count in sizes}
    for bank in banks.values():
        scorer_of(tagger, bank)
    return {count: partial(learn, tagger, bank, 1) for count, bank in banks.items()}


def refitting(
    tagger: Tagger,
    labels: int = 1_000,
    examples: int = 5,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Milliseconds that a bank's classifiers take: all of them, none that changed, one after a 'yes' or a 'no'.

    The examples differ from each other, as pictures do.
    """
    bank = random_bank(tagger, labels, examples=examples, different=True)
    name = next(iter(bank.definitions))
    ((key, new),) = random_examples(tagger, [name], 1, since=10**9, different=True).items()
    answers = {"yes": new, "no": replace(new, annotation=Annotation(absent=frozenset({name})))}

    def milliseconds(work: Callable[[], object]) -> float:
        since = clock()
        work()
        return 1000 * (clock() - since)

    def taught(example: Example) -> Bank:
        return bank.learn({}, {key: example}, afresh=False)

    every = min(milliseconds(lambda: scorer_of(tagger, Bank(bank.definitions, bank.examples))) for _ in range(rounds))
    scorer_of(tagger, bank)
    found = {"all labels": every, "no label": milliseconds(lambda: scorer_of(tagger, bank))}
    for answer, example in answers.items():
        after = [taught(example) for _ in range(rounds)]
        found[f"learning a {answer}"] = min(milliseconds(lambda: taught(example)) for _ in range(rounds))  # noqa: B023
        found[f"its label after a {answer}"] = min(
            milliseconds(partial(now.classifier, tagger.model, name)) for now in after
        )
        found[f"all labels after a {answer}"] = min(milliseconds(partial(scorer_of, tagger, now)) for now in after)
    return {what: round(value, 3) for what, value in found.items()}


def scorer_of(tagger: Tagger, bank: Bank) -> Scorer:
    return Scorer(bank, tagger.model)


def random_places(tagger: Tagger, pictures: int) -> NDArray[np.float32]:
    shape = pictures, tagger.model.places, tagger.model.space.size
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def random_bank(tagger: Tagger, labels: int, *, examples: int = 0, different: bool = False) -> Bank:
    """Labels with a vector each and so many examples; unless they differ, those share one picture's places."""
    names = [f"label {number:05d}" for number in range(labels)]
    vectors = np.random.default_rng(0).standard_normal((labels, len(tagger.model.own_map.mean)), np.float32)
    guides = tagger.model.word_prototypes(vectors)
    definitions = {
        name: Definition("vector", vector=vector, prototype=guide, explicit=True)
        for name, vector, guide in zip(names, vectors, guides, strict=True)
    }
    return Bank().learn(definitions, random_examples(tagger, names, examples, different=different), afresh=False)


def random_examples(
    tagger: Tagger, names: Sequence[str], each: int, since: int = 0, *, different: bool = False
) -> dict[str, Example]:
    """So many of each label; digests are spread as those of pictures are."""
    random = np.random.default_rng(since)
    pattern = Quantised.of(random_places(tagger, 1)[0])
    found = {}
    for number in range(len(names) * each):
        codes = random.integers(-127, 128, pattern.codes.shape, np.int8) if different else pattern.codes
        key = hashlib.sha256(str(since + number).encode()).hexdigest()
        found[key] = Example(Annotation(frozenset({names[number // each]})), Quantised(codes, pattern.scales))
    return found


def learn(tagger: Tagger, bank: Bank, shots: int) -> Bank:
    """One more label, from so many encoded pictures, ready to be scored."""
    vector, guide = (np.ones(size, np.float32) for size in (len(tagger.model.own_map.mean), tagger.model.space.size))
    new = Definition("vector", vector=vector, prototype=guide / np.linalg.norm(guide))
    learnt = bank.learn({"zebra": new}, random_examples(tagger, ["zebra"], shots, since=10**9), afresh=False)
    learnt.classifier(tagger.model, "zebra")
    return learnt


if __name__ == "__main__":
    clocks = {"seen": time.perf_counter, "of the processor": time.process_time}
    json.dump({name: refitting(Tagger(), clock=clock) for name, clock in clocks.items()}, sys.stdout, indent=2)
