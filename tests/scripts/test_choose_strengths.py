"""The best of a search, over shots, and whether its grid ends there."""

import json
from pathlib import Path

import choose_strengths
import pytest

from fewtag.research.bench.results import METRICS, ResultRow, write_rows

ABOUT = {
    "data": "coco",
    "split": "coco",
    "phase": "val",
    "note": "",
    "backbone": "net",
    "frozen": True,
    "size": 224,
    "words": "pieces",
    "seed": 0,
    "recipe_digest": "r",
    "command": "fewtag bench",
    "commit": "c0de",
    "queries": 4,
    "method": "knn",
}


def write(folder: Path, k: int, shots: int, value: float, **facts: object) -> None:
    name = f"knn-{k}-{shots}-{len(facts)}"
    about = {**ABOUT, "run": name, "options": json.dumps({"k": k, "sure": True}), "shots": shots, **facts}
    rows = [ResultRow.model_validate({**about, "episode": n, **dict.fromkeys(METRICS, value)}) for n in range(2)]
    write_rows(folder / f"{name}.val.parquet", rows)


def test_the_best_over_all_shots_is_named_and_ends_of_grids_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for k, one, five in ((1, 0.9, 0.1), (3, 0.6, 0.6), (5, 0.5, 0.6)):
        write(tmp_path, k, 1, one)
        write(tmp_path, k, 5, five)
        write(tmp_path, k, 1, one, space="512, shrinkage 2")
    monkeypatch.setattr("sys.argv", ["choose_strengths.py", str(tmp_path)])
    choose_strengths.main()
    found = {each["whitened"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found[False]["best"], found[False]["at_an_end"]) == ({"k": 3, "sure": True}, [])
    assert (found[False]["mean_ap"], found[False]["settings"]) == (60.0, 3)
    assert (found[True]["best"]["k"], found[True]["at_an_end"]) == (1, ["k"])
