"""ProtoNet (Snell et al., 2017) for several labels an image: a label is the mean of its images' global features."""

from jaxtyping import Bool, Float
from torch import Tensor

from fewtag.research.methods.base import ByProducts, Products, pool
from fewtag.research.types import Encoded, Maps

SHORT = 1e-12  # vectors so short have no direction


class ProtoNet(ByProducts):
    """Compares images with the labels' mean features by cosine. Nothing to learn but, end to end, the backbone."""

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions)
        self.scale = scale

    def encode(self, maps: Maps) -> Encoded:
        return pool(maps.float())[:, :, None, None]

    def score(
        self, products: Products, targets: Bool[Tensor, "*episodes support labels"]
    ) -> Float[Tensor, "*episodes images labels"]:
        # products with a mean are means of products; a sum serves as well, since a cosine has no length
        shows = targets.to(products.across.dtype)
        sums = (shows * (products.among @ shows)).sum(dim=-2).clamp_min(SHORT**2).sqrt()
        lengths = products.lengths.clamp_min(SHORT)[..., :, None] * sums[..., None, :]
        return self.scale * (products.across @ shows) / lengths
