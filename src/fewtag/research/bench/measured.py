"""What a folder of results holds: runs with their rows by phase, and the reasons why others have none."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewtag.errors import InputError
from fewtag.research.bench.metrics import METRICS, mean_and_interval
from fewtag.research.bench.published import PublishedSystem, PublishedTable
from fewtag.research.bench.results import Row, read_rows

Summary = dict[str, dict[str, float]]
_SHOTS = re.compile(r"-\d+-shots?$")


def summarise(rows: Sequence[Row]) -> Summary:
    """The mean of each metric over the episodes, with the half width of its 95 % interval."""
    summary: Summary = {}
    for name in METRICS:
        mean, interval = mean_and_interval([row[name] for row in rows])
        summary[name] = {"mean": mean, "interval": interval}
    return summary


@dataclass(frozen=True)
class Measured:
    """One run of one recipe file, with its rows by phase."""

    recipe: str
    """The recipe file's name without its ending, which is the rows' folder."""
    phases: dict[str, list[Row]]

    @property
    def about(self) -> Row:
        """A row, for what all rows of the run have in common."""
        return next(iter(self.phases.values()))[0]

    @property
    def data(self) -> str:
        return str(self.about["data"])

    @property
    def split(self) -> str:
        return str(self.about.get("split", self.data.removesuffix("-original")))

    @property
    def shots(self) -> int:
        return int(self.about["shots"])

    @property
    def reference(self) -> str:
        """What published tables call it; a run on the original downloads stands where its namesake does."""
        return f"{self.recipe.removesuffix('-original')}/{self.about['run']}"

    @property
    def name(self) -> str:
        return f"{self.about['run']} ({self.recipe})" if self.recipe.endswith("-original") else str(self.about["run"])

    @property
    def family(self) -> str:
        """The run's name without its number of shots."""
        return _SHOTS.sub("", str(self.about["run"]))

    def mean(self, phase: str = "test", metric: str = "macro_ap") -> float:
        return mean_and_interval([row[metric] for row in self.phases[phase]])[0]


@dataclass(frozen=True)
class Results:
    """Everything under a folder of results."""

    measured: list[Measured]
    reasons: dict[str, str]
    """Why a `recipe/run` has no rows."""

    def beside(self, system: PublishedSystem, table: PublishedTable) -> list[Measured]:
        """The runs that stand beside a published system: those it names, if of its split and shots."""
        return [
            measured
            for run in system.runs
            for measured in self.measured
            if (measured.reference, measured.split, measured.shots) == (run, table.data, table.shots)
        ]

    def why_not(self, system: PublishedSystem) -> dict[str, str]:
        """The reasons for the system's runs that were not measured, by run."""
        return {run.rpartition("/")[2]: self.reasons[run] for run in system.runs if run in self.reasons}


def read_results(folder: Path) -> Results:
    """All rows and reasons under the folder; a reason for a run that has rows by now is out of date."""
    runs: dict[tuple[Path, str, str], dict[str, list[Row]]] = {}
    for path in sorted(folder.glob("**/*.jsonl")):
        if rows := read_rows(path):
            key = (path.parent, str(rows[0]["run"]), str(rows[0]["recipe"]))
            runs.setdefault(key, {})[rows[0]["phase"]] = rows
    if not runs:
        raise InputError(f"there are no rows (*.jsonl) under {folder}; measure some with fewtag bench RECIPE")
    measured = [
        Measured(place.name, {phase: phases[phase] for phase in sorted(phases, key=_test_first)})
        for (place, _, _), phases in runs.items()
    ]
    done = {each.reference for each in measured}
    reasons = dict(_reason(path) for path in sorted(folder.glob("**/*.not-measured.json")))
    return Results(measured, {run: reason for run, reason in reasons.items() if run not in done})


def phases_of(runs: Iterable[Measured]) -> list[str]:
    """The phases that some of the runs were measured on, the paper's first."""
    return sorted({phase for run in runs for phase in run.phases}, key=_test_first)


def _test_first(phase: str) -> tuple[bool, bool, str]:
    return phase != "test", phase != "mixed", phase


def _reason(path: Path) -> tuple[str, str]:
    try:
        facts = json.loads(path.read_text())
        return f"{path.parent.name.removesuffix('-original')}/{facts['run']}", str(facts["reason"])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} gives no reason for a run without rows; bench its recipe again") from error
