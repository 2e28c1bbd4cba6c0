"""What commands share: options, words, progress bars and tables; rich is imported where a command shows some."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtag.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Task

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="The file of learnt labels, such as pets.fewtag.")]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="A label's name.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="For a new bank: default, accurate, coco52 or the path of a model.", show_default=False
    ),
]
WordSource = Annotated[
    str | None, typer.Option("--words", metavar="FILE", help="Word vectors of your own: GloVe, fastText, word2vec.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
DataFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder that the recipe's paths are relative to (the recipe's own).")
]
Root = Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that a table's paths are relative to.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out pictures that cannot be read, and count them.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")]


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """Refuses the first of these options that was given; `why` says what it is for."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} {why}")


def printable(text: str) -> str:
    """Without what would steer the terminal.

    >>> printable("red \\x1b[31mdog")
    'red �[31mdog'
    """
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def check_page(page: Path, out: str | None = None) -> None:
    """Refuses a --page that would take the place of what is no page: a picture, a bank, the table itself."""
    if page.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"--page {page} ends in neither .html nor .htm; name it page.html, for example")
    if out is not None and Path(out).absolute() == page.absolute():
        raise InputError(f"--out and --page are both {page}; name another page")


Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Folder of the feature cache.", show_default=False),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither look in the cache nor keep anything.")]

LOG_EVERY = 60.0
"""Seconds between the lines of a log file, in which no bar can be drawn over."""
HEADLINES = ("macro_ap", "micro_ap", "macro_f1", "micro_f1")


class Bars:
    """A bar for each piece of work, on standard error; shows the rate, the loss and the validation score.

    Where that is no terminal but a log file, a line a minute says how far the work has come.
    """

    def __init__(self, *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
        from rich.text import Text

        class Rate(ProgressColumn):
            """How many episodes or pictures a second."""

            def render(self, task: "Task") -> Text:
                speed = task.finished_speed or task.speed
                return Text(f"{speed:.1f}/s" if speed else "", style="progress.data.speed")

        self._progress = Progress(
            # in a narrow window the bar and the description give way, never the numbers
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            Rate(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            disable=not shown,
            expand=True,
        )
        self._logged = time.monotonic()

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._progress.tasks:  # else rich would print an empty line
            self._progress.stop()

    def begin(self, task: str, total: int) -> Callable[..., None]:
        """A bar for this work; what it answers is to be told of each step."""
        self._progress.start()
        bar, told = self._progress.add_task(task, total=total, facts=""), dict[str, float]()

        def advance(count: int = 1, **facts: float) -> None:
            told.update(facts)
            shown = "  ".join(f"{name} {value:.4f}" for name, value in told.items())
            self._progress.update(bar, advance=count, facts=shown)
            now, console = time.monotonic(), self._progress.console
            if not (console.is_terminal or self._progress.disable) and now - self._logged >= LOG_EVERY:
                self._logged = now
                line = f"{task}: {self._progress.tasks[bar].completed:,.0f} of {total:,}  {shown}"
                console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

        return advance


def show(found: dict[str, dict[str, Any]], *, as_json: bool, title: str) -> None:
    """Results by name on standard output: JSON for machines, a table for people."""
    if as_json:
        print(json.dumps(_without_nan(found), indent=2, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(printable(title)))  # not the table's own: that is wrapped to the table's width
    if not found:
        return
    columns = list(next(iter(found.values())))
    if "checkpoint" in columns:  # of training: few rows, long paths
        for name, row in found.items():
            facts = ", ".join(f"{key.replace('_', ' ')} {_cell(value)}" for key, value in row.items())
            console.print(Text(f"{name}: {facts}"), soft_wrap=True)
        return
    if set(HEADLINES) <= set(columns):
        columns = list(HEADLINES)  # the other metrics are in the rows and in --json
    table = Table()
    table.add_column("", overflow="fold")
    for column in columns:
        words = any(isinstance(row[column], str) for row in found.values())
        heading = column.replace("_", "-").replace("ap", "AP").replace("f1", "F1")
        table.add_column(heading, overflow="fold", no_wrap=not words)
    for name, row in found.items():
        # as text: a label may contain what rich takes for markup
        table.add_row(*(Text(printable(cell)) for cell in (name, *(_cell(row[column]) for column in columns))))
    # whatever the window's width nothing is cut; who reads a pipe has a line a row
    least, whole = console.measure(table, options=console.options.update(width=sys.maxsize))
    console.width = max(console.width, least) if console.is_terminal else whole
    console.print(table)


def tell(bank: Path, sentence: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """What was done to a bank: a line for a person, or an object for a machine."""
    typer.echo(json.dumps({"bank": str(bank), **facts}) if as_json else f"{bank}: {sentence}")


def _without_nan(value: Any) -> Any:
    """The interval over a single episode is not a number, and JSON has no word for that but null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    match value:
        case {"mean": mean, "interval": interval}:
            return f"{100 * mean:.1f} ± {100 * interval:.1f}"
        case float():
            return f"{round(value, 3):g}" if abs(value) <= 1 else f"{value:.4g}"
        case None:
            return "–"
        case _:
            return str(value)
