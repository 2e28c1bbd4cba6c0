"""Why a label was seen: heat-maps over pictures."""

from collections.abc import Mapping

import matplotlib
import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont

Heat = Float[np.ndarray, "height width"]


def heat_map(relevance: Float[np.ndarray, "rows columns"], size: tuple[int, int]) -> Heat:
    """Relevance of the map's places, stretched to a picture of (width, height) and to the range from 0 to 1."""
    low, high = float(relevance.min()), float(relevance.max())
    scaled = (relevance - low) / (high - low) if high > low else np.zeros_like(relevance)
    stretched = Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    return np.clip(np.asarray(stretched), 0, 1)


def overlay(picture: Image.Image, heat: Heat) -> Image.Image:
    """The picture, darkened where it is cold and glowing where it is hot."""
    shown = np.asarray(picture, dtype=np.float32) / 255
    glow = matplotlib.colormaps["inferno"](heat)[..., :3]
    weight = 0.65 * heat[..., None]
    mixed = (1 - weight) * (0.35 + 0.65 * heat[..., None]) * shown + weight * glow
    return Image.fromarray((255 * mixed).round().astype(np.uint8))


def grid(picture: Image.Image, heats: Mapping[str, Heat], height: int = 320) -> Image.Image:
    """The picture and its heat-map for each label, side by side, each under its name."""
    width = max(1, round(height * picture.width / picture.height))
    panels = {"picture": picture} | {label: overlay(picture, heat) for label, heat in heats.items()}
    gap, caption = 8, 28
    sheet = Image.new("RGB", (len(panels) * (width + gap) - gap, height + caption), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for number, (name, panel) in enumerate(panels.items()):
        left = number * (width + gap)
        draw.text((left + width / 2, caption / 2), name, fill="black", font=font, anchor="mm")
        sheet.paste(panel.resize((width, height), Image.Resampling.LANCZOS), (left, caption))
    return sheet
