"""Models are timed beside the first one, as the product runs them."""

import json
from pathlib import Path

import measure_speed
import pytest


def test_shipped_models_and_ones_own_are_timed_beside_the_first(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--pictures", "2", "--rounds", "1", "--out", str(tmp_path / "speed.json")]
    monkeypatch.setattr("sys.argv", ["measure_speed.py", "default", str(tiny_model), *options])
    measure_speed.main()
    first, second = json.loads((tmp_path / "speed.json").read_text())
    assert first["model"] == "default at 168 px"
    assert first["ratio"] == 1
    assert second["ratio"] == pytest.approx(second["a second"] / first["a second"], abs=0.001)
