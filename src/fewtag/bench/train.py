"""Training on episodes of base labels, stopped early by the validation labels; goes on after a kill."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor
from torch.optim import Adam

from fewtag.bench.evaluate import Pool, evaluate
from fewtag.bench.materials import Materials
from fewtag.bench.metrics import METRICS
from fewtag.bench.progress import Reporter, Silent
from fewtag.bench.recipe import Training
from fewtag.bench.runs import Run, State
from fewtag.data.episodes import EpisodeSampler
from fewtag.data.images import LabelledImages
from fewtag.errors import InputError
from fewtag.features.rows import MemoryRows, Rows, feature_rows, pixel_rows
from fewtag.methods import EndToEnd, Method


class Phase(NamedTuple):
    """Where training draws its episodes, or validation its."""

    pool: Pool
    sampler: EpisodeSampler


def train(materials: Materials, run: Run, fabric: Fabric, *, cache: Path, report: Reporter | None = None) -> State:
    """Trains the recipe's method, or goes on training it; returns the summary. `run.best` holds the weights."""
    report = report or Silent()
    recipe, training = materials.recipe, materials.recipe.training
    if training is None:
        raise InputError(f"recipe {recipe.name!r} has no [training] table, so there is nothing to train")
    run.check()
    if run.summary is not None:
        return run.summary

    method, base, validation = prepare(materials, fabric, cache, report)
    if not any(parameter.requires_grad for parameter in method.parameters()):
        raise InputError(
            f"method {recipe.method.name!r} has nothing to learn on a frozen backbone; remove [training] from recipe "
            f"{recipe.name!r}, or set backbone.frozen = false"
        )
    run.claim()
    optimizer = Adam(method.parameters(), lr=training.learning_rate, fused=fabric.device.type == "cuda")
    model, optimizer = fabric.setup(method, optimizer)
    model.mark_forward_method("loss")

    state: State = {"episode": 0, "best": -1.0, "best_episode": 0, "stale": 0, "seconds": 0.0}
    saved = run.load_state(fabric.device)
    if saved is not None:
        method.load_state_dict(saved.pop("method"))
        optimizer.load_state_dict(saved.pop("optimizer"))
        state = saved
    fabric.barrier()

    a_step = training.episodes_per_step * fabric.world_size
    validate_every = max(1, round(training.validate_every / a_step)) * a_step
    report.start(f"training {recipe.name}", training.episodes)
    report.advance(state["episode"])
    losses: list[Tensor] = []
    saved_at, since = state["episode"], time.perf_counter()
    while state["episode"] < training.episodes and not _is_stale(state, training):
        model.train()
        losses.append(take_step(fabric, model, optimizer, base, training, recipe.seed, state["episode"]))
        state["episode"] += a_step
        # reading the loss waits for the device, so not at every step
        report.advance(a_step, **({"loss": losses[-1].item()} if len(losses) % 10 == 0 else {}))
        if state["episode"] % validate_every and state["episode"] < training.episodes:
            continue

        # every process sees the mean of all, so that all of them stop, or none
        mean = fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        loss = mean.item()
        losses.clear()
        if not math.isfinite(loss):
            raise InputError(f"the loss is {loss} at episode {state['episode']}; lower training.learning_rate")
        scores = {} if validation is None else validate(fabric, method, validation, training.validation_episodes)
        # without validation the latest weights are the ones to keep
        better = validation is None or scores["macro_ap"] > state["best"]
        state["stale"] = 0 if better else state["stale"] + 1
        if better:
            state |= {"best": scores.get("macro_ap"), "best_episode": state["episode"]}
        state["seconds"] += time.perf_counter() - since
        since = time.perf_counter()
        report.advance(0, loss=loss, **({"val": scores["macro_ap"]} if scores else {}))
        if fabric.global_rank == 0:
            if better:
                run.save_best(method, dict(state))
            run.log({"episode": state["episode"], "loss": loss, "seconds": round(state["seconds"], 2), **scores})
            if state["episode"] - saved_at >= training.checkpoint_every:
                run.save_state({**state, "method": method.state_dict(), "optimizer": optimizer.state_dict()})
                saved_at = state["episode"]
    summary = {**state, "stopped_early": _is_stale(state, training), "episodes_planned": training.episodes}
    if fabric.global_rank == 0:
        run.finish(summary)
    fabric.barrier()
    return summary


def take_step(
    fabric: Fabric,
    model: _FabricModule,
    optimizer: torch.optim.Optimizer,
    base: Phase,
    training: Training,
    seed: int,
    episode_number: int,
) -> Tensor:
    """One gradient step over some episodes; all its randomness comes from the seed and the episodes' numbers."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(training, episode_number)
    total = torch.zeros((), device=fabric.device)
    for turn in range(training.episodes_per_step):
        index = episode_number + turn * fabric.world_size + fabric.global_rank
        torch.manual_seed(seed * 1_000_003 + index)  # dropout
        episode = base.pool.episode(base.sampler.draw(index))
        last = turn == training.episodes_per_step - 1
        with nullcontext() if last else fabric.no_backward_sync(model):
            # on one device Fabric calls `loss` directly, without its precision
            with fabric.autocast():
                loss = model.loss(episode) / training.episodes_per_step
            fabric.backward(loss)
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


def _is_stale(state: State, training: Training) -> bool:
    return 0 < training.patience <= state["stale"]


def learning_rate(training: Training, episode: int) -> float:
    """Climbs in a line during the warm-up, then stays."""
    if episode >= training.warmup:
        return training.learning_rate
    climbed = (episode + 1) / training.warmup
    return training.warmup_from + climbed * (training.learning_rate - training.warmup_from)


def validate(fabric: Fabric, method: Method, phase: Phase, episodes: int) -> dict[str, float]:
    """Mean metrics over the validation episodes, which the processes share among them."""
    draws = [phase.sampler.draw(index) for index in range(fabric.global_rank, episodes, fabric.world_size)]
    with fabric.autocast():
        found = evaluate(method, phase.pool, draws)
    # a process without a draw of its own still takes part in the sum
    sums = torch.tensor([[row[name] for name in METRICS] for row in found], dtype=torch.float64)
    sums = sums.reshape(len(found), len(METRICS)).sum(dim=0)
    totals = fabric.all_reduce(sums.to(fabric.device), reduce_op="sum")
    assert isinstance(totals, Tensor)
    return {name: round(total / episodes, 6) for name, total in zip(METRICS, totals.tolist(), strict=True)}


def prepare(materials: Materials, fabric: Fabric, cache: Path, report: Reporter) -> tuple[Method, Phase, Phase | None]:
    """The method, and the base and validation phases as the rows it works on: features, or pixels if end to end.

    Without patience nothing is validated, and the split needs no validation labels.
    """
    recipe, training = materials.recipe, materials.recipe.training
    assert training is not None
    backbone, method = materials.build()
    make_rows: Callable[[LabelledImages], Rows]
    if recipe.backbone.frozen:
        backbone.to(fabric.device)
        make_rows = lambda images: feature_rows(images, backbone, cache, advance=report.advance)  # noqa: E731
    else:
        method = EndToEnd(backbone, method)
        make_rows = lambda images: pixel_rows(images, backbone.size, cache, advance=report.advance)  # noqa: E731

    def phase(name: str) -> Phase:
        images = materials.phase(name)
        sampler = EpisodeSampler(
            images.targets, images.labels, shots=training.shots, queries=training.queries, seed=recipe.seed
        )
        report.start(f"reading the {name} pictures", len(images))
        with fabric.rank_zero_first():
            rows = make_rows(images)
        words = materials.words(images.labels)
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
