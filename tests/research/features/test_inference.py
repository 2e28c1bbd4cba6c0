"""Networks made faster: the same maps from fewer layers, on all cores."""

import pytest
import torch
from torch import nn

from fewtag.research.features.backbone import Backbone, create_backbone, fuse_batch_norms
from fewtag.research.features.rows import AT_ONCE, map_chunks_over_cores


def count(backbone: Backbone) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())


def random_pixels(images: int, size: int) -> torch.Tensor:
    return torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=torch.manual_seed(1))


def used(name: str, size: int) -> Backbone:
    """With running statistics as after some training, so that leaving one out would be seen."""
    torch.manual_seed(0)
    backbone = create_backbone(name, weights="random", size=size).train()
    with torch.no_grad():
        for _ in range(3):
            backbone(random_pixels(4, size))
    return backbone.eval()


@pytest.mark.parametrize(
    ("name", "left"), [("resnet18", 0), ("tf_efficientnet_lite0", 0), ("resnetv2_50", 17), ("test_vit", 0)]
)
def test_a_folded_network_makes_the_same_maps(name: str, left: int) -> None:
    backbone = used(name, 64)
    faster = fuse_batch_norms(backbone)
    assert count(faster) == left, "those before which there is no convolution"
    pixels = random_pixels(3, 64)
    with torch.inference_mode():
        torch.testing.assert_close(faster(pixels), backbone(pixels), rtol=1e-4, atol=1e-5)


def test_folding_leaves_the_network_itself_as_it_was() -> None:
    backbone = used("resnet18", 32)
    before, mode = backbone.fingerprint, backbone.train().training
    fuse_batch_norms(backbone)
    assert (backbone.fingerprint, backbone.training, count(backbone) > 0) == (before, mode, True)


class Astray(nn.Module):
    """A convolution, a batch-norm that is no part of its way, and one that is."""

    num_prefix_tokens = 0

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean += 1

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.convolution(pixels)


def test_a_network_whose_layers_run_in_another_order_is_left_alone() -> None:
    backbone = create_backbone("resnet18", weights="random", size=32)
    backbone.network = Astray().eval()
    assert fuse_batch_norms(backbone) is backbone


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2, AT_ONCE, 2 * AT_ONCE + 1])
def test_spread_over_cores_the_maps_are_those_of_one_pass_in_the_pictures_order(threads: int, images: int) -> None:
    backbone = used("resnet18", 32)
    pixels, before = random_pixels(images, 32), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = map_chunks_over_cores(backbone, pixels)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert not found.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(found, backbone(pixels))
