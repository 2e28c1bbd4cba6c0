"""Episodic training on base labels with early stopping on the validation labels; resumes after a kill."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Adam
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from fewtag.errors import InputError, nearest
from fewtag.pictures.prefetch import Advance
from fewtag.research.bench.distributed import (
    Bench,
    broadcast_buffers,
    collective_refusal,
    on_rank_zero,
    rows_by_all_ranks,
    share_out,
)
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.results import METRICS
from fewtag.research.bench.run_folder import Checkpoint, RunFolder, TrainingState, TrainingSummary
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.backbone import AnyBackbone
from fewtag.research.features.rows import MemoryRows, Rows, feature_rows, pixel_rows, take_all
from fewtag.research.methods import METHODS, EndToEnd, Method


class Episodes(NamedTuple):
    """Episodes by number, of the base labels for training, or of the validation labels."""

    pool: Pool
    sampler: EpisodeSampler


def train(experiment: Experiment, run: RunFolder, bench: Bench) -> TrainingSummary:
    """Trains the recipe's method, or resumes training it; `run.best` then holds the best weights."""
    recipe, training, fabric = experiment.recipe, experiment.recipe.training, bench.fabric
    if training is None:
        raise InputError(f"recipe {recipe.name!r} has no [training] table, so there is nothing to train")
    method_class = METHODS[recipe.method.name]
    if not method_class.differentiable or method_class.base_stage == "features":
        raise InputError(
            f"method {recipe.method.name!r} is solved on the base pictures, not trained; give `training` only to the "
            f"[[runs]] that train, not to {recipe.name!r}"
        )
    done = on_rank_zero(fabric, lambda: run.summary)
    if done is not None:
        return done

    method, base, validation = prepare(experiment, bench)
    learner = Learner(method, training, recipe.seed, fabric)
    with ExitStack() as held:
        with collective_refusal():
            if fabric.is_global_zero:
                held.enter_context(run.lock())
        on_rank_zero(fabric, run.claim)
        if checkpoint := on_rank_zero(fabric, lambda: run.load_checkpoint(processes=fabric.world_size)):
            learner.load(checkpoint)
            on_rank_zero(fabric, lambda: run.save_best(learner.best, learner.state))
        state = learner.state
        advance = bench.begin(f"training {recipe.name}", training.episodes)
        advance(state.episode)
        if validation is not None and state.episode == 0:
            learner.judge(run, validation, None, advance)  # the untrained weights set the score to beat
        saved_at = state.episode
        while state.episode < training.episodes and not learner.is_stale:
            loss = learner.learn(base, advance)
            learner.judge(run, validation, loss, advance)
            if state.episode - saved_at >= training.checkpoint_every:
                on_rank_zero(fabric, lambda: run.save_checkpoint(learner.checkpoint()))
                saved_at = state.episode
        stopped_early = learner.is_stale
        summary = TrainingSummary(**vars(state), stopped_early=stopped_early, episodes_planned=training.episodes)
        on_rank_zero(fabric, lambda: run.finish(summary))
        return summary


class Learner:
    """A method in training: its optimiser, its ranks, and its progress."""

    def __init__(self, method: Method, training: Training, seed: int, fabric: Fabric) -> None:
        self.method, self.training, self.seed, self.fabric = method, training, seed, fabric
        groups, self._shares = [list(method.parameters())], [1.0]
        if isinstance(method, EndToEnd) and training.backbone_share != 1.0:
            groups = [list(method.backbone.parameters()), list(method.method.parameters())]
            self._shares = [training.backbone_share, 1.0]
        optimizer = Adam([{"params": group} for group in groups], fused=fabric.device.type == "cuda")
        self.model, self.optimizer = fabric.setup(method, optimizer)
        self.model.mark_forward_method("loss")
        self.model.mark_forward_method("encoder_loss")
        # batch-norm statistics are averaged too, since recomputing them would take a pass over all base pictures. With
        # this function, as torch's default for many tensors cannot divide integers, and batch-norms count their batches
        mean = get_swa_avg_fn()  # type: ignore[no-untyped-call]
        self.averaged = AveragedModel(method, avg_fn=mean, use_buffers=True) if training.cycle else None
        self.state = TrainingState(processes=fabric.world_size)
        self.best: dict[str, Tensor] = {}
        self._begun = time.perf_counter()

    def load(self, checkpoint: Checkpoint) -> None:
        """Resumes from a checkpoint."""
        self.method.load_state_dict(checkpoint.method)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        if self.averaged is not None and checkpoint.averaged is not None:
            self.averaged.load_state_dict(checkpoint.averaged)
        self.state, self.best = checkpoint.state, checkpoint.best
        self._begun = time.perf_counter() - self.state.seconds

    @property
    def is_stale(self) -> bool:
        """Whether training should stop early."""
        return self.training.keep == "best" and 0 < self.training.patience <= self.state.stale

    def checkpoint(self) -> Checkpoint:
        averaged = None if self.averaged is None else self.averaged.state_dict()
        return Checkpoint(self.state, self.method.state_dict(), self.optimizer.state_dict(), self.best, averaged)

    @property
    def kept(self) -> Method:
        """The method with the weights to validate and keep: their average, once there is one."""
        if self.averaged is None or not self.averaged.n_averaged:
            return self.method
        assert isinstance(self.averaged.module, Method)
        return self.averaged.module

    def learn(self, base: Episodes, advance: Advance) -> float:
        """Takes steps until the next validation; returns the mean loss, the same on every rank."""
        a_step = self.training.episodes_per_step * self.fabric.world_size
        validate_every = max(1, round(self.training.validate_every / a_step)) * a_step
        losses: list[Tensor] = []
        self.model.train()
        while not losses or (self.state.episode % validate_every and self.state.episode < self.training.episodes):
            losses.append(self.take_step(base))
            self.state.episode += a_step
            # not at every step, since reading the loss waits for the device
            advance(a_step, **({"loss": losses[-1].item()} if len(losses) % 10 == 0 else {}))
        # the mean over all ranks, so that all of them stop, or none
        mean = self.fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        loss = mean.item()
        if not math.isfinite(loss):
            raise InputError(f"the loss is {loss} at episode {self.state.episode}; lower training.learning_rate")
        return loss

    def take_step(self, base: Episodes) -> Tensor:
        """One gradient step over some episodes; all its randomness derives from the seed and the episodes' numbers."""
        training, turns = self.training, self.training.episodes_per_step
        since = self.state.episode - self.method.encoder_episodes
        rate, step = learning_rate(training, self.state.episode), since // (turns * self.fabric.world_size)
        for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):
            group["lr"] = share * rate * (cyclic_share(training.cycle, step) if since >= 0 else 1.0)
        total = torch.zeros((), device=self.fabric.device)
        first = self.state.episode + turns * self.fabric.global_rank
        for index in range(first, first + turns):
            torch.manual_seed(self.seed * 1_000_003 + index)  # dropout
            with collective_refusal():
                episode = base.pool.episode(base.sampler.draw(index))
            last = index == first + turns - 1
            with nullcontext() if last else self.fabric.no_backward_sync(self.model):
                # on a single device Fabric calls `loss` directly, without its precision
                with self.fabric.autocast():
                    loss = (self.model.loss if since >= 0 else self.model.encoder_loss)(episode) / turns
                self.fabric.backward(loss + self._touch_all_parameters())
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None and since >= 0 and (step + 1) % training.cycle == 0:
            self.averaged.update_parameters(self.method)
        return total

    def _touch_all_parameters(self) -> Tensor | float:
        """Zero as a function of every parameter: DDP waits for the gradient of each, and a loss may use only some."""
        if self.fabric.world_size == 1:
            return 0.0
        return 0.0 * torch.stack([each.sum() for each in self.method.parameters() if each.requires_grad]).sum()

    def judge(self, run: RunFolder, validation: Episodes | None, loss: float | None, advance: Advance) -> None:
        """Validates the weights to keep, saves them if they are the best so far, and logs the scores.

        Without validation, or if the last weights are to be kept, the latest weights count as the best.
        """
        state, scores = self.state, dict[str, float]()
        if validation is not None:
            scores = validate(self.fabric, self.kept, validation, self.training.validation_episodes)
        score = scores.get("macro_ap")
        better = self.training.keep == "last" or score is None or state.best is None or score > state.best
        if better:
            state.best, state.best_episode, state.stale = score, state.episode, 0
        else:
            state.stale += 1
        state.seconds = time.perf_counter() - self._begun
        told = {} if loss is None else {"loss": loss}
        advance(0, **told, **({} if score is None else {"val": score}))
        with collective_refusal():
            if self.fabric.is_global_zero:
                if better:
                    weights = self.kept.state_dict().items()
                    # a copy, which training leaves as it is
                    self.best = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in weights}
                    run.save_best(self.best, state)
                run.log({"episode": state.episode, **told, "seconds": round(state.seconds, 2), **scores})


def learning_rate(training: Training, episode: int) -> float:
    """The learning rate: rises linearly during the warm-up, then stays constant."""
    if episode >= training.warmup:
        return training.learning_rate
    climbed = (episode + 1) / training.warmup
    return training.warmup_from + climbed * (training.learning_rate - training.warmup_from)


def cyclic_share(cycle: int, step: int) -> float:
    """The factor of a cyclic rate: falls linearly from 1 to a thousandth at the last step of each cycle."""
    return 1.0 - 0.999 * (step % cycle) / max(1, cycle - 1) if cycle else 1.0


def validate(fabric: Fabric, method: Method, held: Episodes, episodes: int) -> dict[str, float]:
    """Mean metrics over the validation episodes, which are divided among the ranks."""
    broadcast_buffers(fabric, method)
    with fabric.autocast():
        judged = share_out(
            fabric,
            range(episodes),
            lambda mine: evaluate(method, held.pool, [held.sampler.draw(index) for index in mine]),
        )
    return {name: round(fmean(episode.metrics[name] for episode in judged), 6) for name in METRICS}


def prepare(experiment: Experiment, bench: Bench) -> tuple[Method, Episodes, Episodes | None]:
    """The method, and the base and validation phases as the rows that it works on: features, or pixels if end to end.

    Without patience there is no validation, and the split needs no validation labels.
    """
    recipe, training, device = experiment.recipe, experiment.recipe.training, bench.fabric.device
    assert training is not None
    with collective_refusal():
        backbone, method = experiment.build()
    if recipe.backbone.frozen:
        backbone.to(device)
        read: Callable[..., Rows] = partial(feature_rows, backbone=backbone, cache=bench.cache)
    else:
        method = EndToEnd(backbone, method)
        if recipe.backbone.tuned is not None:
            with collective_refusal():
                tune_stage(backbone, recipe.backbone.tuned)
        if experiment.compiled:
            backbone.compile()  # in place, so that weights keep their names
        read = partial(pixel_rows, size=backbone.size, cache=bench.cache)
    if not any(parameter.requires_grad for parameter in method.parameters()):
        raise InputError(
            f"method {recipe.method.name!r} has nothing to learn on a frozen backbone; give `training` only to the "
            f"[[runs]] that train, not to {recipe.name!r}, or set backbone.frozen = false"
        )

    def episodes(name: str) -> Episodes:
        with collective_refusal():
            images = experiment.phase(name)
            sampler = EpisodeSampler(
                images.targets, images.labels, shots=training.shots, queries=training.queries, seed=recipe.seed
            )
            words = experiment.words(images.labels)
        rows = rows_by_all_ranks(bench, images, read, name)
        return Episodes(Pool.of(images, on_device(rows, device), words, device), sampler)

    return method, episodes("train"), episodes("val") if training.patience else None


def tune_stage(backbone: AnyBackbone, stage: str) -> None:
    """Freezes the weights of all other stages of the network; batch-norm statistics are updated in all of them."""
    named = [(name.rpartition("network.")[2], parameter) for name, parameter in backbone.named_parameters()]
    if not any(name.startswith(stage) for name, _ in named):
        stages = sorted({name.partition(".")[0] for name, _ in named})
        raise InputError(f"network {backbone.name!r} has no stage {stage!r}; {nearest(stage, stages)}")
    for name, parameter in named:
        parameter.requires_grad_(name.startswith(stage))


MOST_IN_MEMORY = 2**31
"""The most bytes of rows that training on a CPU keeps in memory: reading them takes as long as learning from them."""


def on_device(rows: Rows, device: torch.device) -> Rows:
    """The same rows in the device's memory, if they fit: for a GPU, in half of what is free."""
    first = rows.take([0])
    room = torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else MOST_IN_MEMORY
    if first.nbytes * len(rows) > room:
        return rows
    tensor = torch.empty(len(rows), *first.shape[1:], dtype=first.dtype, device=device)
    for there, some in zip(torch.split(tensor, 256), take_all(rows), strict=True):
        there.copy_(some)
    return MemoryRows(tensor)
