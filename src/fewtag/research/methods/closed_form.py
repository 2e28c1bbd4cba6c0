"""Word-guided prototypes in closed form and the posterior: wrappers around `fewtag.core.posterior`, the tagger's own.

Words are a prior on the prototype, rather than the query of a learnt attention.
"""

from collections.abc import Callable
from dataclasses import field, fields

import numpy as np
from numpy.typing import NDArray

from fewtag.core import posterior as core
from fewtag.core.posterior import NameEvidence, Pictures, Places, Vectors
from fewtag.research.methods.base import Classifier, Precoded, Support, options
from fewtag.research.methods.word_map import WordMapped, to_array, to_tensor
from fewtag.research.types import Encoded, Maps, Words, places

ENOUGH = 8
"""Rejected pictures by which a prototype moves as far as it ever will; with fewer, less far in proportion."""


@options
class ClosedForm(WordMapped, Precoded):
    """`prepare` solves, `adapt` builds prototypes. The strengths default to what the validation labels chose.

    `parts` are the channels of each network where several are joined.
    """

    serves_words_alone = True

    space: int = 512
    shrinkage: float = 5.0
    separation: float = 200.0
    ridge: float = 3.0
    word_weight: float = 1.0
    word_decay: float = 0.75
    support_focus: float = 8.0
    query_focus: float = 48.0
    query_local: float = 0.6
    scale: float = 20.0
    parts: list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = {each.name: getattr(self, each.name) for each in fields(core.Strengths) if hasattr(self, each.name)}
        self.strengths = core.Strengths(**chosen)

    def base_prototypes(self, projected: core.Features, targets: NDArray[np.bool_]) -> Vectors:
        """By least squares, not by means: labels that occur together are told apart."""
        return core.base_prototypes(projected, targets, self.strengths.separation)

    def local(self, maps: Maps) -> Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def encode(self, maps: Maps) -> Encoded:
        """images × places × space"""
        return to_tensor(self.local(maps), maps)

    def adapt_encoded(self, support: Support) -> Classifier:
        scorer = self.scorer(to_array(support.maps), to_array(support.targets), to_array(support.words.float()))
        return lambda encoded: to_tensor(self.scale * scorer(to_array(encoded)), encoded)

    def scorer(self, local: Places, shown: NDArray[np.bool_], words: Vectors) -> Callable[[Places], core.Scores]:
        """From the places of some images, which show these labels, and the labels' words to the scores of others."""
        prototypes = self.mixed(local, shown, self.word_map_.prototypes(words))
        return lambda others: core.score(others, prototypes, self.strengths)

    def guides(self, words: Words) -> Vectors:
        """What the words alone suggest."""
        return self.word_map_.prototypes(to_array(words.float()))

    def mixed(self, local: Places, shown: NDArray[np.bool_], guides: Vectors) -> Vectors:
        """A label's prototype: the mean of its images' attended features, with what its word suggests mixed in."""
        attended = core.attend(local, guides, self.strengths.support_focus)
        visual = np.einsum("il,ils->ls", shown.astype(np.float32), attended)
        return core.mix(visual, guides, shown.sum(axis=0), self.strengths)

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> core.Fitted:
        """One label's classifier from pictures that a person said show it or not; the latter teach it nothing."""
        return core.prior(self.mixed(pictures.places, shown[:, None], guide[None])[0], self.strengths)


@options
class Posterior(ClosedForm):
    """MAP logistic regression whose prior is the word-and-picture prototype; the strengths are those of the core.

    With `complete` supports what a picture does not name is absent; otherwise it weighs as a 'no' by `unnamed` only.
    The options that begin with `name` are those of `NameEvidence`; labels of a data set are believed as a bank believes
    words for things.
    """

    scale: float = field(init=False, default=1.0)
    shrinkage: float = 2.0
    ridge: float = 0.5
    word_weight: float = 3.0
    word_decay: float = 0.5
    support_focus: float = 16.0
    query_local: float = 0.8
    kappa: float = 6.0
    offset: float = 0.3
    penalty: float = 0.2
    bias: float = 0.3
    unnamed: float = 0.25
    complete: bool = True
    name_right: float = NameEvidence.right
    name_wrong: float = NameEvidence.wrong
    name_between: float = NameEvidence.between
    name_within: float = NameEvidence.within
    name_prior: float = 0.93

    def __post_init__(self) -> None:
        super().__post_init__()
        self.evidence = NameEvidence(
            self.name_right, self.name_wrong, self.name_between, self.name_within, self.name_prior
        )

    def adapt_encoded(self, support: Support) -> Classifier:
        pictures, shown = Pictures.of(to_array(support.maps)), to_array(support.targets)
        weights = np.where(shown, 1.0, 1.0 if self.complete else self.strengths.unnamed).astype(np.float32)
        labels = zip(shown.T, weights.T, self.guides(support.words), strict=True)
        classifiers = core.Classifiers.of(
            [core.fit_label(pictures, *label, self.strengths, self.evidence) for label in labels]
        )
        return lambda encoded: to_tensor(classifiers.logits(to_array(encoded), self.strengths), encoded)

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> core.Fitted:
        """One label's classifier from pictures that a person said show it or not, each with full weight."""
        ones = np.ones(len(shown), np.float32)
        return core.fit_label(pictures, shown, ones, guide, self.strengths, self.evidence, asked=ones > 0)


@options
class Rocchio(ClosedForm):
    """Relevance feedback after Rocchio (1971): prototypes move away from the pictures that do not show their label.

    They are the closed form's, moved by `rejection` from the attended mean of those.
    """

    rejection: float = 0.4

    def mixed(self, local: Places, shown: NDArray[np.bool_], guides: Vectors) -> Vectors:
        prototypes = super().mixed(local, shown, guides)
        rejected = np.float32(~shown)
        attended = core.attend(local, prototypes, self.strengths.query_focus)
        away = core.unit(np.einsum("il,ils->ls", rejected, attended))
        share = self.rejection * np.minimum(rejected.sum(axis=0) / ENOUGH, 1)
        return core.unit(prototypes - share[:, None] * away).astype(np.float32)
