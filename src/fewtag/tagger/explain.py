"""Occlusion sensitivity: heat-maps of where in a picture a label is seen, on one scale for all labels."""

import io
import math
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
"""Of log-odds: where no part counts for more, none is shown as bright as the label is likely."""
_SPANS = [slice(max(0, first), min(CELLS, first + 2)) for first in range(-1, CELLS)]
_PARTS = [(rows, columns) for rows in _SPANS for columns in _SPANS]
_GLOW = np.array([[8, 6, 40], [96, 16, 110], [205, 55, 80], [250, 145, 30], [255, 245, 170]], np.float32) / 255
"""From cold to hot; brightness rises evenly, so that it reads in grey too."""
_FORMATS = {".png": ("PNG", 2**31 - 1), ".webp": ("WEBP", 16_383), ".jpg": ("JPEG", 65_500)}
"""By their endings, with the most pixels of a side."""


def hide_parts(square: Square) -> list[Square]:
    """The picture, and copies of it in which one part has the mean colour of the rest: 2 × 2 of 5 × 5 cells, each half
    over the next.

    Which places look like a label does not tell where it is: a transformer keeps what it knows of the whole picture in
    places where nothing is, and the water around a duck lights up. Which parts the label cannot do without, does.
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
    """What the label's log-odds lose where a part is hidden, as `hide_parts` has them, stretched to (width, height).

    The part that counts most is as hot as the label is likely: what is not there stays dark.
    """
    lost, covered = np.zeros((CELLS, CELLS), np.float32), np.zeros((CELLS, CELLS), np.float32)
    for part, without in zip(_PARTS, logits[1:], strict=True):
        lost[part] += logits[0] - without
        covered[part] += 1
    lost = np.maximum(lost / covered, 0)
    return stretch(np.float32(chance) * lost / max(float(lost.max()), FAINT), size)


def glance(places: NDArray[np.float32], guide: NDArray[np.float32], chance: float, size: tuple[int, int]) -> Heat:
    """How much each place looks like the label's prototype (its cosine), on the scale of `heat_map`: a first glance.

    It takes no pass of the network, and tells which of several pictures shows the label as well as hiding does; but
    within one picture places around a thing light up with it.
    """
    alike = places @ guide / np.maximum(np.linalg.norm(places, axis=1), 1e-12)
    alike = (alike - alike.min()) / max(float(np.ptp(alike)), 1e-6)
    return stretch(np.float32(chance) * alike.reshape(math.isqrt(len(alike)), -1), size)


def stretch(values: NDArray[np.float32], size: tuple[int, int]) -> Heat:
    """A small map, rows × columns from 0 to 1, as large as a picture of (width, height)."""
    stretched = Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    return np.clip(np.asarray(stretched), 0, 1)


def overlay(picture: Image.Image, heat: Heat) -> Image.Image:
    """The picture, darkened where it is cold and glowing where it is hot."""
    shown = np.asarray(picture, dtype=np.float32) / 255
    warm = heat[..., None]
    glow = np.stack([np.interp(heat, np.linspace(0, 1, len(_GLOW)), colour) for colour in _GLOW.T], axis=-1)
    mixed = (1 - 0.65 * warm) * (0.35 + 0.65 * warm) * shown + 0.65 * warm * glow
    return Image.fromarray((255 * mixed).round().astype(np.uint8))


def layer(heat: Heat) -> Image.Image:
    """A shade in RGBA, to lie over the picture: a spotlight on where the label is seen most.

    Lit from the median on, as a label that is sure of itself is warm everywhere.
    """
    middle, hottest = float(np.median(heat)), float(heat.max())
    lit = hottest**0.5 * np.clip((heat - middle) / max(hottest - middle, 1e-6), 0, 1)
    shade = np.zeros((*heat.shape, 4), np.uint8)
    shade[..., 3] = (255 * 0.78 * (1 - lit)).round()
    return Image.fromarray(shade, "RGBA")


def save_heat(
    out: Path, picture: Image.Image, heats: Mapping[str, Heat], chances: Mapping[str, float] | None = None
) -> None:
    """The picture first, then each label's heat beside its probability; the file's ending gives its format."""
    content, sheet = io.BytesIO(), grid(picture, heats, chances or {})
    format_, widest = _FORMATS.get(out.suffix.lower(), _FORMATS[".jpg"])
    if sheet.width > widest:
        raise InputError(
            f"the heat-maps are {sheet.width} pixels wide side by side, and {out.name} can be {widest}; take fewer "
            "labels, or a .png"
        )
    sheet.save(content, format_)
    write_atomically(out, content.getvalue())


def grid(
    picture: Image.Image, heats: Mapping[str, Heat], chances: Mapping[str, float], height: int = 320
) -> Image.Image:
    """The picture and its heat-map for each label, side by side, each under its name and probability."""
    width = max(1, round(height * picture.width / picture.height))
    panels = {"picture": picture}
    for label, heat in heats.items():
        panels[f"{label}  {chances[label]:.0%}" if label in chances else label] = overlay(picture, heat)
    gap, caption = 8, 28
    sheet = Image.new("RGB", (len(panels) * (width + gap) - gap, height + caption), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for number, (name, panel) in enumerate(panels.items()):
        left = number * (width + gap)
        draw.text((left + width / 2, caption / 2), name, fill="black", font=font, anchor="mm")
        sheet.paste(panel.resize((width, height), Image.Resampling.LANCZOS), (left, caption))
    return sheet
