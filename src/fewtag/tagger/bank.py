"""All that was learnt, in one value that never changes: what labels mean, examples, prototypes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Float32, Int, Int8
from torch import Tensor

from fewtag.research.methods.closed_form import ClosedForm

Kind = Literal["name", "like", "vector", "none"]


@dataclass(frozen=True, eq=False)
class Definition:
    """What a label means before any picture of it."""

    kind: Kind
    words: tuple[str, ...] = ()
    """The names that were looked up."""
    vector: Float32[Tensor, "dimensions"] | None = None
    """Its word; none where pictures alone shall speak."""
    told: bool = False
    """Whether a person said so: it then outlives the label's examples."""

    def __str__(self) -> str:
        if self.kind == "like":
            return f"like {', '.join(self.words)}"
        return {"name": "its name", "vector": "a vector of its own", "none": "pictures only"}[self.kind]


@dataclass(frozen=True, eq=False)
class Example:
    """A picture's places in the method's space, a byte a number, and the labels it shows."""

    labels: frozenset[str]
    codes: Int8[Tensor, "places space"]
    scales: Float32[Tensor, "places"]

    @classmethod
    def of(cls, labels: frozenset[str], places: Float[Tensor, "places space"]) -> "Example":
        scales = (places.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        return cls(labels, (places / scales[:, None]).round().to(torch.int8).cpu(), scales.cpu())

    @property
    def places(self) -> Float32[Tensor, "places space"]:
        return self.codes.float() * self.scales[:, None]


@dataclass(frozen=True, eq=False)
class Bank:
    """Definitions by label and examples by digest, both sorted, and what follows from them."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    examples: Mapping[str, Example] = field(default_factory=dict)
    prototypes: Mapping[str, Float32[Tensor, "space"]] = field(default_factory=dict)
    """Of each label that can be scored: one defined without words has none until its first example."""

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The digests of each label's examples, sorted."""
        found: dict[str, list[str]] = {label: [] for label in self.definitions}
        for digest, example in self.examples.items():
            for label in example.labels:
                found[label].append(digest)
        return {label: tuple(digests) for label, digests in found.items()}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels that can be scored, sorted."""
        return tuple(self.prototypes)

    @cached_property
    def matrix(self) -> Float32[Tensor, "labels space"]:
        return torch.stack(list(self.prototypes.values()))

    @cached_property
    def counts(self) -> Int[Tensor, "labels"]:
        return torch.tensor([len(self.members[label]) for label in self.classes], dtype=torch.int64)

    def change(
        self, method: ClosedForm, definitions: Mapping[str, Definition], examples: Mapping[str, Example]
    ) -> "Bank":
        """Another bank with these; labels that nobody defined go with their last example."""
        shown = {label for example in examples.values() for label in example.labels}
        kept = {label: found for label, found in sorted(definitions.items()) if found.told or label in shown}
        # sorted, so that the order of learning leaves no trace, not even in the last bit of a sum
        changed = Bank(kept, dict(sorted(examples.items())))
        prototypes = {}
        for label, definition in kept.items():
            digests = changed.members[label]
            if label in self.prototypes and definition is self.definitions[label] and digests == self.members[label]:
                prototypes[label] = self.prototypes[label]
            elif digests or definition.vector is not None:
                prototypes[label] = prototype(method, definition, [examples[digest] for digest in digests])
        return Bank(changed.definitions, changed.examples, prototypes)


@torch.inference_mode()
def prototype(method: ClosedForm, definition: Definition, examples: Sequence[Example]) -> Float32[Tensor, "space"]:
    """The sum of what is attended to in each example, with the label's word mixed in."""
    device = method.mean.device
    if definition.vector is None:
        # guided by nothing, all places count alike; mixed with nothing, pictures alone speak
        guide = torch.zeros(1, method.space, device=device)
    else:
        guide = method.word_prototypes(definition.vector[None].to(device))
    if not examples:
        return guide[0].cpu()
    # one at a time, so that a thousand examples of a label need no more memory than one
    pooled = [method.attend(example.places[None].to(device), guide)[0] for example in examples]
    count = torch.tensor([float(len(examples))], device=device)
    return method.mix(torch.stack(pooled).sum(dim=0), guide, count)[0].cpu()
