"""The word alone: no support image is looked at, a label is what its word suggests.

A measure of how much of a result comes from the words: whatever learns from pictures should beat it.
"""

from fewtag.research.methods.base import Base, Classifier, Solved, Support, pool
from fewtag.research.methods.word_map import WordMap


class WordOnly(Solved):
    """Cosine with what ridge regression on the base labels expects for the word."""

    serves_words_alone = True
    uses_images = False

    def __init__(
        self, channels: int, dimensions: int, *, ridge: float = 0.3, shrinkage: float = 1.0, scale: float = 20.0
    ) -> None:
        super().__init__(channels, dimensions)
        self.ridge, self.shrinkage, self.scale = ridge, shrinkage, scale
        self.word_map = WordMap(channels, dimensions)

    def fit(self, base: Base) -> "WordOnly":
        """Solves for the map from words to features."""
        self.word_map.fit(base, ridge=self.ridge, shrinkage=self.shrinkage)
        return self

    def adapt(self, support: Support) -> Classifier:
        words = self.word_map
        return lambda maps: self.scale * words.score(words.centre(pool(maps.float())), support.words)
