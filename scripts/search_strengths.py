"""Chooses the closed form's strengths for a run of a recipe on the validation labels, and records every try.

    python scripts/search_strengths.py recipes/beyond.toml --only closed-form --data DIR --out results/search

writes results/search/<run>.json: the strengths to put into the recipe, and what each try came to. One strength is tried
at a time, as long as anything is gained. The novel labels are never looked at.
"""

import argparse
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fewtag.core.calibration import sigmoid
from fewtag.core.posterior import Space, fit_words
from fewtag.files import user_cache_folder, write_atomically
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import global_features
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import commit, episode_metrics
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.rows import MemoryRows, Rows, feature_rows
from fewtag.research.methods.base import Base
from fewtag.research.methods.closed_form import ClosedForm, to_array
from fewtag.research.types import Targets, Words, places

SHOTS = (1, 5)
Strengths = dict[str, Any]

GRID: Mapping[str, Sequence[float]] = {
    "ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0),
    "word_weight": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0),
    "word_decay": (0.5, 0.75, 1.0, 1.5),
    "support_focus": (2.0, 4.0, 6.0, 8.0, 12.0, 16.0),
    "query_focus": (4.0, 8.0, 16.0, 24.0, 32.0, 48.0),
    "query_local": (0.25, 0.4, 0.5, 0.6, 0.7),
    "separation": (5.0, 50.0, 200.0),
    "shrinkage": (1.0, 3.0, 5.0, 10.0, 30.0),
    "space": (256, 512, 768),
}


class Held(NamedTuple):
    """The validation labels' pictures, and the episodes to judge on: a list of draws for each number of shots."""

    labels: tuple[str, ...]
    words: Words
    rows: Rows
    targets: Targets
    draws: Mapping[int, Sequence[Draw]]


def project_all(space: Space, rows: Rows, numbers: Sequence[int], batch: int = 128) -> NDArray[np.float16]:
    """These pictures' places in the space, in half precision: images × places × space."""
    chunks = [numbers[start : start + batch] for start in range(0, len(numbers), batch)]
    maps = (to_array(places(rows.take(chunk).float())) for chunk in chunks)
    return np.concatenate([space.project(each).astype(np.float16) for each in maps])


def episode_scores(
    method: ClosedForm, local: NDArray[np.float16], held: Held, draw: Draw
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The query images' log-odds, and what they show."""
    support, query = list(draw.support), list(draw.query)
    shown = to_array(held.targets)
    word_prototypes = method.word_prototypes(held.words)
    classifiers = method.classifiers(local[support].astype(np.float32), shown[support], word_prototypes)
    return classifiers.logits(local[query].astype(np.float32), method.strengths), shown[query]


def judge(method: ClosedForm, local: NDArray[np.float16], held: Held) -> dict[str, float]:
    """Macro- and micro-AP for each number of shots, and their mean: what the search raises."""
    found: dict[str, float] = {}
    for shots, draws in held.draws.items():
        metrics = []
        for draw in draws:
            scores, targets = episode_scores(method, local, held, draw)
            metrics.append(episode_metrics(sigmoid(scores.astype(np.float64)), targets))
        for name in ("macro_ap", "micro_ap"):
            found[f"{name}_{shots}"] = sum(row[name] for row in metrics) / len(metrics)
    found["mean"] = sum(found.values()) / len(found)
    return found


@torch.inference_mode()
def search(
    base: Base,
    held: Held,
    *,
    grid: Mapping[str, Sequence[float]] = GRID,
    start: Strengths | None = None,
    rounds: int = 2,
    tell: Callable[[Strengths, dict[str, float]], None] = lambda _strengths, _found: None,
) -> tuple[Strengths, dict[str, float]]:
    """Tries every value of one strength with the others held, keeps the best, goes on with the next."""
    spaces: dict[tuple[Any, Any], tuple[Space, NDArray[np.float16]]] = {}
    features, targets = to_array(base.features), to_array(base.targets)

    def measure(strengths: Strengths) -> dict[str, float]:
        method = ClosedForm(features.shape[1], base.words.shape[1], **strengths)
        key = (method.shrinkage, method.space)  # nothing else moves the places
        if key not in spaces:
            spaces.clear()
            space = method.fit_space(features)
            spaces[key] = space, project_all(space, held.rows, range(len(held.rows)))
        method.space_, local = spaces[key]
        prototypes = method.base_prototypes(method.space_.project(features), targets)
        method.word_map_ = fit_words(to_array(base.words), prototypes, method.ridge)
        found = judge(method, local, held)
        tell(strengths, found)
        return found

    defaults = {name: option.default for name, option in inspect.signature(ClosedForm).parameters.items()}
    best: Strengths = dict(start or {})
    score = measure(best)
    for _ in range(rounds):
        before = score["mean"]
        for name, values in grid.items():
            now = best.get(name, defaults[name])
            for value in values:
                if value == now:
                    continue
                found = measure({**best, name: value})
                if found["mean"] > score["mean"]:
                    best, score = {**best, name: value}, found
        if score["mean"] <= before:
            break
    return best, score


def search_run(recipe: Recipe, data: Path, folder: Path, cache: Path, episodes: int) -> dict[str, Any]:
    """Starts from the recipe's own options; returns what was chosen and every try on the way."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    experiment = Experiment(recipe, data, folder)
    backbone, _ = experiment.build()
    backbone.to(device)
    images = {phase: experiment.phase(phase) for phase in ("train", "val")}
    rows = {phase: feature_rows(found, backbone, cache) for phase, found in images.items()}
    words = {phase: experiment.words(found.labels).to(device) for phase, found in images.items()}
    targets = {phase: torch.from_numpy(found.targets).to(device) for phase, found in images.items()}
    base = Base(images["train"].labels, words["train"], targets["train"], global_features(rows["train"]).to(device))
    draws = {}
    for shots in SHOTS:
        sampler = EpisodeSampler(images["val"].targets, images["val"].labels, shots=shots, queries=4, seed=1)
        draws[shots] = [sampler.draw(index) for index in range(episodes)]
    pictures = MemoryRows(rows["val"].take(range(len(rows["val"]))))
    held = Held(images["val"].labels, words["val"], pictures, targets["val"], draws)
    tries: list[dict[str, Any]] = []

    def tell(strengths: Strengths, found: dict[str, float]) -> None:
        tries.append({"strengths": strengths, **{name: round(value, 5) for name, value in found.items()}})
        print(tries[-1], flush=True)

    best, score = search(base, held, start=dict(recipe.method.options), tell=tell)
    return {"strengths": best, "validation": score, "words": recipe.words.source, "episodes": episodes, "tries": tries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--only", required=True, help="the run")
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", help="change a setting, as in fewtag bench"
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that the recipe's paths are relative to")
    parser.add_argument("--cache", type=Path, default=user_cache_folder())
    parser.add_argument("--episodes", type=int, default=60, help="validation episodes for each number of shots")
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    arguments = parser.parse_args()
    ((file, recipe),) = load_recipes(arguments.recipe, only=[arguments.only], changes=arguments.changes)
    found = search_run(recipe, arguments.data, file.parent, arguments.cache, arguments.episodes)
    found |= {"command": shlex.join(["python", *sys.argv]), "commit": commit()}
    write_atomically(arguments.out / f"{recipe.name}.json", json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
