"""k nearest neighbours: the support images most like a picture vote for what they show, the more alike the more.

Votes are shared out: a picture's neighbours have one vote between them, so a label's score is already a probability.
"""

from fewtag.errors import InputError
from fewtag.research.methods.base import Classifier, Method, Support, cosine, pool, refuse_labels_without_image
from fewtag.research.types import Logits, Maps

EPSILON = 1e-6  # no neighbour, or every one: a probability that still has a finite logit


class NearestNeighbours(Method):
    """The k nearest support images by cosine, weighted by exp(cosine / temperature). Nothing to learn."""

    def __init__(self, channels: int, dimensions: int, *, k: int = 10, temperature: float = 0.07) -> None:
        super().__init__(channels, dimensions)
        if k < 1 or temperature <= 0:
            raise InputError(f"k = {k} and temperature = {temperature}; write at least one neighbour and more than 0")
        self.k, self.temperature = k, temperature

    def adapt(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        examples, shows = pool(support.maps.float()), support.targets.float()
        k = min(self.k, len(examples))

        def classify(maps: Maps) -> Logits:
            alike, nearest = cosine(pool(maps.float()), examples).topk(k, dim=1)
            weights = (alike / self.temperature).softmax(dim=1)
            votes = (weights[:, :, None] * shows[nearest]).sum(dim=1)
            return votes.clamp(EPSILON, 1 - EPSILON).logit()

        return classify
