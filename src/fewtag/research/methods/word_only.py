"""The word alone: no support image is looked at, a label is what its word suggests.

A measure of how much of a result comes from the words: whatever learns from pictures should beat it.
"""

from fewtag.research.methods.base import Classifier, Support, cosine, full_precision, pool
from fewtag.research.methods.word_map import WordMapped
from fewtag.research.types import Logits, Maps


class WordOnly(WordMapped):
    """Cosine with what ridge regression on the base labels expects for the word."""

    serves_words_alone = True
    uses_images = False

    def __init__(
        self, channels: int, dimensions: int, *, ridge: float = 0.3, shrinkage: float = 1.0, scale: float = 20.0
    ) -> None:
        super().__init__(channels, dimensions, ridge=ridge, shrinkage=shrinkage)
        self.scale = scale

    def adapt(self, support: Support) -> Classifier:
        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                prototypes = self.word_prototypes(support.words.float())
                return self.scale * cosine(self.whiten(pool(maps.float())), prototypes)

        return classify
