"""Makes the shipped models: graphs, spaces, word maps, evidence of names and calibration, from encoded COCO packs.

    python scripts/make_models.py --data DIR --features DIR --weights coco52=FILE all80=FILE [--out FOLDER]

`--features` is what `encode_packs.py` wrote for both networks (of `tune_network.py`). One graph serves two sizes: the
models `default` and `accurate` share that of all 80 labels; `coco52` and `accurate-coco52` that of the paper's 52 base
labels. Strengths are the posterior's defaults; how alike names and pictures are, and the calibration, are fitted on
the 12 validation labels, in plain pictures and in crowded ones, which neither network nor space of the `coco52` models
have seen, and inherited by the others. Run twice on one machine it writes the same bytes. With `--calibrate` the models
stay as they are but for these two, with `--int8` but for their graphs, whose products are quantised on base pictures.
"""

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packs import CALIBRATION, PHASES, Packs, packs_parser

from fewtag.core.calibration import Calibration
from fewtag.core.posterior import NameEvidence, Pictures, Places, Space
from fewtag.files import read_arrays, write_arrays, write_atomically
from fewtag.research.bench.results import commit
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.graph import write_graph
from fewtag.research.features.int8 import Feed, feeds, static_int8
from fewtag.research.fit import STRENGTHS, BasePictures, Held, Solved, calibrated, solve, wrong_names
from fewtag.tagger.model import KIND, load_model, save_model, solve_words

NETWORK, CHANNELS = "vit_small_patch14_dinov2", 384
SIZES = {"default": 126, "accurate": 224}
MODELS = Path(__file__).parents[1] / "src" / "fewtag" / "models"
RESULTS = Path(__file__).parents[1] / "results" / "models"


@dataclass(frozen=True, eq=False)
class Encoded:
    """The packs as a network of one name and size sees them."""

    folder: Path
    name: str
    size: int
    packs: Packs

    def pooled(self, phases: Sequence[str]) -> NDArray[np.float32]:
        files = [self.folder / f"pooled-{self.name}-{self.size}-{phase}.npy" for phase in phases]
        return np.concatenate([self._ordered(np.load(file), phase) for file, phase in zip(files, phases, strict=True)])

    def chances(self, phases: Sequence[str]) -> NDArray[np.float32]:
        return np.concatenate([self._ordered(np.load(self.folder / f"chances-{phase}.npy"), phase) for phase in phases])

    def places(self, phase: str, space: Space) -> Places:
        """Rounded to half precision, as the product's network hands them out."""
        codes, scales = (
            np.load(self.folder / f"{what}-{self.name}-{self.size}-{phase}.npy") for what in ("codes", "scales")
        )
        found = np.empty((len(codes), codes.shape[1], space.size), np.float16)
        for first in range(0, len(codes), 256):
            some = slice(first, first + 256)
            found[some] = space.project(codes[some].astype(np.float32) * scales[some, :, None].astype(np.float32))
        return self._ordered(found, phase)

    def _ordered(self, rows: NDArray[Any], phase: str) -> NDArray[np.float32]:
        """In the order of the pack's images."""
        place = {image: row for row, image in enumerate(self._ids[phase])}
        return rows[[place[image] for image in self.packs.images(phase).ids]].astype(np.float32)

    @cached_property
    def _ids(self) -> dict[str, list[str]]:
        with np.load(self.folder / "ids.npz") as file:
            return {phase: file[phase].tolist() for phase in file}


def base_of(encoded: Encoded, packs: Packs, phases: Sequence[str]) -> BasePictures:
    """The 52 base labels on their own pictures, or all 80 on all packs'."""
    if list(phases) == ["train"]:
        labels, targets = packs.images("train").labels, packs.images("train").targets
    else:
        whole = packs.experiment.pictures()
        shown = whole.select(whole.rows([image for phase in phases for image in packs.images(phase).ids]))
        labels, targets = shown.labels, shown.targets
    return BasePictures(labels, packs.names(labels), targets, encoded.pooled(phases), encoded.chances(phases))


def validation(encoded: Encoded, solved: Solved, packs: Packs) -> list[Held]:
    """The validation labels, in plain pictures and in crowded ones."""
    wrong, found = wrong_names(solved, packs.table), []
    for phase in CALIBRATION:
        images = packs.images(phase)
        word_prototypes = solved.word_prototypes(packs.table, packs.names(images.labels))
        found.append(Held(Pictures.of(encoded.places(phase, solved.space)), images.targets, word_prototypes, wrong))
    return found


def to_int8(graph: Path, constants: Sequence[Feed], packs: Packs) -> str:
    """Quantises a graph's products on base pictures of all sizes; returns its digest."""
    base = packs.images("train").pictures
    each = [feeds(base, size, CHANNELS, own) for size, own in zip(SIZES.values(), constants, strict=True)]
    content = static_int8(graph.read_bytes(), [feed for some in each for feed in some])
    write_atomically(graph, content)
    return hashlib.sha256(content).hexdigest()


def requantise(arguments: argparse.Namespace, packs: Packs) -> None:
    """Quantises the graphs' products and tells their models."""
    accurate = arguments.results / "accurate-coco52.safetensors"
    for pair in (
        [arguments.out / "default.safetensors", arguments.out / "accurate.safetensors"],
        [arguments.out / "coco52.safetensors", accurate],
    ):
        models = [load_model(str(file)) for file in pair]
        digest = to_int8(models[0].network.graph, [model.network.constants for model in models], packs)
        print(models[0].network.graph.name, digest, flush=True)
        for file in pair:
            header, arrays = read_arrays(file, KIND)
            write_arrays(file, KIND, header | {"network": header["network"] | {"sha256": digest}}, arrays)


def recalibrate(arguments: argparse.Namespace, packs: Packs) -> None:
    """Fits evidence and calibration anew, of the models' own spaces and words, and writes them into the files."""
    honest_models = arguments.out / "coco52.safetensors", arguments.results / "accurate-coco52.safetensors"
    for (shipped, size), honest in zip(SIZES.items(), honest_models, strict=True):
        if size not in arguments.sizes:
            continue
        model = load_model(str(honest))
        header, encoded = model.header, Encoded(arguments.features, "coco52", size, packs)
        solved = Solved(model.space, model.base_prototypes, header["base_words"], header["class_names"])
        evidence, calibration = calibrated(validation(encoded, solved, packs))
        print(size, evidence, calibration, sep="\n", flush=True)
        for file in (honest, arguments.out / f"{shipped}.safetensors"):
            known, arrays = read_arrays(file, KIND)
            write_arrays(file, KIND, known | {"evidence": vars(evidence), "calibration": vars(calibration)}, arrays)


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--features", type=Path, required=True, help="what encode_packs.py wrote")
    parser.add_argument("--weights", nargs=2, default=[], metavar="NAME=FILE", help="coco52=FILE all80=FILE")
    parser.add_argument("--calibrate", action="store_true", help="only fit evidence and calibration anew")
    parser.add_argument("--int8", action="store_true", help="only quantise the graphs' products, on the pictures")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES.values()), help="of those to calibrate")
    parser.add_argument("--out", type=Path, default=MODELS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where accurate-coco52 goes")
    arguments = parser.parse_args()
    weights = dict(each.split("=", 1) for each in arguments.weights)
    packs = Packs(arguments.data, arguments.cache)
    if arguments.calibrate:
        recalibrate(arguments, packs)
        return
    if arguments.int8:
        requantise(arguments, packs)
        return
    for folder in (arguments.out, arguments.results):
        folder.mkdir(parents=True, exist_ok=True)
    fitted: dict[int, tuple[NameEvidence, Calibration]] = {}
    for name, phases in {"coco52": ["train"], "all80": list(PHASES)}.items():
        graph = arguments.out / f"dinov2-{name}.onnx"
        backbones = [create_backbone(NETWORK, weights=weights[name], size=size) for size in SIZES.values()]
        written = [write_graph(backbone, graph, bits=8) for backbone in backbones]
        digest = to_int8(graph, [constants for _, constants in written], packs)
        for (kind, size), (facts, constants) in zip(SIZES.items(), written, strict=True):
            network = facts | {"sha256": digest}
            encoded = Encoded(arguments.features, name, size, packs)
            solved = solve(base_of(encoded, packs, phases))
            if name == "coco52":
                fitted[size] = calibrated(validation(encoded, solved, packs))
                print(size, *fitted[size], sep="\n", flush=True)
            evidence, calibration = fitted[size]
            model = {"all80": kind, "coco52": "coco52" if kind == "default" else "accurate-coco52"}[name]
            folder = arguments.results if model == "accurate-coco52" else arguments.out
            word_map = solve_words(packs.table, solved.base_words, solved.classes, solved.prototypes, STRENGTHS)
            save_model(
                folder / f"{model}.safetensors",
                network=network,
                constants=constants,
                space=solved.space,
                base_prototypes=solved.prototypes,
                word_map=word_map,
                strengths=STRENGTHS,
                evidence=evidence,
                calibration=calibration,
                words=packs.words_source,
                base_words=solved.base_words,
                class_names=solved.classes,
                origin=f"COCO pictures of {len(solved.base_words)} labels, commit {commit()}",
            )
            print(model, (folder / f"{model}.safetensors").stat().st_size, flush=True)


if __name__ == "__main__":
    main()
