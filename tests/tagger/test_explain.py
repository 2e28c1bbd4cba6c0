"""Heat-maps: where the relevance is, over the whole picture, from 0 to 1."""

import numpy as np
import pytest
from PIL import Image

from fewtag.tagger.explain import grid, heat_map, overlay


def peak(rows: int, columns: int, row: int, column: int, height: float = 5.0) -> np.ndarray:
    relevance = np.random.default_rng(0).uniform(-3, -2, (rows, columns)).astype(np.float32)
    relevance[row, column] = height
    return relevance


@pytest.mark.parametrize("seed", range(5))
def test_heat_is_from_zero_to_one(seed: int) -> None:
    relevance = np.random.default_rng(seed).normal(0, 100, (7, 7)).astype(np.float32)
    heat = heat_map(relevance, (50, 40))
    assert heat.min() >= 0
    assert heat.max() <= 1
    assert heat.max() - heat.min() > 0.8


def test_heat_has_the_size_of_the_picture_width_first() -> None:
    picture = Image.new("RGB", (60, 20))
    assert heat_map(peak(7, 7, 0, 0), picture.size).shape == (20, 60) == np.asarray(picture).shape[:2]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 6), (4, 1), (2, 5), (6, 6)])
def test_the_hottest_place_is_where_the_relevance_peaks(row: int, column: int) -> None:
    heat = heat_map(peak(7, 7, row, column), (140, 70))
    hottest = np.unravel_index(heat.argmax(), heat.shape)
    assert (hottest[0] // 10, hottest[1] // 20) == (row, column)


def test_maps_need_not_be_square() -> None:
    heat = heat_map(peak(2, 4, 1, 2), (80, 20))
    hottest = np.unravel_index(heat.argmax(), heat.shape)
    assert (hottest[0] // 10, hottest[1] // 20) == (1, 2)


def test_only_differences_count() -> None:
    relevance = peak(5, 5, 1, 3)
    np.testing.assert_allclose(heat_map(3 * relevance + 40, (20, 20)), heat_map(relevance, (20, 20)), atol=1e-4)


@pytest.mark.parametrize("value", [0.0, -7.5])
def test_constant_relevance_has_no_heat(value: float) -> None:
    heat = heat_map(np.full((3, 3), value, np.float32), (9, 6))
    assert heat.shape == (6, 9)
    assert not heat.any()


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


def test_a_grid_has_the_picture_and_a_panel_for_each_label() -> None:
    picture = Image.new("RGB", (80, 40), (10, 200, 30))
    cold, hot = np.zeros((40, 80), np.float32), np.ones((40, 80), np.float32)
    sheet = grid(picture, {"dog": cold, "cat": hot}, height=60)
    assert sheet.size == (3 * 120 + 2 * 8, 60 + 28)
    first, dog, cat = panels(sheet, 120)
    assert np.abs(first - [10, 200, 30]).max() <= 1
    for panel, heat in ((dog, cold), (cat, hot)):
        assert np.abs(panel - np.asarray(overlay(picture, heat))[0, 0]).max() <= 1
    assert np.abs(dog - cat).min(axis=(0, 1)).max() > 30
    assert (np.asarray(sheet)[28:, 120:128] == 255).all(), "a white gap"


def test_every_panel_of_a_grid_has_its_name_above() -> None:
    heat = np.zeros((40, 80), np.float32)
    captions = np.asarray(grid(Image.new("RGB", (80, 40)), {"dog": heat, "teddy bear": heat}, height=60))[:28]
    inked = [(captions[:, left : left + 120] < 128).any(axis=(0, 2)).sum() for left in (0, 128, 256)]
    assert min(inked) > 0
    assert inked[2] > inked[1], "the longer name takes more room"


@pytest.mark.parametrize("size", [(1, 2000), (2000, 10)])
def test_the_thinnest_picture_still_has_a_grid(size: tuple[int, int]) -> None:
    heat = heat_map(peak(3, 3, 1, 1), size)
    assert grid(Image.new("RGB", size), {"dog": heat}, height=64).height == 64 + 28
