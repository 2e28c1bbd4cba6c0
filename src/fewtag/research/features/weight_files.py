"""State dicts: read from files without running code, fitted into networks without guessing."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fewtag.errors import InputError

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model")
# torchvision's Inception carries a second classifier that timm leaves out
AUXILIARY_HEADS = ("AuxLogits",)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, floating point ones as float32."""
    if path.suffix not in ENDINGS:
        raise InputError(
            f"weights file {str(path)!r} ends in {path.suffix!r}; give a file ending in {', '.join(ENDINGS)}"
        )
    if not path.is_file():
        raise InputError(f"there is no weights file {str(path)!r}; check the path")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"weights file {str(path)!r} holds more than tensors and is not opened, as that could run code; "
            "save its state dict as .safetensors"
        ) from error
    # torch.load answers a damaged file with whatever its zip and pickle readers happen to raise
    except (
        SafetensorError,
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
    ) as error:
        raise InputError(f"weights file {str(path)!r} cannot be read: it is damaged or of another kind") from error
    tensors = unwrap(content)
    if not tensors:
        raise InputError(
            f"weights file {str(path)!r} holds no state dict; save one with torch.save(network.state_dict())"
        )
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def unwrap(content: object) -> dict[str, Tensor]:
    """The state dict inside what a training script saved; empty where there is none.

    >>> unwrap({"state_dict": {"module.fc.bias": torch.zeros(1)}, "epoch": 3})
    {'fc.bias': tensor([0.])}
    """
    if not isinstance(content, Mapping):
        return {}
    for wrapper in WRAPPERS:
        if isinstance(content.get(wrapper), Mapping):
            return unwrap(content[wrapper])
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    if len(tensors) < len(content):
        return {}
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def fill(network: nn.Module, tensors: Mapping[str, Tensor], *, heads: tuple[str, ...], origin: str) -> None:
    """Put every tensor in its place; only classifier heads are left over, anything else is refused by name."""
    wanted = network.state_dict()
    skipped = tuple(f"{head}." for head in (*heads, *AUXILIARY_HEADS))
    given = {name: tensor for name, tensor in tensors.items() if name in wanted or not name.startswith(skipped)}
    # files from before batch-norm counted its batches are complete without the counts
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in wanted]
    misshapen = [name for name in given if name in wanted and given[name].shape != wanted[name].shape]
    for problem, names in (("lack", missing), ("have unexpected", unexpected), ("have another shape of", misshapen)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            shown = ", ".join(repr(name) for name in names[:3])
            raise InputError(
                f"{origin} {problem} {shown}{more}: they are another network's; give the right name or file"
            )
    network.load_state_dict(given, strict=False)
