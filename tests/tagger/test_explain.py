"""Heat-maps: where a label is seen, over the whole picture, on one scale for all labels."""

import numpy as np
import pytest
from PIL import Image

from fewtag.core.posterior import Fitted
from fewtag.tagger.explain import grid, heat_map, layer, overlay

SLOPE, OFFSET = 12.0, -4.0


def places(side: int, row: int, column: int, strength: float = 1.0) -> np.ndarray:
    """Nearly empty but for one place, which looks as strongly like the label as is said."""
    generator = np.random.default_rng(0)
    made = generator.normal(0, 0.05, (side, side, 4)).astype(np.float32)
    made[..., 1] += 1
    made[row, column] = [strength, np.sqrt(max(0.0, 1 - strength**2)), 0, 0]
    return made.reshape(side * side, 4)


TOWARDS = np.array([1, 0, 0, 0], np.float32)
LABEL = Fitted(TOWARDS, 0.4 * TOWARDS, 0.6 * TOWARDS, 0.0)


def heat_of(made: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return heat_map(made, LABEL, (SLOPE, OFFSET), size)


def test_heat_has_the_size_of_the_picture_width_first_and_is_from_zero_to_one() -> None:
    picture = Image.new("RGB", (60, 20))
    heat = heat_of(places(7, 0, 0), picture.size)
    assert heat.shape == (20, 60) == np.asarray(picture).shape[:2]
    assert heat.min() >= 0
    assert heat.max() <= 1


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 6), (4, 1), (2, 5), (6, 6)])
def test_the_hottest_place_is_where_the_label_is(row: int, column: int) -> None:
    heat = heat_of(places(7, row, column), (140, 70))
    hottest = np.unravel_index(heat.argmax(), heat.shape)
    assert (hottest[0] // 10, hottest[1] // 20) == (row, column)


def test_what_is_not_there_stays_dark_and_what_is_there_is_bright() -> None:
    """A scale of its own for each label would show both alike."""
    assert heat_of(places(7, 3, 3, strength=0.9), (70, 70)).max() > 0.9
    assert heat_of(places(7, 3, 3, strength=0.1), (70, 70)).max() < 0.2


def test_a_place_shows_the_probability_that_it_speaks_for() -> None:
    """Had the whole picture looked so: here it does."""
    made = np.tile(np.array([[0.6, 0.8, 0, 0]], np.float32), (9, 1))
    expected = 1 / (1 + np.exp(-(SLOPE * 0.6 + OFFSET)))
    np.testing.assert_allclose(heat_of(made, (30, 30)), expected, atol=1e-5)
    np.testing.assert_allclose(heat_of(7 * made, (30, 30)), expected, atol=1e-5)


def test_a_labels_own_bias_counts_and_both_its_weights() -> None:
    made = np.tile(np.array([[0.6, 0.8, 0, 0]], np.float32), (9, 1))
    biased = Fitted(TOWARDS, TOWARDS, np.array([0, 0.5, 0, 0], np.float32), -0.2)
    expected = 1 / (1 + np.exp(-(SLOPE * (0.6 + 0.5 * 0.8 - 0.2) + OFFSET)))
    np.testing.assert_allclose(heat_map(made, biased, (SLOPE, OFFSET), (30, 30)), expected, atol=1e-5)


def test_an_empty_picture_says_what_an_empty_score_says() -> None:
    np.testing.assert_allclose(heat_of(np.zeros((9, 4), np.float32), (9, 6)), 1 / (1 + np.exp(4)), atol=1e-6)


def test_an_overlay_keeps_the_size_and_colours_the_hot_places() -> None:
    picture = Image.new("RGB", (30, 10), (90, 90, 90))
    heat = np.zeros((10, 30), np.float32)
    heat[:, 15:] = 1
    drawn = np.asarray(overlay(picture, heat)).astype(int)
    assert drawn.shape == (10, 30, 3)
    assert drawn[0, 0].max() < 90 < drawn[0, 29].min(), "cold places darken, hot ones glow"


def panels(sheet: Image.Image, width: int) -> list[np.ndarray]:
    """What lies under the captions."""
    whole = np.asarray(sheet).astype(int)[28:]
    return [whole[:, left : left + width] for left in range(0, sheet.width, width + 8)]


def test_a_layer_lights_where_the_label_is_seen_most_and_nothing_of_a_label_that_is_not_there() -> None:
    heat = np.linspace(0.9, 1, 12, dtype=np.float32).reshape(3, 4)
    shade = np.asarray(layer(heat))
    assert shade.shape == (3, 4, 4)
    assert not shade[..., :3].any()
    assert shade[2, 3, 3] == 0
    assert (shade[0, :, 3] == 199).all()
    assert np.asarray(layer(heat / 100))[..., 3].min() > 150
    assert (np.asarray(layer(np.full((3, 4), 0.7, np.float32)))[..., 3] == 199).all()


def test_a_grid_has_the_picture_and_a_panel_for_each_label() -> None:
    picture = Image.new("RGB", (80, 40), (10, 200, 30))
    cold, hot = np.zeros((40, 80), np.float32), np.ones((40, 80), np.float32)
    sheet = grid(picture, {"dog": cold, "cat": hot}, {"dog": 0.1, "cat": 0.9}, height=60)
    assert sheet.size == (3 * 120 + 2 * 8, 60 + 28)
    first, dog, cat = panels(sheet, 120)
    assert np.abs(first - [10, 200, 30]).max() <= 1
    for panel, heat in ((dog, cold), (cat, hot)):
        assert np.abs(panel - np.asarray(overlay(picture, heat))[0, 0]).max() <= 1
    assert np.abs(dog - cat).min(axis=(0, 1)).max() > 30
    assert (np.asarray(sheet)[28:, 120:128] == 255).all(), "a white gap"


def test_every_panel_of_a_grid_has_its_name_and_probability_above() -> None:
    heat = np.zeros((40, 80), np.float32)
    heats, chances = {"dog": heat, "teddy bear": heat}, {"dog": 0.1, "teddy bear": 0.1}
    captions = np.asarray(grid(Image.new("RGB", (80, 40)), heats, chances, height=60))[:28]
    inked = [(captions[:, left : left + 120] < 128).any(axis=(0, 2)).sum() for left in (0, 128, 256)]
    assert min(inked) > 0
    assert inked[2] > inked[1], "the longer name takes more room"
    surer = np.asarray(grid(Image.new("RGB", (80, 40)), heats, chances | {"dog": 1.0}, height=60))[:28]
    assert (surer[:, 128:248] != captions[:, 128:248]).any()
    assert (surer[:, 256:] == captions[:, 256:]).all()


@pytest.mark.parametrize("size", [(1, 2000), (2000, 10)])
def test_the_thinnest_picture_still_has_a_grid(size: tuple[int, int]) -> None:
    heat = heat_of(places(3, 1, 1), size)
    assert grid(Image.new("RGB", size), {"dog": heat}, {"dog": 0.5}, height=64).height == 64 + 28
