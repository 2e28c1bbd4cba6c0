"""The network and the scoring as one ONNX graph; the labels are inputs, so that a grown bank needs no other graph."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.features.backbone import first_line
from fewtag.tagger.model import Model

INPUTS = ("pixels", "prototypes", "slopes", "offsets")
OUTPUT = "probabilities"
KEY = "fewtag-graph"
"""Under this name graph and labels say which graph the labels are for."""
_FORMAT = 1
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


class Graph(nn.Module):
    """From pixels to calibrated probabilities of labels that come with the pictures."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.method = model.backbone, model.method

    def forward(
        self,
        pixels: UInt8[Tensor, "images 3 size size"],
        prototypes: Float[Tensor, "labels space"],
        slopes: Float[Tensor, "labels"],
        offsets: Float[Tensor, "labels"],
    ) -> Float[Tensor, "images labels"]:
        scores = self.method.score(self.method.project(self.backbone(pixels)), prototypes)
        return torch.sigmoid(scores * slopes + offsets)


def check_packages() -> None:
    """Refuses before any work where the packages that write and run graphs are absent."""
    for package in _PACKAGES:
        try:
            import_module(package)
        except ImportError as error:
            raise InputError(
                f'exporting needs the package {package}, which is not installed; run: pip install "fewtag[onnx]"'
            ) from error


def graph_key(model: Model) -> str:
    """A digest of all that decides the graph; the words do not, since labels come to it as prototypes."""
    method = model.method
    facts = (_FORMAT, model.backbone.fingerprint, method.query_focus, method.query_local)
    digest = hashlib.sha256(repr(facts).encode())
    for tensor in (method.mean, method.basis):
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def make_graph(model: Model) -> bytes:
    """The ONNX file's content; any number of pictures and of labels."""
    device, size = model.method.mean.device, model.backbone.size
    images, labels = torch.export.Dim("images"), torch.export.Dim("labels")
    # two of each: a single one could be taken for a constant
    inputs = (
        torch.zeros(2, 3, size, size, dtype=torch.uint8, device=device),
        torch.zeros(2, model.method.space, device=device),
        torch.ones(2, device=device),
        torch.zeros(2, device=device),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own inner workings
            program = torch.onnx.export(
                Graph(model).eval(),
                inputs,
                input_names=INPUTS,
                output_names=(OUTPUT,),
                dynamic_shapes=({0: images}, {0: labels}, {0: labels}, {0: labels}),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise InputError(
            f"torch cannot write the network {model.backbone.name!r} as ONNX ({first_line(error)}); choose another"
        ) from error
    assert program is not None, "the exporter answers with a program unless it writes to a file"
    return finish(program.model_proto, graph_key(model))


def finish(proto: Any, key: str) -> bytes:
    """With its key, and without torch's notes: they name folders of the machine that it was made on."""
    for noted in (proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    for tensor in proto.graph.initializer:
        tensor.ClearField("metadata_props")
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=key)
    return proto.SerializeToString()


def key_of(graph: bytes) -> str | None:
    """Which graph this is; none where it is no graph of ours."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load_model_from_string(graph)
    except DecodeError:
        return None
    return next((noted.value for noted in proto.metadata_props if noted.key == KEY), None)


class Session:
    """A graph ready to run with onnxruntime, on the CPU."""

    def __init__(self, graph: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        with refusing():
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(
        self,
        pixels: UInt8[np.ndarray, "images 3 size size"],
        prototypes: Float32[np.ndarray, "labels space"],
        slopes: Float32[np.ndarray, "labels"],
        offsets: Float32[np.ndarray, "labels"],
    ) -> Float32[np.ndarray, "images labels"]:
        inputs = dict(zip(INPUTS, (pixels, prototypes, slopes, offsets), strict=True))
        with refusing():
            return self._session.run([OUTPUT], inputs)[0]


@contextmanager
def refusing() -> Iterator[None]:
    """One sentence where onnxruntime has many kinds of error, without a base of their own."""
    try:
        yield
    except Exception as error:
        raise InputError(f"onnxruntime cannot run the graph ({first_line(error)}); use another backbone") from error
