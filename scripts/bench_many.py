"""Measures many runs at once on one GPU: worker processes that share the pictures and their maps in its memory.

    python scripts/bench_many.py PLAN --data DIR --seconds 3000 --stop 3600

PLAN has a line `recipe run` for each run, the most important first; `recipe run*` stands for all of that beginning. The
rows are those of `fewtag bench recipes/RECIPE.toml --data DIR --only RUN`, which would decode and encode pictures for
every run anew. Runs end to end have workers of their own. After `--seconds` no run begins any more, and after `--stop`
those under way are cut short: they go on from their checkpoints when the same command is given again. A worker end to
end takes up to 25 GB of the GPU's memory (with five shots).

CUDA's MPS lets the workers compute at the same time. Do not set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: on an H200 with
torch 2.11, workers with 45 % computed wrong features (of mean 2.68 in place of 0.38), and losses that are no numbers.
"""

import argparse
import fnmatch
import os
import pickle
import time
import traceback
from collections.abc import Mapping
from functools import cache, partial
from multiprocessing.pool import Pool as Processes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.bench import experiment as experiments
from fewtag.research.bench import measure as measuring
from fewtag.research.bench import train as training
from fewtag.research.bench.distributed import Bench, open_fabric
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe import Recipe, digest_of
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.data import readers
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.backbone import Backbone, open_backbone
from fewtag.research.features.rows import MemoryRows, precision_of

BATCH = 256


class Task(NamedTuple):
    """A run of a recipe file."""

    recipe: str
    run: str
    end_to_end: bool


class Shared(NamedTuple):
    """All pictures of the plan on the device, and the maps that the frozen network makes of them."""

    pixels: Tensor
    maps: Tensor
    read: Path
    """The data sets, pickled: what is handed to a worker as an argument holds up the start of the next one."""


class SharedRows(MemoryRows):
    """Some rows of a tensor that many data sets share."""

    def __init__(self, tensor: Tensor, numbers: Tensor) -> None:
        super().__init__(tensor)
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Any) -> Tensor:
        return super().take(self.numbers[torch.as_tensor(rows, dtype=torch.long, device=self.numbers.device)])


def read_plan(plan: Path, recipes: Path) -> list[tuple[Task, Recipe]]:
    """The plan's runs in its order, each once."""
    known: dict[str, list[Recipe]] = {}
    wanted: dict[Task, Recipe] = {}
    for line in plan.read_text().splitlines():
        stem, pattern = line.split()
        if stem not in known:
            known[stem] = [recipe for _, recipe in load_recipes(recipes / f"{stem}.toml")]
        found = [recipe for recipe in known[stem] if fnmatch.fnmatchcase(recipe.name, pattern)]
        if not found:
            raise InputError(f"recipe {stem} has no run {pattern!r}; mend the plan")
        for recipe in found:
            if not recipe.not_measured:
                wanted.setdefault(Task(stem, recipe.name, not recipe.backbone.frozen), recipe)
    networks = {each.backbone.model_dump_json(exclude={"frozen", "tuned"}) for each in wanted.values()}
    if len(networks) > 1:
        raise InputError(f"the plan has runs on {len(networks)} networks, sizes or grids; write a plan for each")
    return list(wanted.items())


class Read(NamedTuple):
    """What an experiment has read of its data: by source, and by phase."""

    sources: dict[int, LabelledImages]
    phases: dict[str, LabelledImages]


def data_key(recipe: Recipe) -> str:
    return digest_of(recipe.data.model_dump(mode="json"))


def read_data(plan: list[tuple[Task, Recipe]], data: Path, recipes: Path) -> dict[str, Read]:
    """The data sets of the plan's runs; a source that several have is read once."""
    vars(readers)["index_images"] = cache(readers.index_images)
    found: dict[str, Read] = {}
    sources: dict[str, LabelledImages] = {}
    for _, recipe in plan:
        experiment = Experiment(recipe, data, recipes)
        read = found.setdefault(data_key(recipe), Read({}, {}))
        experiment._read, experiment._phases = read
        for number, source in enumerate(recipe.data.sources):
            key = digest_of(source.model_dump(mode="json", exclude={"phases", "role"}))
            if number not in read.sources and key not in sources:
                sources[key] = experiment._read_source(number, source)
            read.sources[number] = sources[key]
        validation = {"val"} if recipe.training is not None and recipe.training.patience else set()
        for phase in {"train", *validation, *recipe.evaluation.phases}:
            assert experiment.phase(phase).digest  # worked out now, kept for the workers
    return found


def pictures_of(read: Mapping[str, Read]) -> dict[str, Picture]:
    """Every picture that some run needs, by name."""
    phases = [images for each in read.values() for images in each.phases.values()]
    return {str(picture): picture for images in phases for picture in images.pictures}


def decode(size: int, pictures: list[Picture]) -> np.ndarray:
    return np.stack([picture.pixels(size) for picture in pictures])


def open_network(recipe: Recipe, data: Path, recipes: Path) -> Backbone:
    """The network of all runs of a plan."""
    torch.manual_seed(recipe.seed)  # weights may be random
    settings = recipe.backbone
    weights = None if settings.weights is None else Experiment(recipe, data, recipes)._locate(settings.weights)
    network = open_backbone(settings.name, weights=weights, size=settings.size, grid=settings.grid)
    assert isinstance(network, Backbone)
    return network


def encode_all(pictures: dict[str, Picture], network: Backbone, device: torch.device) -> tuple[Tensor, Tensor]:
    """Decodes on all cores and encodes on the device, once."""
    every, size = list(pictures.values()), network.size
    chunks = [every[first : first + BATCH] for first in range(0, len(every), BATCH)]
    maps: Tensor | None = None
    with Processes(os.cpu_count()) as processes:  # before the device is touched: a fork may not take it along
        pixels = torch.empty(len(every), 3, size, size, dtype=torch.uint8, device=device)
        network.to(device).eval()
        for number, decoded in enumerate(processes.imap(partial(decode, size), chunks)):
            part = slice(number * BATCH, number * BATCH + len(decoded))
            pixels[part] = torch.from_numpy(decoded).to(device)
            made = encode(network, pixels[part])
            if maps is None:
                maps = torch.empty(len(every), *made.shape[1:], dtype=torch.half, device=device)
            maps[part] = made
    assert maps is not None
    return pixels, maps


@torch.no_grad()
def encode(network: Backbone, pixels: Tensor) -> Tensor:
    """As `rows.start` does."""
    with torch.autocast(pixels.device.type, precision_of(network), enabled=pixels.is_cuda):
        return network(pixels).half().contiguous()


def share_with_fewtag(shared: Shared, number_of: Mapping[str, int]) -> None:
    """Has training and measuring take their rows from what is shared, and read each data set once."""
    device = shared.pixels.device
    rows: dict[tuple[str, ...], Tensor] = {}

    def numbers(images: LabelledImages) -> Tensor:
        # not by the digest, which does not know the order: two phases may have the same pictures in another
        if images.ids not in rows:
            rows[images.ids] = torch.tensor([number_of[str(each)] for each in images.pictures], device=device)
        return rows[images.ids]

    def features(images: LabelledImages, backbone: Backbone, *_: object, **__: object) -> MemoryRows:
        if getattr(backbone, "is_shared", False):
            return SharedRows(shared.maps, numbers(images))
        parts = numbers(images).split(BATCH)
        return MemoryRows(torch.cat([encode(backbone.eval(), shared.pixels[part]) for part in parts]))

    def untuned(name: str, *, weights: str | None, size: int, grid: int | None = None) -> Any:
        if name not in networks:
            networks[name] = open_backbone(name, weights=weights, size=size, grid=grid)
            networks[name].is_shared = True
        return networks[name]

    networks: dict[str, Any] = {}
    for module in (training, measuring):
        vars(module)["feature_rows"] = features
    vars(training)["pixel_rows"] = lambda images, *_, **__: SharedRows(shared.pixels, numbers(images))
    vars(training)["on_device"] = lambda found, _: found
    vars(measuring)["refuse_unreadable"] = lambda _: None
    vars(measuring)["drop_features"] = lambda *_: None
    vars(experiments)["open_backbone"] = untuned


def work(
    tasks: "mp.Queue[Task | None]", shared: Shared, arguments: argparse.Namespace, until: float, name: str
) -> None:
    """A worker: one run after another, until there are none or the time is up."""
    torch.set_num_threads(1)
    read: dict[str, Read] = pickle.loads(shared.read.read_bytes())
    share_with_fewtag(shared, {name: number for number, name in enumerate(pictures_of(read))})
    shared_open = vars(experiments)["open_backbone"]
    bench = Bench(open_fabric("auto", "auto"), Path("none"))
    while time.time() < until and (task := tasks.get()) is not None:
        since = time.time()
        vars(experiments)["open_backbone"] = open_backbone if task.end_to_end else shared_open
        try:
            ((file, recipe),) = load_recipes(arguments.recipes / f"{task.recipe}.toml", only=[task.run])
            experiment = Experiment(recipe, arguments.data, file.parent)
            experiment._read, experiment._phases = read[data_key(recipe)]
            command = f"fewtag bench recipes/{task.recipe}.toml --data DIR --only {task.run}"
            places = {"runs": arguments.runs, "out": arguments.out / task.recipe}
            rows = measuring.measure(experiment, bench, command=command, **places)
            scores = " ".join(
                f"{phase} {100 * np.mean([row.macro_ap for row in found]):.2f}/"
                f"{100 * np.mean([row.micro_ap for row in found]):.2f}"
                for phase, found in rows.items()
            )
            kept_at = next(iter(rows.values()))[0].trained_episodes
            print(f"{name} {task.recipe}/{task.run}: {scores}, kept {kept_at}, {time.time() - since:.0f} s", flush=True)
        except Exception:
            print(f"{name} {task.recipe}/{task.run} failed:\n{traceback.format_exc()}", flush=True)


def main() -> None:
    begun = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipes", type=Path, default=Path("recipes"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seconds", type=float, required=True, help="from now, when the last run may begin")
    parser.add_argument("--stop", type=float, required=True, help="seconds from now when runs are cut short")
    parser.add_argument("--frozen", type=int, default=12, help="workers on frozen features")
    parser.add_argument("--end-to-end", type=int, default=2, help="workers end to end")
    arguments = parser.parse_args()
    plan = read_plan(arguments.plan, arguments.recipes)
    read = read_data(plan, arguments.data, arguments.recipes)
    pictures, kept = pictures_of(read), arguments.runs / "read.pickle"
    arguments.runs.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(read))
    print(f"{len(plan)} runs, {len(pictures)} pictures, {time.time() - begun:.0f} s", flush=True)
    network = open_network(plan[0][1], arguments.data, arguments.recipes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shared = Shared(*encode_all(pictures, network, device), kept)
    print(f"encoded after {time.time() - begun:.0f} s", flush=True)
    context = mp.get_context("spawn")
    workers, queues = [], []
    for end_to_end, count in ((True, arguments.end_to_end), (False, arguments.frozen)):
        tasks = context.Queue()
        queues.append(tasks)  # one that nobody holds is closed with what is in it
        for task, _ in plan:
            if task.end_to_end == end_to_end:
                tasks.put(task)
        for number in range(count):
            name = f"{'end-to-end' if end_to_end else 'frozen'}-{number}"
            given = (tasks, shared, arguments, begun + arguments.seconds, name)
            workers.append(context.Process(target=work, args=given, daemon=True))
            tasks.put(None)  # there are no more
            workers[-1].start()
    for worker in workers:
        worker.join(max(0.0, begun + arguments.stop - time.time()))
    for worker in workers:
        worker.terminate()
    print(f"done after {time.time() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
