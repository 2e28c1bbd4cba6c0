"""The command that assistants start: a project over the Model Context Protocol."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fewtag.cli.terminal import Cache, Device, ModelName, WordSource
from fewtag.errors import InputError


def mcp(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder, new or known.")],
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURES", help="Folders of pictures to add to it.")
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let the tool `write` write; without it, it only tells what it would.")
    ] = False,
    model: ModelName = None,
    words: WordSource = None,
    device: Device = "auto",
    cache: Cache = None,
) -> None:
    """Offer a project to an assistant, over the Model Context Protocol on standard input and output.

    An assistant's program starts it by itself. Its tools: labels, search, suggest, answer, tag, write. Nothing is sent
    to anyone but that program.

    Example: fewtag mcp holidays ~/Pictures/2024
    """
    if find_spec("mcp") is None:
        raise InputError('fewtag mcp needs a package more; install it with: pip install "fewtag[mcp]"')
    if not project.is_dir() and not pictures:
        raise InputError(f"there is no project {project}; name folders of pictures, and one is made of them")
    from fewtag.cli.server import FILE, _check_new
    from fewtag.server.mcp import create_server
    from fewtag.studio.studio import Studio

    if project.is_dir() and not (project / FILE).exists():
        _check_new(project, pictures or [])
    with Studio.open(project, pictures or (), model=model, words=words, device=device, cache=cache) as opened:
        create_server(opened, allow_write=allow_write).run("stdio")
