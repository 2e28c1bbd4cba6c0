"""LaSO: networks that combine two images' features into those of the union of their labels, to augment a small support.

Alfassy et al., "LaSO: Label-Set Operations networks for multi-label few-shot learning", CVPR 2019. On the base labels
three networks learn union, intersection and subtraction, judged by a classifier that is trained on real images only. At
test a fresh classifier is trained on the support images and on the unions of their pairs.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Episode, Method, Support, options
from fewtag.research.methods.linear import fit_head
from fewtag.research.types import Logits, Maps, Targets, bce, unit_features

Features = Float[Tensor, "images channels"]


class Operations(NamedTuple):
    """The three combinations of two sets of labels per row, or of their features."""

    union: Tensor
    intersection: Tensor
    subtraction: Tensor


def operate(left: Targets, right: Targets) -> Operations:
    """The labels that the synthesised features should show."""
    return Operations(left | right, left & right, left & ~right)


def subtract(left: Features, right: Features) -> Features:
    """One image's features less the other's, clipped at zero; added to their minimum it gives the image again."""
    return F.relu(left - right)


class Operation(nn.Module):
    """One operation on features: plain arithmetic, corrected by a network that sees both images."""

    def __init__(
        self, channels: int, plain: Callable[..., Tensor], *, hidden: int, blocks: int, dropout: float
    ) -> None:
        super().__init__()
        self.plain = plain
        sizes = [2 * channels] + [hidden] * blocks
        layers = [
            # layer-norm where the source has batch-norm: there are no running statistics, so `adapt` changes nothing
            nn.Sequential(nn.Linear(before, after), nn.LayerNorm(after), nn.LeakyReLU(0.2), nn.Dropout(dropout))
            for before, after in pairwise(sizes)
        ]
        self.correction = nn.Sequential(*layers, nn.Linear(hidden, channels))

    def forward(self, left: Features, right: Features) -> Features:
        return self.plain(left, right) + self.correction(torch.cat([left, right], dim=1))


@options
class LaSO(Method):
    """Augments the support with the unions of its pairs of images, then trains a linear classifier."""

    base_stage = "labels"

    hidden: int = 512
    blocks: int = 2
    dropout: float = 0.5
    symmetry: float = 1.0
    rebuild: float = 1.0
    augment: Literal["none", "union", "all"] = "union"
    epochs: int = 40
    head_rate: float = 5e-3
    head_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks < 1:
            raise InputError(f"blocks = {self.blocks}: a network of LaSO has at least one block")
        self.union, self.intersection, self.subtraction = (
            Operation(self.channels, plain, hidden=self.hidden, blocks=self.blocks, dropout=self.dropout)
            for plain in (torch.add, torch.minimum, subtract)
        )

    def prepare(self, base: Base) -> None:
        """Creates the classifier of the base labels that judges real and synthesised features."""
        self.head = nn.Linear(self.channels, len(base.labels))
        # initialised to the labels' frequencies only: a random judge would first teach the networks to please it
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias.copy_(base.targets.float().mean(dim=0).clamp(1e-4, 1 - 1e-4).logit())

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """Losses of real and synthesised features against their labels, with each image paired with another."""
        maps, targets = episode.batch
        features = self._features(maps)
        images, device = len(features), features.device
        # a partner for each: drawn in training, the next one otherwise
        order = torch.randperm(images, device=device) if self.training else torch.arange(images, device=device).roll(1)
        others = features[order]
        made = Operations(*(getattr(self, name)(features, others) for name in Operations._fields))
        wanted = operate(targets, targets[order])
        judged = sum(bce(self._judge(features), labels) for features, labels in zip(made, wanted, strict=True))
        swapped = F.mse_loss(made.union, self.union(others, features))
        swapped = swapped + F.mse_loss(made.intersection, self.intersection(others, features))
        # what only this image shows and what both show make up the image; keeps networks from forgetting the image
        rebuilt = F.mse_loss(self.union(made.subtraction, made.intersection), features.detach())
        return bce(self.head(features), targets) + judged + self.symmetry * swapped + self.rebuild * rebuilt

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        features, targets = self._augment(self._features(support.maps), support.targets)
        head = fit_head(
            features, targets, epochs=self.epochs, learning_rate=self.head_rate, weight_decay=self.head_decay
        )
        return lambda maps: head(self._features(maps))

    @torch.no_grad()
    def _augment(self, features: Features, targets: Targets) -> tuple[Tensor, Tensor]:
        """The images and the syntheses of all their pairs, in both orders, since no network is exactly symmetric."""
        left, right = (~torch.eye(len(features), dtype=torch.bool, device=features.device)).nonzero().T
        shown = operate(targets[left], targets[right])
        names = {"none": (), "union": ("union",), "all": Operations._fields}[self.augment]
        made = [getattr(self, name)(features[left], features[right]).float() for name in names]
        return torch.cat([features, *made]), torch.cat([targets, *(getattr(shown, name) for name in names)])

    def _judge(self, features: Features) -> Logits:
        """The base classifier, which synthesised features must satisfy but do not train."""
        return F.linear(features, self.head.weight.detach(), self.head.bias.detach())

    def _features(self, maps: Maps) -> Features:
        """Global features of length √channels, so that the rates fit any backbone."""
        return math.sqrt(self.channels) * unit_features(maps)
