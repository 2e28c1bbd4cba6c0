"""A backbone and a method as one: the same as the method on the backbone's maps."""

import pytest
import torch
from torch import Tensor, nn

from fewtag.research.methods import (
    METHODS,
    Base,
    EndToEnd,
    Episode,
    Method,
    Support,
    create_method,
)

SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.bool)
every_method = pytest.mark.parametrize("name", METHODS)


class TinyBackbone(nn.Module):
    """Pixels to maps of five channels; keeps how many images each pass saw."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, kernel_size=2, stride=2)
        self.passes: list[int] = []

    def forward(self, pixels: Tensor) -> Tensor:
        self.passes.append(len(pixels))
        return self.convolution(pixels.float() / 255)


def build(name: str) -> tuple[TinyBackbone, Method, EndToEnd]:
    torch.manual_seed(0)
    options: dict[str, object] = {"finetune_epochs": 4} if name.startswith("pla") else {}  # of an LSTM, which take long
    backbone, method = TinyBackbone(), create_method(name, channels=5, dimensions=4, options=options)
    method.prepare(Base(("a", "b", "c"), torch.randn(3, 4), SHOWN, torch.randn(4, 5)))
    return backbone, method, EndToEnd(backbone, method).eval()


def pixels(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 6, 4), dtype=torch.uint8, generator=generator)


def episode() -> Episode:
    words = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(6)[:, None] % 3 == torch.arange(3)
    return Episode(Support(("a", "b", "c"), words, pixels(4, 0), SHOWN), pixels(6, 1), targets)


def on_maps(backbone: nn.Module, pixels: Episode) -> Episode:
    support = pixels.support._replace(maps=backbone(pixels.support.maps))
    return pixels._replace(support=support, maps=backbone(pixels.maps))


@every_method
def test_it_scores_as_the_method_does_on_the_backbones_maps(name: str) -> None:
    backbone, method, whole = build(name)
    maps = on_maps(backbone, episode())
    expected = method.adapt(maps.support)(maps.maps)
    torch.testing.assert_close(whole.adapt(episode().support)(episode().maps), expected, rtol=1e-5, atol=1e-4)


@every_method
def test_its_loss_is_the_methods_on_the_backbones_maps(name: str) -> None:
    backbone, method, whole = build(name)
    expected = method.loss(on_maps(backbone, episode()))
    torch.testing.assert_close(whole.loss(episode()), expected, rtol=1e-5, atol=1e-5)


@every_method
def test_its_loss_makes_one_pass_over_support_and_query_together(name: str) -> None:
    backbone, _, whole = build(name)
    whole.loss(episode())
    assert backbone.passes == [4 + 6]


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.differentiable])
def test_its_loss_teaches_the_backbone(name: str) -> None:
    backbone, _, whole = build(name)
    whole.loss(episode()).backward()
    assert backbone.convolution.weight.grad is not None
    assert backbone.convolution.weight.grad.abs().max() > 0


def test_its_encoders_stage_is_the_methods_on_the_backbones_maps() -> None:
    backbone, method = TinyBackbone(), create_method("pla", channels=5, dimensions=4, options={"encoder_episodes": 7})
    method.prepare(Base(("a", "b", "c"), torch.randn(3, 4), SHOWN, torch.randn(4, 5)))
    whole = EndToEnd(backbone, method)
    assert whole.encoder_episodes == 7
    torch.testing.assert_close(whole.encoder_loss(episode()), method.encoder_loss(on_maps(backbone, episode())))


@every_method
def test_it_serves_words_alone_where_its_method_does(name: str) -> None:
    _, method, whole = build(name)
    assert whole.serves_words_alone is method.serves_words_alone
    assert whole.dimensions == method.dimensions == 4


def test_its_state_holds_both_and_nothing_else() -> None:
    backbone, method, whole = build("word-attention")
    wanted = {f"backbone.{key}" for key in backbone.state_dict()} | {f"method.{key}" for key in method.state_dict()}
    assert set(whole.state_dict()) == wanted
