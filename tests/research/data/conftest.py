"""The measurement packs, where they are."""

from pathlib import Path

import pytest

PACKS = Path(__file__).parents[3] / "data"


@pytest.fixture
def packs() -> Path:
    if not (PACKS / "coco" / "labels.tsv").is_file():
        pytest.skip("the measurement packs are not here")
    return PACKS
