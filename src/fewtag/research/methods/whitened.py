"""A method in the whitened space of the base pictures: a rival gets the space that the closed form works in."""

import numpy as np
import torch
from numpy.typing import NDArray

from fewtag.core.posterior import Fitted, Pictures, Places, Space, Strengths, Vectors, fit_space
from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Method, Precoded, Support, places
from fewtag.research.methods.logistic_regression import LogisticRegression, fit_logistic
from fewtag.research.methods.word_map import to_array, to_tensor
from fewtag.research.types import Encoded, Maps, Words


class Whitened(Precoded):
    """Projects maps place by place, then leaves everything to the method, which is made for `size` channels."""

    base_stage = "features"
    differentiable = False

    space_: Space
    strengths = Strengths()

    def __init__(self, method: Method, channels: int, *, shrinkage: float) -> None:
        super().__init__(channels, method.dimensions)
        self.method, self.shrinkage = method, shrinkage
        self.serves_words_alone, self.uses_images = method.serves_words_alone, method.uses_images
        self.uses_names = method.uses_names
        self.stacks_episodes = isinstance(method, Precoded) and method.stacks_episodes

    def prepare(self, base: Base) -> None:
        """Solves for the space; the method's own base stage then sees the base pictures in it."""
        features = to_array(base.features.float())
        self.space_ = fit_space(features, self.method.channels, self.shrinkage)
        projected = to_tensor(self.space_.project(features), base.features)
        self.method.prepare(base._replace(global_features=projected))

    def local(self, maps: Maps) -> Places:
        """The places of the maps in the whitened space."""
        return self.space_.project(to_array(places(maps.float())))

    def guides(self, words: Words) -> Vectors:
        """None: a rival in this space learns from answers alone."""
        return np.zeros((len(words), self.space_.size), np.float32)

    def encode(self, maps: Maps) -> Encoded:
        """Maps of the same grid in the whitened space, as the method encodes them."""
        local = to_tensor(self.local(maps), maps)
        projected = local.transpose(1, 2).reshape(len(maps), -1, *maps.shape[2:])
        return self.method.encode(projected) if isinstance(self.method, Precoded) else projected

    def adapt_encoded(self, support: Support) -> Classifier:
        if isinstance(self.method, Precoded):
            return self.method.adapt_encoded(support)
        return self.method.adapt(support)

    def fit_answers(self, pictures: Pictures, shown: NDArray[np.bool_], guide: NDArray[np.float32]) -> Fitted:
        """One label's logistic regression on whole pictures of unit length; its name plays no part."""
        if not isinstance(self.method, LogisticRegression) or not self.method.unit_length:
            raise InputError(
                "of the rivals only logistic-regression with unit_length = true learns from single answers"
            )
        whole, targets = torch.from_numpy(pictures.whole), torch.from_numpy(shown)[:, None]
        head = fit_logistic(whole, targets, penalty=self.method.penalty, balanced=self.method.balanced)
        nothing = np.zeros_like(guide)
        return Fitted(nothing, to_array(head.weight)[0], nothing, float(head.bias[0]))
