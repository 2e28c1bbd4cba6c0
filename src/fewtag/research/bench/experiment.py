"""An experiment: a recipe's pictures, words, network and test episodes, loaded."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewtag.errors import InputError, nearest
from fewtag.research.bench.recipe import Recipe, Source, digest_of
from fewtag.research.data.images import LabelledImages, concatenate, readable
from fewtag.research.data.readers import read_coco, read_folders, read_table, read_voc
from fewtag.research.data.sampling import SAMPLERS, Draw, load_draws
from fewtag.research.data.splits import Split, class_names, overlapping_classes
from fewtag.research.features.backbone import AnyBackbone, ImageClassifier, create_classifier, open_backbone
from fewtag.research.features.words import load_words
from fewtag.research.methods import METHODS, Base, Method, create_method
from fewtag.research.methods.closed_form import Whitened
from fewtag.research.types import Words
from fewtag.words.vectors import WordTable, class_vectors


class Experiment:
    """What a recipe names, each part loaded when first needed. `root` is the folder that paths are relative to.

    `compiled` compiles the network for training.
    """

    def __init__(
        self, recipe: Recipe, root: Path, recipe_folder: Path, *, skip_bad: bool = False, compiled: bool = False
    ) -> None:
        self.recipe, self.root, self.recipe_folder = recipe, root, recipe_folder
        self.skip_bad, self.compiled = skip_bad, compiled
        self.skipped: list[str] = []
        self._read: dict[int, LabelledImages] = {}
        self._phases: dict[str, LabelledImages] = {}

    def share(self, before: "Experiment | None") -> "Experiment":
        """Takes over what another experiment with the same folders has read, and returns itself.

        Runs of a recipe mostly have the same pictures and words; reading COCO's annotations and GloVe's file again for
        each run would take longer than most of them.
        """
        if before is not None and (before.root, before.recipe_folder) == (self.root, self.recipe_folder):
            if before.recipe.data == self.recipe.data and not self.skip_bad:
                self._read, self._phases = before._read, before._phases
            if before.recipe.words == self.recipe.words and "vectors" in vars(before):
                self.vectors = before.vectors
        return self

    @cached_property
    def split(self) -> Split:
        return Split.load(self._locate(self.recipe.data.split))

    @cached_property
    def vectors(self) -> WordTable:
        return load_words(self._locate(self.recipe.words.source))

    def build(self) -> tuple[AnyBackbone, Method]:
        """The backbone with its published weights and the untrained method; new ones at each call."""
        settings = self.recipe.backbone
        weights = None if settings.weights is None else self._locate(settings.weights)
        torch.manual_seed(self.recipe.seed)  # so that random weights are the same when a run is resumed or measured
        backbone = open_backbone(settings.name, weights=weights, size=settings.size, grid=settings.grid)
        torch.manual_seed(self.recipe.seed)  # for the initial values of the parameters
        space = self.recipe.space
        channels = backbone.channels if space is None else min(space.size, backbone.channels)
        method = create_method(
            self.recipe.method.name,
            channels=channels,
            dimensions=self.vectors.dimensions,
            options=self.recipe.method.options,
        )
        if space is not None:
            return backbone, Whitened(method, backbone.channels, shrinkage=space.shrinkage)
        if method.base_stage == "labels":
            base = self.phase("train")
            method.prepare(Base(base.labels, self.words(base.labels), torch.from_numpy(base.targets)))
        return backbone, method

    def build_classifier(self) -> ImageClassifier:
        """The network for whose class names the recipe asks."""
        settings = self.recipe.names
        assert settings is not None
        weights = None if settings.weights is None else self._locate(settings.weights)
        torch.manual_seed(self.recipe.seed)
        classifier = create_classifier(settings.classifier, weights=weights, size=settings.size)
        if (known := len(class_names(settings.classes))) != classifier.channels:
            raise InputError(
                f"classifier {settings.classifier!r} has {classifier.channels} classes, {settings.classes!r} has "
                f"{known}; name the classes that it was trained for"
            )
        return classifier

    def class_words(self) -> tuple[Words, list[int]]:
        """The word vectors of classes that have one, without those that a clean list leaves out; and their numbers."""
        settings = self.recipe.names
        assert settings is not None
        vectors, known = class_vectors(self.vectors, class_names(settings.classes))
        numbers = np.flatnonzero(known).tolist()
        left_out = overlapping_classes(settings.classes, self.split.name) if settings.variant == "clean" else set()
        kept = [row for row, number in enumerate(numbers) if number not in left_out]
        if not kept:
            raise InputError(
                f"words {self.vectors.name!r} know no class name of {settings.classes!r}; name other words"
            )
        return torch.from_numpy(vectors[kept]), [numbers[row] for row in kept]

    def words(self, labels: Sequence[str]) -> Words:
        vectors, looked_up = self.vectors, [self.split.spelt(label) for label in labels]
        try:
            return torch.from_numpy(vectors.vectors(looked_up))
        except InputError as error:
            raise InputError(
                f"{error}; in a recipe, map the label to known words in the split file "
                '("words": {"sofa": "couch"}), or name another words.source'
            ) from error

    def pictures(self, phase: str | None = None) -> LabelledImages:
        """All pictures with all their labels, from every source, or from those that serve a phase."""
        return concatenate([self._read_source(number, source) for number, source in self._sources(phase)])

    def phase(self, name: str) -> LabelledImages:
        """The pictures of one phase, over its labels."""
        if name not in self._phases:
            images = self.split.phase(self.pictures(name), name, other_labels=self.recipe.data.other_labels)
            if self.skip_bad:
                images, bad = readable(images)
                self.skipped += bad
            else:
                images.check()
            self._phases[name] = images
        return self._phases[name]

    @cached_property
    def inputs_digest(self) -> str:
        """A digest of what no setting tells: base pictures, the split's words, files of weights, words and own code."""
        recipe, phases, kind = self.recipe, list[str](), METHODS[self.recipe.method.name]
        if recipe.training is not None:
            phases = ["train", "val"] if recipe.training.patience else ["train"]
        elif recipe.space is not None or kind.base_stage is not None:
            phases = ["train"]
        named = [recipe.backbone.weights, recipe.words.source, recipe.names.weights if recipe.names else None]
        parts = [part for source in named if source for part in self._parts(source)]
        files = [Path(part.rpartition(":")[2].partition("#")[0]) for part in parts]
        if not kind.__module__.startswith("fewtag."):
            files.append(Path(getattr(sys.modules[kind.__module__], "__file__", None) or ""))
        contents = [_content(file, file.stat().st_mtime_ns) for file in files if file.is_file()]
        return digest_of([{name: self.phase(name).digest for name in phases}, contents, self.split.words])

    @property
    def training_digest(self) -> str:
        """A digest of what is trained, its inputs included; experiments that differ in evaluation share it."""
        return digest_of([self.recipe.training_settings, self.inputs_digest])

    def test_draws(self, phase: str) -> list[Draw]:
        """The episodes to measure a phase on: saved or drawn ones, the same for every training seed.

        With zero shots, labels are measured by name on the queries of one shot.
        """
        evaluation, draws = self.recipe.evaluation, self._shot_draws(phase)
        if evaluation.supports == "single":
            columns = range(len(self.phase(phase).labels))
            named = tuple(column for column in columns for _ in range(evaluation.shots))
            return [replace(draw, named=named) for draw in draws]
        return [Draw((), draw.query) for draw in draws] if evaluation.shots == 0 else draws

    def _shot_draws(self, phase: str) -> list[Draw]:
        evaluation, images, phases = self.recipe.evaluation, self.phase(phase), self.split.phases
        if unknown := sorted(evaluation.draws.keys() - phases.keys()):
            found = f"evaluation.draws names {unknown[0]!r}, which is no phase of the split"
            raise InputError(f"{found}; {nearest(unknown[0], phases)}")
        if not (saved := evaluation.draws.get(phase)):
            return self.sample_draws(phase)
        path = self.recipe_folder / saved
        draws = load_draws(path, images, evaluation.sampling)
        self._check_draws(path, draws, phase)
        return draws[: evaluation.episodes]

    def sample_draws(self, phase: str, seed: int = 0) -> list[Draw]:
        """Test episodes drawn from a seed, for which no file is given."""
        evaluation, images = self.recipe.evaluation, self.phase(phase)
        options: dict[str, Any] = {"shots": max(1, evaluation.shots), "queries": evaluation.queries}
        if evaluation.sampling == "at-least":
            options |= {side: self._side(phase, side) for side in ("support", "query")}
        sampler = SAMPLERS[evaluation.sampling](images.targets, images.labels, seed=seed, **options)
        return [sampler.draw(index) for index in range(evaluation.episodes)]

    def _check_draws(self, path: Path, draws: Sequence[Draw], phase: str) -> None:
        """Refuses saved draws that do not fit the recipe: too few, or with other pictures than it asks for."""
        evaluation, images = self.recipe.evaluation, self.phase(phase)
        if len(draws) < evaluation.episodes:
            found = f"{len(draws)} episodes, the recipe asks for {evaluation.episodes}"
            raise InputError(f"draws {path} hold {found}; name other draws or none")
        if evaluation.sampling == "halves":  # its supports and queries may have any size
            return
        for side, asked in (("support", max(1, evaluation.shots)), ("query", evaluation.queries)):
            eligible, places = set(self._side(phase, side)), np.repeat(np.arange(len(images.labels)), asked)
            for number, draw in enumerate(draws):
                rows, wrong = list(getattr(draw, side)), ""
                shown = images.targets[rows]
                if strange := set(rows) - eligible:
                    wrong = f"has image {images.ids[min(strange)]!r} in the {side}, which its source does not serve"
                elif evaluation.sampling == "at-least":
                    if (fewest := shown.sum(axis=0).min()) < asked:
                        wrong = f"shows a label in {fewest} {side} images, the recipe asks for at least {asked}"
                elif len(rows) != len(places):
                    wrong = f"has {len(rows)} {side} images, the recipe asks for {len(places)}"
                elif not shown[np.arange(len(rows)), places].all():
                    wrong = f"has a {side} image in the place of a label that it does not show, as if labels were moved"
                if wrong:
                    raise InputError(f"draw {number} of {path} {wrong}; name other draws or none")

    def _sources(self, phase: str | None) -> list[tuple[int, Source]]:
        served = [
            (number, source)
            for number, source in enumerate(self.recipe.data.sources)
            if phase is None or source.phases is None or phase in source.phases
        ]
        if not served:
            raise InputError(f"no data source of recipe {self.recipe.name!r} serves phase {phase!r}; add it to one")
        return served

    def _side(self, phase: str, role: str) -> list[int]:
        """The rows of a phase that may serve as support, or as query."""
        sources = [(number, source) for number, source in self._sources(phase) if source.role in (None, role)]
        names = {name for number, source in sources for name in self._read_source(number, source).ids}
        return [row for row, name in enumerate(self.phase(phase).ids) if name in names]

    def _read_source(self, number: int, source: Source) -> LabelledImages:
        if number not in self._read:
            paths = [self.root / path for path in _several(source.path)]
            images = [self.root / path for path in _several(source.images)]
            match source.format:
                case "coco":
                    self._read[number] = read_coco(paths, images)
                case "voc":
                    self._read[number] = read_voc(paths, source.sets, source.keep_difficult)
                case "table":
                    self._read[number] = read_table(paths[0], images[0] if images else None, source.where)
                case "folders":
                    self._read[number] = read_folders(paths[0])
            if source.most_a_label is not None:
                self._read[number] = self._read[number].thin(source.most_a_label)
        return self._read[number]

    def _locate(self, source: str) -> str:
        """A source such as `keras:weights.safetensors` or `vectors.npz#key`, with the file's full path if it exists."""
        return "+".join(self._parts(source))

    def _parts(self, source: str) -> list[str]:
        """The sources that are joined by `+`, which may also be in a path, each located."""
        kind, colon, rest = source.rpartition(":")
        file, hash_sign, key = rest.partition("#")
        for folder in (self.root, self.recipe_folder):
            if "+" not in kind + key and (folder / file).is_file():
                return [f"{kind}{colon}{folder / file}{hash_sign}{key}"]
        return [each for part in source.split("+") for each in self._parts(part.strip())] if "+" in source else [source]


@cache
def _content(path: Path, _changed: int) -> str:
    """A digest of a file, which many runs of a recipe name."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _several(paths: str | list[str] | None) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or [])
