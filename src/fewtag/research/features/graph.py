"""ONNX export of a backbone as the graph that the product runs: pixels and a space in, places out.

Batch-norm is fused into the convolutions, and weights are stored as integers with a scale for each channel: of 16 bits,
as small as half precision and ten times as exact, or of 8. A grid finer than 8 × 8 is pooled; the fine one is a second
output. The squares may have any size that the network allows.
"""

import copy
import hashlib
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtag.errors import InputError, first_line
from fewtag.files import write_atomically
from fewtag.graphs import pack_weights
from fewtag.research.features.backbone import Backbone, fuse_batch_norms
from fewtag.runtime import INPUTS, OUTPUTS

TOLERANCE = {16: 1e-3, 8: 0.1}
"""How far a place of the graph may be from torch's, relative to its greatest number, by the bits of its weights."""
Constants = dict[str, NDArray[np.float32]]
"""Inputs of a graph that are the same for all pictures of one size."""
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SIDE = 8
"""The most places per side of a map: a finer grid is pooled."""


class PlacesGraph(nn.Module):
    """Pixels to the places of their map in a space, pooled and fine; `positions` and `pool` are each for one size."""

    scale: Tensor
    shift: Tensor

    def __init__(self, backbone: Backbone, network: nn.Module) -> None:
        super().__init__()
        self.network, self.layout = network, backbone.layout
        self.flip = backbone.preprocessing.order == "BGR"
        self.prefix_tokens = int(getattr(backbone.network, "num_prefix_tokens", 0))
        self.register_buffer("scale", 1 / backbone.std)
        self.register_buffer("shift", -backbone.mean / backbone.std)

    def forward(
        self, pixels: Tensor, mean: Tensor, basis: Tensor, pool: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        pixels = pixels.flip(1) if self.flip else pixels
        scaled = pixels.float() * self.scale + self.shift
        network: Any = self.network
        features = network.forward_features(scaled) if positions is None else _tokens(network, scaled, positions)
        if self.layout == "NCHW":
            features = features.flatten(2).transpose(1, 2)
        elif self.layout == "NHWC":
            features = features.flatten(1, 2)
        else:
            features = features[:, self.prefix_tokens :]
        fine = (features - mean) @ basis
        return pool @ fine, fine  # projection and pooling are linear, so their order does not matter


def _tokens(network: Any, pixels: Tensor, positions: Tensor) -> Tensor:
    """timm's plain vision transformer with its position embeddings as an input, so that one graph serves all sizes."""
    patches = network.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
    # not network._pos_embed, which resamples its own table to one size
    tokens = torch.cat([network.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1) + positions
    return network.norm(network.blocks(network.norm_pre(tokens)))


def takes_positions(network: Any) -> bool:
    """Whether a network is a plain vision transformer with a class token and learnt absolute positions."""
    return (
        type(network).__name__ == "VisionTransformer"
        and getattr(network, "pos_embed", None) is not None
        and network.num_prefix_tokens == 1
        and not network.no_embed_class
        and not getattr(network, "dynamic_img_size", False)
    )


def write_graph(backbone: Backbone, path: Path, bits: Literal[8, 16] = 16) -> tuple[dict[str, Any], Constants]:
    """Writes the graph and checks it against torch; returns facts for a model's header, and this size's constants."""
    import onnx

    network = with_static_padding(copy.deepcopy(fuse_batch_norms(backbone).network).float().cpu())
    constants = size_constants(backbone)
    named = {name: torch.from_numpy(value) for name, value in constants.items()}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about torch's internals
        pixels = torch.zeros(2, 3, backbone.size, backbone.size, dtype=torch.uint8)
        space = torch.zeros(backbone.channels), torch.zeros(backbone.channels, 2)
        torch.onnx.export(
            PlacesGraph(backbone, network).eval(),
            (pixels, *space, *named.values()),
            str(path),
            input_names=[*INPUTS, *named],
            output_names=list(OUTPUTS),
            dynamic_axes={
                "pixels": {0: "images", 2: "height", 3: "width"},
                "mean": {0: "channels"},
                "basis": {0: "channels", 1: "space"},
                "pool": {0: "places", 1: "fine places"},
                "positions": {1: "tokens"},
                "places": {0: "images", 1: "places", 2: "space"},
                "fine": {0: "images", 1: "fine places", 2: "space"},
            },
            opset_version=17,
            dynamo=False,
        )
    graph = onnx.load_model_from_string(pack_weights(path.read_bytes(), bits=bits))
    facts = _write(graph, path, backbone.name, backbone.size, backbone.channels, constants)
    _check(backbone, path, constants, TOLERANCE[bits])
    return facts | {"bits": bits, "weights": backbone.fingerprint}, constants


def _write(graph: Any, path: Path, name: str, size: int, channels: int, constants: Constants) -> dict[str, Any]:
    """Writes a valid graph, without torch's metadata, which names folders of this machine; returns its facts."""
    import onnx

    for noted in (graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output, *graph.graph.value_info):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    del graph.graph.value_info[:]
    graph.producer_name, graph.producer_version, graph.doc_string = "fewtag", "", ""
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    write_atomically(path, content)
    facts = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "name": name, "size": size}
    return facts | {"channels": channels, "places": len(constants["pool"])}


def wrap_graph(source: Path, path: Path, size: int) -> tuple[dict[str, Any], Constants]:
    """Wraps an ONNX file, from pixels normalised as for ImageNet to a feature map, as a graph that the product runs."""
    import onnx.parser
    import onnxruntime

    if not source.is_file():
        raise InputError(f"there is no network {source}; check the path")
    try:
        graph = onnx.load(source)
        session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
        wanted, given = session.get_inputs()[0].name, session.get_outputs()[0].name
        features = session.run([given], {wanted: np.zeros((1, 3, size, size), np.float32)})[0]
    except Exception as error:  # onnxruntime raises many types without a common base
        found = f"{source} cannot be run on 1 × 3 × {size} × {size} numbers ({first_line(error)})"
        raise InputError(f"{found}; check --size") from error
    shape, turned = _to_places(features.shape, source)
    channels, side = (shape[1], math.isqrt(shape[2])) if turned else (shape[2], math.isqrt(shape[1]))
    around = onnx.parser.parse_graph(f"""
        places (uint8[images, 3, {size}, {size}] pixels, float[{channels}] mean, float[{channels}, space] basis,
                float[places, fine_places] pool)
            => (float[images, places, space] places, float[images, fine_places, space] fine)
            <float[1, 3, 1, 1] fewtag_mean = {{{", ".join(map(str, IMAGENET_MEAN))}}},
             float[1, 3, 1, 1] fewtag_std = {{{", ".join(map(str, IMAGENET_STD))}}},
             int64[3] fewtag_shape = {{{", ".join(map(str, shape))}}}>
        {{
            fewtag_numbers = Cast <to = 1> (pixels)
            fewtag_centred = Sub (fewtag_numbers, fewtag_mean)
            fewtag_wanted = Div (fewtag_centred, fewtag_std)
            fewtag_flat = Reshape (fewtag_given, fewtag_shape)
            fewtag_local = Transpose <perm = {[0, 2, 1] if turned else [0, 1, 2]}> (fewtag_flat)
            fewtag_rest = Sub (fewtag_local, mean)
            fine = MatMul (fewtag_rest, basis)
            places = MatMul (pool, fine)
        }}
    """)
    before, after = around.node[:3], around.node[3:]
    before[-1].output[0], after[0].input[0] = wanted, given
    nodes = [*before, *graph.graph.node, *after]
    for part in (graph.graph.node, graph.graph.input, graph.graph.output):
        del part[:]
    graph.graph.node.extend(nodes)
    graph.graph.initializer.extend(around.initializer)
    graph.graph.input.extend(around.input)
    graph.graph.output.extend(around.output)
    constants = {"pool": pooling(side, min(SIDE, side))}
    return _write(graph, path, source.name, size, channels, constants), constants


def _to_places(shape: Sequence[int], source: Path) -> tuple[list[int], bool]:
    """An output's shape as images × places × channels, or as images × channels × places, to be transposed."""
    if len(shape) == 4 and shape[2] == shape[3]:  # images × channels × rows × columns
        return [0, shape[1], shape[2] * shape[3]], True
    if len(shape) == 4 and shape[1] == shape[2]:
        return [0, shape[1] * shape[2], shape[3]], False
    if len(shape) == 3 and math.isqrt(shape[1]) ** 2 == shape[1]:
        return [0, *shape[1:]], False
    found = " × ".join(map(str, shape))
    raise InputError(f"the first output of {source} is {found} numbers; a feature map of one square grid is needed")


@torch.inference_mode()
def size_constants(backbone: Backbone) -> Constants:
    """Inputs of a graph that depend on the pictures' size: the pooling of places, a transformer's positions."""
    pixels = torch.zeros(1, 3, backbone.size, backbone.size, dtype=torch.uint8)
    side = int(backbone.eval().cpu()(pixels).shape[-1])
    constants = {"pool": pooling(side, min(side, SIDE))}
    if takes_positions(backbone.network):
        constants["positions"] = backbone.network.pos_embed.detach().float().numpy()
    return constants


def pooling(fine: int, coarse: int) -> NDArray[np.float32]:
    """The matrix of an adaptive average pooling from one square grid to another."""
    identity = torch.eye(fine * fine).reshape(1, fine * fine, fine, fine)
    return nn.functional.adaptive_avg_pool2d(identity, coarse).flatten(2)[0].T.contiguous().numpy()


def with_static_padding(network: Any) -> Any:
    """TensorFlow's 'same' padding as constants, which are the same for any even size of the input."""
    for parent in list(network.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__ == "Conv2dSame":
                total = part.kernel_size[0] - part.stride[0]
                kind = part.in_channels, part.out_channels, part.kernel_size, part.stride
                padded = nn.Conv2d(*kind, groups=part.groups, bias=part.bias is not None)
                padded.load_state_dict(part.state_dict())
                before = total // 2
                setattr(parent, name, nn.Sequential(nn.ZeroPad2d((before, total - before) * 2), padded))
    return network.eval()


@torch.inference_mode()
def _check(backbone: Backbone, path: Path, constants: Constants, tolerance: float) -> None:
    """Refuses a graph that disagrees with torch on noise."""
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 3, backbone.size, backbone.size), dtype=torch.uint8, generator=generator)
    maps = backbone.eval().cpu()(pixels)
    expected = nn.functional.adaptive_avg_pool2d(maps, min(SIDE, maps.shape[-1])).flatten(2).transpose(1, 2).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    identity = np.zeros(backbone.channels, np.float32), np.eye(backbone.channels, dtype=np.float32)
    inputs = dict(zip(INPUTS, (pixels.numpy(), *identity), strict=True)) | dict(constants)
    places = session.run(OUTPUTS[:1], inputs)[0]
    difference = float(np.abs(places - expected).max() / np.abs(expected).max())
    if not difference <= tolerance:
        raise InputError(f"the graph of {backbone.name!r} is {difference:.2g} from torch; choose another network")
