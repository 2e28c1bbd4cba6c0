"""The commands of research from end to end, in this process."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fewtag.cli.research import _command
from fewtag.research.bench.results import read_rows

Cli = Callable[..., Any]
SHORT = ("--set", "training.episodes=20", "--set", "evaluation.episodes=2")


@pytest.fixture
def trained(cli: Cli, shapes: Path) -> Path:
    """The folder of a trained run."""
    assert cli("train", shapes / "recipe.toml", "--only", "attention", *SHORT).code == 0
    (folder,) = Path("runs").glob("*/")
    return folder.absolute()


@pytest.mark.slow
def test_draws_train_bench_report_explain(cli: Cli, shapes: Path) -> None:
    recipe = shapes / "recipe.toml"
    drawn = cli("draws", recipe, "--out", shapes / "draws")
    assert drawn.out.split() == [str(shapes / "draws" / "shapes-test.json")]
    saved = ("--set", "evaluation.draws.test=draws/shapes-test.json")
    summary = json.loads(cli("train", recipe, "--only", "attention", "--json", *SHORT, *saved).out)["attention"]
    assert Path(summary["checkpoint"]).is_file()
    found = json.loads(cli("bench", recipe, "--only", "attention", "--json", *SHORT, *saved).out)
    assert list(found) == ["attention on test"]
    assert cli("bench", recipe, "--only", "protonet", *saved).code == 0
    assert cli("report").out.strip() == "results/RESULTS.md"
    page = Path("results/RESULTS.md").read_text()
    assert re.search(r"\| protonet \| \S+, \S+ \| none \|", page)
    assert re.search(r"\| attention \| \S+, \S+ \| frozen backbone on 48 base pictures, best on validation", page)
    assert "fewtag bench" in page
    run, picture = Path(summary["checkpoint"]).parent, shapes / "images" / "heart0.png"
    assert cli("explain", run, picture, "--label", "heart", "--out", "heat.png", "--data", shapes).code == 0
    assert not list(Path().glob("**/*.part"))


def test_bench_uses_the_weights_that_train_left(cli: Cli, shapes: Path, trained: Path) -> None:
    before = (trained / "best.safetensors").stat().st_mtime_ns
    assert cli("bench", shapes / "recipe.toml", "--only", "attention", *SHORT).code == 0
    assert (trained / "best.safetensors").stat().st_mtime_ns == before
    summary = json.loads((trained / "summary.json").read_text())
    row = read_rows(Path("results/recipe/attention.test.parquet"))[0]
    assert (row.validation_macro_ap, row.trained_episodes) == (summary["best"], summary["best_episode"])


def test_a_heat_map_stands_beside_the_picture_and_several_are_a_grid(cli: Cli, shapes: Path, trained: Path) -> None:
    Image.open(shapes / "images" / "heart0.png").resize((90, 60)).save("garden.jpg")
    explain = ("explain", trained, "garden.jpg", "--data", shapes)
    assert cli(*explain, "--label", "heart", "--out", "one.png").code == 0
    assert cli(*explain, "--label", "heart", "--label", "arrow", "--out", "new/several.png").code == 0
    with Image.open("one.png") as one, Image.open("new/several.png") as several:
        assert (one.format, one.height, several.format) == ("PNG", several.height, "PNG")
        assert several.width == pytest.approx(1.5 * one.width, rel=0.02), "three panels, and two"
        assert len(one.convert("RGB").getcolors(one.width * one.height)) > 50


def test_explain_refuses_an_unknown_word_and_a_picture_that_is_not_there(cli: Cli, shapes: Path, trained: Path) -> None:
    shutil.copy(shapes / "images" / "heart0.png", "garden.png")
    for picture, label, message in (
        ("garden.png", "haert", "label 'haert' has no vector in words 'words.txt'"),
        ("gone.png", "heart", "cannot read image gone.png: there is no such file"),
    ):
        said = cli("explain", trained, picture, "--label", label, "--out", "heat.png", "--data", shapes)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("fewtag: ")
        assert message in said.err
        assert not Path("heat.png").exists()


def test_explain_refuses_a_run_that_is_absent_or_has_no_attention(cli: Cli, shapes: Path) -> None:
    explain = ("shapes/images/heart0.png", "--label", "heart", "--out", "heat.png", "--data", shapes)
    said = cli("explain", "runs/nowhere", *explain)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "there is no bank or trained run runs/nowhere; make one with fewtag learn" in said.err
    tuned = ("--set", "backbone.frozen=false", "--set", "training={episodes=2, queries=2, validation_episodes=2}")
    assert cli("train", shapes / "recipe.toml", "--only", "protonet", *tuned).code == 0
    (run,) = Path("runs").glob("*/")
    said = cli("explain", run, *explain)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"the method 'protonet' of {run} has no attention to show" in said.err


def test_explain_says_data_where_a_file_of_the_recipe_is_not_found(cli: Cli, shapes: Path, trained: Path) -> None:
    explain = ("explain", trained, shapes / "images" / "heart0.png", "--label", "heart", "--out", "heat.png")
    for gone, there in (("words.txt", "split.json"), ("split.json", "words.txt")):
        shutil.copy(shapes / there, there)  # what the recipe names is looked for here
        said = cli(*explain)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert gone in said.err
        assert said.err.endswith("of the run's recipe, or of its data, name the folder with --data\n")
        (shapes / gone).rename("elsewhere")
        assert "with --data" not in cli(*explain, "--data", shapes).err
        Path("elsewhere").rename(gone)
        assert cli(*explain).code == 0, "here it is found without --data"
        shutil.copy(gone, shapes / gone)
        Path(gone).unlink()
        Path(there).unlink()


def test_train_refuses_a_recipe_that_trains_nothing(cli: Cli, shapes: Path) -> None:
    said = cli("train", shapes / "recipe.toml", "--only", "protonet")
    assert (said.code, said.out) == (2, "")
    assert f"no run that --only names in {shapes / 'recipe.toml'} has a [training] table" in said.err


def test_of_several_runs_a_refusal_names_the_one_that_it_is_of(cli: Cli, shapes: Path) -> None:
    wrong = ("--set", "evaluation.queries=90")
    both = cli("bench", shapes / "recipe.toml", "--only", "protonet", "--only", "attention", *wrong)
    one = cli("bench", shapes / "recipe.toml", "--only", "protonet", *wrong)
    assert re.match(r"fewtag: run (protonet|attention): label '\w+' has \d+ images", both.err)
    assert re.match(r"fewtag: label '\w+' has \d+ images", one.err)
    assert (both.code, one.code) == (2, 2)


def test_report_without_rows_says_what_to_do(cli: Cli) -> None:
    said = cli("report", "empty")
    assert (said.code, "measure some with fewtag bench RECIPE" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("started", "command"),
    [
        ("/usr/bin/fewtag", "fewtag bench r.toml --set 'a=[1, 2]'"),
        ("/lib/fewtag/__main__.py", "fewtag bench r.toml --set 'a=[1, 2]'"),
        ("mixed.py", "python mixed.py bench r.toml --set 'a=[1, 2]'"),
    ],
)
def test_rows_tell_the_command_that_knows_the_method(
    started: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [started, "bench", "r.toml", "--set", "a=[1, 2]"])
    assert _command() == command
