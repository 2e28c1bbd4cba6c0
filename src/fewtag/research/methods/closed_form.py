"""Word-guided prototypes in closed form: a wrapper around `fewtag.core.posterior`, which the tagger uses as well.

Words are a prior on the prototype, rather than the query of a learnt attention.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import (
    Features,
    Fitted,
    Pictures,
    Places,
    Scores,
    Strengths,
    Vectors,
    attend,
    base_prototypes,
    mix,
    prior,
    score,
)
from fewtag.research.methods.base import Classifier, Precoded, Support, places
from fewtag.research.methods.word_map import WordMapped, to_array, to_tensor
from fewtag.research.types import Encoded, Maps, Words


class ClosedForm(WordMapped, Precoded):
    """`prepare` solves, `adapt` builds prototypes. The strengths default to what the validation labels chose.

    `parts` are the channels of each network where several are joined.
    """

    serves_words_alone = True

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        space: int = 512,
        shrinkage: float = 5.0,
        separation: float = 200.0,
        ridge: float = 3.0,
        word_weight: float = 1.0,
        word_decay: float = 0.75,
        support_focus: float = 8.0,
        query_focus: float = 48.0,
        query_local: float = 0.6,
        scale: float = 20.0,
        parts: list[int] | None = None,
    ) -> None:
        super().__init__(channels, dimensions, ridge=ridge, shrinkage=shrinkage, space=space, parts=parts)
        self.strengths = Strengths(
            shrinkage=shrinkage,
            separation=separation,
            ridge=ridge,
            word_weight=word_weight,
            word_decay=word_decay,
            support_focus=support_focus,
            query_focus=query_focus,
            query_local=query_local,
        )
        self.scale = scale

    def base_prototypes(self, projected: Features, targets: NDArray[np.bool_]) -> Vectors:
        """By least squares, not by means: labels that occur together are told apart."""
        return base_prototypes(projected, targets, self.strengths.separation)

    def local(self, maps: Maps) -> Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def encode(self, maps: Maps) -> Encoded:
        """images × places × space"""
        return to_tensor(self.local(maps), maps)

    def adapt_encoded(self, support: Support) -> Classifier:
        scorer = self.scorer(to_array(support.maps), to_array(support.targets), to_array(support.words.float()))
        return lambda encoded: to_tensor(self.scale * scorer(to_array(encoded)), encoded)

    def scorer(self, local: Places, shown: NDArray[np.bool_], words: Vectors) -> Callable[[Places], Scores]:
        """From the places of some images, which show these labels, and the labels' words to the scores of others."""
        prototypes = self.prototypes(local, shown, words)
        return lambda others: score(others, prototypes, self.strengths)

    def prototypes(self, local: Places, shown: NDArray[np.bool_], words: Vectors) -> Vectors:
        """One for each label: the mean of its images' attended features, with its word mixed in."""
        return self.mixed(local, shown, self.word_map_.prototypes(words))

    def guides(self, words: Words) -> Vectors:
        """What the words alone suggest."""
        return self.word_map_.prototypes(to_array(words.float()))

    def mixed(self, local: Places, shown: NDArray[np.bool_], guides: Vectors) -> Vectors:
        """The same, from what the labels' words suggest."""
        visual = np.einsum("il,ils->ls", shown.astype(np.float32), attend(local, guides, self.strengths.support_focus))
        return mix(visual, guides, shown.sum(axis=0), self.strengths)

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> Fitted:
        """One label's classifier from pictures that a person said show it or not; the latter teach it nothing."""
        return prior(self.mixed(pictures.places, shown[:, None], guide[None])[0], self.strengths)
