"""Ablation "without CMW-loss": the query loss alone, over support and query images."""

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.base import Episode, bce
from fewtag.research.methods.word_attention import WordAttention


class NoCmwLoss(WordAttention):
    """Words and images meet in the attention alone, and learn from it to understand each other."""

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        joint: int = 512,
        heads: int = 8,
        scale: float = 20.0,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(channels, dimensions, joint=joint, heads=heads, scale=scale, dropout=dropout)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """The query loss, with the support images as further query images."""
        maps = torch.cat([episode.support.maps, episode.maps])
        targets = torch.cat([episode.support.targets, episode.targets])
        return bce(self.infer(episode.support)(maps), targets)
