"""Heat-maps of a bank or of a trained run, for `fewtag explain`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image

from fewtag.apps.banks import open_bank
from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.pictures.files import Picture
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import load_trained
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.run_folder import RunFolder, read_facts
from fewtag.research.methods import METHODS
from fewtag.research.methods.word_attention import WordAttention
from fewtag.tagger.explain import Heat, grid, heat_map, overlay


def explain_bank(bank: Path, image: Path, labels: Sequence[str], out: Path) -> None:
    """Where a bank sees its labels."""
    tagger = open_bank(bank)
    picture = Picture(image).open()
    _save(out, picture, {label: tagger.explain(picture, label) for label in labels})


def explain_run(folder: Path, image: Path, labels: Sequence[str], out: Path, data: Path | None) -> None:
    """Where a trained run's attention goes: its scores, summed over the heads."""
    if not folder.exists():
        raise InputError(f"there is no bank or trained run {folder}; make one with fewtag learn, or with fewtag train")
    if not (folder / "best.safetensors").exists():
        raise InputError(f"{folder} is no trained run: it holds no best.safetensors; make one with fewtag train")
    recipe = Recipe.model_validate(read_facts(folder / "best.safetensors")["recipe"])
    if not issubclass(METHODS[recipe.method.name], WordAttention):
        raise InputError(f"the method {recipe.method.name!r} of {folder} has no attention to show; word-attention has")
    experiment = Experiment(recipe, data or Path(), data or Path())
    picture = Picture(image)
    shown, pixels = picture.open(), torch.from_numpy(picture.pixels(recipe.backbone.size))[None]
    with _hint_at_data(data):  # these are files that the recipe names
        _ = experiment.split, experiment.vectors
        backbone, method = load_trained(experiment, RunFolder(folder, recipe))
    assert isinstance(method, WordAttention)
    words = experiment.words(labels)
    with torch.inference_mode():
        relevance = method.eval().relevance(backbone.eval()(pixels), words)[0].numpy()
    _save(out, shown, {label: heat_map(map_, shown.size) for label, map_ in zip(labels, relevance, strict=True)})


@contextmanager
def _hint_at_data(data: Path | None) -> Iterator[None]:
    """Where a file of the recipe's is not found: its path is relative to a folder that the run does not know."""
    try:
        yield
    except InputError as error:
        if data is not None:
            raise
        hint = "if that file lies in the folder of the run's recipe, or of its data, name the folder with --data"
        raise InputError(f"{error}; {hint}") from error


def _save(out: Path, picture: Image.Image, heats: Mapping[str, Heat]) -> None:
    """One label: its heat over the whole picture. Several: a grid, the picture first."""
    drawn = overlay(picture, next(iter(heats.values()))) if len(heats) == 1 else grid(picture, heats)
    content = BytesIO()
    drawn.save(content, format="PNG")
    write_atomically(out, content.getvalue())
