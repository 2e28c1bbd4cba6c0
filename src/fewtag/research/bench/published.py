"""The paper's tables as it printed them, each system with the runs that stand beside it."""

from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, model_validator

from fewtag.research.bench.metrics import METRICS

PAPER_MODEL = "the paper's model"


class PublishedSystem(BaseModel):
    """A line of a table; one without numbers is a run of ours that the table is the place for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    numbers: list[float]
    runs: list[str]
    """`recipe/run` of what stands beside it."""


class PublishedTable(BaseModel):
    """A table of the paper, in percent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    data: str
    """The split that it is about."""
    shots: int = 1
    note: str = ""
    against: str = ""
    """The run whose variants the table is about; a table without one compares systems."""
    metrics: list[str]
    rows: list[PublishedSystem]

    @model_validator(mode="after")
    def have_a_number_for_each_metric(self) -> "PublishedTable":
        assert set(self.metrics) <= set(METRICS), self.name
        assert all(len(row.numbers) in (0, len(self.metrics)) for row in self.rows), self.name
        return self

    def number(self, system: PublishedSystem, metric: str) -> float | None:
        """The paper's number in percent, if it has one."""
        return dict(zip(self.metrics, system.numbers, strict=False)).get(metric)


class Published(BaseModel):
    """All tables of the paper, in its order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    tables: list[PublishedTable]

    def comparison(self, split: str) -> PublishedTable | None:
        """The table that compares systems on a data set from one support image a label, if the paper has one."""
        tables = [table for table in self.tables if (table.data, table.shots, table.against) == (split, 1, "")]
        return tables[0] if tables else None


@cache
def published() -> Published:
    """The numbers that come with the package."""
    return Published.model_validate_json(files("fewtag.research.bench").joinpath("published.json").read_text())
