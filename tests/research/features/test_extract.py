"""Passes that begin before the last one's maps are kept."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewtag.cache import Cache
from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.features.backbone import create_backbone
from fewtag.research.features.rows import Extractor, extract, precision_of, start

SIZE = 32


def test_a_pass_gives_the_networks_maps_in_half_precision_and_leaves_it_in_its_mode() -> None:
    backbone = create_backbone("resnet18", weights="random", size=SIZE)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, SIZE, SIZE), dtype=np.uint8)
    with torch.no_grad():
        expected = backbone(torch.from_numpy(pixels)).half().numpy()
    for training in (True, False):
        backbone.train(training)
        assert np.array_equal(start(backbone, pixels)(), expected), "batch-norm is that of evaluation"
        assert backbone.training == training
    assert precision_of(backbone) == torch.float32


class Slow:
    """Makes rows of pixels when asked to finish, and notes what happens when."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, pixels: np.ndarray) -> Callable[[], np.ndarray]:
        number = sum(event.startswith("start") for event in self.events)
        self.events.append(f"start {number}")

        def finish() -> np.ndarray:
            self.events.append(f"finish {number}")
            return pixels

        return finish


@pytest.fixture
def pictures(tmp_path: Path) -> list[Picture]:
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        Image.new("RGB", (SIZE, SIZE), (40 * number, 0, 0)).save(path)
    return [Picture(path) for path in paths]


def make_extractor(slow: Slow, cache: Path) -> Extractor:
    return Extractor(Cache(cache).arrays("pixels", "pixels", "test", (3, SIZE, SIZE), "uint8"), SIZE, slow.start)


def test_a_batch_is_under_way_while_the_last_ones_rows_are_kept(pictures: list[Picture], tmp_path: Path) -> None:
    slow, advanced = Slow(), []
    (rows,) = extract(pictures, [make_extractor(slow, tmp_path / "cache")], batch=2, advance=advanced.append)
    assert slow.events == ["start 0", "start 1", "finish 0", "start 2", "finish 1", "finish 2"]
    assert sum(advanced) == 6
    assert np.array_equal(rows.take(range(6)).numpy(), np.stack([picture.pixels(SIZE) for picture in pictures]))


def test_what_was_made_is_kept_where_a_later_picture_cannot_be_read(pictures: list[Picture], tmp_path: Path) -> None:
    pictures[5].path.write_bytes(b"no picture")
    extractor = make_extractor(Slow(), tmp_path / "cache")
    with pytest.raises(InputError, match=r"5\.png cannot be decoded"):
        extract(pictures, [extractor], batch=2)
    assert len(extractor.space) == 4
