"""Multi-label prototypical networks (Snell et al., 2017): on raw features, on centred ones, and with words.

A label's prototype is the mean of its images' global features, with which images are compared by cosine.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.base import Base, Classifier, Method, Precoded, Support, options
from fewtag.research.types import Encoded, Logits, Maps, Words, cosine, full_precision, pool, unit_features

Vectors = Float[Tensor, "labels channels"]


@options
class ProtoNet(Precoded):
    """Mean features as prototypes. Only the backbone is learnt, if trained end to end."""

    stacks_episodes = True

    scale: float = 20.0

    def encode(self, maps: Maps) -> Encoded:
        """Global features: images × channels."""
        return pool(maps.float())

    def adapt_encoded(self, support: Support) -> Classifier:
        support.need_images()
        shows = support.targets.mT.float()
        with full_precision(shows):
            prototypes = shows @ support.maps  # sums instead of means: a cosine ignores their length
        return lambda features: self.scale * cosine(features, prototypes)


class CentredProtoNet(ProtoNet):
    """ProtoNet on features centred at the mean of all base images, after SimpleShot (Wang et al., 2019).

    What all pictures have in common distinguishes no labels, yet dominates the cosine of two raw features.
    """

    base_stage = "features"

    mean: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("mean", torch.zeros(self.channels))

    def prepare(self, base: Base) -> None:
        """Computes the mean of all base images."""
        self.mean.copy_(base.features.double().mean(dim=0))

    def encode(self, maps: Maps) -> Encoded:
        return super().encode(maps) - self.mean


class AM3(Method):
    """Adaptive mixing of image and word features (Xing et al., "Adaptive Cross-Modal Few-Shot Learning", 2019).

    A label's prototype is λ · the mean feature of its images + (1 − λ) · its transformed word, and λ depends on the
    word: words that say much about looks get more weight. Both networks have one hidden layer and are trained on
    episodes, as are the scale and margin of the logits; unit vectors are compared by squared distance.
    """

    def __init__(
        self, channels: int, dimensions: int, *, hidden: int = 300, dropout: float = 0.2, scale: float = 20.0
    ) -> None:
        super().__init__(channels, dimensions)
        self.transform = perceptron(dimensions, hidden, channels, dropout)
        self.weigh = perceptron(channels, hidden, 1, dropout)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.margin = nn.Parameter(torch.ones(()))

    def say(self, words: Words) -> Vectors:
        """The words transformed to unit vectors in feature space."""
        return F.normalize(self.transform(words.float()), dim=-1)

    def prototypes(self, support: Support) -> Vectors:
        """Image and word features, mixed with a weight that depends on the word."""
        shows = support.targets.T.float()
        seen = F.normalize(shows @ unit_features(support.maps), dim=-1)
        said = self.say(support.words)
        share = self.weigh(said).sigmoid()
        return share * seen + (1 - share) * said

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        # full precision throughout: the networks are small, and half precision would tie many scores
        with full_precision(support.maps):
            prototypes = self.prototypes(support)

        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                return self.scale * (self.margin - squared_distances(unit_features(maps), prototypes))

        return classify


def squared_distances(images: Float[Tensor, "images channels"], labels: Vectors) -> Logits:
    """Squared distances of images to labels, without a root, whose slope is infinite at 0."""
    return images.square().sum(dim=1, keepdim=True) + labels.square().sum(dim=1) - 2 * images @ labels.T


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """A perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))
