"""The paper's whole way in a minute, on pictures drawn here: train → measure → heat-map. Run it with `make demo`.

Each picture shows one to three of fifteen drawn things. Eight of them train the model, three stop its training, and the
last four, which it never saw, are learnt from one example each.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from fewtag.apps.cli import main as fewtag

BASE = ("circle", "square", "triangle", "ring", "cross", "arrow", "ladder", "house")
VALIDATION = ("diamond", "flower", "fish")
NOVEL = ("star", "heart", "moon", "tree")
SIZE = 224
Point = tuple[float, float]


def polygon(draw: ImageDraw.ImageDraw, colour: str, *points: Point) -> None:
    draw.polygon([(50 + 50 * x, 50 + 50 * y) for x, y in points], fill=colour)


def disc(draw: ImageDraw.ImageDraw, colour: str, x: float, y: float, radius: float) -> None:
    left, top, right, bottom = (50 + 50 * edge for edge in (x - radius, y - radius, x + radius, y + radius))
    draw.ellipse([left, top, right, bottom], colour)


def radial(points: int, radii: tuple[float, float]) -> list[Point]:
    """Points round the centre, at two radii in turn: stars and their kin."""
    angles = [2 * math.pi * number / points - math.pi / 2 for number in range(points)]
    return [(radii[i % 2] * math.cos(angle), radii[i % 2] * math.sin(angle)) for i, angle in enumerate(angles)]


def box(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def several(*parts: Callable[[ImageDraw.ImageDraw, str], None]) -> Callable[[ImageDraw.ImageDraw, str], None]:
    def draw_all(draw: ImageDraw.ImageDraw, colour: str) -> None:
        for part in parts:
            part(draw, colour)

    return draw_all


def shape(*points: Point) -> Callable[[ImageDraw.ImageDraw, str], None]:
    return lambda draw, colour: polygon(draw, colour, *points)


def dot(x: float, y: float, radius: float, hole: bool = False) -> Callable[[ImageDraw.ImageDraw, str], None]:
    return lambda draw, colour: disc(draw, "#00000000" if hole else colour, x, y, radius)


THINGS: dict[str, Callable[[ImageDraw.ImageDraw, str], None]] = {
    "circle": dot(0, 0, 0.9),
    "square": shape(*box(-0.8, -0.8, 0.8, 0.8)),
    "triangle": shape((0, -0.9), (0.9, 0.8), (-0.9, 0.8)),
    "ring": several(dot(0, 0, 0.95), dot(0, 0, 0.6, hole=True)),
    "cross": several(shape(*box(-0.25, -0.9, 0.25, 0.9)), shape(*box(-0.9, -0.25, 0.9, 0.25))),
    "arrow": several(shape(*box(-0.9, -0.2, 0.2, 0.2)), shape((0.1, -0.7), (0.9, 0), (0.1, 0.7))),
    "ladder": several(
        shape(*box(-0.6, -0.95, -0.4, 0.95)),
        shape(*box(0.4, -0.95, 0.6, 0.95)),
        *(shape(*box(-0.5, y - 0.07, 0.5, y + 0.07)) for y in (-0.7, -0.25, 0.2, 0.65)),
    ),
    "house": several(shape(*box(-0.65, -0.1, 0.65, 0.85)), shape((0, -0.9), (0.95, -0.05), (-0.95, -0.05))),
    "diamond": shape((0, -0.95), (0.6, 0), (0, 0.95), (-0.6, 0)),
    "flower": several(*(dot(x, y, 0.38) for x, y in radial(6, (0.55, 0.55))), dot(0, 0, 0.2, hole=True)),
    "fish": several(
        lambda draw, colour: draw.ellipse([10, 28, 75, 72], colour), shape((0.3, 0), (0.95, -0.5), (0.95, 0.5))
    ),
    "star": shape(*radial(10, (0.95, 0.4))),
    "heart": several(dot(-0.42, -0.3, 0.46), dot(0.42, -0.3, 0.46), shape((-0.83, -0.1), (0.83, -0.1), (0, 0.9))),
    "moon": several(dot(0, 0, 0.9), dot(0.4, -0.2, 0.75, hole=True)),
    "tree": several(shape((0, -0.95), (0.7, 0.45), (-0.7, 0.45)), shape(*box(-0.15, 0.4, 0.15, 0.95))),
}


def paint(labels: tuple[str, ...], generator: np.random.Generator) -> Image.Image:
    """The things in colours and sizes of their own, each in its own corner, over a mottled background."""
    mottles = generator.integers(140, 185, (6, 6, 3), dtype=np.uint8)
    picture = Image.fromarray(mottles).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    corners = generator.permutation([(0, 0), (1, 0), (0, 1), (1, 1)])
    for label, corner in zip(labels, corners, strict=False):
        stamp = Image.new("RGBA", (100, 100))
        hue = int(generator.integers(0, 360))
        THINGS[label](ImageDraw.Draw(stamp), f"hsl({hue}, 85%, {30 if generator.random() < 0.5 else 75}%)")
        side = int(generator.integers(70, 104))
        stamp = stamp.rotate(float(generator.uniform(-15, 15)), Image.Resampling.BICUBIC).resize((side, side))
        left, top = (int(corner[axis]) * 112 + int(generator.integers(0, 112 - side + 1)) for axis in (0, 1))
        picture.paste(stamp, (left, top), stamp)
    return picture.filter(ImageFilter.GaussianBlur(0.6))


def make_album(folder: Path, pictures: int = 40, seed: int = 0) -> None:
    """Pictures, their labels, the split and the recipe: all that a data set of one's own needs."""
    generator = np.random.default_rng(seed)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    lines = ["image,labels"]
    for group in (BASE, VALIDATION, NOVEL):
        for number in range(pictures * len(group)):
            others = [label for label in generator.permutation(group) if label != group[number % len(group)]]
            labels = (group[number % len(group)], *others[: int(generator.integers(0, 3))])
            name = f"pictures/{len(lines):04}.jpg"
            paint(labels, generator).save(folder / name, quality=90)
            lines.append(f"{name},{';'.join(labels)}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    split = {
        "name": "drawn",
        "groups": {"base": BASE, "validation": VALIDATION, "novel": NOVEL},
        "phases": {
            "train": {"labels": ["base"], "must_not_show": ["validation", "novel"]},
            "val": {"labels": ["validation"], "must_not_show": ["base", "novel"]},
            "test": {"labels": ["novel"], "must_not_show": ["base", "validation"]},
        },
    }
    (folder / "split.json").write_text(json.dumps(split, indent=2))
    (folder / "demo.toml").write_text(RECIPE)


RECIPE = """\
# EfficientNet-Lite2 and GloVe-50 came with the install; nothing is downloaded.
[data]
name = "drawn"
split = "split.json"
sources = [{ format = "table", path = "labels.csv" }]

[evaluation]
episodes = 100

[[runs]]
name = "protonet"
method.name = "protonet"

[[runs]]
name = "word-attention"
method.name = "word-attention"
training = { episodes = 600, learning_rate = 3e-4, warmup = 100, validate_every = 50, validation_episodes = 30 }
"""


def run(command: str) -> None:
    print(f"\n$ fewtag {command}", flush=True)
    sys.argv = ["fewtag", *shlex.split(command)]
    try:
        fewtag()
    except SystemExit as stop:
        if stop.code:
            raise


def main(folder: Path) -> None:
    print(f"Drawing pictures of {', '.join(BASE + VALIDATION + NOVEL)} into {folder}/")
    make_album(folder)
    places = f"--out {folder}/results --runs {folder}/runs --cache {folder}/cache"
    run(f"bench {folder}/demo.toml {places}")
    run(f"report {folder}/results")
    for name, labels in {"trained": ("house", "ring", "arrow"), "unseen": ("tree", "star", "heart")}.items():
        paint(labels, np.random.default_rng(8)).save(folder / f"{name}.png")
        wanted = " ".join(f"--label {label}" for label in labels)
        model = f"{folder}/runs/demo/word-attention {folder}/{name}.png"
        run(f"explain {model} {wanted} --out {folder}/heat-{name}.png --data {folder}")
    print(f"""
The table: {folder}/results/RESULTS.md
Where it looks for things it was trained on: {folder}/heat-trained.png
and for things it was not: {folder}/heat-unseen.png""")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
