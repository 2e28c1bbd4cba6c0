"""Rows say all that is needed to measure them again, and survive the disk."""

import json
from pathlib import Path

import pytest

from fewtag.errors import InputError
from fewtag.research.bench.metrics import METRICS
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.results import commit, read_rows, result_rows, write_rows

# DESIGN.md §4, "Every result row has at least"
PROMISED = {"method", "data", "split", "backbone", "words", "shots", "episode", *METRICS, "seed", "command", "commit"}


def make_recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "name": "mine",
        "data": {"name": "coco", "split": "coco", "sources": [{"format": "folders", "path": "pictures"}]},
        "method": {"name": "word-attention", "heads": 4},
        "backbone": {"name": "resnet50", "frozen": False, "size": 336},
        "words": {"source": "glove.txt"},
        "evaluation": {"shots": 5, "queries": 3},
        "seed": 7,
    }
    return Recipe.model_validate(settings | changes)


def make_metrics(count: int) -> list[dict[str, float]]:
    return [{name: (episode + column) / 10 for column, name in enumerate(METRICS)} for episode in range(count)]


def test_a_row_holds_every_promised_key_and_what_the_recipe_said() -> None:
    facts = {"trained_episodes": 40, "planned_episodes": 80, "validation_macro_ap": 0.5}
    rows = result_rows(make_recipe(), "test", make_metrics(3), command="fewtag bench x.toml", facts=facts)
    assert len(rows) == 3
    for row in rows:
        assert PROMISED | {"phase", "options", "run", "queries", "recipe"} <= row.keys()
        assert facts.items() <= row.items()
    said = {"run": "mine", "method": "word-attention", "options": {"heads": 4}, "data": "coco", "split": "coco"}
    said |= {"backbone": "resnet50", "frozen": False, "size": 336, "words": "glove.txt", "shots": 5, "queries": 3}
    said |= {"seed": 7, "phase": "test", "command": "fewtag bench x.toml", "recipe": make_recipe().digest}
    assert said.items() <= rows[0].items()


def test_episodes_are_numbered_and_keep_their_own_numbers() -> None:
    rows = result_rows(make_recipe(), "test", make_metrics(3), command="x")
    assert [row["episode"] for row in rows] == [0, 1, 2]
    assert [[row[name] for name in METRICS] for row in rows] == [list(found.values()) for found in make_metrics(3)]


def test_rows_of_another_recipe_are_told_apart() -> None:
    assert make_recipe().digest == make_recipe().digest
    assert make_recipe().digest != make_recipe(seed=8).digest
    assert make_recipe().digest != make_recipe(method={"name": "word-attention", "heads": 2}).digest


def test_rows_come_back_from_the_file_as_they_went_in(tmp_path: Path) -> None:
    rows = result_rows(make_recipe(name="größe\u2028"), "test", make_metrics(2), command="fewtag 'ü'")
    path = tmp_path / "new" / "rows.jsonl"
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert len(path.read_bytes().splitlines()) == 2
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_a_broken_line_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, result_rows(make_recipe(), "test", make_metrics(3), command="x"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"rows\.jsonl, line 3 is not JSON; .*bench --force"):
        read_rows(path)


@pytest.mark.parametrize("line", ["3", "[]", json.dumps({"episode": 50, "loss": 0.1, "macro_ap": 0.2})])
def test_a_line_of_something_else_is_refused_with_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"log\.jsonl, line 1 is no result row"):
        read_rows(path)


def test_the_commit_can_be_named_and_is_found_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    assert commit() == "abc123"
    assert result_rows(make_recipe(), "test", make_metrics(1), command="x")[0]["commit"] == "abc123"
    monkeypatch.delenv("FEWTAG_COMMIT")
    assert commit()
    assert commit() != "abc123"
