"""A run's folder: which runs share it, what survives a kill, what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fewtag.errors import InputError
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.run_folder import Checkpoint, RunFolder, TrainingState, TrainingSummary, read_facts
from fewtag.research.methods import METHODS
from fewtag.research.methods.base import Method
from fewtag.research.methods.word_attention import WordAttention


class Tiny(Method):
    """One weight."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(1, 1)
        self.weight = nn.Parameter(torch.tensor([value]))


def open_experiment(shapes: Path, *changes: str, only: str = "attention") -> Experiment:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=[only], changes=changes)
    return Experiment(recipe, shapes, shapes)


@pytest.fixture
def run(shapes: Path, tmp_path: Path) -> RunFolder:
    run = RunFolder.of(open_experiment(shapes), tmp_path / "runs")
    run.claim()
    return run


def test_what_a_killed_command_was_writing_goes(run: RunFolder) -> None:
    (run.folder / "last.pt.12345.part").write_bytes(b"half")
    run.claim()
    assert not list(run.folder.glob("*.part"))


STATE = TrainingState(episode=40, best=0.5, best_episode=20)


def test_a_run_is_named_after_its_method_and_says_all_its_settings(run: RunFolder) -> None:
    assert re.fullmatch(r"word-attention-[0-9a-f]{12}", run.folder.name)
    saved = json.loads((run.folder / "recipe.json").read_text())
    assert saved["method"] == {
        "name": "word-attention",
        "joint": 32,
        "heads": 4,
        "scale": 20.0,
        "gamma": 1.0,
        "dropout": 0.1,
        "finetune_epochs": 0,
        "finetune_rate": 0.0001,
    }
    assert saved["training"]["patience"] == 10


@pytest.mark.parametrize(
    "changes",
    [
        ["evaluation.shots=5"],
        ["evaluation={sampling='at-least', episodes=9}"],
        [
            "evaluation.sampling='at-least'",
            "data.sources=[{format='table', path='labels.csv', images='images', role='query'}]",
        ],
        ["name=x", "data.name=y", "data.note=z"],
        ["training.checkpoint_every=7"],
        ["method.dropout=0.1"],
    ],
)
def test_runs_that_train_the_same_share_a_folder(shapes: Path, changes: list[str]) -> None:
    one, other = open_experiment(shapes), open_experiment(shapes, *changes)
    assert other.recipe != one.recipe
    assert RunFolder.of(other, shapes).folder == RunFolder.of(one, shapes).folder


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "method.heads=2",
        "training.learning_rate=0.5",
        "training.patience=0",
        "training.episodes=61",
        "backbone.size=32",
        "backbone.frozen=false",
        "words.source=others.txt",
        "data.other_labels=ignore",
    ],
)
def test_what_changes_the_weights_changes_the_folder(shapes: Path, change: str) -> None:
    one, other = open_experiment(shapes), open_experiment(shapes, change)
    assert RunFolder.of(other, shapes).folder != RunFolder.of(one, shapes).folder


@pytest.mark.parametrize(("label", "shared"), [("circle", False), ("cross", False), ("heart", True)])
def test_other_base_or_validation_pictures_are_another_training(shapes: Path, label: str, shared: bool) -> None:
    before = open_experiment(shapes).training_digest
    lines = (shapes / "labels.csv").read_text().splitlines(keepends=True)
    (shapes / "labels.csv").write_text("".join(line for line in lines if not line.startswith(f"{label}0.png")))
    assert (open_experiment(shapes).training_digest == before) is shared


def test_other_words_in_the_file_of_that_name_are_another_training(shapes: Path) -> None:
    before = open_experiment(shapes).training_digest
    words = shapes / "words.txt"
    words.write_text(words.read_text().replace("0", "1"))
    assert open_experiment(shapes).training_digest != before


def test_a_default_that_changes_in_code_is_another_training(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_experiment(shapes).training_digest

    class Changed(WordAttention):
        def __init__(self, channels: int, dimensions: int, *, joint: int = 512, heads: int = 8, gamma: float = 2.0):
            super().__init__(channels, dimensions, joint=joint, heads=heads, gamma=gamma)

    monkeypatch.setitem(METHODS, "word-attention", Changed)
    assert open_experiment(shapes).training_digest != before


def test_best_weights_come_back_with_their_facts(run: RunFolder) -> None:
    run.save_best(Tiny(3.0).state_dict(), STATE)
    method = Tiny()
    run.load_best(method)
    facts = read_facts(run.best)
    assert (facts["episode"], facts["best"], facts["recipe"]["method"]["dropout"]) == (40, 0.5, 0.1)
    assert Recipe.model_validate(facts["recipe"]).digest == run.recipe.digest
    assert method.weight.item() == 3
    assert not list(run.folder.glob("*.part"))


def test_a_run_without_weights_says_how_to_train_it(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"has no best\.safetensors; train it first"):
        run.load_best(Tiny())


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_corrupt_checkpoint_is_named(run: RunFolder, kept: int) -> None:
    run.save_best(Tiny().state_dict(), STATE)
    run.best.write_bytes(run.best.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"best\.safetensors cannot be read"):
        run.load_best(Tiny())


def test_somebody_elses_safetensors_are_refused(run: RunFolder) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, run.best)
    with pytest.raises(InputError, match="was not written by fewtag train"):
        read_facts(run.best)


def test_the_state_comes_back_and_later_log_lines_are_dropped(run: RunFolder) -> None:
    for episode in (20, 40, 60):
        run.log({"episode": episode})
    run.save_checkpoint(Checkpoint(STATE, {"weight": torch.ones(1)}, {"state": {}}, {}))
    with (run.folder / "log.jsonl").open("a") as file:
        file.write('{"episode": 8')  # killed while writing
    loaded = run.load_checkpoint()
    assert loaded is not None
    assert (loaded.state, loaded.method["weight"].item(), loaded.optimizer) == (STATE, 1, {"state": {}})
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [20, 40]


def test_without_a_state_the_log_begins_anew(run: RunFolder) -> None:
    run.log({"episode": 20})
    assert run.load_checkpoint() is None
    assert not (run.folder / "log.jsonl").exists()


@pytest.mark.parametrize("content", [b"", b"half of a state"])
def test_a_corrupt_state_is_named(run: RunFolder, content: bytes) -> None:
    (run.folder / "last.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"last\.pt cannot be read .*; remove it") as refusal:
        run.load_checkpoint()
    assert "\n" not in str(refusal.value)


def test_loading_a_state_runs_no_code(run: RunFolder, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "owned",))

    torch.save(Evil(), run.folder / "last.pt")
    with pytest.raises(InputError, match=r"last\.pt cannot be read"):
        run.load_checkpoint()
    assert not (tmp_path / "owned").exists()


def test_another_number_of_processes_does_not_go_on(run: RunFolder) -> None:
    run.save_checkpoint(Checkpoint(replace(STATE, processes=2), {}, {}, {}))
    with pytest.raises(InputError, match="begun by 2 processes, here are 1: go on with torchrun --nproc-per-node 2"):
        run.load_checkpoint(processes=1)
    assert run.load_checkpoint(processes=2) is not None


def test_a_finished_run_has_a_summary_and_no_checkpoint(run: RunFolder) -> None:
    run.save_checkpoint(Checkpoint(STATE, {}, {}, {}))
    assert run.summary is None
    summary = TrainingSummary(**vars(STATE), stopped_early=True, episodes_planned=60)
    run.finish(summary)
    assert run.summary == summary
    assert not (run.folder / "last.pt").exists()
