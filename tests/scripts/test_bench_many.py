"""Runs measured side by side have the rows of runs measured one by one."""

import multiprocessing
import os
import sys
from pathlib import Path

import bench_many
import pytest

from fewtag.errors import InputError
from fewtag.research.bench.recipe import BackboneSettings
from fewtag.research.bench.results import read_rows

MORE = """
[[runs]]
name = "other-order"
method.name = "protonet"
data.sources = [{ format = "table", path = "reversed.csv", images = "images" }]

[[runs]]
name = "tuned"
method = { name = "word-attention", joint = 32, heads = 4 }
backbone.frozen = false
training = { episodes = 4, queries = 2, validate_every = 2, validation_episodes = 2 }
"""


def _measure_side_by_side(folder: Path) -> None:
    """In a process of its own, since it changes fewtag; its workers are forked, as to import torch takes seconds."""
    os.chdir(folder)
    sys.stdout = (folder / "said.txt").open("w")
    bench_many.mp.get_context = lambda _: multiprocessing.get_context("fork")
    places = ["--data", ".", "--recipes", ".", "--out", "many", "--runs", "runs"]
    limits = ["--frozen", "1", "--end-to-end", "1", "--seconds", "500", "--stop", "550"]
    sys.argv = ["bench_many", "plan.txt", *places, *limits]
    bench_many.main()
    sys.stdout.flush()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_runs_side_by_side_have_the_rows_of_runs_one_by_one(cli, shapes: Path) -> None:
    recipe = (shapes / "recipe.toml").read_text()
    for long, short in (
        ("\nepisodes = 60", "\nepisodes = 4"),
        ("_every = 20", "_every = 4"),
        ("_episodes = 10", "_episodes = 2"),
    ):
        assert long in recipe
        recipe = recipe.replace(long, short)
    (shapes / "recipe.toml").write_text(recipe + MORE)
    head, *lines = (shapes / "labels.csv").read_text().splitlines()
    (shapes / "reversed.csv").write_text("\n".join([head, *reversed(lines)]) + "\n")
    (shapes / "plan.txt").write_text(
        "recipe tun*\nrecipe protonet\nrecipe attention\nrecipe pro*\nrecipe other-order\n"
    )
    assert cli("bench", shapes / "recipe.toml").code == 0
    done = multiprocessing.get_context("fork").Process(target=_measure_side_by_side, args=(shapes,))
    done.start()
    done.join()
    assert done.exitcode == 0
    assert "failed" not in (said := (shapes / "said.txt").read_text()), said
    for run in ("protonet", "other-order", "attention", "tuned"):
        one, many = (
            read_rows(folder / "recipe" / f"{run}.test.parquet") for folder in (Path("results"), shapes / "many")
        )
        # a CPU fuses batch norms where it encodes features beforehand, so the last digits differ
        assert [row.macro_ap for row in many] == pytest.approx([row.macro_ap for row in one], abs=0.02)
        assert (many[0].draws_digest, many[0].recipe_digest) == (one[0].draws_digest, one[0].recipe_digest)
        assert many[0].command == f"fewtag bench recipes/recipe.toml --data DIR --only {run}"


def test_a_plan_is_for_one_network_at_one_size_and_grid(shapes: Path) -> None:
    coarser = '\n[[runs]]\nname = "coarser"\nmethod.name = "protonet"\nbackbone.grid = 1\n'
    (shapes / "recipe.toml").write_text((shapes / "recipe.toml").read_text() + coarser)
    (shapes / "plan.txt").write_text("recipe coarser\n")
    ((_, recipe),) = bench_many.read_plan(shapes / "plan.txt", shapes)
    assert bench_many.open_network(recipe, shapes, shapes).grid == 1
    packaged = recipe.model_copy(update={"backbone": BackboneSettings(size=64)})
    assert bench_many.open_network(packaged, shapes, shapes).name == "tf_efficientnet_lite2"
    (shapes / "plan.txt").write_text("recipe protonet\nrecipe coarser\n")
    with pytest.raises(InputError, match="runs on 2 networks, sizes or grids"):
        bench_many.read_plan(shapes / "plan.txt", shapes)
