"""Some of what `make fuzz` tries: mutated files and kills at random moments."""

import sys
from pathlib import Path

import pytest
import studio_kills
from fuzz import fuzz
from kills import Bench, disturb

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_mutated_files_are_read_or_refused_in_a_sentence() -> None:
    outcomes, wrong = fuzz(range(300))
    assert wrong == {}
    assert outcomes.total() == 300
    assert {"bank refused", "cache read", "picture read", "picture refused", "table read"} <= outcomes.keys()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_at_random_moments_nothing_is_lost_doubled_or_torn(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert len([disturb(bench, number) for number in range(4)]) == 4


def test_of_a_studio_that_is_killed_no_acknowledged_answer_is_lost() -> None:
    assert studio_kills.run(4, seed=1) > 0


def test_a_lost_answer_would_be_noticed(tmp_path: Path) -> None:
    folder = studio_kills.make_project(tmp_path)
    with pytest.raises(studio_kills.LostError, match="1 acknowledged changes are gone"):
        studio_kills.verify(folder, ["no such answer"])
