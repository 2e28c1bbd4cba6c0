"""How fast and how lean: every speed the project promises, as ratios measured side by side in one run.

    python benchmarks/speed.py --out results/speed

writes results/speed.md and results/speed.json. Pictures and features are random numbers of the real shapes: speed does
not depend on what they show.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from research import TRAINING_FREE, research
from tagging import tagging

from fewtag.bench.recipe import Recipe
from fewtag.bench.recipe_files import load_recipes
from fewtag.bench.results import commit
from fewtag.files import write_atomically

PAPER = Path(__file__).parents[1] / "recipes" / "paper.toml"


def frozen_table_minutes(found: Mapping[str, float]) -> float:
    """Evaluating every frozen run of the paper's recipe, from what 200 episodes of its method take."""
    return sum(run_seconds(recipe, found) for _, recipe in load_recipes(PAPER)) / 60


def run_seconds(recipe: Recipe, found: Mapping[str, float]) -> float:
    if recipe.not_measured or not recipe.backbone.frozen:
        return 0.0
    episodes = recipe.evaluation.episodes * len(recipe.evaluation.phases)
    return found[f"200_episodes_seconds_{recipe.method.name}"] * episodes / 200


def lines(found: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    """What, measured, promised."""
    yield "what", "measured", "promised"
    yield "---", "---", "---"
    yield (
        "tagging a folder of 500-pixel JPEGs against the bare network on decoded batches",
        f"{found['tag_images_a_second']:.1f} / {found['tag_bare_images_a_second']:.1f} images/s "
        f"= {found['tag_ratio']:.2f}",
        "≥ 0.9",
    )
    yield "the same with 12-megapixel JPEGs", f"{found['tag_12_megapixels_ratio']:.2f}", "reported"
    extra = 100 * (found["tag_1000_labels_to_10"] - 1)
    yield "time a picture, 1,000 labels instead of 10", f"{extra:+.1f} %", "≤ + 10 %"
    beyond = found["learn_5_examples_beyond_passes_ms"]
    yield "a label from five pictures, beyond five passes of the network", f"{beyond:.0f} ms", "< 20 ms"
    yield "loading a bank of 1,000 labels × 5 examples", f"{found['load_1000_labels_seconds']:.2f} s", "< 1 s"
    yield "its size", f"{found['bank_kilobytes_a_label']:.0f} KB a label", "≤ 200 KB"
    seconds = found["evaluate_200_episodes_seconds"]
    yield "200 COCO-sized episodes of the paper's model on cached features", f"{seconds:.1f} s", "< 60 s on 2 cores"
    small, large = found["evaluate_peak_mib_400_pictures"], found["evaluate_peak_mib_2000_pictures"]
    yield "peak memory of that with 400 and with 2,000 pictures", f"{small:.0f} and {large:.0f} MiB", "the same"
    for name in TRAINING_FREE:
        yield f"200 such episodes of `{name}`", f"{found[f'200_episodes_seconds_{name}']:.1f} s", "< 10 s on 2 cores"
    yield (
        "evaluating every frozen run of recipes/paper.toml, features cached and base stages trained",
        f"{found['frozen_table_minutes']:.0f} min",
        "< 40 min on 2 cores",
    )
    yield (
        "end-to-end training against a bare loop of the same network",
        f"{found['training_images_a_second']:.0f} / {found['bare_loop_images_a_second']:.0f} images/s "
        f"= {found['training_ratio']:.2f}",
        "≥ 0.9 on a GPU",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    found = tagging() | research()
    found["frozen_table_minutes"] = frozen_table_minutes(found)
    about = {"device": device, "torch": torch.__version__, "python": platform.python_version(), "commit": commit()}
    write_atomically(arguments.out.with_suffix(".json"), json.dumps(about | found, indent=2).encode())
    written = page(about, found)
    write_atomically(arguments.out.with_suffix(".md"), written.encode())
    print(written)


def page(about: Mapping[str, str], found: Mapping[str, float]) -> str:
    """The table as Markdown."""
    source = f"`python benchmarks/speed.py`, commit {about['commit']}, torch {about['torch']}.\n"
    return "\n".join(
        [f"# Speed on {about['device']}\n", source, *(f"| {' | '.join(row)} |" for row in lines(found)), ""]
    )


if __name__ == "__main__":
    main()
