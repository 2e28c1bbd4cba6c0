"""Training end to end beside a bare loop of the same network, and random episodes of real shapes."""

import time
from collections.abc import Callable

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from fewtag.research.bench.evaluate import Pool
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.train import Episodes, Learner
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import EndToEnd, create_method

WORDS = 300


def random_targets(images: int, count: int) -> np.ndarray:
    """Every label shown by its share of the images and 0.4 more an image at random, as COCO's novel labels are."""
    generator = np.random.default_rng(0)
    targets = generator.random((images, count)) < 0.4 / count
    targets[np.arange(images), np.arange(images) % count] = True
    return targets


def labels(count: int) -> tuple[str, ...]:
    return tuple(f"label {number}" for number in range(count))


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
    base = Episodes(pool, EpisodeSampler(targets, names))
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
            learner.state.episode = number
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
