"""The tagger: new labels from one example each, without training."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8

from fewtag.errors import InputError, nearest
from fewtag.pictures.decode import squash
from fewtag.tagger.bank import Bank, Definition
from fewtag.tagger.bank_file import fingerprint, read_bank, read_header, write_bank
from fewtag.tagger.encode import Places, encode_examples, encode_images, encode_pixels, same_length, to_maps
from fewtag.tagger.inputs import ImageLike, digest, label_name, label_sets, open_image, open_square, several
from fewtag.tagger.meaning import by_name, define
from fewtag.tagger.model import SHIPPED, Model, load_model

Labels = Iterable[str | Iterable[str]]
Probabilities = Float32[np.ndarray, "images labels"]

LABELS_AT_ONCE = 1000
"""With more, what lies between places and scores leaves the processor's cache, and a label takes twice as long."""
DEVICES = ("auto", "cpu", "cuda")


class Tagger:
    """Learns labels from a picture or a word each; one thread may teach it while others ask."""

    def __init__(self, model: str | Model = "default", *, words: str | None = None) -> None:
        self.model = load_model(model, words=words) if isinstance(model, str) else model
        self._source = (full_path(model) if isinstance(model, str) else model.name, words and full_path(words))
        self._lock = threading.RLock()  # for writers; readers take the bank once, and it never changes
        self._bank = Bank()

    def __repr__(self) -> str:
        known = f"labels={len(self._bank.definitions)}, examples={len(self._bank.examples)}"
        return f"Tagger(model={self.model.name!r}, words={self.model.words.name!r}, {known})"

    def to(self, device: str) -> "Tagger":
        """Works on this device from now on: cpu, cuda, or auto, which is a GPU where there is one."""
        if device not in DEVICES:
            raise InputError(f"there is no device {device!r}; {nearest(device, DEVICES)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("device 'cuda' is a GPU, and torch finds none here; use cpu or auto")
        chosen = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
        self.model.backbone.to(chosen)
        self.model.method.to(chosen)
        return self

    @property
    def device(self) -> str:
        """Where it works: cpu or cuda."""
        return self.model.backbone.mean.device.type

    def fit(self, images: Iterable[ImageLike], labels: Labels) -> "Tagger":
        """Learns these examples and forgets all others; what labels were defined to mean stays."""
        return self._learn(images, labels, afresh=True)

    def partial_fit(self, images: Iterable[ImageLike], labels: Labels) -> "Tagger":
        """Learns these examples too. A picture known already takes the labels given now."""
        return self._learn(images, labels, afresh=False)

    def define(
        self,
        label: str,
        *,
        like: Sequence[str] | None = None,
        vector: Sequence[float] | np.ndarray | None = None,
        words: bool = True,
    ) -> "Tagger":
        """What a label means: its own name, `like` other words, a `vector`, or no words: its pictures only."""
        name = label_name(label)
        with self._lock:
            bank = self._bank
            definition = define(name, self.model.words, bank.definitions, like=like, vector=vector, words=words)
            self._bank = bank.change(self.model.method, {**bank.definitions, name: definition}, bank.examples)
        return self

    def forget(self, label: str, image: ImageLike | None = None) -> "Tagger":
        """A label, or one example of it. A label that was never defined goes with its last example."""
        with self._lock:
            bank, name = self._bank, self._find(self._bank, label)
            definitions, examples = dict(bank.definitions), dict(bank.examples)
            gone = bank.members[name] if image is None else (digest(open_image(image)),)
            if image is None:
                del definitions[name]
            elif gone[0] not in bank.members[name]:
                shown = image if isinstance(image, str | os.PathLike) else "given"
                raise InputError(f"image {shown} is none of the {len(bank.members[name])} examples of label {name!r}")
            for key in gone:
                if left := examples[key].labels - {name}:
                    examples[key] = replace(examples[key], labels=left)
                else:
                    del examples[key]
            self._bank = bank.change(self.model.method, definitions, examples)
        return self

    @property
    def model_name(self) -> str:
        """Which model this is: a shipped one's name, or a file's full path."""
        return self._source[0]

    @property
    def words_name(self) -> str:
        """Which words label names are looked up in: a name, or a file's full path."""
        return self._source[1] or self.model.words.name

    @property
    def bank_(self) -> Bank:
        """All that was learnt, as a value that never changes."""
        return self._bank

    @property
    def classes_(self) -> tuple[str, ...]:
        """The labels that are scored, sorted; one defined without words joins them with its first example."""
        return self._bank.classes

    @property
    def counts_(self) -> Mapping[str, int]:
        """How many examples each label has."""
        return MappingProxyType({label: len(digests) for label, digests in self._bank.members.items()})

    @property
    def definitions_(self) -> Mapping[str, Definition]:
        """What each label means before any picture of it."""
        return MappingProxyType(dict(self._bank.definitions))

    @property
    def thresholds_(self) -> Mapping[str, float]:
        """The probability from which each label is given."""
        return MappingProxyType(self._thresholds(self._bank))

    def predict_proba(self, images: Iterable[ImageLike]) -> Probabilities:
        """A row a picture, a column for each of `classes_`. Memory is that of a batch, however many there are."""
        return self._predict_proba(self._scored(), images)

    def predict(self, images: Iterable[ImageLike]) -> list[tuple[str, ...]]:
        """The names over their threshold, likeliest first."""
        bank = self._scored()
        names, thresholds = bank.classes, np.array(list(self._thresholds(bank).values()), np.float32)
        return [
            tuple(names[column] for column in np.argsort(-row, kind="stable") if row[column] >= thresholds[column])
            for row in self._predict_proba(bank, images)
        ]

    def explain(self, image: ImageLike, label: str) -> Float[np.ndarray, "height width"]:
        """How much each part of the picture looks like the label, from 0 to 1, in the picture's own size."""
        from fewtag.tagger.explain import heat_map  # brings matplotlib, which nothing else here needs

        bank = self._scored()
        name, picture = self._find(bank, label), open_image(image)
        if name not in bank.prototypes:
            raise InputError(f"label {name!r} has neither a word nor an example yet; give it one")
        with torch.inference_mode():
            # twice the side: four times the work for one picture, and a map fine enough to point with
            backbone = self.model.backbone.zoomed()
            maps = to_maps(backbone, squash(picture, backbone.size)[None])
            relevance = self.model.method.relevance(maps, bank.prototypes[name][None].to(maps.device))
        return heat_map(relevance[0, 0].float().cpu().numpy(), picture.size)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One file; a kill in the middle leaves the old one."""
        source, words = self._source
        facts = {"source": source, "words": words, "fingerprint": self._fingerprint}
        facts |= {"name": self.model.name, "words_name": self.model.words.name}
        with self._lock:
            write_bank(Path(path), self._bank, facts, self._thresholds(self._bank))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, model: str | Model | None = None, words: str | None = None
    ) -> "Tagger":
        """What `save` wrote; `model` and `words` say where those files are now, if they have moved."""
        header = read_header(Path(path))
        facts = header["model"]
        tagger = cls(facts["source"] if model is None else model, words=words or facts["words"])
        if tagger._fingerprint != facts["fingerprint"]:
            raise InputError(
                f"bank {path} was made with another model {facts['name']!r} (words {facts['words_name']!r}); "
                f"load it with that one (`model=`, `words=`), or with the fewtag {header['fewtag']} that wrote it"
            )
        tagger._bank = read_bank(Path(path), header, tagger.model.method.dimensions, tagger.model.method.space)
        return tagger

    def pixels(self, image: ImageLike) -> UInt8[np.ndarray, "3 size size"]:
        """One picture as the network takes it; for callers that decode in threads of their own."""
        return open_square(image, "given", self.model.backbone.size)

    def encode_pixels(self, pixels: UInt8[np.ndarray, "images 3 size size"]) -> Places:
        """One pass of the network over pictures that `pixels` made."""
        return encode_pixels(self.model, pixels)

    def encode(self, images: Iterable[ImageLike]) -> Places:
        """The pictures' places, all in memory: about 100 KB each."""
        found = list(encode_images(self.model, images))
        return torch.cat(found) if found else torch.empty(0, 1, self.model.method.space)

    def probabilities(self, places: Places) -> Probabilities:
        """Of encoded pictures, a column for each of `classes_`."""
        return self._probabilities(self._scored(), places)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.model)

    def _learn(self, images: Iterable[ImageLike], labels: Labels, *, afresh: bool) -> "Tagger":
        pictures, shown = several(images), label_sets(labels)
        if isinstance(pictures, Sized):
            same_length(len(pictures), len(shown))
        with self._lock:
            bank = self._bank
            definitions = {name: found for name, found in bank.definitions.items() if found.told or not afresh}
            for name in sorted(frozenset().union(*shown) - definitions.keys()):
                definitions[name] = by_name(name, self.model.words)
            learnt = encode_examples(self.model, pictures, shown, bank.examples)
            examples = learnt if afresh else {**bank.examples, **learnt}
            self._bank = bank.change(self.model.method, definitions, examples)
        return self

    def _find(self, bank: Bank, label: str) -> str:
        name = label_name(label)
        if name not in bank.definitions:
            hint = nearest(name, bank.definitions) if bank.definitions else "none is known yet"
            raise InputError(f"there is no label {name!r}; {hint}")
        return name

    def _scored(self) -> Bank:
        bank = self._bank
        if not bank.classes:
            raise InputError("no label is known yet; learn one from a picture with fit, or by its name with define")
        return bank

    def _predict_proba(self, bank: Bank, images: Iterable[ImageLike]) -> Probabilities:
        empty = np.empty((0, len(bank.classes)), np.float32)
        return np.concatenate(
            [empty, *(self._probabilities(bank, places) for places in encode_images(self.model, images))]
        )

    def _probabilities(self, bank: Bank, places: Places) -> Probabilities:
        with torch.inference_mode():
            prototypes = bank.matrix.to(places.device).split(LABELS_AT_ONCE)  # type: ignore[no-untyped-call]
            scores = torch.cat([self.model.method.score(places, some) for some in prototypes], dim=1)
            return self.model.calibration.probabilities(scores, bank.counts.to(places.device)).float().cpu().numpy()

    def _thresholds(self, bank: Bank) -> dict[str, float]:
        return dict(zip(bank.classes, self.model.calibration.threshold(bank.counts).tolist(), strict=True))


def full_path(source: str) -> str:
    """Files by their full path, since a bank is loaded from other folders too; names as they are."""
    path, mark, key = source.partition("#")
    return source if source in SHIPPED or not Path(path).is_file() else f"{Path(path).resolve()}{mark}{key}"
