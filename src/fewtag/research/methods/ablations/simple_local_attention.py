"""Ablation "simple attention with local features": a mean of places, weighted by their cosine with the word."""

import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.word_attention import WordAttention


class SimpleLocalAttention(WordAttention):
    """Softmax of λ·cos(word, place) over all places of a label's images; no heads and no MLP."""

    def __init__(
        self, channels: int, dimensions: int, *, joint: int = 512, scale: float = 20.0, gamma: float = 1.0
    ) -> None:
        super().__init__(channels, dimensions, joint=joint, heads=1, scale=scale, gamma=gamma)

    def build_attention(self, inner: int) -> None:
        """Nothing beside the joint space."""

    def scores(
        self, words: Float[Tensor, "labels joint"], local: Float[Tensor, "images places joint"]
    ) -> Float[Tensor, "1 labels images places"]:
        return self.similarity(local.flatten(0, 1), words).T.reshape(1, len(words), *local.shape[:2])

    def gather(
        self, attention: Float[Tensor, "1 labels images places"], local: Float[Tensor, "images places joint"]
    ) -> Float[Tensor, "labels joint"]:
        return torch.einsum("lip,ipj->lj", attention[0].to(local.dtype), local)
