"""The tensors everything speaks of. Axis names are whole words, the same everywhere."""

from jaxtyping import Bool, Float, Num
from torch import Tensor

Maps = Num[Tensor, "images channels height width"]
"""Local feature maps; pixels are maps with three channels (uint8)."""

Encoded = Num[Tensor, "images size rows columns"]
"""Maps in a method's own space, on a grid of its own."""

Targets = Bool[Tensor, "images labels"]
"""Which image shows which label."""

Logits = Float[Tensor, "images labels"]
"""A label's score for an image; its sigmoid is the probability."""

Words = Float[Tensor, "labels dimensions"]
"""The labels' word vectors, a row each."""
