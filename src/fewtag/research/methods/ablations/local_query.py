"""Ablation "local features for query images": a label's score is the sum of its best places in the query image."""

from jaxtyping import Float
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods.word_attention import WordAttention
from fewtag.research.types import Logits


class LocalQuery(WordAttention):
    """The text's prototypes, compared with every place of a query image; the `top` best similarities are summed."""

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        joint: int = 512,
        heads: int = 8,
        scale: float = 20.0,
        gamma: float = 1.0,
        dropout: float = 0.1,
        top: int = 3,
    ) -> None:
        super().__init__(channels, dimensions, joint=joint, heads=heads, scale=scale, gamma=gamma, dropout=dropout)
        if top < 1:
            raise InputError(f"top = {top}: a label's score needs at least one place; write 1 or more")
        self.top = top

    def compare(
        self, maps: Float[Tensor, "images channels height width"], prototypes: Float[Tensor, "labels joint"]
    ) -> Logits:
        local = self.local(maps)
        similarity = self.similarity(local.flatten(0, 1), prototypes)
        by_place = similarity.reshape(*local.shape[:2], len(prototypes))
        return by_place.topk(min(self.top, local.shape[1]), dim=1).values.sum(dim=1)
