"""Votes of the support images most like a picture: k nearest neighbours, and Tip-Adapter's cache model.

The votes of a picture's neighbours sum to one, so a label's share of them is already a probability.
"""

import torch

from fewtag.errors import InputError
from fewtag.research.methods.base import Classifier, Method, Support, options
from fewtag.research.methods.closed_form import WordMapped, to_tensor
from fewtag.research.types import Logits, Maps, cosine, full_precision, pool

EPSILON = 1e-6  # keeps the logit finite if no neighbour, or every one, shows a label


@options
class NearestNeighbours(Method):
    """The k nearest support images by cosine, weighted by exp(cosine / temperature). Nothing is learnt."""

    k: int = 10
    temperature: float = 0.07

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1 or self.temperature <= 0:
            found = f"k = {self.k} and temperature = {self.temperature}"
            raise InputError(f"{found}; write at least one neighbour and more than 0")

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        examples, shows = pool(support.maps.float()), support.targets.float()
        k = min(self.k, len(examples))

        def classify(maps: Maps) -> Logits:
            alike, nearest = cosine(pool(maps.float()), examples).topk(k, dim=1)
            weights = (alike / self.temperature).softmax(dim=1)
            votes = (weights[:, :, None] * shows[nearest]).sum(dim=1)
            return votes.clamp(EPSILON, 1 - EPSILON).logit()

        return classify


@options
class TipAdapter(WordMapped):
    """A cache of the support plus a word prior, after Tip-Adapter (Zhang et al., 2022), for multi-label images.

    In place of CLIP's text encoder there is a map from word vectors to features, solved on the base labels; the
    evidence of images and of words is added as logits. Nothing is trained.
    """

    serves_words_alone = True

    sharpness: float = 16.0
    word_weight: float = 20.0

    def adapt(self, support: Support) -> Classifier:
        shows = support.targets.float()
        mean = to_tensor(self.space_.mean, support.maps)
        examples = pool(support.maps.float()) - mean

        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                features = pool(maps.float())
                # normalised over the support images; the original has a softmax over labels instead, which does not fit
                # several labels. Without either, a picture slightly similar to everything would rank above all others
                affinity = (self.sharpness * cosine(features - mean, examples)).softmax(dim=1)
                by_images = (affinity @ shows).clamp(EPSILON, 1 - EPSILON).logit()
                by_words = self.word_weight * self.word_cosines(features, support.words)
                return torch.where(shows.any(dim=0), by_images, 0.0) + by_words

        return classify
