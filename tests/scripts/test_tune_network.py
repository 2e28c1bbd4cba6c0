"""Tuning on base labels, and the networks that are tuned."""

from pathlib import Path
from typing import Any

import networks
import pytest
import torch
import tune_network
from measure_posterior import Strengths
from networks import Network, Pictures, average, build, copy_state, encode, rounded, save
from safetensors.torch import load_file
from torch import Tensor, nn
from tune_network import Tuning, crops, groups, judge, tune


class Patches(nn.Module):
    """A network of 14 × 14 patches, two layers deep, with timm's manners."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 14, stride=14)
        self.last = nn.Linear(8, 8)

    def group_matcher(self, **_: bool) -> dict[str, Any]:
        return {"stem": r"^stem", "blocks": [(r"^last", None)]}

    def no_weight_decay(self) -> set[str]:
        return set()

    def forward_features(self, pixels: Tensor) -> Tensor:
        return self.last(self.stem(pixels).movedim(1, -1)).movedim(-1, 1)


def pictures(count: int = 16) -> Pictures:
    """Half of them are red."""
    targets = torch.arange(count)[:, None] % 2 == 0
    pixels = torch.zeros(count, 3, 56, 56, dtype=torch.uint8)
    pixels[::2, 0] = 255
    return Pictures(("red",), pixels, targets)


@pytest.mark.parametrize(("size", "places"), [(56, 16), (112, 64), (126, 64), (224, 64)])
def test_maps_have_at_most_eight_by_eight_places(size: int, places: int) -> None:
    maps = encode(Network(Patches()), torch.zeros(2, 3, 56, 56, dtype=torch.uint8), size)
    assert maps.shape == (2, places, 8)


def test_dinov2_takes_pictures_of_any_size_with_one_file(tmp_path: Path) -> None:
    body = networks.timm.create_model("vit_small_patch14_dinov2", num_classes=0, **networks.ANY_SIZE["dinov2"])
    save(Network(body), tmp_path / "some.safetensors")
    network = build(
        "dinov2", {name: tensor.float() for name, tensor in load_file(tmp_path / "some.safetensors").items()}
    )
    black = torch.zeros(1, 3, 28, 28, dtype=torch.uint8)
    assert [encode(network, black, size).shape[1] for size in (28, 42)] == [4, 9]


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SystemExit, match="do not fit"):
        build("tinyvit", {"blocks.0.weight": torch.zeros(1)})


def test_rounded_weights_are_within_half_a_step_of_their_channel() -> None:
    network = Network(Patches())
    before, after = copy_state(network), rounded(network, 8)
    steps = before["stem.weight"].abs().amax(dim=(1, 2, 3)) / 127
    errors = (after["stem.weight"] - before["stem.weight"]).abs().amax(dim=(1, 2, 3))
    assert errors.max() > 0
    assert (errors <= 0.501 * steps).all()
    assert torch.equal(after["last.weight"], before["last.weight"])  # too few numbers to be worth it


def test_each_number_of_bits_rounds_the_weights_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Tensor] = []

    class Bench:
        base, fitted, strengths = pictures(), pictures(), Strengths()

        def measure(self, network: Network, _size: int, **_: bool) -> dict[str, Any]:
            measured.append(copy_state(network)["stem.weight"])
            return {}

    monkeypatch.setattr(tune_network, "Bench", lambda *_: Bench())
    monkeypatch.setattr(tune_network, "read_weights", lambda *_: {})
    monkeypatch.setattr(tune_network, "build", lambda *_: Network(Patches()))
    options = ["--weights", "none", "--data", "none", "--epochs", "--sizes", "56", "--bits", "8", "16"]
    monkeypatch.setattr(
        "sys.argv", ["tune_network.py", "--network", "dinov2", *options, "--out", str(tmp_path / "rows.json")]
    )
    tune_network.main()
    exact, coarse, fine = measured
    assert 0 < (fine - exact).abs().max() < (coarse - exact).abs().max() / 100


def test_averages_are_weighted_means_of_tensors() -> None:
    found = average([{"a": torch.ones(2)}, {"a": 3 * torch.ones(2)}], [0.25, 0.75])
    assert torch.equal(found["a"], torch.full((2,), 2.5))


def test_rates_fall_towards_the_input_and_the_head_has_its_own() -> None:
    settings = Tuning(rate=1.0, layer_decay=0.5, head_rate=7.0)
    network, head = Network(Patches()), nn.Linear(8, 1)
    rates = {id(p): group["lr"] for group in groups(network, head, settings) for p in group["params"]}
    stem, last = rates[id(network.body.stem.weight)], rates[id(network.body.last.weight)]
    assert stem == pytest.approx(last / 2)
    assert rates[id(head.weight)] == 7.0
    assert set(rates) == {id(p) for module in (network, head) for p in module.parameters()}


def test_crops_of_the_whole_area_are_the_pictures_or_their_mirror_images() -> None:
    whole = torch.arange(4.0).expand(6, 3, 4, 4)
    found = crops(whole, 1.0, torch.Generator().manual_seed(0))
    mirrored = [torch.allclose(one, whole[0].flip(-1), atol=1e-4) for one in found]
    assert any(mirrored)
    assert not all(mirrored)
    assert all(turned or torch.allclose(one, whole[0], atol=1e-4) for one, turned in zip(found, mirrored, strict=True))


def test_tuning_learns_the_labels_and_repeats_itself() -> None:
    settings = Tuning(rate=1e-2, head_rate=0.1, sizes=(28, 56), epochs=1, batch=8)
    first, second, longer = (Network(Patches()) for _ in range(3))
    once, again = tune(first, pictures(), settings), tune(second, pictures(), settings)
    assert once == again
    assert torch.equal(first.body.stem.weight, second.body.stem.weight)
    assert tune(longer, pictures(), Tuning(**{**vars(settings), "epochs": 20})) < once / 2


def test_settings_are_judged_on_validation_labels_with_examples_or_without() -> None:
    def figures(macro: float, micro: float) -> dict[str, list[float]]:
        return {"macro": [macro, 0.1], "micro": [micro, 0.1]}

    found = {
        "all names, val, 0 examples": figures(1, 3),
        "all names, val, 10 examples": figures(5, 7),
        "all names, val, 10 examples, closed form": figures(50, 50),
        "all names, test, 10 examples": figures(90, 90),
    }
    assert judge(found, alone=False) == 6
    assert judge(found, alone=True) == 2
    assert judge({}, alone=True) is None
