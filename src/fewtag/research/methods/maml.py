"""Multi-label MAML: learns initial weights from which a few gradient steps on the support make a good classifier.

Finn et al., "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017. The learner is a hidden
layer on global features and a linear score for each label; since the number of labels varies, all labels start from one
learnt vector and bias. Training minimises the query images' loss after the steps; docs/methods.md gives the reasons.
"""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import grad

from fewtag.errors import InputError
from fewtag.research.methods.base import Classifier, Episode, Method, Support
from fewtag.research.types import Logits, Maps, Targets, bce, full_precision, unit_features

Features = Float[Tensor, "images channels"]


class FastWeights(NamedTuple):
    """Weights that the inner loop changes: a hidden layer shared by all labels, and a linear score for each label."""

    hidden_weight: Float[Tensor, "hidden channels"]
    hidden_bias: Float[Tensor, "hidden"]
    weight: Float[Tensor, "labels hidden"]
    bias: Float[Tensor, "labels"]

    def __call__(self, features: Features) -> Logits:
        hidden = F.relu(F.linear(features, self.hidden_weight, self.hidden_bias))
        return F.linear(hidden, self.weight, self.bias)


Rates = Float[Tensor, "4"]
"""The step sizes of the four parts."""


class MAML(Method):
    """Adapts copies of its initial weights by gradient descent on the support, the same way in training and at test."""

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        hidden: int = 512,
        scale: float = 10.0,
        steps: int = 5,
        test_steps: int = 40,
        inner_rate: float = 0.3,
        learn_rates: bool = True,
        order: Literal[1, 2] = 2,
    ) -> None:
        super().__init__(channels, dimensions)
        if min(steps, test_steps) < 1 or inner_rate <= 0:
            raise InputError(
                f"steps = {steps}, test_steps = {test_steps}, inner_rate = {inner_rate}: all three must be positive"
            )
        self.scale, self.steps, self.test_steps, self.order = scale, steps, test_steps, order
        self.hidden = nn.Linear(channels, hidden)
        # from zero, the first step sets each label's weight to the difference of the means of its images and of the
        # others
        self.weight = nn.Parameter(torch.zeros(hidden))
        self.bias = nn.Parameter(torch.zeros(()))
        # logarithms, so that a learnt rate stays positive
        self.log_rates = nn.Parameter(torch.full((4,), math.log(inner_rate)), requires_grad=learn_rates)

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        return self._learn(support, self.test_steps)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The query images' loss after the inner steps of training, which are fewer than at test."""
        logits = self._learn(episode.support, self.steps)(episode.maps)
        if self.order == 2:
            return bce(logits, episode.targets)
        # first order ignores the effect of the steps: if the two losses disagreed, the start would be pulled against
        # them forever
        return balanced_bce(logits, episode.targets)

    def _learn(self, support: Support, steps: int) -> Classifier:
        with full_precision(support.maps):
            start = self._start(support.targets.shape[1])
            rates = self.log_rates.exp()
            weights = inner_loop(
                start, self._features(support.maps), support.targets, rates, steps=steps, order=self.order
            )

        def classify(maps: Maps) -> Logits:
            with full_precision(maps):
                return weights(self._features(maps))

        return classify

    def _start(self, labels: int) -> FastWeights:
        return FastWeights(
            self.hidden.weight, self.hidden.bias, self.weight.expand(labels, -1), self.bias.expand(labels)
        )

    def _features(self, maps: Maps) -> Features:
        return self.scale * unit_features(maps)


def inner_loop(
    start: FastWeights, features: Features, targets: Targets, rates: Rates, *, steps: int, order: Literal[1, 2]
) -> FastWeights:
    """Gradient descent on the support; with order 1, the outer gradient treats the inner ones as constants."""

    def wrong(weights: FastWeights) -> Float[Tensor, ""]:
        return balanced_bce(weights(features), targets)

    weights = start
    # undoes the mean over labels, which divides the gradients of per-label weights by the varying number of labels
    sizes = rates[0], rates[1], rates[2] * targets.shape[1], rates[3] * targets.shape[1]
    for _ in range(steps):
        slopes = grad(wrong)(weights)
        if order == 1:
            slopes = FastWeights(*(slope.detach() for slope in slopes))
        weights = FastWeights(*(part - size * slope for part, size, slope in zip(weights, sizes, slopes, strict=True)))
    return weights


def balanced_bce(logits: Logits, targets: Targets) -> Float[Tensor, ""]:
    """BCE in which the images that show a label have the same total weight as the others; averaged over labels."""
    shown = targets.to(logits.dtype)
    wrong = F.binary_cross_entropy_with_logits(logits, shown, reduction="none")
    with_label = (shown * wrong).sum(dim=0) / shown.sum(dim=0).clamp_min(1)
    without = ((1 - shown) * wrong).sum(dim=0) / (1 - shown).sum(dim=0).clamp_min(1)
    return (with_label + without).mean()
