"""A model small enough to learn with in milliseconds, and coloured shapes to show it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fewtag.tagger.calibrate import Calibration
from PIL import Image, ImageDraw

from fewtag import Tagger
from fewtag.research.features.backbone import create_backbone
from fewtag.research.methods.base import Base
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.model import Model
from fewtag.words.vectors import WordVectors

WORDS = ("red", "green", "blue", "dog", "cat", "sofa", "zebra", "lens", "eye")
COLOURS = {"dog": "red", "cat": "lime", "sofa": "blue", "zebra": "white"}
Draw = Callable[..., Image.Image]


@pytest.fixture(scope="session")
def model() -> Model:
    """A random network with words of eight dimensions, fitted on random labels of coloured pictures."""
    generator = np.random.default_rng(0)
    backbone = create_backbone("test_resnet", weights="random", size=64)
    words = WordVectors("few", WORDS, generator.normal(size=(len(WORDS), 8)).astype(np.float32))
    method = ClosedForm(backbone.channels, words.dimensions, space=16)
    with torch.inference_mode():
        pixels = torch.from_numpy(generator.integers(0, 256, (40, 3, 1, 1), dtype=np.uint8)).expand(40, 3, 64, 64)
        noise = torch.from_numpy(generator.integers(0, 60, (40, 3, 64, 64), dtype=np.uint8))
        features = backbone((pixels // 2 + noise).contiguous()).mean(dim=(2, 3)).clone()
    targets = torch.from_numpy(generator.random((40, 3)) < 0.5)
    vectors = torch.from_numpy(words.vectors(["red", "green", "blue"]))
    method.fit(Base(("red", "green", "blue"), vectors, features, targets))
    calibration = Calibration((0, 5), (8.0, 12.0), (-1.0, -2.0), (0.3, 0.4))
    header = {"strengths": {}, "base_words": ["red", "green", "blue"]}
    return Model("tiny", backbone, words, method.eval(), calibration, header)


@pytest.fixture
def tagger(model: Model) -> Tagger:
    """One that knows nothing yet."""
    return Tagger(model)


@pytest.fixture(scope="session")
def draw() -> Draw:
    """draw(3, "dog", "cat") is the third picture of a red and a green disc; the same each time."""

    def drawn(number: int, *labels: str, size: tuple[int, int] = (48, 40)) -> Image.Image:
        generator = np.random.default_rng(number)
        image = Image.fromarray(generator.integers(0, 90, (size[1], size[0], 3), dtype=np.uint8))
        pen = ImageDraw.Draw(image)
        for label in labels:
            left, top = (int(generator.integers(0, side - 16)) for side in size)
            pen.ellipse((left, top, left + 15, top + 15), fill=COLOURS[label])
        return image

    return drawn
