"""The command line. Commands import heavy packages themselves, so that `fewtag --help` answers at once."""

import errno
import inspect
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

# set before numpy is loaded: on a busy machine the threads of small products wait for one another longer than they work
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import typer

import fewtag
from fewtag.cli import banks, cache, interop, pictures, research, server
from fewtag.cli.terminal import note, printable
from fewtag.errors import InputError

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Teach": (banks.learn, banks.define, banks.forget, banks.rename, banks.labels, banks.examples, banks.upgrade),
    "Tag": (pictures.tag, pictures.check, pictures.explain, interop.write, pictures.export),
    "Serve": (server.studio, server.serve, server.mcp),
    "Research": (research.fit, research.train, research.bench, research.draws, research.report),
    "Upkeep": (cache.cache,),
}
INTERRUPTED = 130
_RESEARCH = {"torch", "timm", "lightning_fabric", "jaxtyping", "pydantic", "scipy", "pyarrow", "matplotlib"}
"""Packages of the research extra; commands of the product that need one of them report it themselves."""
_TEACH = {command.__name__ for command in COMMANDS["Teach"]}
"""Commands that save a bank atomically at their very end."""


def make_app(only: str | None = None) -> typer.Typer:
    """The app with all commands, or with only one: building all of them takes typer longer than some commands run."""
    app = typer.Typer(
        help="Teach an image tagger new labels from one example each, without training.",
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for panel, commands in COMMANDS.items():
        for command in commands:
            if only in (None, command.__name__):
                # each paragraph becomes one line, which the terminal wraps
                text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.__doc__ or ""))
                app.command(rich_help_panel=panel, help=text)(command)
    return app


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"fewtag {fewtag.__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")]


def _common(version: Version = False) -> None: ...


def _show_warning(message: Warning | str, category: type[Warning], *_where: object, **_also: object) -> None:
    """Prints our own warnings as a sentence; those of libraries are not shown."""
    if category is UserWarning:
        note(str(message))


def main() -> None:
    """Runs the command line: bad input is one sentence and exit code 2; `tag` exits with 1 if some pictures failed."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have characters that, say, cp1252 lacks
            stream.reconfigure(errors="backslashreplace")
    named = {command.__name__ for commands in COMMANDS.values() for command in commands} & set(sys.argv[1:2])
    try:
        try:
            if "" in sys.argv[1:]:  # as a path it would be the current folder
                raise InputError("an argument is empty, perhaps a variable without a value; give it, or leave it out")
            make_app(*named)()
        finally:
            print(end="", flush=True)  # here, since an error at exit would print a traceback
    except InputError as error:
        _say(f"fewtag: {printable(str(error))}")
        raise SystemExit(2) from None
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _RESEARCH:
            raise
        _say(f'fewtag: this needs {error.name}, which is not installed; run: pip install "fewtag[research]"')
        raise SystemExit(2) from None
    except OSError as error:
        if error.filename is not None:
            _say(f"fewtag: {printable(str(error.filename))}: {error.strerror}; check the path and its permissions")
            raise SystemExit(2) from None
        if error.errno not in {errno.ENOSPC, errno.EIO, errno.EPIPE}:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still buffered
        if error.errno != errno.EPIPE:  # a reader that stopped reading is no error
            _say(f"fewtag: the output cannot be written: {error.strerror}; free some room")
        raise SystemExit(1 if error.errno == errno.EPIPE else 2) from None
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer handles Ctrl-C itself
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once, without a traceback
            _say(f"fewtag: stopped{_what_now(sys.argv[1:])}")
        raise


def _what_now(arguments: Sequence[str]) -> str:
    """The end of the message after Ctrl-C: what becomes of a command's work; empty for those that serve or write files.

    >>> _what_now(["learn", "pets.fewtag", "rex.jpg"]), _what_now(["serve", "pets.fewtag"])
    ('; nothing was changed', '')
    """
    name = arguments[0] if arguments else ""
    if name in {"train", "bench", "write"} or (name == "tag" and any(each.startswith("--out") for each in arguments)):
        return "; run the same command again, and it goes on from here"
    return "; nothing was changed" if name in {"check", "explain", "tag"} | _TEACH else ""


def _say(sentence: str) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:  # this is one of several processes that torchrun started
        from fewtag.research.bench.distributed import print_once

        print_once(sentence)
    else:
        print(sentence, file=sys.stderr)
