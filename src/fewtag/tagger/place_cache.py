"""Pictures' places in the cache: the network's work, done once for every bank of the same model."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from fewtag.cache import Cache, Space
from fewtag.research.features.rows import reading_key
from fewtag.tagger.encode import encode_pixels
from fewtag.tagger.model import Model


def place_space(model: Model, cache: Path) -> Space:
    """Places do not depend on words or labels, so that a bank may learn and its pictures stay known."""
    backbone, method = model.backbone, model.method
    size, device = backbone.size, method.mean.device.type
    key = hashlib.sha256(f"{backbone.fingerprint} {device} {reading_key(size)}".encode())
    for tensor in (method.mean, method.basis):
        key.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    shape = tuple(encode_pixels(model, np.zeros((1, 3, size, size), np.uint8)).shape[1:])
    what = f"model {model.name}: {backbone.name}, {size} × {size} pixels, {device}"
    return Cache(cache).space("places", what, key.hexdigest(), shape, "float16")
