"""PLA (Yazici et al., "Orderless Recurrent Models for Multi-label Classification", CVPR 2020).

An LSTM looks at an image through attention and emits its labels one at a time, until it emits a stop token; training
aligns the true labels with those it emits. New labels get a fresh output layer and fresh embeddings, trained on the
support, as in the few-shot comparison of Yan et al. (AAAI 2022).
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods.base import (
    BaseLabels,
    Classifier,
    Episode,
    Precoded,
    Staged,
    Support,
    places,
    refuse_labels_without_image,
)
from fewtag.research.methods.head import Head
from fewtag.research.methods.pla_alignment import alignment_loss, best_logits
from fewtag.research.methods.pla_decoder import Decoder, Embeddings, View, Weights, decode
from fewtag.research.methods.tuning import descend
from fewtag.research.types import Encoded, Logits, Maps, Targets, Words


class PLA(Precoded, Staged):
    """The labels' embeddings are learnt: on the base labels, and from zero on a support."""

    embeds_words: ClassVar[bool] = False
    output: nn.Linear
    embed: nn.Module

    def __init__(
        self,
        channels: int,
        dimensions: int,
        *,
        joint: int = 512,
        embedding: int = 256,
        dropout: float = 0.5,
        steps: int = 10,
        finetune_epochs: int = 40,
        finetune_rate: float = 1e-3,
        tune_decoder: bool = True,
    ) -> None:
        super().__init__(channels, dimensions)
        if steps < 2:
            raise InputError(f"steps = {steps}: to emit a label and to stop takes at least 2")
        self.joint, self.embedding, self.steps = joint, embedding, steps
        self.finetune_epochs, self.finetune_rate, self.tune_decoder = finetune_epochs, finetune_rate, tune_decoder
        self.base_labels: tuple[str, ...] = ()
        self.visual = nn.Linear(channels, joint)
        self.dropout = nn.Dropout(dropout)
        self.key = nn.Linear(joint, joint)
        self.decoder = Decoder(joint, embedding)

    def prepare(self, base: BaseLabels) -> None:
        self.base_labels = base.labels
        self.output = nn.Linear(self.joint, len(base.labels) + 1)
        self.embed = (
            nn.Linear(self.dimensions, self.embedding)
            if self.embeds_words
            else nn.Embedding(len(base.labels), self.embedding)
        )

    def embed_base(self, words: Words) -> Embeddings:
        """What the decoder is told of the base labels that it emits."""
        return self.embed(words if self.embeds_words else torch.arange(len(words), device=words.device))

    def embed_new(self, words: Words) -> Embeddings:
        """What it is told of new labels before it is tuned."""
        return self.embed(words) if self.embeds_words else words.new_zeros(len(words), self.embedding)

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """Of all the episode's images with their base labels; which of them are the support does not matter."""
        support = episode.support
        if support.labels != self.base_labels:
            raise InputError(
                f"this method was prepared for {len(self.base_labels)} base labels, and the episode has "
                f"{len(support.labels)} labels, not the same; call prepare with the labels that it is to learn"
            )
        targets = torch.cat([support.targets, episode.targets])
        local = self.dropout(self.visual(places(torch.cat([support.maps, episode.maps]))))
        view = View(local.float(), self.key(local).float())
        # the recurrent part is small, and the alignment compares probabilities: in full precision
        with torch.autocast(local.device.type, enabled=False):
            output = Head(self.output.weight, self.output.bias)
            weights = self.decoder.weights(self.embed_base(support.words), output)
            order, running = take_turns(targets, self.steps)
            view = View(*(part[order] for part in view))
            return alignment_loss(decode(weights, view, running), targets[order])

    @torch.no_grad()
    def encode(self, maps: Maps) -> Encoded:
        """The places as the decoder attends to them at test time."""
        with torch.autocast(maps.device.type, enabled=False):
            local = self.visual(places(maps.float()))
            return local.transpose(1, 2).reshape(len(maps), self.joint, *maps.shape[2:])

    def meet(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        # of labels that score the same the first is emitted: so by name, lest the order of the labels decide
        order = sorted(range(len(support.labels)), key=support.labels.__getitem__)
        back = sorted(range(len(order)), key=order.__getitem__)
        weights = self.tune(self.look(support.maps), support.words[order], support.targets[:, order])
        steps = min(self.steps, int(support.targets.sum(dim=1).max()) + 1)

        def classify(maps: Encoded) -> Logits:
            with torch.autocast(maps.device.type, enabled=False):
                return best_logits(decode(weights, self.look(maps), [len(maps)] * steps))[:, back]

        return classify

    @torch.no_grad()
    def look(self, maps: Encoded) -> View:
        """Encoded images, with their keys."""
        with torch.autocast(maps.device.type, enabled=False):
            local = places(maps).contiguous()
            return View(local, self.key(local))

    def tune(self, view: View, words: Words, targets: Targets) -> Weights:
        """Trains a fresh output layer and fresh embeddings, and a copy of the decoder, on all images at once."""
        tokens, like = targets.shape[1] + 1, view.places
        output = Head(like.new_zeros(tokens, self.joint), like.new_zeros(tokens))
        with torch.autocast(like.device.type, enabled=False), torch.no_grad():
            joined = self.decoder.weights(self.embed_new(words.float()), output)
            weights = Weights(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in joined))
        trained = weights if self.tune_decoder else (weights.embeddings, weights.output_weight, weights.output_bias)
        for tensor in trained:
            tensor.requires_grad_()
        order, running = take_turns(targets, self.steps)
        view, targets = View(*(part[order] for part in view)), targets[order]
        descend(
            lambda: alignment_loss(decode(weights, view, running), targets),
            trained,
            epochs=self.finetune_epochs,
            rate=self.finetune_rate,
        )
        for tensor in trained:
            tensor.requires_grad_(False)
        return weights


def take_turns(targets: Targets, most: int) -> tuple[Int[Tensor, "images"], list[int]]:
    """Images by falling number of labels, and how many have a token to emit at each step: their labels, then the stop.

    A later step has no target and teaches nothing, so it need not be taken.
    """
    counts, order = targets.sum(dim=1).sort(descending=True, stable=True)
    running = (counts >= torch.arange(most, device=counts.device)[:, None]).sum(dim=1)
    return order, [images for images in running.tolist() if images]


class WordPLA(PLA):
    """PLA (GloVe): the labels' embeddings are their word vectors, projected; for new labels they begin there."""

    embeds_words = True
