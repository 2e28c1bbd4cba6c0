"""KGGR (Chen et al., TPAMI 2020): label-specific features, propagated on a graph of the labels.

A word finds its label's places by low-rank bilinear pooling; what it finds is the initial state of the label's node in
a gated graph network, whose edges are the base labels' co-occurrence or the similarity of new labels' words. A label's
classifier takes its node's first and last state together; new labels get fresh classifiers, trained on the support. No
code of it is public: the network follows SSGRL (Chen et al., ICCV 2019), the propagation among classifiers KGTN (Chen
R. et al., AAAI 2020), the same authors' earlier work, and docs/methods.md lists our choices.
"""

from copy import deepcopy
from dataclasses import field
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Episode, Method, Support, options
from fewtag.research.methods.linear import descend
from fewtag.research.types import Logits, Maps, Targets, Words, bce, full_precision, places

Edges = Float[Tensor, "labels labels"]
Nodes = Float[Tensor, "images labels joint"]

AT_ONCE = 2**26
"""The most products held at a time: a quarter of a gigabyte in full precision."""

AT_ONCE_ON_CPU = 2**20
"""The same on a CPU, so that they stay in a core's cache instead of passing through memory three times."""


@options
class KGGR(Method):
    """The base stage trains network and base classifiers; at test only the classifiers, unless `tune_network`."""

    base_stage = "labels"

    base_words: Tensor = field(init=False)
    base_edges: Tensor = field(init=False)
    edge_scale: Tensor = field(init=False)

    joint: int = 1024
    steps: int = 3
    finetune_epochs: int = 40
    finetune_rate: float = 3e-2
    weight_decay: float = 0.0
    tune_network: bool = False
    propagation: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            found = f"steps = {self.steps}"
            raise InputError(f"{found}: labels need at least one step to hear of each other; write 1 or more")
        self.network = LabelNetwork(self.channels, self.dimensions, self.joint, self.steps)
        self.propagate = Propagation(self.joint, self.propagation) if self.propagation else None

    def prepare(self, base: Base) -> None:
        """Builds the base labels' graph and classifiers."""
        self.base_labels = base.labels
        self.register_buffer("base_words", base.words.clone())
        self.register_buffer("base_edges", co_occurrence(base.targets))
        # new labels' edges are scaled to the mean strength that the network was trained with
        alike = similarity(base.words)
        self.register_buffer("edge_scale", self.base_edges.mean() / alike.mean().clamp_min(1e-6))
        self.base_weight = nn.Parameter(torch.empty(len(base.labels), self.joint).uniform_(-1, 1) / self.joint**0.5)
        self.base_bias = nn.Parameter(torch.zeros(len(base.labels)))

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """Binary cross-entropy of the base classifiers, over support and query images together."""
        maps, targets = episode.base_batch(self.base_labels)
        nodes = self.network(maps, episode.support.words, self.base_edges)
        weight = self.propagate(self.base_weight, self.base_words) if self.propagate else self.base_weight
        return bce(judge(nodes, weight, self.base_bias), targets)

    def adapt(self, support: Support) -> Classifier:
        support.need_images()
        words, edges = support.words.detach(), self.edge_scale * similarity(support.words)
        # from zero and on all images at once, so that neither the order of labels nor that of images matters
        weight = torch.zeros(len(words), self.joint, device=words.device, requires_grad=True)
        bias = torch.zeros(len(words), device=words.device, requires_grad=True)
        network, tuned = self.network, [weight, bias]
        if self.tune_network:
            network = deepcopy(network)
            tuned += network.parameters()
        maps = support.maps.detach().float()
        # not if the network is tuned: autocast would reuse the half-precision copies of weights that it makes here
        nodes = None if self.tune_network else network(maps, words, edges, mutual=True).detach().float()

        def loss() -> Float[Tensor, ""]:
            states = network(maps, words, edges, mutual=True) if nodes is None else nodes
            return bce(judge(states, self._informed(weight, words), bias), support.targets)

        descend(loss, tuned, epochs=self.finetune_epochs, rate=self.finetune_rate, weight_decay=self.weight_decay)
        fitted = self._informed(weight, words).detach(), bias.detach()
        return lambda maps: judge(network(maps, words, edges, mutual=True), *fitted)

    def _informed(self, weight: Float[Tensor, "labels joint"], words: Words) -> Float[Tensor, "labels joint"]:
        """New labels' classifiers after propagation from the base labels' and among themselves."""
        if self.propagate is None:
            return weight
        everything = torch.cat([self.base_weight.detach(), weight]), torch.cat([self.base_words, words])
        with full_precision(weight):
            return self.propagate(*everything)[len(self.base_weight) :]


class LabelNetwork(nn.Module):
    """Maps an image to one vector per label, which depends on the other labels."""

    def __init__(self, channels: int, dimensions: int, joint: int, steps: int) -> None:
        super().__init__()
        self.relevance = LowRankScores(channels, dimensions, joint)
        self.reduce = nn.Linear(channels, joint)
        self.graph = GatedGraph(joint, steps)
        self.output = nn.Linear(2 * joint, joint)

    def forward(self, maps: Maps, words: Words, edges: Edges, *, mutual: bool = False) -> Nodes:
        local = places(maps)
        attention = self.relevance(local, words).float().softmax(dim=-1)
        first = self.reduce(attention.to(local.dtype) @ local)
        return self.output(torch.cat([self.graph(first, edges, mutual=mutual), first], dim=-1)).tanh()


class LowRankScores(nn.Module):
    """Low-rank bilinear pooling (Kim et al., 2017) of places and words: attention scores before the softmax.

    Both are projected, multiplied elementwise, passed through tanh, and mapped to one number. The products exist for
    every image, label and place, so they are computed for a few images at a time. Constants are left out, since a
    softmax ignores them.
    """

    def __init__(self, channels: int, dimensions: int, joint: int) -> None:
        super().__init__()
        self.place = nn.Linear(channels, joint, bias=False)
        self.word = nn.Linear(dimensions, joint, bias=False)
        self.mix = nn.Linear(joint, joint, bias=False)
        self.score = nn.Linear(joint, 1, bias=False)

    def forward(
        self, local: Float[Tensor, "images places channels"], words: Words
    ) -> Float[Tensor, "images labels places"]:
        place, word = self.place(local), self.word(words)
        # the source's two layers after tanh have no activation in between, so together they are one vector
        weight = (self.score.weight @ self.mix.weight).flatten().to(place.dtype)
        at_once = AT_ONCE if place.is_cuda else min(AT_ONCE, AT_ONCE_ON_CPU)
        chunks = place.split(max(1, at_once // (len(word) * place[0].numel())))
        # products are discarded once they are weighted, and recomputed for the gradients
        remade = partial(checkpoint, products, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([remade(chunk, word, weight) for chunk in chunks])


def products(place: Tensor, word: Tensor, weight: Tensor) -> Float[Tensor, "images labels places"]:
    """Products of images × places × joint and labels × joint, summed over joint with these weights."""
    return (place[:, None] * word[:, None]).tanh_() @ weight


class GatedGraph(nn.Module):
    """A gated graph network (Li et al., 2016): in each step a node receives its neighbours' messages through gates."""

    def __init__(self, size: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.heard = nn.Linear(2 * size, 3 * size)
        self.gates = nn.Linear(size, 2 * size)
        self.fresh = nn.Linear(size, size)

    def forward(self, states: Nodes, edges: Edges, *, mutual: bool = False) -> Nodes:
        """With `mutual` (symmetric) edges, messages along and against them are the same, and computed once."""
        weight = self.heard.weight
        if mutual:
            weight = weight[:, : states.shape[-1]] + weight[:, states.shape[-1] :]
        for _ in range(self.steps):
            messages = edges @ states if mutual else torch.cat([edges @ states, edges.T @ states], dim=-1)
            *heard, candidate = F.linear(messages, weight, self.heard.bias).chunk(3, dim=-1)
            update, reset = (torch.cat(heard, dim=-1) + self.gates(states)).sigmoid().chunk(2, dim=-1)
            fresh = (candidate + self.fresh(reset * states)).tanh()
            # under autocast the first states may be in full precision, and `lerp` wants one precision
            states = torch.lerp(states, fresh.to(states.dtype), update.to(states.dtype))
        return states


class Propagation(nn.Module):
    """KGTN: labels' classifiers are nodes, the similarity of their words edges; what propagates is added to them.

    The output layer starts at zero, so that untrained propagation changes nothing.
    """

    def __init__(self, joint: int, steps: int) -> None:
        super().__init__()
        self.graph = GatedGraph(joint, steps)
        self.output = nn.Linear(2 * joint, joint)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, weight: Float[Tensor, "labels joint"], words: Words) -> Float[Tensor, "labels joint"]:
        edges = similarity(words)
        strength = edges.sum(dim=1).clamp_min(1e-6).rsqrt()
        heard = self.graph(weight[None], strength[:, None] * edges * strength, mutual=True)[0]
        return weight + self.output(torch.cat([heard, weight], dim=-1))


def judge(nodes: Nodes, weight: Float[Tensor, "labels joint"], bias: Float[Tensor, "labels"]) -> Logits:
    """Applies each label's classifier to its node, in full precision."""
    with full_precision(nodes):
        return torch.einsum("ilj,lj->il", nodes.float(), weight) + bias


def co_occurrence(targets: Targets) -> Edges:
    """Row c: the probability of each other label in an image that shows c."""
    shown = targets.float()
    counts = shown.T @ shown
    return (counts / counts.diagonal().clamp_min(1)[:, None]).fill_diagonal_(0)


def similarity(words: Words) -> Edges:
    """Cosine of the words, clipped at zero, without self-loops, since a node's own state already enters its update."""
    with full_precision(words):
        unit = F.normalize(words.float(), dim=-1)
        return (unit @ unit.T).clamp_min(0).fill_diagonal_(0)
