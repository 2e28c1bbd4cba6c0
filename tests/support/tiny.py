"""A model small enough to tag with in milliseconds, in files, so that other processes can load it; and its pictures."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

from fewtag import Tagger
from fewtag.core.calibration import Calibration
from fewtag.core.posterior import Classifiers, NameEvidence, Strengths, base_prototypes, fit_space, fit_words
from fewtag.runtime import INPUTS
from fewtag.tagger.bank import Bank
from fewtag.tagger.model import Model, save_model
from fewtag.words.vectors import SHIPPED, load_words

if TYPE_CHECKING:
    import pytest

SIZE, CELL, CHANNELS, SPACE = 32, 8, 16, 8
COLOURS = {"dog": "red", "cat": "lime", "sofa": "blue", "zebra": "white", "ball": "yellow"}
BASE = ["dog", "cat", "sofa"]


def draw(number: int, *labels: str, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """draw(3, "dog", "cat") is the third picture of a red and a green disc; the same each time."""
    generator = np.random.default_rng(number)
    image = Image.fromarray(generator.integers(0, 90, (size[1], size[0], 3), dtype=np.uint8))
    pen = ImageDraw.Draw(image)
    for label in labels:
        left, top = (int(generator.integers(0, side - 20)) for side in size)
        pen.ellipse((left, top, left + 19, top + 19), fill=COLOURS[label])
    return image


def classifiers_of(bank: Bank, model: Model) -> Classifiers:
    """Of all its labels, in their order."""
    return Classifiers.of([bank.classifier(model, label) for label in bank.classes])


def same_classifiers(left: Tagger, right: Tagger) -> bool:
    """The same labels and the same numbers for each, to the last bit."""
    ours, theirs = (classifiers_of(tagger.bank_, tagger.model) for tagger in (left, right))
    pairs = zip(vars(ours).values(), vars(theirs).values(), strict=True)
    return left.classes_ == right.classes_ and all(np.array_equal(one, other) for one, other in pairs)


def write_tiny_model(folder: Path, name: str = "tiny", seed: int = 0) -> Path:
    """A convolution of random weights as the network, a space and a word map fitted on drawn pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = _graph(np.random.default_rng(seed)).SerializeToString()
    (folder / f"{name}.onnx").write_bytes(graph)
    shown = [[label for place, label in enumerate(BASE) if number >> place & 1] for number in range(40)]
    squares = [np.array(draw(number, *labels).resize((SIZE, SIZE))) for number, labels in enumerate(shown)]
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    identity = np.zeros(CHANNELS, np.float32), np.eye(CHANNELS, dtype=np.float32)
    pixels = np.stack(squares).transpose(0, 3, 1, 2)
    features = session.run(None, dict(zip(INPUTS, (np.ascontiguousarray(pixels), *identity), strict=True)))[0]
    space = fit_space(features.mean(axis=1), SPACE, 0.1)
    targets = np.array([[label in labels for label in BASE] for labels in shown])
    prototypes = base_prototypes(space.project(features.mean(axis=1)), targets, 1.0)
    save_model(
        folder / f"{name}.safetensors",
        network={
            "file": f"{name}.onnx",
            "sha256": hashlib.sha256(graph).hexdigest(),
            "name": "random convolution",
            "size": SIZE,
            "channels": CHANNELS,
            "places": (SIZE // CELL) ** 2,
        },
        constants={},
        space=space,
        base_prototypes=prototypes,
        word_map=fit_words(load_words(SHIPPED).vectors(BASE), prototypes, 3.0),
        strengths=Strengths(),
        evidence=NameEvidence(right=0.6, wrong=0.0, between=0.2, within=0.2),
        calibration=Calibration((0, 5), (1.0, 1.2), (-1.0, -0.5), 0.3, (0.01, 0.3), ((0.1, 0.3), (0.2, 0.4))),
        words=SHIPPED,
        base_words=BASE,
        class_names=[],
    )
    return folder / f"{name}.safetensors"


def _graph(generator: np.random.Generator) -> onnx.ModelProto:
    """Pixels, mean and basis to places, as `fewtag.runtime` calls it."""
    weights = generator.normal(size=(CHANNELS, 3, CELL, CELL)) + generator.normal(size=(CHANNELS, 3, 1, 1))
    constants = {
        "scale": np.float32(1 / 255),
        "weights": (weights / CELL).astype(np.float32),
        "flat": np.array([0, CHANNELS, -1]),
    }
    nodes = [
        helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "scale"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "weights"], ["convolved"], strides=[CELL, CELL]),
        helper.make_node("Tanh", ["convolved"], ["map"]),
        helper.make_node("Reshape", ["map", "flat"], ["row"]),
        helper.make_node("Transpose", ["row"], ["features"], perm=[0, 2, 1]),
        helper.make_node("Sub", ["features", "mean"], ["centred"]),
        helper.make_node("MatMul", ["centred", "basis"], ["places"]),
    ]
    inputs = [
        helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["images", 3, "height", "width"]),
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["channels"]),
        helper.make_tensor_value_info("basis", TensorProto.FLOAT, ["channels", "space"]),
    ]
    output = helper.make_tensor_value_info("places", TensorProto.FLOAT, ["images", "places", "space"])
    initial = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, [output], initial)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def count_encoded(monkeypatch: "pytest.MonkeyPatch") -> list[int]:
    """Will hold the sizes of the batches that the network gets."""
    encode, sizes = Model.encode, list[int]()

    def counting(model: Model, pixels: np.ndarray) -> Any:
        sizes.append(len(pixels))
        return encode(model, pixels)

    monkeypatch.setattr(Model, "encode", counting)
    return sizes
