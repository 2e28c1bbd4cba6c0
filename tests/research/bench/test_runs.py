"""A run's folder: whose it is, what survives a kill, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fewtag.errors import InputError
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.runs import Run, read_facts, what_trains
from fewtag.research.methods.base import Method


class Tiny(Method):
    """One weight."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(1, 1)
        self.weight = nn.Parameter(torch.tensor([value]))


@pytest.fixture
def recipe(shapes: Path) -> Recipe:
    return load_recipes(shapes / "recipe.toml", only=["attention"])[0][1]


@pytest.fixture
def run(recipe: Recipe, tmp_path: Path) -> Run:
    run = Run(tmp_path / "runs" / "attention", recipe)
    run.claim()
    return run


def test_the_run_folder_of_another_recipe_is_refused_naming_the_key(run: Run, shapes: Path) -> None:
    ((_, other),) = load_recipes(shapes / "recipe.toml", only=["attention"], changes=["training.learning_rate=0.5"])
    message = r"is of another recipe: its training\.learning_rate is 0\.001, this recipe's 0\.5; .*--runs"
    with pytest.raises(InputError, match=message):
        Run(run.folder, other).claim()
    ((_, trains_nothing),) = load_recipes(shapes / "recipe.toml", only=["protonet"])
    with pytest.raises(InputError, match="is of another recipe"):
        Run(run.folder, trains_nothing).check()


def test_what_does_not_change_the_weights_may_change(run: Run, shapes: Path) -> None:
    ((_, other),) = load_recipes(
        shapes / "recipe.toml",
        only=["attention"],
        changes=[
            "evaluation={sampling='at-least', episodes=9}",
            "data.sources=[{format='table', path='labels.csv', images='images', role='query'}]",
            "name=x",
        ],
    )
    Run(run.folder, other).claim()
    assert what_trains(other) == what_trains(run.recipe)
    assert other.digest != run.recipe.digest


def test_best_weights_come_back_with_their_facts(run: Run) -> None:
    run.save_best(Tiny(3.0), {"episode": 20})
    method = Tiny()
    assert run.load_best(method)["episode"] == 20
    assert method.weight.item() == 3
    assert not list(run.folder.glob("*.part"))


def test_a_checkpoint_of_another_recipe_is_refused(run: Run, shapes: Path) -> None:
    run.save_best(Tiny(), {})
    ((_, other),) = load_recipes(shapes / "recipe.toml", only=["attention"], changes=["method.heads=2"])
    with pytest.raises(InputError, match=r"best\.safetensors is of another recipe"):
        Run(run.folder, other).load_best(Tiny())


def test_a_run_without_weights_says_how_to_train_it(run: Run) -> None:
    with pytest.raises(InputError, match=r"has no best\.safetensors; train it first"):
        run.load_best(Tiny())


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_corrupt_checkpoint_is_named(run: Run, kept: int) -> None:
    run.save_best(Tiny(), {})
    run.best.write_bytes(run.best.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"best\.safetensors cannot be read"):
        run.load_best(Tiny())


def test_somebody_elses_safetensors_are_refused(run: Run) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, run.best)
    with pytest.raises(InputError, match="was not written by fewtag train"):
        read_facts(run.best)


def test_the_state_comes_back_and_later_log_lines_are_dropped(run: Run) -> None:
    for episode in (20, 40, 60):
        run.log({"episode": episode})
    run.save_state({"episode": 40, "method": {"weight": torch.ones(1)}})
    with (run.folder / "log.jsonl").open("a") as file:
        file.write('{"episode": 8')  # killed while writing
    state = run.load_state(torch.device("cpu"))
    assert state is not None
    assert (state["episode"], state["method"]["weight"].item()) == (40, 1)
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [20, 40]


def test_without_a_state_the_log_begins_anew(run: Run) -> None:
    run.log({"episode": 20})
    assert run.load_state(torch.device("cpu")) is None
    assert not (run.folder / "log.jsonl").exists()


@pytest.mark.parametrize("content", [b"", b"half of a state"])
def test_a_corrupt_state_is_named(run: Run, content: bytes) -> None:
    (run.folder / "last.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"last\.pt cannot be read .*; remove it") as refusal:
        run.load_state(torch.device("cpu"))
    assert "\n" not in str(refusal.value)


def test_loading_a_state_runs_no_code(run: Run, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "owned",))

    torch.save(Evil(), run.folder / "last.pt")
    with pytest.raises(InputError, match=r"last\.pt cannot be read"):
        run.load_state(torch.device("cpu"))
    assert not (tmp_path / "owned").exists()


def test_a_finished_run_has_a_summary_and_no_state(run: Run) -> None:
    run.save_state({"episode": 1})
    assert run.summary is None
    run.finish({"best": 0.5})
    assert run.summary == {"best": 0.5}
    assert not (run.folder / "last.pt").exists()
