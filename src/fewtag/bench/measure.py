"""A recipe's whole way: train if it must be, then measure every phase and write the rows."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float
from lightning_fabric import Fabric
from torch import Tensor

from fewtag.bench.evaluate import Pool, evaluate
from fewtag.bench.materials import Materials
from fewtag.bench.progress import Reporter, Silent
from fewtag.bench.results import Row, commit, read_rows, result_rows, write_rows
from fewtag.bench.runs import Run
from fewtag.bench.train import train
from fewtag.data.combine import refuse_unreadable
from fewtag.errors import InputError
from fewtag.features.backbone import Backbone
from fewtag.features.joined import JoinedBackbone
from fewtag.features.rows import Rows, feature_rows
from fewtag.files import make_folder, write_atomically
from fewtag.methods import Base, EndToEnd, Method, Solved
from fewtag.methods.base import pool

Network = Backbone | JoinedBackbone


def measure(
    materials: Materials,
    run: Run,
    fabric: Fabric,
    *,
    out: Path,
    cache: Path,
    command: str,
    force: bool = False,
    report: Reporter | None = None,
) -> dict[str, list[Row]]:
    """The rows of each phase; a phase already measured by the same recipe is read back, not run again."""
    report = report or Silent()
    recipe = materials.recipe
    files = {phase: out / f"{recipe.name}.{phase}.jsonl" for phase in recipe.evaluation.phases}
    rows = {} if force else {phase: found for phase in files if (found := _measured(files[phase], materials, phase))}
    if len(rows) == len(files):
        return rows

    # whatever is wrong with them is said now, not hours later
    draws = {phase: materials.test_draws(phase) for phase in files if phase not in rows}
    words = {phase: materials.words(materials.phase(phase).labels) for phase in draws}
    make_folder(out)
    facts: Row = {}
    if recipe.training is not None:
        if run.summary is None:
            for phase in draws:
                refuse_unreadable(materials.phase(phase))
        summary = train(materials, run, fabric, cache=cache, report=report)
        curve = json.dumps({"recipe": recipe.digest, "commit": commit(), "curve": run.curve})
        write_atomically(out / f"{recipe.name}.training.json", curve.encode())
        facts = {
            "trained_episodes": summary["best_episode"],
            "planned_episodes": recipe.training.episodes,
        }
        if summary["best"] is not None:  # None where nothing was validated
            facts["validation_macro_ap"] = summary["best"]
    with _ready(materials, run, fabric, cache) as (backbone, method, feature_cache):
        if isinstance(method, Solved):
            solve(method, materials, backbone, feature_cache, report)
        for phase, phase_draws in draws.items():
            images = materials.phase(phase)
            report.start(f"reading the {phase} pictures", len(images))
            features = feature_rows(images, backbone, feature_cache, advance=report.advance)
            pictures = Pool.of(images, features, words[phase], fabric.device)
            report.start(f"measuring {recipe.name} on {phase}", len(phase_draws))
            since = time.perf_counter()
            metrics = evaluate(method, pictures, phase_draws, advance=report.advance)
            facts["seconds"] = round(time.perf_counter() - since, 2)
            facts["data_digest"] = images.digest
            rows[phase] = result_rows(recipe, phase, metrics, command=command, facts=facts)
            write_rows(files[phase], rows[phase])
    return rows


def solve(method: Solved, materials: Materials, backbone: Network, cache: Path, report: Reporter) -> None:
    """Fits a method that solves on the global features of all base pictures."""
    images = materials.phase("train")
    report.start("reading the train pictures", len(images))
    rows = feature_rows(images, backbone, cache, advance=report.advance)
    device = next(backbone.parameters()).device
    method.fit(
        Base(
            images.labels,
            materials.words(images.labels).to(device),
            global_features(rows).to(device),
            torch.from_numpy(images.targets).to(device),
        )
    )


def global_features(rows: Rows, batch: int = 256) -> Float[Tensor, "images channels"]:
    """Every picture's mean over places."""
    chunks = [range(start, min(start + batch, len(rows))) for start in range(0, len(rows), batch)]
    return torch.cat([pool(rows.take(chunk).float()) for chunk in chunks])


def load_trained(materials: Materials, run: Run) -> tuple[Network, Method]:
    """The recipe's backbone and method as training left them; as built where the recipe trains nothing."""
    backbone, method = materials.build()
    if materials.recipe.training is not None:
        run.load_best(method if materials.recipe.backbone.frozen else EndToEnd(backbone, method))
    return backbone, method


@contextmanager
def _ready(materials: Materials, run: Run, fabric: Fabric, cache: Path) -> Iterator[tuple[Network, Method, Path]]:
    """Network and method on the device, and where to keep features: those of a fine-tuned network are used once."""
    backbone, method = load_trained(materials, run)
    backbone.to(fabric.device).eval()
    method.to(fabric.device).eval()
    if materials.recipe.backbone.frozen:
        yield backbone, method, cache
    else:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as once:
            yield backbone, method, Path(once)


def _measured(path: Path, materials: Materials, phase: str) -> list[Row] | None:
    """The rows of the file; refused if they are of another recipe or of other pictures, lest they be lost."""
    rows = read_rows(path) if path.exists() else []
    if not rows:
        return None
    wanted = (materials.recipe.digest, materials.phase(phase).digest)
    if (rows[0]["recipe"], rows[0].get("data_digest")) != wanted:
        raise InputError(
            f"{path} holds rows of another recipe or of other data; name another --out, or --force to replace them"
        )
    return rows
