"""A network with its own classifier: the probabilities of its classes, which serve as soft labels of pictures."""

from jaxtyping import Float, UInt8
from torch import Tensor

from fewtag.research.features.backbone import Backbone, build_network, check_name
from fewtag.research.features.weights import load_weights, split_source


class ImageClassifier(Backbone):
    """A backbone that goes on to its head; its rows in the feature cache are probabilities."""

    def forward(self, pixels: UInt8[Tensor, "images 3 height width"]) -> Float[Tensor, "images classes"]:
        return self.network(self.normalise(pixels)).softmax(dim=-1)


def create_classifier(
    name: str = "tf_efficientnet_lite2", *, weights: str | None = None, size: int = 224
) -> ImageClassifier:
    """A timm network by name with its head, in evaluation mode; weights as for a backbone, the head's among them."""
    check_name(name)
    kind, argument = split_source(name, weights)
    network = build_network(name, size, pretrained=kind == "timm", head=True)
    preprocessing = load_weights(network, name, kind, argument)
    classifier = ImageClassifier(
        f"{name}, class probabilities",
        network,
        size=size,
        channels=network.num_classes,
        layout="NCHW",
        preprocessing=preprocessing,
        variant="keras" if kind == "keras" else "timm",
    )
    return classifier.eval()
