"""Tunes a pretrained network gently on base labels, averages it with what it was, and measures it on unseen labels.

    python scripts/tune_network.py --network dinov2 --weights dinov2_vits14_patch_8x8.onnx --data DIR \
        --packs train more --fit-packs train --sizes 112 140 168 224 --seeds 0 1 2 \
        --classifier lite2.safetensors --phases val --out rows.json --save tuned/

Tuning is binary cross-entropy on the base labels of the packs in DIR: AdamW, a cosine schedule, mirrored crops,
batch-norm frozen. The head starts at zero and learns at a rate of its own, far above the network's: a random head pulls
random directions through the network (12 points lost on the validation labels), one fitted beforehand leaves it little
to learn. A layer's rate is lower than the next one's. Each step takes pictures of one size, drawn from a few, so that
one file of weights serves small pictures and large ones. The weights are then averaged, part tuned, part pretrained.

Several values of an option make a grid; settings are chosen on the validation labels (`--phases val`), the novel ones
looked at once (`--phases test mixed`). Each row of the JSON file has its settings, its seed and its figures, mean and
half 95 % interval over episodes.

`--classifier` has the weights of EfficientNet-Lite2 in timm's keys, whose soft labels stand for its thousand class
names.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure_posterior import Base, Pool, Strengths, fit, measure, row
from networks import (
    Network,
    Pictures,
    average,
    build,
    copy_state,
    draw,
    encode,
    read_names,
    read_pictures,
    read_weights,
    resized,
    rounded,
    save,
    soft_labels,
)
from timm.optim._param_groups import param_groups_layer_decay
from torch import Tensor, nn

from fewtag.files import write_atomically
from fewtag.research.data.splits import Split
from fewtag.words.vectors import SHIPPED

RARE = -3.0
"""A label's logit before anything is learnt."""
FEW_STEPS = 300
"""So many take less time than compiling the network does."""
WARM_UP = 0.05
"""The share of the steps in which the rate rises."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """One run's settings; each step takes one of the sizes."""

    rate: float = 2e-5
    sizes: tuple[int, ...] = (112, 140, 168, 224)
    head_rate: float = 2e-3
    epochs: int = 3
    seed: int = 0
    batch: int = 128
    decay: float = 0.01
    layer_decay: float = 0.75
    smallest_crop: float = 0.6


def crops(pictures: Tensor, smallest: float, generator: torch.Generator) -> Tensor:
    """Random square parts of at least a share `smallest` of the area, half of them mirrored, as large as the whole."""
    count, device = len(pictures), pictures.device
    draws = torch.rand(4, count, generator=generator, device=device)
    side = (smallest + (1 - smallest) * draws[0]).sqrt()
    mirrored = torch.where(draws[3] < 0.5, -1.0, 1.0)
    affine = torch.zeros(count, 2, 3, device=device)
    affine[:, 0, 0], affine[:, 1, 1] = side * mirrored, side
    affine[:, 0, 2], affine[:, 1, 2] = (1 - side) * (2 * draws[1] - 1), (1 - side) * (2 * draws[2] - 1)
    grid = F.affine_grid(affine, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def groups(network: Network, head: nn.Module, settings: Tuning) -> list[dict[str, Any]]:
    """Parameters with their rates: the network's, lower towards its input, and the head's."""
    found = param_groups_layer_decay(network.body, settings.decay, layer_decay=settings.layer_decay)
    found = [{**group, "lr": settings.rate * group["lr_scale"]} for group in found]
    return [*found, {"params": list(head.parameters()), "lr": settings.head_rate}]


def tune(network: Network, pictures: Pictures, settings: Tuning) -> float:
    """Tunes the network in place and returns the last epoch's mean loss."""
    device, targets = pictures.pixels.device, pictures.targets.float()
    generator = torch.Generator(device=device).manual_seed(settings.seed)
    head = nn.Linear(network.body.num_features, targets.shape[1]).to(device)
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, RARE)
    network.train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    parameters = groups(network, head, settings)
    optimizer = torch.optim.AdamW(parameters, weight_decay=settings.decay, fused=device.type == "cuda")
    steps_an_epoch = len(targets) // settings.batch
    total = settings.epochs * steps_an_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / (WARM_UP * total)) * 0.5 * (1 + math.cos(math.pi * step / total))
    )
    sizes = np.random.default_rng(settings.seed).choice(settings.sizes, total)
    worth_it = device.type == "cuda" and total > FEW_STEPS
    run = torch.compile(network, dynamic=False) if worth_it else network
    losses = torch.zeros(steps_an_epoch, device=device)
    for epoch in range(settings.epochs):
        order = torch.randperm(len(targets), generator=generator, device=device)
        for step in range(steps_an_epoch):
            rows = order[step * settings.batch : (step + 1) * settings.batch]
            batch = crops(pictures.pixels[rows], settings.smallest_crop, generator)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                maps = run(resized(batch, int(sizes[epoch * steps_an_epoch + step]))).float()
            loss = F.binary_cross_entropy_with_logits(head(maps.mean(dim=1)), targets[rows])
            losses[step] = loss.detach()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    network.eval()
    return losses.mean().item()


class Bench:
    """Pictures, soft labels and episodes, read once for all settings."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        split, folder = Split.load(arguments.split), arguments.data / "coco"
        labels = split.labels if arguments.all_labels else split.phases["train"].labels
        self.base = read_pictures(folder, arguments.packs, labels, device, split.aliases)
        self.fitted = self.base
        if arguments.fit_packs:
            self.fitted = read_pictures(folder, arguments.fit_packs, labels, device)
        self.names = {
            variant: read_names(variant, device, arguments.words) for variant in arguments.variants if arguments.phases
        }
        self.pictures = {
            phase: read_pictures(folder, (phase,), split.phases[phase].labels, device) for phase in arguments.phases
        }
        if self.pictures:
            self.soft = soft_labels(arguments.classifier, self.fitted.pixels)
        self.draws = {
            (phase, shots): draw(pictures, shots, arguments.queries, arguments.episodes, arguments.draw_seed)
            for phase, pictures in self.pictures.items()
            for shots in [*arguments.shots, *(arguments.mixed_shots if phase == "mixed" else ())]
        }
        self.strengths = replace(Strengths(), **json.loads(arguments.strengths))

    def measure(self, network: Network, size: int, *, full: bool = False) -> dict[str, Any]:
        """Figures by variant of names, phase and examples; `full` adds one label a picture and the closed form."""
        if not self.pictures:
            return {}
        features = encode(network, self.fitted.pixels, size).float().mean(dim=1)
        base = Base(self.fitted.labels, features, self.fitted.targets, self.soft)
        maps = {phase: encode(network, pictures.pixels, size) for phase, pictures in self.pictures.items()}
        found: dict[str, Any] = {}
        for variant, names in self.names.items():
            solved = fit(base, names, self.strengths)
            for phase, pictures in self.pictures.items():
                words = solved.word_prototypes(names.of(pictures.labels))
                pool = Pool(pictures.labels, solved.project(maps[phase]), pictures.targets, words)
                for shots in (number for known, number in self.draws if known == phase):
                    draws = self.draws[phase, shots]
                    key = f"{variant} names, {phase}, {shots} examples"
                    found[key] = row(measure(pool, draws, self.strengths))
                    if shots and full:
                        found[f"{key}, one label a picture"] = row(measure(pool, draws, self.strengths, single=True))
                        found[f"{key}, closed form"] = row(measure(pool, draws, self.strengths, posterior=False))
        return found


def judge(figures: dict[str, Any], *, alone: bool) -> float | None:
    """What settings are chosen by: mean macro- and micro-AP on the validation labels over all and clean names, with
    examples or by the names alone."""
    chosen = [
        value
        for key, value in figures.items()
        if " val, " in key and key.endswith(" examples") and (" 0 examples" in key) == alone
    ]
    if not chosen:
        return None
    return round(float(np.mean([value[name][0] for value in chosen for name in ("macro", "micro")])), 3)


class Record:
    """Rows of figures, written to a file as they come."""

    def __init__(self, path: Path, facts: dict[str, Any], *, verbose: bool) -> None:
        self.path, self.facts, self.verbose = path, facts, verbose
        self.rows: list[dict[str, Any]] = []

    def add(self, figures: dict[str, Any], **settings: Any) -> None:
        """One network's figures and how it came to be."""
        settings |= {"judged": judge(figures, alone=False), "judged_alone": judge(figures, alone=True)}
        self.rows.append({**self.facts, **settings, "figures": figures})
        print(json.dumps(settings), flush=True)
        if self.verbose:
            for key, value in figures.items():
                print("   ", key, value, flush=True)
        write_atomically(self.path, json.dumps(self.rows, indent=1).encode())


def tunings(arguments: argparse.Namespace) -> Iterable[Tuning]:
    """The grid of settings, but for the seeds."""
    grid = itertools.product(arguments.rates, arguments.epochs, arguments.layer_decays)
    for rate, epochs, layer_decay in grid:
        yield Tuning(
            rate=rate,
            epochs=epochs,
            layer_decay=layer_decay,
            sizes=tuple(arguments.sizes),
            batch=arguments.batch,
            head_rate=arguments.head_rate,
            smallest_crop=arguments.smallest_crop,
        )


def run(arguments: argparse.Namespace) -> None:
    """Measures the grid: the network as it comes, each seed's averages, and those of the mean of all seeds' weights."""
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = Bench(arguments, device)
    facts = {
        "network": arguments.network,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "command": " ".join(sys.argv),
        "strengths": vars(bench.strengths),
        "episodes": arguments.episodes,
        "base_pictures": len(bench.base.pixels),
        "fitted_pictures": len(bench.fitted.pixels),
        "base_labels": len(bench.base.labels),
    }
    record = Record(arguments.out, facts, verbose=arguments.verbose)
    network = build(arguments.network, read_weights(arguments.network, arguments.weights)).to(device)
    before = copy_state(network)

    def report(name: str, *, full: bool = False, **told: Any) -> None:
        for size in arguments.measure_sizes or arguments.sizes:
            record.add(bench.measure(network, size, full=full), size=size, **told)
        if arguments.save is not None:
            save(network, arguments.save / f"{arguments.network}-{name}.safetensors")
        for bits, state in [(bits, rounded(network, bits)) for bits in arguments.bits]:
            network.body.load_state_dict(state)
            record.add(bench.measure(network, max(arguments.sizes)), size=max(arguments.sizes), **told, bits=bits)

    if not arguments.no_untuned:
        report("untuned", full=True, average=0.0)
    for settings in tunings(arguments):
        states = []
        for seed in arguments.seeds:
            network.body.load_state_dict(before)
            started = time.perf_counter()
            loss = tune(network, bench.base, replace(settings, seed=seed))
            told = {"seed": seed, "loss": round(loss, 5), "seconds": round(time.perf_counter() - started, 1)}
            states.append(copy_state(network))
            for share in arguments.averages:
                network.body.load_state_dict(average([states[-1], before], [share, 1 - share]))
                report(f"seed{seed}-average{share}", **vars(settings) | told, average=share)
        for share in arguments.averages if len(states) > 1 else ():
            shares = [share / len(states)] * len(states) + [1 - share]
            network.body.load_state_dict(average([*states, before], shares))
            told = {"seed": f"mean of {len(states)}"}
            report(f"mean-average{share}", full=True, **vars(settings) | told, average=share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("tinyvit", "dinov2"), required=True)
    parser.add_argument("--weights", type=Path, required=True, help="an ONNX file, or safetensors in timm's keys")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the packs")
    parser.add_argument("--packs", nargs="+", default=["train"], help="the pictures to tune on")
    parser.add_argument("--split", default="coco", help="whose base labels; figures (--phases) are of coco's alone")
    parser.add_argument("--fit-packs", nargs="+", help="the pictures of space and word map, if others")
    parser.add_argument(
        "--words", default=SHIPPED, help="word vectors of labels and classes: the shipped ones, or a file"
    )
    parser.add_argument("--classifier", type=Path, help="EfficientNet-Lite2 in timm's keys, for figures")
    parser.add_argument("--all-labels", action="store_true", help="tune on all 80 labels")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[112, 140, 168, 224], help="of the pictures; a step takes one of them"
    )
    parser.add_argument("--measure-sizes", type=int, nargs="+", help="the sizes to measure at, if others")
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-5])
    parser.add_argument("--epochs", type=int, nargs="*", default=[3], help="none: measure the network as it comes")
    parser.add_argument("--averages", type=float, nargs="+", default=[0.8], help="the tuned weights' share")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--head-rate", type=float, default=2e-3)
    parser.add_argument(
        "--layer-decays", type=float, nargs="+", default=[0.75], help="a layer's rate by the next one's"
    )
    parser.add_argument("--smallest-crop", type=float, default=0.6, help="as a share of the area")
    parser.add_argument(
        "--bits", type=int, choices=(8, 16), nargs="*", default=[], help="measure weights rounded to so many bits, too"
    )
    parser.add_argument("--no-untuned", action="store_true", help="leave the pretrained network out")
    parser.add_argument("--phases", nargs="*", choices=("val", "test", "mixed"), default=["val"])
    parser.add_argument("--variants", nargs="+", choices=("all", "clean", "none"), default=["all", "clean"])
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 1, 5])
    parser.add_argument(
        "--mixed-shots", type=int, nargs="*", default=[], help="more numbers of examples, for mixed alone"
    )
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--draw-seed", type=int, default=0)
    parser.add_argument("--strengths", default="{}", help="JSON of strengths other than the default ones")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save", type=Path, help="a folder for the averaged weights, in half precision")
    parser.add_argument("--verbose", action="store_true")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
