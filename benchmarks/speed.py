"""How fast and how lean: every speed the project promises, as ratios measured side by side in one run.

    python benchmarks/speed.py --out results/speed [--pictures FOLDER]

writes results/speed.md, results/speed.json and results/plots/growth.png. Pictures are drawn and features are random
numbers of the real shapes, unless `--pictures` names a folder with two thousand: speed does not depend on what they
show. What a GPU does is measured there by `python benchmarks/device.py --out results/speed-gpu.json`, and shown here.
"""

import argparse
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
from folders import folders
from growth import draw_growth, figures, growth
from page import page
from rivals import rivals

from fewtag.files import write_atomically
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import commit
from research import research
from tagging import tagging

PAPER = Path(__file__).parents[1] / "recipes" / "paper.toml"


def frozen_table_minutes(found: Mapping[str, float]) -> float:
    """Evaluating every frozen run of the paper's recipe, from what 200 episodes of its method take."""
    return sum(run_seconds(recipe, found) for _, recipe in load_recipes(PAPER)) / 60


def run_seconds(recipe: Recipe, found: Mapping[str, float]) -> float:
    if recipe.not_measured or not recipe.backbone.frozen:
        return 0.0
    episodes = recipe.evaluation.episodes * len(recipe.evaluation.phases)
    return found[f"200_episodes_seconds_{recipe.method.name}"] * episodes / 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    parser.add_argument("--pictures", type=Path, help="a folder with 2,000 pictures, instead of drawn ones")
    arguments = parser.parse_args()
    out: Path = arguments.out
    about = {
        "device": f"{torch.get_num_threads()} CPU threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "command": "python benchmarks/speed.py" + (" --pictures FOLDER" if arguments.pictures else ""),
    }
    # the quick ones first: what is wrong is seen soon
    found = rivals() | folders(arguments.pictures) | tagging()
    curves = growth()
    found |= figures(curves) | research()
    found["frozen_table_minutes"] = frozen_table_minutes(found)
    points = {f"growth_{name}": curve.points for name, curve in curves.items()}
    write_atomically(out.with_suffix(".json"), json.dumps(about | found | points, indent=2).encode())
    plot = draw_growth(out.parent / "plots" / "growth.png", curves)
    gpu = out.with_name(f"{out.name}-gpu.json")
    on_gpu = json.loads(gpu.read_text()) if gpu.exists() else None
    written = page(about, found, plot=plot.relative_to(out.parent), on_gpu=on_gpu)
    write_atomically(out.with_suffix(".md"), written.encode())
    print(written)


if __name__ == "__main__":
    main()
