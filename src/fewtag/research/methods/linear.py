"""Linear heads on global features: trained by gradient descent at test time, or the optimum of logistic regression."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.base import Base, Classifier, Episode, Method, Support, options
from fewtag.research.types import Logits, Maps, Targets, bce, full_precision, pool, unit_features

STEPS = 100  # a bound against endless loops; a dozen steps are usual
TOLERANCE = 1e-12

Points = Float[Tensor, "*several labels size"]


class Head(NamedTuple):
    """A linear layer: one score for each label."""

    weight: Float[Tensor, "labels size"]
    bias: Float[Tensor, "labels"]

    def __call__(self, features: "Features") -> Logits:
        with full_precision(features):  # half precision would tie many scores
            return features.float() @ self.weight.T + self.bias


Features = Float[Tensor, "images size"]


def fit_head(features: Features, targets: Targets, *, epochs: int, learning_rate: float, weight_decay: float) -> Head:
    """A head trained by AdamW on all images at once, from zero: the order of images and of labels has no say."""
    features, labels = features.detach().float(), targets.shape[1]
    weight = torch.zeros(labels, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(labels, device=features.device, requires_grad=True)
    head = Head(weight, bias)
    descend(lambda: bce(head(features), targets), head, epochs=epochs, rate=learning_rate, weight_decay=weight_decay)
    return Head(weight.detach(), bias.detach())


def descend(
    loss: Callable[[], Tensor], parameters: Sequence[Tensor], *, epochs: int, rate: float, weight_decay: float = 0.0
) -> None:
    """AdamW in these parameters alone, also where gradients are off, and in full precision."""
    fused = parameters[0].device.type in ("cpu", "cuda")
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay, fused=fused)
    with torch.enable_grad(), full_precision(parameters[0]):
        for _ in range(epochs):
            optimizer.zero_grad()
            torch.autograd.backward(loss(), inputs=list(parameters))
            optimizer.step()


@options
class HeadMethod(Method):
    """A fresh linear head for new labels, on global features."""

    unit_length: bool = True

    def features(self, maps: Maps) -> Features:
        return unit_features(maps) if self.unit_length else pool(maps.float())

    def fit(self, features: Features, targets: Targets) -> Head:
        raise NotImplementedError

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        head = self.fit(self.features(support.maps), support.targets)
        return lambda maps: head(self.features(maps))


@options
class LinearClassifier(HeadMethod):
    """A classifier on a backbone: the rows named after their network alone (ResNet-50, …) in the paper's tables.

    First a linear multi-label head learns the base labels, and end to end the backbone with it. Then the backbone stays
    as it is, and new labels get a fresh head, trained on the support for 40 epochs as all the paper's baselines are.
    Words play no part.
    """

    base_stage = "labels"

    epochs: int = 40
    learning_rate: float = 0.2
    weight_decay: float = 0.0

    def prepare(self, base: Base) -> None:
        """Makes the head for the base labels."""
        self.base_labels = base.labels
        self.base_head = nn.Linear(self.channels, len(base.labels))

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The base stage: support and query images are one batch of labelled images."""
        maps, targets = episode.base_batch(self.base_labels)
        return bce(self.base_head(pool(maps.float())), targets)

    def fit(self, features: Features, targets: Targets) -> Head:
        rates = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return fit_head(features, targets, epochs=self.epochs, **rates)


@options
class LogisticRegression(HeadMethod):
    """One label against the rest, on frozen global features: what many users would reach for first.

    The optimum is scikit-learn's, `LogisticRegression(C=1 / penalty, class_weight="balanced")` for each label, found
    for all labels at once by Newton's method in the span of the support images: the features' width costs nothing.
    """

    penalty: float = 1e-4
    balanced: bool = True

    def fit(self, features: Features, targets: Targets) -> Head:
        return fit_logistic(features, targets, penalty=self.penalty, balanced=self.balanced)


@torch.no_grad()
def fit_logistic(features: Features, targets: Targets, *, penalty: float, balanced: bool) -> Head:
    """For each label: least log-loss, summed over the images, + penalty/2 · ‖weight‖², the bias free.

    Balanced, the images that show a label weigh as much in all as those that do not. A label that every image shows has
    no optimum, since its bias could grow for ever; its bias is then penalised like a weight, which leaves a score by
    likeness to the images.
    """
    # the optimum is a mix of the images, so their span is all that has to be searched
    basis = torch.linalg.qr(features.double().T).Q
    inputs = F.pad(features.double() @ basis, (0, 1), value=1.0)
    shown = targets.T.double()
    counts = shown.sum(dim=1, keepdim=True)
    shares = torch.where(targets.T, counts, len(features) - counts) / len(features)
    importance = 0.5 / shares if balanced else torch.ones_like(shares)
    ridge = inputs.new_full((len(shown), inputs.shape[1]), penalty)
    ridge[:, -1] = penalty * targets.all(dim=0)
    optimum = newton(inputs, shown, importance, ridge)
    return Head((optimum[:, :-1] @ basis.T).to(features.dtype), optimum[:, -1].to(features.dtype))


def newton(
    inputs: Float[Tensor, "images size"],
    shown: Float[Tensor, "labels images"],
    importance: Float[Tensor, "labels images"],
    ridge: Float[Tensor, "labels size"],
) -> Points:
    """Newton's method for every label at once, each with the longest of its halved steps that lowers its objective."""

    def objective(points: Points) -> Float[Tensor, "*several labels"]:
        scores = points @ inputs.T
        losses = importance * (F.softplus(scores) - shown * scores)
        return losses.sum(dim=-1) + 0.5 * (ridge * points**2).sum(dim=-1)

    lengths = 0.5 ** torch.arange(20, dtype=inputs.dtype, device=inputs.device)
    point = torch.zeros_like(ridge)
    for _ in range(STEPS):
        probability = (point @ inputs.T).sigmoid()
        gradient = importance * (probability - shown) @ inputs + ridge * point
        spread = importance * probability * (1 - probability)
        hessian = torch.einsum("li,ia,ib->lab", spread, inputs, inputs) + torch.diag_embed(ridge)
        # by Cholesky factors: LU's, of several matrices at once on several threads, fail or hang in torch 2.15 (oneMKL)
        diagonal = hessian.diagonal(dim1=-2, dim2=-1)
        diagonal += 1e-13 * diagonal.amax(dim=-1, keepdim=True)  # where a free bias has next to no curvature left
        step = torch.cholesky_solve(gradient[..., None], torch.linalg.cholesky(hessian))[..., 0]
        lower = objective(point - lengths[:, None, None] * step) < objective(point)
        longest = lengths[lower.to(inputs.dtype).argmax(dim=0)]  # argmax names the first
        point = point - torch.where(lower.any(dim=0), longest, 0.0)[:, None] * step
        if (step * gradient).sum(dim=1).max() < TOLERANCE:  # twice what there was still to gain
            break
    return point
