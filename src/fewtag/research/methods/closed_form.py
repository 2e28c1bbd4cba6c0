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

from fewtag.research.methods.base import Base, Classifier, Precoded, Support, places
from fewtag.research.methods.word_map import Vectors, WordMapped
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words

Places = Float[Tensor, "images places space"]


class ClosedForm(WordMapped, Precoded):
    """`prepare` solves, `adapt` builds prototypes. The strengths default to what the validation labels chose.

    `parts` are the channels of each network where several are joined.
    """

    serves_words_alone = True

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
        super().__init__(channels, dimensions, ridge=ridge, shrinkage=shrinkage, space=space, parts=parts)
        self.separation = separation
        self.word_weight, self.word_decay = word_weight, word_decay
        self.support_focus, self.query_focus, self.query_local = support_focus, query_focus, query_local
        self.scale = scale

    def base_prototypes(self, base: Base) -> Vectors:
        """By least squares, not by means: labels that occur together are told apart."""
        targets = base.targets.double()
        together = targets.T @ targets
        together.diagonal().add_(self.separation)
        whitened = self.whiten(base.features.double())
        return F.normalize(torch.linalg.solve(together, targets.T @ whitened), dim=-1).float()

    def project(self, maps: Float[Tensor, "images channels height width"]) -> Places:
        """The places of the maps in the whitened space."""
        return self.whiten(places(maps.float()))

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

    def adapt_encoded(self, support: Support) -> Classifier:
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
