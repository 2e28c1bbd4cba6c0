"""Composes the demo's album, photo cut-outs on photo backgrounds, from two unpacked Debian packages:

    apt-get download tuxpaint-stamps-default tuxpaint-data
    for package in tuxpaint-*.deb; do dpkg -x $package unpacked; done
    python examples/make_album.py unpacked

The same packages and seed give the same pictures; see album/LICENSE.md for what they are made of.
"""

import argparse
import csv
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageStat

WIDTH, HEIGHT = 320, 240
MARGIN = 5  # pixels kept free round each thing, so that boxes never touch
MOST_ENLARGED = 1.9  # a small photograph stays a small thing rather than a blurred one
DARKEST = 75  # mean grey below which a thing is lifted, or it is lost on bark and in shade
SHADOW = (4, 6)

# Only stamps that a named maker gave to Tux Paint, or that are free of rights: the package also holds guitars, cars and
# fruit from Wikimedia under CC BY-SA or GFDL. No photograph serves both an example and a test.
CUTOUTS = {  # label → folder, photographs for its examples (a picture each), photographs for the tests
    "ball": ("sports", "soccer basketball", "cricketball tennis_ball football"),
    "bird": ("animals/birds", "pigeon lark", "blackbird duck rainbow-lorikeet rooster seagull silver-gull tucan"),
    "deer": ("animals/mammals/deer", "deer", "caribou doe wapiti"),
    "fish": ("animals/fish", "bluegroper butterflyfish", "clownfish coraltrout dolphinfish moonwrasse stripedfish"),
    "flower": ("plants/flowers", "flower8 yellow-flower", "flower1 flower2 flower3 flower6 flower9 flower10 pigface"),
    "insect": ("animals/insects", "hornet grasshopper", "hoverfly mantis xanthia"),
    "mushroom": ("plants/mushrooms", "cep-1", "cep cep-2"),
    "pig": ("animals/mammals", "pig", "pig_golden pig_golden2 wildboar"),
}
BACKGROUNDS = (  # without things that a person could take for one of the labels
    *("burnt_bark", "cliff", "corn_maze", "mossy_bark", "mossy_log", "mudstone", "ocean_splash", "ocean_waves"),
    *("redwoods_above", "rocks", "spiders_web", "sun_behind_clouds", "sun_behind_leaves", "trees_above"),
    "trees_at_dusk",
)
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Plan:
    """One picture before any pixel is read: what it shows, on what, and for which use."""

    role: str
    things: tuple[tuple[str, str], ...]  # (label, cut-out)
    background: str


def endless(items: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Every item once in random order, then again: nothing is rare by bad luck."""
    while True:
        yield from rng.sample(items, len(items))


def plan_album(rng: random.Random) -> list[Plan]:
    """One or two examples a label; then tests: each label alone, every two together, and each thrice among three."""
    backgrounds = endless(BACKGROUNDS, rng)
    labels = tuple(CUTOUTS)
    examples = {label: [f"{folder}/{name}" for name in names.split()] for label, (folder, names, _) in CUTOUTS.items()}
    tests = {
        label: endless([f"{folder}/{name}" for name in names.split()], rng)
        for label, (folder, _, names) in CUTOUTS.items()
    }
    plans = [Plan("example", ((label, name),), next(backgrounds)) for label in labels for name in examples[label]]
    threes = [tuple(labels[(first + step) % len(labels)] for step in (0, 1, 3)) for first in range(len(labels))]
    groups = [*((label,) for label in labels), *itertools.combinations(labels, 2), *threes]
    for group in rng.sample(groups, len(groups)):
        things = tuple((label, next(tests[label])) for label in rng.sample(group, len(group)))
        plans.append(Plan("test", things, next(backgrounds)))
    return plans


def make_background(path: Path, rng: random.Random) -> Image.Image:
    """A random part of the photograph, a little out of focus."""
    photo = Image.open(path).convert("RGB")
    share = rng.uniform(0.5, 0.85)
    width = min(photo.width, photo.height * WIDTH / HEIGHT) * share
    height = width * HEIGHT / WIDTH
    # the middle nine tenths: one photograph has a black rim
    left = rng.uniform(0.05 * photo.width, 0.95 * photo.width - width)
    top = rng.uniform(0.05 * photo.height, 0.95 * photo.height - height)
    box = (left, top, left + width, top + height)
    photo = photo.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS, box=box)
    if rng.random() < 0.5:
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    photo = photo.filter(ImageFilter.GaussianBlur(rng.uniform(1.2, 2.2)))
    return ImageEnhance.Brightness(photo).enhance(rng.uniform(0.85, 1.15))


def make_thing(path: Path, size: float, rng: random.Random) -> Image.Image:
    """The cut-out, varied and cropped to what is seen of it; `size` is the side of a square of its area, in pixels."""
    cutout = Image.open(path).convert("RGBA")
    cutout = cutout.crop(cutout.getchannel("A").getbbox())
    scale = min(size / (cutout.width * cutout.height) ** 0.5, 0.55 * WIDTH / cutout.width, MOST_ENLARGED)
    shape = (round(cutout.width * scale), round(cutout.height * scale))
    # premultiplied ("RGBa"), so that no colour of the invisible pixels bleeds in
    cutout = cutout.convert("RGBa").resize(shape, Image.Resampling.LANCZOS).convert("RGBA")
    if rng.random() < 0.5:
        cutout = cutout.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    cutout = cutout.rotate(rng.uniform(-12, 12), Image.Resampling.BICUBIC, expand=True)
    # soft, and a touch inside the old rim, where stamps keep a thread of white paper; more would cost insects a leg
    alpha = cutout.getchannel("A")
    alpha = ImageChops.darker(
        alpha, alpha.filter(ImageFilter.GaussianBlur(0.8)).point(lambda value: value * 5 // 4 - 64)
    )
    light = ImageStat.Stat(cutout.convert("L"), alpha).mean[0]
    lift = max(1, min(1.5, DARKEST / light))
    cutout = ImageEnhance.Brightness(cutout).enhance(lift * rng.uniform(0.93, 1.1))
    cutout.putalpha(alpha)
    return cutout.crop(alpha.point(lambda value: 255 * (value > 96)).getbbox())


def find_place(size: tuple[int, int], taken: list[Box], rng: random.Random) -> Box | None:
    for _ in range(300):
        left = rng.randint(MARGIN, max(MARGIN, WIDTH - MARGIN - size[0]))
        top = rng.randint(MARGIN, max(MARGIN, HEIGHT - MARGIN - size[1]))
        box = (left, top, left + size[0], top + size[1])
        apart = all(
            box[2] + MARGIN <= other[0]
            or other[2] + MARGIN <= box[0]
            or box[3] + MARGIN <= other[1]
            or other[3] + MARGIN <= box[1]
            for other in taken
        )
        if apart and box[2] <= WIDTH and box[3] <= HEIGHT:
            return box
    return None


def compose(plan: Plan, source: Path, rng: random.Random) -> tuple[Image.Image, list[Box]]:
    """The picture and the boxes of its things, in the plan's order; things shrink until all have a place."""
    background = make_background(source / "templates" / f"{plan.background}.jpg", rng)
    largest = 0.66 * HEIGHT
    while True:
        picture = background.copy()
        boxes: list[Box] = []
        for _, name in plan.things:
            thing = make_thing(source / "stamps" / f"{name}.png", rng.uniform(0.75, 1) * largest, rng)
            box = find_place(thing.size, boxes, rng)
            if box is None:
                break
            shade = Image.new("L", (WIDTH, HEIGHT))
            shade.paste(
                thing.getchannel("A").point(lambda value: value * 2 // 5), (box[0] + SHADOW[0], box[1] + SHADOW[1])
            )
            picture.paste("black", mask=shade.filter(ImageFilter.GaussianBlur(4)))
            picture.paste(thing, box[:2], thing)
            boxes.append(box)
        if len(boxes) == len(plan.things):
            return picture, boxes
        largest *= 0.96


def write_rows(path: Path, columns: str, rows: Sequence[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([tuple(columns.split(",")), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unpacked", type=Path, help="the folder that both packages were unpacked into")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "album")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    source = arguments.unpacked / "usr/share/tuxpaint"
    if not (source / "stamps").is_dir() or not (source / "templates").is_dir():
        parser.error(f"{source} has no stamps or no templates; unpack both packages into {arguments.unpacked}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows, sources = [], []
    for number, plan in enumerate(plan_album(random.Random(arguments.seed)), start=1):
        # a generator for each picture: changing one leaves the others as they were
        picture, boxes = compose(plan, source, random.Random(f"{arguments.seed} {number}"))
        image = f"{number:03d}.jpg"
        picture.save(arguments.out / image, quality=82, optimize=True)
        labels = ";".join(label for label, _ in plan.things)
        rows.append((image, labels, ";".join(" ".join(map(str, box)) for box in boxes), plan.role))
        sources.append((image, plan.background, ";".join(name for _, name in plan.things)))
    write_rows(arguments.out / "album.csv", "image,labels,boxes,role", rows)
    write_rows(arguments.out / "examples.csv", "image,labels", [row[:2] for row in rows if row[3] == "example"])
    write_rows(arguments.out / "sources.csv", "image,background,cutouts", sources)


if __name__ == "__main__":
    main()
