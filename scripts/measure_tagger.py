"""Measures the shipped `coco52` model on labels it never saw: accuracy, honesty of its probabilities, its threshold.

python scripts/measure_tagger.py --data DIR --out results/tagger.json
"""

import argparse
import json
from pathlib import Path

import torch
from fewtag.tagger.calibrate import calibration_error
from fit_models import Bench

from fewtag.files import write_atomically
from fewtag.research.bench.metrics import episode_metrics, mean_and_interval
from fewtag.research.bench.results import commit
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.tagger.bank import Example
from fewtag.tagger.model import load_model


def f1(tagged: torch.Tensor, shown: torch.Tensor) -> tuple[float, float]:
    """Micro-F1 over all pairs, and the paper's macro-F1."""
    right, given, true = (tagged & shown).sum(0).double(), tagged.sum(0).double(), shown.sum(0).double()
    precision, recall = (right / given.clamp_min(1)).mean(), (right / true.clamp_min(1)).mean()
    return float(2 * right.sum() / (given.sum() + true.sum())), float(2 * precision * recall / (precision + recall))


@torch.inference_mode()
def measure(bench: Bench, phase: str, shots: int, episodes: int) -> dict[str, float]:
    model = load_model("coco52")
    images, rows = bench.experiment.phase(phase), bench.rows(phase)
    targets = torch.from_numpy(images.targets)
    words = torch.from_numpy(model.words.vectors([bench.experiment.split.words(label) for label in images.labels]))
    sampler = EpisodeSampler(images.targets, images.labels, shots=shots, queries=4, seed=0)
    metrics, all_probabilities, all_shown = [], [], []
    for index in range(episodes):
        draw = sampler.draw(index)
        support, query = list(draw.support), list(draw.query)
        # as a bank keeps its examples
        kept = [Example.of(frozenset(), places).places for places in model.method.project(rows.take(support))]
        prototypes = model.method.label_prototypes(torch.stack(kept), targets[support], words)
        scores = model.method.score(model.method.project(rows.take(query)), prototypes)
        probabilities = model.calibration.probabilities(scores, targets[support].sum(dim=0))
        metrics.append(episode_metrics(probabilities.double(), targets[query]))
        all_probabilities.append(probabilities)
        all_shown.append(targets[query])
    probabilities, shown = torch.cat(all_probabilities), torch.cat(all_shown)
    threshold = float(model.calibration.threshold(torch.tensor([shots]))[0])
    found = {"calibration_error": calibration_error(probabilities.flatten(), shown.flatten()), "threshold": threshold}
    for name in ("macro_ap", "micro_ap"):
        mean, interval = mean_and_interval([row[name] for row in metrics])
        found |= {name: mean, f"{name}_interval": interval}
    found["micro_f1"], found["macro_f1"] = f1(probabilities >= threshold, shown)
    swept = [f1(probabilities >= cut, shown) for cut in torch.linspace(0.01, 0.99, 99)]
    found["best_micro_f1"], found["best_macro_f1"] = max(micro for micro, _ in swept), max(macro for _, macro in swept)
    return {name: round(value, 5) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fewtag")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--phases", nargs="+", default=["test", "mixed"])
    parser.add_argument("--out", type=Path, default=Path("results/tagger.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments.data, arguments.cache)
    found = {
        f"{phase}, {shots} examples": measure(bench, phase, shots, arguments.episodes)
        for phase in arguments.phases
        for shots in (1, 5)
    }
    command = f"python scripts/measure_tagger.py --data data --episodes {arguments.episodes}"
    write_atomically(arguments.out, json.dumps({"command": command, "commit": commit(), **found}, indent=1).encode())
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
