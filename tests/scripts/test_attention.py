"""The pointing score of attention: squares of four pictures, one of which shows the label."""

from pathlib import Path

import attention
import numpy as np
from PIL import Image

from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages

COLOURS = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}


def colours(folder: Path) -> LabelledImages:
    """Two pictures of each of three colours, and one of none."""
    names, targets = [], []
    for number, colour in enumerate([*COLOURS.values()] * 2 + [(0, 0, 0)] * 2):
        Image.new("RGB", (8, 8), colour).save(folder / f"{number}.png")
        names.append(f"{number}.png")
        targets.append([colour == other for other in COLOURS.values()])
    pictures = tuple(Picture(folder / name) for name in names)
    return LabelledImages(tuple(names), pictures, tuple(COLOURS), np.array(targets))


def look_for(picture: Image.Image, labels: list[str]) -> dict[str, np.ndarray]:
    """As warm as the label's colour is strong."""
    pixels = np.asarray(picture, dtype=np.float32) / 255
    return {label: pixels[..., list(COLOURS).index(label)] for label in labels}


def test_the_hottest_pixel_names_its_quarter() -> None:
    for quarter, (row, column) in enumerate([(0, 0), (1, 2), (3, 1), (2, 3)]):
        heat = np.zeros((4, 4), np.float32)
        heat[row, column] = 1
        assert attention.points_at(heat) == quarter


def test_one_that_sees_always_points_right_and_one_that_looks_away_never(tmp_path: Path) -> None:
    images = colours(tmp_path)

    def look_away(picture: Image.Image, labels: list[str]) -> dict[str, np.ndarray]:
        return {label: -heat for label, heat in look_for(picture, labels).items()}

    scores = attention.score(images, {"sees": look_for, "looks away": look_away})
    assert [scores[name]["hits"] for name in ("sees", "looks away")] == [1, 0]


def test_of_four_pictures_in_a_square_one_shows_the_label(tmp_path: Path) -> None:
    squares = list(attention.squares(colours(tmp_path)))
    assert len(squares) == 3 * attention.TURNS
    assert {square.quarter for square in squares} == {0, 1, 2, 3}
    for square in squares:
        centres = [square.picture.getpixel((x, y)) for y in (100, 300) for x in (100, 300)]
        assert [colour == COLOURS[square.label] for colour in centres] == [
            place == square.quarter for place in range(4)
        ]
