"""Static quantisation of a graph: matrix products in int8 arithmetic, with steps chosen on pictures.

Each product gets ONNX's nodes for quantisation around its inputs, which onnxruntime fuses into one in int8 arithmetic:
more than twice as fast on a processor with instructions for it. The steps of the activations are constants, so that a
picture's places do not depend on the others of its batch.

A transformer has a few channels that are far larger than all others, whose step would drown the rest. They are made
smaller by the layer norm before a product and larger again by its weights (SmoothQuant, Xiao et al. 2023), which in
floats changes nothing. The products that int8 harms most stay in floats.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtag.graphs import SMALLEST, pack_weights, quantise, unpack_weights
from fewtag.pictures.decode import squash, stack
from fewtag.pictures.files import Picture, open_image
from fewtag.pictures.prefetch import Begin, batches, unwatched
from fewtag.runtime import OUTPUTS, use_exact_products

if TYPE_CHECKING:
    from onnx import ModelProto

SMOOTHING = 0.65
"""How much of a channel's size goes from the activations into the weights."""
WITHIN = 0.95
"""The share of pictures whose activations a range holds: what a few exceed is cut, for a finer step of all others."""
FLOATS = 6
"""Products that stay in floats. These three were chosen on validation pictures, by the cosine of their places."""

WORST = 0.02
"""The error from which on a graph stays in floats: one less the mean cosine of the places; what ships has 0.003."""
SEEN, AT_ONCE = 48, 8
"""How many pictures the steps are chosen on, and how many of them are a batch."""

Feed = Mapping[str, NDArray[Any]]
"""A graph's inputs, for a batch of pictures."""


def feeds(pictures: Sequence[Picture], size: int, channels: int, constants: Feed) -> list[Feed]:
    """Some of the pictures, the same each time, for a graph with the constants of this size."""
    whole = {"mean": np.zeros(channels, np.float32), "basis": np.eye(channels, dtype=np.float32)}
    rows = np.random.default_rng(0).choice(len(pictures), min(SEEN, len(pictures)), replace=False)
    squares = [squash(open_image(pictures[row]), size) for row in rows]
    return [{"pixels": stack(some), **whole, **constants} for some in batches(iter(squares), AT_ONCE)]


class Range(NamedTuple):
    """The least and the greatest activation of each channel, in nearly all pictures."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]


class Product(NamedTuple):
    """A matrix product with constant weights."""

    taken: str
    """The name of the activations that it takes."""
    weights: NDArray[np.float32]
    """inputs × outputs"""


Products = dict[str, Product]
"""By the name of the weights."""


def try_int8(graph: bytes, seen: Sequence[Feed], bits: Literal[8, 16], begin: Begin = unwatched) -> bytes | None:
    """The graph with products in int8, if it has enough of them and its places stay nearly what they were."""
    import onnx

    before = onnx.load_model_from_string(unpack_weights(graph))
    if len(_products(before)) <= FLOATS:
        return None
    made = static_int8(graph, seen, floats=FLOATS, bits=bits, begin=begin)
    after = onnx.load_model_from_string(made)
    return made if _error(_places(before, seen), _places(after, seen)) <= WORST else None


def static_int8(
    graph: bytes,
    seen: Sequence[Feed],
    *,
    floats: int = FLOATS,
    bits: Literal[8, 16] = 8,
    begin: Begin = unwatched,
) -> bytes:
    """The graph with all but the `floats` most harmed of its matrix products in int8, other weights in so many bits."""
    import onnx

    proto = onnx.load_model_from_string(unpack_weights(graph))
    products = _products(proto)
    ranges = _ranges(proto, sorted({product.taken for product in products.values()}), seen)
    _smooth(proto, products, ranges)
    exact, harm = _places(proto, seen), {}
    advance = begin("trying int8", len(products))
    for name in products:
        harm[name] = _error(exact, _places(_in_int8(proto, products, ranges, {name}), seen))
        advance(1)
    chosen = sorted(harm, key=lambda name: harm[name])[: max(len(harm) - floats, 0)]
    return pack_weights(_in_int8(proto, products, ranges, chosen).SerializeToString(), bits=bits)


def _products(proto: "ModelProto") -> Products:
    """Those with large weights that no other node takes."""
    from onnx import numpy_helper

    constants, takers = {tensor.name: tensor for tensor in proto.graph.initializer}, _takers(proto)
    found = {}
    for node in proto.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants and takers[node.input[1]] == 1:
            values = numpy_helper.to_array(constants[node.input[1]])
            if values.ndim == 2 and values.size >= SMALLEST:
                found[node.input[1]] = Product(node.input[0], values)
    return found


def _takers(proto: "ModelProto") -> Counter[str]:
    """How many nodes take each value."""
    return Counter(name for node in proto.graph.node for name in node.input)


def _run(proto: "ModelProto", outputs: Sequence[str], feeds: Iterable[Feed]) -> Iterable[list[NDArray[np.float32]]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    use_exact_products(options)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return (session.run(outputs, dict(feed)) for feed in feeds)


def _places(proto: "ModelProto", feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
    return [found[0] for found in _run(proto, OUTPUTS[:1], feeds)]


def _error(exact: Iterable[NDArray[np.float32]], found: Iterable[NDArray[np.float32]]) -> float:
    """One less the mean cosine of the places."""
    return 1 - float(np.mean([_cosines(*pair).mean() for pair in zip(exact, found, strict=True)]))


def _cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(axis=-1) / np.maximum(lengths, np.finfo(np.float32).tiny)


def _ranges(proto: "ModelProto", names: Sequence[str], feeds: Iterable[Feed]) -> dict[str, Range]:
    import onnx
    from onnx import helper

    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    found: dict[str, list[Range]] = {name: [] for name in names}
    for arrays in _run(shown, names, feeds):
        for name, array in zip(names, arrays, strict=True):
            pictures = array.reshape(len(array), -1, array.shape[-1])
            found[name].append(Range(pictures.min(axis=1), pictures.max(axis=1)))
    return {name: _most(*map(np.concatenate, zip(*parts, strict=True))) for name, parts in found.items()}


def _most(low: NDArray[np.float32], high: NDArray[np.float32]) -> Range:
    """The range of most pictures, from that of each, pictures × channels."""
    least, most = np.quantile(low, 1 - WITHIN, axis=0), np.quantile(high, WITHIN, axis=0)
    return Range(least.astype(np.float32), most.astype(np.float32))


def _smooth(proto: "ModelProto", products: Products, ranges: dict[str, Range]) -> None:
    """Moves the channels' sizes from the outputs of layer norms into the products that alone take them."""
    from onnx import numpy_helper

    constants, takers = {tensor.name: tensor for tensor in proto.graph.initializer}, _takers(proto)
    alone = {product.taken: weight for weight, product in products.items() if takers[product.taken] == 1}
    for norm in proto.graph.node:
        name, parts = norm.output[0], norm.input[1:]
        if norm.op_type != "LayerNormalization" or name not in alone:
            continue
        if any(part not in constants or takers[part] > 1 for part in parts):
            continue
        weight, (low, high) = alone[name], ranges[name]
        values = products[weight].weights
        reach = np.maximum(np.maximum(-low, high), 1e-5)
        sizes = reach**SMOOTHING / np.maximum(np.abs(values).max(axis=1), 1e-5) ** (1 - SMOOTHING)
        sizes = (sizes / np.exp(np.log(sizes).mean())).astype(np.float32)
        products[weight], ranges[name] = Product(name, values * sizes[:, None]), Range(low / sizes, high / sizes)
        changed = {part: numpy_helper.to_array(constants[part]) / sizes for part in parts}
        for part, numbers in {**changed, weight: products[weight].weights}.items():
            constants[part].CopyFrom(numpy_helper.from_array(numbers, part))


def _in_int8(
    proto: "ModelProto", products: Products, ranges: Mapping[str, Range], chosen: Collection[str]
) -> "ModelProto":
    """A copy with these products in int8."""
    import onnx
    from onnx import helper, numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(proto)
    constants = {tensor.name: tensor for tensor in made.graph.initializer}
    nodes: list[Any] = []

    def keep(name: str, values: NDArray[Any]) -> str:
        made.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    for node in made.graph.node:
        if node.op_type == "MatMul" and node.input[1] in chosen:
            name, weight = node.input
            made.graph.initializer.remove(constants[weight])
            step, zero = _step(ranges[name])
            codes, scales = quantise(products[weight].weights, 1, 8)
            activations = [keep(f"{weight}.step", np.array(step)), keep(f"{weight}.zero", np.array(zero))]
            stored = [keep(f"{weight}.codes", codes), keep(f"{weight}.scales", scales[0])]
            nodes += [
                helper.make_node("QuantizeLinear", [name, *activations], [f"{weight}.quantised"]),
                helper.make_node("DequantizeLinear", [f"{weight}.quantised", *activations], [f"{weight}.rounded"]),
                helper.make_node("DequantizeLinear", stored, [weight], axis=1),
            ]
            node.input[0] = f"{weight}.rounded"
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _step(found: Range) -> tuple[np.float32, np.uint8]:
    """The step of a byte and the byte of zero, for activations in this range."""
    low, high = min(float(found.low.min()), 0.0), max(float(found.high.max()), 0.0)
    step = np.float32(max(high - low, 1e-12) / 255)
    return step, np.uint8(np.clip(round(-low / float(step)), 0, 255))
