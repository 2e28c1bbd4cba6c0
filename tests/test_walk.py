"""How far one goes through the code to follow a picture (scripts/walk.py): a bound that later changes keep."""

from pathlib import Path

import pytest
from walk import walks

BOUNDS = {"fewtag learn": (23, 73), "fewtag tag": (20, 55), "Tagger().fit().predict()": (14, 35)}
"""Modules and hops; threads make a few of the hops chance, and the package itself counts where a test imported it."""


@pytest.mark.slow
def test_a_picture_is_followed_through_few_modules(tmp_path: Path) -> None:
    for name, walk in walks(tmp_path).items():
        modules, hops = BOUNDS[name]
        assert walk.facts["modules"] <= modules, (name, walk.visits)
        assert walk.facts["hops"] <= hops, (name, walk.visits)
