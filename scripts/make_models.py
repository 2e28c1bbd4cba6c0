"""Makes the shipped models: graphs, spaces, word maps, evidence of names and calibration, from the COCO packs.

    python scripts/make_models.py --data DIR --weights coco52=FILE all80=FILE
    python scripts/make_models.py --data DIR --sizes 168

The weights are those that `tune_network.py` wrote. Without them the graphs stay as they are, and the models of these
sizes are fitted anew. One graph serves all sizes: the models `default`, `accurate` and `accurate-336` share that of all
80 labels; `coco52`, `accurate-coco52` and `accurate-336-coco52` that of the paper's 52 base labels. Those of 336 pixels
are the `accurate` ones with finer positions: nothing is fitted anew. Pictures are encoded by the graphs themselves.
Strengths are the posterior's defaults; how alike names and pictures are, and the calibration, are fitted on the 12
validation labels, in plain pictures and in crowded ones (`more_pictures.py` makes these), which neither network nor
space of the `coco52` models have seen, and inherited by the others. Run twice on one machine it writes the same bytes.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from packs import CALIBRATION, PHASES, Packs, packs_parser
from timm.layers import resample_abs_pos_embed

from fewtag.core.calibration import Calibration
from fewtag.core.posterior import NameEvidence, Pictures
from fewtag.files import read_arrays, write_arrays, write_atomically
from fewtag.pictures.prefetch import Advance
from fewtag.research.bench.results import commit
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.graph import SIDE, Constants, pooling, write_graph
from fewtag.research.features.int8 import feeds, static_int8
from fewtag.research.fit import (
    STRENGTHS,
    BasePictures,
    Held,
    Solved,
    calibrated,
    classify,
    encode,
    solve,
    wrong_names,
)
from fewtag.tagger.model import KIND, Model, load_model, save_model, solve_words

NETWORK, PATCH = "vit_small_patch14_dinov2", 14
SIZES = {"default": 168, "accurate": 224}
LARGER = 336
MODELS = Path(__file__).parents[1] / "src" / "fewtag" / "models"
RESULTS = Path(__file__).parents[1] / "results" / "models"


class Sight(NamedTuple):
    """A graph at one size of pictures."""

    graph: Path
    facts: dict[str, Any]
    constants: Constants


class Fitting:
    """The models of one graph: that of the 52 base labels, on their own pictures, or of all 80, on all packs'."""

    def __init__(self, name: str, packs: Packs, device: str) -> None:
        self.packs, self.device = packs, device
        every = packs.experiment.pictures()
        rows = every.rows([image for phase in PHASES for image in packs.images(phase).ids])
        self.images = packs.images("train") if name == "coco52" else every.select(rows)

    @cached_property
    def chances(self) -> Any:
        return classify(self.images.pictures, begin)

    def solved(self, sight: Sight) -> Solved:
        pooled, _ = encode(*sight, self.images.pictures, np.arange(0), self.device, begin)
        words, targets = self.packs.names(self.images.labels), self.images.targets
        return solve(BasePictures(words, targets, pooled, self.chances))

    def calibrated(self, sight: Sight, solved: Solved) -> tuple[NameEvidence, Calibration]:
        """On the validation labels, in plain pictures and in crowded ones."""
        wrong, held = wrong_names(solved, self.packs.table), []
        for phase in CALIBRATION:
            images = self.packs.images(phase)
            _, places = encode(*sight, images.pictures, np.arange(len(images.pictures)), self.device, begin)
            word_prototypes = solved.word_prototypes(self.packs.table, self.packs.names(images.labels))
            seen = solved.space.project(places.astype(np.float32)).astype(np.float16).astype(np.float32)
            held.append(Held(Pictures.of(seen), images.targets, word_prototypes, wrong))
        return calibrated(held, begin)


def begin(task: str, total: int) -> Advance:
    print(f"{task}: {total}", flush=True)
    return lambda _: None


def new_graph(name: str, weights: str, packs: Packs, folder: Path) -> dict[int, Sight]:
    """The graph of these weights, its products in int8 with steps that are chosen on base pictures of all sizes."""
    graph = folder / f"dinov2-{name}.onnx"
    found = [
        write_graph(create_backbone(NETWORK, weights=weights, size=size), graph, bits=8) for size in SIZES.values()
    ]
    base = packs.images("train").pictures
    seen = [feed for facts, own in found for feed in feeds(base, int(facts["size"]), int(facts["channels"]), own)]
    content = static_int8(graph.read_bytes(), seen)
    write_atomically(graph, content)
    digest = {"sha256": hashlib.sha256(content).hexdigest()}
    return {int(facts["size"]): Sight(graph, facts | digest, own) for facts, own in found}


def shipped_graph(name: str, sizes: Sequence[int]) -> dict[int, Sight]:
    """The graph that is there, with the positions of its model of 224 pixels, resampled for other sizes."""
    model = load_model(str(RESULTS / "accurate-coco52") if name == "coco52" else "accurate")
    return {size: sight_of(model, size) for size in sizes}


def sight_of(model: Model, size: int) -> Sight:
    """What the model's graph needs for pictures of this size, with the model's positions resampled."""
    side, facts = size // PATCH, model.header["network"]
    positions = torch.from_numpy(model.network.constants["positions"])
    if size != model.size:
        positions = resample_abs_pos_embed(positions, [side, side])
        facts = {key: value for key, value in facts.items() if key != "weights"}  # of those with its own positions
    facts = facts | {"size": size, "places": min(side, SIDE) ** 2}
    return Sight(model.network.graph, facts, {"pool": pooling(side, min(side, SIDE)), "positions": positions.numpy()})


def enlarge(path: Path, out: Path) -> None:
    """The model for larger pictures: all that was fitted stays."""
    header, arrays = read_arrays(path, KIND)
    larger = sight_of(load_model(path), LARGER)
    constants = {name: values.astype(np.float16) for name, values in larger.constants.items()}
    write_arrays(out, KIND, header | {"network": larger.facts}, dict(arrays) | constants)
    print(out.name, out.stat().st_size, flush=True)


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--weights", nargs=2, default=[], metavar="NAME=FILE", help="coco52=FILE all80=FILE")
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES.values(), default=list(SIZES.values()))
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, default=MODELS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the larger coco52 models go")
    arguments = parser.parse_args()
    weights = dict(each.split("=", 1) for each in arguments.weights)
    packs = Packs(arguments.data, arguments.cache)
    for folder in (arguments.out, arguments.results):
        folder.mkdir(parents=True, exist_ok=True)
    fitted: dict[int, tuple[NameEvidence, Calibration]] = {}
    for name in ("coco52", "all80"):
        fitting = Fitting(name, packs, arguments.device)
        made = new_graph(name, weights[name], packs, arguments.out) if weights else shipped_graph(name, arguments.sizes)
        for kind, size in SIZES.items():
            if size not in arguments.sizes:
                continue
            solved = fitting.solved(made[size])
            if name == "coco52":
                fitted[size] = fitting.calibrated(made[size], solved)
                print(size, *fitted[size], sep="\n", flush=True)
            evidence, calibration = fitted[size]
            model = {"all80": kind, "coco52": "coco52" if kind == "default" else "accurate-coco52"}[name]
            file = (arguments.results if model == "accurate-coco52" else arguments.out) / f"{model}.safetensors"
            word_map = solve_words(packs.table, solved.base_words, solved.classes, solved.prototypes, STRENGTHS)
            save_model(
                file,
                network=made[size].facts,
                constants=made[size].constants,
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
            print(model, file.stat().st_size, flush=True)
            if kind == "accurate":
                enlarge(file, file.with_name(f"{model.replace('accurate', f'accurate-{LARGER}')}.safetensors"))


if __name__ == "__main__":
    main()
