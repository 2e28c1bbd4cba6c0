"""Heat-maps of a trained run's attention, for `fewtag explain RUN`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.measure import load_trained
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.run_folder import RunFolder, read_facts
from fewtag.research.methods import METHODS
from fewtag.research.methods.word_attention import WordAttention
from fewtag.tagger.explain import save_heat, stretch


def explain_run(folder: Path, image: Path, labels: Sequence[str], out: Path, data: Path | None) -> None:
    """Where a trained run's attention goes: its scores, summed over the heads."""
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
    # one scale for all labels: the brightest place of them all is 1
    low, high = float(relevance.min()), float(relevance.max())
    scaled = (relevance - low) / max(high - low, 1e-12)
    save_heat(out, shown, {label: stretch(each, shown.size) for label, each in zip(labels, scaled, strict=True)})


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
