"""A method's way from step to step, in one process or several."""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Adam

from fewtag.errors import InputError
from fewtag.research.bench.evaluate import Pool
from fewtag.research.bench.progress import Reporter
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.running_statistics import RunningStatistics
from fewtag.research.bench.runs import State
from fewtag.research.bench.together import alone
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.methods import Method


class Phase(NamedTuple):
    """Where training draws its episodes, or validation its."""

    pool: Pool
    sampler: EpisodeSampler


class Learner:
    """A method in training: its optimiser, its processes, and how far it has come."""

    def __init__(self, method: Method, training: Training, seed: int, fabric: Fabric) -> None:
        self.method, self.training, self.seed, self.fabric = method, training, seed, fabric
        optimizer = Adam(method.parameters(), lr=training.learning_rate, fused=fabric.device.type == "cuda")
        self.model, self.optimizer = fabric.setup(method, optimizer)
        self.model.mark_forward_method("loss")
        self.statistics = RunningStatistics(fabric, method)
        self.state: State = {"episode": 0, "best": -1.0, "best_episode": 0, "stale": 0, "seconds": 0.0}
        self.state["processes"] = fabric.world_size

    def load(self, saved: State) -> None:
        """Goes on from what `saved` gave."""
        self.method.load_state_dict(saved.pop("method"))
        self.optimizer.load_state_dict(saved.pop("optimizer"))
        self.state |= saved

    def saved(self) -> State:
        return {**self.state, "method": self.method.state_dict(), "optimizer": self.optimizer.state_dict()}

    def learn(self, base: Phase, report: Reporter) -> float:
        """Steps until the next validation; returns the mean loss, the same in every process."""
        a_step = self.training.episodes_per_step * self.fabric.world_size
        validate_every = max(1, round(self.training.validate_every / a_step)) * a_step
        losses: list[Tensor] = []
        self.model.train()
        while not losses or (self.state["episode"] % validate_every and self.state["episode"] < self.training.episodes):
            losses.append(self.take_step(base))
            self.state["episode"] += a_step
            # reading the loss waits for the device, so not at every step
            report.advance(a_step, **({"loss": losses[-1].item()} if len(losses) % 10 == 0 else {}))
        # every process sees the mean of all, so that all of them stop, or none
        mean = self.fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        loss = mean.item()
        if not math.isfinite(loss):
            raise InputError(f"the loss is {loss} at episode {self.state['episode']}; lower training.learning_rate")
        return loss

    def take_step(self, base: Phase) -> Tensor:
        """One gradient step over some episodes; all its randomness comes from the seed and the episodes' numbers."""
        training, turns = self.training, self.training.episodes_per_step
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(training, self.state["episode"])
        total = torch.zeros((), device=self.fabric.device)
        first = self.state["episode"] + turns * self.fabric.global_rank
        with self.statistics.step():
            for index in range(first, first + turns):
                torch.manual_seed(self.seed * 1_000_003 + index)  # dropout
                with alone():
                    episode = base.pool.episode(base.sampler.draw(index))
                last = index == first + turns - 1
                with nullcontext() if last else self.fabric.no_backward_sync(self.model):
                    # on one device Fabric calls `loss` directly, without its precision
                    with self.fabric.autocast():
                        loss = self.model.loss(episode) / turns
                    self.fabric.backward(loss + self._nothing())
                total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def _nothing(self) -> Tensor | float:
        """Zero, by way of every parameter: the processes wait for the gradient of each, and a loss may use but some."""
        if self.fabric.world_size == 1:
            return 0.0
        return 0.0 * torch.stack([each.sum() for each in self.method.parameters() if each.requires_grad]).sum()


def learning_rate(training: Training, episode: int) -> float:
    """Climbs in a line during the warm-up, then stays."""
    if episode >= training.warmup:
        return training.learning_rate
    climbed = (episode + 1) / training.warmup
    return training.warmup_from + climbed * (training.learning_rate - training.warmup_from)
