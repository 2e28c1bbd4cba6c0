"""What was acknowledged survives `kill -9`; `make fuzz` kills two hundred times."""

import pytest
import studio_kills


@pytest.mark.slow
@pytest.mark.processes
def test_four_kills_lose_no_acknowledged_answer() -> None:
    assert studio_kills.run(4, seed=1) > 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_lost_answer_would_be_noticed(tmp_path: object) -> None:
    folder = studio_kills.make_project(tmp_path)  # type: ignore[arg-type]
    with pytest.raises(studio_kills.LostError, match="1 acknowledged changes are gone"):
        studio_kills.verify(folder, ["no such answer"])
