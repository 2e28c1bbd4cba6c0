"""The two parts of PLA's decoder whose gradients are made by hand.

Tuning means few images and large matrices: what it costs is how often they are read and written. Autograd would write
a gradient as large as the matrix at every step and add it to the others, and several tensors as large as all places.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Uses = list[tuple[Float[Tensor, "rows outputs"], Float[Tensor, "rows inputs"]]]
Local = Float[Tensor, "images places joint"]


class SharedMatrix:
    """A matrix that is applied at several steps; its gradient is made once, of all of them together."""

    def __init__(self, matrix: Float[Tensor, "outputs inputs"]) -> None:
        self.uses: Uses = []
        self.matrix: Tensor = Gathered.apply(matrix, self.uses)

    def __call__(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        found: Tensor = Applied.apply(rows, self.matrix, self.uses)
        return found


class Applied(torch.autograd.Function):
    """One use, which leaves to `Gathered` what the matrix's gradient is made of."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, uses: Uses) -> Tensor:
        ctx.save_for_backward(rows, matrix)
        ctx.uses = uses
        return F.linear(rows, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        rows, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.uses.append((slope, rows))
        return slope @ matrix, None, None


class Gathered(torch.autograd.Function):
    """The matrix itself; autograd asks for its gradient after that of every use."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, uses: Uses) -> Tensor:
        ctx.uses = uses
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None) -> tuple[Tensor, None]:
        slopes, rows = (torch.cat(parts) for parts in zip(*ctx.uses, strict=True))
        ctx.uses.clear()
        return slopes.T @ rows, None


class Attention(torch.autograd.Function):
    """Additive attention: the places of each image, weighted by how well their keys suit the image's query."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Float[Tensor, "images joint"],
        relevance: Float[Tensor, "joint"],
        keys: Local,
        places: Local,
    ) -> Float[Tensor, "images joint"]:
        heard = (keys + query[:, None]).relu_()
        shares = (heard @ relevance).softmax(dim=1)
        ctx.save_for_backward(relevance, places, heard, shares)
        return torch.bmm(shares[:, None], places)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Float[Tensor, "images joint"]) -> tuple[Tensor | None, ...]:
        relevance, places, heard, shares = ctx.saved_tensors
        of_shares = torch.bmm(places, slope[:, :, None])[:, :, 0]
        of_scores = shares * (of_shares - (shares * of_shares).sum(dim=1, keepdim=True))
        passed = heard.sign()  # 1 where the rectifier lets through
        of_query = torch.bmm(of_scores[:, None], passed)[:, 0] * relevance
        of_relevance = torch.bmm(of_scores[:, None], heard).sum(dim=(0, 1))
        of_keys = passed * of_scores[:, :, None] * relevance if ctx.needs_input_grad[2] else None
        of_places = shares[:, :, None] * slope[:, None] if ctx.needs_input_grad[3] else None
        return of_query, of_relevance, of_keys, of_places


def attend(
    query: Float[Tensor, "images joint"], relevance: Float[Tensor, "joint"], keys: Local, places: Local
) -> Float[Tensor, "images joint"]:
    """Each image's places as its query sees them."""
    found: Tensor = Attention.apply(query, relevance, keys, places)
    return found
