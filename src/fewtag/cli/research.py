"""Commands for research: fit a model, train, measure, draw protocols, report."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtag.cli.terminal import AsJson, Bars, Cache, DataFolder, SkipBad, printable, show
from fewtag.errors import InputError, plural

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from fewtag.research.bench.distributed import Bench
    from fewtag.research.bench.experiment import Experiment
    from fewtag.research.bench.recipe import Recipe

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file (TOML), see recipes/.")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="RUN", help="Only this run; repeatable.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: method.heads=4; repeatable.")
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Rows go to DIR/<recipe>/<run>.<phase>.parquet.")]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Checkpoints are in DIR/<method>-<digest of what is trained>.")]
Precision = Annotated[str, typer.Option(help="32-true or bf16-mixed; auto is bf16-mixed on a GPU.")]
Compiled = Annotated[
    bool, typer.Option("--compile", help="End to end: compile the network first, a minute that long training pays.")
]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or gpu.")]


def fit(
    out: Annotated[Path, typer.Argument(metavar="MODEL", help="Where the model goes: MODEL.safetensors, MODEL.onnx.")],
    base: Annotated[
        list[Path],
        typer.Argument(metavar="PICTURES", help="Base pictures: a table or a folder per label; or unlabelled ones."),
    ],
    network: Annotated[str, typer.Option(metavar="NAME", help="timm's name of a network, or an ONNX file.")],
    weights: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Its weights: a file, timm, or package:NAME.")
    ] = None,
    size: Annotated[int, typer.Option(min=16, help="Side of the squares that it takes.")] = 224,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="The pictures have no labels.")] = False,
    words: Annotated[str | None, typer.Option(metavar="FILE", help="Word vectors of one's own.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    int8: Annotated[
        bool, typer.Option("--int8/--no-int8", help="A transformer's products in int8, where that changes little.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a model of one's own from any network and some base pictures; use it as --model MODEL.

    The space, the word map and the calibration are solved on the pictures; the network stays as it is. An ONNX file
    takes pixels normalised as ImageNet's and answers with a feature map. Some thousand pictures of dozens of labels
    are good, eight labels that are known words and 30 pictures of the commonest one the least; without labels, what a
    classifier is sure of stands for them.

    Example: fewtag fit mine pictures.csv --network vit_small_patch14_dinov2 --weights dinov2.safetensors
    """
    import json

    from fewtag.pictures.files import Picture, walk
    from fewtag.research.fit import fit_model
    from fewtag.tagging.examples import read_examples
    from fewtag.words.vectors import SHIPPED

    if unlabelled:
        pictures = [Picture(found.path, name=str(found.path)) for folder in base for found in walk(folder)]
        if not pictures:
            raise InputError(f"there are no pictures in {', '.join(map(str, base))}; name folders that have some")
        shown: list[frozenset[str]] = [frozenset()] * len(pictures)
    else:
        examples = read_examples(base)
        pictures, shown = [each.picture for each in examples], [each.labels for each in examples]
    with Bars() as bars:
        made = fit_model(
            out,
            pictures,
            shown,
            network=network,
            weights=weights,
            size=size,
            words=words or SHIPPED,
            device=device,
            int8=int8,
            begin=bars.begin,
        )
    if as_json:
        print(json.dumps(made))
        return
    products = ", its matrix products in int8" if made["int8"] else ""
    typer.echo(f"{made['model']}: fitted on {made['pictures']} pictures of {len(made['labels'])} labels{products}")
    if made["left_out"]:
        typer.echo(f"no known words, left out: {', '.join(made['left_out'])}")


def train(
    recipe: RecipePath,
    data: DataFolder = None,
    only: Only = None,
    changes: Changes = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "auto",
    compiled: Compiled = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe's method on the base labels, stopped early by the validation labels. Resumes."""
    from fewtag.research.bench.distributed import collective_refusal, open_fabric
    from fewtag.research.bench.run_folder import RunFolder
    from fewtag.research.bench.train import train as train_run

    fabric = open_fabric(accelerator, precision)
    with collective_refusal():
        recipes = [each for each in _recipes(recipe, changes, only, data) if each[1].training is not None]
        if not recipes:
            which = f"that --only names in {recipe}" if only else f"of recipe {recipe}"
            raise InputError(f"no run {which} has a [training] table, so there is nothing to train")
    summaries: dict[str, Any] = {}
    experiment = None
    for file, settings in recipes:
        experiment = _experiment(settings, file, data, experiment, skip_bad=skip_bad, compiled=compiled)
        with _running(experiment, file, recipes, fabric, cache) as (name, place):
            with collective_refusal():
                run = RunFolder.of(experiment, runs)
            summaries[name] = asdict(train_run(experiment, run, place)) | {"checkpoint": str(run.best)}
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
    precision: Precision = "auto",
    compiled: Compiled = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is measured already.")] = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's runs on their test episodes, training first where needed; writes a row an episode."""
    from fewtag.research.bench.distributed import collective_refusal, open_fabric
    from fewtag.research.bench.measure import measure
    from fewtag.research.bench.results import summarise, write_reason
    from fewtag.research.bench.sessions import measure_sessions, summarise_sessions

    fabric = open_fabric(accelerator, precision)
    with collective_refusal():
        recipes = _recipes(recipe, changes, only, data)
    found: dict[str, Any] = {}
    sessions: dict[str, Any] = {}
    experiment = None
    for file, settings in recipes:
        if settings.not_measured:
            if fabric.is_global_zero:
                write_reason(out / file.stem, settings)
                typer.echo(f"{_title(file, settings, recipes)} is not measured: {settings.not_measured}", err=True)
            continue
        experiment = _experiment(settings, file, data, experiment, skip_bad=skip_bad, compiled=compiled)
        with _running(experiment, file, recipes, fabric, cache) as (name, place):
            common: dict[str, Any] = {"out": out / file.stem, "command": _command(), "force": force}
            if settings.sessions is None:
                for phase, rows in measure(experiment, place, runs=runs, **common).items():
                    found[f"{name} on {phase}"] = summarise(rows)
            else:
                for phase, answered in measure_sessions(experiment, place, **common).items():
                    for order, summary in summarise_sessions(answered).items():
                        sessions[f"{name} on {phase}, {order} first"] = summary
    if not fabric.is_global_zero:
        return
    if as_json:
        show(found | sessions, as_json=True, title="")
        return
    for measured, over in ((found, "episodes"), (sessions, "labels")):
        if measured:
            show(measured, as_json=False, title=f"Measured, in percent (± 95 % interval over {over})")


def _command() -> str:
    """The command to give again: `fewtag`, or the file of a method of one's own, which is its own command."""
    file = Path(sys.argv[0])
    own = file.suffix == ".py" and file.name != "__main__.py"
    return shlex.join([*(("python", str(file)) if own else ("fewtag",)), *sys.argv[1:]])


def draws(
    recipe: RecipePath,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Protocol files go to DIR/<data>-<phase>.json, named after the shots if several."
        ),
    ],
    data: DataFolder = None,
    only: Only = None,
    changes: Changes = None,
    seed: Annotated[int, typer.Option(help="Of the draws; that of a recipe's training does not count.")] = 0,
) -> None:
    """Draw the test episodes of a recipe's runs from a seed and save them as protocol files, pictures by id."""
    from fewtag.research.data.sampling import save_draws

    for path, (file, settings, phase) in _draws_files(_recipes(recipe, changes, only, data), out).items():
        experiment, evaluation = _experiment(settings, file, data), settings.evaluation
        save_draws(
            path,
            experiment.sample_draws(phase, seed),
            experiment.phase(phase),
            split=settings.data.split,
            phase=phase,
            sampling=evaluation.sampling,
            shots=evaluation.shots,
            queries=evaluation.queries,
            seed=seed,
        )
        typer.echo(path)


def _draws_files(recipes: "list[tuple[Path, Recipe]]", out: Path) -> "dict[Path, tuple[Path, Recipe, str]]":
    """The files to write, each with a run and a phase to draw it for; runs that need the same draws share a file."""
    files: dict[Path, tuple[Path, Recipe, str]] = {}
    for file, settings in recipes:
        for phase in settings.evaluation.phases:
            shots = settings.evaluation.shots
            path = out / f"{settings.data.name}-{phase}{'' if shots == 1 else f'-{shots}-shots'}.json"
            _, first, _ = files.setdefault(path, (file, settings, phase))
            if _asked(first) != _asked(settings):
                raise InputError(
                    f"the runs {first.name!r} and {settings.name!r} ask for different draws of one name, {path}; "
                    f"choose one with --only {first.name}"
                )
    return files


def _asked(settings: "Recipe") -> tuple[object, ...]:
    """The settings that draws depend on."""
    evaluation = settings.evaluation
    return settings.data, evaluation.sampling, evaluation.episodes, evaluation.queries


def report(
    results: Annotated[Path, typer.Argument(help="The folder of rows that bench wrote.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page (<results>/RESULTS.md).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the paper's tables beside all measured rows, with plots and paired tests."""
    from fewtag.research.bench.report.page import write_report

    written = write_report(results, out or results / "RESULTS.md")
    if not as_json:
        typer.echo(written.page)
        return
    files = {"page": str(written.page), "plots": [str(plot) for plot in written.plots]}
    show({"files": files, "measured": written.measured, "comparisons": written.comparisons}, as_json=True, title="")


def _recipes(
    path: Path, changes: list[str] | None, only: list[str] | None, data: Path | None
) -> "list[tuple[Path, Recipe]]":
    from fewtag.research.bench.recipe_files import load_recipes

    found = load_recipes(path, changes=changes or (), only=only or ())
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data} is not a folder; name the one that the recipe's paths are relative to")
    return found


def _title(file: Path, settings: "Recipe", recipes: "list[tuple[Path, Recipe]]") -> str:
    """The run's name, preceded by its file's if there are several files, since these may have runs of the same name."""
    return settings.name if len({each for each, _ in recipes}) == 1 else f"{file.stem}/{settings.name}"


@contextmanager
def _running(
    experiment: "Experiment", file: Path, recipes: "list[tuple[Path, Recipe]]", fabric: "Fabric", cache: Path | None
) -> "Iterator[tuple[str, Bench]]":
    """A run's name and where it runs; tells of skipped pictures, and adds the name to an error if there are several."""
    from fewtag.files import user_cache_folder
    from fewtag.research.bench.distributed import Bench

    name = _title(file, experiment.recipe, recipes)
    try:
        with Bars(shown=fabric.is_global_zero) as bars:
            yield name, Bench(fabric, cache or user_cache_folder(), bars.begin)
    except InputError as error:
        if len(recipes) == 1:
            raise
        raise InputError(f"run {name}: {error}") from error
    reasons = dict.fromkeys(experiment.skipped)  # a picture may serve several phases
    if reasons and fabric.is_global_zero:
        for reason in reasons:
            print(f"skipped: {printable(reason)}", file=sys.stderr)
        print(f"skipped {plural(len(reasons), 'unreadable picture')}", file=sys.stderr)


def _experiment(
    settings: "Recipe",
    file: Path,
    data: Path | None,
    before: "Experiment | None" = None,
    *,
    skip_bad: bool = False,
    compiled: bool = False,
) -> "Experiment":
    from fewtag.research.bench.experiment import Experiment

    experiment = Experiment(settings, data or file.parent, file.parent, skip_bad=skip_bad, compiled=compiled)
    return experiment.share(before)


def explain_run(folder: Path, image: Path, labels: Sequence[str], out: Path, data: Path | None) -> None:
    """Heat-maps of a trained run's attention, for `fewtag explain RUN`: its scores, summed over the heads."""
    if not (folder / "best.safetensors").exists():
        raise InputError(f"{folder} is no trained run: it holds no best.safetensors; make one with fewtag train")
    import torch

    from fewtag.pictures.files import Picture
    from fewtag.research.bench.experiment import Experiment
    from fewtag.research.bench.measure import load_trained
    from fewtag.research.bench.recipe import Recipe
    from fewtag.research.bench.run_folder import RunFolder, read_facts
    from fewtag.research.methods import METHODS
    from fewtag.research.methods.word_attention import WordAttention
    from fewtag.tagger.explain import save_heat, stretch

    try:
        recipe = Recipe.model_validate(read_facts(folder / "best.safetensors")["recipe"])
    except ValueError as error:
        raise InputError(f"{folder} was trained by a recipe of another version of fewtag; train it again") from error
    if not issubclass(METHODS.get(recipe.method.name, object), WordAttention):
        raise InputError(f"the method {recipe.method.name!r} of {folder} has no attention to show; word-attention has")
    experiment = Experiment(recipe, data or Path(), data or Path())
    picture = Picture(image)
    shown, pixels = picture.open(), torch.from_numpy(picture.pixels(recipe.backbone.size))[None]
    try:
        _ = experiment.split, experiment.vectors
        backbone, method = load_trained(experiment, RunFolder(folder, recipe))
    except InputError as error:  # the recipe's paths are relative to a folder that the run does not know
        if data is not None:
            raise
        hint = "if that file lies in the folder of the run's recipe, or of its data, name the folder with --data"
        raise InputError(f"{error}; {hint}") from error
    assert isinstance(method, WordAttention)
    words = experiment.words(labels)
    with torch.inference_mode():
        relevance = method.eval().relevance(backbone.eval()(pixels), words)[0].numpy()
    # one scale for all labels: the brightest place of them all is 1
    low, high = float(relevance.min()), float(relevance.max())
    scaled = (relevance - low) / max(high - low, 1e-12)
    save_heat(out, shown, {label: stretch(each, shown.size) for label, each in zip(labels, scaled, strict=True)})
