"""The contract every method keeps: learn from base labels, then meet new ones."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.types import Encoded, Logits, Maps, Targets, Words

Classifier = Callable[[Maps], Logits]
Classifiers = Callable[[Num[Tensor, "episodes images channels height width"]], Float[Tensor, "episodes images labels"]]


class Support(NamedTuple):
    """What `adapt` may see of an episode: no query image can leak in, by type."""

    labels: tuple[str, ...]
    words: Words
    maps: Maps
    targets: Targets


class Supports(NamedTuple):
    """The supports of several episodes of the same labels, with as many images each."""

    labels: tuple[str, ...]
    maps: Num[Tensor, "episodes images channels height width"]
    targets: Bool[Tensor, "episodes images labels"]


class Episode(NamedTuple):
    """A support and the query images, with their targets, on which it is judged."""

    support: Support
    maps: Maps
    targets: Targets


class Base(NamedTuple):
    """The base labels' images at once, for methods that solve instead of training: global features, a row an image."""

    labels: tuple[str, ...]
    words: Words
    features: Float[Tensor, "images channels"]
    targets: Targets


class BaseLabels(NamedTuple):
    """The base labels as such, and which of all base images show them."""

    labels: tuple[str, ...]
    words: Words
    targets: Targets


class Method(nn.Module):
    """Turns a support into a classifier. One file each; hyper-parameters are keyword-only and default to the paper."""

    serves_words_alone: bool = False
    """Whether a label without any support image is served from its word vector instead of refused."""

    uses_images: bool = True
    """Whether support images have a say; not so for a method that goes by the words alone."""

    def __init__(self, channels: int, dimensions: int) -> None:
        """Of maps with so many channels and word vectors with so many dimensions."""
        super().__init__()
        self.channels, self.dimensions = channels, dimensions

    def adapt(self, support: Support) -> Classifier:
        """Meets the support's labels. Returns a value and changes nothing in the method."""
        raise NotImplementedError

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """What training lowers: how wrongly the adapted classifier tags the query images."""
        return bce(self.adapt(episode.support)(episode.maps), episode.targets)


class Precoded(Method):
    """A method that does part of its work on each picture by itself, so that who asks often does that part once."""

    def encode(self, maps: Maps) -> Encoded:
        """What a picture comes to before any label is met."""
        raise NotImplementedError

    def meet(self, support: Support) -> Classifier:
        """`adapt`, of encoded pictures to a classifier of encoded pictures."""
        raise NotImplementedError

    def adapt(self, support: Support) -> Classifier:
        classifier = self.meet(support._replace(maps=self.encode(support.maps)))
        return lambda maps: classifier(self.encode(maps))


class Batched(Precoded):
    """A method that meets several episodes at once: alone, each is too small to keep a processor busy."""

    def meet_each(self, supports: Supports) -> Classifiers:
        """`meet` for each of the supports: a classifier of as many stacks of encoded pictures."""
        raise NotImplementedError


class Staged(Method):
    """A method whose first stage learns the base labels as such, with parts that are made for just these labels."""

    def prepare(self, base: BaseLabels) -> None:
        """Told once of the base labels, before training and before trained weights are loaded; makes those parts."""
        raise NotImplementedError


class Solved(Method):
    """A method that solves for what it learns, at once, instead of training on episodes."""

    def fit(self, base: Base) -> "Solved":
        """Learns from all base images; returns itself."""
        raise NotImplementedError


def bce(logits: Logits, targets: Targets) -> Float[Tensor, ""]:
    """Mean binary cross-entropy over images and labels."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets.float())


def pool(maps: Float[Tensor, "*several channels height width"]) -> Float[Tensor, "*several channels"]:
    """Global features: the mean over places."""
    return maps.mean(dim=(-2, -1))


def places(maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images places channels"]:
    """Local features, a row for each place of the map."""
    return maps.flatten(2).transpose(1, 2)


def cosine(left: Float[Tensor, "images size"], right: Float[Tensor, "labels size"]) -> Logits:
    """Cosine of each image with each label, in full precision even where the network runs in half."""
    with torch.autocast(left.device.type, enabled=False):
        return F.normalize(left.float(), dim=-1) @ F.normalize(right.float(), dim=-1).T


def refuse_labels_without_image(support: Support | Supports) -> None:
    """Raises for the first label that no support image shows."""
    if support.targets.is_cuda and torch.is_grad_enabled():
        return  # training draws its episodes so that none is empty, and to look would stall the device at every step
    without = ~support.targets.any(dim=-2)
    empty = without.view(-1, len(support.labels)).any(dim=0).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"label {support.labels[empty[0]]!r} has no support image ({len(empty)} of {len(support.labels)} labels "
            "have none), and this method needs one; add a picture of it or drop the label"
        )
