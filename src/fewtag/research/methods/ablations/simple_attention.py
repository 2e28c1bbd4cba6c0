"""Ablation "simple attention": a mean of support images' global features, weighted by their cosine with the word."""

from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.ablations.simple_local_attention import SimpleLocalAttention
from fewtag.research.methods.base import Support, pool


class SimpleAttention(SimpleLocalAttention):
    """Softmax of λ·cos(word, image) over a label's images; no heads and no MLP."""

    def prototypes(self, support: Support, words: Float[Tensor, "labels joint"]) -> Float[Tensor, "labels joint"]:
        return super().prototypes(support._replace(maps=pool(support.maps)[:, :, None, None]), words)
