"""The tagger's promises: how close to the bare network it runs, and what labels and examples cost."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from fewtag.apps.folder_tags import tag_folder
from PIL import Image

from fewtag import Tagger
from fewtag.cli.terminal import Bars
from fewtag.pictures.decode import stack
from fewtag.research.features.backbone import Backbone, create_backbone
from fewtag.tagger.bank import Bank, Definition, Example

BATCH = 32


def tagging(rounds: int = 3) -> dict[str, float]:
    """Everything below, each against the bare network in the same run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = make_bank(folder / "few.fewtag", labels=10)
        make_bank(folder / "many.fewtag", labels=1000)
        found = label_rates(folder, rounds) | large_picture_rates(folder, few, rounds)
        return found | learning_seconds(folder, few) | loading_seconds(folder / "many.fewtag", labels=1000)


def make_bank(path: Path, *, labels: int, examples: int = 5) -> Tagger:
    """A bank of random examples; its size and speed are those of a real one."""
    tagger = Tagger()
    method, generator = tagger.model.method, torch.Generator().manual_seed(0)
    names = [f"label {number:04d}" for number in range(labels)]
    words = torch.randn(labels, method.dimensions, generator=generator)
    definitions = {name: Definition("vector", vector=words[number]) for number, name in enumerate(names)}
    pictures = {}
    for number in range(labels * examples):
        codes = torch.randint(-127, 128, (49, method.space), dtype=torch.int8, generator=generator)
        shown = frozenset({names[number // examples]})
        pictures[f"{number:064x}"] = Example(shown, codes, torch.full((49,), 0.01))
    tagger._bank = Bank().change(method, definitions, pictures)
    tagger.save(path)
    return tagger


def write_jpegs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Soft shapes with fine grain, which compress about as well as photographs do."""
    generator, paths = np.random.default_rng(0), []
    folder.mkdir()
    for number in range(count):
        shapes = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC), np.int16)
        grain = generator.integers(-12, 13, picture.shape, dtype=np.int16)
        path = folder / f"{number:04d}.jpg"
        Image.fromarray((picture + grain).clip(0, 255).astype(np.uint8)).save(path, quality=85)
        paths.append(path)
    return paths


def side_by_side(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least seconds of each, taken in turns, so that other load on the machine hits all of them."""
    for contender in contenders.values():
        contender()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(contender())
    return {name: min(seconds) for name, seconds in found.items()}


def bare_seconds(network: Backbone, pixels: np.ndarray) -> float:
    """The network alone on decoded batches, as timm has it."""
    since = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, len(pixels), BATCH):
            network(torch.from_numpy(pixels[start : start + BATCH]))
    return time.perf_counter() - since


def folder_seconds(folder: Path, bank: Path, cache: Path | None = None) -> float:
    """`fewtag tag` on the folder, start-up not counted: decoding, network, scores, journal and table."""
    with Bars(shown=False) as bars:
        out = folder.parent / "tags.csv"
        done = tag_folder(bank, folder, out, scores=False, threshold=None, batch=BATCH, bars=bars, cache=cache)
    return done.seconds


def label_rates(folder: Path, rounds: int) -> dict[str, float]:
    write_jpegs(folder / "small", 256, (500, 375))
    least = side_by_side(
        {
            "few": lambda: folder_seconds(folder / "small", folder / "few.fewtag"),
            "many": lambda: folder_seconds(folder / "small", folder / "many.fewtag"),
        },
        rounds,
    )
    return {"tag_1000_labels_to_10": least["many"] / least["few"]}


def large_picture_rates(folder: Path, tagger: Tagger, rounds: int) -> dict[str, float]:
    pictures = write_jpegs(folder / "large", 16, (4000, 3000))
    for number in range(3):
        for path in pictures:
            shutil.copy(path, path.with_name(f"{path.stem}-{number}.jpg"))
    paths = sorted((folder / "large").iterdir())
    network = create_backbone()
    pixels = stack([tagger.pixels(path) for path in paths])
    least = side_by_side(
        {
            "bare": lambda: bare_seconds(network, pixels),
            "ours": lambda: folder_seconds(folder / "large", folder / "few.fewtag"),
        },
        rounds,
    )
    return {"tag_12_megapixels_ratio": least["bare"] / least["ours"]}


NEW_LABELS = ("zebra", "violin", "lamp", "horse", "guitar", "castle", "bridge", "candle", "tractor", "owl", "anchor")


def learning_seconds(folder: Path, tagger: Tagger) -> dict[str, float]:
    """A new label from five pictures against five passes of the network, timed before and after; the median label."""
    beyond, network = [], create_backbone()
    for number, label in enumerate(NEW_LABELS):
        paths = [folder / "small" / f"{5 * number + turn:04d}.jpg" for turn in range(5)]
        pixels = [torch.from_numpy(tagger.pixels(path)[None]) for path in paths]
        before = pass_seconds(network, pixels)
        with clock() as learning:
            tagger.partial_fit(paths, [[label]] * 5)
        beyond.append(learning[0] - (before + pass_seconds(network, pixels)) / 2)
    return {"learn_5_examples_beyond_passes_ms": 1000 * statistics.median(beyond)}


def pass_seconds(network: Backbone, pixels: list[torch.Tensor]) -> float:
    """The network alone, a picture at a time."""
    with torch.inference_mode(), clock() as passes:
        for picture in pixels:
            network(picture)
    return passes[0]


def loading_seconds(path: Path, labels: int) -> dict[str, float]:
    found = []
    model = Tagger().model
    for _ in range(3):
        with clock() as loading:
            Tagger.load(path, model=model)
        found.append(loading[0])
    return {"load_1000_labels_seconds": min(found), "bank_kilobytes_a_label": path.stat().st_size / labels / 1000}


@contextmanager
def clock() -> Iterator[list[float]]:
    """Holds the seconds that the block took, once it is over."""
    since, found = time.perf_counter(), [0.0]
    yield found
    found[0] = time.perf_counter() - since


if __name__ == "__main__":
    for name, value in tagging().items():
        print(f"{name}: {value:.3f}")
