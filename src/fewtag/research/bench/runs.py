"""A training run's folder: its recipe, its best weights, its log, and what is needed to go on after a kill."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic.main import IncEx
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fewtag.errors import InputError
from fewtag.files import replacing, write_atomically
from fewtag.research.bench.recipe import Recipe
from fewtag.research.methods.base import Method

State = dict[str, Any]


class Run:
    """`recipe.json`, `best.safetensors`, `log.jsonl`; `last.pt` while it trains, `summary.json` once done."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.best, self._last = folder / "best.safetensors", folder / "last.pt"
        self._recipe, self._log, self._summary = folder / "recipe.json", folder / "log.jsonl", folder / "summary.json"

    def check(self) -> None:
        """Refuses a folder that is another recipe's."""
        if not self._recipe.exists():
            return
        wanted, found = what_trains(self.recipe), json.loads(self._recipe.read_text())
        differing = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
        if differing:
            key = differing[0]
            raise InputError(
                f"the run {self.folder} is of another recipe: its {key} is {found.get(key)!r}, this recipe's "
                f"{wanted.get(key)!r}; name other --runs or remove that folder"
            )

    def claim(self) -> None:
        """Makes the folder this recipe's own; called once nothing else can be wrong with the recipe."""
        self.check()
        write_atomically(self._recipe, json.dumps(what_trains(self.recipe), indent=2).encode())

    @property
    def summary(self) -> State | None:
        """What training came to, once it is done."""
        return json.loads(self._summary.read_text()) if self._summary.exists() else None

    def finished(self) -> State | None:
        """The summary of a run that is done; a folder that is another recipe's is refused."""
        self.check()
        return self.summary

    def finish(self, summary: State) -> None:
        write_atomically(self._summary, json.dumps(summary, indent=2).encode())
        self._last.unlink(missing_ok=True)

    def save_best(self, method: Method, facts: State) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()}
        text = json.dumps({**facts, "recipe": self.recipe.model_dump()})
        with replacing(self.best) as part, _saving(self.best):
            save_file(tensors, part, metadata={"fewtag": text})

    def load_best(self, method: Method) -> State:
        """Fills the method with the best weights; returns the facts saved with them."""
        if not self.best.exists():
            raise InputError(f"the run {self.folder} has no best.safetensors; train it first: fewtag train RECIPE")
        facts = read_facts(self.best)
        if what_trains(Recipe.model_validate(facts["recipe"])) != what_trains(self.recipe):
            raise InputError(f"checkpoint {self.best} is of another recipe; train this recipe or name its own --runs")
        method.load_state_dict(load_file(self.best))
        return facts

    def save_state(self, state: State) -> None:
        with replacing(self._last) as part, _saving(self._last):
            torch.save(state, part)

    def load_state(self, device: torch.device, *, processes: int = 1) -> State | None:
        """Where training stood; the log's later lines are dropped, since they will be written anew.

        Another number of processes would make every step one over more or fewer episodes, and is refused.
        """
        if not self._last.exists():
            self._log.unlink(missing_ok=True)
            return None
        try:
            state: State = torch.load(self._last, map_location=device, weights_only=True)
        except Exception as error:
            raise InputError(f"checkpoint {self._last} cannot be read ({type(error).__name__}); remove it") from error
        begun = state.get("processes", 1)
        if begun != processes:
            raise InputError(
                f"the run {self.folder} was begun by {begun} process{'es' * (begun > 1)}, here are {processes}: go on "
                f"with --devices {begun} (or as many under torchrun), name other --runs, or remove that folder"
            )
        # a kill may have cut the last line short
        whole = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        kept = [line for line in whole if line.endswith("\n") and json.loads(line)["episode"] <= state["episode"]]
        write_atomically(self._log, "".join(kept).encode())
        return state

    @property
    def curve(self) -> list[State]:
        """Loss and validation scores, as training went."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def log(self, facts: State) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def what_trains(recipe: Recipe) -> State:
    """The part of a recipe that the weights depend on, flat: `training.learning_rate` and so on."""
    sources: IncEx = {"__all__": {"role"}}
    data: IncEx = {"note": True, "sources": sources}
    return _flatten(recipe.model_dump(mode="json", exclude={"evaluation": True, "name": True, "data": data}))


def read_facts(path: Path) -> State:
    """What a checkpoint says of itself."""
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
    """The libraries' own errors on a full disk, in a sentence."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot write {path}: {reason}; free some room, then go on with the same command") from error


def _flatten(tree: State, prefix: str = "") -> State:
    flat: State = {}
    for key, value in tree.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
