"""Keras' ResNet-50 against a forward pass of its own, in float64, from the file's tensors alone."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from fewtag.errors import InputError
from fewtag.research.features.backbone import create_backbone

REAL = Path(__file__).parents[3] / "data/weights/resnet50-keras-imagenet-fp16.safetensors"
BLOCKS = {1: 3, 2: 4, 3: 6, 4: 3}


def oracle(
    pixels: Tensor, tensors: dict[str, Tensor], *, epsilon: float = 1e-3, order: str = "BGR", strided: str = "conv1"
) -> Tensor:
    def normalise(x: Tensor, layer: str) -> Tensor:
        weight, bias, mean, variance = (
            tensors[f"{layer}.{part}"].double().view(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (variance + epsilon).sqrt() * weight + bias

    def convolve(x: Tensor, layer: str, stride: int = 1, padding: int = 0) -> Tensor:
        return conv2d(x, tensors[f"{layer}.weight"].double(), stride=stride, padding=padding)

    channels = [2, 1, 0] if order == "BGR" else [0, 1, 2]
    x = pixels[:, channels].double() - torch.tensor([103.939, 116.779, 123.68], dtype=torch.double).view(1, 3, 1, 1)
    x = max_pool2d(relu(normalise(convolve(x, "conv1", 2, 3), "bn1")), 3, 2, 1)
    for layer, blocks in BLOCKS.items():
        for block in range(blocks):
            name = f"layer{layer}.{block}"
            stride = 2 if layer > 1 and block == 0 else 1
            y = convolve(x, f"{name}.conv1", stride if strided == "conv1" else 1)
            y = relu(normalise(y, f"{name}.bn1"))
            y = convolve(y, f"{name}.conv2", stride if strided == "conv2" else 1, 1)
            y = normalise(convolve(relu(normalise(y, f"{name}.bn2")), f"{name}.conv3"), f"{name}.bn3")
            if block == 0:
                x = normalise(convolve(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            x = relu(x + y)
    return x


@pytest.fixture(scope="module")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "keras.safetensors"
    generator = torch.Generator().manual_seed(0)
    uniform = partial(torch.rand, generator=generator)
    tensors = {}
    for name, tensor in create_backbone("resnet50", weights="random", size=64).network.state_dict().items():
        if tensor.ndim == 4:
            value = torch.randn(tensor.shape, generator=generator) * (2 / tensor[0].numel()) ** 0.5
        elif name.endswith("running_var"):
            value = 0.01 + 0.1 * uniform(tensor.shape)
        elif tensor.ndim == 1:
            value = (0.1 if "bn3" in name else 0.5) * uniform(tensor.shape)
        else:
            continue
        tensors[name] = value.half()
    save_file(tensors, path)
    return path


@pytest.fixture(params=["random", pytest.param("real", marks=pytest.mark.shared)])
def file(request: pytest.FixtureRequest, random_file: Path) -> Path:
    if request.param == "real" and not REAL.exists():
        pytest.skip("the measurement packs are not here")
    return REAL if request.param == "real" else random_file


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_maps_agree_with_an_independent_forward_pass_and_with_no_wrong_one(file: Path) -> None:
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    backbone = create_backbone("resnet50", weights=f"keras:{file}", size=64)
    tensors = load_file(file)
    with torch.no_grad():
        assert error(backbone(pixels).double(), oracle(pixels, tensors)) < 1e-4
        ours = backbone.double()(pixels)
        assert ours.shape == (2, 2048, 2, 2)
        assert error(ours, oracle(pixels, tensors)) < 1e-6
        # torchvision's reading of the same file, one difference at a time
        assert error(ours, oracle(pixels, tensors, epsilon=1e-5)) > 1e-3
        assert error(ours, oracle(pixels, tensors, strided="conv2")) > 1e-2
        assert error(ours, oracle(pixels, tensors, order="RGB")) > 1e-2


def test_a_plain_path_reads_the_same_file_as_another_network(random_file: Path) -> None:
    keras = create_backbone("resnet50", weights=f"keras:{random_file}", size=64)
    plain = create_backbone("resnet50", weights=str(random_file), size=64)
    assert keras.fingerprint != plain.fingerprint
    assert plain.network.layer2[0].conv1.stride == (1, 1)


def test_keras_weights_of_another_network_are_refused(random_file: Path) -> None:
    with pytest.raises(InputError, match="'keras:' are of 'resnet50', and the backbone is 'resnet101'"):
        create_backbone("resnet101", weights=f"keras:{random_file}")
