"""Drawn pictures and random banks: speed does not depend on what they show."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from fewtag import Tagger

LABELS = (
    *("dog", "cat", "person", "car", "bird", "boat", "horse", "chair", "table", "bottle", "book", "train"),
    *("cow", "sheep", "lamp", "plate"),
)


def make_bank(path: Path, model: str | Path = "default") -> Tagger:
    """A bank of 16 labels by their names alone, which are scored like any other."""
    tagger = Tagger(model=model)
    for label in LABELS:
        tagger.define(label)
    tagger.save(path)
    return tagger


def draw(count: int, size: tuple[int, int], seed: int = 0) -> list[Image.Image]:
    """Soft shapes with fine grain, which compress about as well as photographs do."""
    generator, pictures = np.random.default_rng(seed), []
    for _ in range(count):
        shapes = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC), np.int16)
        grain = generator.integers(-12, 13, (256, 256, 3), dtype=np.int16)
        tiles = -(-size[1] // 256), -(-size[0] // 256), 1
        grained = picture + np.tile(grain, tiles)[: size[1], : size[0]]
        pictures.append(Image.fromarray(grained.clip(0, 255).astype(np.uint8)))
    return pictures


def write_jpegs(folder: Path, count: int, size: tuple[int, int], *, different: int = 64, seed: int = 0) -> Path:
    """So many files, no two the same: after `different` ones they are copies with another ending."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(draw(min(count, different), size, seed)):
        picture.save(folder / f"{number:05d}.jpg", quality=85)
    for number in range(different, count):
        original = (folder / f"{number % different:05d}.jpg").read_bytes()
        (folder / f"{number:05d}.jpg").write_bytes(original + number.to_bytes(4, "big"))  # after the picture's end
    return folder


def write_large(folder: Path, count: int, *, size: tuple[int, int] = (6000, 4000)) -> Path:
    """Photographs of 24 megapixels, half of them PNG, which cannot be decoded at a fraction of its size."""
    folder.mkdir(parents=True)
    first, second = draw(2, size)
    first.save(folder / "00.jpg", quality=92)
    second.save(folder / "00.png", compress_level=1)
    for number in range(1, count // 2):
        for ending in ("jpg", "png"):
            content = (folder / f"00.{ending}").read_bytes()
            (folder / f"{number:02d}.{ending}").write_bytes(content + number.to_bytes(4, "big"))
    return folder


def gather(source: Path, folder: Path, count: int) -> Path:
    """The first pictures of a folder of one's own."""
    from fewtag.pictures.files import walk

    folder.mkdir(parents=True)
    for found in walk(source)[:count]:
        shutil.copy(found.path, folder / found.name.replace("/", "-"))
    return folder
