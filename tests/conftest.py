"""What many tests share: the command line, a data set to train on in a second, a model to tag with in milliseconds."""

import atexit
import gc
import json
import math
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors this small are slower on two
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # torch would look for a GPU at each step of an optimizer

import numpy as np
import pytest
from hypothesis import settings
from onnxruntime import InferenceSession
from PIL import Image, ImageDraw
from tiny import draw, write_tiny_model

from fewtag.cli import main as command_line
from fewtag.runtime import Network
from fewtag.tagger.model import SHIPPED_FOLDER

# other load is none of a test's business; the examples are others each time
settings.register_profile("fewtag", deadline=None, max_examples=50)
settings.load_profile("fewtag")

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:  # a container's has 64 MB
    # tests keep their files there: a disk takes milliseconds for each that is synced, and all that fewtag keeps is
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

LABELS = {
    "circle": "red",
    "square": "blue",
    "triangle": "yellow",
    "star": "lime",
    "cross": "magenta",
    "ring": "cyan",
    "moon": "hotpink",
    "heart": "orange",
    "arrow": "white",
}
GROUPS = {
    "base": ["circle", "square", "triangle", "star"],
    "val": ["cross", "ring", "moon"],
    "novel": ["heart", "arrow"],
}
PHASES = {"train": {"labels": ["base"]}, "val": {"labels": ["val"]}, "test": {"labels": ["novel"]}}
RECIPE = """
[data]
name = "shapes"
split = "split.json"
sources = [{ format = "table", path = "labels.csv", images = "images" }]

[backbone]
name = "test_resnet"
weights = "random"
size = 64

[words]
source = "words.txt"

[evaluation]
episodes = 5
queries = 2

[[runs]]
name = "protonet"
method.name = "protonet"

[[runs]]
name = "attention"
method = { name = "word-attention", joint = 32, heads = 4 }

[runs.training]
episodes = 60
queries = 2
warmup = 10
validate_every = 20
validation_episodes = 10
checkpoint_every = 20
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before each test rerunfailures asks the first process, and TCP would keep the question back for 40 ms."""
    if connection := getattr(getattr(session.config, "failures_db", None), "sock", None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collection, then or later: what is imported stays, and to search it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of what is left at the end
        gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long value is called by its argument: workers tell each other the names of tests, and one had ten megabytes."""
    return argname if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a worker takes at once: a file, since its tests share fixtures; but slow tests by themselves, and first, and
    quick files last: both workers end at about the same time."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    files = Counter(item.path for item in items)
    long = {item.path for item in items for name in ("slow", "processes", "ray") if item.get_closest_marker(name)}

    def alone(item: pytest.Item) -> bool:
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        return bool(item.get_closest_marker("slow")) and all(found[-1].scope != "module" for found in fixtures)

    # those that fork before all others, whose threads a fork would wait for
    forks = Path(__file__).parent / "research" / "bench" / "test_distributed.py"
    items.sort(key=lambda item: (item.path != forks, not alone(item), item.path not in long, -files[item.path]))
    for item in items:
        if not alone(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session", autouse=True)
def _shipped_networks() -> Iterator[None]:
    """A shipped network is loaded once for all that use it in this process: it takes half a second."""
    load = Network._opened.func  # type: ignore[attr-defined]
    shared = cache(lambda *about: load(Network(*about)))

    def opened(network: Network) -> InferenceSession:
        about = network.graph, network.wanted, network.limit, network.sha256
        return shared(*about) if network.graph.parent == SHIPPED_FOLDER else load(network)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_opened", once := cached_property(opened))
        once.__set_name__(Network, "_opened")
        yield


class Outcome(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session")
def drawn_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn once; tests get copies."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    lines = ["image,labels"]
    for group in GROUPS.values():
        for number in range(12 * len(group)):
            shown = {group[number % len(group)]}
            if number % 3 == 0:
                shown.add(group[(number + 1) % len(group)])
            name = f"{group[number % len(group)]}{number}.png"
            draw_shapes(sorted(shown), generator).save(folder / "images" / name)
            lines.append(f"{name},{';'.join(sorted(shown))}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    (folder / "split.json").write_text(json.dumps({"name": "shapes", "groups": GROUPS, "phases": PHASES}))
    (folder / "recipe.toml").write_text(RECIPE)
    vectors = [" ".join(f"{value:.3f}" for value in generator.normal(size=16)) for _ in LABELS]
    (folder / "words.txt").write_text("".join(f"{word} {row}\n" for word, row in zip(LABELS, vectors, strict=True)))
    return folder


@pytest.fixture
def shapes(drawn_shapes: Path, tmp_path: Path) -> Path:
    """A folder of one's own with images/, labels.csv, split.json, words.txt and recipe.toml."""
    return Path(shutil.copytree(drawn_shapes, tmp_path / "shapes"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """cli("bench", recipe) is `fewtag bench recipe` run in this process, in tmp_path, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # finding its fonts takes seconds
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["fewtag", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        said = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), said.out, said.err)

    return run


def draw_shapes(shown: Sequence[str], generator: np.random.Generator, size: int = 64) -> Image.Image:
    """Noise with these shapes side by side, each in its own colour."""
    image = Image.fromarray(generator.integers(0, 90, (size, size, 3), dtype=np.uint8))
    pen, width = ImageDraw.Draw(image), size // len(shown)
    for place, label in enumerate(shown):
        radius = int(generator.integers(9, 15))
        left = place * width + int(generator.integers(0, width - 2 * radius + 1))
        top = int(generator.integers(0, size - 2 * radius))
        draw_shape(pen, label, (left + radius, top + radius), radius)
    return image


def draw_shape(pen: ImageDraw.ImageDraw, label: str, centre: tuple[int, int], radius: int) -> None:
    x, y = centre
    box, colour = (x - radius, y - radius, x + radius, y + radius), LABELS[label]
    if label == "circle":
        pen.ellipse(box, fill=colour)
    elif label == "moon":
        pen.pieslice(box, 90, 270, fill=colour)
    elif label == "ring":
        pen.ellipse(box, outline=colour, width=4)
    elif label == "cross":
        pen.rectangle((x - 3, y - radius, x + 3, y + radius), fill=colour)
        pen.rectangle((x - radius, y - 3, x + radius, y + 3), fill=colour)
    else:
        corners = {"square": 4, "triangle": 3, "star": 10, "heart": 7, "arrow": 3}[label]
        depth = {"star": 0.4, "arrow": 0.5}.get(label, 1.0)
        turns = [(2 * math.pi * corner / corners, depth if corner % 2 else 1.0) for corner in range(corners)]
        points = [(x + radius * far * math.sin(turn), y - radius * far * math.cos(turn)) for turn, far in turns]
        pen.polygon(points, fill=colour)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model of random features, with the shipped words."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def learnt(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pets.fewtag and the examples it was learnt from; tests get copies."""
    folder = tmp_path_factory.mktemp("learnt")
    for number, label in enumerate(["dog", "cat", "sofa"] * 2):
        (folder / "examples" / label).mkdir(parents=True, exist_ok=True)
        draw(number, label).save(folder / "examples" / label / f"{number}.png")
    command = ["learn", folder / "pets.fewtag", folder / "examples", "--model", tiny_model]
    command_line.make_app("learn")([*map(str, command)], standalone_mode=False)
    return folder


@pytest.fixture
def bank(cli: Cli, learnt: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    """pets.fewtag, which knows dog, cat and sofa by two pictures each; commands run beside it."""
    shutil.copytree(learnt, tmp_path, dirs_exist_ok=True)
    return tmp_path / "pets.fewtag"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four pictures under names that people give, and what is none."""
    folder = tmp_path / "photos"
    shown = {"b, c.png": ["dog"], 'sub/"q"\n.JPG': ["cat"], "sub/deep/ä.png": ["sofa", "dog"], "z.webp": []}
    hidden = {".hidden.png": ["dog"], ".trash/old.png": ["dog"], "@eaDir/thumbnail.jpg": ["dog"]}
    for number, (name, labels) in enumerate({**shown, **hidden}.items(), 100):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draw(number, *labels).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make("a.jpg", colour="blue") writes a real image under tmp_path; the ending gives its format."""

    def write(name: str, colour: str = "red", size: tuple[int, int] = (8, 6)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return write
