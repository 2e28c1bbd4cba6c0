"""Measuring a recipe: train where needed, evaluate every phase, write the result rows."""

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fewtag.errors import InputError
from fewtag.files import check_writable, write_atomically
from fewtag.research.bench.distributed import (
    Bench,
    collective_refusal,
    on_rank_zero,
    rank_share,
    rows_by_all_ranks,
    share_out,
)
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.results import ResultRow, Row, commit, read_inputs, read_rows_of, result_rows, write_rows
from fewtag.research.bench.run_folder import RunFolder
from fewtag.research.bench.train import train
from fewtag.research.data.images import LabelledImages, refuse_unreadable
from fewtag.research.data.sampling import Draw
from fewtag.research.features.backbone import AnyBackbone
from fewtag.research.features.rows import Rows, drop_features, feature_rows, find_copies, take_all
from fewtag.research.methods import Base, ClassNames, EndToEnd, Method
from fewtag.research.types import pool

_base_features: dict[tuple[tuple[str, ...], str, str], Tensor] = {}
"""Global features of the last pictures and network, which runs mostly share: reading takes longer than solving."""


def measure(
    experiment: Experiment, bench: Bench, *, runs: Path, out: Path, command: str, force: bool = False
) -> dict[str, list[ResultRow]]:
    """The rows of each phase; a phase already measured with the same recipe is read back, not run again."""
    recipe, fabric = experiment.recipe, bench.fabric
    files = {phase: out / f"{recipe.name}.{phase}.parquet" for phase in recipe.evaluation.phases}
    rows = {} if force else on_rank_zero(fabric, lambda: measured_rows(ResultRow, files, experiment))
    if len(rows) == len(files):
        return rows

    # checked now, so that mistakes are reported before hours of work
    with collective_refusal():
        draws = {phase: experiment.test_draws(phase) for phase in files if phase not in rows}
        words = {phase: experiment.words(experiment.phase(phase).labels) for phase in draws}
        run = None if recipe.training is None else RunFolder.of(experiment, runs)
    on_rank_zero(fabric, partial(check_writable, out / recipe.name))
    facts = {} if run is None else _train(experiment, run, bench, out)
    with _ready(experiment, run, bench) as (backbone, method):
        if run is not None or method.base_stage == "features":
            facts["base_pictures"] = len(experiment.phase("train"))
        if method.base_stage == "features":
            solve(method, experiment, backbone, bench)
        for phase, phase_draws in draws.items():
            images = experiment.phase(phase)
            used, numbered = _used(images, phase_draws)  # so that a large pool is not encoded for a few draws
            features = read_features(used, backbone, bench, phase)
            if fabric.is_global_zero:
                _warn_of_copies(used, features, phase)
                if "base_pictures" in facts:
                    _warn_of_learnt(images, phase_draws, experiment.phase("train"), phase)
            pictures = Pool.of(used, features, words[phase], fabric.device)
            since = time.perf_counter()
            advance = bench.begin(f"measuring {recipe.name} on {phase}", len(rank_share(fabric, numbered)))
            judged = share_out(fabric, numbered, partial(evaluate, method, pictures, advance=advance))
            facts["seconds"] = round(time.perf_counter() - since, 2)
            facts |= {"data_digest": images.digest, "draws_digest": draws_digest(phase_draws, images)}
            means = np.mean([episode.label_aps for episode in judged], axis=0).round(6)
            facts["label_aps"] = json.dumps(dict(zip(images.labels, means.tolist(), strict=True)))
            metrics, device = [episode.metrics for episode in judged], device_name(fabric.device)
            rows[phase] = found = result_rows(recipe, phase, metrics, command=command, device=device, facts=facts)
            inputs = experiment.inputs_digest
            on_rank_zero(fabric, partial(write_rows, files[phase], found, recipe=recipe, inputs=inputs))
    return rows


def _warn_of_copies(images: LabelledImages, rows: Rows, phase: str) -> None:
    if copies := find_copies(rows):
        one, other = (images.ids[row] for row in copies[0])
        warnings.warn(
            f"{len(copies)} of the {len(images)} pictures of {phase!r} are copies of others, such as {other!r} of "
            f"{one!r}: one may be support and the other query of an episode; list each once, with all its labels",
            stacklevel=2,
        )


def _warn_of_learnt(images: LabelledImages, draws: Sequence[Draw], base: LabelledImages, phase: str) -> None:
    if learnt := {images.ids[row] for draw in draws for row in draw.query} & set(base.ids):
        warnings.warn(
            f"{len(learnt)} query pictures of {phase!r}, such as {min(learnt)!r}, are base pictures that the method "
            "learns from; let the split's phase `train` name the novel labels in `must_not_show`",
            stacklevel=2,
        )


def _used(images: LabelledImages, draws: Sequence[Draw]) -> tuple[LabelledImages, list[Draw]]:
    """The pictures that are drawn, in order, and the draws renumbered to them."""
    rows = sorted({row for draw in draws for row in (*draw.support, *draw.query)})
    number = {row: place for place, row in enumerate(rows)}
    sides = [[tuple(number[row] for row in side) for side in (draw.support, draw.query)] for draw in draws]
    return images.select(rows), [replace(draw, support=s, query=q) for draw, (s, q) in zip(draws, sides, strict=True)]


def _train(experiment: Experiment, run: RunFolder, bench: Bench, out: Path) -> dict[str, Any]:
    """Trains the run, unless it is already trained; returns the facts about it for the rows."""
    recipe, fabric = experiment.recipe, bench.fabric
    assert recipe.training is not None
    if on_rank_zero(fabric, lambda: run.summary) is None:
        with collective_refusal():
            for phase in recipe.evaluation.phases:
                images = experiment.phase(phase)
                refuse_unreadable(images.select(rank_share(fabric, range(len(images)))))
    summary = train(experiment, run, bench)

    def write_curve() -> None:
        curve = json.dumps({"recipe": recipe.digest, "commit": commit(), "curve": run.curve})
        write_atomically(out / f"{recipe.name}.training.json", curve.encode())

    on_rank_zero(fabric, write_curve)
    facts: dict[str, Any] = {
        "trained_episodes": summary.best_episode,
        "planned_episodes": recipe.training.episodes,
        "episodes_a_step": recipe.training.episodes_per_step * summary.processes,
    }
    if summary.best is not None:
        facts["validation_macro_ap"] = summary.best
    return facts


def read_features(images: LabelledImages, backbone: AnyBackbone, bench: Bench, what: str) -> Rows:
    return rows_by_all_ranks(bench, images, partial(feature_rows, backbone=backbone, cache=bench.cache), what)


def solve(method: Method, experiment: Experiment, backbone: AnyBackbone, bench: Bench) -> None:
    """Runs the base stage of a method that solves on the global features of all base pictures."""
    with collective_refusal():
        images = experiment.phase("train")
        words = experiment.words(images.labels)
    rows, names, device = read_features(images, backbone, bench, "train"), None, bench.fabric.device
    if method.uses_names and (settings := experiment.recipe.names) is not None:
        with collective_refusal():
            classifier = experiment.build_classifier().to(device)
            class_words, numbers = experiment.class_words()
        soft = read_features(images, classifier, bench, "class probabilities of train")
        chances = torch.cat([some[:, numbers].float() for some in take_all(soft)])
        names = ClassNames(class_words.to(device), chances.to(device), settings.weight)
    key = (images.ids, images.digest, backbone.fingerprint)  # with the ids, since the digest ignores their order
    if key not in _base_features:
        _base_features.clear()
        _base_features[key] = global_features(rows)
    targets = torch.from_numpy(images.targets)
    method.prepare(Base(images.labels, words.to(device), targets.to(device), _base_features[key].to(device), names))


def global_features(rows: Rows) -> Float[Tensor, "images channels"]:
    """Every picture's mean over places."""
    return torch.cat([pool(some.float()) for some in take_all(rows)])


def load_trained(experiment: Experiment, run: RunFolder | None) -> tuple[AnyBackbone, Method]:
    """The recipe's backbone and method with the run's best weights; as built if the recipe trains nothing."""
    backbone, method = experiment.build()
    if run is not None:
        run.load_best(method if experiment.recipe.backbone.frozen else EndToEnd(backbone, method))
    return backbone, method


@contextmanager
def _ready(experiment: Experiment, run: RunFolder | None, bench: Bench) -> Iterator[tuple[AnyBackbone, Method]]:
    """Network and method on the device; features of a fine-tuned network are used once, and removed afterwards."""
    fabric = bench.fabric
    with collective_refusal():
        backbone, method = load_trained(experiment, run) if fabric.is_global_zero else experiment.build()
    whole = method if experiment.recipe.backbone.frozen else EndToEnd(backbone, method)
    whole.load_state_dict(fabric.broadcast(whole.state_dict()))
    backbone.to(fabric.device).eval()
    method.to(fabric.device).eval()
    try:
        yield backbone, method
    finally:
        # if the untrained weights were kept, it is the published network, whose features other runs share
        tuned = run is not None and run.summary is not None and run.summary.best_episode > 0
        if not experiment.recipe.backbone.frozen and tuned and fabric.is_global_zero:
            drop_features(backbone, bench.cache)


def measured_rows(kind: type[Row], files: Mapping[str, Path], experiment: Experiment) -> dict[str, list[Row]]:
    """The rows of phases already measured; those of another recipe, inputs or draws are refused, not replaced."""
    found = {phase: rows for phase, path in files.items() if path.exists() and (rows := read_rows_of(kind, path))}
    for phase, rows in found.items():
        images, drawn = experiment.phase(phase), getattr(rows[0], "draws_digest", None)
        same = (rows[0].recipe_digest, rows[0].data_digest) == (experiment.recipe.digest, images.digest)
        same = same and read_inputs(files[phase]) in ("", experiment.inputs_digest)
        # draws that are not saved follow from the recipe and the data; a file of draws may have been written anew
        if same and drawn is not None and experiment.recipe.evaluation.draws.get(phase):
            same = drawn == draws_digest(experiment.test_draws(phase), images)
        if not same:
            raise InputError(
                f"{files[phase]} holds rows of another recipe, of other draws or of other data (base pictures, files "
                "of weights and words, a method's own file); name another --out, or --force to replace them"
            )
    return found


def draws_digest(draws: Sequence[Draw], images: LabelledImages) -> str:
    """A digest of the draws: which pictures, on which side, in which order."""
    named = [[[images.ids[row] for row in side] for side in (draw.support, draw.query)] for draw in draws]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """`NVIDIA H200`, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
