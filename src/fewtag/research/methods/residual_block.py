"""The block of the authors' code that turns the joined heads of a label's attention into its prototype."""

from jaxtyping import Float
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Output projection, layer norm, MLP with a residual, layer norm."""

    def __init__(self, inner: int, joint: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(inner, joint), nn.Dropout(dropout), nn.LayerNorm(joint))
        self.mlp = nn.Sequential(
            nn.Linear(joint, 2 * joint),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * joint, joint),
            nn.Dropout(dropout),
        )
        self.norm = nn.LayerNorm(joint)

    def forward(self, heads: Float[Tensor, "pairs inner"]) -> Float[Tensor, "pairs joint"]:
        projected = self.project(heads)
        return self.norm(projected + self.mlp(projected))
