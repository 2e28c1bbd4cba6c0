"""ONNX export: a bank for other runtimes, as one graph from pixels to probabilities, with labels as data beside it."""

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewtag.core.calibration import sigmoid
from fewtag.core.posterior import Strengths
from fewtag.errors import InputError, first_line, import_extra
from fewtag.files import digest, replacing
from fewtag.pictures.decode import Pixels, squash, stack
from fewtag.pictures.files import open_image
from fewtag.pictures.prefetch import batches
from fewtag.runtime import use_exact_products
from fewtag.tagger.model import Model
from fewtag.tagger.stream import BATCH
from fewtag.tagger.tagger import Tagger

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

GRAPH, INT8, LABELS = "tagger.onnx", "tagger-int8.onnx", "labels.npz"
FIXED, NAMES = "fixed.onnx", "labels.txt"
AGREEMENT = 1e-3
"""The greatest difference allowed between a probability of the graph and the tagger's own."""
INPUTS = ("pixels", "prototypes", "whole", "focused", "slopes", "offsets")
OUTPUT = "probabilities"
KEY = "fewtag-graph"
_FORMAT = 3

Table = Mapping[str, NDArray[Any]]
Run = Callable[[Pixels, Table], NDArray[np.float32]]


@dataclass(frozen=True)
class Exported:
    """What was written, and how well it agrees with the tagger."""

    labels: int
    sizes: dict[str, int]
    """Bytes of each file."""
    kept: bool
    """Whether the graph of an earlier export is of the same model, and was left in place."""
    difference: float
    """The greatest difference in probability."""
    int8_difference: float | None
    pictures: int
    """How many pictures were compared, besides random pixels."""
    int8_is_same: bool = False
    """Whether the int8 graph is the graph itself, whose products are in int8 already."""


def export(
    tagger: Tagger,
    folder: Path,
    *,
    fixed: bool = False,
    int8: bool = False,
    pictures: Sequence[object] = (),
    advance: Callable[[int], None] = lambda _: None,
    force: bool = False,
) -> Exported:
    """Writes graph and labels together, or nothing: a graph that disagrees with the tagger on any picture is refused.

    With `fixed` the labels are in the graph. A folder with files of these names that no export wrote is refused too,
    unless `force` is set.
    """
    _check_place(folder)
    labels = label_table(tagger)
    if not force:
        _refuse_others(folder, [NAMES, FIXED] if fixed else [LABELS, GRAPH, *([INT8] if int8 else [])])
    if fixed:
        return _write(tagger, folder, labels, _fixed(tagger.model, labels), pictures, advance)
    earlier = (folder / GRAPH).read_bytes() if (folder / GRAPH).is_file() else b""
    kept = key_of(earlier) == str(labels["graph"])
    graphs = {GRAPH: earlier if kept else make_graph(tagger.model)}
    if int8:
        from fewtag.graphs import to_int8

        graphs[INT8] = to_int8(graphs[GRAPH])
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **labels)
    exported = _write(tagger, folder, labels, {LABELS: content.getvalue(), **graphs}, pictures, advance, kept=kept)
    path = folder / INT8  # from an earlier export, perhaps of another model
    if path.is_file() and key_of(path.read_bytes()) not in {None, str(labels["graph"])}:
        path.unlink()
    return exported


def _fixed(model: Model, labels: Table) -> dict[str, bytes]:
    """A graph from `pixels` to `probabilities` with the labels in it, and a text file of their names, one a line.

    Thresholds are in the graph's metadata under `thresholds`, the side of the square under `size`.
    """
    import onnx
    from onnx import numpy_helper

    if broken := [name for name in labels["names"].tolist() if len(name.splitlines()) > 1]:
        raise InputError(f"label {broken[0]!r} has a line break, but {NAMES} has a label a line; rename it")
    proto = onnx.load_model_from_string(make_graph(model))
    proto.graph.initializer.extend(numpy_helper.from_array(labels[name], name) for name in INPUTS[1:])
    del proto.graph.input[1:]
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = model.size
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(labels["names"])
    facts = {"labels": labels["names"].tolist(), "thresholds": labels["thresholds"].tolist(), "size": model.size}
    for key, value in facts.items():
        proto.metadata_props.add(key=key, value=json.dumps(value))
    onnx.checker.check_model(proto)
    return {NAMES: _lines(labels["names"]), FIXED: proto.SerializeToString()}


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _write(
    tagger: Tagger,
    folder: Path,
    labels: Table,
    contents: Mapping[str, bytes],
    pictures: Sequence[object],
    advance: Callable[[int], None],
    *,
    kept: bool = False,
) -> Exported:
    """Writes labels and graphs, once the graphs agree with the tagger.

    All files are complete on disk before the first is renamed to its final name; the labels, listed first, are renamed
    last.
    """
    compared = chain(random_pixels(tagger.model.size), picture_pixels(tagger.model.size, pictures, advance))
    runs = [session(content) for name, content in contents.items() if name.endswith(".onnx")]
    first, *others = differences(tagger, labels, runs, compared)
    if not first <= AGREEMENT:  # NaN is no agreement either
        mend = f"delete {folder / GRAPH} to have it made anew" if kept else "nothing was written"
        raise InputError(
            f"the ONNX graph disagrees with the tagger: probabilities differ by up to {first:.2g}, "
            f"at most {AGREEMENT:g} is allowed; {mend}"
        )
    with ExitStack() as parts:
        for name, content in contents.items():
            if name != GRAPH or not kept:
                parts.enter_context(replacing(folder / name)).write_bytes(content)
    sizes = {name: len(content) for name, content in contents.items()}
    same = GRAPH in contents and contents.get(INT8) == contents[GRAPH]
    return Exported(len(labels["names"]), sizes, kept, first, others[0] if others else None, len(pictures), same)


def label_table(tagger: Tagger) -> Table:
    """All that a runtime needs to know about the labels, as arrays by name; `graph` identifies their graph."""
    model, scorer = tagger.model, tagger.scorer()
    classifiers = scorer.classifiers
    return {
        "names": np.array(scorer.labels),
        "prototypes": classifiers.prototypes,
        "whole": classifiers.mean_weights,
        "focused": classifiers.attended_weights,
        "slopes": scorer.slopes,
        "offsets": scorer.offsets + scorer.slopes * classifiers.bias,
        "thresholds": scorer.thresholds,
        "size": np.array(model.size),
        "graph": np.array(graph_key(model)),
    }


def graph_key(model: Model) -> str:
    """A digest of all that determines the graph; words are not part of it, since labels enter as prototypes."""
    return digest(str(_FORMAT), model.space_key, str(model.strengths.query_focus))


def make_graph(model: Model) -> bytes:
    """The model's network with its space as constants, followed by the scoring of any number of labels."""
    import onnx
    from onnx import numpy_helper

    proto, scoring = onnx.load(model.network.graph), _scoring(model.strengths, model.space.size)
    graph = proto.graph
    for name, values in {"mean": model.space.mean, "basis": model.space.basis, **model.network.constants}.items():
        graph.initializer.append(numpy_helper.from_array(values, name))
    pixels = next(each for each in graph.input if each.name == "pixels")
    del graph.input[:]
    del graph.output[:]
    graph.input.extend([pixels, *scoring.input[1:]])
    graph.output.extend(scoring.output)
    graph.node.extend(scoring.node)
    graph.initializer.extend(scoring.initializer)
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=graph_key(model))
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def _scoring(strengths: Strengths, size: int) -> "GraphProto":
    """`core.posterior.Classifiers.logits` and the calibration, as a graph whose first input are the places."""
    import onnx.parser

    return onnx.parser.parse_graph(f"""
        scoring (float[images, places, {size}] places, float[labels, {size}] prototypes, float[labels, {size}] whole,
                 float[labels, {size}] focused, float[labels] slopes, float[labels] offsets)
            => (float[images, labels] probabilities)
            <float focus = {{{strengths.query_focus}}}, float tiny = {{1e-6}}, int64[1] axis_places = {{1}}>
        {{
            mean_place = ReduceMean <axes = [1], keepdims = 0> (places)
            whole_image = LpNormalization <axis = 1, p = 2> (mean_place)
            turned_whole = Transpose <perm = [1, 0]> (whole)
            whole_score = MatMul (whole_image, turned_whole)

            turned_prototypes = Transpose <perm = [1, 0]> (prototypes)
            likeness = MatMul (places, turned_prototypes)
            raw_lengths = ReduceL2 <axes = [2], keepdims = 1> (places)
            lengths = Max (raw_lengths, tiny)
            cosines = Div (likeness, lengths)
            attention_logits = Mul (cosines, focus)
            attention = Softmax <axis = 1> (attention_logits)
            turned_focused = Transpose <perm = [1, 0]> (focused)
            along = MatMul (places, turned_focused)
            attended = Mul (attention, along)
            pooled_along = ReduceSum <keepdims = 0> (attended, axis_places)
            by_label = Transpose <perm = [0, 2, 1]> (attention)
            pooled = MatMul (by_label, places)
            raw_pooled_length = ReduceL2 <axes = [2], keepdims = 0> (pooled)
            pooled_length = Max (raw_pooled_length, tiny)
            focused_score = Div (pooled_along, pooled_length)

            scores = Add (focused_score, whole_score)
            steep = Mul (scores, slopes)
            logits = Add (steep, offsets)
            probabilities = Sigmoid (logits)
        }}
    """)


def key_of(graph: bytes) -> str | None:
    """The key in a graph's metadata; None if fewtag did not write the graph."""
    return _noted(graph, KEY)


def _noted(graph: bytes, key: str) -> str | None:
    """The metadata of a graph under a key; None if there is none, or it is no graph."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto: ModelProto = onnx.load_model_from_string(graph)
    except DecodeError:
        return None
    return next((noted.value for noted in proto.metadata_props if noted.key == key), None)


def session(graph: bytes) -> Run:
    """A function that runs a graph with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    use_exact_products(options)
    try:
        opened = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many types without a common base
        raise _unusable(error) from error

    def run(pixels: Pixels, labels: Table) -> NDArray[np.float32]:
        asked = {each.name for each in opened.get_inputs()} - {INPUTS[0]}  # empty if the labels are part of the graph
        values = {INPUTS[0]: np.ascontiguousarray(pixels), **{name: labels[name] for name in asked}}
        try:
            return opened.run([OUTPUT], values)[0]
        except Exception as error:
            raise _unusable(error) from error

    return run


def _unusable(error: Exception) -> InputError:
    said = first_line(error)
    return InputError(f"onnxruntime cannot run the graph ({said}); delete {GRAPH}, if it is there, and export again")


def random_pixels(size: int) -> Iterator[Pixels]:
    """Coloured squares under noise, in batches of 1, 2 and 5 pictures."""
    generator, square = np.random.default_rng(0), np.arange(size) * 8 // size
    for images in (1, 2, 5):
        colours = generator.integers(0, 200, (images, 3, 8, 8), dtype=np.uint8)
        noise = generator.integers(0, 56, (images, 3, size, size), dtype=np.uint8)
        yield colours[:, :, square[:, None], square] + noise


def picture_pixels(size: int, pictures: Iterable[object], advance: Callable[[int], None]) -> Iterator[Pixels]:
    for batch in batches(iter(pictures), BATCH):
        yield stack([squash(open_image(picture), size) for picture in batch])
        advance(len(batch))


def differences(tagger: Tagger, labels: Table, runs: Sequence[Run], compared: Iterable[Pixels]) -> list[float]:
    """Each graph's greatest difference from the tagger's probabilities, before 'no's to a picture are applied."""
    scorer = tagger.scorer()
    greatest = np.zeros(len(runs))
    for pixels in compared:
        expected = sigmoid(scorer.logits(tagger.model.encode(pixels)))
        found = [float(np.abs(run(pixels, labels) - expected).max()) for run in runs]
        greatest = np.maximum(greatest, found)  # unlike Python's max, it keeps NaN
    return greatest.tolist()


def _refuse_others(folder: Path, names: Sequence[str]) -> None:
    """Refuses to replace files that no export wrote; a text file that was changed since counts as such."""
    for path in (folder / name for name in names if (folder / name).exists()):
        if not _is_ours(path):
            raise InputError(
                f"{path} exists and is not what fewtag wrote there; name another folder, or replace it by --force"
            )


def _is_ours(path: Path) -> bool:
    """Whether an export wrote the file. The graph beside a text file tells what that held, and a readable label file
    vouches for a damaged graph beside it."""
    if path.name == NAMES:
        fixed = path.with_name(FIXED)
        names = _noted(fixed.read_bytes(), "labels") if fixed.is_file() else None
        return names is not None and path.read_bytes() == _lines(json.loads(names))
    if path.name == LABELS:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return "graph" in arrays
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError):
            return False
    labels = path.with_name(LABELS)
    return key_of(path.read_bytes()) is not None or (path.name != FIXED and labels.exists() and _is_ours(labels))


def _check_place(folder: Path) -> None:
    """Refuses, before any work, a folder that is a file, and a missing onnx package."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; name a folder to export to")
    import_extra("onnx", "exporting", "export")
