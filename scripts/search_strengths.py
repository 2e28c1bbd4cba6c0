"""Chooses the closed form's strengths for a run of a recipe on the validation labels, and records every try.

    python scripts/search_strengths.py recipes/beyond.toml --only closed-form --data DIR --out results/search

writes results/search/<run>.json: the strengths to put into the recipe, and what each try came to. The novel labels are
never looked at.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from closed_form_search import Held, Strengths, search

from fewtag.files import write_atomically
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import global_features
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import commit
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.rows import MemoryRows, feature_rows
from fewtag.research.methods.base import Base

SHOTS = (1, 5)


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
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fewtag")
    parser.add_argument("--episodes", type=int, default=60, help="validation episodes for each number of shots")
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    arguments = parser.parse_args()
    ((file, recipe),) = load_recipes(arguments.recipe, only=[arguments.only], changes=arguments.changes)
    found = search_run(recipe, arguments.data, file.parent, arguments.cache, arguments.episodes)
    found |= {"command": shlex.join(["python", *sys.argv]), "commit": commit()}
    write_atomically(arguments.out / f"{recipe.name}.json", json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
