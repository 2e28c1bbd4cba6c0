"""Measures the shipped `coco52` model on labels it never saw: accuracy, honesty of its probabilities, its thresholds.

    python scripts/measure_tagger.py --data DIR --out results/tagger.json

Every episode is a bank of its own, learnt and scored as the product learns and scores.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from packs import Packs, add_arguments

from fewtag.core.calibration import calibration_error
from fewtag.core.closed_form import Places, Vectors
from fewtag.files import write_atomically
from fewtag.research.bench.metrics import episode_metrics, mean_and_interval
from fewtag.research.bench.results import commit
from fewtag.research.data.images import LabelledImages
from fewtag.tagger.bank import Bank, Definition, Example
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import Scorer

Shown = NDArray[np.bool_]
SETTINGS = {"1 examples": 1, "5 examples": 5, "the name alone": 0}


def episode_bank(model: Model, images: LabelledImages, words: Vectors, places: Places, support: list[int]) -> Bank:
    """What a person would have who taught these pictures."""
    definitions = {
        label: Definition("name", (label,), vector, explicit=True)
        for label, vector in zip(images.labels, words, strict=True)
    }
    examples = {}
    for row in support:
        shown = frozenset(np.array(images.labels)[images.targets[row]].tolist())
        examples[f"{row:06d}"] = Example.of(shown, places[row])
    return Bank().learn(model, definitions, examples, afresh=False)


def measure(packs: Packs, model: Model, phase: str, shots: int, episodes: int) -> dict[str, float]:
    images, places = packs.images(phase), packs.places(phase, model.space)
    words = model.words.vectors(packs.names(images.labels))
    order = [images.labels.index(label) for label in sorted(images.labels)]  # as a bank has them
    metrics, said, true, given = [], [], [], []
    for draw in packs.draws(phase, max(shots, 1), episodes):
        bank = episode_bank(model, images, words, places, list(draw.support) if shots else [])
        scorer = Scorer(bank, model.calibration, model.strengths)
        probabilities, shown = (
            scorer.probabilities(places[list(draw.query)]),
            images.targets[list(draw.query)][:, order],
        )
        metrics.append(episode_metrics(probabilities.astype(np.float64), shown))
        said.append(probabilities)
        true.append(shown)
        given.append(probabilities >= scorer.thresholds)
    return summarise(metrics, np.concatenate(said), np.concatenate(true), np.concatenate(given))


def summarise(
    metrics: list[dict[str, float]], said: NDArray[np.float32], shown: Shown, given: Shown
) -> dict[str, float]:
    """AP is of episodes; calibration and F1 are over the pairs of all of them."""
    found = {"calibration_error": calibration_error(said.ravel(), shown.ravel())}
    for name in ("macro_ap", "micro_ap"):
        mean, interval = mean_and_interval([row[name] for row in metrics])
        found |= {name: mean, f"{name}_interval": interval}
    found["micro_f1"], found["macro_f1"] = f1(given, shown)
    swept = [f1(said >= threshold, shown) for threshold in np.linspace(0.01, 0.99, 99)]
    found["best_micro_f1"], found["best_macro_f1"] = (max(each) for each in zip(*swept, strict=True))
    return {name: round(float(value), 5) for name, value in found.items()}


def f1(given: Shown, shown: Shown) -> tuple[float, float]:
    """Micro-F1 over all pairs, and the paper's macro-F1."""
    right, tagged, true = (given & shown).sum(axis=0), given.sum(axis=0), shown.sum(axis=0)
    precision, recall = (right / np.maximum(tagged, 1)).mean(), (right / np.maximum(true, 1)).mean()
    return 2 * right.sum() / (tagged.sum() + true.sum()), 2 * precision * recall / max(precision + recall, 1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--model", default="coco52", help="a shipped model's name, or a path")
    parser.add_argument("--words", help="a file of word vectors, instead of the shipped table")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--phases", nargs="+", default=["test", "mixed"])
    parser.add_argument("--out", type=Path, default=Path("results/tagger.json"))
    arguments = parser.parse_args()
    model = load_model(arguments.model, words=arguments.words)
    network = model.header["network"]
    packs = Packs(arguments.data, arguments.cache, network=network["name"], size=model.size)
    found = {}
    for phase in arguments.phases:
        for name, shots in SETTINGS.items():
            found[f"{phase}, {name}"] = measure(packs, model, phase, shots, arguments.episodes)
            print(phase, name, found[f"{phase}, {name}"], flush=True)
    words = model.words_name
    command = f"python scripts/measure_tagger.py --data data --episodes {arguments.episodes}"
    facts = {"command": command, "commit": commit(), "model": model.name, "words": words, **found}
    write_atomically(arguments.out, json.dumps(facts, indent=1).encode())


if __name__ == "__main__":
    main()
