"""End-to-end training: a backbone and a method as one method of pixels."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.base import Classifier, Episode, Method, Support


class EndToEnd(Method):
    """Runs the backbone before the method, so that frozen and fine-tuned runs share all code."""

    def __init__(self, backbone: nn.Module, method: Method) -> None:
        super().__init__(channels=3, dimensions=method.dimensions)
        self.backbone, self.method = backbone, method
        self.serves_words_alone = method.serves_words_alone

    def adapt(self, support: Support) -> Classifier:
        classifier = self.method.adapt(support._replace(maps=self.backbone(support.maps)))
        return lambda pixels: classifier(self.backbone(pixels))

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """One pass of the backbone over support and query, so that they share batch-norm statistics and kernels."""
        support, query = len(episode.support.maps), len(episode.maps)
        maps = self.backbone(torch.cat([episode.support.maps, episode.maps]))
        support_maps, query_maps = maps.split([support, query])
        return self.method.loss(Episode(episode.support._replace(maps=support_maps), query_maps, episode.targets))
