"""A bank of the tiny model, and a server over a copy of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Running, serving_bank
from tiny import draw

from fewtag import Tagger


@pytest.fixture(scope="session")
def taught(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank that knows dog, cat and sofa by two pictures each; tests get copies."""
    labels = ["dog", "cat", "sofa"] * 2
    pictures = [draw(number, label) for number, label in enumerate(labels)]
    path = tmp_path_factory.mktemp("taught") / "pets.fewtag"
    Tagger(str(tiny_model)).fit(pictures, [[label] for label in labels]).save(path)
    return path


@pytest.fixture
def pets(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(taught, tmp_path / "pets.fewtag"))


@pytest.fixture
def running(pets: Path) -> Iterator[Running]:
    """A server over a bank of one's own."""
    with serving_bank(pets) as found:
        yield found
