"""Measures prototypes and the posterior on episodes: whitened space, word map, MAP classifier, average precision.

Everything is a function of tensors and runs on a GPU or a CPU. `tune_network.py` imports it to judge networks;
`study_posterior.py` to judge the posterior's strengths. A label's posterior is a logistic regression whose prior mean
is the prototype's own score,

    logit(x) = kappa (score(x) - offset) + w · features(x) + bias,    w, bias ~ Normal(0, 1 / penalty),

fitted in the span of its examples (a Gaussian process with a linear kernel), so it is convex and needs no more than
Cholesky factors of one row an example.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtag.research.bench.results import mean_and_interval

SPACE = 512
NEWTON_STEPS = 12
STEP_LENGTHS = (1.0, 0.5, 0.25, 0.1)
NUMBERS_AT_ONCE = 2**28
"""Numbers of the largest tensor that a batch of episodes makes."""


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """What the validation labels choose; `unnamed` weighs a support picture as negative of labels it does not name."""

    shrinkage: float = 2.0
    separation: float = 200.0
    ridge: float = 0.5
    class_weight: float = 0.3
    word_weight: float = 3.0
    word_decay: float = 0.5
    support_focus: float = 16.0
    query_focus: float = 48.0
    query_local: float = 0.8
    kappa: float = 6.0
    offset: float = 0.3
    penalty: float = 0.2
    bias: float = 0.3
    unnamed: float = 0.25
    modes: float = 0.0
    sharpness: float = 4.0


@dataclass(frozen=True, eq=False)
class Names:
    """Word vectors of labels and of a classifier's classes; `usable` are the classes that may teach the word map."""

    labels: tuple[str, ...]
    words: Tensor
    class_words: Tensor
    usable: Tensor

    def of(self, labels: Sequence[str]) -> Tensor:
        """The labels' vectors, a row each."""
        return self.words[[self.labels.index(label) for label in labels]]


@dataclass(frozen=True, eq=False)
class Base:
    """The base pictures' global features, their targets, and a classifier's soft labels of them."""

    labels: tuple[str, ...]
    features: Tensor
    targets: Tensor
    soft: Tensor


@dataclass(frozen=True, eq=False)
class Fit:
    """A whitened space and the map from words to prototypes in it."""

    mean: Tensor
    basis: Tensor
    word_mean: Tensor
    word_map: Tensor

    def project(self, places: Tensor) -> Tensor:
        """Places of feature maps in the space; in chunks, as the maps may be in half precision."""
        chunks = [(chunk.float() - self.mean) @ self.basis for chunk in places.split(1024)]
        return torch.cat(chunks)

    def word_prototypes(self, words: Tensor) -> Tensor:
        """What the words alone suggest; unit rows."""
        return unit(unit(words - self.word_mean) @ self.word_map)


@dataclass(frozen=True, eq=False)
class Pool:
    """The pictures of one phase in the space, and the prototypes of its labels' words."""

    labels: tuple[str, ...]
    places: Tensor
    targets: Tensor
    words: Tensor


@dataclass(frozen=True, eq=False)
class Draws:
    """Row numbers of the episodes' support and query pictures, label by label; an episode a row."""

    support: Tensor
    query: Tensor
    shots: int


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits and truth of the queries of each episode."""

    logits: Tensor
    targets: Tensor

    def precision(self) -> dict[str, Tensor]:
        """Macro- and micro-AP of each episode, in percent."""
        macro = average_precision(self.logits.mT, self.targets.mT).mean(dim=1)
        micro = average_precision(self.logits.flatten(1), self.targets.flatten(1))
        return {"macro": 100 * macro, "micro": 100 * micro}

    def log_loss(self) -> float:
        """Mean binary log-loss over pictures and labels, in nats."""
        return F.binary_cross_entropy_with_logits(self.logits, self.targets.float()).item()


def unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def fit(base: Base, names: Names, strengths: Strengths) -> Fit:
    """Whitens the base pictures and solves for the word map on base labels and usable class names."""
    features = base.features.double()
    mean = features.mean(dim=0)
    variances, directions = torch.linalg.eigh(torch.cov(features.T, correction=0))
    variances, directions = variances[-SPACE:], directions[:, -SPACE:]
    basis = directions / (variances + strengths.shrinkage * variances.mean()).sqrt()
    whitened, targets = (features - mean) @ basis, base.targets.double()

    together = targets.T @ targets
    together.diagonal().add_(strengths.separation)
    label_prototypes = unit(torch.linalg.solve(together, targets.T @ whitened))
    # a class's prototype: the base pictures, weighted by how much a classifier takes them for it
    class_prototypes = unit(base.soft.double()[:, names.usable].T @ whitened)

    words = names.of(base.labels).double()
    word_mean = words.mean(dim=0)
    inputs = unit(torch.cat([words, names.class_words[names.usable].double()]) - word_mean)
    weights = torch.ones(len(inputs), 1, dtype=inputs.dtype, device=inputs.device)
    weights[len(words) :] = strengths.class_weight
    square = inputs.T @ (weights * inputs)
    square.diagonal().add_(strengths.ridge)
    outputs = torch.cat([label_prototypes, class_prototypes])
    word_map = torch.linalg.solve(square, inputs.T @ (weights * outputs))
    return Fit(mean.float(), basis.float(), word_mean.float(), word_map.float())


def focus(places: Tensor, guides: Tensor, sharpness: float) -> Tensor:
    """Each picture pooled for each label over the places that look like its guide; unit vectors.

    `places` are episodes × pictures × places × space, `guides` episodes × labels × space.
    """
    alike = torch.einsum("eips,els->eilp", unit(places), guides)
    return unit((sharpness * alike).softmax(dim=-1) @ places)


def prototypes(places: Tensor, weights: Tensor, words: Tensor, strengths: Strengths) -> Tensor:
    """The mean of a label's attended examples with its word mixed in, the less the more examples there are."""
    guides = words.expand(len(places), *words.shape[-2:])
    pooled = focus(places, guides, strengths.support_focus)
    counts = weights.sum(dim=1)
    word_weight = strengths.word_weight * counts.clamp_min(1) ** -strengths.word_decay
    visual = unit(torch.einsum("eil,eils->els", weights, pooled))
    mixed = unit(visual + word_weight[..., None] * guides)
    return torch.where((counts > 0)[..., None], mixed, guides)


def features(places: Tensor, prototypes_: Tensor, strengths: Strengths) -> tuple[Tensor, Tensor, Tensor]:
    """Of pictures for labels: whole (unit), attended (unit), and the prior's logit."""
    whole = unit(places.mean(dim=2))
    attended = focus(places, prototypes_, strengths.query_focus)
    local = strengths.query_local
    score = (1 - local) * torch.einsum("eis,els->eil", whole, prototypes_)
    score = score + local * torch.einsum("eils,els->eil", attended, prototypes_)
    return whole, attended, strengths.kappa * (score - strengths.offset)


def kernel(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], strengths: Strengths) -> Tensor:
    """Inner products of two sets of pictures for each label: episodes × labels × first × second.

    `modes` adds a Gaussian kernel on the sphere, by which one label may look like several things.
    """
    whole = torch.einsum("eis,ejs->eij", first[0], second[0])[:, None]
    attended = torch.einsum("eils,ejls->elij", first[1], second[1])
    cosine = (1 - strengths.query_local) * whole + strengths.query_local * attended
    found = cosine + strengths.bias
    if strengths.modes:
        found = found + strengths.modes * torch.exp(strengths.sharpness * (cosine - 1))
    return found


def solve(gram: Tensor, prior: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Dual weights of the MAP logistic regression: damped Newton steps, problems in batches.

    `gram` is problems × examples × examples, the others problems × examples. A query's logit is its prior's plus
    its kernel row times these weights.
    """
    gram = gram / penalty
    dual = torch.zeros_like(prior)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)

    def logits(dual: Tensor) -> Tensor:
        return prior + (gram @ dual[..., None])[..., 0]

    def loss(dual: Tensor) -> Tensor:
        found = logits(dual)
        misfit = F.binary_cross_entropy_with_logits(found, targets, weights, reduction="none").sum(dim=-1)
        return misfit + 0.5 * (dual * (found - prior)).sum(dim=-1)

    for _ in range(NEWTON_STEPS):
        found = logits(dual)
        shown = found.sigmoid()
        curvature = weights * shown * (1 - shown)
        root = curvature.sqrt()
        wanted = curvature * (found - prior) + weights * (targets - shown)
        factor = torch.linalg.cholesky_ex(identity + root[..., None] * gram * root[..., None, :])[0]
        inner = root * (gram @ wanted[..., None])[..., 0]
        step = wanted - root * torch.cholesky_solve(inner[..., None], factor)[..., 0] - dual
        # backtracking: the longest step that does not lose, up to rounding
        losses = torch.stack([loss(dual + length * step) for length in STEP_LENGTHS])
        fine = losses <= loss(dual) * (1 + 1e-6)
        fine[-1] = True
        lengths = torch.tensor(STEP_LENGTHS, device=gram.device, dtype=gram.dtype)[fine.int().argmax(dim=0)]
        dual = dual + lengths[..., None] * step
        if step.abs().max() < 1e-4:
            break
    return dual / penalty


def shown_to(targets: Tensor, shots: int, *, single: bool) -> Tensor:
    """What the examples are said to show: all their labels, or only the one that each was drawn for."""
    if not single:
        return targets.float()
    drawn_for = torch.arange(targets.shape[1], device=targets.device) // shots
    return F.one_hot(drawn_for, targets.shape[2]).float().expand(targets.shape)


def measure(pool: Pool, draws: Draws, strengths: Strengths, *, posterior: bool = True, single: bool = False) -> Scores:
    """Scores every query of every episode; `draws.shots` 0 means that labels are known by their names alone."""
    found = []
    largest = max(draws.support.shape[1], 64) * len(pool.labels) * pool.places.shape[-1]
    largest = max(largest, len(pool.labels) * draws.support.shape[1] ** 2)
    at_once = max(1, NUMBERS_AT_ONCE // largest)
    for support_rows, query_rows in zip(draws.support.split(at_once), draws.query.split(at_once), strict=True):
        query = pool.places[query_rows]
        if draws.shots == 0:
            guides = pool.words.expand(len(query), *pool.words.shape)
            found.append(features(query, guides, strengths)[2])
            continue
        support = pool.places[support_rows]
        shown = shown_to(pool.targets[support_rows], draws.shots, single=single)
        label_prototypes = prototypes(support, shown, pool.words, strengths)
        whole, attended, logits = features(query, label_prototypes, strengths)
        if posterior:
            weights = torch.where(shown > 0, 1.0, strengths.unnamed if single else 1.0)
            logits = logits + Posterior.of(support, label_prototypes, shown, weights, strengths)((whole, attended))
        found.append(logits)
    return Scores(torch.cat(found), pool.targets[draws.query])


Parts = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the examples add to the prior's logits: their features and their dual weights."""

    parts: Parts
    dual: Tensor
    strengths: Strengths

    @classmethod
    def of(
        cls, support: Tensor, label_prototypes: Tensor, shown: Tensor, weights: Tensor, strengths: Strengths
    ) -> "Posterior":
        """Fitted to the examples; `shown` and `weights` are episodes × pictures × labels."""
        whole, attended, prior = features(support, label_prototypes, strengths)
        gram = kernel((whole, attended), (whole, attended), strengths)
        targets, weights = shown.mT.contiguous(), weights.mT.contiguous()
        return cls((whole, attended), solve(gram, prior.mT, targets, weights, strengths.penalty), strengths)

    def __call__(self, query: Parts) -> Tensor:
        """Episodes × pictures × labels."""
        return (kernel(query, self.parts, self.strengths) @ self.dual[..., None])[..., 0].mT


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Along the last dimension, not interpolated; no two scores are taken to be equal."""
    right = targets.gather(-1, scores.argsort(dim=-1, descending=True)).double()
    ranks = torch.arange(1, right.shape[-1] + 1, device=right.device)
    return (right * right.cumsum(dim=-1) / ranks).sum(dim=-1) / right.sum(dim=-1).clamp_min(1)


def summary(values: Tensor) -> list[float]:
    """Mean over episodes and half the width of its 95 % interval."""
    return [round(value, 2) for value in mean_and_interval(values.tolist())]


def row(scores: Scores) -> dict[str, list[float] | float]:
    """The figures of one measurement: mean and interval of both precisions, and the log-loss."""
    return {
        **{name: summary(values) for name, values in scores.precision().items()},
        "log_loss": round(scores.log_loss(), 4),
    }
