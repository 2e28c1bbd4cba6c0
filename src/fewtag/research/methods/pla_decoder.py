"""PLA's decoder: an LSTM that looks at an image through attention and emits a token a step."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fewtag.research.methods.head import Head
from fewtag.research.methods.pla_alignment import StepLogits
from fewtag.research.methods.pla_gradients import SharedMatrix, attend

Embeddings = Float[Tensor, "labels embedding"]


class View(NamedTuple):
    """Images as the decoder sees them: their places, and what its attention compares of each."""

    places: Float[Tensor, "images places joint"]
    keys: Float[Tensor, "images places joint"]


class Weights(NamedTuple):
    """All that a decoder learns, joined by what it is applied to; what is made for the labels comes last."""

    first: Float[Tensor, "two_joint joint"]
    first_bias: Float[Tensor, "two_joint"]
    hidden: Float[Tensor, "six_joint joint"]
    seen: Float[Tensor, "four_joint joint"]
    token: Float[Tensor, "four_joint embedding"]
    biases: Float[Tensor, "2 four_joint"]
    gate_bias: Float[Tensor, "joint"]
    relevance: Float[Tensor, "joint"]
    stop_and_start: Float[Tensor, "2 embedding"]
    embeddings: Embeddings
    output_weight: Float[Tensor, "tokens joint"]
    output_bias: Float[Tensor, "tokens"]


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

    def weights(self, embeddings: Embeddings, output: Head) -> Weights:
        """For labels with these embeddings and this output layer."""
        token, seen = self.lstm.weight_ih.tensor_split([len(self.start)], dim=1)
        return Weights(
            first=torch.cat([self.first_hidden.weight, self.first_cell.weight]),
            first_bias=torch.cat([self.first_hidden.bias, self.first_cell.bias]),
            hidden=torch.cat([self.lstm.weight_hh, self.gate.weight, self.query.weight]),
            seen=seen,
            token=token,
            biases=torch.stack([self.lstm.bias_ih, self.lstm.bias_hh]),
            gate_bias=self.gate.bias,
            relevance=self.relevance.weight[0],
            stop_and_start=torch.stack([self.stop, self.start]),
            embeddings=embeddings,
            output_weight=output.weight,
            output_bias=output.bias,
        )


def decode(weights: Weights, view: View, running: Sequence[int]) -> StepLogits:
    """The scores of all tokens at each step; a step is told of the likeliest token of the step before it.

    Only the first `running[step]` images take a step, so those that take most come first; the others score 0 there.
    """
    summary = view.places.mean(dim=1)
    hidden, cell = F.linear(summary, weights.first, weights.first_bias).chunk(2, dim=1)
    joint = hidden.shape[1]
    # what a token adds to the LSTM's gates, made once for each token: they are fewer than images times steps
    tokens = F.linear(torch.cat([weights.embeddings, weights.stop_and_start]), weights.token, weights.biases.sum(dim=0))
    from_hidden, from_seen = SharedMatrix(weights.hidden), SharedMatrix(weights.seen)
    emitted, logits = tokens[-1:].expand(len(summary), -1), []
    for images in running:
        hidden, cell, emitted = hidden[:images], cell[:images], emitted[:images]
        inner, gate, query = from_hidden(hidden).tensor_split([4 * joint, 5 * joint], dim=1)
        attended = attend(query, weights.relevance, view.keys[:images], view.places[:images])
        seen = (gate + weights.gate_bias).sigmoid() * attended
        let_in, keep, new, out = (inner + from_seen(seen) + emitted).chunk(4, dim=1)
        cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        logits.append(F.linear(hidden, weights.output_weight, weights.output_bias))
        emitted = F.embedding(logits[-1].argmax(dim=1), tokens)
    return torch.stack([F.pad(found, (0, 0, 0, len(summary) - len(found))) for found in logits], dim=1)
