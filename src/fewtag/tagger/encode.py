"""From pictures to places in the method's space: examples one by one, the rest in batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fewtag.errors import InputError
from fewtag.pictures.decode import squash, stack
from fewtag.pictures.prefetch import batches, prefetch
from fewtag.research.features.backbone import Backbone
from fewtag.research.features.spread import spread
from fewtag.tagger.bank import Example
from fewtag.tagger.inputs import ImageLike, digest, numbered, open_image, open_square
from fewtag.tagger.model import Model

BATCH = 32
READ_AT_ONCE = 8
Picture = UInt8[np.ndarray, "3 size size"]
Pixels = UInt8[np.ndarray, "images 3 size size"]
Places = Float[Tensor, "images places space"]


def to_maps(backbone: Backbone, pixels: Pixels) -> Float[Tensor, "images channels rows columns"]:
    """One pass of the network."""
    return _pass(backbone, pixels, lambda maps: maps)


def encode_pixels(model: Model, pixels: Pixels) -> Places:
    """Of squashed pictures, rounded to half precision: a cache keeps what was scored, to the last bit."""
    return _pass(model.backbone, pixels, model.method.project).half().float()


def _pass(backbone: Backbone, pixels: Pixels, then: Callable[[Tensor], Tensor]) -> Tensor:
    """Where the network is: spread over a CPU's cores, or on a GPU in full precision.

    In bfloat16 pictures near a threshold would get other tags there than here, and decoding is what takes the time.
    """
    device, batch = backbone.mean.device, torch.from_numpy(pixels)
    if device.type == "cpu":
        # one by one after the network: in larger products a picture's last bits depend on those beside it
        return spread(lambda chunk: torch.cat([then(maps) for maps in backbone(chunk).split(1)]), batch)
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return then(backbone(batch.to(device)))


def encode_images(model: Model, images: Iterable[ImageLike]) -> Iterator[Places]:
    """A batch at a time; the next ones are decoded while the network works on this one."""

    def read(item: tuple[ImageLike, str]) -> Picture:
        return open_square(*item, model.backbone.size)

    for batch in batches(prefetch(read, numbered(images), most=2 * BATCH), BATCH):
        yield encode_pixels(model, stack(batch))


def encode_examples(
    model: Model, images: Iterable[ImageLike], shown: Sequence[frozenset[str]], known: Mapping[str, Example]
) -> dict[str, Example]:
    """By digest; pictures that are known already are not encoded again."""

    def read(item: tuple[ImageLike, str]) -> tuple[str, Picture]:
        picture = open_image(*item)
        return digest(picture), squash(picture, model.backbone.size)

    said: dict[str, frozenset[str]] = {}
    encoded: dict[str, Example] = {}
    number = 0
    # so many are read before the network begins: reading beside it costs more than it saves where cores are few
    # one more than there are labels for is enough to know
    enough = itertools.islice(numbered(images), len(shown) + 1)
    for pictures in batches(prefetch(read, enough, most=READ_AT_ONCE), READ_AT_ONCE):
        fresh: dict[str, Picture] = {}
        for key, pixels in pictures:
            number += 1
            same_length(max(number, len(shown)), len(shown))
            # twice in one call, as in two labels' folders: it shows what both say
            said[key] = said.get(key, frozenset()) | shown[number - 1]
            if key not in known and key not in encoded:
                fresh[key] = pixels
        if fresh:
            places = encode_pixels(model, stack(list(fresh.values())))
            encoded |= {key: Example.of(said[key], place) for key, place in zip(fresh, places, strict=True)}
    same_length(number, len(shown))
    if not said:
        raise InputError("there is no picture to learn from; give at least one, with its labels")
    return {key: replace(known.get(key) or encoded[key], labels=labels) for key, labels in said.items()}


def same_length(images: int, labels: int) -> None:
    """Refuses pictures without labels and labels without pictures."""
    if images != labels:
        raise InputError(f"each picture needs its labels: found {images} pictures and labels for {labels}")
