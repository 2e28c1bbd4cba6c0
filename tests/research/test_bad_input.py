"""What people get wrong: exit code 2, one line that names it, and nothing left behind."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fewtag.research.bench.results import read_rows

Cli = Callable[..., Any]


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, "the test itself is wrong"
    path.write_text(text.replace(old, new, 1))


def truncate(path: Path) -> None:
    """Half a JPEG, whatever it was before."""
    with Image.open(path) as image:
        image.save(path, format="JPEG")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_words(shapes: Path) -> None:
    lines = (shapes / "words.txt").read_text().splitlines()
    lines[2] = lines[2].rpartition(" ")[0]
    (shapes / "words.txt").write_text("\n".join(lines) + "\n")


def block(shapes: Path) -> None:
    (shapes.parent / "blocked").write_text("a file where a folder should be")


def nothing(_: Path) -> None:
    pass


Case = tuple[Callable[[Path], object], tuple[str, ...], str]
CASES: dict[str, Case] = {
    "missing image": (
        lambda shapes: (shapes / "images" / "heart0.png").unlink(),
        (),
        r"1 of 24 images are missing, the first is .*heart0\.png",
    ),
    "truncated JPEG": (
        lambda shapes: truncate(shapes / "images" / "heart0.png"),
        (),
        r"image .*heart0\.png cannot be decoded: it is truncated or damaged",
    ),
    "unknown label": (
        lambda shapes: replace(shapes / "labels.csv", "circle0.png,circle", "circle0.png,cirlce"),
        (),
        "split 'shapes' does not know the data set's label 'cirlce'; did you mean 'circle'",
    ),
    "empty label": (
        lambda shapes: replace(shapes / "labels.csv", "circle0.png,circle", "circle0.png,circle;"),
        (),
        r"labels\.csv line 2 has an empty label in 'circle;;square'",
    ),
    "ragged word file": (damage_words, (), r"words\.txt', line 3: the word has fewer numbers than"),
    "no word file": (
        lambda shapes: (shapes / "words.txt").unlink(),
        (),
        r"there is no file of word vectors 'words\.txt'",
    ),
    "unknown method": (nothing, ("--set", "method.name=protonett"), r"unknown method 'protonett'; .*'protonet'"),
    "unknown key": (nothing, ("--set", "sed=1"), r"unknown key 'sed'; did you mean 'seed'"),
    "unknown backbone": (
        nothing,
        ("--set", "backbone.name=resnt18"),
        r"there is no backbone 'resnt18' in timm; did you mean 'resnet18'",
    ),
    "weights absent": (
        nothing,
        ("--set", "backbone.weights=gone.safetensors"),
        r"gone\.safetensors",
    ),
    "weights unsaid": (
        lambda shapes: replace(shapes / "recipe.toml", 'weights = "random"\n', ""),
        (),
        "backbone 'test_resnet' has no weights of its own on PyPI",
    ),
    "data folder absent": (nothing, ("--data", "elsewhere"), "--data elsewhere is not a folder"),
    "picture folder absent": (
        lambda shapes: shutil.rmtree(shapes / "images"),
        (),
        r"the images' folder .*images does not exist",
    ),
    "table absent": (lambda shapes: (shapes / "labels.csv").unlink(), (), r"cannot read the table .*labels\.csv"),
    "infeasible episode": (
        nothing,
        ("--set", "evaluation.queries=50"),
        r"label 'heart' has \d+ images, an episode needs 51 \(1 support \+ 50 query\)",
    ),
    "unknown phase": (
        nothing,
        ("--set", "evaluation.phases=['tset']"),
        "split 'shapes' has no phase 'tset'; did you mean 'test'",
    ),
    "unknown run": (nothing, ("--only", "protonte"), "has no run 'protonte'; did you mean 'protonet'"),
    "unknown accelerator": (nothing, ("--accelerator", "tpu"), "--accelerator tpu is not offered; choose one of auto"),
    "unwritable out": (block, ("--out", "blocked/results"), "cannot write blocked/results/recipe/protonet: "),
    "out is a file": (block, ("--out", "blocked"), "cannot write blocked/recipe/protonet: "),
    "unwritable runs": (
        block,
        ("--only", "attention", "--runs", "blocked"),
        "cannot make the folder blocked: ",
    ),
}


def check_refusal(said: Any, message: str) -> None:
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    *bars, last = said.err.rstrip("\n").split("\n")
    assert last.startswith("fewtag: ")
    assert not [line for line in bars if line.strip() and not line.startswith(("reading the", "measuring"))]
    assert re.search(message, last), last


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence_and_leaves_nothing(name: str, cli: Cli, shapes: Path) -> None:
    spoil, arguments, message = CASES[name]
    spoil(shapes)
    which = () if "--only" in arguments else ("--only", "protonet")
    check_refusal(cli("bench", shapes / "recipe.toml", *which, *arguments), message)
    for folder in ("results", "runs"):
        assert not [path for path in Path(folder).glob("**/*") if path.is_file()]
    assert not list(shapes.parent.glob("**/*.part"))


def test_an_accelerator_that_is_not_there_is_refused(cli: Cli, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_refusal(cli("bench", shapes / "recipe.toml", "--accelerator", "gpu"), "torch sees no GPU here; use --acc")


def test_draws_of_another_data_set_are_refused(cli: Cli, shapes: Path) -> None:
    assert cli("draws", shapes / "recipe.toml", "--out", shapes).code == 0
    replace(shapes / "labels.csv", "heart0.png,arrow;heart", "heart0.png,heart")
    said = cli("bench", shapes / "recipe.toml", "--set", "evaluation.draws.test=shapes-test.json")
    check_refusal(said, r"the draws .*shapes-test\.json are of another data set")
    assert not Path("results").exists()


def test_a_truncated_training_picture_claims_no_run(cli: Cli, shapes: Path) -> None:
    truncate(shapes / "images" / "circle0.png")
    said = cli("train", shapes / "recipe.toml", "--only", "attention")
    check_refusal(said, r"image .*circle0\.png cannot be decoded")
    assert not Path("runs").exists()


def test_skip_bad_leaves_the_bad_pictures_out_and_says_so(cli: Cli, shapes: Path) -> None:
    truncate(shapes / "images" / "heart0.png")
    table = shapes / "labels.csv"
    table.write_text(table.read_text().replace("arrow1.png", "arrow\x1b[2J1.png"))
    said = cli("bench", shapes / "recipe.toml", "--only", "protonet", "--skip-bad")
    assert said.code == 0
    skipped = [line for line in said.err.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 2
    assert "heart0.png cannot be decoded" in skipped[0]
    assert "arrow\ufffd[2J1.png: there is no such file" in skipped[1], "as a terminal may show it"
    assert len(read_rows(Path("results/recipe/protonet.test.parquet"))) == 5


def test_skip_bad_still_refuses_when_too_few_remain(cli: Cli, shapes: Path) -> None:
    for picture in (shapes / "images").glob("heart*.png"):
        truncate(picture)
    said = cli("bench", shapes / "recipe.toml", "--only", "protonet", "--skip-bad", "--set", "evaluation.queries=4")
    check_refusal(said, r"label 'heart' has 4 images, an episode needs 5")
    assert not Path("results").exists()
