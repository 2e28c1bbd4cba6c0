"""Small real images, and the measurement packs where they are."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

PACKS = Path(__file__).parents[2] / "data"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make("a.jpg", colour="blue") writes a real image under tmp_path; the ending gives its format."""

    def write(name: str, colour: str = "red", size: tuple[int, int] = (8, 6)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return write


@pytest.fixture
def packs() -> Path:
    if not (PACKS / "coco" / "labels.tsv").is_file():
        pytest.skip("the measurement packs are not here")
    return PACKS
