"""One contract for every kind of network: finite maps, gradients, a fingerprint, one sentence when refused."""

import math

import pytest
import torch

from fewtag.errors import InputError
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.research.features.weights import Preprocessing

KINDS = [
    ("resnet50", 64, 2),
    ("inception_v3", 96, 1),
    ("inception_v3", 128, 2),
    ("vit_tiny_patch16_224", 224, 14),
    ("vit_tiny_patch16_224", 96, 6),
    ("deit_tiny_distilled_patch16_224", 64, 4),
    ("swin_tiny_patch4_window7_224", 256, 8),
    ("mixer_s32_224", 96, 3),
    ("convnext_atto", 64, 2),
    ("mobilenetv3_small_050", 64, 2),
    ("tf_efficientnet_lite0", 224, 7),
    ("tf_efficientnet_lite1", 64, 2),
    ("tf_efficientnet_lite2", 96, 3),
]


def images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def small(**overrides: object) -> Backbone:
    return create_backbone(**{"name": "resnet10t", "weights": "random", "size": 64} | overrides)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:timm")
@pytest.mark.parametrize(("name", "size", "side"), KINDS)
def test_every_kind_of_network_gives_finite_maps(name: str, size: int, side: int) -> None:
    backbone = create_backbone(name, weights="random", size=size)
    with torch.inference_mode():
        maps = backbone(images(size))
    assert maps.shape == (2, backbone.channels, side, side)
    assert maps.isfinite().all()


def test_tokens_are_folded_in_reading_order() -> None:
    backbone = create_backbone("vit_tiny_patch16_224", weights="random", size=64)
    with torch.no_grad():
        tokens = backbone.network.forward_features((images(64) - backbone.mean) / backbone.std)
        maps = backbone(images(64))
    assert torch.equal(maps[:, :, 1, 2], tokens[:, 1 + 1 * 4 + 2])


def test_a_swin_map_keeps_its_rows_and_columns() -> None:
    backbone = create_backbone("swin_tiny_patch4_window7_224", weights="random")
    with torch.no_grad():
        raw = backbone.network.forward_features((images(224, 1) - backbone.mean) / backbone.std)
        assert torch.equal(backbone(images(224, 1))[:, :, 2, 5], raw[:, 2, 5])


def test_no_classifier_is_kept() -> None:
    assert not [key for key in small().state_dict() if ".fc" in key]


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_it_trains(name: str) -> None:
    backbone = small(name=name).train()
    backbone(images(64)).square().mean().backward()
    gradients = [parameter.grad for parameter in backbone.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_it_comes_in_evaluation_mode() -> None:
    assert not any(module.training for module in small().modules())


def test_memory_format_changes_nothing_but_speed() -> None:
    backbone = small()
    with torch.no_grad():
        plain = backbone(images(64))
        fast = backbone.to(memory_format=torch.channels_last)
        torch.testing.assert_close(fast(images(64).to(memory_format=torch.channels_last)), plain, rtol=1e-4, atol=1e-5)


def test_a_map_finer_than_the_grid_is_pooled_and_has_another_fingerprint() -> None:
    torch.manual_seed(0)
    plain = small(size=96)
    pooled = Backbone.__new__(Backbone)
    pooled.__dict__ = {**plain.__dict__, "grid": 2}
    maps, fewer = plain(images(96)), pooled(images(96))
    assert (maps.shape[-2:], fewer.shape[-2:]) == ((3, 3), (2, 2))
    torch.testing.assert_close(fewer, torch.nn.functional.adaptive_avg_pool2d(maps, 2))
    assert len({small(grid=grid).variant for grid in (None, 2, 8)}) == 3
    assert small(grid=8)(images(64)).shape[-1] == 2


def test_the_fingerprint_follows_what_decides_the_maps() -> None:
    backbone = small()
    before = backbone.fingerprint
    assert before == backbone.fingerprint == backbone.to(memory_format=torch.channels_last).fingerprint
    assert len(before) == 64
    twin = small(size=96)
    twin.load_state_dict(backbone.state_dict())
    assert twin.fingerprint != before
    with torch.no_grad():
        next(backbone.parameters())[0] += 1
    assert backbone.fingerprint != before


def test_pixels_are_normalised_as_timm_says() -> None:
    backbone = small()
    config = backbone.network.pretrained_cfg
    assert backbone.preprocessing.order == "RGB"
    assert all(
        math.isclose(ours, 255 * theirs)
        for ours, theirs in zip(backbone.preprocessing.mean, config["mean"], strict=True)
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"name": "resnet5o"}, "no backbone 'resnet5o' in timm; did you mean 'resnet"),
        ({"name": "resnet18.nothing"}, "no weights tagged 'nothing'"),
        ({"name": "inception_v3", "size": 32}, "'inception_v3' cannot take images of 32 pixels"),
        ({"name": "crossvit_tiny_240", "size": 240}, "'crossvit_tiny_240' yields no feature map"),
        ({"size": 0}, "image size 0 is not a number of pixels"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(overrides: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small(**overrides)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match="takes images of 64 × 64 pixels, these are 32 × 32; squash"):
        small()(images(32))


@pytest.mark.parametrize(
    "pixels",
    [Preprocessing((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)), Preprocessing((1.0, 2.0, 3.0), (9.0, 9.0, 9.0), "BGR")],
)
def test_the_same_weights_fed_other_pixels_have_another_fingerprint(pixels: Preprocessing) -> None:
    torch.manual_seed(0)
    backbone = small()
    before, backbone.preprocessing = backbone.fingerprint, pixels
    assert backbone.fingerprint != before
