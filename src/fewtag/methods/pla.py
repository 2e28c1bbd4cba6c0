"""PLA (Yazici et al., "Orderless Recurrent Models for Multi-label Classification", CVPR 2020).

An LSTM looks at an image through attention and emits its labels one at a time, until it emits a stop token; training
aligns the true labels with those it emits. New labels get a fresh output layer and fresh embeddings, trained on the
support, as in the few-shot comparison of Yan et al. (AAAI 2022).
"""

import copy
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.methods.base import BaseLabels, Classifier, Episode, Staged, Support, places, refuse_labels_without_image
from fewtag.methods.head import Head
from fewtag.methods.pla_alignment import StepLogits, alignment_loss, best_logits
from fewtag.methods.tuning import descend
from fewtag.types import Logits, Maps, Targets, Words

Embeddings = Float[Tensor, "labels embedding"]


class View(NamedTuple):
    """Images as the decoder sees them: their places, and what its attention compares of each."""

    places: Float[Tensor, "images places joint"]
    keys: Float[Tensor, "images places joint"]


class Decoder(nn.Module):
    """Emits a token a step; it sees the image through attention, and which token it emitted before."""

    def __init__(self, joint: int, embedding: int) -> None:
        super().__init__()
        self.first_hidden = nn.Linear(joint, joint)
        self.first_cell = nn.Linear(joint, joint)
        self.query = nn.Linear(joint, joint, bias=False)  # the keys have one
        self.relevance = nn.Linear(joint, 1, bias=False)  # the softmax would not see one
        self.gate = nn.Linear(joint, joint)
        self.lstm = nn.LSTMCell(embedding + joint, joint)
        self.start = nn.Parameter(torch.zeros(embedding))
        self.stop = nn.Parameter(torch.zeros(embedding))

    def forward(self, view: View, embeddings: Embeddings, output: Head, steps: int) -> StepLogits:
        """The scores of all tokens at each step; a step is told of the likeliest token of the step before it."""
        summary = view.places.mean(dim=1)
        hidden, cell = self.first_hidden(summary), self.first_cell(summary)
        tokens = torch.cat([embeddings, self.stop[None]])
        emitted, logits = self.start.expand(len(summary), -1), []
        for _ in range(steps):
            relevance = self.relevance((view.keys + self.query(hidden)[:, None]).relu())
            attended = torch.einsum("ip,ipj->ij", relevance[:, :, 0].softmax(dim=1), view.places)
            seen = self.gate(hidden).sigmoid() * attended
            hidden, cell = self.lstm(torch.cat([emitted, seen], dim=1), (hidden, cell))
            logits.append(output(hidden))
            emitted = tokens[logits[-1].argmax(dim=1)]
        return torch.stack(logits, dim=1)


class Tuned(NamedTuple):
    """A decoder that has met new labels."""

    decoder: Decoder
    embeddings: Embeddings
    output: Head
    steps: int

    def __call__(self, view: View) -> StepLogits:
        return self.decoder(view, self.embeddings, self.output, self.steps)


class PLA(Staged):
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
            logits = self.decoder(view, self.embed_base(support.words), output, self.count_steps(targets))
            return alignment_loss(logits, targets)

    def count_steps(self, targets: Targets) -> int:
        """One for each label of the image that shows most, and one for the stop token."""
        return min(self.steps, int(targets.sum(dim=1).max()) + 1)

    def adapt(self, support: Support) -> Classifier:
        refuse_labels_without_image(support)
        # of labels that score the same the first is emitted: so by name, lest the order of the labels decide
        order = sorted(range(len(support.labels)), key=support.labels.__getitem__)
        back = sorted(range(len(order)), key=order.__getitem__)
        tuned = self.tune(self.look(support.maps), support.words[order], support.targets[:, order])

        def classify(maps: Maps) -> Logits:
            with torch.autocast(maps.device.type, enabled=False):
                return best_logits(tuned(self.look(maps)))[:, back]

        return classify

    @torch.no_grad()
    def look(self, maps: Maps) -> View:
        """Images as they are seen at test time."""
        with torch.autocast(maps.device.type, enabled=False):
            local = self.visual(places(maps.float()))
            return View(local, self.key(local))

    def tune(self, view: View, words: Words, targets: Targets) -> Tuned:
        """Trains a fresh output layer and fresh embeddings, and a copy of the decoder, on all images at once."""
        tokens, like = targets.shape[1] + 1, view.places
        output = Head(like.new_zeros(tokens, self.joint), like.new_zeros(tokens))
        with torch.autocast(like.device.type, enabled=False):
            embeddings = self.embed_new(words.float()).detach().clone()
        decoder = copy.deepcopy(self.decoder).requires_grad_(False)
        tuned = Tuned(decoder, embeddings, output, self.count_steps(targets))
        trained = [*output, embeddings, *(decoder.parameters() if self.tune_decoder else ())]
        for tensor in trained:
            tensor.requires_grad_()
        descend(
            lambda: alignment_loss(tuned(view), targets), trained, epochs=self.finetune_epochs, rate=self.finetune_rate
        )
        for tensor in trained:
            tensor.requires_grad_(False)
        return tuned


class WordPLA(PLA):
    """PLA (GloVe): the labels' embeddings are their word vectors, projected; for new labels they begin there."""

    embeds_words = True
