"""Relevance feedback after Rocchio (1971): a prototype moves away from the pictures that do not show its label."""

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Places, Vectors, attend, unit
from fewtag.research.methods.closed_form import ClosedForm

ENOUGH = 8
"""Pictures of which the prototype moves as far as it ever will; with fewer, less far in proportion."""


class Rocchio(ClosedForm):
    """The closed form, its prototypes moved from the attended mean of what does not show the label by `rejection`."""

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
        rejection: float = 0.4,
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
            scale=scale,
            parts=parts,
        )
        self.rejection = rejection

    def mixed(self, local: Places, shown: NDArray[np.bool_], guides: Vectors) -> Vectors:
        prototypes = super().mixed(local, shown, guides)
        rejected = np.float32(~shown)
        attended = attend(local, prototypes, self.strengths.query_focus)
        away = unit(np.einsum("il,ils->ls", rejected, attended))
        share = self.rejection * np.minimum(rejected.sum(axis=0) / ENOUGH, 1)
        return unit(prototypes - share[:, None] * away).astype(np.float32)
