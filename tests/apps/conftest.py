"""A model small enough for tests, in a file, so that other processes can load it too; and a bank made with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fewtag.tagger.calibrate import Calibration
from safetensors.torch import save_file

from fewtag.research.data.readers import read_table
from fewtag.research.features.backbone import create_backbone
from fewtag.research.methods.base import Base, pool
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.model import save_model
from fewtag.words.vectors import load_words

Cli = Callable[..., Any]
PHOTOS = ["b, c.png", 'sub/"q"\n.JPG', "sub/deep/ä.png", "z.webp"]
EXAMPLES = """image,labels
images/heart0.png,arrow;heart
images/heart2.png,heart
images/arrow1.png,arrow
images/arrow3.png,arrow;heart
images/moon2.png,moon
"""


@pytest.fixture(scope="session")
def model_file(drawn_shapes: Path) -> Path:
    """Random features, solved on the shapes' base labels."""
    folder = drawn_shapes.parent / "model"
    folder.mkdir()
    labels = json.loads((drawn_shapes / "split.json").read_text())["groups"]["base"]
    weights, words = folder / "weights.safetensors", str(drawn_shapes / "words.txt")
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", weights="random", size=64)
    save_file({key: value.contiguous() for key, value in backbone.network.state_dict().items()}, weights)
    images = read_table(drawn_shapes / "labels.csv", drawn_shapes / "images")
    columns = [images.labels.index(label) for label in labels]
    rows = np.flatnonzero(images.targets[:, columns].any(axis=1))
    pixels = np.stack([images.pictures[row].pixels(64) for row in rows])
    vectors = load_words(words)
    with torch.inference_mode():
        features = pool(backbone(torch.from_numpy(pixels)))
    targets = torch.from_numpy(images.targets[rows][:, columns])
    base = Base(tuple(labels), torch.from_numpy(vectors.vectors(labels)), features, targets)
    method = ClosedForm(backbone.channels, vectors.dimensions).fit(base)
    save_model(
        folder / "tiny.safetensors",
        method,
        base,
        Calibration(),
        backbone={"name": "test_resnet", "weights": str(weights), "size": 64},
        words=words,
        strengths={},
        base_words=labels,
        origin="tests",
    )
    return folder / "tiny.safetensors"


@pytest.fixture
def examples(shapes: Path) -> Path:
    """A table of five examples of heart, arrow and moon."""
    (shapes / "examples.csv").write_text(EXAMPLES)
    return shapes / "examples.csv"


@pytest.fixture
def bank(cli: Cli, examples: Path, model_file: Path) -> Path:
    """What `fewtag learn` made of the examples."""
    assert cli("learn", "pets.fewtag", examples, "--model", model_file).code == 0
    return Path("pets.fewtag").absolute()


@pytest.fixture
def photos(shapes: Path) -> Path:
    """Four pictures under names that people give, and what is none."""
    folder = shapes.parent / "photos"
    for number, name in enumerate(PHOTOS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shapes / "images" / f"heart{2 * number}.png", folder / name)
    for name in (".hidden.png", "notes.txt", ".trash/old.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(shapes / "images" / "heart0.png", folder / name)
    return folder
