"""Rows say all that is needed to measure them again, and survive the disk."""

import json
import math
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fewtag.errors import InputError
from fewtag.research.bench import results
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.results import METRICS, ResultRow, commit, read_rows, result_rows, summarise, write_rows

Columns = dict[str, list[Any]]
PROMISED = {"method", "data", "split", "backbone", "words", "shots", "episode", *METRICS, "seed", "command", "commit"}
PROMISED |= {"phase", "device", "torch", "timm"}


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


def make_rows(
    recipe: Recipe | None = None, metrics: list[dict[str, float]] | None = None, **told: Any
) -> list[ResultRow]:
    more = {"command": "fewtag 'ü'", "device": "cpu"} | told
    return result_rows(recipe or make_recipe(), "test", metrics or make_metrics(3), **more)


def test_a_row_holds_every_promised_key_and_what_the_recipe_said() -> None:
    facts = {"trained_episodes": 40, "planned_episodes": 80, "validation_macro_ap": 0.5}
    rows = [row.model_dump() for row in make_rows(command="fewtag bench x.toml", facts=facts)]
    assert len(rows) == 3
    for row in rows:
        assert row.keys() >= PROMISED
        assert facts.items() <= row.items()
    said = {"run": "mine", "method": "word-attention", "options": {"heads": 4}, "data": "coco", "split": "coco"}
    said |= {"backbone": "resnet50", "frozen": False, "size": 336, "words": "glove.txt", "shots": 5, "queries": 3}
    said |= {"seed": 7, "phase": "test", "command": "fewtag bench x.toml", "recipe_digest": make_recipe().digest}
    said |= {"device": "cpu", "torch": version("torch"), "timm": version("timm"), "draws_digest": None}
    assert said.items() <= rows[0].items()


def test_episodes_are_numbered_and_keep_their_own_numbers() -> None:
    rows = make_rows()
    assert [row.episode for row in rows] == [0, 1, 2]
    assert [[getattr(row, name) for name in METRICS] for row in rows] == [list(m.values()) for m in make_metrics(3)]


def test_numbers_have_six_places() -> None:
    (row,) = make_rows(metrics=[dict.fromkeys(METRICS, 1 / 3)])
    assert (row.micro_f1, row.macro_ap) == (0.333333, 0.333333)


def test_a_fact_without_a_column_is_no_fact() -> None:
    with pytest.raises(ValueError, match="mood"):
        make_rows(facts={"mood": "good"})


def test_rows_of_another_recipe_are_told_apart() -> None:
    assert make_recipe().digest == make_recipe().digest
    assert make_recipe().digest != make_recipe(seed=8).digest
    assert make_recipe().digest != make_recipe(method={"name": "word-attention", "heads": 2}).digest


def test_rows_come_back_from_the_file_as_they_went_in(tmp_path: Path) -> None:
    metrics = [dict.fromkeys(METRICS, value) for value in (0.1 + 0.2, 1 / 3, 0.0)]
    rows = make_rows(make_recipe(name="größe\u2028"), metrics, facts={"seconds": 0.07, "validation_macro_ap": 1 / 3})
    path = tmp_path / "new" / "rows.parquet"
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert [row.model_dump() for row in read_rows(path)] == [row.model_dump() for row in rows]
    assert [file.name for file in path.parent.iterdir()] == ["rows.parquet"]


def test_every_file_has_the_same_columns_whatever_its_rows_tell(tmp_path: Path) -> None:
    write_rows(tmp_path / "bare.parquet", make_rows(metrics=make_metrics(1)))
    write_rows(tmp_path / "told.parquet", make_rows(facts={"trained_episodes": 3, "validation_macro_ap": 0.5}))
    bare, told = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("bare", "told"))
    assert bare.schema.equals(told.schema)
    assert set(bare.column_names) >= PROMISED
    assert bare.to_pylist()[0]["trained_episodes"] is None
    assert json.loads(bare.to_pylist()[0]["options"]) == {"heads": 4}


def test_columns_that_came_later_than_a_file_are_untold(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, make_rows())
    pq.write_table(pq.read_table(path).drop_columns(["device", "torch"]), path)
    assert [(row.device, row.torch, row.timm) for row in read_rows(path)] == [(None, None, version("timm"))] * 3


def test_a_file_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, make_rows())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"rows\.parquet is no Parquet file, or a part of one; .*bench --force"):
        read_rows(path)


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ({"image": ["a.jpg"], "tags": [["dog"]]}, "run: Field required"),
        ({"macro_ap": ["high"]}, "macro_ap: Input should be a valid number"),
        ({"mood": ["good"]}, "mood: Extra inputs"),
    ],
)
def test_a_table_of_something_else_is_refused_by_its_column(tmp_path: Path, columns: Columns, wrong: str) -> None:
    path = tmp_path / "tags.parquet"
    if "image" not in columns:
        columns = {name: [value] for name, value in make_rows()[0].model_dump(round_trip=True).items()} | columns
    pq.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=rf"tags\.parquet holds no result rows \(column {wrong}.*; move it elsewhere"):
        read_rows(path)


def test_the_commit_can_be_named_and_is_found_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    assert commit() == "abc123"
    assert make_rows()[0].commit == "abc123"
    monkeypatch.delenv("FEWTAG_COMMIT")
    assert commit()
    assert commit() != "abc123"


def test_a_summary_is_the_mean_and_interval_of_each_metric() -> None:
    metrics = [{name: place + episode for place, name in enumerate(METRICS)} for episode in (0.0, 1.0, 2.0)]
    summary = summarise(make_rows(metrics=metrics))
    assert list(summary) == list(METRICS)
    for place, name in enumerate(METRICS):
        assert summary[name]["mean"] == place + 1
        assert summary[name]["interval"] == pytest.approx(4.302653 / math.sqrt(3))  # Student, two degrees of freedom


def test_rows_that_are_being_written_do_not_make_their_commit_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    code, rows = tmp_path / "src" / "results.py", tmp_path / "results" / "rows.json"
    for file in (code, rows):
        file.parent.mkdir()
        file.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")[:12]
    monkeypatch.delenv("FEWTAG_COMMIT", raising=False)
    monkeypatch.setattr(results, "__file__", str(code))
    found = []
    for file in (rows, code):
        file.write_text("2")
        results._commit_of_repository.cache_clear()
        found.append(commit())
    results._commit_of_repository.cache_clear()
    assert found == [head, f"{head}-dirty"]
