"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder that the recipe's paths are relative to (its own).")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable pictures out and count them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
