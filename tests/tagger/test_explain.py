"""Heat-maps: where a label is seen, over the whole picture, on one scale for all labels."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtag import InputError
from fewtag.tagger.explain import CELLS, glance, grid, heat_map, hide_parts, is_heat, layer, overlay, save_heat

SIDE = 40
GENERATOR = np.random.default_rng(0)
SQUARE = GENERATOR.integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8)


def log_odds_by(row: int, column: int, strength: float = 2.0) -> np.ndarray:
    """Of a label that leans on one cell alone: by as much as is said, wherever a pixel of that cell is hidden."""
    cell = SIDE // CELLS
    place = ..., slice(row * cell, (row + 1) * cell), slice(column * cell, (column + 1) * cell)
    return np.array([3 - strength * (copy[place] != SQUARE[place]).any() for copy in hide_parts(SQUARE)])


def test_every_pixel_is_hidden_four_times_but_for_those_at_the_edges_and_never_all_at_once() -> None:
    whole, *copies = hide_parts(SQUARE)
    assert np.array_equal(whole, SQUARE)
    assert len(copies) == (CELLS + 1) ** 2
    hidden = np.array([(copy != SQUARE).any(axis=0) for copy in copies])
    assert hidden.mean(axis=(1, 2)).max() <= (2 / CELLS) ** 2
    times = hidden.sum(axis=0).reshape(CELLS, SIDE // CELLS, CELLS, SIDE // CELLS).max(axis=(1, 3))
    assert (times == 4).all()


def test_heat_has_the_size_of_the_picture_width_first_and_is_from_zero_to_one() -> None:
    picture = Image.new("RGB", (60, 20))
    heat = heat_map(log_odds_by(0, 0), 0.9, picture.size)
    assert heat.shape == (20, 60) == np.asarray(picture).shape[:2]
    assert heat.min() >= 0
    assert heat.max() <= 1


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 4), (3, 1), (2, 3), (4, 4)])
def test_the_hottest_place_is_what_the_label_cannot_do_without(row: int, column: int) -> None:
    heat = heat_map(log_odds_by(row, column), 0.9, (100, 50))
    hottest = np.unravel_index(heat.argmax(), heat.shape)
    assert (hottest[0] // 10, hottest[1] // 20) == (row, column)


def test_the_brightest_is_as_bright_as_the_label_is_likely_and_what_is_not_there_stays_dark() -> None:
    """A scale of its own for each label would show both alike."""
    assert heat_map(log_odds_by(2, 2), 0.9, (5, 5)).max() == pytest.approx(0.9, abs=1e-5)
    assert heat_map(log_odds_by(2, 2), 0.05, (5, 5)).max() == pytest.approx(0.05, abs=1e-5)


def test_where_no_part_counts_for_much_none_is_bright() -> None:
    assert heat_map(log_odds_by(2, 2, strength=0.05), 0.9, (5, 5)).max() == pytest.approx(0.45, abs=1e-5)
    assert heat_map(np.full(37, 3.0), 0.9, (5, 5)).max() == 0


def test_a_part_that_speaks_against_the_label_is_dark() -> None:
    assert heat_map(log_odds_by(2, 2, strength=-2.0), 0.9, (5, 5)).max() == 0


def test_a_glance_is_brightest_where_a_place_looks_like_the_label_however_long_its_vector() -> None:
    places = np.tile(np.array([[0, 2, 0]], np.float32), (16, 1))
    places[6], places[9] = [0.1, 0, 0], [5, 5, 0]
    heat = glance(places, np.array([1, 0, 0], np.float32), 0.8, (4, 4)).ravel()
    assert heat[6] == pytest.approx(0.8, abs=1e-5)
    assert heat[9] == pytest.approx(0.8 * np.sqrt(0.5), abs=1e-5)
    assert np.delete(heat, [6, 9]) == pytest.approx(0, abs=1e-5)


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


def test_more_heat_maps_than_a_format_holds_are_refused(tmp_path: Path) -> None:
    heats = {f"label {number}": np.zeros((10, 30), np.float32) for number in range(70)}
    for name, widest in (("heat.webp", 16_383), ("heat.jpeg", 65_500)):
        with pytest.raises(InputError, match=rf"pixels wide side by side, and {name} can be {widest}; take fewer"):
            save_heat(tmp_path / name, Image.new("RGB", (30, 10)), heats)
    assert not list(tmp_path.iterdir())
    save_heat(tmp_path / "heat.png", Image.new("RGB", (30, 10)), heats)


def test_a_name_that_the_font_lacks_letters_of_is_written_in_letters_that_it_has() -> None:
    """They were empty boxes, and of two labels that look alike in it neither is lost."""
    heat, picture = np.zeros((40, 80), np.float32), Image.new("RGB", (80, 40))

    def sheet(*labels: str) -> Image.Image:
        return grid(picture, dict.fromkeys(labels, heat), dict.fromkeys(labels, 0.5), height=60)

    assert sheet("Bäume", "自転車") == sheet("Baume", "label 2")
    assert sheet("Bär", "Bar").width == sheet("dog", "cat").width


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
    heat = heat_map(log_odds_by(1, 1), 0.9, size)
    drawn = grid(Image.new("RGB", size), {"dog": heat}, {"dog": 0.5}, height=64)
    assert (drawn.height, drawn.width <= 2 * 640 + 8) == (64 + 28, True), "a strip does not fill the memory"


@pytest.mark.parametrize("name", ["heat.png", "heat.webp", "heat.jpg"])
def test_a_heat_map_is_known_again_in_each_format(tmp_path: Path, name: str) -> None:
    save_heat(tmp_path / name, Image.new("RGB", (30, 10)), {"dog": np.zeros((10, 30), np.float32)})
    assert is_heat(tmp_path / name)


def test_only_decoders_of_formats_that_heat_maps_have_see_the_file_in_their_place(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0131] = "fewtag explain"
    Image.new("RGB", (30, 10)).save(tmp_path / "heat.png", "TIFF", exif=exif)
    assert not is_heat(tmp_path / "heat.png")
