"""How fast and how lean: every speed the project promises, as ratios measured side by side in one run.

    python benchmarks/speed.py --out results/speed

writes results/speed.md and results/speed.json. Pictures and features are random numbers of the real shapes: speed does
not depend on what they show.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from fewtag.bench.evaluate import Pool, evaluate
from fewtag.bench.recipe import Training
from fewtag.bench.results import commit
from fewtag.bench.train import Phase, take_step
from fewtag.data.episodes import EpisodeSampler
from fewtag.features.backbone import create_backbone
from fewtag.features.store import MemoryRows, RowFile
from fewtag.files import write_atomically
from fewtag.methods import EndToEnd, create_method

SHAPE = (2048, 7, 7)  # ResNet-50 at 224 px
WORDS = 300


def random_targets(images: int, labels: int) -> np.ndarray:
    """Every label shown by its share of the images, as many again at random."""
    generator = np.random.default_rng(0)
    targets = generator.random((images, labels)) < 1 / labels
    targets[np.arange(images), np.arange(images) % labels] = True
    return targets


def evaluate_seconds(images: int, episodes: int) -> dict[str, float]:
    """Seconds for the paper's model on cached features, and the peak memory of the process."""
    targets = random_targets(images, 16)
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = RowFile(Path(folder), count=images, shape=SHAPE, dtype="float16")
        for row in range(images):
            rows.write([row], generator.random((1, *SHAPE), np.float32))
        names = tuple(f"label {number}" for number in range(16))
        pool = Pool(names, rows, torch.randn(16, WORDS), torch.from_numpy(targets))
        sampler = EpisodeSampler(targets, names)
        method = create_method("word-attention", channels=SHAPE[0], dimensions=WORDS)
        draws = [sampler.draw(index) for index in range(episodes)]
        since = time.perf_counter()
        evaluate(method, pool, draws)
        seconds = time.perf_counter() - since
    return {"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def evaluate_apart(images: int, episodes: int) -> dict[str, float]:
    """The same in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--evaluate", str(images), str(episodes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def steps_a_second(step: Callable[[int], object], device: torch.device, steps: int) -> float:
    for number in range(max(2, steps // 5)):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    since = time.perf_counter()
    for number in range(steps):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps / (time.perf_counter() - since)


def training_images_a_second(name: str, labels: int, size: int, steps: int) -> dict[str, float]:
    """End-to-end training against a bare forward-backward loop of the same network, images a second, interleaved."""
    gpu = torch.cuda.is_available()
    fabric = Fabric(accelerator="cuda" if gpu else "cpu", devices=1, precision="bf16-mixed" if gpu else "32-true")
    fabric.launch()
    images = 40 * labels
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, device=fabric.device)
    targets = random_targets(images, labels)
    names = tuple(f"label {number}" for number in range(labels))
    pool = Pool(
        names,
        MemoryRows(pixels),
        torch.randn(labels, WORDS, device=fabric.device),
        torch.from_numpy(targets).to(fabric.device),
    )
    base = Phase(pool, EpisodeSampler(targets, names))
    batch = 5 * labels

    def ours() -> Callable[[int], object]:
        backbone = create_backbone(name, weights="random", size=size)
        method = EndToEnd(backbone, create_method("word-attention", channels=backbone.channels, dimensions=WORDS))
        model, optimizer = fabric.setup(method, torch.optim.Adam(method.parameters(), fused=gpu))
        model.mark_forward_method("loss")
        model.train()
        training = Training(learning_rate=1e-4)
        return lambda number: take_step(fabric, model, optimizer, base, training, 0, number)

    def bare() -> Callable[[int], object]:
        backbone: nn.Module = create_backbone(name, weights="random", size=size)
        backbone, optimizer = fabric.setup(backbone, torch.optim.Adam(backbone.parameters(), fused=gpu))
        backbone.train()
        one_batch = pixels[:batch]

        def step(_: int) -> None:
            fabric.backward(backbone(one_batch).float().mean())
            optimizer.step()
            optimizer.zero_grad()

        return step

    contenders = {"ours": ours(), "bare": bare()}
    found: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(3):
        for contender, step in contenders.items():
            found[contender].append(batch * steps_a_second(step, fabric.device, steps))
    best = {contender: max(rates) for contender, rates in found.items()}
    return {**best, "ratio": best["ours"] / best["bare"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    parser.add_argument("--evaluate", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.evaluate:
        print(json.dumps(evaluate_seconds(*arguments.evaluate)))
        return
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} CPU threads"
    small, large = evaluate_apart(400, 200), evaluate_apart(2000, 200)
    # a CPU gets a smaller network and episode, or the run would take an hour
    training = training_images_a_second(*("resnet50", 52, 224, 30) if gpu else ("resnet18", 8, 96, 6))
    found = {
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "evaluate_200_episodes_seconds": large["seconds"],
        "evaluate_peak_mib_400_pictures": small["peak_mib"],
        "evaluate_peak_mib_2000_pictures": large["peak_mib"],
        "training_images_a_second": training["ours"],
        "bare_loop_images_a_second": training["bare"],
        "training_ratio": training["ratio"],
    }
    write_atomically(arguments.out.with_suffix(".json"), json.dumps(found, indent=2).encode())
    table = [
        ("what", "measured", "promised"),
        ("---", "---", "---"),
        (
            "200 COCO-sized episodes of the paper's model on cached features",
            f"{large['seconds']:.1f} s",
            "< 60 s on 2 cores",
        ),
        (
            "peak memory of that with 400 and with 2,000 pictures",
            f"{small['peak_mib']:.0f} and {large['peak_mib']:.0f} MiB",
            "the same",
        ),
        (
            "end-to-end training against a bare loop of the same network",
            f"{training['ours']:.0f} / {training['bare']:.0f} images/s = {training['ratio']:.2f}",
            "≥ 0.9 on a GPU",
        ),
    ]
    lines = [f"# Speed on {device}\n", f"`python benchmarks/speed.py`, commit {commit()}, torch {torch.__version__}.\n"]
    lines += [f"| {' | '.join(row)} |" for row in table] + [""]
    write_atomically(arguments.out.with_suffix(".md"), "\n".join(lines).encode())
    print("\n".join(lines))


if __name__ == "__main__":
    main()
