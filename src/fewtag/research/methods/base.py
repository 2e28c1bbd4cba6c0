"""The interface of every method: prepare on base labels, train on episodes of them, adapt to a support of new ones."""

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
    """What `adapt` may see of an episode; the type rules out that query images leak in."""

    labels: tuple[str, ...]
    words: Words
    maps: Maps
    targets: Targets

    def need_images(self) -> None:
        """Refuses the first label that no support image shows; with stacked episodes, in any of them."""
        if self.targets.is_cuda and torch.is_grad_enabled():
            return  # training draws episodes in which none is empty, and checking would stall the device at each step
        shown = self.targets.any(dim=-2).reshape(-1, len(self.labels)).all(dim=0).tolist()
        empty = [label for label, is_shown in zip(self.labels, shown, strict=True) if not is_shown]
        if empty:
            raise InputError(
                f"label {empty[0]!r} has no support image ({len(empty)} of {len(self.labels)} labels "
                "have none), and this method needs one; add a picture of it or drop the label"
            )


class Episode(NamedTuple):
    """A support, and the query images with their targets on which it is evaluated."""

    support: Support
    maps: Maps
    targets: Targets

    @property
    def batch(self) -> tuple[Maps, Targets]:
        """Support and query images as one batch, the support first."""
        return torch.cat([self.support.maps, self.maps]), torch.cat([self.support.targets, self.targets])

    def base_batch(self, labels: tuple[str, ...]) -> tuple[Maps, Targets]:
        """`batch`, for a method that was prepared for these base labels and has parameters for each of them."""
        if self.support.labels != labels:
            raise InputError(
                f"this method was prepared for {len(labels)} base labels, and the episode has "
                f"{len(self.support.labels)} labels, not the same; call prepare with the labels that it is to learn"
            )
        return self.batch


class ClassNames(NamedTuple):
    """A classifier's class names: further words with prototypes, for fitting a map from words to features."""

    words: Words
    chances: Float[Tensor, "images labels"]
    """The probability of each class for each base image (soft labels)."""
    weight: float = 0.3
    """Weight of a class name relative to a base label's."""


class Base(NamedTuple):
    """The base labels with their words, and which of all base images show them; for `Method.prepare`."""

    labels: tuple[str, ...]
    words: Words
    targets: Targets
    global_features: Float[Tensor, "images channels"] | None = None
    """Global features of the same images; extracted only for a method whose `base_stage` is "features"."""
    names: ClassNames | None = None

    @property
    def features(self) -> Float[Tensor, "images channels"]:
        """The global features, which must have been extracted."""
        assert self.global_features is not None, 'a method that looks at them says base_stage = "features"'
        return self.global_features


Kind = TypeVar("Kind")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def options(kind: type[Kind]) -> type[Kind]:
    """Makes annotated attributes of a method its keyword-only hyper-parameters; `__post_init__` builds its layers."""
    return dataclass(eq=False, repr=False, kw_only=True)(kind)


@dataclass(eq=False, repr=False)
class Method(nn.Module):
    """Turns a support into a classifier. Hyper-parameters are keyword-only and default to the paper's."""

    channels: int
    """Channels of the maps."""
    dimensions: int
    """Dimensions of the word vectors."""

    serves_words_alone = False
    """Whether a label without any support image is classified by its word vector instead of refused."""

    differentiable = True
    """Whether gradients reach the maps, and so a backbone; False for a method that `fewtag.core` solves."""

    uses_names = False
    """Whether `prepare` uses a classifier's class names, if a recipe gives them."""

    base_stage: ClassVar[Literal["labels", "features"] | None] = None
    """What `prepare` needs, if the method has such a stage.

    "labels": it creates parameters for the base labels, so it runs before training and before trained weights are
    loaded. "features": it solves on the base images' features, so it runs once the backbone is in its final state.
    """

    encoder_episodes = 0
    """The number of training episodes that come first and minimise only `encoder_loss`."""

    def __post_init__(self) -> None:
        super().__init__()

    def prepare(self, base: Base) -> None:
        """The base stage, run once on all base labels: creates or solves for what depends on them."""

    def adapt(self, support: Support) -> Classifier:
        """A classifier for the support's labels. Does not change the method."""
        raise NotImplementedError

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The training loss: by default that of the adapted classifier on the query images."""
        return bce(self.adapt(episode.support)(episode.maps), episode.targets)

    def encoder_loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The loss of the encoder's own stage, in a method that has one."""
        raise NotImplementedError


class Precoded(Method):
    """A method that first encodes each picture by itself, so that over many episodes each picture is encoded once."""

    stacks_episodes = False
    """Whether `adapt_encoded` and its classifier accept several episodes at once, with one more leading axis."""

    def encode(self, maps: Maps) -> Encoded:
        """The part of a picture's computation that does not depend on the labels."""
        raise NotImplementedError

    def adapt_encoded(self, support: Support) -> Classifier:
        """`adapt`, from encoded pictures to a classifier of encoded pictures."""
        raise NotImplementedError

    def adapt(self, support: Support) -> Classifier:
        classifier = self.adapt_encoded(support._replace(maps=self.encode(support.maps)))
        return lambda maps: classifier(self.encode(maps))


class EndToEnd(Method):
    """End-to-end training: a backbone and a method as one method on pixels, so that frozen runs share all code."""

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
