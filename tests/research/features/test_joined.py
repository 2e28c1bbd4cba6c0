"""Several networks as one: the same as each for itself, side by side."""

from pathlib import Path

import pytest
import torch

from fewtag.cache_upkeep import CacheUpkeep
from fewtag.errors import InputError
from fewtag.research.data.readers import read_folders
from fewtag.research.features.backbone import Backbone, JoinedBackbone, join_maps, open_backbone
from fewtag.research.features.rows import feature_rows

NAMES = "resnet18+resnet10t"


@pytest.fixture
def joined() -> JoinedBackbone:
    torch.manual_seed(0)
    backbone = open_backbone(NAMES, weights="random+random", size=64)
    assert isinstance(backbone, JoinedBackbone)
    return backbone


def test_channels_stand_side_by_side(joined: JoinedBackbone) -> None:
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        maps, parts = joined(pixels), [part(pixels) for part in joined.parts]
    assert joined.channels == maps.shape[1] == sum(part.shape[1] for part in parts)
    torch.testing.assert_close(maps, torch.cat(parts, dim=1))


def test_finer_maps_are_averaged_to_the_coarsest_grid() -> None:
    fine, coarse = torch.arange(16.0).reshape(1, 1, 4, 4), torch.zeros(1, 2, 2, 2)
    found = join_maps([fine, coarse])
    assert found.shape == (1, 3, 2, 2)
    assert found[0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]


def test_rows_of_joined_networks_are_those_of_each(joined: JoinedBackbone, shapes: Path, tmp_path: Path) -> None:
    images = read_folders(make_folders(shapes, tmp_path))
    rows = feature_rows(images, joined, tmp_path / "cache")
    alone = [feature_rows(images, part, tmp_path / "cache").take([1, 0]) for part in joined.parts]
    assert len(rows) == len(images)
    assert torch.equal(rows.take([1, 0]), torch.cat(alone, dim=1))
    assert len(CacheUpkeep(tmp_path / "cache").contents()) == 2, "each network's rows serve it alone, too"


def make_folders(shapes: Path, tmp_path: Path) -> Path:
    pictures = sorted((shapes / "images").iterdir())[:3]
    folder = tmp_path / "folders" / "thing"
    folder.mkdir(parents=True)
    for picture in pictures:
        (folder / picture.name).write_bytes(picture.read_bytes())
    return folder.parent


def test_the_fingerprint_knows_every_network(joined: JoinedBackbone) -> None:
    before = joined.fingerprint
    with torch.no_grad():
        next(joined.parts[1].parameters()).add_(1)
    assert joined.fingerprint != before


def test_one_name_is_a_plain_backbone() -> None:
    assert isinstance(open_backbone("resnet10t", weights="random", size=64), Backbone)


def test_each_network_needs_its_weights() -> None:
    with pytest.raises(InputError, match="joins 2 networks, and its weights 'random' are 1; name one source for each"):
        open_backbone(NAMES, weights="random", size=64)


def test_the_joined_network_learns_as_one(joined: JoinedBackbone) -> None:
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    joined(pixels).square().mean().backward()
    assert all(parameter.grad is not None for name, parameter in joined.named_parameters() if "fc" not in name)
