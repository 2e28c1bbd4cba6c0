"""The paper's ablations: its model (`word_attention.py`) with one piece replaced."""

import math
from dataclasses import field

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods.base import Episode, Support, options
from fewtag.research.methods.kggr import LowRankScores
from fewtag.research.methods.word_attention import FloatMaps, Joint, Local, Scores, WordAttention
from fewtag.research.types import Logits, bce, pool


@options
class NotFinetuned(WordAttention):
    """A model without the options of fine-tuning."""

    finetune_epochs: int = field(init=False, default=0)
    finetune_rate: float = field(init=False, default=0.0)


@options
class NoCmwLoss(NotFinetuned):
    """Ablation "without CMW-loss": words and images are only related by the attention, and learn from its loss."""

    gamma: float = field(init=False, default=1.0)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The query loss, with the support images as further query images."""
        maps, targets = episode.batch
        return bce(self.infer(episode.support)(maps), targets)


class GlobalAttention(WordAttention):
    """Ablation "attention with global features": each support image is one place, its global feature."""

    def prototypes(self, support: Support, words: Joint) -> Joint:
        return super().prototypes(support._replace(maps=pool(support.maps)[:, :, None, None]), words)


@options
class SimpleLocalAttention(NotFinetuned):
    """Ablation "simple attention with local features": the mean of places, weighted by their cosine with the word.

    Softmax of λ·cos(word, place) over all places of a label's images; no heads and no MLP.
    """

    heads: int = field(init=False, default=1)
    dropout: float = field(init=False, default=0.0)

    def build_attention(self, inner: int) -> None:
        """Builds nothing: there is only the joint space."""

    def prototypes(self, support: Support, words: Joint) -> Joint:
        support.need_images()
        local = self.local(support.maps)
        hidden = ~support.targets.T[:, :, None]
        scores = self.scores(words, local)[0].float().masked_fill(hidden, -math.inf)
        attention = scores.flatten(1).softmax(dim=-1).view_as(scores)
        return torch.einsum("lip,ipj->lj", attention.to(local.dtype), local)

    def scores(self, words: Joint, local: Local) -> Scores:
        return self.similarity(local.flatten(0, 1), words).T.reshape(1, len(words), *local.shape[:2])


class SimpleAttention(SimpleLocalAttention):
    """Ablation "simple attention": the mean of images' global features, weighted by their cosine with the word."""

    def prototypes(self, support: Support, words: Joint) -> Joint:
        return super().prototypes(support._replace(maps=pool(support.maps)[:, :, None, None]), words)


class BilinearPooling(SimpleLocalAttention):
    """Ablation "low-rank bilinear pooling": places are weighted as in KGGR instead of by multi-head attention."""

    def build_attention(self, inner: int) -> None:
        self.bilinear = LowRankScores(self.joint, self.joint, inner)

    def scores(self, words: Joint, local: Local) -> Scores:
        return self.bilinear(local, words).transpose(0, 1)[None]


@options
class LocalQuery(NotFinetuned):
    """Ablation "local features for query images": a label's score is the sum of its `top` best places in the image."""

    top: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 1:
            raise InputError(f"top = {self.top}: a label's score needs at least one place; write 1 or more")

    def compare(self, maps: FloatMaps, prototypes: Joint) -> Logits:
        local = self.local(maps)
        similarity = self.similarity(local.flatten(0, 1), prototypes)
        by_place = similarity.reshape(*local.shape[:2], len(prototypes))
        return by_place.topk(min(self.top, local.shape[1]), dim=1).values.sum(dim=1)
