"""A network with its head: probabilities of its classes, kept in the feature cache like maps."""

from pathlib import Path

import torch
from PIL import Image

from fewtag.pictures.files import Picture
from fewtag.research.data.images import from_shown
from fewtag.research.features.backbone import create_classifier
from fewtag.research.features.rows import feature_rows


def test_it_gives_the_softmax_of_the_networks_own_head() -> None:
    torch.manual_seed(0)
    classifier = create_classifier("test_resnet", weights="random", size=64)
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    config = classifier.network.pretrained_cfg
    mean, std = (torch.tensor(config[key])[None, :, None, None] for key in ("mean", "std"))
    expected = classifier.network((pixels / 255 - mean) / std).softmax(dim=1)
    found = classifier(pixels)
    assert found.shape == (2, 1000) == (2, classifier.channels)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_its_probabilities_are_cached_apart_from_its_maps(tmp_path: Path) -> None:
    classifier = create_classifier("test_resnet", weights="random", size=64)
    for number in range(3):
        Image.new("RGB", (64, 64), (80 * number, 0, 99)).save(tmp_path / f"{number}.png")
    images = from_shown([(str(n), Picture(tmp_path / f"{n}.png"), {"a"}) for n in range(3)], ["a"])
    rows = feature_rows(images, classifier, tmp_path / "cache")
    found = rows.take([0, 1, 2]).float()
    assert found.shape == (3, 1000)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3), rtol=1e-2, atol=0)
    classifier.network = None  # what is kept needs no network
    assert torch.equal(rows.take([2, 0]).float(), found[[2, 0]])
