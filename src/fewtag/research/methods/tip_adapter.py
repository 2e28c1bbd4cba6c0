"""A cache of the support beside a word prior, after Tip-Adapter (Zhang et al., 2022), for several labels an image.

The affinity exp(−β(1 − cosine)) of a picture to each support image says how much of that image's labels it takes over.
Where the original has CLIP's text encoder, a map from word vectors to features, solved on the base labels, stands here.
"""

import torch

from fewtag.research.methods.base import Classifier, Support, cosine, full_precision, pool
from fewtag.research.methods.word_map import WordMapped, to_tensor
from fewtag.research.types import Logits, Maps

EPSILON = 1e-6  # a share of nothing, or everything, that still has a finite logit


class TipAdapter(WordMapped):
    """Adds the evidence of images and of words, as logits. Trains nothing: one solve on the base labels."""

    serves_words_alone = True

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        sharpness: float = 16.0,
        word_weight: float = 20.0,
        ridge: float = 0.3,
        shrinkage: float = 1.0,
    ) -> None:
        super().__init__(channels, dimensions, ridge=ridge, shrinkage=shrinkage)
        self.sharpness, self.word_weight = sharpness, word_weight

    def adapt(self, support: Support) -> Classifier:
        shows = support.targets.float()
        mean = to_tensor(self.space_.mean, support.maps)
        examples = pool(support.maps.float()) - mean

        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                features = pool(maps.float())
                # shares of one, where the original leaves sums to a softmax over labels, which several labels do not
                # allow; without either, a picture that is a little like everything would come before all others
                affinity = (self.sharpness * cosine(features - mean, examples)).softmax(dim=1)
                by_images = (affinity @ shows).clamp(EPSILON, 1 - EPSILON).logit()
                by_words = self.word_weight * self.word_cosines(features, support.words)
                return torch.where(shows.any(dim=0), by_images, 0.0) + by_words

        return classify
