"""Occlusion sensitivity: heat-maps of where in a picture a label is seen, on the same scale for all labels."""

import io
import math
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.pictures.decode import Square

Heat = NDArray[np.float32]
"""height × width, from 0 to 1"""
CELLS = 5
FAINT = 0.1
"""In log-odds: if no part matters more than this, even the hottest one is shown fainter than the label is likely."""
_SPANS = [slice(max(0, first), min(CELLS, first + 2)) for first in range(-1, CELLS)]
_PARTS = [(rows, columns) for rows in _SPANS for columns in _SPANS]
_GLOW = np.array([[8, 6, 40], [96, 16, 110], [205, 55, 80], [250, 145, 30], [255, 245, 170]], np.float32) / 255
"""Colours from cold to hot; brightness rises evenly, so that the map can be read in grey too."""
WIDEST = 10
"""The most that a picture is shown wider than it is high."""
_FORMATS = {".png": ("PNG", 2**31 - 1), ".webp": ("WEBP", 16_383), ".jpg": ("JPEG", 65_500)}
"""Formats by file ending, with the most pixels of a side."""
_SOFTWARE, _MARK = 0x0131, "fewtag explain"
"""EXIF's tag for the program that wrote a picture, and its value in a heat-map."""


def hide_parts(square: Square) -> list[Square]:
    """The picture, followed by copies with one part filled with the mean colour of the rest: a part is 2 × 2 of 5 × 5
    cells, and overlaps the next by half.

    Similarity of places to a label does not locate it: a transformer stores what it knows about the whole picture at
    places that show nothing, so the water around a duck lights up. Which parts the label cannot do without locates it.
    """
    edges = np.linspace(0, square.shape[-1], CELLS + 1).round().astype(int)
    copies, whole = [square], square.sum(axis=(1, 2), dtype=np.int64)
    for rows, columns in _PARTS:
        part = ..., slice(edges[rows.start], edges[rows.stop]), slice(edges[columns.start], edges[columns.stop])
        around = whole - square[part].sum(axis=(1, 2), dtype=np.int64)
        copies.append(square.copy())
        copies[-1][part] = (around // (square[0].size - square[part][0].size))[:, None, None]
    return copies


def heat_map(logits: NDArray[np.floating], chance: float, size: tuple[int, int]) -> Heat:
    """A map of how much the label's log-odds drop where `hide_parts` hides a part, resized to (width, height).

    The part that matters most is as hot as the label is likely: a label that is not there stays dark.
    """
    lost, covered = np.zeros((CELLS, CELLS), np.float32), np.zeros((CELLS, CELLS), np.float32)
    for part, without in zip(_PARTS, logits[1:], strict=True):
        lost[part] += logits[0] - without
        covered[part] += 1
    lost = np.maximum(lost / covered, 0)
    return stretch(np.float32(chance) * lost / max(float(lost.max()), FAINT), size)


def glance(places: NDArray[np.float32], prototype: NDArray[np.float32], chance: float, size: tuple[int, int]) -> Heat:
    """A quick heat-map on the scale of `heat_map`: the cosine of each place with the label's prototype.

    It needs no pass of the network, and tells which of several pictures shows the label as well as hiding parts does;
    but within a picture, places around a thing light up with it.
    """
    alike = places @ prototype / np.maximum(np.linalg.norm(places, axis=1), 1e-12)
    alike = (alike - alike.min()) / max(float(np.ptp(alike)), 1e-6)
    return stretch(np.float32(chance) * alike.reshape(math.isqrt(len(alike)), -1), size)


def stretch(values: NDArray[np.float32], size: tuple[int, int]) -> Heat:
    """A small map, rows × columns from 0 to 1, resized to a picture's (width, height)."""
    stretched = Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    return np.clip(np.asarray(stretched), 0, 1)


def overlay(picture: Image.Image, heat: Heat) -> Image.Image:
    """The picture, darkened where the map is cold and glowing where it is hot."""
    shown = np.asarray(picture, dtype=np.float32) / 255
    warm = heat[..., None]
    glow = np.stack([np.interp(heat, np.linspace(0, 1, len(_GLOW)), colour) for colour in _GLOW.T], axis=-1)
    mixed = (1 - 0.65 * warm) * (0.35 + 0.65 * warm) * shown + 0.65 * warm * glow
    return Image.fromarray((255 * mixed).round().astype(np.uint8))


def layer(heat: Heat) -> Image.Image:
    """An RGBA layer to put over the picture: a spotlight on where the label is seen most.

    It starts at the median, since a label that is certain is warm everywhere.
    """
    middle, hottest = float(np.median(heat)), float(heat.max())
    lit = hottest**0.5 * np.clip((heat - middle) / max(hottest - middle, 1e-6), 0, 1)
    shade = np.zeros((*heat.shape, 4), np.uint8)
    shade[..., 3] = (255 * 0.78 * (1 - lit)).round()
    return Image.fromarray(shade, "RGBA")


def save_heat(
    out: Path, picture: Image.Image, heats: Mapping[str, Heat], chances: Mapping[str, float] | None = None
) -> None:
    """Saves the picture beside each label's heat-map, captioned with its probability, in the file ending's format."""
    content, sheet = io.BytesIO(), grid(picture, heats, chances or {})
    format_, widest = _FORMATS.get(out.suffix.lower(), _FORMATS[".jpg"])
    if sheet.width > widest:
        raise InputError(
            f"the heat-maps are {sheet.width} pixels wide side by side, and {out.name} can be {widest}; take fewer "
            "labels, or a .png"
        )
    exif = Image.Exif()
    exif[_SOFTWARE] = _MARK
    sheet.save(content, format_, exif=exif)
    write_atomically(out, content.getvalue())


def is_heat(path: Path) -> bool:
    """Whether `save_heat` wrote it, and it may be written over."""
    if not path.is_file():  # a folder, or a pipe, which would not end
        return False
    try:
        with Image.open(path, formats=[name for name, _ in _FORMATS.values()]) as found:
            return found.getexif().get(_SOFTWARE) == _MARK
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # no picture, or a damaged one
        return False


def grid(
    picture: Image.Image, heats: Mapping[str, Heat], chances: Mapping[str, float], height: int = 320
) -> Image.Image:
    """The picture and its heat-map for each label, side by side, each under its name and probability."""
    # a strip of few pixels in height is shown compressed: whole it would not fit into memory
    width = min(max(1, round(height * picture.width / picture.height)), WIDEST * height)
    panels = [("picture", picture)]
    for number, (label, heat) in enumerate(heats.items(), 1):
        name = _legible(label, number)
        panels.append((f"{name}  {chances[label]:.0%}" if label in chances else name, overlay(picture, heat)))
    gap, caption = 8, 28
    sheet = Image.new("RGB", (len(panels) * (width + gap) - gap, height + caption), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for number, (name, panel) in enumerate(panels):
        left = number * (width + gap)
        draw.text((left + width / 2, caption / 2), name, fill="black", font=font, anchor="mm")
        sheet.paste(panel.resize((width, height), Image.Resampling.LANCZOS), (left, caption))
    return sheet


def _legible(label: str, number: int) -> str:
    """A name in ASCII, which is all that the font has: without its accents, or else by its place.

    >>> _legible("dog", 1), _legible("Bäume", 2), _legible("自転車", 3)
    ('dog', 'Baume', 'label 3')
    """
    plain = "".join(sign for sign in unicodedata.normalize("NFD", label) if unicodedata.category(sign) != "Mn")
    return plain if plain.isascii() else f"label {number}"
