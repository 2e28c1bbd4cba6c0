"""Measures a bank of COCO's 80 labels with one example each, at its own thresholds, as `tag` would use it.

    python scripts/measure_many.py --data DIR --model coco52 --out results/many-coco52.json

Pictures are those of mixed, val and crowded, at the frequencies that these have; a bank's examples are drawn from
them and left out. 52 of the labels were seen when the network was tuned, so the 28 others have figures of their own.
Shares are the bank's default, or estimated from 256 of the pictures, as `tag` does it unless told otherwise.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure_tagger import thresholds
from numpy.typing import NDArray
from packs import Packs, packs_parser

from fewtag.core.calibration import estimate_priors, log_odds, sigmoid, steepness
from fewtag.files import write_atomically
from fewtag.research.bench.results import commit
from fewtag.tagger.bank import Annotation, Bank, Definition, Example
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import Scorer
from fewtag.words.pieces import names_a_thing

PHASES = ("mixed", "val", "crowded")
SAMPLE = 256


def draw(targets: NDArray[np.bool_], random: np.random.Generator) -> list[int]:
    """A picture of each label, rare labels first, none twice."""
    taken: list[int] = []
    for column in np.argsort(targets.sum(axis=0), kind="stable"):
        free = np.setdiff1d(np.flatnonzero(targets[:, column]), taken)
        taken.append(int(random.choice(free)))
    return taken


def bank_of(
    model: Model, names: Sequence[str], labels: Sequence[str], shown: dict[int, list[str]], places: Any
) -> Bank:
    """What a person has who taught these pictures, with all that they show."""
    guides = model.word_prototypes(model.words.vectors(names))
    definitions = {
        label: Definition("name", (label,), guide, guide, explicit=True, thing=names_a_thing(name))
        for label, name, guide in zip(labels, names, guides, strict=True)
    }
    examples = {
        hashlib.sha256(f"many {row}".encode()).hexdigest(): Example.of(
            Annotation(frozenset(mine), complete=True), places[row]
        )
        for row, mine in shown.items()
    }
    return Bank().learn(definitions, examples, afresh=False)


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--model", default="coco52", help="a shipped model's name, or a path")
    parser.add_argument("--banks", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model, packs = load_model(arguments.model), Packs(arguments.data, arguments.cache)
    every = packs.experiment.pictures()
    targets = np.concatenate([every.targets[every.rows(packs.images(phase).ids)] for phase in PHASES])
    places = np.concatenate([packs.encoded(phase, model) for phase in PHASES])
    labels, names = every.labels, packs.names(every.labels)
    new = np.array([label not in packs.images("train").labels for label in labels])
    told: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for seed in range(arguments.banks):
        random = np.random.default_rng(seed)
        support = draw(targets, random)
        shown = {row: [labels[column] for column in np.flatnonzero(targets[row])] for row in support}
        bank = bank_of(model, names, labels, shown, places)
        rest = np.setdiff1d(np.arange(len(targets)), support)
        plain = Scorer(bank, model)
        columns = [labels.index(label) for label in plain.labels]
        truth, logits = targets[rest][:, columns], plain.logits(places[rest])
        sample = random.permutation(len(rest))[:SAMPLE]
        shares = estimate_priors(logits[sample] - log_odds(plain.priors))
        estimated = Scorer(bank, model, priors=dict(zip(plain.labels, shares.tolist(), strict=True)))
        for how, scorer in {"default": plain, "estimated": estimated}.items():
            evidence = logits - log_odds(plain.priors)
            moved = steepness(plain.steeper, scorer.priors) * evidence + log_odds(scorer.priors)
            chances = sigmoid(moved.astype(np.float64))
            for which, mine in {"80 labels": np.ones(len(labels), np.bool_), "28 never seen": new}.items():
                some, given = mine[columns], chances >= scorer.thresholds
                told.setdefault((which, how), []).append((chances[:, some], truth[:, some], given[:, some]))
    found: dict[str, Any] = {"commit": commit(), "model": model.name, "banks": arguments.banks, "pictures": len(rest)}
    for (which, how), rows in told.items():
        parts = (np.concatenate([each.ravel() for each in side]) for side in zip(*rows, strict=True))
        found[f"{which}, prior {how}"] = thresholds(*parts)
        print(which, how, found[f"{which}, prior {how}"], flush=True)
    write_atomically(arguments.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
