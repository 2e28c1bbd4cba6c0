"""Logistic regression, one label against the rest, on frozen global features: what many users would reach for first.

The optimum is scikit-learn's, `LogisticRegression(C=1 / penalty, class_weight="balanced")` for each label, here found
for all labels at once by Newton's method within the span of the support images, so that the features' width costs
nothing.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.base import Classifier, Method, Support, pool, refuse_labels_without_image
from fewtag.research.methods.heads import Head
from fewtag.research.types import Targets

STEPS = 100  # a bound against endless loops; a dozen steps are usual
TOLERANCE = 1e-12

Points = Float[Tensor, "*several labels size"]


class LogisticRegression(Method):
    """A linear boundary for each label. Nothing to learn but, at test time, from the support."""

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        penalty: float = 1e-4,
        balanced: bool = True,
        unit_length: bool = True,
    ) -> None:
        super().__init__(channels, dimensions)
        self.penalty, self.balanced, self.unit_length = penalty, balanced, unit_length

    def features(self, maps: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images channels"]:
        """Global features as the regression sees them."""
        pooled = pool(maps.float())
        return F.normalize(pooled, dim=-1) if self.unit_length else pooled

    def adapt(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        features = self.features(support.maps)
        head = fit_logistic(features, support.targets, penalty=self.penalty, balanced=self.balanced)
        return lambda maps: head(self.features(maps))


@torch.no_grad()
def fit_logistic(features: Float[Tensor, "images size"], targets: Targets, *, penalty: float, balanced: bool) -> Head:
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
        step = torch.linalg.solve(hessian, gradient)
        lower = objective(point - lengths[:, None, None] * step) < objective(point)
        longest = lengths[lower.to(inputs.dtype).argmax(dim=0)]  # argmax names the first
        point = point - torch.where(lower.any(dim=0), longest, 0.0)[:, None] * step
        if (step * gradient).sum(dim=1).max() < TOLERANCE:  # twice what there was still to gain
            break
    return point
