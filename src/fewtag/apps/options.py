"""Options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fewtag.errors import InputError, nearest

DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder that the recipe's paths are relative to (its own).")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable pictures out and count them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

ENGINES = ("local", "ray")


def check_engine(engine: str, source: str, *, of_ray: Mapping[str, object], of_local: Mapping[str, object]) -> None:
    """Refuses what the engine cannot do, with the command that can."""
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}; {nearest(engine, ENGINES)}")
    for other, options in (("ray", of_ray), ("local", of_local)):
        for option, value in options.items():
            if value is not None and engine != other:
                raise InputError(f"{option} is an option of --engine {other}; add that, or leave it out")
    if engine == "ray":
        return
    if "://" in source or source.lower().endswith(".parquet"):
        raise InputError(f"{source} is no folder of this machine; tag it with --engine ray")
