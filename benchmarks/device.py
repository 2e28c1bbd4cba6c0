"""What a GPU's speed leaves to wish for: extraction and training against bare loops of the same network."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fewtag.files import write_atomically
from fewtag.research.bench.results import commit
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.rows import precision_of, start
from research import training_images_a_second

BATCH = 256
BATCHES = 40


def device_speeds() -> dict[str, float]:
    """ResNet-50 at 224 pixels from decoded pictures; training also with `--compile`."""
    found = {f"gpu_extraction_{name}": rate for name, rate in extraction_images_a_second().items()}
    for compiled in (False, True):
        rates = training_images_a_second("resnet50", 52, 224, 30, compiled=compiled)
        found |= {f"gpu_{'compiled_' if compiled else ''}training_{name}": rate for name, rate in rates.items()}
    return found


def extraction_images_a_second() -> dict[str, float]:
    """From pixels in the computer's memory to maps in it, against the network alone on pixels that lie on the GPU."""
    backbone = create_backbone("resnet50", weights="random").cuda()
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (2 * BATCH, 224, 224, 3), dtype=np.uint8).transpose(0, 3, 1, 2)
    batches = [pixels[:BATCH], pixels[BATCH:]]
    return compare({"ours": lambda: extract(backbone, batches), "bare": lambda: forward(backbone, batches)})


def extract(backbone: Backbone, batches: list[np.ndarray]) -> None:
    """As the cache is filled: one batch is under way while the last one's maps are kept."""
    waiting = start(backbone, batches[0])
    for number in range(1, BATCHES):
        following = start(backbone, batches[number % len(batches)])
        waiting()
        waiting = following
    waiting()


@torch.inference_mode()
def forward(backbone: Backbone, batches: list[np.ndarray]) -> None:
    """Nothing but the network."""
    on_device = [torch.from_numpy(batch).cuda() for batch in batches]
    with torch.autocast("cuda", precision_of(backbone)):
        for number in range(BATCHES):
            backbone(on_device[number % len(on_device)])
    torch.cuda.synchronize()


def compare(contenders: dict[str, Callable[[], None]], rounds: int = 3) -> dict[str, float]:
    """The best rate of each, taken in turns."""
    best = dict.fromkeys(contenders, 0.0)
    for contender in contenders.values():
        contender()
    for _ in range(rounds):
        for name, contender in contenders.items():
            since = time.perf_counter()
            contender()
            best[name] = max(best[name], BATCH * BATCHES / (time.perf_counter() - since))
    return best | {"ratio": best["ours"] / best["bare"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/speed-gpu.json"))
    arguments = parser.parse_args()
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit(),
        "command": "python benchmarks/device.py",
    }
    written = json.dumps(about | device_speeds(), indent=2)
    write_atomically(arguments.out, written.encode())
    print(written)


if __name__ == "__main__":
    main()
