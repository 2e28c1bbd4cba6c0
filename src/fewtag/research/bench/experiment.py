"""An experiment: a recipe's pictures, words, network and test episodes, loaded."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewtag.errors import InputError
from fewtag.research.bench.recipe import Recipe, Source, digest_of
from fewtag.research.data.images import LabelledImages, concatenate, readable
from fewtag.research.data.readers import read_coco, read_folders, read_table, read_voc
from fewtag.research.data.sampling import SAMPLERS, Draw, load_draws
from fewtag.research.data.splits import Split, class_names, overlapping_classes
from fewtag.research.features.backbone import AnyBackbone, ImageClassifier, create_classifier, open_backbone
from fewtag.research.features.words import load_words
from fewtag.research.methods import Base, Method, create_method
from fewtag.research.methods.closed_form import Whitened
from fewtag.research.types import Words
from fewtag.words.vectors import WordTable, class_vectors


class Experiment:
    """What a recipe names, each loaded when first asked for. `root` is the folder that paths are relative to.

    `compiled` has the network compiled where it is trained.
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
        """Takes over what another one of the same folders has read, and returns itself.

        Runs of a recipe mostly have the same pictures and words; COCO's annotations and GloVe's file, read again for
        each run, would take longer than most of them.
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
        """The backbone with its published weights and the method, untrained; new ones each time."""
        settings = self.recipe.backbone
        weights = None if settings.weights is None else self._locate(settings.weights)
        torch.manual_seed(self.recipe.seed)  # random weights are the same ones when a run goes on or is measured
        backbone = open_backbone(settings.name, weights=weights, size=settings.size, grid=settings.grid)
        torch.manual_seed(self.recipe.seed)  # the parameters' first values
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
        """The network whose class names a recipe gives."""
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
        """The word vectors of the classes that have one, less those that a clean list leaves out, and their numbers."""
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
    def training_digest(self) -> str:
        """Names what is trained, pictures and labels included; experiments that only measure otherwise share it."""
        training = self.recipe.training
        assert training is not None
        phases = ("train", "val") if training.patience else ("train",)
        return digest_of([self.recipe.training_settings, {name: self.phase(name).digest for name in phases}])

    def test_draws(self, phase: str) -> list[Draw]:
        """The episodes to measure a phase on: saved ones, or drawn, the same ones whatever the training's seed.

        Names alone are measured on the queries of one shot.
        """
        evaluation, draws = self.recipe.evaluation, self._shot_draws(phase)
        if evaluation.supports == "single":
            columns = range(len(self.phase(phase).labels))
            named = tuple(column for column in columns for _ in range(evaluation.shots))
            return [replace(draw, named=named) for draw in draws]
        return [Draw((), draw.query) for draw in draws] if evaluation.shots == 0 else draws

    def _shot_draws(self, phase: str) -> list[Draw]:
        evaluation, images = self.recipe.evaluation, self.phase(phase)
        if saved := evaluation.draws.get(phase):
            path = self.recipe_folder / saved
            draws = load_draws(path, images)
            if evaluation.sampling == "at-least":
                self._check_at_least(path, draws, phase)
                return draws[: evaluation.episodes]
            found = len(draws[0].support) if draws else 0
            # examples from a half serve several labels at once, so that their number is not known beforehand
            halves = evaluation.sampling == "halves"
            wanted = found if halves else len(images.labels) * max(1, evaluation.shots)
            if len(draws) < evaluation.episodes or found != wanted:
                raise InputError(
                    f"draws {path} hold {len(draws)} episodes with {found} support images, the recipe "
                    f"asks for {evaluation.episodes} with {wanted}; name other draws or none"
                )
            return draws[: evaluation.episodes]
        return self.sample_draws(phase)

    def sample_draws(self, phase: str, seed: int = 0) -> list[Draw]:
        """Test episodes that no file names."""
        evaluation, images = self.recipe.evaluation, self.phase(phase)
        options: dict[str, Any] = {"shots": max(1, evaluation.shots), "queries": evaluation.queries}
        if evaluation.sampling == "at-least":
            options |= {side: self._side(phase, side) for side in ("support", "query")}
        sampler = SAMPLERS[evaluation.sampling](images.targets, images.labels, seed=seed, **options)
        return [sampler.draw(index) for index in range(evaluation.episodes)]

    def _check_at_least(self, path: Path, draws: Sequence[Draw], phase: str) -> None:
        """Refuses saved draws that show a label too seldom, or use a picture on the other side."""
        evaluation, images = self.recipe.evaluation, self.phase(phase)
        fewest = []
        for side in ("support", "query"):
            chosen = [list(getattr(draw, side)) for draw in draws]
            strange = sorted({row for rows in chosen for row in rows} - set(self._side(phase, side)))
            if strange:
                raise InputError(
                    f"draws {path} have image {images.ids[strange[0]]!r} in the {side}, but its source serves the "
                    "other side; name other draws, or mend the sources' `role`"
                )
            fewest.append(min((int(images.targets[rows].sum(axis=0).min()) for rows in chosen), default=0))
        if len(draws) < evaluation.episodes or fewest[0] < evaluation.shots or fewest[1] < evaluation.queries:
            raise InputError(
                f"draws {path} hold {len(draws)} episodes with at least {fewest[0]} support and {fewest[1]} query "
                f"images a label, the recipe asks for {evaluation.episodes} with {evaluation.shots} and "
                f"{evaluation.queries}; name other draws or none"
            )

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
        """The rows of a phase that may serve the support, or the query."""
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
        """`keras:weights.safetensors` or `vectors.npz#key` with the file's place filled in, if there is such a file."""
        if "+" in source:
            return "+".join(self._locate(part.strip()) for part in source.split("+"))
        kind, colon, rest = source.rpartition(":")
        file, hash_sign, key = rest.partition("#")
        for folder in (self.root, self.recipe_folder):
            if (folder / file).is_file():
                return f"{kind}{colon}{folder / file}{hash_sign}{key}"
        return source


def _several(paths: str | list[str] | None) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or [])
