"""Training on episodes of base labels, stopped early by the validation labels; goes on after a kill."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from lightning_fabric import Fabric

from fewtag.errors import InputError
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.learner import Learner, Phase
from fewtag.research.bench.materials import Materials
from fewtag.research.bench.metrics import METRICS
from fewtag.research.bench.progress import Reporter, Silent
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.runs import Run, State
from fewtag.research.bench.together import as_one, by_first, gather, in_order, read_rows_together, share
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.rows import MemoryRows, Rows, feature_rows, pixel_rows
from fewtag.research.methods import EndToEnd, Method


def train(materials: Materials, run: Run, fabric: Fabric, *, cache: Path, report: Reporter | None = None) -> State:
    """Trains the recipe's method, or goes on training it; returns the summary. `run.best` holds the weights."""
    report = report or Silent()
    recipe, training = materials.recipe, materials.recipe.training
    if training is None:
        raise InputError(f"recipe {recipe.name!r} has no [training] table, so there is nothing to train")
    summary = by_first(fabric, run.finished)
    if summary is not None:
        return summary

    method, base, validation = prepare(materials, fabric, cache, report)
    if not any(parameter.requires_grad for parameter in method.parameters()):
        raise InputError(
            f"method {recipe.method.name!r} has nothing to learn on a frozen backbone; remove [training] from recipe "
            f"{recipe.name!r}, or set backbone.frozen = false"
        )
    by_first(fabric, run.claim)
    learner = Learner(method, training, recipe.seed, fabric)
    if saved := by_first(fabric, lambda: run.load_state(torch.device("cpu"), processes=fabric.world_size)):
        learner.load(saved)

    state = learner.state
    report.start(f"training {recipe.name}", training.episodes)
    report.advance(state["episode"])
    saved_at, since = state["episode"], time.perf_counter()
    while state["episode"] < training.episodes and not _is_stale(state, training):
        loss = learner.learn(base, report)
        scores = {} if validation is None else validate(fabric, method, validation, training.validation_episodes)
        # without validation the latest weights are the ones to keep
        better = validation is None or scores["macro_ap"] > state["best"]
        state["stale"] = 0 if better else state["stale"] + 1
        if better:
            state |= {"best": scores.get("macro_ap"), "best_episode": state["episode"]}
        state["seconds"] += time.perf_counter() - since
        since = time.perf_counter()
        report.advance(0, loss=loss, **({"val": scores["macro_ap"]} if scores else {}))
        checkpoint = state["episode"] - saved_at >= training.checkpoint_every
        with as_one(fabric):
            if fabric.is_global_zero:
                if better:
                    run.save_best(method, dict(state))
                run.log({"episode": state["episode"], "loss": loss, "seconds": round(state["seconds"], 2), **scores})
                if checkpoint:
                    run.save_state(learner.saved())
        saved_at = state["episode"] if checkpoint else saved_at
    summary = {**state, "stopped_early": _is_stale(state, training), "episodes_planned": training.episodes}
    by_first(fabric, lambda: run.finish(summary))
    return summary


def _is_stale(state: State, training: Training) -> bool:
    return 0 < training.patience <= state["stale"]


def validate(fabric: Fabric, method: Method, phase: Phase, episodes: int) -> dict[str, float]:
    """Mean metrics over the validation episodes, which the processes share among them."""
    draws = [phase.sampler.draw(index) for index in share(fabric, range(episodes))]
    with as_one(fabric), fabric.autocast():
        mine = evaluate(method, phase.pool, draws)
    found = in_order(gather(fabric, mine))
    return {name: round(fmean(row[name] for row in found), 6) for name in METRICS}


def prepare(materials: Materials, fabric: Fabric, cache: Path, report: Reporter) -> tuple[Method, Phase, Phase | None]:
    """The method, and the base and validation phases as the rows it works on: features, or pixels if end to end.

    Without patience nothing is validated, and the split needs no validation labels.
    """
    recipe, training = materials.recipe, materials.recipe.training
    assert training is not None
    with as_one(fabric):
        backbone, method = materials.build()
    make_rows: Callable[[LabelledImages], Rows]
    if recipe.backbone.frozen:
        backbone.to(fabric.device)
        make_rows = lambda images: feature_rows(images, backbone, cache, advance=report.advance)  # noqa: E731
    else:
        method = EndToEnd(backbone, method)
        if materials.compiled:
            backbone.compile()  # in place: weights keep their names
        make_rows = lambda images: pixel_rows(images, backbone.size, cache, advance=report.advance)  # noqa: E731

    def phase(name: str) -> Phase:
        with as_one(fabric):
            images = materials.phase(name)
            sampler = EpisodeSampler(
                images.targets, images.labels, shots=training.shots, queries=training.queries, seed=recipe.seed
            )
            words = materials.words(images.labels)
        rows = read_rows_together(fabric, images, make_rows, report, name)
        return Phase(Pool.of(images, on_device(rows, fabric.device), words, fabric.device), sampler)

    return method, phase("train"), phase("val") if training.patience else None


def on_device(rows: Rows, device: torch.device) -> Rows:
    """The same rows in the accelerator's memory, if they fit in half of what is free."""
    if device.type != "cuda":
        return rows
    first = rows.take([0])
    free, _ = torch.cuda.mem_get_info(device)
    if first.nbytes * len(rows) > free / 2:
        return rows
    tensor = torch.empty(len(rows), *first.shape[1:], dtype=first.dtype, device=device)
    for start in range(0, len(rows), 256):
        chunk = range(start, min(start + 256, len(rows)))
        tensor[chunk.start : chunk.stop] = rows.take(chunk).to(device)
    return MemoryRows(tensor)
