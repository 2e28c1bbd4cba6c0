"""The researcher's promises: episodes on cached features, their memory, and training close to a bare loop."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from fewtag.cache import Cache, content_digest
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.train import Learner, Phase
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.rows import CachedRows, Extractor, MemoryRows
from fewtag.research.methods import METHODS, Base, EndToEnd, Method, create_method

SHAPE = (2048, 7, 7)  # ResNet-50 at 224 px
WORDS = 300
TRAINING_FREE = (
    "protonet",
    "protonet-centred",
    "closed-form",
    "word-only",
    "tip-adapter",
    "knn",
    "logistic-regression",
)


def random_targets(images: int, count: int) -> np.ndarray:
    """Every label shown by its share of the images and 0.4 more an image at random, as COCO's novel labels are."""
    generator = np.random.default_rng(0)
    targets = generator.random((images, count)) < 0.4 / count
    targets[np.arange(images), np.arange(images) % count] = True
    return targets


def labels(count: int) -> tuple[str, ...]:
    return tuple(f"label {number}" for number in range(count))


def make_method(name: str) -> Method:
    """Ready to meet labels: solved on, or told of, as many base labels and pictures as the COCO split has."""
    method = create_method(name, channels=SHAPE[0], dimensions=WORDS).eval()
    targets, words = torch.from_numpy(random_targets(2000, 52)), torch.randn(52, WORDS)
    method.prepare(Base(labels(52), words, targets, torch.rand(2000, SHAPE[0])))
    return method


def evaluate_seconds(names: Sequence[str], images: int, episodes: int) -> dict[str, float]:
    """Seconds that each method takes for COCO-sized episodes on cached features, and the process's peak memory."""
    targets = random_targets(images, 16)
    generator = np.random.default_rng(0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        space = Cache(Path(folder)).space("features", "random maps", "benchmark", SHAPE, "float16")
        digests = [content_digest(str(row).encode()) for row in range(images)]
        for start in range(0, images, 64):
            some = digests[start : start + 64]
            space.put_many(some, generator.random((len(some), *SHAPE), np.float32))
        rows = CachedRows([], digests, Extractor(space, 0, lambda pixels: lambda: pixels))
        pool = Pool(labels(16), rows, torch.randn(16, WORDS), torch.from_numpy(targets))
        sampler = EpisodeSampler(targets, labels(16))
        draws = [sampler.draw(index) for index in range(episodes)]
        for name in names:
            method = make_method(name)
            evaluate(method, pool, draws[:1])
            since = time.perf_counter()
            evaluate(method, pool, draws)
            found[name] = time.perf_counter() - since
    return found | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def evaluate_apart(names: Sequence[str], images: int, episodes: int) -> dict[str, float]:
    """The same in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, str(images), str(episodes), *names]
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


def training_images_a_second(
    name: str, count: int, size: int, steps: int, *, compiled: bool = False
) -> dict[str, float]:
    """End-to-end training against a bare forward-backward loop of the same network, images a second, interleaved."""
    gpu = torch.cuda.is_available()
    fabric = Fabric(accelerator="cuda" if gpu else "cpu", devices=1, precision="bf16-mixed" if gpu else "32-true")
    fabric.launch()
    images = 40 * count
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, device=fabric.device)
    targets = random_targets(images, count)
    names = labels(count)
    pool = Pool(
        names,
        MemoryRows(pixels),
        torch.randn(count, WORDS, device=fabric.device),
        torch.from_numpy(targets).to(fabric.device),
    )
    base = Phase(pool, EpisodeSampler(targets, names))
    batch = 5 * count

    def network() -> Backbone:
        backbone = create_backbone(name, weights="random", size=size)
        if compiled:
            backbone.compile()
        return backbone

    def ours() -> Callable[[int], object]:
        backbone = network()
        method = EndToEnd(backbone, create_method("word-attention", channels=backbone.channels, dimensions=WORDS))
        learner = Learner(method, Training(learning_rate=1e-4), 0, fabric)
        learner.model.train()

        def step(number: int) -> None:
            learner.state["episode"] = number
            learner.take_step(base)

        return step

    def bare() -> Callable[[int], object]:
        backbone: nn.Module = network()
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


def research() -> dict[str, float]:
    """Everything above. A CPU gets a smaller network and episode to train on, or the run would take an hour."""
    gpu = torch.cuda.is_available()
    small, large = evaluate_apart(["word-attention"], 400, 200), evaluate_apart(["word-attention"], 2000, 200)
    free = evaluate_apart(TRAINING_FREE, 2000, 200)
    trained = [name for name in METHODS if name not in TRAINING_FREE]
    slow = evaluate_apart(trained, 400, 10)
    training = training_images_a_second(*("resnet50", 52, 224, 30) if gpu else ("resnet18", 8, 96, 6))
    return {
        "evaluate_200_episodes_seconds": large["word-attention"],
        "evaluate_peak_mib_400_pictures": small["peak_mib"],
        "evaluate_peak_mib_2000_pictures": large["peak_mib"],
        **{f"200_episodes_seconds_{name}": free[name] for name in TRAINING_FREE},
        **{f"200_episodes_seconds_{name}": 20 * slow[name] for name in trained},
        **{f"training_{name}": rate for name, rate in training.items()},
    }


if __name__ == "__main__":
    images, episodes, *names = sys.argv[1:]
    print(json.dumps(evaluate_seconds(names, int(images), int(episodes))))
