"""Measures graphs beside each other: pictures a second and a CPU second, on decoded squares, as the product runs them.

    python scripts/measure_speed.py lite2.onnx,224,1280 dinov2.onnx,126,384 --out speed.json

Each graph is given with the size of its pictures and its channels. Rounds go over all graphs in turns, so that other
programs slow all of them; a ratio is that of medians to the first graph's.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np

from fewtag.core.posterior import Space
from fewtag.files import write_atomically
from fewtag.runtime import Network

SPACE = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="FILE,SIZE,CHANNELS")
    parser.add_argument("--pictures", type=int, default=32, help="in a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    entries = []
    for text in arguments.graphs:
        file, size, channels = text.split(",")
        space = Space(np.zeros(int(channels), np.float32), np.zeros((int(channels), SPACE), np.float32))
        pixels = random.integers(0, 256, (arguments.pictures, 3, int(size), int(size)), np.uint8)
        entries.append((f"{Path(file).stem} at {size} px", Network(Path(file), "cpu"), pixels, space))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in entries}
    for number in range(arguments.rounds + 1):
        for name, network, pixels, space in entries:
            started = time.perf_counter(), time.process_time()
            network(pixels, space)
            if number:  # the first round loads and warms up
                seconds[name].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    rows = []
    for name, found in seconds.items():
        wall, cpu = (median(pair[kind] for pair in found) for kind in (0, 1))
        rows.append({"graph": name, "a second": arguments.pictures / wall, "a CPU second": arguments.pictures / cpu})
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
