"""Measured runs and published systems, and how they are grouped on the page of results."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import model_validator

from fewtag.errors import InputError, plural
from fewtag.files import read_json
from fewtag.research.bench.recipe import Settings, counted
from fewtag.research.bench.results import (
    METRICS,
    SESSIONS,
    ResultRow,
    SessionRow,
    read_rows,
    read_rows_of,
)


class PublishedSystem(Settings):
    """A line of a published table; one without numbers is a place for runs of ours."""

    system: str
    numbers: list[float]
    runs: list[str]
    """The runs beside it, as `recipe/run`."""
    own: bool = False
    """Whether it is the paper's own model, in one of its readings."""


class PublishedTable(Settings):
    """A table of the paper, in percent."""

    name: str
    title: str
    data: str
    """The split that the table is about."""
    shots: int = 1
    note: str = ""
    against: str = ""
    """The run whose variants the table is about; empty for a table that compares systems."""
    equal: str = ""
    """The full model's runs of equal length: a run `NAME-after-400` is compared with `EQUAL-after-400`."""
    figure: Literal["marks", "curve"] | None = None
    """How the systems are drawn: as a mark each, or as a curve over the numbers that are their names."""
    along: str = ""
    """What those numbers count."""
    metrics: list[str]
    rows: list[PublishedSystem]

    @model_validator(mode="after")
    def have_a_number_for_each_metric(self) -> "PublishedTable":
        assert set(self.metrics) <= set(METRICS), self.name
        assert all(len(row.numbers) in (0, len(self.metrics)) for row in self.rows), self.name
        return self

    @property
    def model(self) -> PublishedSystem:
        """The line of the paper's own model; the last, if there are several."""
        return [row for row in self.rows if row.own][-1]

    def system_of(self, run: "MeasuredRun") -> PublishedSystem | None:
        """The system that the run is listed beside."""
        return next((row for row in self.rows if run.reference in row.runs), None)

    def baseline(self, run: "MeasuredRun") -> str:
        """The run that a variant is compared with: the full model, after as many episodes as its name says."""
        after = re.search(r"-after-\d+$", run.reference)
        return f"{self.equal}{after[0]}" if self.equal and after else self.against

    def number(self, system: PublishedSystem, metric: str) -> float | None:
        """The paper's number in percent, if it has one."""
        return dict(zip(self.metrics, system.numbers, strict=False)).get(metric)


class Published(Settings):
    """All tables of the paper, in its order."""

    source: str
    tables: list[PublishedTable]

    def comparison(self, split: str) -> PublishedTable | None:
        """The table that compares systems on a data set with one support image a label, if the paper has one."""
        tables = [table for table in self.tables if (table.data, table.shots, table.against) == (split, 1, "")]
        return tables[0] if tables else None


@cache
def published() -> Published:
    """The published numbers that come with the package."""
    return Published.model_validate_json(files("fewtag.research.bench.report").joinpath("published.json").read_text())


class DataSet(NamedTuple):
    """Pictures and a split of their labels."""

    data: str
    split: str

    @property
    def name(self) -> str:
        """The name of the data, or of a variant of its split, so that `laso-novel-free` is listed beside `laso`."""
        split = Path(self.split).stem
        return split if split.startswith(self.data) else self.data


@dataclass(frozen=True)
class MeasuredRun:
    """One run of one recipe, with its rows by phase. Runs with the same folder, name and recipe are equal."""

    folder: Path
    """The folder of its rows, which has the name of the recipe file."""
    run: str
    recipe_digest: str
    phases: Mapping[str, Sequence[ResultRow]] = field(compare=False, repr=False)
    """For a run with several training seeds, each episode's mean over them."""
    seeds: Mapping[str, Sequence[Sequence[ResultRow]]] = field(compare=False, repr=False, default_factory=dict)
    """The rows of each training seed by phase, if there are several."""

    @property
    def recipe(self) -> str:
        return self.folder.name

    @property
    def shared(self) -> ResultRow:
        """Any row, for the columns that all rows of the run share."""
        return next(iter(self.phases.values()))[0]

    @property
    def data_set(self) -> DataSet:
        return DataSet(self.shared.data, self.shared.split)

    @property
    def reference(self) -> str:
        """The run's name in published tables."""
        return f"{self.recipe}/{self.run}"

    @property
    def family(self) -> str:
        """The run's name without the number of shots at its end: `knn` for `knn-5-shots`."""
        return re.sub(f"-{self.shared.shots}-shots?$", "", self.run)

    def values(self, phase: str = "test", metric: str = "macro_ap") -> list[float]:
        """The metric of each episode."""
        return [getattr(row, metric) for row in self.phases[phase]]

    def mean(self, phase: str = "test") -> float:
        return fmean(self.values(phase))

    def by_seed(self, phase: str = "test") -> Sequence[Sequence[ResultRow]]:
        """The rows of each training seed, or of the only one."""
        return self.seeds.get(phase) or [self.phases[phase]]

    def seed_means(self, phase: str) -> list[float]:
        return [fmean(row.macro_ap for row in rows) for rows in self.by_seed(phase)]

    @property
    def seeded(self) -> bool:
        """Whether another training seed would give different numbers."""
        return self.shared.trained_episodes is not None

    def label_aps(self, phase: str = "test") -> dict[str, float]:
        """Each label's average precision over episodes and seeds; empty if the rows do not have it."""
        told = [rows[0].label_aps for rows in self.by_seed(phase)]
        known = [each for each in told if each]
        if len(known) < len(told):
            return {}
        return {label: fmean(each[label] for each in known) for label in known[0]}


@dataclass(frozen=True)
class Results:
    """Everything below a folder of results."""

    runs: Sequence[MeasuredRun]
    reasons: Mapping[str, str]
    """Why a `recipe/run` has no rows."""
    use: Sequence[MeasuredRun] = ()
    """Runs on other episodes than the paper's: at the pictures' own frequencies, or with one label a picture."""
    sessions: Sequence[SessionRow] = ()

    def beside(self, system: PublishedSystem, table: PublishedTable) -> list[MeasuredRun]:
        """The runs listed beside a published system: those that it names, if of its split and shots."""
        return [
            run
            for name in system.runs
            for run in self.runs
            if (run.reference, run.shared.split, run.shared.shots) == (name, table.data, table.shots)
        ]

    def are_about(self, table: PublishedTable) -> bool:
        """Whether a run, or a reason why there is none, is listed beside one of its systems."""
        return any(self.beside(row, table) or self.reasons.keys() & set(row.runs) for row in table.rows)


def read_results(folder: Path) -> Results:
    """All rows and reasons below the folder; a reason for a run that has rows by now is outdated, and left out."""
    for path in folder.glob("**/*.jsonl"):
        raise InputError(f"{path} is of before rows were Parquet; delete it, and measure its run with fewtag bench")
    paths = [path for path in sorted(folder.glob("**/*.parquet")) if not path.name.endswith(SESSIONS)]
    found = [(path.parent, rows[0].run, rows) for path in paths if (rows := read_rows(path))]
    seeds: dict[tuple[Path, str, str], dict[str, list[list[ResultRow]]]] = {}
    first: dict[tuple[Path, str], str] = {}
    for place, run, rows in sorted(found, key=lambda each: each[:2]):
        name, digest = re.sub(r"-seed-\d+$", "", run), rows[0].recipe_digest
        if name != run:  # one of several training seeds, which are grouped under the recipe of the first
            digest = first.setdefault((place, name), digest)
        seeds.setdefault((place, name, digest), {}).setdefault(rows[0].phase, []).append(rows)
    sessions = [row for path in sorted(folder.glob(f"**/*{SESSIONS}")) for row in read_rows_of(SessionRow, path)]
    if not seeds and not sessions:
        raise InputError(f"there are no rows (*.parquet) under {folder}; measure some with fewtag bench RECIPE")
    runs = [
        MeasuredRun(
            *key,
            phases={phase: mean_rows(phases[phase]) for phase in sorted(phases, key=_test_first)},
            seeds={phase: each for phase, each in phases.items() if len(each) > 1},
        )
        for key, phases in seeds.items()
    ]
    measured = {run.reference for run in runs}
    reasons = dict(_reason(path) for path in sorted(folder.glob("**/*.not-measured.json")))
    use = [run for run in runs if run.shared.sampling == "halves" or run.shared.supports == "single"]
    return Results(
        [run for run in runs if run not in use],
        {run: reason for run, reason in reasons.items() if run not in measured},
        use,
        sessions,
    )


def mean_rows(seeds: Sequence[list[ResultRow]]) -> list[ResultRow]:
    """Each episode's mean over the training seeds, all of which were measured on the same draws."""
    one, *others = seeds
    if not others:
        return one
    if len({(rows[0].draws_digest, len(rows)) for rows in seeds}) > 1:
        raise InputError(
            f"the training seeds of {one[0].run} were not measured on the same episodes; name draws in the recipe"
        )
    if len({rows[0].seed for rows in seeds}) < len(seeds) or len({_apart_from_seed(rows[0]) for rows in seeds}) > 1:
        raise InputError(
            f"the runs {', '.join(rows[0].run for rows in seeds)} are no training seeds of one system: their seeds are "
            "the same, or their settings differ; measure them again, or name them otherwise"
        )
    return [
        rows[0].model_copy(update={name: fmean(getattr(row, name) for row in rows) for name in METRICS})
        for rows in zip(*seeds, strict=True)
    ]


def _apart_from_seed(row: ResultRow) -> str:
    """The settings that training seeds of one system share, as text."""
    alike = ("method", "options", "backbone", "frozen", "size", "words", "names", "space", "base_pictures")
    training = counted({key: value for key, value in (row.training or {}).items() if key != "checkpoint_every"})
    return repr([*(getattr(row, name) for name in alike), sorted(training.items())])


def phases_of(runs: Iterable[MeasuredRun]) -> list[str]:
    """The phases that some of the runs were measured on, the paper's first."""
    return sorted({phase for run in runs for phase in run.phases}, key=_test_first)


def _test_first(phase: str) -> tuple[bool, bool, str]:
    return phase != "test", phase != "mixed", phase


def _reason(path: Path) -> tuple[str, str]:
    facts = read_json(path, "reason")
    try:
        return f"{path.parent.name}/{facts['run']}", str(facts["reason"])
    except (TypeError, KeyError) as error:
        raise InputError(f"{path} gives no reason for a run without rows; bench its recipe again") from error


class Systems(NamedTuple):
    """Runs on one data set that are ranked together, the best first."""

    data_set: DataSet
    table: PublishedTable | None
    """The paper's table that compares systems there; None for one's own data."""
    runs: Sequence[MeasuredRun]

    @property
    def title(self) -> str:
        name = self.data_set.name
        images = plural(self.runs[0].shared.shots, "support image")
        return f"{self.table.title} ({name})" if self.table else f"{name}: {images} a label"


def systems(results: Results, paper: Published) -> list[Systems]:
    """Runs measured as the paper compares systems; on other data, those with the fewest examples that several have.

    Variants of the paper's model have their own tables.
    """
    variants = {run for table in paper.tables if table.against for row in table.rows for run in row.runs}
    ranked = sorted(tested(results.runs), key=lambda run: -run.mean())
    groups: list[Systems] = []
    for table in paper.tables:
        if table != paper.comparison(table.data):
            continue
        runs = [
            run
            for run in ranked
            if (run.shared.split, run.shared.shots) == (table.data, table.shots)
            and (run.reference not in variants or table.system_of(run))
        ]
        for data_set in sorted({run.data_set for run in runs}):
            groups.append(Systems(data_set, table, [run for run in runs if run.data_set == data_set]))
    for data_set in sorted({run.data_set for run in ranked if paper.comparison(run.shared.split) is None}):
        runs = [run for run in ranked if run.data_set == data_set]
        several = [shots for shots, times in Counter(run.shared.shots for run in runs).items() if times > 1]
        if several:
            groups.append(Systems(data_set, None, [run for run in runs if run.shared.shots == min(several)]))
    return groups


def tested(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """The runs that were measured on the phase `test`."""
    return [run for run in runs if "test" in run.phases]


def best_reading(runs: Sequence[MeasuredRun], table: PublishedTable | None) -> MeasuredRun | None:
    """The run of the paper's model that is best on the validation labels, so that the test plays no part in the choice.

    If nothing was validated, as in LaSO's setting, the best on the test: a choice in the paper's favour.
    """
    readings = [run for run in runs if table and run.reference in table.model.runs]

    def validated(run: MeasuredRun) -> float:
        return fmean(rows[0].validation_macro_ap or 0.0 for rows in run.by_seed())

    return max(readings, key=validated if any(map(validated, readings)) else MeasuredRun.mean, default=None)


def closed_form(runs: Sequence[MeasuredRun], like: MeasuredRun | None) -> MeasuredRun | None:
    """The closed form with the backbone and words of the run that it is compared with; else the first one."""

    def unlike(run: MeasuredRun) -> tuple[bool, bool, bool, str]:
        one, other = run.shared, like.shared if like else None
        backbone, words = (other.backbone, other.words) if other else (None, None)
        return one.backbone != backbone, one.words != words, one.names is not None, run.reference

    return min((run for run in runs if run.shared.method == "closed-form"), key=unlike, default=None)


Curves = dict[str, dict[int, MeasuredRun]]
"""Runs by family and number of shots."""


def shot_curves(runs: Iterable[MeasuredRun], *, fewest: int = 2) -> dict[DataSet, Curves]:
    """Runs that differ only in shots: `name-5-shots` and `name`, with the same method, backbone and base.

    A curve has at least `fewest` points; if two have the same name, their backbones are added.
    """
    groups: dict[tuple[DataSet, str, str, str, int], dict[int, MeasuredRun]] = {}
    for run in runs:
        row = run.shared
        key = (run.data_set, run.family, row.method, row.backbone, row.base_pictures or 0)
        groups.setdefault(key, {})[row.shots] = run
    kept = [
        (key, by_shots) for key, by_shots in sorted(groups.items(), key=lambda item: item[0]) if len(by_shots) >= fewest
    ]
    names = Counter(key[:2] for key, _ in kept)
    curves: dict[DataSet, Curves] = {}
    for (data_set, family, _, backbone, _), by_shots in kept:
        name = family if names[data_set, family] == 1 else f"{family}, {backbone}"
        curves.setdefault(data_set, {})[name] = dict(sorted(by_shots.items()))
    return curves


Setting = tuple[str, str, int, int, int]
"""Data, split, shots, queries and episodes, which the runs of one table have in common."""


def beyond(results: Results, paper: Published) -> dict[Setting, list[MeasuredRun]]:
    """The runs in no published table, by setting; those named after their shots are in the curves."""
    shown = {run for table in paper.tables for row in table.rows for run in results.beside(row, table)}
    for curves in shot_curves(results.runs).values():
        shown |= {run for curve in curves.values() for run in curve.values() if run.family != run.run}
    groups: dict[Setting, list[MeasuredRun]] = {}
    for run in results.runs:
        if run not in shown:
            row, episodes = run.shared, len(next(iter(run.phases.values())))
            groups.setdefault((row.data, row.split, row.shots, row.queries, episodes), []).append(run)
    return dict(sorted(groups.items()))
