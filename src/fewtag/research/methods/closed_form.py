"""Word-guided prototypes in closed form: a few matrix products and two small solves, no gradient anywhere.

The base images span a whitened space; the base labels' prototypes in it give, by ridge regression on their word
vectors, a prototype for any word. A support image is pooled with attention to the places that look like its label's
word, and the word itself is mixed in, the less the more images there are: words as a prior on the prototype, rather
than as the query of a learnt attention.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Classifier, Precoded, Solved, Support, places
from fewtag.research.methods.word_map import ridge_regression, whitening
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words

Places = Float[Tensor, "images places space"]
Vectors = Float[Tensor, "labels space"]


class ClosedForm(Precoded, Solved):
    """`fit` solves, `adapt` builds prototypes. The strengths default to what the validation labels chose.

    `parts` are the channels of each network where several are joined.
    """

    serves_words_alone = True

    mean: Tensor
    basis: Tensor
    word_mean: Tensor
    word_map: Tensor

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        space: int = 512,
        shrinkage: float = 5.0,
        separation: float = 200.0,
        ridge: float = 3.0,
        word_weight: float = 1.0,
        word_decay: float = 0.75,
        support_focus: float = 8.0,
        query_focus: float = 48.0,
        query_local: float = 0.6,
        scale: float = 20.0,
        parts: list[int] | None = None,
    ) -> None:
        super().__init__(channels, dimensions)
        self.parts = tuple(parts or [channels])
        if sum(self.parts) != channels:
            joined = " + ".join(str(part) for part in self.parts)
            raise InputError(f"parts {joined} are {sum(self.parts)} channels, the maps have {channels}; name them all")
        self.space = sum(min(space, part) for part in self.parts)
        self.part_space = space
        self.shrinkage, self.separation, self.ridge = shrinkage, separation, ridge
        self.word_weight, self.word_decay = word_weight, word_decay
        self.support_focus, self.query_focus, self.query_local = support_focus, query_focus, query_local
        self.scale = scale
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("basis", torch.eye(channels, self.space))
        self.register_buffer("word_mean", torch.zeros(dimensions))
        self.register_buffer("word_map", torch.zeros(dimensions, self.space))

    def fit(self, base: Base) -> "ClosedForm":
        """Solves for the space, then for the map from words to prototypes."""
        return self.fit_space(base.features).fit_words(base.words, self.base_prototypes(base))

    def fit_space(self, features: Float[Tensor, "images channels"]) -> "ClosedForm":
        """The principal directions of the base images, whitened, the weak ones less so; of each network for itself."""
        centred = features.double() - features.double().mean(dim=0)
        self.mean.copy_(features.double().mean(dim=0))
        parts = centred.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        blocks = [whitening(part, self.part_space, self.shrinkage) for part in parts]
        self.basis.copy_(torch.block_diag(*blocks))  # type: ignore[no-untyped-call]
        return self

    def base_prototypes(self, base: Base) -> Vectors:
        """By least squares, not by means: labels that occur together are told apart."""
        targets = base.targets.double()
        together = targets.T @ targets
        together.diagonal().add_(self.separation)
        whitened = (base.features.double() - self.mean.double()) @ self.basis.double()
        return F.normalize(torch.linalg.solve(together, targets.T @ whitened), dim=-1).float()

    def fit_words(self, words: Words, prototypes: Vectors) -> "ClosedForm":
        """Ridge regression from the base labels' words to their prototypes."""
        self.word_mean.copy_(words.mean(dim=0))
        self.word_map.copy_(ridge_regression(self.normalise_words(words), prototypes, self.ridge))
        return self

    def normalise_words(self, words: Words) -> Words:
        """Centred on the base labels, of unit length."""
        return F.normalize(words - self.word_mean.to(words), dim=-1)

    def word_prototypes(self, words: Words) -> Vectors:
        """What the words alone suggest."""
        return F.normalize(self.normalise_words(words) @ self.word_map, dim=-1)

    def project(self, maps: Float[Tensor, "images channels height width"]) -> Places:
        """The places of the maps in the whitened space."""
        return (places(maps.float()) - self.mean) @ self.basis

    def attend(self, local: Places, guides: Vectors) -> Float[Tensor, "images labels space"]:
        """Each image pooled for each label, with attention to the places that look like its guide; unit vectors."""
        alike = torch.einsum("ips,ls->ilp", F.normalize(local, dim=-1), guides)
        return F.normalize(torch.einsum("ilp,ips->ils", (self.support_focus * alike).softmax(dim=-1), local), dim=-1)

    def mix(self, visual: Vectors, words: Vectors, counts: Float[Tensor, "labels"]) -> Vectors:
        """Visual prototypes of so many examples, moved towards the words, less so the more examples there are."""
        weight = self.word_weight * counts.clamp_min(1) ** -self.word_decay
        mixed = F.normalize(F.normalize(visual, dim=-1) + weight[:, None] * words, dim=-1)
        return torch.where((counts > 0)[:, None], mixed, words)

    def score(self, local: Places, prototypes: Vectors) -> Logits:
        """Cosine with the whole image and with the places that look like the label, mixed; between −1 and 1."""
        whole = F.normalize(local.mean(dim=1), dim=-1) @ prototypes.T
        along = torch.einsum("ips,ls->ilp", local, prototypes)
        attention = (self.query_focus * along / local.norm(dim=-1)[:, None]).softmax(dim=-1)
        # the pooled vector itself is never made: its length follows from the places' inner products
        gram = torch.einsum("ips,iqs->ipq", local, local)
        length = torch.einsum("ilp,ipq,ilq->il", attention, gram, attention).clamp_min(1e-12).sqrt()
        focused = (attention * along).sum(dim=-1) / length
        return (1 - self.query_local) * whole + self.query_local * focused

    def encode(self, maps: Maps) -> Encoded:
        """The maps in the whitened space."""
        return self.project(maps).transpose(1, 2).reshape(len(maps), self.space, *maps.shape[2:])

    def meet(self, support: Support) -> Classifier:
        prototypes = self.label_prototypes(places(support.maps), support.targets, support.words)
        return lambda maps: self.scale * self.score(places(maps), prototypes)

    def label_prototypes(self, local: Places, targets: Targets, words: Words) -> Vectors:
        """One for each label: the mean of its images' attended features, with its word mixed in."""
        guides = self.word_prototypes(words)
        shows = targets.T.float()
        visual = torch.einsum("li,ils->ls", shows, self.attend(local, guides))
        return self.mix(visual, guides, shows.sum(dim=1))

    def relevance(
        self, maps: Float[Tensor, "images channels height width"], prototypes: Vectors
    ) -> Float[Tensor, "images labels height width"]:
        """How much each place speaks for each label; not a cosine, in which an empty wall counts like a thing."""
        alike = torch.einsum("ips,ls->ilp", self.project(maps), prototypes)
        return alike.reshape(len(maps), len(prototypes), *maps.shape[2:])
