"""The contract every method keeps: learn from base labels, then meet new ones."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words

Classifier = Callable[[Maps], Logits]


class Support(NamedTuple):
    """What `adapt` may see of an episode: no query image can leak in, by type."""

    labels: tuple[str, ...]
    words: Words
    maps: Maps
    targets: Targets


class Products(NamedTuple):
    """Inner products of encoded pictures, of one episode or of several with as many pictures each."""

    among: Float[Tensor, "*episodes support support"]
    """Of the support images with each other."""
    across: Float[Tensor, "*episodes images support"]
    """Of the query images with the support images."""
    lengths: Float[Tensor, "*episodes images"]
    """Of the query images."""


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


class ByProducts(Precoded):
    """A method that sees inner products of encoded pictures and nothing else: many episodes are scored at once."""

    def score(
        self, products: Products, targets: Bool[Tensor, "*episodes support labels"]
    ) -> Float[Tensor, "*episodes images labels"]:
        """Logits of the query images; the targets are the support's."""
        raise NotImplementedError

    def meet(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        examples = support.maps.flatten(1).float()

        def classify(maps: Maps) -> Logits:
            images = maps.flatten(1).float()
            with torch.autocast(images.device.type, enabled=False):
                found = Products(examples @ examples.T, images @ examples.T, images.norm(dim=1))
                return self.score(found, support.targets)

        return classify


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


def pool(maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images channels"]:
    """Global features: the mean over places."""
    return maps.mean(dim=(2, 3))


def places(maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images places channels"]:
    """Local features, a row for each place of the map."""
    return maps.flatten(2).transpose(1, 2)


def cosine(left: Float[Tensor, "images size"], right: Float[Tensor, "labels size"]) -> Logits:
    """Cosine of each image with each label, in full precision even where the network runs in half."""
    with torch.autocast(left.device.type, enabled=False):
        return F.normalize(left.float(), dim=-1) @ F.normalize(right.float(), dim=-1).T


def refuse_labels_without_image(support: Support) -> None:
    """Raises for the first label that no support image shows."""
    if support.targets.is_cuda and torch.is_grad_enabled():
        return  # training draws its episodes so that none is empty, and to look would stall the device at every step
    refuse_unshown(support.labels, support.targets)


def refuse_unshown(labels: tuple[str, ...], targets: Bool[Tensor, "*episodes support labels"]) -> None:
    """Raises for the first label that no image shows, of one support or of several."""
    shown = targets.any(dim=-2).view(-1, len(labels)).all(dim=0).tolist()
    empty = [label for label, found in zip(labels, shown, strict=True) if not found]
    if empty:
        raise InputError(
            f"label {empty[0]!r} has no support image ({len(empty)} of {len(labels)} labels "
            "have none), and this method needs one; add a picture of it or drop the label"
        )
