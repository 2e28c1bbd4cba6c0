"""The command that looks after the caches, of features and of thumbnails."""

import json
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer

from fewtag.cli.terminal import AsJson, Bars, Cache, show
from fewtag.errors import InputError


def cache(
    named: Cache = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all that fewtag keeps there.")] = False,
    prune: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove what was used least recently until this is left: 2GB, 500MB."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read every row and drop the damaged ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what is kept of pictures seen before: features, decoded pictures, the places that tagging looks at, and the
    studio's thumbnails.

    What was used least recently goes when it takes more than 10GB, or what FEWTAG_CACHE_LIMIT says; thumbnails have 2GB
    of their own.

    Example: fewtag cache --prune 2GB
    """
    from fewtag.cache import PRIVATE_LIMIT
    from fewtag.cache_upkeep import CacheUpkeep
    from fewtag.files import cache_limit, format_size, parse_size, user_cache_folder

    if sum((clear, prune is not None, check)) > 1:
        raise InputError("--clear, --prune and --check exclude each other; give one of them")
    folder = named or user_cache_folder()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--cache {folder} is a file; name the folder that the cache is in")
    with closing(CacheUpkeep(folder)) as opened:
        done: dict[str, int] = {}
        if clear:
            done = {"freed": opened.clear()}
        elif prune is not None:
            done = {"freed": opened.prune(parse_size(prune, "--prune"))}
        elif check:
            with Bars() as bars:
                done = {"damaged": opened.check(bars.begin("checking", len(opened)))}
        spaces = [
            space._asdict() | {"used": datetime.fromtimestamp(space.used).isoformat(" ", "seconds")}
            for space in opened.contents()
        ]
        features, thumbnails = opened.sizes
    if as_json:
        facts = {"place": str(folder), "limit": cache_limit(), "total": features + thumbnails}
        print(json.dumps({**facts, **done, "spaces": spaces}, indent=2))
        return
    rows = {str(number): space | {"bytes": format_size(space["bytes"])} for number, space in enumerate(spaces, 1)}
    show(rows, as_json=False, title="what is kept" if rows else "nothing is kept yet")
    if "freed" in done:
        typer.echo(f"{format_size(done['freed'])} freed")
    if "damaged" in done:
        typer.echo(f"{done['damaged']} damaged rows dropped" if done["damaged"] else "every row is sound")
    typer.echo(f"{folder}: {format_size(features)} of at most {format_size(cache_limit())}")
    if thumbnails:
        typer.echo(f"thumbnails: {format_size(thumbnails)} of at most {format_size(PRIVATE_LIMIT)}")
