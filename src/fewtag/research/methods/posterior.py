"""The posterior: a wrapper around `fewtag.core.posterior`, which the tagger uses as well.

Each label has a logistic regression whose prior is its prototype of words and pictures: with no example it is the
prototype's own score, and each picture that shows the label, or does not, moves it from there.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Classifiers, Fitted, NameEvidence, Pictures, fit_label
from fewtag.research.methods.base import Classifier, Support
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.research.methods.word_map import to_array, to_tensor


class Posterior(ClosedForm):
    """MAP logistic regression anchored at the word-and-picture prototype; the strengths are those of the core.

    With `complete` supports what a picture does not name is absent; otherwise it weighs as a 'no' by `unnamed` only.
    The options that begin with `name` are those of `NameEvidence`; labels of a data set are believed as a bank believes
    words for things.
    """

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        space: int = 512,
        shrinkage: float = 2.0,
        separation: float = 200.0,
        ridge: float = 0.5,
        word_weight: float = 3.0,
        word_decay: float = 0.5,
        support_focus: float = 16.0,
        query_focus: float = 48.0,
        query_local: float = 0.8,
        kappa: float = 6.0,
        offset: float = 0.3,
        penalty: float = 0.2,
        bias: float = 0.3,
        unnamed: float = 0.25,
        complete: bool = True,
        name_right: float = NameEvidence.right,
        name_wrong: float = NameEvidence.wrong,
        name_between: float = NameEvidence.between,
        name_within: float = NameEvidence.within,
        name_prior: float = 0.9,
        parts: list[int] | None = None,
    ) -> None:
        super().__init__(
            channels,
            dimensions,
            space=space,
            shrinkage=shrinkage,
            separation=separation,
            ridge=ridge,
            word_weight=word_weight,
            word_decay=word_decay,
            support_focus=support_focus,
            query_focus=query_focus,
            query_local=query_local,
            parts=parts,
        )
        self.strengths = replace(
            self.strengths, kappa=kappa, offset=offset, penalty=penalty, bias=bias, unnamed=unnamed
        )
        self.complete = complete
        self.evidence = NameEvidence(name_right, name_wrong, name_between, name_within, name_prior)

    def adapt_encoded(self, support: Support) -> Classifier:
        pictures, shown = Pictures.of(to_array(support.maps)), to_array(support.targets)
        weights = np.where(shown, 1.0, 1.0 if self.complete else self.strengths.unnamed).astype(np.float32)
        labels = zip(shown.T, weights.T, self.guides(support.words), strict=True)
        classifiers = Classifiers.of([fit_label(pictures, *label, self.strengths, self.evidence) for label in labels])
        return lambda encoded: to_tensor(classifiers.logits(to_array(encoded), self.strengths), encoded)

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> Fitted:
        """One label's classifier from pictures that a person said show it or not, each with full weight."""
        return fit_label(pictures, shown, np.ones(len(shown), np.float32), guide, self.strengths, self.evidence)
