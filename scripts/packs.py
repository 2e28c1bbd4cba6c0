"""The COCO packs for the scripts that make and measure models: pictures, a network's features, words, episodes.

What a network of the research wing sees, and what a model of the product sees, is computed once, into the cache.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Places, Space, Vectors
from fewtag.files import user_cache_folder
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe import Recipe
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.backbone import Backbone, open_backbone
from fewtag.research.features.rows import Rows, feature_rows, take_all
from fewtag.tagger.model import Model
from fewtag.tagger.stream import cached_places, encode_stream, items_of
from fewtag.words.vectors import SHIPPED, WordTable, load_words

NETWORK, SIZE = "tf_efficientnet_lite2", 224
PHASES = ("train", "val", "test", "mixed")
CALIBRATION = ("val", "crowded")
"""Phases of the validation labels: alone in plain pictures, and beside base labels (`more_pictures.py` makes these)."""


def source(*packs: str) -> dict[str, Any]:
    return {"format": "table", "path": "coco/labels.tsv", "images": "coco", "where": {"pack": list(packs)}}


RECIPE = {
    "name": "packs",
    "data": {
        "name": "coco",
        "split": "coco",
        "sources": [{**source(*PHASES), "phases": list(PHASES)}, {**source("crowded"), "phases": ["crowded"]}],
    },
    "words": {"source": SHIPPED},
    "method": {"name": "closed-form"},
}
BATCH = 128


class Packs:
    """The pictures of each phase of the paper's split, with what a network and the words make of them."""

    def __init__(
        self,
        data: Path,
        cache: Path,
        *,
        network: str = NETWORK,
        weights: str | None = None,
        size: int = SIZE,
        words: str = SHIPPED,
    ) -> None:
        backbone: dict[str, Any] = {"name": network, "weights": weights, "size": size}
        self.experiment = Experiment(Recipe.model_validate(RECIPE | {"backbone": backbone}), data, data)
        self.cache, self.network, self.weights, self.size, self.words_source = cache, network, weights, size, words
        self._rows: dict[str, Rows] = {}

    @cached_property
    def backbone(self) -> Backbone:
        opened = open_backbone(self.network, weights=self.weights, size=self.size)
        assert isinstance(opened, Backbone), "one network, not several joined"
        return opened.eval()

    @cached_property
    def table(self) -> WordTable:
        return load_words(self.words_source)

    def images(self, phase: str) -> LabelledImages:
        return self.experiment.phase(phase)

    def names(self, labels: Sequence[str]) -> list[str]:
        """What each label is looked up as: the split file says it where the name itself is no word."""
        return [self.experiment.split.spelt(label) for label in labels]

    def words(self, labels: Sequence[str]) -> Vectors:
        """labels × dimensions"""
        return self.table.vectors(self.names(labels))

    def rows(self, phase: str) -> Rows:
        """The network's maps in half precision."""
        if phase not in self._rows:
            print(f"features of the {phase} pictures", flush=True)
            self._rows[phase] = feature_rows(self.images(phase), self.backbone, self.cache)
        return self._rows[phase]

    def pooled(self, phase: str) -> NDArray[np.float32]:
        """images × channels: every picture's mean over places."""
        return np.concatenate([maps.mean(axis=2) for maps in self._maps(phase)])

    def places(self, phase: str, space: Space) -> Places:
        """images × places × space, rounded to half precision, as the product's network hands them out."""
        parts = [space.project(maps.transpose(0, 2, 1)).astype(np.float16) for maps in self._maps(phase)]
        return np.concatenate(parts).astype(np.float32)

    def encoded(self, phase: str, model: Model) -> Places:
        """images × places × space, by the model's own graph, as the product encodes and caches them"""
        with cached_places(model, self.cache) as cached:
            return np.concatenate(list(encode_stream(model, items_of(self.images(phase).pictures), cache=cached)))

    def draws(self, phase: str, shots: int, episodes: int, *, seed: int = 0) -> list[Draw]:
        images = self.images(phase)
        sampler = EpisodeSampler(images.targets, images.labels, shots=shots, queries=4, seed=seed)
        return [sampler.draw(index) for index in range(episodes)]

    def _maps(self, phase: str) -> Iterator[NDArray[np.float32]]:
        """images × channels × places, a batch at a time"""
        for taken in take_all(self.rows(phase), BATCH):
            yield taken.float().flatten(2).numpy()


def packs_parser(description: str | None) -> argparse.ArgumentParser:
    """What every script on the packs is told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds coco/")
    parser.add_argument("--cache", type=Path, default=user_cache_folder(), help="where features are kept")
    return parser
