"""A cache of the support beside a word prior, after Tip-Adapter (Zhang et al., 2022), for several labels an image.

The affinity exp(−β(1 − cosine)) of a picture to each support image says how much of that image's labels it takes over.
Where the original has CLIP's text encoder, a map from word vectors to features, solved on the base labels, stands here.
"""

import torch

from fewtag.research.methods.base import Base, Classifier, Solved, Support, cosine, pool
from fewtag.research.methods.word_map import WordMap
from fewtag.research.types import Logits, Maps

SURE = 1e-6  # a share of nothing, or everything, that still has a finite logit


class TipAdapter(Solved):
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
        super().__init__(channels, dimensions)
        self.sharpness, self.word_weight = sharpness, word_weight
        self.ridge, self.shrinkage = ridge, shrinkage
        self.word_map = WordMap(channels, dimensions)

    def fit(self, base: Base) -> "TipAdapter":
        """Solves for the map from words to features."""
        self.word_map.fit(base, ridge=self.ridge, shrinkage=self.shrinkage)
        return self

    def adapt(self, support: Support) -> Classifier:
        words, shows = self.word_map, support.targets.float()
        examples = words.centre(pool(support.maps.float()))

        def classify(maps: Maps) -> Logits:
            features = words.centre(pool(maps.float()))
            # shares of one, where the original leaves sums to a softmax over labels, which several labels do not allow;
            # without either, a picture that is a little like everything would come before all others
            affinity = (self.sharpness * cosine(features, examples)).softmax(dim=1)
            with torch.autocast(shows.device.type, enabled=False):
                seen = (affinity @ shows).clamp(SURE, 1 - SURE).logit()
            said = self.word_weight * words.score(features, support.words)
            return torch.where(shows.any(dim=0), seen, 0.0) + said

        return classify
