"""A classifier on a backbone: the rows named after their network alone (ResNet-50, …) in the paper's tables.

First a linear multi-label head learns the base labels, and end to end the backbone with it. Then the backbone stays as
it is, and new labels get a fresh head, trained on the support for 40 epochs as all the paper's baselines are.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.base import (
    Base,
    Classifier,
    Episode,
    Method,
    Support,
    bce,
    pool,
    refuse_labels_without_image,
)
from fewtag.research.methods.heads import fit_head


class LinearClassifier(Method):
    """A linear head for the base labels, thrown away, and one for each support. Words play no part."""

    base_stage = "labels"

    base_head: nn.Linear

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        epochs: int = 40,
        learning_rate: float = 0.2,
        weight_decay: float = 0.0,
        unit_length: bool = True,
    ) -> None:
        super().__init__(channels, dimensions)
        self.epochs, self.learning_rate, self.weight_decay = epochs, learning_rate, weight_decay
        self.unit_length = unit_length
        self.base_labels: tuple[str, ...] = ()

    def prepare(self, base: Base) -> None:
        """Makes the head for the base labels."""
        self.base_labels = base.labels
        self.base_head = nn.Linear(self.channels, len(base.labels))

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The base stage: support and query images are one batch of labelled images."""
        assert episode.support.labels == self.base_labels, "the base head has a column for each base label, in order"
        maps = torch.cat([episode.support.maps, episode.maps])
        targets = torch.cat([episode.support.targets, episode.targets])
        return bce(self.base_head(pool(maps.float())), targets)

    def features(self, maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images channels"]:
        """Global features as the fresh head sees them."""
        pooled = pool(maps.float())
        return F.normalize(pooled, dim=-1) if self.unit_length else pooled

    def adapt(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        head = fit_head(
            self.features(support.maps),
            support.targets,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        return lambda maps: head(self.features(maps))
