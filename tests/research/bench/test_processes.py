"""Two processes learn and measure what one does: the same steps, the same scores, the same rows in the same order."""

import inspect
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from safetensors.torch import load_file
from torch import Tensor, nn

from fewtag.apps import processes
from fewtag.cache import Cache
from fewtag.errors import InputError
from fewtag.research.bench import learner as learning
from fewtag.research.bench import measure as measuring
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.learner import Learner, Phase
from fewtag.research.bench.materials import Materials
from fewtag.research.bench.measure import measure
from fewtag.research.bench.metrics import METRICS
from fewtag.research.bench.recipe import Training
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import read_rows
from fewtag.research.bench.runs import Run
from fewtag.research.bench.together import as_one, by_first, gather, share
from fewtag.research.bench.train import train, validate
from fewtag.research.data.sampling import EpisodeSampler
from fewtag.research.features.backbone import Backbone
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import METHODS, Base, EndToEnd, Method, create_method

Found = TypeVar("Found")
Cli = Callable[..., Any]
ONE = Fabric(accelerator="cpu", devices=1)
LABELS = ("dog", "cat", "sofa", "zebra")
CHANNELS, DIMENSIONS = 6, 5
TRAINING = Training(queries=1, warmup=0, learning_rate=0.1)


def in_two(work: Callable[[Fabric], Found]) -> list[Found]:
    """What two forked processes make of it, the first one's first; an error of either is raised here."""
    strategy = DDPStrategy(start_method="fork", broadcast_buffers=False, process_group_backend="gloo")
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)

    with tempfile.TemporaryDirectory() as folder:  # Fabric's own way back takes no more than a pipe holds
        path = Path(folder) / "found"

        def both(fabric: Fabric) -> None:
            found = gather(fabric, work(fabric))
            if fabric.is_global_zero:
                torch.save(found, path)

        fabric.launch(both)
        return torch.load(path, weights_only=False)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def phase_of(maps: Tensor) -> Phase:
    """Sixteen pictures, four of each label."""
    targets = torch.eye(4).bool().repeat(4, 1)
    targets[0, 1] = targets[6, 3] = True
    pool = Pool(LABELS, MemoryRows(maps), random(4, DIMENSIONS, seed=2), targets)
    return Phase(pool, EpisodeSampler(targets.numpy(), LABELS, queries=1, seed=0))


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


def stepped(fabric: Fabric, method: Method, phase: Phase, training: Training, steps: int) -> dict[str, Tensor]:
    """The method's state after some steps."""
    learner = Learner(method, training, 0, fabric)
    learner.model.train()
    for _ in range(steps):
        learner.take_step(phase)
        learner.state["episode"] += training.episodes_per_step * fabric.world_size
    return {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}


def by_hand(method: Method, phase: Phase, episodes_a_step: int, steps: int) -> dict[str, Tensor]:
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
    monkeypatch.setattr(learning, "Adam", lambda parameters, lr, **_: torch.optim.SGD(parameters, lr))


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
def test_end_to_end_two_processes_keep_the_running_statistics_of_one() -> None:
    def method() -> Method:
        inner = build("word-attention")
        torch.manual_seed(1)
        return EndToEnd(Tiny(), inner)

    pixels = torch.randint(0, 256, (16, 3, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    training = TRAINING.model_copy(update={"episodes_per_step": 2})
    found = in_two(lambda fabric: stepped(fabric, method(), phase_of(pixels), training, 3))
    wanted = by_hand(method(), phase_of(pixels), episodes_a_step=4, steps=3)
    assert wanted["backbone.norm.num_batches_tracked"] == 12
    for state in found:
        assert_close(state, wanted)


def test_validation_is_dealt_out_and_comes_to_the_mean_of_all_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    phase, method = phase_of(random(16, CHANNELS, 3, 3, seed=1)), build("word-attention")
    draws = [phase.sampler.draw(index) for index in range(5)]
    each = evaluate(method, phase.pool, draws)
    wanted = {name: round(sum(row[name] for row in each) / 5, 6) for name in METRICS}
    asked: list[int] = []
    draw = EpisodeSampler.draw
    monkeypatch.setattr(EpisodeSampler, "draw", lambda self, index: (asked.append(index), draw(self, index))[1])
    found = in_two(lambda fabric: (validate(fabric, method, phase, 5), asked))
    assert found == [(wanted, [0, 2, 4]), (wanted, [1, 3])]


@pytest.mark.parametrize("refusing", [0, 1])
def test_what_one_process_refuses_both_refuse_in_its_words(refusing: int) -> None:
    def work(fabric: Fabric) -> str:
        try:
            with as_one(fabric):
                if fabric.global_rank == refusing:
                    raise InputError("the picture is broken")
        except InputError as error:
            return str(error)
        return "nothing"

    assert in_two(work) == ["the picture is broken"] * 2


def test_what_the_first_process_finds_is_told_to_both() -> None:
    assert in_two(lambda fabric: by_first(fabric, lambda: fabric.global_rank)) == [0, 0]
    assert in_two(lambda fabric: list(share(fabric, range(5)))) == [[0, 2, 4], [1, 3]]


def bench(shapes: Path, fabric: Fabric, run: str, *changes: str, out: str, runs: str) -> list[dict[str, Any]]:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=[run], changes=changes)
    folder, materials = shapes / runs / run, Materials(recipe, shapes, shapes)
    measure(materials, Run(folder, recipe), fabric, out=shapes / out, cache=shapes / "cache", command="")
    return [row.model_dump(exclude={"seconds"}) for row in read_rows(shapes / out / f"{run}.test.parquet")]


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


def test_training_in_two_processes_then_measuring_gives_the_rows_of_one_with_twice_the_episodes_a_step(
    shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    changes = ("training.episodes=8", "training.validate_every=4", "backbone.frozen=false", "training.warmup=0")

    def work(fabric: Fabric) -> list[dict[str, Any]]:
        return bench(shapes, fabric, "attention", *changes, out="two", runs="two")

    found, _ = in_two(work)
    wanted = bench(shapes, ONE, "attention", *changes, "training.episodes_per_step=2", out="one", runs="one")
    assert found[0]["recipe_digest"] != wanted[0]["recipe_digest"]
    assert wanted[0]["episodes_a_step"] == 2
    for row, other in zip(found, wanted, strict=True):
        assert {name: row.pop(name) for name in METRICS} == pytest.approx({name: other.pop(name) for name in METRICS})
        assert row.pop("validation_macro_ap") == pytest.approx(other.pop("validation_macro_ap"))
        assert {**row, "recipe_digest": ""} == {**other, "recipe_digest": ""}
    assert not [space for space in Cache(shapes / "cache").contents() if space.kind == "features"], "used once"


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
    assert found == [12, 12]


SHORT = ("training.episodes=200", "training.patience=100", "training.validate_every=4", "training.checkpoint_every=4")


def trained(shapes: Path, fabric: Fabric, runs: str) -> dict[str, Any]:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=["attention"], changes=[*SHORT, "method.dropout=0.4"])
    run = Run(shapes / runs / "recipe" / "attention", recipe)
    summary = train(Materials(recipe, shapes, shapes), run, fabric, cache=shapes / "cache")
    return {**summary, "seconds": 0, "weights": load_file(run.best)}


def wait_until_still(path: Path) -> None:
    before = b""
    while (now := path.read_bytes()) != before:
        before = now
        time.sleep(1.5)


def test_a_run_of_two_processes_that_was_killed_goes_on_in_two_and_in_no_other_number(shapes: Path) -> None:
    settings = [text for change in (*SHORT, "method.dropout=0.4") for text in ("--set", change)]
    place = ["--only", "attention", "--runs", shapes / "killed", "--cache", shapes / "cache", "--accelerator", "cpu"]
    command = [sys.executable, "-m", "fewtag", "train", shapes / "recipe.toml", *place, "--devices", "2", *settings]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = shapes / "killed" / "recipe" / "attention"
    while process.poll() is None and not (folder / "last.pt").exists():
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until_still(folder / "log.jsonl")  # the two leave when the one that started them is gone
    assert not (folder / "summary.json").exists()

    with pytest.raises(InputError, match="was begun by 2 processes, here are 1: go on with --devices 2"):
        trained(shapes, ONE, "killed")
    resumed, _ = in_two(lambda fabric: trained(shapes, fabric, "killed"))
    whole, _ = in_two(lambda fabric: trained(shapes, fabric, "whole"))
    assert resumed.pop("weights").keys() == whole["weights"].keys()
    torch.testing.assert_close(load_file(folder / "best.safetensors"), whole.pop("weights"), rtol=0, atol=0)
    assert resumed == whole


def test_torchrun_starts_the_processes_as_well_and_the_first_one_speaks(shapes: Path) -> None:
    wanted = bench(shapes, ONE, "protonet", out="one", runs="one")
    place = [
        "--only",
        "protonet",
        "--out",
        shapes / "out",
        "--cache",
        shapes / "cache",
        "--accelerator",
        "cpu",
        "--json",
    ]
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "-m", "fewtag"]
    command = [*torchrun, "bench", shapes / "recipe.toml", *place]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["protonet on test"]
    assert done.stderr.count("measuring protonet on test") == 1
    assert "3/3" in done.stderr, "the first of two processes measures three of five episodes"
    rows = [row.model_dump() for row in read_rows(shapes / "out" / "recipe" / "protonet.test.parquet")]
    for key in (*METRICS, "episode", "draws_digest", "data_digest", "recipe_digest"):
        assert [row[key] for row in rows] == [row[key] for row in wanted]


def test_what_both_processes_refuse_is_said_once_and_leaves_nothing(shapes: Path) -> None:
    place = ["--out", shapes / "out", "--runs", shapes / "runs", "--cache", shapes / "cache", "--accelerator", "cpu"]
    command = [sys.executable, "-m", "fewtag", "bench", shapes / "recipe.toml", *place, "--only", "attention"]
    more = ["--devices", "2", "--set", "training.queries=90"]
    done = subprocess.run([*map(str, command), *more], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("fewtag: label 'circle' has 16 images, an episode needs 91")
    assert not (shapes / "out").exists()
    assert not (shapes / "runs").exists()


def test_more_processes_than_gpus_are_refused(cli: Cli, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = cli("bench", shapes / "recipe.toml", "--accelerator", "gpu", "--devices", "3")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("fewtag: 3 processes need a GPU each, but torch sees 2 here; ask for fewer --devices")
    assert len(said.err.splitlines()) == 1


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torchrun had started this process, the last of two machines with two processes each."""
    started = {"RUN_ID": "x", "RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1}
    for name, value in started.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}" if name == "RUN_ID" else name, str(value))
    monkeypatch.setattr(processes, "_settle", lambda: None)
    monkeypatch.setattr(Fabric, "launch", lambda _: None)


@pytest.mark.usefixtures("torchrun")
def test_the_cores_are_divided_among_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(processes, "usable_cores", lambda: 7)
    fabric = processes.open_fabric("cpu", 1, "auto")
    assert (threads, fabric.strategy.num_processes, fabric.strategy.num_nodes) == ([3], 2, 2)  # type: ignore[attr-defined]
    monkeypatch.setattr(processes, "usable_cores", lambda: 1)
    processes.open_fabric("cpu", 2, "auto")
    assert threads == [3, 1]


@pytest.mark.usefixtures("torchrun")
def test_another_number_than_torchruns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--devices is 3, but torchrun started 2 processes here"):
        processes.open_fabric("cpu", 3, "auto")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="torchrun started 2 of 3 processes on this machine; start as many on each"):
        processes.open_fabric("cpu", 1, "auto")
