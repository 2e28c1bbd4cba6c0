"""A model small enough to learn with in milliseconds, and coloured shapes to show it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import draw as draw_discs
from tiny import write_tiny_model

from fewtag import Tagger
from fewtag.tagger.model import Model, load_model

Draw = Callable[..., Image.Image]
OWN_WORDS = ("dog", "cat", "sofa", "zebra", "lens", "eye", "red")


@pytest.fixture(scope="session")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another network, and another space."""
    return write_tiny_model(tmp_path_factory.mktemp("other"), "other", seed=1)


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


@pytest.fixture
def tagger(model: Model) -> Tagger:
    """One that knows nothing yet."""
    return Tagger(model)


@pytest.fixture(scope="session")
def shipped() -> Tagger:
    """With the default model, and labels by their names alone; not to be taught."""
    return Tagger().define("duck").define("hummingbird").define("pizza")


@pytest.fixture(scope="session")
def draw() -> Draw:
    """draw(3, "dog", "cat") is the third picture of a red and a green disc; the same each time."""
    return draw_discs


@pytest.fixture
def own_words(tmp_path: Path) -> Path:
    """A file of word vectors of one's own, of eight numbers each."""
    generator = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{number:.3f}' for number in generator.normal(size=8))}" for word in OWN_WORDS]
    path = tmp_path / "own" / "vectors.txt"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    return path
