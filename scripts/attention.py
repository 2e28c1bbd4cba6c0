"""The paper's figure of attention: where a label's word looks, by both readings, beside the tagger's heat-map.

    fewtag train recipes/few.toml --data DIR --only word-attention-few-pictures-seed-0 \\
        --only word-attention-reference-few-pictures-seed-0
    python scripts/attention.py --data DIR --out docs/pictures/attention.webp --scores results/attention.json

Scores of places are those before the softmax, summed over the heads, as in the paper; each map goes from its coldest
place to its hottest. The photographs are COCO's, so the picture shows frames with the things' boxes, drawn by hand,
instead; `--photographs` lays the heat over the photographs. `--scores` adds a pointing score (the grid pointing game):
of four test pictures in a square, one of which shows the label, does the hottest place lie in that one? Chance is a
quarter. With `--boxes annotations/instances_train2014.json annotations/instances_val2014.json`, or other files of
COCO's instances, it adds the pointing game proper: in each picture with a novel label and boxes, does the hottest place
lie in one of the label's boxes?
"""

import argparse
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fewtag.errors import InputError
from fewtag.files import read_json, write_atomically
from fewtag.pictures.decode import squash
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import load_trained
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import commit, mean_and_interval
from fewtag.research.bench.run_folder import RunFolder
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.backbone import Backbone, fuse_batch_norms, open_backbone
from fewtag.research.methods.word_attention import WordAttention
from fewtag.tagger.explain import Heat, overlay, stretch
from fewtag.tagger.tagger import Tagger

RUNS = {
    "the text's reading": "word-attention-few-pictures-seed-0",
    "the code's reading": "word-attention-reference-few-pictures-seed-0",
}
TAGGER = "the tagger, by name alone"
UNTRAINED = ", untrained"
SIDE, GAP, CAPTION = 224, 8, 26
TURNS = 5
"""Squares of four pictures for each label."""
Heats = Callable[[Image.Image, list[str]], dict[str, Heat]]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as shares of the picture."""


class Example(NamedTuple):
    """One of the figure's pictures: COCO's number and phase, and where its things are."""

    image: str
    phase: str
    boxes: dict[str, Box]


EXAMPLES = (
    Example("000000014750", "test", {"bicycle": (0.29, 0.67, 0.87, 0.92)}),
    Example("000000195401", "test", {"frisbee": (0.27, 0.64, 0.52, 0.83), "bird": (0.42, 0.39, 0.81, 0.67)}),
    Example("000000073104", "val", {"zebra": (0.23, 0.34, 0.44, 0.48), "cow": (0.07, 0.49, 1.0, 0.87)}),
)


def scale(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """From the coldest place, 0, to the hottest, 1."""
    return (values - values.min()) / max(float(values.max() - values.min()), 1e-12)


def encoder(network: Backbone) -> Callable[[Image.Image], Tensor]:
    """A picture's maps; those of the last one are kept, since several systems look at it."""
    network, kept = fuse_batch_norms(network), list[tuple[Image.Image, Tensor]]()

    def encode(picture: Image.Image) -> Tensor:
        if not kept or kept[0][0] is not picture:
            with torch.inference_mode():
                kept[:] = [(picture, network(torch.from_numpy(squash(picture, network.size))[None]))]
        return kept[0][1]

    return encode


def word_heats(experiment: Experiment, encode: Callable[[Image.Image], Tensor], method: WordAttention) -> Heats:
    """The paper's scores of places."""

    def heats(picture: Image.Image, labels: list[str]) -> dict[str, Heat]:
        with torch.inference_mode():
            found = method.relevance(encode(picture), experiment.words(labels))[0].numpy()
        return {label: stretch(each, picture.size) for label, each in zip(labels, map(scale, found), strict=True)}

    return heats


def systems(data: Path, recipes: Path, runs: Path, *, size: int) -> dict[str, Heats]:
    """Both readings, trained and untrained, on pictures of a size."""
    found: dict[str, Heats] = {}
    for name, run in RUNS.items():
        ((file, recipe),) = load_recipes(recipes / "few.toml", only=[run])
        experiment = Experiment(recipe, data, file.parent)
        if not found:
            weights = experiment._locate(str(recipe.backbone.weights))
            network = open_backbone(recipe.backbone.name, weights=weights, size=size)
            assert isinstance(network, Backbone)
            encode = encoder(network.eval())
        trained, untrained = load_trained(experiment, RunFolder.of(experiment, runs))[1], experiment.build()[1]
        for state, method in (("", trained), (UNTRAINED, untrained)):
            assert isinstance(method, WordAttention)
            found[name + state] = word_heats(experiment, encode, method.eval())
    return found


def tagger_heats(labels: list[str]) -> Heats:
    """The tagger that never saw the novel and validation labels, each defined by its name."""
    tagger = Tagger(model="coco52")
    for label in labels:
        tagger.define(label)
    return lambda picture, wanted: tagger.explain_all(picture, wanted)[0]


def pictures(data: Path, recipes: Path) -> dict[str, LabelledImages]:
    """The pictures of the phases that the figure and the scores need."""
    ((file, recipe),) = load_recipes(recipes / "part.toml", only=["word-attention-frozen-seed-0"])
    experiment = Experiment(recipe, data, file.parent)
    return {phase: experiment.phase(phase) for phase in ("test", "val", "any")}


def draw(known: dict[str, LabelledImages], shown: dict[str, Heats], *, photographs: bool) -> Image.Image:
    """A row for each label of each example, a column for each system."""
    columns, labels = ["what is where", *shown], [label for example in EXAMPLES for label in example.boxes]
    sheet = Image.new("RGB", (len(columns) * (SIDE + GAP) - GAP, CAPTION + len(labels) * (SIDE + CAPTION)), "white")
    pen, font, top = ImageDraw.Draw(sheet), ImageFont.load_default(size=15), CAPTION
    for number, name in enumerate(columns):
        pen.text((number * (SIDE + GAP) + SIDE / 2, CAPTION / 2), name, fill="black", font=font, anchor="mm")
    for example in EXAMPLES:
        images = known[example.phase]
        photograph = images.pictures[images.rows([example.image])[0]].open().convert("RGB").resize((SIDE, SIDE))
        ground = photograph if photographs else Image.new("RGB", (SIDE, SIDE), (120, 120, 120))
        found = [heats(photograph, [*example.boxes]) for heats in shown.values()]
        for label in example.boxes:
            for number, panel in enumerate([ground, *(overlay(ground, scale(heats[label])) for heats in found)]):
                sheet.paste(frame(panel, example.boxes, label, named=number == 0), (number * (SIDE + GAP), top))
            pen.text((0, top + SIDE + 3), f"where is the {label}?  COCO {int(example.image)}", fill="black", font=font)
            top += SIDE + CAPTION
    return sheet


def frame(panel: Image.Image, boxes: dict[str, Box], asked: str, *, named: bool) -> Image.Image:
    """The panel with the boxes, the one that is asked for in white."""
    framed = panel.copy()
    pen, font = ImageDraw.Draw(framed), ImageFont.load_default(size=15)
    for thing, box in boxes.items():
        left, top, right, bottom = (share * (SIDE - 1) for share in box)
        pen.rectangle((left, top, right, bottom), outline="white" if thing == asked else "black", width=2)
        if named:
            pen.text((left + 4, top + 2), thing, fill="white", font=font)
    return framed


class Square(NamedTuple):
    """Four pictures in a square, of which the one in this quarter shows the label."""

    picture: Image.Image
    label: str
    quarter: int


def squares(images: LabelledImages, seed: int = 0) -> Iterator[Square]:
    """`TURNS` squares for each label, of 2 × `SIDE` pixels."""
    generator = np.random.default_rng(seed)
    for column, label in enumerate(images.labels):
        having, lacking = (np.flatnonzero(images.targets[:, column] == shows) for shows in (True, False))
        for right in generator.choice(having, TURNS, replace=len(having) < TURNS):
            quarter = int(generator.integers(4))
            chosen = generator.choice(lacking, 4, replace=False)
            chosen[quarter] = right
            whole = Image.new("RGB", (2 * SIDE, 2 * SIDE))
            for place, number in enumerate(chosen):
                part = images.pictures[int(number)].open().convert("RGB").resize((SIDE, SIDE))
                whole.paste(part, (place % 2 * SIDE, place // 2 * SIDE))
            yield Square(whole, label, quarter)


def points_at(heat: NDArray[np.float32]) -> int:
    """The quarter of the hottest pixel."""
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    return 2 * int(row >= heat.shape[0] / 2) + int(column >= heat.shape[1] / 2)


def score(images: LabelledImages, systems: dict[str, Heats]) -> dict[str, object]:
    """How often each system's hottest place lies in the right quarter: over the labels, and for each."""
    hits = {name: {label: list[bool]() for label in images.labels} for name in systems}
    for square in squares(images):
        for name, heats in systems.items():
            found = points_at(heats(square.picture, [square.label])[square.label])
            hits[name][square.label].append(found == square.quarter)
    return {name: summary(of) for name, of in hits.items()}


def summary(hits: Mapping[str, list[float] | list[bool]]) -> dict[str, object]:
    """The mean, with its 95 % interval over labels, which differ more than squares do."""
    by_label = {label: round(fmean(each), 4) for label, each in hits.items()}
    mean, interval = mean_and_interval(list(by_label.values()))
    return {"hits": round(mean, 4), "over_labels": round(interval, 4), "by_label": by_label}


def read_boxes(files: Iterable[Path]) -> dict[tuple[str, str], set[Box]]:
    """The boxes of COCO's instances files by picture and label, crowds left out; files may repeat each other's."""
    boxes = defaultdict[tuple[str, str], set[Box]](set)
    for file in files:
        content = read_json(file, "file of boxes")
        try:
            names = {row["id"]: row["name"] for row in content["categories"]}
            sizes = {row["id"]: (row["width"], row["height"]) for row in content["images"]}
            for row in content["annotations"]:
                if not row.get("iscrowd"):
                    (left, top, across, down), (width, height) = row["bbox"], sizes[row["image_id"]]
                    box = left / width, top / height, (left + across) / width, (top + down) / height
                    boxes[f"{row['image_id']:012}", names[row["category_id"]]].add(box)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file} holds an entry without {error}; give COCO's instances_*.json") from error
    return boxes


def cover(boxes: Iterable[Box]) -> NDArray[np.bool_]:
    """The pixels that the boxes touch, of a picture squashed to `SIDE`, so that none is too small to be hit."""
    covered = np.zeros((SIDE, SIDE), bool)
    for left, top, right, bottom in boxes:
        covered[int(top * SIDE) : math.ceil(bottom * SIDE), int(left * SIDE) : math.ceil(right * SIDE)] = True
    return covered


def unseeing(row: slice, column: slice) -> Heats:
    """The same map for every picture and label, hot in these places alone."""
    heat = np.zeros((SIDE, SIDE), np.float32)
    heat[row, column] = 1
    return lambda _, labels: dict.fromkeys(labels, heat)


def point_into_boxes(
    images: LabelledImages, boxes: Mapping[tuple[str, str], Iterable[Box]], systems: dict[str, Heats]
) -> dict[str, object]:
    """The pointing game: how often each system's hottest place lies in a box of the label.

    Several hottest pixels count by their share in the boxes, so that one who points anywhere has the boxes' share of
    the picture.
    """
    middle = slice(SIDE // 2 - 1, SIDE // 2 + 1)
    systems = systems | {"anywhere": unseeing(slice(None), slice(None)), "the centre": unseeing(middle, middle)}
    asked = [[label for label in images.shown(row) if (image, label) in boxes] for row, image in enumerate(images.ids)]
    if not any(asked):
        raise InputError(
            f"no picture of {len(images)} has boxes (ids look like {images.ids[0]}); give COCO's own files"
        )
    hits = {name: defaultdict[str, list[float]](list) for name in systems}
    for image, picture, labels in zip(images.ids, images.pictures, asked, strict=True):
        if labels:
            opened = picture.open().convert("RGB").resize((SIDE, SIDE))
            for name, heats in systems.items():
                for label, heat in heats(opened, labels).items():
                    hits[name][label].append(float(cover(boxes[image, label])[heat == heat.max()].mean()))
    scores = {name: summary(of) for name, of in hits.items()}
    return {"pictures": sum(map(bool, asked)), "asked": Counter(chain.from_iterable(asked)), "systems": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipes", type=Path, default=Path("recipes"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photographs", action="store_true")
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--boxes", type=Path, nargs="+", default=[], help="with --scores: COCO's instances_*.json")
    arguments = parser.parse_args()
    places = arguments.data, arguments.recipes, arguments.runs
    known = pictures(arguments.data, arguments.recipes)
    tagger = {TAGGER: tagger_heats([*known["test"].labels, *known["val"].labels])}
    whole = systems(*places, size=SIDE) | tagger
    shown = {name: heats for name, heats in whole.items() if UNTRAINED not in name}
    content = io.BytesIO()
    draw(known, shown, photographs=arguments.photographs).save(content, arguments.out.suffix[1:].upper(), quality=85)
    write_atomically(arguments.out, content.getvalue())
    if arguments.scores:
        test = known["test"]
        found = score(test, systems(*places, size=2 * SIDE) | tagger)
        facts = {"squares": TURNS * len(test.labels), "chance": 0.25, "seed": 0, "commit": commit(), "runs": RUNS}
        facts["command"] = "python scripts/attention.py --data DIR --out FILE --scores FILE --boxes FILES"
        facts |= {"systems": found}
        if arguments.boxes:
            facts["boxes"] = point_into_boxes(known["any"], read_boxes(arguments.boxes), whole)
        write_atomically(arguments.scores, json.dumps(facts, indent=1).encode())


if __name__ == "__main__":
    main()
