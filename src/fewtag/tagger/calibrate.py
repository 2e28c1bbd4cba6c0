"""Probabilities that mean what they say, for labels never seen in fitting, from one example upward."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores = Float[Tensor, "images labels"]


@dataclass(frozen=True)
class Calibration:
    """Logistic curves from score to probability, one for each of some numbers of examples, interpolated between."""

    examples: tuple[int, ...] = (0,)
    """Numbers of examples a label had when each curve was fitted, rising."""
    slopes: tuple[float, ...] = (20.0,)
    offsets: tuple[float, ...] = (0.0,)
    thresholds: tuple[float, ...] = (0.5,)
    """The probability from which a label is given, for the best F1."""

    def probabilities(self, scores: Scores, counts: Int[Tensor, "labels"]) -> Scores:
        """Of labels that were learnt from so many examples each."""
        slopes, offsets = self.curves(counts)
        return torch.sigmoid(scores * slopes + offsets)

    def curves(self, counts: Int[Tensor, "labels"]) -> tuple[Float[Tensor, "labels"], Float[Tensor, "labels"]]:
        """Slope and offset of each label's curve."""
        return self._at(self.slopes, counts), self._at(self.offsets, counts)

    def threshold(self, counts: Int[Tensor, "labels"]) -> Float[Tensor, "labels"]:
        return self._at(self.thresholds, counts)

    def _at(self, values: Sequence[float], counts: Int[Tensor, "labels"]) -> Float[Tensor, "labels"]:
        """In a line over log(1 + number of examples): the fifth example changes less than the first."""
        known = [math.log1p(number) for number in self.examples]
        found = np.interp(np.log1p(counts.cpu().numpy()), known, values)
        return torch.from_numpy(found).to(counts.device, torch.float32)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def fit_curve(scores: Float[Tensor, "pairs"], shown: Bool[Tensor, "pairs"], steps: int = 50) -> tuple[float, float]:
    """Slope and offset of the likeliest logistic curve, by Newton's method on two numbers."""
    inputs = torch.stack([scores.double(), torch.ones_like(scores, dtype=torch.float64)], dim=1)
    targets = shown.double()
    # Platt's targets keep the curve finite where the two kinds do not overlap
    positives, negatives = targets.sum(), (1 - targets).sum()
    targets = torch.where(shown, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    curve = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for _ in range(steps):
        probabilities = torch.sigmoid(inputs @ curve)
        gradient = inputs.T @ (probabilities - targets)
        weights = (probabilities * (1 - probabilities)).clamp_min(1e-9)
        hessian = (inputs * weights[:, None]).T @ inputs + 1e-9 * torch.eye(2, dtype=torch.float64)
        step = torch.linalg.solve(hessian, gradient)
        curve = curve - step / max(1.0, float(step.abs().max()) / 10)  # no leaps from a flat start
        if step.abs().max() < 1e-10:
            break
    return float(curve[0]), float(curve[1])


def best_threshold(probabilities: Float[Tensor, "pairs"], shown: Bool[Tensor, "pairs"]) -> float:
    """The threshold with the best F1 over all pairs of image and label: halfway between two neighbours."""
    order = probabilities.argsort(descending=True)
    ranked, right = probabilities[order].double(), shown[order].double().cumsum(0)
    f1 = 2 * right / (torch.arange(1, len(order) + 1, dtype=torch.float64) + shown.sum())
    best = int(f1.argmax())
    below = ranked[best + 1] if best + 1 < len(ranked) else torch.zeros((), dtype=torch.float64)
    return float((ranked[best] + below) / 2)


def calibration_error(probabilities: Float[Tensor, "pairs"], shown: Bool[Tensor, "pairs"], bins: int = 15) -> float:
    """Expected calibration error: how far, on average, what is said is from what is, in bins of equal width."""
    bin_of = (probabilities.double() * bins).long().clamp(0, bins - 1)
    error = 0.0
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            gap = probabilities[inside].double().mean() - shown[inside].double().mean()
            error += float(gap.abs()) * float(inside.double().mean())
    return error
