"""Result rows: one an episode, with all that is needed to measure it again."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fewtag
from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.research.bench.metrics import METRICS
from fewtag.research.bench.recipe import Recipe

Row = dict[str, Any]


def result_rows(
    recipe: Recipe, phase: str, metrics: Sequence[dict[str, float]], *, command: str, facts: Row | None = None
) -> list[Row]:
    """A row for each episode's metrics; `facts` (of training, say) are repeated in each."""
    about = {
        "run": recipe.name,
        "method": recipe.method.name,
        "options": recipe.method.options,
        "data": recipe.data.name,
        "split": recipe.data.split,
        "phase": phase,
        "note": recipe.data.note,
        "backbone": recipe.backbone.name,
        "frozen": recipe.backbone.frozen,
        "size": recipe.backbone.size,
        "words": recipe.words.source,
        "shots": recipe.evaluation.shots,
        "queries": recipe.evaluation.queries,
        "seed": recipe.seed,
        "recipe": recipe.digest,
        "command": command,
        "commit": commit(),
        **(facts or {}),
    }
    return [
        {**about, "episode": episode, **{name: round(value, 6) for name, value in found.items()}}
        for episode, found in enumerate(metrics)
    ]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_reason(folder: Path, recipe: Recipe) -> None:
    """Why a run has no rows, beside the rows of the others."""
    facts = {"run": recipe.name, "method": recipe.method.name, "data": recipe.data.name, "reason": recipe.not_measured}
    write_atomically(folder / f"{recipe.name}.not-measured.json", json.dumps(facts, indent=2).encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of one file."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number} is not JSON; measure it again: bench --force") from error
        if not isinstance(row, dict) or not {"recipe", "data", "phase", *METRICS} <= row.keys():
            raise InputError(f"{path}, line {number} is no result row; move the file elsewhere, or bench --force")
        rows.append(row)
    return rows


def commit() -> str:
    """The commit this code is of; FEWTAG_COMMIT says it where the code runs outside its repository."""
    if named := os.environ.get("FEWTAG_COMMIT"):
        return named
    folder = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=folder, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"fewtag {fewtag.__version__}"  # an installed copy
    return described.stdout.strip()
