"""Two processes learn and measure what one does: the same steps, the same scores, the same rows in the same order."""

import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from safetensors.torch import load_file
from torch import Tensor, nn

from fewtag.cache_upkeep import CacheUpkeep
from fewtag.errors import InputError
from fewtag.research.bench import distributed
from fewtag.research.bench import measure as measuring
from fewtag.research.bench import train as training_module
from fewtag.research.bench.distributed import Bench, collective_refusal, on_rank_zero, open_fabric, rank_share
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import measure
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import METRICS, read_rows
from fewtag.research.bench.run_folder import RunFolder
from fewtag.research.bench.train import Episodes, Learner, train, validate
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.backbone import Backbone
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import METHODS, Base, EndToEnd, Method, create_method

Found = TypeVar("Found")
ONE = Fabric(accelerator="cpu", devices=1)
LABELS = ("dog", "cat", "sofa", "zebra")
CHANNELS, DIMENSIONS = 6, 5
TRAINING = Training(queries=1, warmup=0, learning_rate=0.1)


def in_two(work: Callable[[Fabric], Found]) -> list[Found]:
    """What two forked processes make of it, the first one's first; an error of either is raised here."""
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)

    with tempfile.TemporaryDirectory() as folder:  # Fabric's own way back takes no more than a pipe holds
        path = Path(folder) / "found"

        def both(fabric: Fabric) -> None:
            found: list[Any] = [None] * fabric.world_size
            torch.distributed.all_gather_object(found, work(fabric))
            if fabric.is_global_zero:
                torch.save(found, path)

        fabric.launch(both)
        return torch.load(path, weights_only=False)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def phase_of(maps: Tensor) -> Episodes:
    """Sixteen pictures, four of each label."""
    targets = torch.eye(4).bool().repeat(4, 1)
    targets[0, 1] = targets[6, 3] = True
    pool = Pool(LABELS, MemoryRows(maps), random(4, DIMENSIONS, seed=2), targets)
    return Episodes(pool, EpisodeSampler(targets.numpy(), LABELS, queries=1, seed=0))


def build(name: str) -> Method:
    torch.manual_seed(0)
    options: dict[str, object] = {"joint": 16} if "joint" in inspect.signature(METHODS[name]).parameters else {}
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS, options=options)
    if method.base_stage == "labels":
        shown = random(30, len(LABELS), seed=24) > 0
        method.prepare(Base(LABELS, random(len(LABELS), DIMENSIONS, seed=23), shown))
    return method


def learns(name: str) -> bool:
    return any(parameter.requires_grad for parameter in build(name).parameters())


class Tiny(nn.Module):
    """A network with batch-norm, and with a part that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, CHANNELS, 2), nn.BatchNorm2d(CHANNELS)
        self.unused = nn.Linear(3, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.norm(self.convolution(pixels.float() / 255))


def stepped(fabric: Fabric, method: Method, phase: Episodes, training: Training, steps: int) -> dict[str, Tensor]:
    """The method's state after some steps."""
    learner = Learner(method, training, 0, fabric)
    learner.model.train()
    for _ in range(steps):
        learner.take_step(phase)
        learner.state.episode += training.episodes_per_step * fabric.world_size
    return {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}


def by_hand(method: Method, phase: Episodes, episodes_a_step: int, steps: int) -> dict[str, Tensor]:
    """Plain torch: steps along the mean loss of so many episodes."""
    optimizer = torch.optim.SGD(method.parameters(), lr=TRAINING.learning_rate)
    method.train()
    for step in range(steps):
        losses = []
        for index in range(step * episodes_a_step, (step + 1) * episodes_a_step):
            torch.manual_seed(index)  # what a step does for seed 0
            losses.append(method.loss(phase.pool.episode(phase.sampler.draw(index))))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return method.state_dict()


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: name + text)


@pytest.fixture
def plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps along the gradient itself: Adam's are as long where it is nothing but rounding."""
    monkeypatch.setattr(training_module, "Adam", lambda groups, **_: torch.optim.SGD(groups, TRAINING.learning_rate))


@pytest.mark.slow
@pytest.mark.usefixtures("plain_steps")
def test_every_method_that_learns_takes_the_mean_step_of_both_processes() -> None:
    phase = phase_of(random(16, CHANNELS, 3, 3, seed=1))
    names = [name for name in METHODS if learns(name)]
    assert len(names) > 10
    training = TRAINING.model_copy(update={"episodes_per_step": 2})
    first, second = in_two(lambda fabric: {name: stepped(fabric, build(name), phase, training, 2) for name in names})
    for name in names:
        wanted = by_hand(build(name), phase, episodes_a_step=4, steps=2)
        assert_close(first[name], wanted)
        assert_close(second[name], wanted)


@pytest.mark.usefixtures("plain_steps")
def test_end_to_end_two_processes_learn_the_same_weights_and_are_judged_with_the_first_ones_statistics() -> None:
    def method() -> Method:
        inner = build("word-attention")
        torch.manual_seed(1)
        return EndToEnd(Tiny(), inner)

    pixels = torch.randint(0, 256, (16, 3, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    phase, training = phase_of(pixels), TRAINING.model_copy(update={"episodes_per_step": 2})

    def work(fabric: Fabric) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
        trained = method()
        before = stepped(fabric, trained, phase, training, 3)
        scores = validate(fabric, trained, phase, 4)
        return before, {name: each.clone() for name, each in trained.state_dict().items()}, scores

    (own, first, scores), (others, second, same_scores) = in_two(work)
    wanted = by_hand(method(), phase, episodes_a_step=4, steps=3)
    statistics = [name for name in wanted if "running" in name or "tracked" in name]
    assert len(statistics) == 3
    for state in (first, second):  # episodes are normalised by themselves, so the weights are those of one process
        assert_close(*({name: each[name] for name in wanted if name not in statistics} for each in (state, wanted)))
    assert not torch.equal(own["backbone.norm.running_mean"], others["backbone.norm.running_mean"])
    for name in statistics:
        assert torch.equal(first[name], own[name])
        assert torch.equal(second[name], own[name])
    assert scores == same_scores


def test_validation_is_dealt_out_and_comes_to_the_mean_of_all_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    phase, method = phase_of(random(16, CHANNELS, 3, 3, seed=1)), build("word-attention")
    draws = [phase.sampler.draw(index) for index in range(5)]
    each = evaluate(method, phase.pool, draws)
    wanted = {name: round(sum(row.metrics[name] for row in each) / 5, 6) for name in METRICS}
    asked: list[int] = []
    draw = EpisodeSampler.draw
    monkeypatch.setattr(EpisodeSampler, "draw", lambda self, index: (asked.append(index), draw(self, index))[1])
    found = in_two(lambda fabric: (validate(fabric, method, phase, 5), asked))
    assert found == [(wanted, [0, 2, 4]), (wanted, [1, 3])]


@pytest.mark.parametrize("refusing", [0, 1])
def test_what_one_process_refuses_both_refuse_in_its_words(refusing: int) -> None:
    def work(fabric: Fabric) -> str:
        try:
            with collective_refusal():
                if fabric.global_rank == refusing:
                    raise InputError("the picture is broken")
        except InputError as error:
            return str(error)
        return "nothing"

    assert in_two(work) == ["the picture is broken"] * 2


def test_what_one_process_cannot_read_in_a_step_both_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    phase, whole = phase_of(random(16, CHANNELS, 3, 3, seed=1)), Pool.episode

    def work(fabric: Fabric) -> str:
        def broken(pool: Pool, draw: object) -> object:
            if fabric.global_rank == 1:
                raise InputError("the cache is broken")
            return whole(pool, draw)

        monkeypatch.setattr(Pool, "episode", broken)
        try:
            stepped(fabric, build("word-attention"), phase, TRAINING, 1)
        except InputError as error:
            return str(error)
        return "nothing"

    assert in_two(work) == ["the cache is broken"] * 2


def test_what_the_first_process_finds_is_told_to_both() -> None:
    assert in_two(lambda fabric: on_rank_zero(fabric, lambda: fabric.global_rank)) == [0, 0]
    assert in_two(lambda fabric: list(rank_share(fabric, range(5)))) == [[0, 2, 4], [1, 3]]


def bench(shapes: Path, fabric: Fabric, run: str, *changes: str, out: str, runs: str) -> list[dict[str, Any]]:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=[run], changes=changes)
    experiment = Experiment(recipe, shapes, shapes)
    measure(experiment, Bench(fabric, shapes / "cache"), runs=shapes / runs, out=shapes / out, command="")
    return [row.model_dump(exclude={"seconds"}) for row in read_rows(shapes / out / f"{run}.test.parquet")]


@pytest.mark.slow
def test_the_rows_of_two_processes_are_those_of_one(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    short = ("training.episodes=4", "training.validate_every=4", "evaluation.episodes=7")
    one = bench(shapes, ONE, "attention", *short, out="one", runs="runs")
    dealt: list[int] = []
    monkeypatch.setattr(
        measuring, "evaluate", lambda *given, **more: (dealt.append(len(given[2])), evaluate(*given, **more))[1]
    )

    def work(fabric: Fabric) -> tuple[list[dict[str, Any]], list[int]]:
        return bench(shapes, fabric, "attention", *short, out="two", runs="runs"), dealt

    (first, mine), (second, theirs) = in_two(work)
    assert [row["episode"] for row in one] == list(range(7))
    assert len({row["macro_ap"] for row in one}) > 2, "rows in another order would not be told apart"
    assert first == second == one
    assert (mine, theirs) == ([4], [3])


@pytest.mark.slow
@pytest.mark.parametrize("cycle", [0, 2])
def test_training_in_two_processes_then_measuring_gives_the_rows_of_one_with_twice_the_episodes_a_step(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, cycle: int
) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    changes = ("training.episodes=8", "training.validate_every=4", "training.warmup=0", f"training.cycle={cycle}")

    def work(fabric: Fabric) -> list[dict[str, Any]]:
        return bench(shapes, fabric, "attention", *changes, out="two", runs="two")

    found, _ = in_two(work)
    wanted = bench(shapes, ONE, "attention", *changes, "training.episodes_per_step=2", out="one", runs="one")
    assert found[0]["recipe_digest"] != wanted[0]["recipe_digest"]
    assert wanted[0]["episodes_a_step"] == 2
    for row, other in zip(found, wanted, strict=True):
        assert {name: row.pop(name) for name in METRICS} == pytest.approx({name: other.pop(name) for name in METRICS})
        assert row.pop("validation_macro_ap") == pytest.approx(other.pop("validation_macro_ap"))
        assert {**row.pop("training"), "episodes_per_step": 2} == other.pop("training")
        assert {**row, "recipe_digest": ""} == {**other, "recipe_digest": ""}


@pytest.mark.slow
def test_end_to_end_two_processes_measure_the_backbone_that_they_tuned_and_keep_none_of_its_features(
    shapes: Path,
) -> None:
    changes = ("backbone.frozen=false", "training.episodes=4", "training.validate_every=4", "training.warmup=0")
    both = in_two(lambda fabric: bench(shapes, fabric, "attention", *changes, out="two", runs="runs"))
    one = bench(shapes, ONE, "attention", *changes, out="one", runs="runs")
    for rows in both:
        assert [row["macro_ap"] for row in rows] == [row["macro_ap"] for row in one]
    assert not [space for space in CacheUpkeep(shapes / "cache").contents() if space.kind == "features"], "used once"


def test_each_process_extracts_its_part_of_the_features(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = Backbone.forward

    def noted(backbone: Backbone, pixels: Tensor) -> Tensor:
        seen.append(int(pixels.flatten(1).any(dim=1).sum()))  # a black one asks for the maps' shape
        return forward(backbone, pixels)

    monkeypatch.setattr(Backbone, "forward", noted)
    monkeypatch.setattr(
        "fewtag.research.features.rows.fuse_batch_norms", lambda backbone: backbone
    )  # its trial is no picture either
    found = in_two(lambda fabric: (bench(shapes, fabric, "protonet", out="two", runs="two"), sum(seen))[1])
    assert found == [10, 9], "of the pictures that are drawn in the episodes, 19 of 24"


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_to_the_same_weights(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("training.episodes=16", "training.validate_every=4", "training.checkpoint_every=8", "method.dropout=0.4")
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=["attention"], changes=short)

    def trained(fabric: Fabric, name: str) -> tuple[object, dict[str, Tensor]]:
        run = RunFolder(shapes / name, recipe)
        summary = train(Experiment(recipe, shapes, shapes), run, Bench(fabric, shapes / "cache"))
        return replace(summary, seconds=0.0), load_file(run.best)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda *_: None)  # a kill just before the end
        save = RunFolder.save_checkpoint
        patch.setattr(RunFolder, "save_checkpoint", lambda run, each: each.state.episode > 8 or save(run, each))
        in_two(lambda fabric: trained(fabric, "killed"))
    (resumed, weights), _ = in_two(lambda fabric: trained(fabric, "killed"))
    (whole, wanted), _ = in_two(lambda fabric: trained(fabric, "whole"))
    assert resumed == whole
    torch.testing.assert_close(weights, wanted, rtol=0, atol=0)


@pytest.mark.slow
def test_torchrun_starts_two_processes_that_write_the_rows_of_one_and_refuse_in_one_sentence(shapes: Path) -> None:
    wanted = bench(shapes, ONE, "protonet", out="one", runs="one")
    broken = '[[runs]]\nname = "broken"\nmethod.name = "protonet"\nevaluation.draws.test = "gone.json"\n'
    (shapes / "recipe.toml").write_text((shapes / "recipe.toml").read_text() + broken)
    command = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "-m", "fewtag", "bench"]
    place = ["--out", shapes / "out", "--cache", shapes / "cache", "--accelerator", "cpu"]
    runs = ["--only", "protonet", "--only", "broken"]
    arguments = [*command, shapes / "recipe.toml", *place, *runs]
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True)

    assert done.stderr.count("measuring protonet on test") == 1
    assert "3/3" in done.stderr, "the first of two processes measures three of five episodes"
    rows = [row.model_dump() for row in read_rows(shapes / "out" / "recipe" / "protonet.test.parquet")]
    for key in (*METRICS, "episode", "draws_digest", "data_digest", "recipe_digest"):
        assert [row[key] for row in rows] == [row[key] for row in wanted]

    assert done.stderr.count("fewtag: run broken: there is no file of draws") == 1
    assert re.search(r"exitcode\s*: 2\b", done.stderr), "torchrun's report tells what the process exited with"
    assert "src/fewtag" not in done.stderr, "no traceback of ours"
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.usefixtures("launched")
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="2 processes need a GPU each, but torch sees 1 here; start fewer"):
        open_fabric("auto", "auto")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torchrun had started this process, the last of two machines with two processes each."""
    started = {"RUN_ID": "x", "RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1}
    for name, value in started.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}" if name == "RUN_ID" else name, str(value))
    monkeypatch.setattr(distributed, "_join_ranks", lambda: None)
    monkeypatch.setattr(Fabric, "launch", lambda _: None)


@pytest.mark.usefixtures("launched")
def test_the_cores_are_divided_among_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for cores in (7, 1):
        monkeypatch.setattr(distributed, "usable_cores", lambda cores=cores: cores)
        fabric = open_fabric("cpu", "auto")
        assert (fabric.strategy.num_processes, fabric.strategy.num_nodes) == (2, 2)  # type: ignore[attr-defined]
    assert threads == [3, 1]


@pytest.mark.usefixtures("launched")
def test_a_number_of_processes_that_differs_between_machines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="torchrun started 2 of 3 processes on this machine; start as many on each"):
        open_fabric("cpu", "auto")
