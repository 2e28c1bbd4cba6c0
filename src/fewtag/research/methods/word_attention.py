"""The paper's method: prototypes inferred from support images by an attention that the labels' word vectors guide.

Yan et al., "Inferring Prototypes for Multi-Label Few-Shot Image Classification with Word Vector Guided Attention",
AAAI 2022. Two faithful readings: `WordAttention` follows the text, `ReferenceWordAttention` the authors' public code.
Every difference between the two is in the second class; docs/paper-notes.md gives the reasons.

Symbols of the paper: A_visual `visual`, A_text `text`, Q K V `query` `key` `value`, n_a `heads`, d_a `width`,
d_j `joint`, λ `scale`, γ `gamma`.
"""

import math
from copy import deepcopy
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods.base import Classifier, Episode, Method, Support, options
from fewtag.research.methods.linear import descend
from fewtag.research.types import Logits, Words, bce, cosine, places, pool

FloatMaps = Float[Tensor, "images channels height width"]
Joint = Float[Tensor, "labels joint"]
Local = Float[Tensor, "images places joint"]
Scores = Float[Tensor, "heads labels images places"]

_EPSILON = 1e-6
"""Epsilon of the layer norms in the authors' code."""


@options
class WordAttention(Method):
    """The text's model: one softmax over all places of all images of a label, then an MLP; similarity is λ·cosine."""

    bias: ClassVar[bool] = False

    joint: int = 512
    heads: int = 8
    scale: float = 20.0
    gamma: float = 1.0
    dropout: float = 0.1
    finetune_epochs: int = 0
    finetune_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        joint, heads = self.joint, self.heads
        if not 1 <= heads <= joint:
            raise InputError(f"heads = {heads}: the joint space of {joint} dimensions takes from 1 to {joint} heads")
        self.width = joint // heads  # the paper's 6, 10, 12 and 14 heads do not divide 512
        self.visual = nn.Linear(self.channels, joint, bias=self.bias)
        self.text = nn.Linear(self.dimensions, joint, bias=self.bias)
        self.build_attention(self.width * heads)

    def build_attention(self, inner: int) -> None:
        """Builds the layers that infer prototypes in the joint space; `inner` is the total width of the heads."""
        self.query, self.key, self.value = (nn.Linear(self.joint, inner, bias=self.bias) for _ in range(3))
        self.block = self.build_block(inner)

    def build_block(self, inner: int) -> nn.Module:
        """The layers from the concatenated heads to a prototype."""
        return nn.Sequential(
            nn.Linear(inner, self.joint), nn.GELU(), nn.Dropout(self.dropout), nn.Linear(self.joint, self.joint)
        )

    def similarity(self, images: Float[Tensor, "images joint"], labels: Joint) -> Logits:
        """λ·cos: the probability is one half at a right angle."""
        return self.scale * cosine(images, labels)

    def local(self, maps: FloatMaps) -> Local:
        """The places of the maps in the joint space."""
        return self.visual(places(maps))

    def scores(self, words: Joint, local: Local) -> Scores:
        """Attention scores before the softmax: how relevant each place is to a label, by head."""
        query = self.query(words).unflatten(-1, (self.heads, self.width))
        key = self.key(local).unflatten(-1, (self.heads, self.width))
        return torch.einsum("lhw,iphw->hlip", query, key) / math.sqrt(self.width)

    def prototypes(self, support: Support, words: Joint) -> Joint:
        """One prototype per label, from the places of all support images that show it.

        All maps before the MLP are linear, so a label's query is carried backwards through key and projection, and what
        it gathers forwards through projection and value: the numbers are the same, without projecting any place.
        """
        support.need_images()
        label, image = support.targets.T.nonzero(as_tuple=True)
        local = support.maps.flatten(2).index_select(0, image)
        asked = (self.ask(words) @ self.visual.weight)[label]
        scores = torch.einsum("nhc,ncp->nhp", asked, local).float()
        # one softmax over all places of all images of the label
        peaks = scores.new_full((*support.targets.T.shape, self.heads), -math.inf)
        peaks[label, image] = scores.detach().amax(dim=-1)
        peak = peaks.amax(dim=1)
        weights = (scores - peak[label][..., None]).exp()
        total = torch.zeros_like(peak).index_add(0, label, weights.sum(dim=-1))
        gathered = torch.einsum("nhp,ncp->nhc", weights.to(local.dtype), local).float()
        means = gathered.new_zeros(*peak.shape, gathered.shape[-1]).index_add(0, label, gathered) / total[..., None]
        return self.block(self.answer(self.visual(means)).flatten(1))

    def ask(self, words: Joint) -> Float[Tensor, "labels heads joint"]:
        """Each head's query, carried back through its key; a bias of the key would shift all places alike."""
        query = self.query(words).unflatten(-1, (self.heads, self.width))
        return torch.einsum("lhw,hwj->lhj", query, self._by_head(self.key)) / math.sqrt(self.width)

    def answer(self, gathered: Float[Tensor, "pairs heads joint"]) -> Float[Tensor, "pairs heads width"]:
        """Each head's value of what it gathered."""
        return torch.einsum("nhj,hwj->nhw", gathered, self._by_head(self.value))

    def _by_head(self, layer: nn.Linear) -> Float[Tensor, "heads width joint"]:
        return layer.weight.view(self.heads, self.width, -1)

    def compare(self, maps: FloatMaps, prototypes: Joint) -> Logits:
        """The similarity of query images, by their global features, to prototypes."""
        return self.similarity(self.visual(pool(maps)), prototypes)

    def infer(self, support: Support) -> Classifier:
        """A classifier with prototypes from the support, without fine-tuning."""
        prototypes = self.prototypes(support, self.text(support.words))
        return lambda maps: self.compare(maps, prototypes)

    def adapt(self, support: Support) -> Classifier:
        return (self.finetune(support) if self.finetune_epochs else self).infer(support)

    def finetune(self, support: Support) -> "WordAttention":
        """A copy whose two projections are fitted to the support by the CMW loss."""
        tuned = deepcopy(self)
        parameters = [*tuned.visual.parameters(), *tuned.text.parameters()]
        images = pool(support.maps.detach().float())[:, :, None, None]  # pooled once: a map of one place
        known = support._replace(maps=images, words=support.words.detach().float())
        descend(lambda: tuned.alignment(known), parameters, epochs=self.finetune_epochs, rate=self.finetune_rate)
        return tuned.requires_grad_(False)

    def alignment(self, support: Support) -> Float[Tensor, ""]:
        """CMW loss: the word vectors as prototypes, judged on the support images."""
        return bce(self.similarity(self.visual(pool(support.maps)), self.text(support.words)), support.targets)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """CMW loss + γ · query loss."""
        alignment = self.alignment(episode.support)
        return alignment + self.gamma * bce(self.infer(episode.support)(episode.maps), episode.targets)

    def relevance(self, maps: FloatMaps, words: Words) -> Float[Tensor, "images labels height width"]:
        """The paper's figure: attention scores before the softmax, summed over the heads, for each place and label."""
        scores = self.scores(self.text(words), self.local(maps)).sum(dim=0)
        return scores.transpose(0, 1).reshape(len(maps), len(words), *maps.shape[2:]).float()


class ReferenceWordAttention(WordAttention):
    """The authors' code: attention within each image, then a mean of the images weighted by word–image similarity."""

    serves_words_alone = True  # by the label's projected word vector
    bias = True

    def build_attention(self, inner: int) -> None:
        super().build_attention(inner)
        self.visual_local = nn.Linear(self.channels, self.joint)
        self.norm = nn.LayerNorm(self.joint, eps=_EPSILON)
        self.drop = nn.Dropout(self.dropout)

    def build_block(self, inner: int) -> nn.Module:
        return ResidualBlock(inner, self.joint, self.dropout)

    def similarity(self, images: Float[Tensor, "images joint"], labels: Joint) -> Logits:
        """λ·(1 − distance of the unit vectors): the probability is one half at a cosine of one half."""
        # the distance of unit vectors is √(2 − 2·cos); its slope is infinite at 0
        squared = 2 - 2 * cosine(images, labels)
        return self.scale * (1 - squared.clamp_min(1e-6).sqrt())

    def local(self, maps: FloatMaps) -> Local:
        """The places by their own projection, with dropout, then the layer norm that words and places share."""
        return self.norm(self.drop(self.visual_local(places(maps))))

    def scores(self, words: Joint, local: Local) -> Scores:
        return super().scores(self.norm(words), local)

    def prototypes(self, support: Support, words: Joint) -> Joint:
        shows = support.targets.T
        label, image = shows.nonzero(as_tuple=True)
        local = self.local(support.maps).index_select(0, image)
        asked = self.ask(self.norm(words))[label]
        attention = self.drop(torch.einsum("nhj,npj->nhp", asked, local).float().softmax(dim=-1))
        gathered = torch.einsum("nhp,npj->nhj", attention.to(local.dtype), local)
        # after dropout the weights do not sum to one, and the values' bias is weighted like the values
        bias = attention.sum(dim=-1)[..., None] * self.value.bias.view(self.heads, self.width)
        within = self.block((self.answer(gathered) + bias.to(gathered.dtype)).flatten(1))
        encoded = within.new_zeros(*shows.shape, self.joint)
        encoded[label, image] = within

        match = self.similarity(self.visual(pool(support.maps)), words).T
        # finite, so that the row of a label without images does not become NaN
        weights = match.masked_fill(~shows, torch.finfo(match.dtype).min).softmax(dim=-1)
        means = torch.einsum("li,lij->lj", weights.to(encoded.dtype), encoded)
        return torch.where(shows.any(dim=1, keepdim=True), means, words.to(means.dtype))


class ResidualBlock(nn.Module):
    """The authors' block, from joined heads to a prototype: a projection o, o + MLP(LayerNorm(o)), a layer norm."""

    def __init__(self, inner: int, joint: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(inner, joint), nn.Dropout(dropout))
        wide, narrow = nn.Linear(joint, 2 * joint), nn.Linear(2 * joint, joint)
        for layer in (wide, narrow):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
        self.mlp = nn.Sequential(
            nn.LayerNorm(joint, eps=_EPSILON), wide, nn.GELU(), nn.Dropout(dropout), narrow, nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(joint, eps=_EPSILON)

    def forward(self, heads: Float[Tensor, "pairs inner"]) -> Float[Tensor, "pairs joint"]:
        projected = self.project(heads)
        return self.norm(projected + self.mlp(projected))
