"""The command line. Heavy imports wait inside the commands, so that `fewtag --help` answers at once."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from fewtag import __version__
from fewtag.apps import cache, export, research, tagging
from fewtag.errors import InputError

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Tagging": (
        tagging.learn,
        tagging.define,
        tagging.forget,
        tagging.labels,
        tagging.tag,
        tagging.explain,
        export.export,
    ),
    "Research": (research.train, research.bench, research.draws, research.report),
    "Upkeep": (cache.cache,),
}

app = typer.Typer(
    help="Teach an image tagger new labels from one example each, without training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"fewtag {__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")]


@app.callback()
def _common(version: Version = False) -> None: ...


def main() -> None:
    """Bad input is one sentence and exit code 2, never a traceback; `tag` exits with 1 if some pictures failed."""
    try:
        app()
    except InputError as error:
        _say(f"fewtag: {error}")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _say(sentence: str) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one of several processes that torchrun started
        from fewtag.research.bench.distributed import print_once

        print_once(sentence)
    else:
        print(sentence, file=sys.stderr)
