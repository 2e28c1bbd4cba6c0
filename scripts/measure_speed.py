"""Measures models beside each other: pictures a second and a CPU second, on decoded squares, as the product runs them.

    fewtag fit lite2 PICTURES --network tf_efficientnet_lite2
    python scripts/measure_speed.py lite2.safetensors default accurate --out speed.json

Rounds go over all models in turns, so that other programs slow all of them; a ratio is that of medians to the first
model's.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np

from fewtag.files import write_atomically
from fewtag.tagger.model import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a shipped model's name, or a path")
    parser.add_argument("--pictures", type=int, default=32, help="in a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    entries = []
    for source in arguments.models:
        model = load_model(source)
        pixels = random.integers(0, 256, (arguments.pictures, 3, model.size, model.size), np.uint8)
        entries.append((f"{model.name} at {model.size} px", model, pixels))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in entries}
    for number in range(arguments.rounds + 1):
        for name, model, pixels in entries:
            started = time.perf_counter(), time.process_time()
            model.encode(pixels)
            if number:  # the first round loads and warms up
                seconds[name].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    rows = []
    for name, found in seconds.items():
        wall, cpu = (median(pair[kind] for pair in found) for kind in (0, 1))
        rows.append({"model": name, "a second": arguments.pictures / wall, "a CPU second": arguments.pictures / cpu})
    for row in rows:
        row["ratio"] = round(row["a second"] / rows[0]["a second"], 3)
        row["ratio of CPU seconds"] = round(row["a CPU second"] / rows[0]["a CPU second"], 3)
        print(
            {
                key: round(value, 2) if isinstance(value, float) and key[0] == "a" else value
                for key, value in row.items()
            }
        )
    if arguments.out:
        write_atomically(arguments.out, json.dumps(rows, indent=1).encode())


if __name__ == "__main__":
    main()
