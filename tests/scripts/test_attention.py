"""The pointing scores of attention: into that of four pictures which shows the label, and into the label's boxes."""

import json
import re
from pathlib import Path

import attention
import numpy as np
import pytest
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.bench.recipe_files import load_recipes
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


def look_away(picture: Image.Image, labels: list[str]) -> dict[str, np.ndarray]:
    return {label: -heat for label, heat in look_for(picture, labels).items()}


def test_the_hottest_pixel_names_its_quarter() -> None:
    for quarter, (row, column) in enumerate([(0, 0), (1, 2), (3, 1), (2, 3)]):
        heat = np.zeros((4, 4), np.float32)
        heat[row, column] = 1
        assert attention.points_at(heat) == quarter


def test_one_that_sees_always_points_right_and_one_that_looks_away_never(tmp_path: Path) -> None:
    scores = attention.score(colours(tmp_path), {"sees": look_for, "looks away": look_away})
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


def instances(file: Path, **changes: object) -> Path:
    """One picture of 640 × 320 in COCO's format: a red thing in its upper left, a blue one beside it, a red crowd."""
    boxes = [([0, 0, 160, 160], 7, 0), ([160, 0, 160, 160], 9, 0), ([0, 0, 640, 320], 7, 1)]
    content = {
        "images": [{"id": 25, "width": 640, "height": 320}],
        "categories": [{"id": 7, "name": "red"}, {"id": 9, "name": "blue"}],
        "annotations": [
            {"image_id": 25, "category_id": category, "bbox": box, "iscrowd": crowd} for box, category, crowd in boxes
        ],
    }
    file.write_text(json.dumps(content | changes))
    return file


def squashed(folder: Path) -> LabelledImages:
    """That picture as a square, and one without boxes."""
    picture = Image.new("RGB", (8, 8))
    picture.paste(COLOURS["red"], (0, 0, 2, 4))
    picture.paste(COLOURS["blue"], (2, 0, 4, 4))
    picture.save(folder / "25.png")
    pictures = (Picture(folder / "25.png"), Picture(folder / "absent.png"))
    shown = np.array([[True, False, True], [True, False, False]])
    return LabelledImages(("000000000025", "000000000030"), pictures, tuple(COLOURS), shown)


def test_boxes_scale_with_the_squashed_picture_and_crowds_and_repetitions_do_not_count(tmp_path: Path) -> None:
    file = instances(tmp_path / "instances.json")
    assert attention.read_boxes([file, file]) == {
        ("000000000025", "red"): {(0, 0, 0.25, 0.5)},
        ("000000000025", "blue"): {(0.25, 0, 0.5, 0.5)},
    }


def test_one_that_sees_points_into_the_boxes_and_anywhere_is_their_share_of_the_picture(tmp_path: Path) -> None:
    boxes = attention.read_boxes([instances(tmp_path / "instances.json")])
    found = attention.point_into_boxes(squashed(tmp_path), boxes, {"sees": look_for, "looks away": look_away})
    assert found["pictures"] == 1
    assert found["asked"] == {"red": 1, "blue": 1}
    hits = {name: score["by_label"] for name, score in found["systems"].items()}
    assert hits["sees"] == {"red": 1, "blue": 1}
    assert hits["looks away"] == {"red": 0, "blue": 0}
    assert hits["anywhere"] == {"red": 0.125, "blue": 0.125}
    assert hits["the centre"] == {"red": 0, "blue": 0.25}  # its corner is one of the middle four pixels


def test_boxes_that_overlap_count_once_and_the_smallest_can_be_hit() -> None:
    assert attention.cover([(0, 0, 0.5, 0.5), (0.25, 0, 0.5, 1)]).mean() == 0.375
    assert attention.cover([(0.5, 0.5, 0.5001, 0.5001)]).sum() == 1


def test_the_recipes_have_the_runs_that_the_script_asks_for() -> None:
    script = Path(attention.__file__)
    asked = re.findall(r'recipes / "([a-z-]+\.toml)", only=\["([^"]+)"\]', script.read_text())
    assert asked
    for file, run in asked:
        assert load_recipes(script.parents[1] / "recipes" / file, only=[run])


def test_files_without_boxes_are_refused(tmp_path: Path) -> None:
    captions = instances(tmp_path / "captions.json", annotations=[{"image_id": 25, "caption": "a thing"}])
    with pytest.raises(InputError, match=r"captions\.json holds an entry without 'bbox'"):
        attention.read_boxes([captions])
    with pytest.raises(InputError, match="no picture of 2 has boxes"):
        attention.point_into_boxes(squashed(tmp_path), {}, {})
