"""Low-rank bilinear pooling (Kim et al., 2017) of places and words, as SSGRL (Chen et al., 2019) and KGGR use it.

How relevant a place is for a label: both are projected, multiplied entry by entry, squashed by tanh, and mapped to one
number. The products exist for every image, label and place, so they are made for a few images at a time.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fewtag.research.types import Words

AT_ONCE = 2**26
"""How many products are held at a time: a quarter of a gigabyte in full precision."""

AT_ONCE_ON_CPU = 2**20
"""The same where they can stay in a core's cache, in place of passing through memory three times."""


class LowRankScores(nn.Module):
    """Scores before the softmax. Constants are left out, since a softmax does not see them."""

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
        # the source's two layers after tanh have nothing between them: applied one after the other they are one vector
        weight = (self.score.weight @ self.mix.weight).flatten().to(place.dtype)
        at_once = AT_ONCE if place.is_cuda else min(AT_ONCE, AT_ONCE_ON_CPU)
        chunks = place.split(max(1, at_once // (len(word) * place[0].numel())))
        return torch.cat([weigh(chunk, word, weight) for chunk in chunks])


def weigh(
    place: Float[Tensor, "images places joint"], word: Float[Tensor, "labels joint"], weight: Float[Tensor, "joint"]
) -> Float[Tensor, "images labels places"]:
    """Forgets the products once they are weighed, and makes them anew for the gradients."""
    return checkpoint(products, place, word, weight, use_reentrant=False, preserve_rng_state=False)


def products(
    place: Float[Tensor, "images places joint"], word: Float[Tensor, "labels joint"], weight: Float[Tensor, "joint"]
) -> Float[Tensor, "images labels places"]:
    return (place[:, None] * word[:, None]).tanh_() @ weight
