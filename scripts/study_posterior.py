"""Searches the posterior's strengths on one network, for `results/networks/strengths-dinov2.json`.

    python scripts/study_posterior.py --network dinov2 --weights tuned.safetensors --pretrained dinov2.onnx \
        --data DIR --classifier efficientnet-lite2.safetensors --out strengths.json

It climbs coordinate by coordinate, once on the validation labels and once on cross-fitted base labels (empirical Bayes
by predictive likelihood and precision): four folds, the network of each tuned without its labels' pictures. The novel
labels are not looked at.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure_posterior import Base, Draws, Names, Pool, Strengths, fit, measure
from networks import (
    Pictures,
    average,
    build,
    copy_state,
    draw,
    encode,
    read_names,
    read_pictures,
    read_weights,
    soft_labels,
)
from torch import Tensor
from tune_network import Tuning, tune

from fewtag.research.data.splits import Split
from fewtag.words.vectors import SHIPPED

FOLDS = 4
COORDINATES: dict[str, tuple[float, ...]] = {
    "kappa": (4, 6, 8, 12, 16, 24),
    "penalty": (0.1, 0.2, 0.4, 0.7, 1, 2, 4),
    "word_weight": (1, 1.5, 2, 3),
    "word_decay": (0.25, 0.5, 0.75, 1),
    "query_local": (0.4, 0.5, 0.6, 0.7, 0.8),
    "query_focus": (12, 24, 48, 96),
    "support_focus": (4, 8, 16, 32),
    "offset": (0.2, 0.3, 0.4),
    "bias": (0.3, 1, 3, 10),
    "ridge": (0.1, 0.25, 0.5, 1, 2),
    "class_weight": (0.1, 0.3, 1),
    "shrinkage": (1, 2, 5, 10),
    "separation": (20, 200),
    "unnamed": (0.0, 0.1, 0.25, 0.5, 1),
    "modes": (0.0, 0.3, 1, 2),
    "sharpness": (2, 4, 8),
}


@dataclass(frozen=True, eq=False)
class Held:
    """Labels that the fit does not see, with their pictures' maps, and the base that it does see."""

    base: Base
    names: Names
    labels: tuple[str, ...]
    maps: Tensor
    targets: Tensor
    draws: dict[int, Draws]

    def pool(self, strengths: Strengths) -> Pool:
        solved = fit(self.base, self.names, strengths)
        words = solved.word_prototypes(self.names.of(self.labels))
        return Pool(self.labels, solved.project(self.maps), self.targets, words)


class World:
    """Pictures, names and the network under study, read once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.arguments = arguments
        self.phases = Split.load("coco").phases
        self.names = read_names(arguments.variant, self.device, arguments.words)
        self.train = self.pictures("train")
        if arguments.base_pictures:
            rows = slice(None, None, max(1, len(self.train.pixels) // arguments.base_pictures))
            self.train = Pictures(self.train.labels, self.train.pixels[rows], self.train.targets[rows])
        self.soft = soft_labels(arguments.classifier, self.train.pixels)
        state = {
            name: tensor.to(self.device) for name, tensor in read_weights(arguments.network, arguments.weights).items()
        }
        self.network = build(arguments.network, state).to(self.device)
        features = encode(self.network, self.train.pixels, arguments.size).float().mean(dim=1)
        self.base = Base(self.train.labels, features, self.train.targets, self.soft)

    def pictures(self, phase: str) -> Pictures:
        return read_pictures(self.arguments.data / "coco", (phase,), self.phases[phase].labels, self.device)

    def held(self, phase: str, shots: Sequence[int], episodes: int) -> Held:
        """A phase of the split."""
        pictures = self.pictures(phase)
        draws = {number: draw(pictures, number, self.arguments.queries, episodes, 0) for number in shots}
        return Held(
            self.base,
            self.names,
            pictures.labels,
            encode(self.network, pictures.pixels, self.arguments.size),
            pictures.targets,
            draws,
        )

    def folds(self, shots: Sequence[int], episodes: int) -> list[Held]:
        """Base labels in four folds, each unseen by its space, its word map and its network."""
        arguments = self.arguments
        state = {
            name: tensor.to(self.device)
            for name, tensor in read_weights(arguments.network, arguments.pretrained).items()
        }
        order = np.random.default_rng(0).permutation(len(self.train.labels))
        found = []
        for mine in np.array_split(order, FOLDS):
            columns = sorted(int(column) for column in mine)
            others = [column for column in range(len(order)) if column not in columns]
            shows = self.train.targets[:, columns].any(dim=1)
            labels = [tuple(self.train.labels[column] for column in part) for part in (others, columns)]
            rest = Pictures(labels[0], self.train.pixels[~shows], self.train.targets[~shows][:, others])
            unseen = Pictures(labels[1], self.train.pixels[shows], self.train.targets[shows][:, columns])
            network = build(arguments.network, state).to(self.device)
            before = copy_state(network)
            tune(
                network,
                rest,
                Tuning(rate=arguments.rate, layer_decay=arguments.layer_decay, epochs=arguments.epochs),
            )
            network.body.load_state_dict(
                average([copy_state(network), before], [arguments.average, 1 - arguments.average])
            )
            features = encode(network, rest.pixels, arguments.size).float().mean(dim=1)
            enough = [label for label, count in zip(unseen.labels, unseen.targets.sum(dim=0).tolist(), strict=True)
                      if count >= 2 * (max(shots) + arguments.queries)]  # fmt: skip
            kept = [unseen.labels.index(label) for label in enough]
            unseen = Pictures(tuple(enough), unseen.pixels, unseen.targets[:, kept])
            draws = {number: draw(unseen, number, arguments.queries, episodes, 0) for number in shots}
            base = Base(rest.labels, features, rest.targets, self.soft[~shows])
            maps = encode(network, unseen.pixels, arguments.size)
            found.append(Held(base, self.names, unseen.labels, maps, unseen.targets, draws))
        return found


def judge(helds: Sequence[Held], strengths: Strengths) -> dict[str, float]:
    """Mean precision and log-loss over what is held out: complete supports, and one label a picture."""
    found: dict[str, list[float]] = {}
    for held in helds:
        pool = held.pool(strengths)
        for shots, single in itertools.product(held.draws, (False, True)):
            scores = measure(pool, held.draws[shots], strengths, single=single)
            precision = scores.precision()
            kind = f"{shots} examples" + (", one label a picture" if single else "")
            for name, values in precision.items():
                found.setdefault(f"{kind}, {name}", []).append(values.mean().item())
            found.setdefault(f"{kind}, log-loss", []).append(scores.log_loss())
    means = {name: round(float(np.mean(values)), 4) for name, values in found.items()}
    precisions = [value for name, value in means.items() if not name.endswith("log-loss")]
    losses = [value for name, value in means.items() if name.endswith("log-loss")]
    return {"precision": round(float(np.mean(precisions)), 4), "log-loss": round(float(np.mean(losses)), 5), **means}


def climb(
    helds: Sequence[Held], start: Strengths, better: Callable[[dict[str, float]], float], *, seconds: float
) -> dict[str, Any]:
    """Coordinate ascent until a pass changes nothing or the time is up; every try is recorded."""
    best, figures = start, judge(helds, start)
    tries: list[dict[str, Any]] = [
        {"changed": "start", "precision": figures["precision"], "log-loss": figures["log-loss"]}
    ]
    ends = time.perf_counter() + seconds
    for _ in range(2):
        before = best
        for name, values in COORDINATES.items():
            if time.perf_counter() > ends:
                break
            if name == "sharpness" and best.modes == 0:
                continue
            for value in values:
                if value == getattr(best, name):
                    continue
                tried = judge(helds, replace(best, **{name: value}))
                tries.append(
                    {"changed": f"{name}={value}", "precision": tried["precision"], "log-loss": tried["log-loss"]}
                )
                if better(tried) > better(figures) + 0.02:
                    best, figures = replace(best, **{name: value}), tried
        if best == before:
            break
    return {"strengths": vars(best), "figures": figures, "tries": tries}


def study(world: World) -> dict[str, Any]:
    """Strengths by validation labels and by cross-fitted base labels, each judged on the validation labels."""
    arguments = world.arguments
    start = replace(Strengths(), **json.loads(arguments.strengths))
    val = [world.held("val", (1, 5), arguments.episodes)]
    found: dict[str, Any] = {"start": judge(val, start)}
    folds = world.folds((1, 5, 10), arguments.episodes // 4)
    found["start on folds"] = judge(folds, start)
    print("start", found, flush=True)
    for name, helds, better in (
        ("validation labels", val, lambda figures: figures["precision"]),
        ("cross-fitted base labels", folds, lambda figures: figures["precision"]),
        ("cross-fitted base labels, log-loss", folds, lambda figures: -100 * figures["log-loss"]),
    ):
        found[name] = climb(helds, start, better, seconds=arguments.seconds)
        chosen = replace(start, **found[name]["strengths"])
        found[name]["on validation labels"] = judge(val, chosen)
        found[name]["on folds"] = judge(folds, chosen)
        print(
            name,
            found[name]["strengths"],
            "\n  val",
            found[name]["on validation labels"],
            "\n  folds",
            found[name]["on folds"],
            flush=True,
        )
        arguments.out.write_text(json.dumps(found, indent=1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("tinyvit", "dinov2"), required=True)
    parser.add_argument("--weights", type=Path, required=True, help="the network under study")
    parser.add_argument("--pretrained", type=Path, required=True, help="what the folds' networks are tuned from")
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--layer-decay", type=float, default=0.75)
    parser.add_argument("--tuning-epochs", dest="epochs", type=int, default=3)
    parser.add_argument("--average", type=float, default=0.8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--words", default=SHIPPED, help="word vectors of labels and classes: the shipped ones, or a file"
    )
    parser.add_argument("--variant", choices=("all", "clean", "none"), default="all")
    parser.add_argument("--classifier", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60, help="the longest climb")
    parser.add_argument("--strengths", default="{}", help="JSON: where to start from")
    parser.add_argument("--base-pictures", type=int, help="about so many, evenly taken: for machines without a GPU")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = study(World(arguments))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    facts = {
        "command": " ".join(sys.argv),
        "device": device,
        "network": arguments.network,
        "variant": arguments.variant,
    }
    arguments.out.write_text(json.dumps({**facts, **found}, indent=1))


if __name__ == "__main__":
    main()
