"""ONNX export: a backbone as the graph that the product runs, pixels and a space in, places out.

Batch-norm is fused into the convolutions, and weights are stored as integers with a scale for each channel: of 16 bits,
as small as half precision and ten times as exact, or of 8. A grid finer than 8 × 8 is pooled; the fine one is a second
output. The squares may be of any size that the network allows.
"""

import copy
import hashlib
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.graphs import pack_weights
from fewtag.research.features.backbone import Backbone
from fewtag.research.features.inference import fuse_batch_norms
from fewtag.runtime import INPUTS, OUTPUTS

TOLERANCE = {16: 1e-3, 8: 0.1}
"""How far a place of the graph may be from torch's, of the greatest number in it, by the bits of its weights."""
SIDE = 8
"""Of a map's places, at most: a finer grid is pooled."""


class PlacesGraph(nn.Module):
    """Pixels to the places of their map in a space."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, network: nn.Module, side: int) -> None:
        super().__init__()
        self.network, self.layout = network, backbone.layout
        self.side, self.factor = side, -(-side // SIDE)
        self.flip = backbone.preprocessing.order == "BGR"
        self.prefix_tokens = int(getattr(backbone.network, "num_prefix_tokens", 0))
        self.register_buffer("scale", 1 / backbone.std)
        self.register_buffer("shift", -backbone.mean / backbone.std)

    def forward(self, pixels: Tensor, mean: Tensor, basis: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        pixels = pixels.flip(1) if self.flip else pixels
        features: Any = self.network.forward_features(pixels.float() * self.scale + self.shift)  # type: ignore[operator]
        if self.layout == "NCHW":
            features = features.flatten(2).transpose(1, 2)
        elif self.layout == "NHWC":
            features = features.flatten(1, 2)
        else:
            features = features[:, self.prefix_tokens :]
        fine = (features - mean) @ basis
        if self.factor == 1:
            return fine
        # projecting is linear, so that it does not matter which of the two comes first
        rows = self.side // self.factor
        grid = fine.reshape(-1, rows, self.factor, rows, self.factor, basis.shape[1])
        return grid.mean(dim=(2, 4)).reshape(-1, rows * rows, basis.shape[1]), fine


def write_graph(backbone: Backbone, path: Path, bits: Literal[8, 16] = 16) -> dict[str, Any]:
    """Writes the graph, checks it against torch, and answers with what a model says of its network."""
    import onnx

    with torch.inference_mode():
        side = backbone.eval().cpu()(torch.zeros(1, 3, backbone.size, backbone.size, dtype=torch.uint8)).shape[-1]
    if side > SIDE and side % -(-side // SIDE):
        raise InputError(
            f"the maps of {backbone.name!r} at {backbone.size} pixels are {side} × {side} places, which cannot be "
            f"pooled evenly to {SIDE} × {SIDE} or fewer; choose another size"
        )
    pooled = side > SIDE
    network = with_static_padding(copy.deepcopy(fuse_batch_norms(backbone).network).float().cpu())
    space = torch.zeros(backbone.channels), torch.zeros(backbone.channels, 2)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of torch's own inner workings
        pixels = torch.zeros(2, 3, backbone.size, backbone.size, dtype=torch.uint8)
        torch.onnx.export(
            PlacesGraph(backbone, network, side).eval(),
            (pixels, *space),
            str(path),
            input_names=list(INPUTS),
            output_names=list(OUTPUTS if pooled else OUTPUTS[:1]),
            dynamic_axes={
                "pixels": {0: "images", 2: "height", 3: "width"},
                "mean": {0: "channels"},
                "basis": {0: "channels", 1: "space"},
                "places": {0: "images", 1: "places", 2: "space"},
                **({"fine": {0: "images", 1: "fine places", 2: "space"}} if pooled else {}),
            },
            opset_version=17,
            dynamo=False,
        )
    graph = onnx.load_model_from_string(pack_weights(path.read_bytes(), bits=bits))
    without_notes(graph)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    write_atomically(path, content)
    return {
        "file": path.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "name": backbone.name,
        "size": backbone.size,
        "channels": backbone.channels,
        "places": _check(backbone, path, side, TOLERANCE[bits]),
        "zoom": 2 if backbone.layout == "NCHW" else 1,
        "weights": backbone.fingerprint,
    }


def with_static_padding(network: Any) -> Any:
    """TensorFlow's 'same' padding as constants: for any even size of the input it is the same."""
    for parent in list(network.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__ == "Conv2dSame":
                total = part.kernel_size[0] - part.stride[0]
                padded = nn.Conv2d(
                    part.in_channels,
                    part.out_channels,
                    part.kernel_size,
                    part.stride,
                    groups=part.groups,
                    bias=part.bias is not None,
                )
                padded.load_state_dict(part.state_dict())
                before = total // 2
                setattr(parent, name, nn.Sequential(nn.ZeroPad2d((before, total - before) * 2), padded))
    return network.eval()


def without_notes(graph: Any) -> None:
    """Drops torch's notes: they name folders of the machine that the graph was made on."""
    for noted in (graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output, *graph.graph.value_info):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    del graph.graph.value_info[:]
    graph.producer_name, graph.producer_version, graph.doc_string = "fewtag", "", ""


@torch.inference_mode()
def _check(backbone: Backbone, path: Path, side: int, tolerance: float) -> int:
    """Refuses a graph that disagrees with torch on noise; answers with the number of places."""
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 3, backbone.size, backbone.size), dtype=torch.uint8, generator=generator)
    maps = nn.functional.avg_pool2d(backbone.eval().cpu()(pixels), -(-side // SIDE))
    expected = maps.flatten(2).transpose(1, 2).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    identity = np.zeros(backbone.channels, np.float32), np.eye(backbone.channels, dtype=np.float32)
    places = session.run(OUTPUTS[:1], dict(zip(INPUTS, (pixels.numpy(), *identity), strict=True)))[0]
    difference = float(np.abs(places - expected).max() / np.abs(expected).max())
    if not difference <= tolerance:
        raise InputError(f"the graph of {backbone.name!r} is {difference:.2g} from torch; choose another network")
    return int(places.shape[1])
