"""From pictures to places in the method's space: examples one by one, the rest in batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fewtag.data.images import squash
from fewtag.errors import InputError
from fewtag.features.backbone import Backbone
from fewtag.tagger.bank import Example
from fewtag.tagger.inputs import ImageLike, ahead, batches, digest, numbered, open_image
from fewtag.tagger.model import Model

BATCH = 32
Pixels = UInt8[np.ndarray, "images 3 size size"]
Places = Float[Tensor, "images places space"]


def to_maps(backbone: Backbone, pixels: Pixels) -> Float[Tensor, "images channels rows columns"]:
    """One pass of the network, where it is."""
    return backbone(torch.from_numpy(pixels).to(backbone.mean.device))


@torch.inference_mode()
def encode_pixels(model: Model, pixels: Pixels) -> Places:
    """Of squashed pictures."""
    return model.method.project(to_maps(model.backbone, pixels))


def encode_images(model: Model, images: Iterable[ImageLike]) -> Iterator[Places]:
    """A batch at a time; the next ones are decoded while the network works on this one."""

    def read(item: tuple[ImageLike, str]) -> UInt8[np.ndarray, "3 size size"]:
        return squash(open_image(*item), model.backbone.size)

    for batch in batches(ahead(read, numbered(images), most=2 * BATCH), BATCH):
        yield encode_pixels(model, np.stack(batch))


def encode_examples(
    model: Model, images: Iterable[ImageLike], shown: Sequence[frozenset[str]], known: Mapping[str, Example]
) -> dict[str, Example]:
    """By digest; pictures that are known already are not encoded again."""

    def read(item: tuple[ImageLike, str]) -> tuple[str, UInt8[np.ndarray, "3 size size"]]:
        picture = open_image(*item)
        return digest(picture), squash(picture, model.backbone.size)

    found: dict[str, Example] = {}
    number = 0
    for number, (key, pixels) in enumerate(ahead(read, numbered(images), most=8), 1):
        if number > len(shown):
            break
        labels = shown[number - 1]
        if key in found:  # twice in one call, as in two labels' folders: it shows what both say
            found[key] = replace(found[key], labels=found[key].labels | labels)
        elif key in known:
            found[key] = replace(known[key], labels=labels)
        else:
            # one at a time: in a batch, the last bits of a picture's features depend on its neighbours
            found[key] = Example.of(labels, encode_pixels(model, pixels[None])[0])
    same_length(number, len(shown))
    if not found:
        raise InputError("there is no picture to learn from; give at least one, with its labels")
    return found


def same_length(images: int, labels: int) -> None:
    """Refuses pictures without labels and labels without pictures."""
    if images != labels:
        raise InputError(f"each picture needs its labels: found {images} pictures and labels for {labels}")
