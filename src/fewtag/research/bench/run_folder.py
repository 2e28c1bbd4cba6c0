"""The folder of a training run: settings, checkpoints, log and summary, named by a digest of what is trained."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewtag.errors import InputError
from fewtag.files import locked, replacing, write_atomically
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe import Recipe
from fewtag.research.methods.base import Method

Facts = dict[str, Any]


@dataclass(kw_only=True)
class TrainingState:
    """The progress of training."""

    episode: int = 0
    best: float | None = None
    """Macro-AP of the kept weights on the validation labels; None if nothing was validated."""
    best_episode: int = 0
    """The episode after which the kept weights were saved; 0 if training never improved on the untrained ones."""
    stale: int = 0
    """The number of validations since then."""
    seconds: float = 0.0
    processes: int = 1


@dataclass(kw_only=True)
class TrainingSummary(TrainingState):
    """The outcome of training."""

    stopped_early: bool
    episodes_planned: int


class Checkpoint(NamedTuple):
    """All that is needed to resume training and arrive at the very same weights."""

    state: TrainingState
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    best: dict[str, Tensor]
    """The best weights so far: those in the file may be of a later episode, which need not turn out so again."""
    averaged: dict[str, Tensor] | None = None


class RunFolder:
    """Files `recipe.json`, `best.safetensors`, `log.jsonl`; `last.pt` during training, `summary.json` once done."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.best, self._last = folder / "best.safetensors", folder / "last.pt"
        self._recipe, self._log, self._summary = folder / "recipe.json", folder / "log.jsonl", folder / "summary.json"

    @classmethod
    def of(cls, experiment: Experiment, runs: Path) -> "RunFolder":
        """`runs/<method>-<digest>`, so that experiments that train the same share their weights."""
        recipe = experiment.recipe
        return cls(runs / f"{recipe.method.name}-{experiment.training_digest}", recipe)

    def lock(self) -> AbstractContextManager[None]:
        """A lock to hold while training: another command that would train the same is refused meanwhile."""
        return locked(self.folder, seconds=0.0)

    def claim(self) -> None:
        """Makes the folder, with the settings for people to read; called under the lock, once all checks are passed."""
        write_atomically(self._recipe, json.dumps(self.recipe.effective.model_dump(mode="json"), indent=2).encode())
        for part in self.folder.glob("*.part"):  # of a command that was killed while it wrote
            part.unlink()

    @property
    def summary(self) -> TrainingSummary | None:
        """The outcome of training; None until it is done."""
        return TrainingSummary(**json.loads(self._summary.read_text())) if self._summary.exists() else None

    def finish(self, summary: TrainingSummary) -> None:
        write_atomically(self._summary, json.dumps(asdict(summary), indent=2).encode())
        self._last.unlink(missing_ok=True)

    def save_best(self, tensors: dict[str, Tensor], state: TrainingState) -> None:
        text = json.dumps({**asdict(state), "recipe": self.recipe.effective.model_dump(mode="json")})
        with replacing(self.best) as part, _saving(self.best):
            save_file(tensors, part, metadata={"fewtag": text})

    def load_best(self, method: Method) -> None:
        """Fills the method with the best weights."""
        if not self.best.exists():
            raise InputError(f"the run {self.folder} has no best.safetensors; train it first: fewtag train RECIPE")
        read_facts(self.best)
        method.load_state_dict(load_file(self.best))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        content = {**checkpoint._asdict(), "state": asdict(checkpoint.state)}
        with replacing(self._last) as part, _saving(self._last):
            torch.save(content, part)

    def load_checkpoint(self, *, processes: int = 1) -> Checkpoint | None:
        """The last checkpoint, or None; later lines of the log are dropped, since they will be written anew.

        Another number of processes would change the number of episodes per step, and is refused.
        """
        if not self._last.exists():
            self._log.unlink(missing_ok=True)
            return None
        try:
            content = torch.load(self._last, map_location="cpu", weights_only=True)
            checkpoint = Checkpoint(**content | {"state": TrainingState(**content["state"])})
        except Exception as error:
            raise InputError(f"checkpoint {self._last} cannot be read ({type(error).__name__}); remove it") from error
        begun = checkpoint.state.processes
        if begun != processes:
            raise InputError(
                f"the run {self.folder} was begun by {begun} process{'es' * (begun > 1)}, here are {processes}: go on "
                f"with torchrun --nproc-per-node {begun}, name other --runs, or remove that folder"
            )
        # a kill may have truncated the last line
        whole = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        kept = [
            line for line in whole if line.endswith("\n") and json.loads(line)["episode"] <= checkpoint.state.episode
        ]
        write_atomically(self._log, "".join(kept).encode())
        return checkpoint

    @property
    def curve(self) -> list[Facts]:
        """Loss and validation scores over the course of training."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def log(self, facts: Facts) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def read_facts(path: Path) -> Facts:
    """The metadata of the best weights: the training state, and the recipe with all its settings."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error}") from error
    if "fewtag" not in metadata:
        raise InputError(f"{path} was not written by fewtag train; name a run's best.safetensors")
    return json.loads(metadata["fewtag"])


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    """Turns the libraries' errors on a full disk into an InputError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot write {path}: {reason}; free some room, then go on with the same command") from error
