"""Weights as bytes: near the exact ones, a quarter of the room, and everything else as it was."""

import logging
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fewtag.graphs import pack_weights, quantise, to_int8, unpack_weights
from fewtag.tagger.export import KEY, key_of

SHAPES = {"kernel": (40, 3, 3, 3), "few": (4, 40, 1, 1), "turned": (50, 256), "straight": (50, 60)}


@pytest.fixture
def graph() -> onnx.ModelProto:
    """Two convolutions, the second with few weights, and two products."""
    generator = np.random.default_rng(0)
    weights = [generator.normal(size=shape) for shape in SHAPES.values()]
    # output channels of very different sizes, which one scale for all would ruin
    weights[2] *= np.logspace(-3, 1, 50)[:, None]
    weights[3] *= np.logspace(-3, 1, 60)
    nodes = [
        helper.make_node("Conv", ["pixels", "kernel"], ["first"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["first", "few"], ["second"]),
        helper.make_node("Flatten", ["second"], ["flat"]),
        helper.make_node("Gemm", ["flat", "turned"], ["third"], transB=1),
        helper.make_node("MatMul", ["third", "straight"], ["result"]),
    ]
    floats = onnx.TensorProto.FLOAT
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("pixels", floats, ["images", 3, 8, 8])],
            [helper.make_tensor_value_info("result", floats, ["images", 60])],
            [
                numpy_helper.from_array(values.astype(np.float32), name)
                for name, values in zip(SHAPES, weights, strict=True)
            ],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    proto.metadata_props.add(key=KEY, value="mine")
    return proto


def run(graph: bytes, pixels: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return session.run(None, {"pixels": pixels})[0]


@pytest.mark.parametrize("make", [to_int8, pack_weights])
def test_the_graph_says_nearly_the_same_and_keeps_its_key(
    graph: onnx.ModelProto, make: Callable[[bytes], bytes]
) -> None:
    exact = graph.SerializeToString()
    small = make(exact)
    onnx.checker.check_model(onnx.load_model_from_string(small), full_check=True)
    pixels = np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(np.float32)
    wanted = run(exact, pixels)
    error = np.abs(run(small, pixels) - wanted).mean(axis=0) / np.abs(wanted).mean(axis=0)
    assert 0 < error.max() < 0.15  # of each output channel for itself
    assert key_of(small) == "mine"
    assert len(small) < 0.35 * len(exact)


def test_sixteen_bits_are_as_good_as_exact(graph: onnx.ModelProto) -> None:
    exact = graph.SerializeToString()
    half = pack_weights(exact, bits=16)
    pixels = np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(np.float32)
    wanted = run(exact, pixels)
    assert (np.abs(run(half, pixels) - wanted).mean(axis=0) < 1e-3 * np.abs(wanted).mean(axis=0)).all()
    assert len(half) < 0.6 * len(exact)


def test_a_packed_graph_is_unpacked_and_packed_anew(graph: onnx.ModelProto) -> None:
    """The shipped network has sixteen bits a weight: its int8 graph shall have eight."""
    exact = graph.SerializeToString()
    unpacked = onnx.load_model_from_string(unpack_weights(pack_weights(exact, bits=16)))
    assert [node.op_type for node in unpacked.graph.node] == [node.op_type for node in graph.graph.node]
    before = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    for tensor in unpacked.graph.initializer:
        np.testing.assert_allclose(numpy_helper.to_array(tensor), before.pop(tensor.name), atol=1e-3)
    assert not before
    assert unpack_weights(exact) == exact
    assert len(to_int8(pack_weights(exact, bits=16))) == pytest.approx(len(to_int8(exact)), rel=0.02)


def test_large_weights_are_bytes_and_small_ones_stay(graph: onnx.ModelProto) -> None:
    small = onnx.load_model_from_string(pack_weights(graph.SerializeToString()))
    kinds = {tensor.name: numpy_helper.to_array(tensor).dtype for tensor in small.graph.initializer}
    assert kinds["few"] == np.float32
    assert {name for name, kind in kinds.items() if kind == np.int8} == {
        "kernel.codes",
        "turned.codes",
        "straight.codes",
    }
    scales = {tensor.name: tuple(tensor.dims) for tensor in small.graph.initializer if tensor.name.endswith(".scales")}
    assert scales == {"kernel.scales": (40, 1, 1, 1), "turned.scales": (50, 1), "straight.scales": (1, 60)}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("axis", [0, 1])
def test_no_weight_is_off_by_more_than_half_a_step(axis: int, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    values = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    values[0] = 0
    codes, scales = quantise(values, axis, bits)
    steps = np.abs(values).max(axis=1 - axis, keepdims=True) / most
    assert (np.abs(codes * scales - values) <= 0.5001 * steps).all()
    assert np.abs(codes).max() == most


def test_products_are_done_in_bytes_and_convolutions_are_not(
    graph: onnx.ModelProto, caplog: pytest.LogCaptureFixture
) -> None:
    small = onnx.load_model_from_string(to_int8(graph.SerializeToString()))
    kinds = [node.op_type for node in small.graph.node]
    assert (kinds.count("Conv"), kinds.count("ConvInteger")) == (2, 0)
    assert kinds.count("MatMulInteger") >= 1
    assert not caplog.records
    assert logging.root.manager.disable == 0
