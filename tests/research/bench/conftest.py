"""Rows of runs that never ran, for the tests of the report."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fewtag.research.bench.results import METRICS, ResultRow, write_rows

WriteRun = Callable[..., list[ResultRow]]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """write_run("coco/protonet", [0.4, 0.5]) writes coco/protonet.test.parquet in tmp_path, all eight metrics alike."""

    def write(reference: str, values: Sequence[float], phase: str = "test", **facts: object) -> list[ResultRow]:
        recipe, _, run = reference.partition("/")
        about = {
            "run": run,
            "method": re.sub(r"-seed-\d+$", "", run),
            "options": "{}",
            "data": "coco",
            "split": "coco",
            "phase": phase,
            "note": "",
            "backbone": "resnet50",
            "frozen": True,
            "size": 224,
            "words": "words/labels.npz#coco_glove300",
            "shots": 1,
            "queries": 4,
            "seed": 0,
            "recipe_digest": "r",
            "command": f"fewtag bench recipes/{recipe}.toml",
            "commit": "c0de",
            "seconds": 1.5,
            "data_digest": f"pictures of {phase}",
        }
        rows = [
            ResultRow.model_validate({**about, "episode": number, **dict.fromkeys(METRICS, value), **facts})
            for number, value in enumerate(values)
        ]
        write_rows(tmp_path / recipe / f"{run}.{phase}.parquet", rows)
        return rows

    return write
