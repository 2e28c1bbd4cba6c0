"""ProtoNet (Snell et al., 2017) for several labels an image: a label is the mean of its images' global features."""

from fewtag.methods.base import Classifier, Precoded, Support, cosine, pool, refuse_labels_without_image
from fewtag.types import Encoded, Maps


class ProtoNet(Precoded):
    """Compares images with the labels' mean features by cosine. Nothing to learn but, end to end, the backbone."""

    def __init__(self, channels: int, dimensions: int, *, scale: float = 20.0) -> None:
        super().__init__(channels, dimensions)
        self.scale = scale

    def encode(self, maps: Maps) -> Encoded:
        return pool(maps.float())[:, :, None, None]

    def meet(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        shows = support.targets.T.float()
        prototypes = shows @ pool(support.maps) / shows.sum(dim=1, keepdim=True)
        return lambda maps: self.scale * cosine(pool(maps), prototypes)
