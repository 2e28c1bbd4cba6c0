"""Tunes a pretrained network gently on base labels, averages it with what it was, and measures it on unseen labels.

    python scripts/tune_network.py --network dinov2 --weights dinov2_vits14_patch_8x8.onnx --data DIR \
        --names names.npz --classifier lite2.safetensors --seeds 0 1 2 --phases val --out rows.json --save tuned/

Tuning is binary cross-entropy on the base labels of the packs in DIR: AdamW, a cosine schedule, mirrored crops,
batch-norm frozen. The head starts at zero and learns at a rate of its own, far above the network's: a random head pulls
random directions through the network (12 points lost on the validation labels), one fitted beforehand leaves it little
to learn. The weights are then averaged, part tuned and part pretrained. Several values of an option make a grid;
settings are chosen on the validation labels (`--phases val`), the novel ones looked at once (`--phases test mixed`).
Each row of the JSON file has its settings, its seed and its figures, mean and half 95 % interval over episodes.

Weights come from an ONNX file whose tensors are known here (TinyViT-5M, DINOv2 ViT-S/14) or from a state dict in
timm's keys. `--names` holds the word vectors (`name_vectors.py` makes it), `--classifier` the weights of
EfficientNet-Lite2 in timm's keys, whose soft labels stand for its thousand class names.
"""

import argparse
import itertools
import json
import math
import sys
import tarfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from fewtag.research.data.episodes import EpisodeSampler
from fewtag.research.data.split_files import load_content
from measure_posterior import Base, Draws, Names, Pool, Strengths, fit, measure, row
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fewtag.files import replacing, write_atomically
from fewtag.pictures.decode import decode

MOST_PLACES = 8
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POSITIONS = ("timm", "dinov2", "file")
RARE = -3.0
"""A label's logit before anything is learnt."""
WARM_UP = 0.05
"""The share of the steps in which the rate rises."""

State = dict[str, Tensor]


class Network(nn.Module):
    """uint8 pictures in, feature maps of at most 8 × 8 places out: pictures × places × channels."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: Any, size: int) -> None:
        super().__init__()
        self.body, self.size = body, size
        self.register_buffer("mean", 255 * torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", 255 * torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        pixels = pictures.float()
        if pixels.shape[-1] != self.size:
            pixels = F.interpolate(pixels, size=(self.size, self.size), mode="bilinear", antialias=True)
        maps = self.body.forward_features((pixels - self.mean) / self.std)
        if maps.ndim == 3:  # a transformer's tokens, the class's first
            side = math.isqrt(maps.shape[1] - 1)
            maps = maps[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        if maps.shape[-1] > MOST_PLACES:
            maps = F.adaptive_avg_pool2d(maps, MOST_PLACES)
        return maps.flatten(2).transpose(1, 2)


def build(kind: str, state: State, *, size: int, positions: str = "timm") -> Network:
    """A network from a state dict in timm's keys, at a size of its pictures."""
    if kind == "tinyvit":
        body = timm.create_model("tiny_vit_5m_224", pretrained=False, num_classes=0, drop_path_rate=0.0)
    else:
        body = timm.create_model("vit_small_patch14_dinov2", pretrained=False, num_classes=0, img_size=size)
        grid = size // 14
        if state["pos_embed"].shape[1] != 1 + grid * grid:
            state = {**state, "pos_embed": resample(state["pos_embed"], grid, positions)}
    missing, unknown = body.load_state_dict(state, strict=False)
    # the head, which maps do not pass, has a norm of its own that the files may lack
    wanted = [name for name in missing if "num_batches_tracked" not in name and not name.startswith("head.")]
    if wanted or unknown:
        raise SystemExit(f"weights do not fit {kind!r}: missing {wanted[:3]}, unknown {unknown[:3]}; give its own")
    return Network(body, size)


def resample(table: Tensor, grid: int, positions: str) -> Tensor:
    """A table of positions for another grid: as timm does, as DINOv2 does, or as the ONNX file does."""
    first, rest = table[:, :1], table[:, 1:]
    side = math.isqrt(rest.shape[1])
    square = rest.transpose(1, 2).unflatten(2, (side, side)).float()
    if positions == "timm":
        square = F.interpolate(square, size=(grid, grid), mode="bicubic", antialias=True)
    else:
        # DINOv2 adds 0.1 to the wanted side before it divides; the file's exporter made bicubic into linear
        mode = "bicubic" if positions == "dinov2" else "bilinear"
        square = F.interpolate(square, scale_factor=(grid + 0.1) / side, mode=mode, recompute_scale_factor=False)
    return torch.cat([first, square.flatten(2).transpose(1, 2)], dim=1)


def read_weights(kind: str, path: Path) -> State:
    """A state dict in timm's keys, from an ONNX file or from safetensors."""
    if path.suffix == ".onnx":
        return read_onnx_tinyvit(path) if kind == "tinyvit" else read_onnx_dinov2(path)
    return {name: tensor.float() for name, tensor in load_file(path).items()}


def read_onnx(path: Path) -> tuple[State, list[tuple[Tensor, Tensor]], list[Tensor]]:
    """The named tensors of an ONNX file; weight and bias of its convolutions and its matrices, in order of use."""
    import onnx

    graph = onnx.load(str(path)).graph
    named = {tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    convolutions = [(named[node.input[1]], named[node.input[2]]) for node in graph.node if node.op_type == "Conv"]
    products = [
        named[name].T.contiguous()
        for node in graph.node
        if node.op_type == "MatMul"
        for name in node.input
        if name in named
    ]
    return named, convolutions, products


def read_onnx_tinyvit(path: Path) -> State:
    """TinyViT-5M: its batch-norms are folded into the convolutions, so that ours become biases."""
    named, convolutions, products = read_onnx(path)
    body = timm.create_model("tiny_vit_5m_224", pretrained=False, num_classes=0).eval()
    used: list[str] = []
    for name, module in body.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda *_, name=name: used.append(name))
    with torch.no_grad():
        body(torch.zeros(1, 3, 224, 224))
    state = {name.removeprefix("model.").replace("stages_", "stages."): tensor for name, tensor in named.items()}
    state = {name: tensor for name, tensor in state.items() if not name.startswith("onnx::")}
    for name, (weight, bias) in zip(used, convolutions, strict=True):
        norm = name.removesuffix("conv") + "bn"
        state[f"{name}.weight"] = weight
        state[f"{norm}.bias"], state[f"{norm}.running_mean"] = bias, torch.zeros_like(bias)
        state[f"{norm}.weight"] = torch.ones_like(bias)
        state[f"{norm}.running_var"] = torch.full_like(bias, 1 - body.get_submodule(norm).eps)
    linear = [name for name, module in body.named_modules() if isinstance(module, nn.Linear)]
    state |= {f"{name}.weight": matrix for name, matrix in zip(linear, products, strict=True)}
    return state


def read_onnx_dinov2(path: Path) -> State:
    """DINOv2 ViT-S/14 with its table of 37 × 37 positions; the class token's position equals the token in the file."""
    named, _, products = read_onnx(path)
    state = {name.removeprefix("model."): tensor for name, tensor in named.items() if name.startswith("model.")}
    layers = [
        f"blocks.{block}.{layer}" for block in range(12) for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    ]
    state |= {f"{layer}.weight": matrix for layer, matrix in zip(layers, products, strict=True)}
    grid = next(tensor for tensor in named.values() if tensor.shape == (1, 37 * 37, 384))
    state["pos_embed"] = torch.cat([state["cls_token"], grid], dim=1)
    return state


@dataclass(frozen=True, eq=False)
class Pictures:
    """A phase's pictures as they come (224 px) with their targets, on the device."""

    labels: tuple[str, ...]
    pixels: Tensor
    targets: Tensor


def read_pictures(folder: Path, packs: Sequence[str], labels: Sequence[str], device: torch.device) -> Pictures:
    """The pictures of the packs, in the table's order; labels other than `labels` are not looked at."""
    lines = [line.split("\t") for line in (folder / "labels.tsv").read_text().splitlines()[1:]]
    lines = [line for line in lines if line[0] in packs]
    encoded: dict[tuple[str, str], bytes] = {}
    for pack in packs:
        for path in sorted(folder.glob(f"{pack}-*.tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    assert file is not None
                    encoded[pack, Path(member.name).stem] = file.read()
    targets = np.zeros((len(lines), len(labels)), dtype=bool)
    for number, line in enumerate(lines):
        targets[number, [labels.index(label) for label in line[3].split(",") if label in labels]] = True

    def pixels(line: list[str]) -> Tensor:
        return torch.from_numpy(np.array(decode(encoded[line[0], line[1]], line[1]))).permute(2, 0, 1)

    with ThreadPoolExecutor() as workers:
        found = list(workers.map(pixels, lines))
    return Pictures(tuple(labels), torch.stack(found).to(device), torch.from_numpy(targets).to(device))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """One run's settings."""

    rate: float
    head_rate: float = 2e-3
    epochs: int = 4
    seed: int = 0
    batch: int = 128
    decay: float = 0.01
    smallest_crop: float = 0.6


def crops(pictures: Tensor, size: int, smallest: float, generator: torch.Generator) -> Tensor:
    """Random square parts of at least a share `smallest` of the area, half of them mirrored, as `size` × `size`."""
    count, device = len(pictures), pictures.device
    draws = torch.rand(4, count, generator=generator, device=device)
    side = (smallest + (1 - smallest) * draws[0]).sqrt()
    mirrored = torch.where(draws[3] < 0.5, -1.0, 1.0)
    affine = torch.zeros(count, 2, 3, device=device)
    affine[:, 0, 0], affine[:, 1, 1] = side * mirrored, side
    affine[:, 0, 2], affine[:, 1, 2] = (1 - side) * (2 * draws[1] - 1), (1 - side) * (2 * draws[2] - 1)
    grid = F.affine_grid(affine, [count, 3, size, size], align_corners=False)
    return F.grid_sample(pictures.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)


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
    groups = [{"params": list(network.parameters())}, {"params": list(head.parameters()), "lr": settings.head_rate}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate, weight_decay=settings.decay, fused=device.type == "cuda")
    steps_an_epoch = len(targets) // settings.batch
    total = settings.epochs * steps_an_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / (WARM_UP * total)) * 0.5 * (1 + math.cos(math.pi * step / total))
    )
    losses = torch.zeros(steps_an_epoch, device=device)
    for _ in range(settings.epochs):
        order = torch.randperm(len(targets), generator=generator, device=device)
        for step in range(steps_an_epoch):
            rows = order[step * settings.batch : (step + 1) * settings.batch]
            batch = crops(pictures.pixels[rows], network.size, settings.smallest_crop, generator)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                maps = network(batch)
            loss = F.binary_cross_entropy_with_logits(head(maps.float().mean(dim=1)), targets[rows])
            losses[step] = loss.detach()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    network.eval()
    return losses.mean().item()


def average(states: Sequence[State], weights: Sequence[float]) -> State:
    """The weighted mean of several networks' tensors."""
    return {
        name: sum(weight * state[name] for state, weight in zip(states, weights, strict=True))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }


def copy_state(network: Network) -> State:
    """The body's tensors as they are now."""
    return {name: tensor.detach().clone() for name, tensor in network.body.state_dict().items()}


@torch.inference_mode()
def encode(network: Network, pixels: Tensor, *, batch: int = 512) -> Tensor:
    """Maps of all pictures, in half precision."""
    network.eval()
    found = []
    for pictures in pixels.split(batch):
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=pixels.is_cuda):
            found.append(network(pictures).half())
    return torch.cat(found)


@torch.inference_mode()
def soft_labels(weights: Path, pixels: Tensor, *, batch: int = 512) -> Tensor:
    """EfficientNet-Lite2's probabilities of its thousand classes."""
    network = timm.create_model("tf_efficientnet_lite2", pretrained=False)
    network.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()}, strict=False)
    network.eval().to(pixels.device, memory_format=torch.channels_last)
    return torch.cat([network(pictures.float() / 127.5 - 1).softmax(dim=-1) for pictures in pixels.split(batch)])


def read_names(path: Path, variant: str, device: torch.device) -> Names:
    """Word vectors from `name_vectors.py`; `variant` is `all`, `clean` or `none` of the class names."""
    with np.load(path, allow_pickle=False) as file:
        usable = {"all": file["known"], "clean": file["known"] & file["clean"], "none": np.zeros_like(file["known"])}
        return Names(
            tuple(str(label) for label in file["labels"]),
            torch.from_numpy(file["words"]).float().to(device),
            torch.from_numpy(file["class_words"]).float().to(device),
            torch.from_numpy(usable[variant]).to(device),
        )


def draw(pictures: Pictures, shots: int, queries: int, episodes: int, seed: int) -> Draws:
    """The episodes that `fewtag bench` draws with the same seed; no shots draw as one does."""
    targets = pictures.targets.cpu().numpy()
    sampler = EpisodeSampler(targets, pictures.labels, shots=max(shots, 1), queries=queries, seed=seed)
    found = [sampler.draw(index) for index in range(episodes)]
    device = pictures.pixels.device
    support, query = (
        torch.tensor([getattr(one, part) for one in found], device=device) for part in ("support", "query")
    )
    return Draws(support, query, shots)


class Bench:
    """Pictures, soft labels and episodes, read once for all settings."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        groups = load_content("coco").groups
        folder = arguments.data / "coco"
        labels = {
            "train": groups["base"],
            "val": groups["validation"],
            "test": groups["novel"],
            "mixed": groups["novel"],
        }
        self.names = {variant: read_names(arguments.names, variant, device) for variant in arguments.variants}
        if arguments.all_labels:
            everything = [*groups["base"], *groups["validation"], *groups["novel"]]
            self.base = read_pictures(folder, ("train", "val", "test", "mixed"), everything, device)
        else:
            self.base = read_pictures(folder, ("train",), labels["train"], device)
        self.soft = soft_labels(arguments.classifier, self.base.pixels)
        self.pictures = {phase: read_pictures(folder, (phase,), labels[phase], device) for phase in arguments.phases}
        self.draws = {
            (phase, shots): draw(pictures, shots, arguments.queries, arguments.episodes, arguments.draw_seed)
            for phase, pictures in self.pictures.items()
            for shots in arguments.shots
        }
        self.strengths = replace(Strengths(), **json.loads(arguments.strengths))

    def measure(self, network: Network, *, full: bool = False) -> dict[str, Any]:
        """Figures by variant of names, phase and examples; `full` adds one label a picture and the closed form."""
        places = encode(network, self.base.pixels)
        base = Base(self.base.labels, places.float().mean(dim=1), self.base.targets, self.soft)
        maps = {phase: encode(network, pictures.pixels) for phase, pictures in self.pictures.items()}
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


def judge(figures: dict[str, Any]) -> float | None:
    """What settings are chosen by: mean macro- and micro-AP over names and examples on the validation labels."""
    chosen = [value for key, value in figures.items() if " val, " in key and key.endswith(" examples")]
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
        settings["judged"] = judge(figures)
        self.rows.append({**self.facts, **settings, "figures": figures})
        print(json.dumps(settings), flush=True)
        if self.verbose:
            for key, value in figures.items():
                print("   ", key, value, flush=True)
        write_atomically(self.path, json.dumps(self.rows, indent=1).encode())


def tunings(arguments: argparse.Namespace) -> Iterable[Tuning]:
    """The grid of settings, but for the seeds."""
    for rate, head_rate, epochs in itertools.product(arguments.rates, arguments.head_rates, arguments.epochs):
        yield Tuning(
            rate=rate,
            head_rate=head_rate,
            epochs=epochs,
            batch=arguments.batch,
            smallest_crop=arguments.smallest_crop,
        )


def run(arguments: argparse.Namespace) -> None:
    """Measures the grid: the network as it comes, each seed's averages, and those of the mean of all seeds' weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = read_weights(arguments.network, arguments.weights)
    bench = Bench(arguments, device)
    facts = {
        "network": arguments.network,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "command": " ".join(sys.argv),
        "strengths": vars(bench.strengths),
        "episodes": arguments.episodes,
        "base_pictures": len(bench.base.pixels),
        "base_labels": len(bench.base.labels),
    }
    record = Record(arguments.out, facts, verbose=arguments.verbose)
    for size, positions in itertools.product(arguments.sizes, arguments.positions):
        network = build(arguments.network, weights, size=size, positions=positions).to(device)
        before = copy_state(network)
        place = {"size": size, "positions": positions}
        if not arguments.no_untuned:
            record.add(bench.measure(network, full=True), **place, average=0.0)
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
                    record.add(bench.measure(network), **place, **vars(settings) | told, average=share)
                    save(network, arguments.save, f"{arguments.network}-{size}-seed{seed}-average{share}")
            for share in arguments.averages if len(states) > 1 else ():
                shares = [share / len(states)] * len(states) + [1 - share]
                network.body.load_state_dict(average([*states, before], shares))
                seeds = {"seed": f"mean of {len(states)}"}
                record.add(bench.measure(network, full=True), **place, **vars(settings) | seeds, average=share)
                save(network, arguments.save, f"{arguments.network}-{size}-mean-average{share}")


def save(network: Network, folder: Path | None, name: str) -> None:
    """The body's tensors in half precision, if a folder is given."""
    if folder is None:
        return
    state = {name: tensor for name, tensor in network.body.state_dict().items() if "num_batches_tracked" not in name}
    with replacing(folder / f"{name}.safetensors") as part:
        save_file({name: tensor.half().contiguous() for name, tensor in state.items()}, part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("tinyvit", "dinov2"), required=True)
    parser.add_argument("--weights", type=Path, required=True, help="an ONNX file, or safetensors in timm's keys")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the packs")
    parser.add_argument("--names", type=Path, required=True, help="word vectors of labels and classes")
    parser.add_argument("--classifier", type=Path, required=True, help="EfficientNet-Lite2 in timm's keys")
    parser.add_argument("--all-labels", action="store_true", help="tune on all 80 labels and all packs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224])
    parser.add_argument("--positions", nargs="+", choices=POSITIONS, default=["timm"])
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-5])
    parser.add_argument("--epochs", type=int, nargs="+", default=[4])
    parser.add_argument("--averages", type=float, nargs="+", default=[0.7], help="the tuned weights' share")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--head-rates", type=float, nargs="+", default=[2e-3])
    parser.add_argument("--smallest-crop", type=float, default=0.6)
    parser.add_argument("--no-untuned", action="store_true", help="leave the pretrained network out")
    parser.add_argument("--phases", nargs="*", choices=("val", "test", "mixed"), default=["val"])
    parser.add_argument("--variants", nargs="+", choices=("all", "clean", "none"), default=["all", "clean"])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
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
