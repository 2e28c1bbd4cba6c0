"""Fitting one's own model: a network as a graph, and its space, word map and calibration from base pictures.

Base pictures may have labels. If they have none, the classes that a classifier is sure of serve as labels.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewtag.core import posterior as core
from fewtag.core.calibration import Calibration, Pairs, calibrate
from fewtag.core.posterior import Features, NameEvidence, Pictures, Space, Strengths, Vectors
from fewtag.errors import InputError
from fewtag.files import read_arrays
from fewtag.pictures.decode import Square, squash
from fewtag.pictures.files import Picture, open_image
from fewtag.pictures.prefetch import Begin, batches, prefetch, unwatched
from fewtag.research.data.splits import class_names
from fewtag.research.features.backbone import create_backbone, create_classifier
from fewtag.research.features.graph import Constants, wrap_graph, write_graph
from fewtag.research.features.int8 import feeds, try_int8
from fewtag.runtime import Network
from fewtag.tagger.model import KIND, save_model, solve_words
from fewtag.words.vectors import SHIPPED, WordTable, load_words

CLASSIFIER, CLASSES = "tf_efficientnet_lite2", "imagenet-1k"
STRENGTHS = Strengths(shrinkage=2.0, ridge=0.5, word_weight=3.0, word_decay=0.5, support_focus=16.0, query_local=0.8)
"""Strengths of the posterior, chosen on the validation labels of COCO."""
EXAMPLES = (0, 1, 2, 5, 10, 20)
NOES = (0, 8, 64)
"""Numbers of other pictures, which do not name the label, in the banks that calibration is fitted on."""
SHARE, SHARES = 0.08, (0.003, 0.01, 0.03, 0.08, 0.2)
REPEATS, QUERIES, HELD = 3, 600, 30
WRONG_NAMES = 200
FOLDS, FEWEST_LABELS, SURE = 4, 8, 0.5
BATCH = 32
MOST_BYTES = 300_000_000
"""The products of a larger graph stay in floats: to try what int8 does to each would take gigabytes and hours."""
MOST_PLACES = 3000
"""The most pictures whose places are kept for calibration."""


@dataclass(frozen=True, eq=False)
class BasePictures:
    """Base pictures: global features, what they show, and the probabilities of a classifier's classes."""

    words: Sequence[str]
    """The labels, as they are looked up."""
    targets: NDArray[np.bool_]
    features: Features
    chances: NDArray[np.float32]

    def without(self, columns: Sequence[int]) -> "BasePictures":
        """The base pictures without these labels and without all pictures that show one of them."""
        kept = [column for column in range(len(self.words)) if column not in set(columns)]
        rows = ~self.targets[:, list(columns)].any(axis=1)
        words = [self.words[column] for column in kept]
        return BasePictures(words, self.targets[rows][:, kept], self.features[rows], self.chances[rows])


@dataclass(frozen=True, eq=False)
class Solved:
    """What the base pictures determine of a model: its space, and the prototypes that its word map is solved on."""

    space: Space
    prototypes: Vectors
    """Prototypes of the base labels, followed by those of the classes."""
    base_words: Sequence[str]
    classes: Sequence[str]

    def word_prototypes(self, table: WordTable, names: Sequence[str]) -> Vectors:
        """The prototypes that these names suggest."""
        word_map = solve_words(table, self.base_words, self.classes, self.prototypes, STRENGTHS)
        return word_map.prototypes(table.vectors(names))


def solve(base: BasePictures) -> Solved:
    space = core.fit_space(base.features, base.features.shape[1], STRENGTHS.shrinkage)
    projected = space.project(base.features)
    labels = core.base_prototypes(projected, base.targets, STRENGTHS.separation)
    classes = core.class_prototypes(projected, base.chances)
    return Solved(space, np.concatenate([labels, classes]), base.words, class_names(CLASSES))


@dataclass(frozen=True, eq=False)
class Held:
    """Labels that a fit has not seen, with pictures in its space: the data for calibration."""

    pictures: Pictures
    targets: NDArray[np.bool_]
    word_prototypes: Vectors
    """Prototypes that the labels' names suggest."""
    wrong: Vectors
    """Prototypes that names of other things suggest."""

    def scores(self) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """Scores of each label's pictures with its own name, and with the wrong names, one column each."""
        plain = Strengths(**{**vars(STRENGTHS), "kappa": 1.0, "offset": 0.0})
        every = core.Classifiers.of(
            [core.prototype_classifier(word, plain) for word in np.concatenate([self.word_prototypes, self.wrong])]
        )
        found = every.logits(self.pictures.places, STRENGTHS)
        right = [found[shown, label] for label, shown in enumerate(self.targets.T)]
        return right, [found[shown, len(self.word_prototypes) :] for shown in self.targets.T]

    def pairs(self, evidence: NameEvidence) -> Iterator[Pairs]:
        """Logits from banks with a name to twenty examples, and few or many others, named partly or completely."""
        random = np.random.default_rng(0)
        everything = np.arange(len(self.targets))
        for _, (label, shown), number in product(range(REPEATS), enumerate(self.targets.T), EXAMPLES):
            if shown.sum() < number + HELD:
                continue
            yes = random.choice(np.flatnonzero(shown), number, replace=False)
            for noes in NOES if number else (0,):
                most = min(noes, int((~shown).sum()) // 2)
                no = random.choice(np.flatnonzero(~shown), most, replace=False)
                rows = np.concatenate([yes, no]).astype(np.int64)
                named = np.arange(len(rows)) < number
                support = self.pictures.take(rows)
                for weight in (STRENGTHS.unnamed, 1.0) if noes else (1.0,):
                    weights = np.where(named, 1.0, weight).astype(np.float32)
                    fitted = core.fit_label(support, named, weights, self.word_prototypes[label], STRENGTHS, evidence)
                    rest = random.permutation(np.setdiff1d(everything, rows))[:QUERIES]
                    logits = core.Classifiers.of([fitted]).logits(self.pictures.places[rest], STRENGTHS)[:, 0]
                    yield Pairs(number, fitted.noes, logits, self.targets[rest, label])


def wrong_names(solved: Solved, table: WordTable) -> Vectors:
    """Prototypes for names of other things: some of the classifier's classes."""
    names = np.random.default_rng(0).permutation(list(solved.classes))
    known = [first for name in names if (first := str(name).split(", ")[0]) in table][:WRONG_NAMES]
    return solved.word_prototypes(table, known)


def calibrated(held: Sequence[Held], begin: Begin = unwatched) -> tuple[NameEvidence, Calibration]:
    """The name evidence and the calibration, fitted over all held-out labels."""
    scores = [each.scores() for each in held]
    right = [one for mine, _ in scores for one in mine if len(one)]
    wrong = [one for _, others in scores for one in others if len(one)]
    between = [np.std([each.mean() for each in right]), np.std(np.concatenate([each.mean(axis=0) for each in wrong]))]
    evidence = NameEvidence(
        right=round(float(np.median([each.mean() for each in right])), 4),
        wrong=round(float(np.mean([each.mean() for each in wrong])), 4),
        between=round(float(np.mean(between)), 4),
        within=round(float(np.mean([each.std() for each in right])), 4),
    )
    pairs: list[Pairs] = []
    advance = begin("calibrating", len(held))
    for each in held:
        pairs += each.pairs(evidence)
        advance(1)
    curves = calibrate(pairs, SHARE, SHARES)
    coherences = [(each.pictures.coherence(), each.targets) for each in held]
    # the mean over labels of the mean over their pictures, so that every label counts alike
    mean = np.mean([some[shown].mean() for some, targets in coherences for shown in targets.T if shown.any()])
    return evidence, replace(curves, coherence=round(float(mean), 4))


def fit_model(
    out: Path,
    pictures: Sequence[Picture],
    shown: Sequence[frozenset[str]],
    *,
    network: str,
    weights: str | None = None,
    size: int = 224,
    words: str = SHIPPED,
    device: str = "auto",
    int8: bool = True,
    begin: Begin = unwatched,
) -> dict[str, Any]:
    """Writes OUT.safetensors and OUT.onnx, once both are done; returns facts about the model.

    `network` is a timm name, or the path of an ONNX file from normalised pixels to a feature map. With `int8` a
    transformer's matrix products are computed in int8 where that changes little.
    """
    name = out.name.removesuffix(".safetensors")
    graph, model = (out.with_name(f"{name}{ending}") for ending in (".onnx", ".safetensors"))
    _refuse_to_replace(graph, model)
    table = load_words(words)
    nearest = next(each for each in out.absolute().parents if each.exists())  # a refusal leaves no new folder behind
    with TemporaryDirectory(prefix=f".{name}-", dir=nearest) as folder:
        made = Path(folder) / graph.name
        facts, constants = make_graph(network, weights, size, made)  # first, since it is quick to be refused
        chances = None if any(shown) else classify(pictures, begin)
        labels, targets = label_matrix(shown) if chances is None else sure_classes(chances)
        rows = np.sort(np.random.default_rng(0).permutation(len(pictures))[:MOST_PLACES])
        unknown = [label for label in labels if label not in table]
        kept = [number for number, label in enumerate(labels) if label not in unknown]
        names = [labels[number] for number in kept]
        targets = targets[:, kept]
        _refuse_too_few(names, targets, rows)
        quantised = int8 and quantise(made, facts, constants, pictures, begin)
        pooled, places = encode(made, facts, constants, pictures, rows, device, begin)
        chances = classify(pictures, begin) if chances is None else chances
        base = BasePictures(names, targets, pooled, chances)
        advance, held = begin("solving", FOLDS), []
        for fold in _cross_fit(base, places, rows, table):
            held.append(fold)
            advance(1)
        evidence, calibration = calibrated(held, begin)
        solved = solve(base)
        save_model(
            Path(folder) / model.name,
            network=facts,
            constants=constants,
            space=solved.space,
            base_prototypes=solved.prototypes,
            word_map=solve_words(table, solved.base_words, solved.classes, solved.prototypes, STRENGTHS),
            strengths=STRENGTHS,
            evidence=evidence,
            calibration=calibration,
            words=words,
            base_words=solved.base_words,
            class_names=solved.classes,
            origin=f"{len(pictures)} pictures of {len(names)} {'labels' if any(shown) else 'classes of ' + CLASSIFIER}",
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        for path in (graph, model):
            (Path(folder) / path.name).replace(path)
    return {
        "model": str(model),
        "pictures": len(pictures),
        "labels": names,
        "left_out": unknown,
        "int8": quantised,
    }


def _refuse_to_replace(graph: Path, model: Path) -> None:
    """Refuses a name that other files have, such as the network's own; an earlier model of that name is replaced."""
    foreign = graph if graph.exists() and not model.exists() else None
    if model.exists():
        try:
            read_arrays(model, KIND, header_alone=True)
        except InputError:
            foreign = model
    if foreign is not None:
        raise InputError(
            f"{foreign} is there, and is no part of a model that fewtag made; name the new model otherwise"
        )


def _refuse_too_few(names: Sequence[str], targets: NDArray[np.bool_], rows: NDArray[np.int64]) -> None:
    counts = targets[rows].sum(axis=0)
    if len(names) < FEWEST_LABELS:
        raise InputError(
            f"the base pictures show {len(names)} labels that are known words, at least {FEWEST_LABELS} are needed; "
            "give more pictures, or a table that names what they show"
        )
    if counts.max() < HELD:
        raise InputError(
            f"{names[int(counts.argmax())]!r}, the commonest label, is shown by {counts.max()} base pictures, at least "
            f"{HELD} are needed to learn how far a probability can be trusted; give more pictures"
        )
    left = min(int((~targets[:, columns].any(axis=1)).sum()) for columns in _folds(len(names)))
    if left < HELD:
        raise InputError(
            f"the base pictures show so much at once that without a quarter of the labels {left} of them are left, at "
            f"least {HELD} are needed to learn how new labels fare; give more pictures, of fewer labels each"
        )


def _folds(labels: int) -> list[list[int]]:
    """The labels' columns in `FOLDS` random parts."""
    order = np.random.default_rng(0).permutation(labels)
    return [sorted(order[fold::FOLDS].tolist()) for fold in range(FOLDS)]


def _cross_fit(
    base: BasePictures, places: NDArray[np.float16], rows: NDArray[np.int64], table: WordTable
) -> Iterator[Held]:
    """Holds out a quarter of the labels at a time from a fit on the pictures that show none of them."""
    for columns in _folds(len(base.words)):
        solved = solve(base.without(columns))
        word_prototypes = solved.word_prototypes(table, [base.words[column] for column in columns])
        projected = solved.space.project(places.astype(np.float32))
        yield Held(Pictures.of(projected), base.targets[rows][:, columns], word_prototypes, wrong_names(solved, table))


def make_graph(network: str, weights: str | None, size: int, path: Path) -> tuple[dict[str, Any], Constants]:
    """Writes the graph of a timm network, or of an ONNX file; returns its facts and constants."""
    if network.lower().endswith(".onnx"):
        if weights is not None:
            raise InputError("an ONNX file has its own weights; leave --weights out")
        return wrap_graph(Path(network), path, size)
    return write_graph(create_backbone(network, weights=weights, size=size), path)


def quantise(
    path: Path, facts: dict[str, Any], constants: Constants, pictures: Sequence[Picture], begin: Begin
) -> bool:
    """Whether the graph's matrix products are in int8 now; if so its file and the digest in its facts are new."""
    before = path.read_bytes()
    if len(before) > MOST_BYTES:
        return False
    seen = feeds(pictures, int(facts["size"]), int(facts["channels"]), constants)
    content = try_int8(before, seen, 16, begin)
    if content is None:
        return False
    path.write_bytes(content)
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    return True


def encode(
    path: Path,
    facts: dict[str, Any],
    constants: Constants,
    pictures: Sequence[Picture],
    rows: NDArray[np.int64],
    device: str,
    begin: Begin,
) -> tuple[Features, NDArray[np.float16]]:
    """Global features of all pictures, by the graph itself, and the places of those in these rows."""
    runtime = Network(path, device, sha256=facts["sha256"], constants=constants)
    channels = int(facts["channels"])
    whole = Space(np.zeros(channels, np.float32), np.eye(channels, dtype=np.float32))
    wanted = set(rows.tolist())
    pooled, places = [], []
    advance = begin("encoding", len(pictures))
    for first, batch in enumerate(squares(pictures, int(facts["size"]))):
        found = runtime(batch, whole)
        pooled.append(found.mean(axis=1))
        places += [each.astype(np.float16) for row, each in enumerate(found, first * BATCH) if row in wanted]
        advance(len(batch))
    return np.concatenate(pooled), np.array(places)


@torch.inference_mode()
def classify(pictures: Sequence[Picture], begin: Begin) -> NDArray[np.float32]:
    """Each picture's probabilities for the classifier's classes: pictures × classes."""
    classifier, found = create_classifier(CLASSIFIER), []
    advance = begin("classifying", len(pictures))
    for batch in squares(pictures, classifier.size):
        found.append(classifier(torch.from_numpy(np.stack(batch))).numpy())
        advance(len(batch))
    return np.concatenate(found)


def squares(pictures: Sequence[Picture], size: int) -> Iterator[list[Square]]:
    """Batches of pixels; a picture that cannot be read is refused by name."""
    return map(list, batches(prefetch(lambda each: squash(open_image(each), size), iter(pictures), 2 * BATCH), BATCH))


def label_matrix(shown: Sequence[frozenset[str]]) -> tuple[list[str], NDArray[np.bool_]]:
    labels = sorted(frozenset().union(*shown))
    return labels, np.array([[label in each for label in labels] for each in shown], np.bool_)


def sure_classes(chances: NDArray[np.float32]) -> tuple[list[str], NDArray[np.bool_]]:
    """Classes that the classifier is sure of in enough pictures, as if they were labels."""
    sure = chances > SURE
    columns = np.flatnonzero(sure.sum(axis=0) >= HELD // 2)
    names = class_names(CLASSES)
    return [names[column].split(", ")[0] for column in columns], sure[:, columns]
