"""The command line. Heavy imports wait inside the commands, so that `fewtag --help` answers at once."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from fewtag import __version__
from fewtag.apps import cache, export, research, tagging
from fewtag.apps.processes import LEFT_ALONE, is_first, is_left_alone
from fewtag.errors import InputError, LonelyError

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


def _flags(error: InputError) -> str:
    """What the ways out of an unknown word are called here."""
    from fewtag.words.protocol import UnknownWordError

    return ': --like "lens, eye", --vector FILE or --no-words' if isinstance(error, UnknownWordError) else ""


def main() -> None:
    """Bad input is one sentence and exit code 2, never a traceback; `tag` exits with 1 if some pictures failed."""
    try:
        app()
    except InputError as error:
        if is_first() or isinstance(error, LonelyError):
            print(f"fewtag: {error}{_flags(error)}", file=sys.stderr)
        else:
            time.sleep(2)  # once one process has left the others are ended, and the first one has yet to speak
        raise SystemExit(2) from None
    except RuntimeError as error:
        if not is_left_alone(error):
            raise
        raise SystemExit(LEFT_ALONE) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
