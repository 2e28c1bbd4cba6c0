"""Runs measured side by side have the rows of runs measured one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewtag.research.bench.results import read_rows

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_many.py"
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


@pytest.mark.processes
def test_runs_side_by_side_have_the_rows_of_runs_one_by_one(cli, shapes: Path) -> None:
    with (shapes / "recipe.toml").open("a") as file:
        file.write(MORE)
    head, *lines = (shapes / "labels.csv").read_text().splitlines()
    (shapes / "reversed.csv").write_text("\n".join([head, *reversed(lines)]) + "\n")
    (shapes / "plan.txt").write_text(
        "recipe tun*\nrecipe protonet\nrecipe attention\nrecipe pro*\nrecipe other-order\n"
    )
    assert cli("bench", shapes / "recipe.toml").code == 0
    command = [
        sys.executable,
        SCRIPT,
        "plan.txt",
        "--data",
        ".",
        "--recipes",
        ".",
        "--frozen",
        "1",
        "--end-to-end",
        "1",
    ]
    places = ["--out", "many", "--runs", "runs", "--seconds", "500", "--stop", "550"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*command, *places], cwd=shapes, env=environment, capture_output=True, text=True, check=True)
    assert "failed" not in done.stdout, done.stdout
    for run in ("protonet", "other-order", "attention", "tuned"):
        one, many = (
            read_rows(folder / "recipe" / f"{run}.test.parquet") for folder in (Path("results"), shapes / "many")
        )
        # a CPU fuses batch norms where it encodes features beforehand, so the last digits differ
        assert [row.macro_ap for row in many] == pytest.approx([row.macro_ap for row in one], abs=0.02)
        assert (many[0].draws_digest, many[0].recipe_digest) == (one[0].draws_digest, one[0].recipe_digest)
        assert many[0].command == f"fewtag bench recipes/recipe.toml --data DIR --only {run}"
