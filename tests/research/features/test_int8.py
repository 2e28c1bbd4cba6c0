"""Static quantisation: what int8 products say is near what floats say, the same in any batch, outliers and all."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fewtag.graphs import pack_weights, to_int8, unpack_weights
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.graph import write_graph
from fewtag.research.features.int8 import static_int8, try_int8
from fewtag.runtime import use_exact_products

CHANNELS, HIDDEN = 48, 64
OUTLIER = 5


@pytest.fixture(scope="module")
def graph() -> bytes:
    """A layer norm with one channel far larger than the others, a product, a bend, and a second product."""
    random = np.random.default_rng(0)
    gain = np.ones(CHANNELS, np.float32)
    gain[OUTLIER] = 300
    constants = {
        "gain": gain,
        "shift": random.normal(size=CHANNELS).astype(np.float32),
        "first": random.normal(size=(CHANNELS, HIDDEN)).astype(np.float32),
        "second": random.normal(size=(HIDDEN, CHANNELS)).astype(np.float32),
    }
    constants["first"][OUTLIER] /= 300
    nodes = [
        helper.make_node("LayerNormalization", ["pixels", "gain", "shift"], ["normed"], axis=-1),
        helper.make_node("MatMul", ["normed", "first"], ["wide"]),
        helper.make_node("Tanh", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "second"], ["places"]),
    ]
    shape = ["images", 9, CHANNELS]
    made = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("places", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return pack_weights(proto.SerializeToString(), bits=16)


def noise(seed: int, images: int = 4) -> dict[str, NDArray[np.float32]]:
    return {"pixels": np.random.default_rng(seed).normal(size=(images, 9, CHANNELS)).astype(np.float32)}


def run(graph: bytes, feed: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    use_exact_products(options)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return session.run(["places"], feed)[0]


def kinds(graph: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_model_from_string(graph).graph.node]


def off(graph: bytes, quantised: bytes, seed: int = 9) -> float:
    exact, found = run(graph, noise(seed)), run(quantised, noise(seed))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def test_products_in_int8_are_near_those_in_floats_although_a_channel_is_far_larger(graph: bytes) -> None:
    """Without moving its size into the weights, one step for all channels would round most others to nothing."""
    feeds = [noise(seed) for seed in range(3)]
    quantised = static_int8(graph, feeds, floats=0)
    assert kinds(quantised).count("QuantizeLinear") == 2
    assert off(graph, quantised) < 0.05


def test_without_smoothing_the_large_channel_drowns_the_others(graph: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.research.features.int8._smooth", lambda *_: None)
    assert off(graph, static_int8(graph, [noise(seed) for seed in range(3)], floats=0)) > 0.1


def test_moving_sizes_from_a_layer_norm_into_weights_changes_nothing_in_floats(graph: bytes) -> None:
    smoothed = static_int8(graph, [noise(0)], floats=2)
    assert "QuantizeLinear" not in kinds(smoothed)
    gains = [
        numpy_helper.to_array(tensor)
        for tensor in onnx.load_model_from_string(smoothed).graph.initializer
        if tensor.name == "gain"
    ]
    assert gains[0][OUTLIER] / np.median(gains[0]) < 30, "the channel was 300 times as large as the others"
    assert off(graph, smoothed) < 0.02, "bytes for weights, no more"


def test_a_pictures_places_are_the_same_in_any_batch(graph: bytes) -> None:
    quantised = static_int8(graph, [noise(0)], floats=0)
    feed = noise(4)
    feed["pixels"][0] *= 50  # one that would widen a step that is found anew for each batch
    alone = [run(quantised, {"pixels": feed["pixels"][row : row + 1]})[0] for row in range(4)]
    np.testing.assert_allclose(run(quantised, feed), np.stack(alone), rtol=1e-5, atol=1e-5)


def test_the_product_that_int8_harms_most_stays_in_floats(graph: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.research.features.int8._smooth", lambda *_: None)  # the first one is harmed then
    nodes = onnx.load_model_from_string(static_int8(graph, [noise(0)], floats=1)).graph.node
    assert [node.input[0] for node in nodes if node.op_type == "QuantizeLinear"] == ["bent"]


def test_int8_is_left_where_it_would_change_too_much_or_there_is_little_to_gain(
    graph: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert try_int8(graph, [noise(0)], 16) is None, "both products are among those that stay in floats"
    monkeypatch.setattr("fewtag.research.features.int8.FLOATS", 1)
    assert kinds(try_int8(graph, [noise(0)], 16) or b"").count("QuantizeLinear") == 1
    monkeypatch.setattr("fewtag.research.features.int8.WORST", 1e-7)
    assert try_int8(graph, [noise(0)], 16) is None


def test_an_int8_product_is_what_rounding_by_hand_makes(graph: bytes) -> None:
    """An independent sum: activations rounded to bytes by the stored step, weights as stored, in whole numbers."""
    proto = onnx.load_model_from_string(static_int8(graph, [noise(0)], floats=0))
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    norm = noise(7)["pixels"]
    norm = (norm - norm.mean(axis=-1, keepdims=True)) / np.sqrt(norm.var(axis=-1, keepdims=True) + 1e-5)
    inputs = norm * stored["gain"] + stored["shift"]
    for name in ("first", "second"):
        step, zero = stored[f"{name}.step"], int(stored[f"{name}.zero"])
        whole = np.clip(np.round(inputs / step) + zero, 0, 255).astype(np.int64) - zero
        inputs = (whole @ stored[f"{name}.codes"].astype(np.int64)) * (step * stored[f"{name}.scales"])
        inputs = np.tanh(inputs) if name == "first" else inputs
    found = run(proto.SerializeToString(), noise(7))
    assert np.abs(found - inputs).max() < 0.02 * np.abs(inputs).max()


def test_a_transformer_of_timms_is_quantised_and_its_weights_come_out_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch.manual_seed(0)
    backbone, path = create_backbone("vit_tiny_patch16_224", weights="random", size=64), tmp_path_factory.mktemp("vit")
    _, constants = write_graph(backbone, path / "vit.onnx", 8)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), np.uint8)
    space = {"mean": np.zeros(192, np.float32), "basis": np.eye(192, dtype=np.float32)}
    feed = {"pixels": pixels, **space, **constants}
    exact = (path / "vit.onnx").read_bytes()
    quantised = static_int8(exact, [feed], floats=3)
    assert kinds(quantised).count("QuantizeLinear") == 4 * 12 - 3
    assert len(quantised) < 1.05 * len(exact)
    onnx.checker.check_model(onnx.load_model_from_string(quantised), full_check=True)
    wanted, found = (run(each, feed) for each in (exact, quantised))
    cosines = (wanted * found).sum(-1) / np.linalg.norm(wanted, axis=-1) / np.linalg.norm(found, axis=-1)
    assert cosines.min() > 0.99
    products = [node.input[1] for node in onnx.load_model_from_string(exact).graph.node if node.op_type == "MatMul"]
    unpacked = {tensor.name for tensor in onnx.load_model_from_string(unpack_weights(quantised)).graph.initializer}
    assert {name for name in products if "onnx::MatMul" in name} <= unpacked
    assert to_int8(quantised) == quantised, "its products are in int8 already"


def test_two_products_of_one_norm_and_weights_that_two_products_share(graph: bytes) -> None:
    """The norm is left as it is, since what it evens out for one product it would spoil for the other."""
    proto = onnx.load_model_from_string(unpack_weights(graph))
    add = [
        helper.make_node("MatMul", ["normed", "other"], ["wide too"]),
        helper.make_node("Tanh", ["wide too"], ["bent too"]),
        helper.make_node("MatMul", ["bent too", "second"], ["places too"]),
        helper.make_node("Add", ["alone", "places too"], ["places"]),
    ]
    other = np.random.default_rng(5).normal(size=(CHANNELS, HIDDEN)).astype(np.float32)
    other[OUTLIER] /= 300
    proto.graph.initializer.append(numpy_helper.from_array(other, "other"))
    proto.graph.node[-1].output[0] = "alone"
    proto.graph.node.extend(add)
    both = proto.SerializeToString()
    quantised = onnx.load_model_from_string(static_int8(both, [noise(0)], floats=0))
    rounded = [node.input[0] for node in quantised.graph.node if node.op_type == "QuantizeLinear"]
    assert rounded == ["normed", "normed"], "each with its own weights; the shared ones stay in floats"
    gains = {tensor.name: tensor for tensor in quantised.graph.initializer}
    assert numpy_helper.to_array(gains["gain"])[OUTLIER] == 300
    none = static_int8(both, [noise(0)], floats=2)
    np.testing.assert_allclose(run(none, noise(1)), run(pack_weights(both), noise(1)), rtol=1e-5, atol=1e-5)
