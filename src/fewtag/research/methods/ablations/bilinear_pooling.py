"""Ablation "low-rank bilinear pooling": places weighted as KGGR weights them, in place of the multi-head attention."""

from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.ablations.simple_local_attention import SimpleLocalAttention
from fewtag.research.methods.bilinear import LowRankScores


class BilinearPooling(SimpleLocalAttention):
    """Softmax of a learnt score of word and place over all places of a label's images; no heads and no MLP."""

    def build_attention(self, inner: int) -> None:
        self.bilinear = LowRankScores(self.joint, self.joint, inner)

    def scores(
        self, words: Float[Tensor, "labels joint"], local: Float[Tensor, "images places joint"]
    ) -> Float[Tensor, "1 labels images places"]:
        return self.bilinear(local, words).transpose(0, 1)[None]
