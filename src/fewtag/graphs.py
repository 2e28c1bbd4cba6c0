"""Quantisation of ONNX graphs: weights stored as integers, and matrix products in int8 arithmetic."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1024
"""Weight tensors with fewer numbers are left as they are."""


def to_int8(graph: bytes) -> bytes:
    """Dynamic quantisation: matrix products in int8 arithmetic, faster at little cost (docs/export.md).

    Convolutions in int8 arithmetic are slow in onnxruntime, and lose most accuracy; so only their stored weights are
    bytes. A graph whose products are in int8 already stays as it is.
    """
    import onnx

    if any(node.op_type == "QuantizeLinear" for node in onnx.load_model_from_string(graph).graph.node):
        return graph
    return pack_weights(quantise_products(unpack_weights(graph)))


def quantise_products(graph: bytes) -> bytes:
    """Matrix products in int8 arithmetic, of activations too, whose scale is computed anew for each batch."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    proto = onnx.load_model_from_string(graph)
    with tempfile.TemporaryDirectory() as folder, silent():
        quantize_dynamic(proto, Path(folder, "int8.onnx"), op_types_to_quantize=["MatMul"], per_channel=True)
        return Path(folder, "int8.onnx").read_bytes()


def pack_weights(graph: bytes, bits: Literal[8, 16] = 8) -> bytes:
    """Weights of convolutions and matrix products as integers of so many bits, with a scale for each output channel."""
    import onnx
    from onnx import helper, numpy_helper

    proto = onnx.load_model_from_string(graph)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    unpack: list[Any] = []
    for node in proto.graph.node:
        name = node.input[1] if node.op_type in {"Conv", "MatMul", "Gemm"} else ""
        if name not in weights:
            continue
        values = numpy_helper.to_array(weights[name])
        if values.size < SMALLEST or values.dtype != np.float32:
            continue
        proto.graph.initializer.remove(weights.pop(name))
        turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        codes, scales = quantise(values, 0 if node.op_type == "Conv" or turned else values.ndim - 1, bits)
        proto.graph.initializer.extend(
            [numpy_helper.from_array(codes, f"{name}.codes"), numpy_helper.from_array(scales, f"{name}.scales")]
        )
        # not DequantizeLinear: onnxruntime folds these two into a constant at loading, and then runs at full speed
        unpack += [
            helper.make_node("Cast", [f"{name}.codes"], [f"{name}.numbers"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}.numbers", f"{name}.scales"], [name]),
        ]
    nodes = [*unpack, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto.SerializeToString()


def unpack_weights(graph: bytes) -> bytes:
    """The inverse of `pack_weights`: weights as floats again, to be packed in another way."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_model_from_string(graph)
    packed = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes = []
    for node in proto.graph.node:
        name = node.output[0].removesuffix(".numbers")
        if node.input[:1] not in ([f"{name}.codes"], [f"{name}.numbers"]) or f"{name}.codes" not in packed:
            nodes.append(node)
        elif node.op_type in {"Mul", "DequantizeLinear"}:
            codes, scales = (packed[f"{name}.{part}"] for part in ("codes", "scales"))
            values = numpy_helper.to_array(codes).astype(np.float32) * numpy_helper.to_array(scales)
            for tensor in (codes, scales):
                proto.graph.initializer.remove(tensor)
            proto.graph.initializer.append(numpy_helper.from_array(values, name))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto.SerializeToString()


def quantise(values: NDArray[np.float32], axis: int, bits: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Integer codes, symmetric about zero, and the scale of each output channel, which is on this axis."""
    most = 2 ** (bits - 1) - 1
    others = tuple(number for number in range(values.ndim) if number != axis)
    greatest = np.abs(values).max(axis=others, keepdims=True)
    scales = np.maximum(greatest / most, np.finfo(np.float32).tiny).astype(np.float32)
    return np.round(values / scales).astype({8: np.int8, 16: np.int16}[bits]), scales


@contextmanager
def silent() -> Iterator[None]:
    """Silences onnxruntime's advice to preprocess the graph, which torch has already done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
