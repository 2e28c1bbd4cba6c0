"""Networks, their weights and the packs' pictures, for the scripts that tune networks and measure them.

Weights come from an ONNX file whose tensors are known here (TinyViT-5M, DINOv2 ViT-S/14) or from a state dict in timm's
keys. DINOv2 keeps its table of 37 × 37 positions, from which timm makes one for each size of pictures: a file of
weights serves at any size.
"""

import math
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from measure_posterior import Draws, Names
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fewtag.files import replacing
from fewtag.graphs import SMALLEST, quantise
from fewtag.pictures.decode import decode
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.data.splits import Split, class_names, overlapping_classes
from fewtag.words.vectors import SHIPPED, class_vectors, load_words

MOST_PLACES = 8
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TIMM = {"tinyvit": "tiny_vit_5m_224", "dinov2": "vit_small_patch14_dinov2"}
ANY_SIZE: dict[str, dict[str, Any]] = {"tinyvit": {"drop_path_rate": 0.0}, "dinov2": {"dynamic_img_size": True}}

State = dict[str, Tensor]


class Network(nn.Module):
    """Square pictures of 0 to 255 in, feature maps of at most 8 × 8 places out: pictures × places × channels."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: Any, most_places: int = MOST_PLACES) -> None:
        super().__init__()
        self.body, self.most_places = body, most_places
        self.register_buffer("mean", 255 * torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", 255 * torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        maps = self.body.forward_features((pictures.float() - self.mean) / self.std)
        if maps.ndim == 3:  # a transformer's tokens, the class's first
            side = math.isqrt(maps.shape[1] - 1)
            maps = maps[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        if maps.shape[-1] > self.most_places:
            maps = F.adaptive_avg_pool2d(maps, self.most_places)
        return maps.flatten(2).transpose(1, 2)


def build(kind: str, state: State) -> Network:
    """A network from a state dict in timm's keys."""
    body = timm.create_model(TIMM[kind], pretrained=False, num_classes=0, **ANY_SIZE[kind])
    missing, unknown = body.load_state_dict(state, strict=False)
    # the head, which maps do not pass, has a norm of its own that the files may lack
    wanted = [name for name in missing if "num_batches_tracked" not in name and not name.startswith("head.")]
    if wanted or unknown:
        raise SystemExit(f"weights do not fit {kind!r}: missing {wanted[:3]}, unknown {unknown[:3]}; give its own")
    return Network(body)


def resized(pictures: Tensor, size: int) -> Tensor:
    """Pictures at another size, as floats, averaged where they shrink."""
    pixels = pictures.float()
    if pixels.shape[-1] == size:
        return pixels
    return F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)


def copy_state(network: Network) -> State:
    """The body's tensors as they are now."""
    return {name: tensor.detach().clone() for name, tensor in network.body.state_dict().items()}


def average(states: Sequence[State], weights: Sequence[float]) -> State:
    """The weighted mean of several networks' tensors."""
    return {
        name: torch.stack([weight * state[name] for state, weight in zip(states, weights, strict=True)]).sum(dim=0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }


def rounded(network: Network, bits: int) -> State:
    """The body's tensors with the weights of layers as integers of so many bits, as the product's graphs keep them."""
    state = copy_state(network)
    for name, module in network.body.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.weight.numel() >= SMALLEST:
            codes, scales = quantise(module.weight.detach().float().cpu().numpy(), 0, bits)
            state[f"{name}.weight"] = torch.from_numpy(codes * scales).to(module.weight.device)
    return state


def save(network: Network, path: Path) -> None:
    """The body's tensors in half precision."""
    state = {name: tensor for name, tensor in network.body.state_dict().items() if "num_batches_tracked" not in name}
    with replacing(path) as part:
        save_file({name: tensor.half().contiguous() for name, tensor in state.items()}, part)


@torch.inference_mode()
def encode(network: Network, pixels: Tensor, size: int, *, batch: int = 512) -> Tensor:
    """Maps of all pictures, in half precision."""
    network.eval()
    found = []
    for pictures in pixels.split(batch):
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=pixels.is_cuda):
            found.append(network(resized(pictures, size)).half())
    return torch.cat(found)


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
        state[f"{norm}.running_var"] = torch.full_like(bias, 1 - float(vars(body.get_submodule(norm))["eps"]))
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


def read_pictures(
    folder: Path,
    packs: Sequence[str],
    labels: Sequence[str],
    device: torch.device,
    aliases: Mapping[str, str] | None = None,
) -> Pictures:
    """The pictures of the packs, in the table's order; labels other than `labels` are not looked at."""
    called = aliases or {}
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
        shown = [called.get(label, label) for label in line[3].split(",")]
        targets[number, [labels.index(label) for label in shown if label in labels]] = True

    def pixels(line: list[str]) -> Tensor:
        return torch.from_numpy(np.array(decode(encoded[line[0], line[1]], line[1]))).permute(2, 0, 1)

    with ThreadPoolExecutor() as workers:
        found = list(workers.map(pixels, lines))
    return Pictures(tuple(labels), torch.stack(found).to(device), torch.from_numpy(targets).to(device))


@torch.inference_mode()
def soft_labels(weights: Path, pixels: Tensor, *, batch: int = 512) -> Tensor:
    """EfficientNet-Lite2's probabilities of its thousand classes."""
    network = timm.create_model("tf_efficientnet_lite2", pretrained=False)
    network.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()}, strict=False)
    network.eval().to(pixels.device).to(memory_format=torch.channels_last)
    return torch.cat([network(pictures.float() / 127.5 - 1).softmax(dim=-1) for pictures in pixels.split(batch)])


def read_names(variant: str, device: torch.device, source: str = SHIPPED) -> Names:
    """Word vectors of COCO's labels and of the classes of ImageNet.

    `variant` is `all` classes, `clean` of those that overlap a validation or novel label, or `none`.
    """
    split, classes, words = Split.load("coco"), class_names("imagenet-1k"), load_words(source)
    vectors, known = class_vectors(words, classes)
    every = np.zeros((len(classes), words.dimensions), np.float32)
    every[known] = vectors
    left_out = list(overlapping_classes("imagenet-1k", "coco"))
    usable = {"all": known, "clean": known & ~np.isin(np.arange(len(classes)), left_out), "none": np.zeros_like(known)}
    labels = words.vectors([split.spelt(label) for label in split.labels])
    of_labels, of_classes, used = (torch.from_numpy(each).to(device) for each in (labels, every, usable[variant]))
    return Names(tuple(split.labels), of_labels, of_classes, used)


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
