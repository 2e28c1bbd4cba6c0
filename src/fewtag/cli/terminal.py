"""Options, messages, progress bars and tables that commands share; rich is imported only where it is used."""

import errno
import json
import math
import os
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
        "--model",
        help="For a new bank: default, accurate, accurate-336, coco52 or the path of a model.",
        show_default=False,
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
    """Refuses the first of these options that was given; `why` completes the sentence."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} {why}")


def printable(text: str) -> str:
    """Text without control characters, which could steer the terminal.

    >>> printable("red \\x1b[31mdog")
    'red �[31mdog'
    """
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def note(sentence: str) -> None:
    """A sentence beside the result, on standard error."""
    print(f"fewtag: {printable(sentence)}", file=sys.stderr)


def check_page(page: Path, out: str | None = None) -> None:
    """Refuses a --page that would replace something other than a page: a picture, a bank, the table itself."""
    if page.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"--page {page} ends in neither .html nor .htm; name it page.html, for example")
    if out is not None and Path(out).absolute() == page.absolute():
        raise InputError(f"--out and --page are both {page}; name another page")
    if page.exists():
        from fewtag.tagging.page import is_page

        if not is_page(page):
            raise InputError(f"--page {page} exists and is no page of fewtag's; name another, or delete it first")


Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Folder of the feature cache.", show_default=False),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither look in the cache nor keep anything.")]

LOG_EVERY = 60.0
"""Seconds between progress lines in a log file, where a bar cannot be redrawn."""
HEADLINES = ("macro_ap", "micro_ap", "macro_f1", "micro_f1")


class Bars:
    """A progress bar for each task, on standard error, with the rate, the loss and the validation score.

    If standard error is no terminal but a log file, a line per minute says how far the work has come.
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
            """Episodes or pictures per second."""

            def render(self, task: "Task") -> Text:
                speed = task.finished_speed or task.speed
                return Text(f"{speed:.1f}/s" if speed else "", style="progress.data.speed")

        self._progress = Progress(
            # in a narrow window the bar and the description shrink, never the numbers
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
        if self._progress.tasks:  # without a task rich would print an empty line
            self._progress.stop()

    def begin(self, task: str, total: int) -> Callable[..., None]:
        """Adds a bar for a task; returns the function to call with the progress of each step."""
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
    console.print(Text(printable(title)))  # not as the table's own title, which is wrapped to the table's width
    if not found:
        return
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    if "checkpoint" in columns:  # from training: few rows with long paths
        for name, row in found.items():
            facts = ", ".join(f"{key.replace('_', ' ')} {_cell(value)}" for key, value in row.items())
            console.print(Text(f"{name}: {facts}"), soft_wrap=True)
        return
    if set(HEADLINES) <= set(columns):
        columns = list(HEADLINES)  # the other metrics are in the rows and in --json
    table = Table()
    table.add_column("", overflow="fold")
    for column in columns:
        words = any(isinstance(row.get(column), str) for row in found.values())
        heading = column.replace("_", "-").replace("ap", "AP").replace("f1", "F1")
        table.add_column(heading, overflow="fold", no_wrap=not words)
    for name, row in found.items():
        # as Text, since a label may contain what rich takes for markup
        table.add_row(*(Text(printable(cell)) for cell in (name, *(_cell(row.get(column)) for column in columns))))
    # nothing is cut off, however narrow the window; in a pipe each row is one line
    least, whole = console.measure(table, options=console.options.update(width=sys.maxsize))
    console.width = max(console.width, least) if console.is_terminal else whole
    console.print(table)


def say_done(line: str, done: str) -> None:
    """Prints a line at the end of work; if that cannot be written, standard error says what is done all the same."""
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still buffered
        note(f"{done}, but the output cannot be written: {error.strerror}; free some room")
        raise typer.Exit(1) from None  # 2 would say that nothing was changed


def tell(bank: Path, sentence: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Reports what was done to a bank, which is saved: a line for a person, or an object for a machine."""
    line = json.dumps({"bank": str(bank), **facts}) if as_json else printable(f"{bank}: {sentence}")
    say_done(line, f"{bank} is saved")


def _without_nan(value: Any) -> Any:
    """Replaces numbers that are not finite by None, since JSON has no NaN, such as the interval of a single episode."""
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
