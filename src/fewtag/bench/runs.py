"""A training run's folder: its recipe, its best weights, its log, and what is needed to go on after a kill."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fewtag.bench.recipe import Recipe
from fewtag.errors import InputError
from fewtag.methods.base import Method

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

    def finish(self, summary: State) -> None:
        write_atomically(self._summary, json.dumps(summary, indent=2).encode())
        self._last.unlink(missing_ok=True)

    def save_best(self, method: Method, facts: State) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()}
        text = json.dumps({**facts, "recipe": self.recipe.model_dump()})
        part = self.best.with_suffix(".part")
        save_file(tensors, part, metadata={"fewtag": text})
        part.replace(self.best)

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
        part = self._last.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._last)

    def load_state(self, device: torch.device) -> State | None:
        """Where training stood; the log's later lines are dropped, since they will be written anew."""
        if not self._last.exists():
            self._log.unlink(missing_ok=True)
            return None
        try:
            state: State = torch.load(self._last, map_location=device, weights_only=True)
        except Exception as error:
            raise InputError(f"checkpoint {self._last} cannot be read ({type(error).__name__}); remove it") from error
        # a kill may have cut the last line short
        whole = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        kept = [line for line in whole if line.endswith("\n") and json.loads(line)["episode"] <= state["episode"]]
        write_atomically(self._log, "".join(kept).encode())
        return state

    def log(self, facts: State) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def what_trains(recipe: Recipe) -> State:
    """The part of a recipe that the weights depend on, flat: `training.learning_rate` and so on."""
    return _flatten(recipe.model_dump(mode="json", exclude={"evaluation", "name"}))


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


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing, even if the process is killed: written beside, then moved over."""
    make_folder(path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another folder or free some room") from error


def make_folder(folder: Path) -> None:
    """Refuses a place where no folder can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; name another") from error


def _flatten(tree: State, prefix: str = "") -> State:
    flat: State = {}
    for key, value in tree.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
