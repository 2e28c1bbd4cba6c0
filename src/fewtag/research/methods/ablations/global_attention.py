"""Ablation "attention with global features": the full attention chooses among images instead of places."""

from jaxtyping import Float
from torch import Tensor

from fewtag.research.methods.base import Support, pool
from fewtag.research.methods.word_attention import WordAttention


class GlobalAttention(WordAttention):
    """Each support image is one place, its global feature."""

    def prototypes(self, support: Support, words: Float[Tensor, "labels joint"]) -> Float[Tensor, "labels joint"]:
        return super().prototypes(support._replace(maps=pool(support.maps)[:, :, None, None]), words)
