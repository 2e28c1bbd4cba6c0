"""The tensors everything speaks of. Axis names are whole words, the same everywhere."""

from jaxtyping import Bool, Float, Num
from torch import Tensor

Maps = Num[Tensor, "images channels height width"]
"""Local feature maps; pixels are maps with three channels (uint8)."""

Encoded = Num[Tensor, "images *encoded"]
"""What a method makes of each image by itself, in a shape of its own."""

Targets = Bool[Tensor, "images labels"]
"""Which image shows which label."""

Logits = Float[Tensor, "images labels"]
"""A label's score for an image; its sigmoid is the probability."""

Words = Float[Tensor, "labels dimensions"]
"""The labels' word vectors, a row each."""
