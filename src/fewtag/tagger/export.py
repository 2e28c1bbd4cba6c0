"""A bank for other runtimes: an ONNX graph, checked against torch, and the labels as data beside it."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from fewtag.errors import InputError
from fewtag.files import replacing
from fewtag.pictures.decode import stack
from fewtag.pictures.prefetch import batches
from fewtag.tagger.encode import BATCH
from fewtag.tagger.graph import INPUTS, Session, check_packages, graph_key, key_of, make_graph
from fewtag.tagger.inputs import ImageLike
from fewtag.tagger.int8 import to_int8
from fewtag.tagger.tagger import Tagger

GRAPH, INT8, LABELS = "tagger.onnx", "tagger-int8.onnx", "labels.npz"
AGREEMENT = 1e-3
"""How far a probability of the graph may be from torch's."""

Table = Mapping[str, np.ndarray]
Pixels = UInt8[np.ndarray, "images 3 size size"]
Columns = Int[np.ndarray, "columns"]
Run = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""A graph's probabilities of pixels, given prototypes, slopes and offsets."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how well it agrees with torch."""

    labels: int
    sizes: dict[str, int]
    """Bytes of each file."""
    kept: bool
    """Whether an earlier export's graph is of the same model, and was left alone."""
    difference: float
    """The greatest one from torch, in probability."""
    int8_difference: float | None
    pictures: int
    """How many were compared, beside random pixels."""


def export(
    tagger: Tagger,
    folder: Path,
    *,
    int8: bool = False,
    pictures: Sequence[ImageLike] = (),
    say: Callable[[str], None] = lambda _: None,
    advance: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Graph and labels together, or nothing: a graph that disagrees with torch on any picture is refused."""
    check_packages()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder to export to")
    labels = label_table(tagger)
    earlier = (folder / GRAPH).read_bytes() if (folder / GRAPH).is_file() else b""
    kept = key_of(earlier) == str(labels["graph"])
    if not kept:
        say(f"writing the network {tagger.model.backbone.name} as a graph")
    graph = earlier if kept else make_graph(tagger.model)
    graphs = {GRAPH: graph} | ({INT8: to_int8(graph)} if int8 else {})
    compared = chain(random_pixels(tagger), picture_pixels(tagger, pictures, advance))
    found = differences(tagger, labels, [Session(content) for content in graphs.values()], compared)
    if not found[0] <= AGREEMENT:  # not a number is no agreement either
        mend = f"; delete {folder / GRAPH} to have it made anew" if kept else "; nothing was written"
        raise InputError(
            f"the ONNX graph disagrees with torch: probabilities differ by up to {found[0]:.2g}, "
            f"at most {AGREEMENT:g} is allowed{mend}"
        )
    contents = {LABELS: packed(labels), **graphs}
    sizes = {name: len(content) for name, content in contents.items()}
    write_together(folder, {name: content for name, content in contents.items() if name != GRAPH or not kept})
    drop_outdated(folder, str(labels["graph"]))
    return Exported(len(labels["names"]), sizes, kept, found[0], found[1] if int8 else None, len(pictures))


def label_table(tagger: Tagger) -> Table:
    """All that a runtime needs to know of the labels, by name; `graph` says which graph they are for."""
    bank, model = tagger.bank_, tagger.model
    if not bank.classes:
        raise InputError("the bank knows no label yet; learn one from a picture, or define one by its name")
    slopes, offsets = model.calibration.curves(bank.counts)
    return {
        "names": np.array(bank.classes),
        "prototypes": bank.matrix.numpy(),
        "slopes": slopes.numpy(),
        "offsets": offsets.numpy(),
        "thresholds": model.calibration.threshold(bank.counts).numpy(),
        "size": np.array(model.backbone.size),
        "graph": np.array(graph_key(model)),
    }


def packed(labels: Table) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **labels)
    return content.getvalue()


def random_pixels(tagger: Tagger) -> Iterator[tuple[Pixels, Columns]]:
    """Coloured squares under noise: some pictures with one label, with all, and with each twice."""
    generator, size = np.random.default_rng(0), tagger.model.backbone.size
    square = np.arange(size) * 8 // size
    everything = np.arange(len(tagger.classes_))
    for images, columns in ((1, everything[:1]), (2, everything), (5, np.tile(everything, 2))):
        colours = generator.integers(0, 200, (images, 3, 8, 8), dtype=np.uint8)
        noise = generator.integers(0, 56, (images, 3, size, size), dtype=np.uint8)
        yield colours[:, :, square[:, None], square] + noise, columns


def picture_pixels(
    tagger: Tagger, pictures: Iterable[ImageLike], advance: Callable[[int], None]
) -> Iterator[tuple[Pixels, Columns]]:
    """Some pictures at a time, with all labels."""
    for batch in batches(iter(pictures), BATCH):
        yield stack([tagger.pixels(picture) for picture in batch]), np.arange(len(tagger.classes_))
        advance(len(batch))


def differences(
    tagger: Tagger, labels: Table, runs: Sequence[Run], compared: Iterable[tuple[Pixels, Columns]]
) -> list[float]:
    """Each graph's greatest difference from what the tagger itself says."""
    greatest = np.zeros(len(runs))
    for pixels, columns in compared:
        expected = tagger.probabilities(tagger.encode_pixels(pixels))[:, columns]
        prototypes, slopes, offsets = (labels[name][columns] for name in INPUTS[1:])
        found = [np.abs(run(pixels, prototypes, slopes, offsets) - expected).max() for run in runs]
        greatest = np.maximum(greatest, found)  # unlike Python's max, it keeps what is not a number
    return greatest.tolist()


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Each is whole on disk before the first one takes its name; the labels, which come first, take theirs last."""
    with ExitStack() as parts:
        for name, content in contents.items():
            parts.enter_context(replacing(folder / name)).write_bytes(content)


def drop_outdated(folder: Path, key: str) -> None:
    """An int8 graph that an earlier export made of another model."""
    path = folder / INT8
    if path.is_file() and key_of(path.read_bytes()) not in {None, key}:
        path.unlink()
