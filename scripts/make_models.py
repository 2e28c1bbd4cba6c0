"""Makes the shipped models: graphs, spaces, word maps, evidence of names and calibration, from encoded COCO packs.

    python scripts/make_models.py --data DIR --features DIR --weights coco52=FILE all80=FILE [--out FOLDER]

`--features` is what `encode_packs.py` wrote for both networks (of `tune_network.py`). One graph serves two sizes: the
models `default` and `accurate` share that of all 80 labels; `coco52` and `accurate-coco52` that of the paper's 52 base
labels. Strengths are the posterior's defaults; how alike names and pictures are, and the calibration, are fitted on
the 12 validation labels, which neither network nor space of the `coco52` models have seen, and inherited by the others.
Run twice on one machine it writes the same bytes.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packs import PHASES, Packs, add_arguments

from fewtag.core.calibration import Calibration, Pairs, calibrate
from fewtag.core.closed_form import Places, Space, Strengths, Vectors, base_prototypes, class_prototypes, fit_space
from fewtag.core.posterior import Classifiers, NameEvidence, Pictures, fit_label, prior
from fewtag.research.bench.results import commit
from fewtag.research.data.class_names import class_names
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.graph import write_graph
from fewtag.tagger.model import save_model, solve_words
from fewtag.words.vectors import WordTable

NETWORK = "vit_small_patch14_dinov2"
SIZES = {"default": 126, "accurate": 224}
MODELS = Path(__file__).parents[1] / "src" / "fewtag" / "models"
RESULTS = Path(__file__).parents[1] / "results" / "models"
STRENGTHS = Strengths(
    shrinkage=2.0,
    ridge=0.5,
    word_weight=3.0,
    word_decay=0.5,
    support_focus=16.0,
    query_local=0.8,
)
EXAMPLES = (0, 1, 2, 5, 10, 20)
NOES = (0, 8, 64)
"""Pictures beside a label's own, that do not name it, in the banks that calibration looks at."""
SHARE, SHARES = 0.08, (0.003, 0.01, 0.03, 0.08, 0.2)
REPEATS = 3
QUERIES = 600
WRONG_NAMES = 200


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
            return {phase: file[phase].tolist() for phase in PHASES}


@dataclass(frozen=True, eq=False)
class Solved:
    """What base pictures decide of a model."""

    space: Space
    prototypes: Vectors
    base_words: list[str]
    classes: list[str]


def solve(encoded: Encoded, packs: Packs, phases: Sequence[str]) -> Solved:
    """Space and prototypes of base labels and of the classifier's classes, on the pictures of these phases."""
    pooled = encoded.pooled(phases)
    if list(phases) == ["train"]:
        labels, targets = packs.images("train").labels, packs.images("train").targets
    else:
        whole = packs.experiment.pictures()
        shown = whole.select(whole.rows([image for phase in phases for image in packs.images(phase).ids]))
        labels, targets = shown.labels, shown.targets
    space = fit_space(pooled, pooled.shape[1], STRENGTHS.shrinkage)
    projected = space.project(pooled)
    prototypes = np.concatenate(
        [
            base_prototypes(projected, targets, STRENGTHS.separation),
            class_prototypes(projected, encoded.chances(phases)),
        ]
    )
    return Solved(space, prototypes, packs.names(labels), class_names("imagenet-1k"))


@dataclass(frozen=True, eq=False)
class Validation:
    """The validation labels in a model's space."""

    pictures: Pictures
    targets: NDArray[np.bool_]
    words: Vectors
    wrong: Vectors

    @classmethod
    def of(cls, encoded: Encoded, solved: Solved, packs: Packs, table: WordTable) -> "Validation":
        images = packs.images("val")
        word_map = solve_words(table, solved.base_words, solved.classes, solved.prototypes, STRENGTHS)
        names = np.random.default_rng(0).permutation(solved.classes)[:WRONG_NAMES]
        first = [name.split(", ")[0] for name in names]
        wrong = word_map.prototypes(table.vectors([name for name in first if name in table]))
        words = word_map.prototypes(packs.words(images.labels))
        return cls(Pictures.of(encoded.places("val", solved.space)), images.targets, words, wrong)

    def evidence(self) -> NameEvidence:
        """Scores of pictures with their own label's name, and with the names of other things."""
        plain = {**vars(STRENGTHS), "kappa": 1.0, "offset": 0.0}
        scores = Classifiers.of([prior(word, Strengths(**plain)) for word in np.concatenate([self.words, self.wrong])])
        found = scores.logits(self.pictures.places, STRENGTHS)
        mine = [found[shown, label] for label, shown in enumerate(self.targets.T)]
        others = [found[shown, len(self.words) :] for shown in self.targets.T]
        between = [np.std([each.mean() for each in mine]), np.std([each.mean(axis=0) for each in others])]
        return NameEvidence(
            right=round(float(np.median([each.mean() for each in mine])), 4),
            wrong=round(float(np.mean([each.mean() for each in others])), 4),
            between=round(float(np.mean(between)), 4),
            within=round(float(np.mean([each.std() for each in mine])), 4),
        )

    def calibration(self, evidence: NameEvidence) -> Calibration:
        """On banks of one to twenty examples a label, with few and many others, named in part or completely."""
        random = np.random.default_rng(0)
        pairs = []
        for _ in range(REPEATS):
            for label, shown in enumerate(self.targets.T):
                for number in EXAMPLES:
                    if shown.sum() < number + 30:
                        continue
                    yes = random.choice(np.flatnonzero(shown), number, replace=False)
                    for noes in NOES if number else (0,):
                        no = random.choice(np.flatnonzero(~shown), noes, replace=False)
                        for weight in {STRENGTHS.unnamed, 1.0} if noes else {1.0}:
                            pairs.append(self._pairs(label, yes, no, weight, evidence, random))
        return calibrate(pairs, SHARE, SHARES)

    def _pairs(
        self,
        label: int,
        yes: NDArray[np.int64],
        no: NDArray[np.int64],
        weight: float,
        evidence: NameEvidence,
        random: np.random.Generator,
    ) -> Pairs:
        rows = np.concatenate([yes, no]).astype(np.int64)
        shown = np.arange(len(rows)) < len(yes)
        weights = np.where(shown, 1.0, weight).astype(np.float32)
        support = Pictures(*(part[rows] for part in self.pictures))
        fitted = fit_label(support, shown, weights, self.words[label], STRENGTHS, evidence)
        rest = random.permutation(np.setdiff1d(np.arange(len(self.targets)), rows))[:QUERIES]
        logits = Classifiers.of([fitted]).logits(self.pictures.places[rest], STRENGTHS)[:, 0]
        return Pairs(len(yes), fitted.noes, logits, self.targets[rest, label])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--features", type=Path, required=True, help="what encode_packs.py wrote")
    parser.add_argument("--weights", nargs=2, required=True, metavar="NAME=FILE", help="coco52=FILE all80=FILE")
    parser.add_argument("--out", type=Path, default=MODELS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where accurate-coco52 goes")
    arguments = parser.parse_args()
    weights = dict(each.split("=", 1) for each in arguments.weights)
    packs = Packs(arguments.data, arguments.cache)
    for folder in (arguments.out, arguments.results):
        folder.mkdir(parents=True, exist_ok=True)
    fitted: dict[int, tuple[NameEvidence, Calibration]] = {}
    for name, phases in {"coco52": ["train"], "all80": list(PHASES)}.items():
        for kind, size in SIZES.items():
            backbone = create_backbone(NETWORK, weights=weights[name], size=size)
            network, constants = write_graph(backbone, arguments.out / f"dinov2-{name}.onnx", bits=8)
            encoded = Encoded(arguments.features, name, size, packs)
            solved = solve(encoded, packs, phases)
            if name == "coco52":
                validation = Validation.of(encoded, solved, packs, packs.table)
                evidence = validation.evidence()
                fitted[size] = evidence, validation.calibration(evidence)
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
