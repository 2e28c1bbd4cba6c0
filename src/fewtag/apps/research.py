"""The researcher's commands: train, measure, draw protocols, report."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtag.apps.cache import Cache, cache_folder
from fewtag.apps.processes import is_first, open_fabric
from fewtag.cli.options import AsJson, DataFolder, SkipBad
from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.research.bench.materials import Materials
    from fewtag.research.bench.recipe import Recipe
    from fewtag.research.bench.runs import Run

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (TOML), see recipes/.")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="RUN", help="Only this run; repeatable.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: method.heads=4; repeatable.")
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Rows go to DIR/<recipe>/<run>.<phase>.parquet.")]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Checkpoints are in DIR/<recipe>/<run>.")]
Precision = Annotated[str, typer.Option(help="32-true or bf16-mixed; auto is bf16-mixed on a GPU.")]
Compiled = Annotated[
    bool, typer.Option("--compile", help="End to end: compile the network first, a minute that long training pays.")
]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or gpu.")]
Devices = Annotated[
    int,
    typer.Option(
        min=1, help="How many processes (a GPU each) work together on this machine; not needed under torchrun."
    ),
]


def train(
    recipe: RecipePath,
    data: DataFolder = None,
    only: Only = None,
    changes: Changes = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    precision: Precision = "auto",
    compiled: Compiled = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe's method on the base labels, stopped early by the validation labels. Resumes."""
    recipes = [found for found in _recipes(recipe, changes, only) if found[1].training is not None]
    if not recipes:
        raise InputError(f"no run of recipe {recipe} has a [training] table, so there is nothing to train")
    fabric = open_fabric(accelerator, devices, precision)
    from fewtag.cli.terminal import Bars, show
    from fewtag.research.bench.train import train as train_run

    summaries: dict[str, Any] = {}
    for file, settings in recipes:
        materials, run = _open(settings, file, data, runs, skip_bad=skip_bad, compiled=compiled)
        with Bars(shown=fabric.is_global_zero) as bars:
            summary = train_run(materials, run, fabric, cache=cache_folder(cache), report=bars)
        _tell_skipped(materials)
        summaries[settings.name] = summary | {"checkpoint": str(run.best)}
    if fabric.is_global_zero:
        show(summaries, as_json=as_json, title="Training")


def bench(
    recipe: RecipePath,
    data: DataFolder = None,
    only: Only = None,
    changes: Changes = None,
    out: Results = Path("results"),
    runs: Runs = Path("runs"),
    cache: Cache = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    precision: Precision = "auto",
    compiled: Compiled = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is measured already.")] = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's runs on their test episodes, training first where needed; writes a row an episode."""
    recipes = _recipes(recipe, changes, only)
    fabric = open_fabric(accelerator, devices, precision)
    from fewtag.cli.terminal import Bars, show
    from fewtag.research.bench.measure import measure
    from fewtag.research.bench.results import summarise, write_reason

    found: dict[str, Any] = {}
    for file, settings in recipes:
        if settings.not_measured:
            if fabric.is_global_zero:
                write_reason(out / file.stem, settings)
                typer.echo(f"{settings.name} is not measured: {settings.not_measured}", err=True)
            continue
        materials, run = _open(settings, file, data, runs, skip_bad=skip_bad, compiled=compiled)
        with Bars(shown=fabric.is_global_zero) as bars:
            rows = measure(
                materials,
                run,
                fabric,
                out=out / file.stem,
                cache=cache_folder(cache),
                command=shlex.join(["fewtag", *sys.argv[1:]]),
                force=force,
                report=bars,
            )
        _tell_skipped(materials)
        for phase, phase_rows in rows.items():
            found[f"{settings.name} on {phase}"] = summarise(phase_rows)
    if fabric.is_global_zero:
        show(found, as_json=as_json, title="Measured, in percent (± 95 % interval over episodes)")


def draws(
    recipe: RecipePath,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Protocol files go to DIR/<data>-<phase>.json, named after the shots if several."
        ),
    ],
    data: DataFolder = None,
    changes: Changes = None,
) -> None:
    """Draw a recipe's test episodes from its seed and save them as protocol files, pictures by id."""
    from fewtag.research.data.draws import save_draws

    file, settings = _recipes(recipe, changes, None)[0]
    materials, _ = _open(settings, file, data, Path("runs"))
    for phase in settings.evaluation.phases:
        shots = settings.evaluation.shots
        path = out / f"{settings.data.name}-{phase}{'' if shots == 1 else f'-{shots}-shots'}.json"
        save_draws(
            path,
            materials.sample_draws(phase),
            materials.phase(phase),
            split=settings.data.split,
            phase=phase,
            sampling=settings.evaluation.sampling,
            shots=shots,
            queries=settings.evaluation.queries,
            seed=settings.seed,
        )
        typer.echo(path)


def report(
    results: Annotated[Path, typer.Argument(help="The folder of rows that bench wrote.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page (<results>/RESULTS.md).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the paper's tables beside all measured rows, with plots and paired tests."""
    from fewtag.cli.terminal import show
    from fewtag.research.bench.report.page import write_report

    written = write_report(results, out or results / "RESULTS.md")
    if not as_json:
        typer.echo(written.page)
        return
    files = {"page": str(written.page), "plots": [str(plot) for plot in written.plots]}
    show({"files": files, "measured": written.measured, "comparisons": written.comparisons}, as_json=True, title="")


def _recipes(path: Path, changes: list[str] | None, only: list[str] | None) -> "list[tuple[Path, Recipe]]":
    if not path.is_file():  # said before torch is imported, which takes seconds
        raise InputError(f"there is no recipe {path}; check the path")
    from fewtag.research.bench.recipe_files import load_recipes

    return load_recipes(path, changes=changes or (), only=only or ())


def _open(
    settings: "Recipe", path: Path, data: Path | None, runs: Path, *, skip_bad: bool = False, compiled: bool = False
) -> "tuple[Materials, Run]":
    from fewtag.research.bench.materials import Materials
    from fewtag.research.bench.runs import Run

    if data is not None and not data.is_dir():
        raise InputError(f"--data {data} is not a folder; name the one that the recipe's paths are relative to")
    materials = Materials(settings, data or path.parent, path.parent, skip_bad=skip_bad, compiled=compiled)
    return materials, Run(runs / path.stem / settings.name, settings)


def _tell_skipped(materials: "Materials") -> None:
    if not is_first():
        return
    reasons = dict.fromkeys(materials.skipped)  # a picture may serve several phases
    for reason in reasons:
        print(f"skipped: {reason}", file=sys.stderr)
    if reasons:
        print(f"skipped {len(reasons)} unreadable pictures", file=sys.stderr)
