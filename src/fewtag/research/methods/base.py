"""The contract of every method: prepare on base labels, train on episodes of them, adapt to a support of new ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words, bce

Classifier = Callable[[Maps], Logits]


class Support(NamedTuple):
    """What `adapt` may see of an episode: no query image can leak in, by type."""

    labels: tuple[str, ...]
    words: Words
    maps: Maps
    targets: Targets

    def need_images(self) -> None:
        """Refuses the first label that no support image shows, in one of several episodes where they are stacked."""
        if self.targets.is_cuda and torch.is_grad_enabled():
            return  # training draws its episodes so that none is empty, and to look would stall the device at each step
        shown = self.targets.any(dim=-2).reshape(-1, len(self.labels)).all(dim=0).tolist()
        empty = [label for label, is_shown in zip(self.labels, shown, strict=True) if not is_shown]
        if empty:
            raise InputError(
                f"label {empty[0]!r} has no support image ({len(empty)} of {len(self.labels)} labels "
                "have none), and this method needs one; add a picture of it or drop the label"
            )


class Episode(NamedTuple):
    """A support and the query images, with their targets, on which it is judged."""

    support: Support
    maps: Maps
    targets: Targets

    @property
    def batch(self) -> tuple[Maps, Targets]:
        """All images alike, those of the support first."""
        return torch.cat([self.support.maps, self.maps]), torch.cat([self.support.targets, self.targets])

    def base_batch(self, labels: tuple[str, ...]) -> tuple[Maps, Targets]:
        """The same, for a method that was prepared for these base labels and learns a part for each."""
        if self.support.labels != labels:
            raise InputError(
                f"this method was prepared for {len(labels)} base labels, and the episode has "
                f"{len(self.support.labels)} labels, not the same; call prepare with the labels that it is to learn"
            )
        return self.batch


class ClassNames(NamedTuple):
    """A classifier's classes by name: further words with prototypes, for a map from words to features."""

    words: Words
    chances: Float[Tensor, "images labels"]
    """The probability of each class on each base image (soft labels)."""
    weight: float = 0.3
    """Of a class's name beside a base label's."""


class Base(NamedTuple):
    """The base labels with their words, and which of all base images show them; for `Method.prepare`."""

    labels: tuple[str, ...]
    words: Words
    targets: Targets
    global_features: Float[Tensor, "images channels"] | None = None
    """Of the same images; not extracted for a method whose `base_stage` does not ask for them."""
    names: ClassNames | None = None

    @property
    def features(self) -> Float[Tensor, "images channels"]:
        """The global features, which must be there."""
        assert self.global_features is not None, 'a method that looks at them says base_stage = "features"'
        return self.global_features


Kind = TypeVar("Kind")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def options(kind: type[Kind]) -> type[Kind]:
    """A method whose hyper-parameters are its annotated attributes, keyword-only; `__post_init__` makes its layers."""
    return dataclass(eq=False, repr=False, kw_only=True)(kind)


@dataclass(eq=False, repr=False)
class Method(nn.Module):
    """Turns a support into a classifier. Hyper-parameters are keyword-only and default to the paper."""

    channels: int
    """Of the maps."""
    dimensions: int
    """Of the word vectors."""

    serves_words_alone = False
    """Whether a label without any support image is served from its word vector instead of refused."""

    uses_images = True
    """Whether support images have a say; not so for a method that goes by the words alone."""

    differentiable = True
    """Whether gradients reach the maps, and so a backbone; not so for a method that `fewtag.core` solves."""

    uses_names = False
    """Whether `prepare` looks at a classifier's class names, where a recipe gives them."""

    base_stage: ClassVar[Literal["labels", "features"] | None] = None
    """What `prepare` looks at, if the method has such a stage.

    "labels": it makes parts for the base labels, so it comes before training and before trained weights are loaded.
    "features": it solves on the base images' features, so it comes once the backbone is as it will be used.
    """

    encoder_episodes = 0
    """So many episodes of training come first, and lower `encoder_loss` alone."""

    def __post_init__(self) -> None:
        super().__init__()

    def prepare(self, base: Base) -> None:
        """The base stage, once, on all base labels: makes or solves for what they decide."""

    def adapt(self, support: Support) -> Classifier:
        """A classifier of the support's labels. Changes nothing in the method."""
        raise NotImplementedError

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """What training lowers: how wrongly the adapted classifier tags the query images."""
        return bce(self.adapt(episode.support)(episode.maps), episode.targets)

    def encoder_loss(self, episode: Episode) -> Float[Tensor, ""]:
        """What the encoder's own stage lowers, in a method that has one."""
        raise NotImplementedError


class Precoded(Method):
    """A method that first encodes each picture by itself: over many episodes, each picture is encoded once."""

    stacks_episodes = False
    """Whether `adapt_encoded` and its classifier serve several episodes at once, all with one more axis in front."""

    def encode(self, maps: Maps) -> Encoded:
        """What of a picture does not depend on the labels."""
        raise NotImplementedError

    def adapt_encoded(self, support: Support) -> Classifier:
        """`adapt`, from encoded pictures to a classifier of encoded pictures."""
        raise NotImplementedError

    def adapt(self, support: Support) -> Classifier:
        classifier = self.adapt_encoded(support._replace(maps=self.encode(support.maps)))
        return lambda maps: classifier(self.encode(maps))


class EndToEnd(Method):
    """End-to-end training: a backbone and a method as one method of pixels, so that frozen runs share all code."""

    def __init__(self, backbone: nn.Module, method: Method) -> None:
        super().__init__(channels=3, dimensions=method.dimensions)
        self.backbone, self.method = backbone, method
        self.serves_words_alone, self.encoder_episodes = method.serves_words_alone, method.encoder_episodes

    def adapt(self, support: Support) -> Classifier:
        classifier = self.method.adapt(support._replace(maps=self.backbone(support.maps)))
        return lambda pixels: classifier(self.backbone(pixels))

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        return self.method.loss(self._with_maps(episode))

    def encoder_loss(self, episode: Episode) -> Float[Tensor, ""]:
        return self.method.encoder_loss(self._with_maps(episode))

    def _with_maps(self, episode: Episode) -> Episode:
        """One pass of the backbone over support and query, so that they share batch-norm statistics and kernels."""
        support, query = self.backbone(episode.batch[0]).split([len(episode.support.maps), len(episode.maps)])
        return Episode(episode.support._replace(maps=support), query, episode.targets)
