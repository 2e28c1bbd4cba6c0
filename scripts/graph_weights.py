"""Writes a shipped DINOv2 model's network as a state dict in timm's keys, for recipes that measure on it.

    python scripts/graph_weights.py coco52 --out DATA/weights/dinov2-coco52-168.safetensors

The positions are those of the model's own size: `backbone.size` has to be the same.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors.torch import save_file
from torch import Tensor

from fewtag.files import replacing
from fewtag.graphs import unpack_weights
from fewtag.tagger.model import load_model

LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
PREFIX = "network."


def graph_weights(source: str) -> dict[str, Tensor]:
    """Every tensor of the network, its weights as the graph's bytes say them."""
    model = load_model(source)
    graph = onnx.load_model_from_string(unpack_weights(model.network.graph.read_bytes())).graph
    named = {tensor.name: onnx.numpy_helper.to_array(tensor).copy() for tensor in graph.initializer}
    products = [name for node in graph.node if node.op_type == "MatMul" for name in node.input if name in named]
    found = {name.removeprefix(PREFIX): values for name, values in named.items() if name.startswith(PREFIX)}
    layers = [f"blocks.{block}.{layer}" for block in range(len(products) // len(LAYERS)) for layer in LAYERS]
    found |= {f"{layer}.weight": named[name].T for layer, name in zip(layers, products, strict=True)}
    found["pos_embed"] = model.network.constants["positions"]
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a shipped model's name, or a path")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with replacing(arguments.out) as part:
        save_file(graph_weights(arguments.model), part)


if __name__ == "__main__":
    main()
