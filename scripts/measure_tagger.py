"""Measures a `coco52` model on labels it never saw: accuracy, honesty of its probabilities, its thresholds, its words.

    python scripts/measure_tagger.py --data DIR --model coco52 --out results/tagger-coco52.json

Every episode is a bank of its own, learnt and scored as the product learns and scores, from places that the model's own
graph encodes. Supports are complete (what a picture does not name is absent), unless a row says "one label a picture".
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packs import Packs, packs_parser

from fewtag.core.calibration import best_threshold, estimate_priors, log_odds, match_priors, sigmoid, steepness
from fewtag.core.metrics import average_precision, precision_recall_f1
from fewtag.core.posterior import Vectors
from fewtag.files import write_atomically
from fewtag.research.bench.results import commit, episode_metrics, mean_and_interval
from fewtag.research.data.splits import overlapping_classes
from fewtag.tagger.bank import Annotation, Bank, Definition, Example
from fewtag.tagger.model import Model, load_model, solve_words
from fewtag.tagger.stream import Scorer
from fewtag.tagging.run import PRIOR_SAMPLE
from fewtag.words.pieces import names_a_thing

Shown = NDArray[np.bool_]
PRIVATE = (
    *("rex", "max", "bella", "luna", "lucy", "oma", "anna", "peter", "alpha", "thursday", "maison", "schnee", "kodak"),
    *("invoice", "beautiful", "fluffy", "home", "misc", "holiday", "archive", "best", "urlaub", "project", "family"),
)
"""Names that say something else than what the pictures show."""
RARE = 0.01
FROM = 0.2
"""Pairs said to be less likely are left out of the reliability: nearly all are, and rightly so."""
BINS = 10
GROWN = 20, 50, 100
"""Examples a label of banks that have grown."""


class Bench:
    """A phase of the packs as a model sees it."""

    def __init__(self, packs: Packs, model: Model, phase: str) -> None:
        self.packs, self.model, self.images = packs, model, packs.images(phase)
        self.phase = phase
        self.called: list[str] = []
        """What the labels are called, if not by their own names."""
        self.places = packs.encoded(phase, model)

    @cached_property
    def examples(self) -> list[Example]:
        return [Example.of(Annotation(), each) for each in self.places]

    def words(self, *, clean: bool) -> Vectors:
        """What the labels' names suggest; clean: without classes that overlap a validation or novel label."""
        header, model = self.model.header, self.model
        vectors = model.words.vectors(self.packs.names(self.images.labels))
        if not clean:
            return model.word_prototypes(vectors)
        gone = overlapping_classes("imagenet-1k", "coco")
        kept = [number for number in range(len(header["class_names"])) if number not in gone]
        labels = header["base_words"]
        rows = [*range(len(labels)), *(len(labels) + number for number in kept)]
        names = [header["class_names"][number] for number in kept]
        word_map = solve_words(model.words, labels, names, model.base_prototypes[rows], model.strengths)
        return word_map.prototypes(vectors)

    def bank(self, guides: Vectors | None, support: Sequence[int], named: Sequence[int] = ()) -> Bank:
        """What a person has who taught these pictures, all of their labels or the one that each is named by."""
        labels = self.images.labels
        things = [names_a_thing(name) for name in self.called or self.packs.names(labels)]
        definitions = {
            label: Definition("none", explicit=True)
            if guides is None
            else Definition("name", (label,), guides[column], guides[column], explicit=True, thing=things[column])
            for column, label in enumerate(labels)
        }
        examples = {}
        for number, row in enumerate(support):
            columns = [named[number]] if named else np.flatnonzero(self.images.targets[row])
            said = Annotation(frozenset(labels[column] for column in columns), complete=not named)
            key = hashlib.sha256(f"{self.phase} {row}".encode()).hexdigest()
            examples[key] = replace(self.examples[row], annotation=said)
        return Bank().learn(definitions, examples, afresh=False)

    def scored(self, bank: Bank, rows: Sequence[int]) -> tuple[Scorer, NDArray[np.float32], Shown]:
        """A scorer, calibrated log-odds and truth, a column for each of its labels."""
        scorer = Scorer(bank, self.model)
        columns = [self.images.labels.index(label) for label in scorer.labels]
        places = self.places[list(rows)]
        return scorer, scorer.logits(places), self.images.targets[list(rows)][:, columns]

    def episodes(
        self, shots: int, count: int, guides: Vectors | None, *, single: bool = False
    ) -> Iterator[tuple[Scorer, NDArray[np.float32], Shown]]:
        for draw in self.packs.draws(self.phase, max(shots, 1), count):
            support = list(draw.support) if shots else []
            named = [number // shots for number in range(len(support))] if single else []
            yield self.scored(self.bank(guides, support, named), draw.query)


def accuracy(episodes: Iterator[tuple[Scorer, NDArray[np.float32], Shown]]) -> dict[str, float]:
    """Macro- and micro-AP of episodes with intervals; reliability and thresholds over the pairs of all of them."""
    metrics, said, true, given = [], [], [], []
    for scorer, logits, shown in episodes:
        chances = sigmoid(logits.astype(np.float64))
        metrics.append(episode_metrics(chances, shown))
        said.append(chances.ravel())
        true.append(shown.ravel())
        given.append((chances >= scorer.thresholds).ravel())
    found: dict[str, float] = {}
    for name in ("macro_ap", "micro_ap"):
        mean, interval = mean_and_interval([row[name] for row in metrics])
        found |= {name: round(100 * mean, 2), f"{name}_interval": round(100 * interval, 2)}
    chances, shown = np.concatenate(said), np.concatenate(true)
    return found | reliability(chances, shown) | thresholds(chances, shown, np.concatenate(given))


def reliability(chances: NDArray[np.float64], shown: Shown) -> dict[str, Any]:
    """How far what is said is from what is, over pairs said to be likely enough, with the table."""
    bins = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    table, wrong, total = [], 0.0, 0.0
    for number in range(int(FROM * BINS), BINS):
        inside = bins == number
        if count := int(inside.sum()):
            said, true = float(chances[inside].mean()), float(shown[inside].mean())
            wrong, total = wrong + count * abs(said - true), total + count
            table.append([round(said, 3), round(true, 3), count])
    return {"reliability_error": round(wrong / max(total, 1e-12), 4), "reliability": table}


def thresholds(chances: NDArray[np.float64], shown: Shown, given: Shown) -> dict[str, Any]:
    best = best_threshold(chances.astype(np.float32), shown)
    own, other = precision_recall_f1(given, shown), precision_recall_f1(chances >= best, shown)
    return {
        "tags": int(given.sum()),
        **{name: round(value, 4) for name, value in zip(("precision", "recall", "f1"), own, strict=True)},
        **{f"best_{name}": round(value, 4) for name, value in zip(("precision", "recall", "f1"), other, strict=True)},
    }


def rare(bench: Bench, guides: Vectors, shots: int, pools: dict[str, Any], *, estimate: bool) -> dict[str, Any]:
    """Each label among pictures of which one in a hundred shows it: with that prior, or estimated, as `tag` does it."""
    images = bench.images
    place = {image: row for row, image in enumerate(images.ids)}
    said, true, given = [], [], []
    for pool in pools[bench.phase]:
        support = [place[image] for images_ in pool["support"].values() for image in images_[:shots]]
        bank = bench.bank(guides, support)
        rows = [place[image] for image in pool["pictures"]]
        scorer, logits, shown = bench.scored(bank, rows)
        mine = scorer.labels.index(pool["label"])
        sample = np.random.default_rng(0).permutation(len(rows))[:PRIOR_SAMPLE]
        evidence = logits - log_odds(scorer.priors)
        rare_share = np.full(len(scorer.labels), RARE, np.float32)
        shares = (
            estimate_priors(evidence[sample])
            if estimate
            else match_priors(evidence[sample], scorer.steeper, rare_share)
        )
        moved = steepness(scorer.steeper, shares) * evidence + log_odds(shares)
        chances = sigmoid(moved[:, mine].astype(np.float64))
        own = bench.model.calibration.threshold(scorer.counts, shares)[mine]
        said.append(chances)
        true.append(shown[:, mine])
        given.append(chances >= own)
    chances, shown = np.concatenate(said), np.concatenate(true)
    return reliability(chances, shown) | thresholds(chances, shown, np.concatenate(given))


def draw_pools(bench: Bench, seed: int = 0) -> list[dict[str, Any]]:
    """For each label: supports of five pictures of every label, and pictures of which one in a hundred shows it."""
    random = np.random.default_rng(seed)
    images, pools = bench.images, []
    ids = np.array(images.ids)
    for column, label in enumerate(images.labels):
        support: dict[str, list[str]] = {}
        taken: set[int] = set()
        for other, name in enumerate(images.labels):
            free = [row for row in np.flatnonzero(images.targets[:, other]) if row not in taken]
            chosen = random.choice(free, 5, replace=False)
            taken |= set(chosen.tolist())
            support[name] = ids[chosen].tolist()
        shows = np.array([row for row in np.flatnonzero(images.targets[:, column]) if row not in taken])
        not_shown = np.array([row for row in np.flatnonzero(~images.targets[:, column]) if row not in taken])
        positives = min(len(shows), len(not_shown) // 99, 20)
        rows = np.concatenate(
            [random.choice(shows, positives, replace=False), random.choice(not_shown, 99 * positives, replace=False)]
        )
        pools.append({"label": label, "support": support, "pictures": ids[np.sort(rows)].tolist()})
    return pools


def habits(bench: Bench, guides: Vectors, repeats: int = 10) -> dict[str, float]:
    """How often one more example lowers a label's AP by more than five points; how often a taught picture is tagged."""
    images = bench.images
    lowered, cases, back, taught = 0, 0, 0, 0
    for repeat in range(repeats):
        random = np.random.default_rng(repeat)
        half = random.permutation(len(images.ids))
        asked, held = half[: len(half) // 2], half[len(half) // 2 :]
        chosen = [
            random.permutation([row for row in asked if images.targets[row, column]])[:5]
            for column in range(len(images.labels))
        ]
        before: NDArray[np.float64] | None = None
        for shots in (1, 2, 3, 4, 5):
            rows = sorted({int(row) for each in chosen for row in each[:shots]})
            bank = bench.bank(guides, rows)
            scorer, logits, shown = bench.scored(bank, [*held, *rows])
            ranked = list(zip(logits[: len(held)].T, shown[: len(held)].T, strict=True))
            precision = np.array([average_precision(*each) for each in ranked])
            if before is not None:
                lowered, cases = lowered + int((precision < before - 0.05).sum()), cases + len(precision)
            before = precision
            mine = sigmoid(logits[len(held) :]) >= scorer.thresholds
            true = shown[len(held) :]
            back, taught = back + int((mine & true).sum()), taught + int(true.sum())
    return {"lowered_by_5": round(lowered / cases, 4), "taught_tagged_again": round(back / taught, 4)}


def grown(bench: Bench, guides: Vectors, shots: int, *, by_name: bool = False, repeats: int = 3) -> dict[str, Any]:
    """A bank that has grown to `shots` complete examples of each label, at the shares that the pictures have.

    Half of the pictures teach, the others measure. With `by_name` each label in turn is known by its name alone, beside
    so many examples of the others.
    """
    images, said, true, given = bench.images, [], [], []
    for repeat in range(repeats):
        half = np.random.default_rng(repeat).permutation(len(images.ids))
        asked, held = half[: len(half) // 2], half[len(half) // 2 :]
        priors = dict(zip(images.labels, images.targets[held].mean(axis=0).tolist(), strict=True))
        for left_out in range(len(images.labels)) if by_name else [None]:
            mine = asked if left_out is None else asked[~images.targets[asked, left_out]]
            chosen = [mine[images.targets[mine, column]][:shots] for column in range(len(images.labels))]
            bank = bench.bank(guides, np.unique(np.concatenate(chosen)).tolist())
            scorer = Scorer(bank, bench.model, priors=priors)
            some = [
                column for column, label in enumerate(scorer.labels) if left_out in {None, images.labels.index(label)}
            ]
            chances = scorer.probabilities(bench.places[held])[:, some].astype(np.float64)
            said.append(chances.ravel())
            given.append((chances >= scorer.thresholds[some]).ravel())
            true.append(images.targets[held][:, [images.labels.index(scorer.labels[each]) for each in some]].ravel())
    chances, shown = np.concatenate(said), np.concatenate(true)
    return reliability(chances, shown) | thresholds(chances, shown, np.concatenate(given))


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--model", default="coco52", help="a shipped model's name, or a path")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--phases", nargs="+", default=["test", "mixed"])
    parser.add_argument("--pools", type=Path, default=Path("results/pools-1-percent.json"))
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these rows; others stay as they are in the file")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    packs = Packs(arguments.data, arguments.cache)
    command = f"python scripts/measure_tagger.py --data data --model {arguments.model}"
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found |= {"command": command, "model": model.name, "size": model.size}
    pools = json.loads(arguments.pools.read_text()) if arguments.pools.exists() else {}
    for phase in arguments.phases:
        bench = Bench(packs, model, phase)
        if phase not in pools:
            pools[phase] = draw_pools(bench)
            write_atomically(arguments.pools, json.dumps(pools).encode())
        for key, measure in rows(bench, arguments.episodes, pools).items():
            if arguments.only is None or key in arguments.only:
                found[key] = {"commit": commit(), **measure()}
                print(key, {name: each for name, each in found[key].items() if name != "reliability"}, flush=True)
                write_atomically(arguments.out, json.dumps(found, indent=1).encode())


def rows(bench: Bench, number: int, pools: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured on a phase, by name."""
    model, phase = bench.model, bench.phase
    names, clean = bench.words(clean=False), bench.words(clean=True)
    private = [name for name in PRIVATE if name in model.words][: len(bench.images.labels)]
    wrong = model.word_prototypes(model.words.vectors(private))

    def taught(
        shots: int, guides: Vectors | None, *, single: bool = False, called: Sequence[str] = ()
    ) -> Callable[[], dict[str, Any]]:
        def measure() -> dict[str, Any]:
            bench.called = list(called)
            return accuracy(bench.episodes(shots, number, guides, single=single))

        return measure

    def scarce(shots: int, *, estimate: bool) -> Callable[[], dict[str, Any]]:
        def measure() -> dict[str, Any]:
            bench.called = []
            return rare(bench, names, shots, pools, estimate=estimate)

        return measure

    found = {
        f"{phase}, name alone": taught(0, names),
        f"{phase}, name alone, clean": taught(0, clean),
        f"{phase}, 1 examples": taught(1, names),
        f"{phase}, 5 examples": taught(5, names),
        f"{phase}, 1 examples, clean": taught(1, clean),
        f"{phase}, 1 examples, no words": taught(1, None),
        f"{phase}, 1 examples, private names": taught(1, wrong, called=private),
    }
    for shots in (1, 5):
        found |= {
            f"{phase}, {shots} examples, one label a picture": taught(shots, names, single=True),
            f"{phase}, {shots} examples, 1 %, prior given": scarce(shots, estimate=False),
            f"{phase}, {shots} examples, 1 %, prior estimated": scarce(shots, estimate=True),
        }
    if phase == "mixed":
        found |= {f"{phase}, 20 examples": taught(20, names), f"{phase}, habits": lambda: habits(bench, names)}
        for shots in GROWN:
            found[f"{phase}, a bank of {shots} examples a label"] = partial(grown, bench, names, shots)
        found[f"{phase}, a name beside {GROWN[-1]} examples a label"] = partial(
            grown, bench, names, GROWN[-1], by_name=True
        )
    return found


if __name__ == "__main__":
    main()
