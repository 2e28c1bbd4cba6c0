"""The cache's command, and where the cache is."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtag.cli.options import AsJson
from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.research.features.store import Space

Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Where features and decoded pictures are kept.", show_default=False),
]


def cache_folder(named: Path | None) -> Path:
    """The one named, or the user's own."""
    return named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtag"


def cache(
    named: Cache = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all that fewtag keeps there.")] = False,
    prune: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove what was used least recently, files of up to 256MB each, until this is left: 2GB, 500MB.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read every row and drop the damaged ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what is kept of pictures seen before: features, decoded pictures, and the places that tagging looks at.

    What was used least recently goes when all together takes more than 10GB, or what FEWTAG_CACHE_LIMIT says.

    Example: fewtag cache --prune 2GB
    """
    from fewtag.research.features.room import cache_limit, format_size, make_room, parse_size
    from fewtag.research.features.room import clear as clear_all

    if sum((clear, prune is not None, check)) > 1:
        raise InputError("--clear, --prune and --check exclude each other; give one of them")
    root, limit = cache_folder(named), cache_limit()
    if root.exists() and not root.is_dir():
        raise InputError(f"--cache {root} is a file; name the folder that the cache is in")
    done: dict[str, int] = {}
    if clear:
        done = {"freed": clear_all(root)}
    elif prune is not None:
        done = {"freed": make_room(root, parse_size(prune, "--prune"))}
    elif check:
        done = {"damaged": _check(root)}
    found = contents(root)
    facts: dict[str, Any] = {"place": str(root), "limit": limit, "total": sum(row["bytes"] for row in found)}
    if as_json:
        print(json.dumps({**facts, **done, "spaces": found}, indent=2))
        return
    _show(found)
    if "freed" in done:
        typer.echo(f"{format_size(done['freed'])} freed")
    if "damaged" in done:
        typer.echo(f"{done['damaged']} damaged rows dropped" if done["damaged"] else "every row is sound")
    typer.echo(f"{root}: {format_size(facts['total'])} of at most {format_size(limit)}")


def contents(root: Path) -> list[dict[str, Any]]:
    """What lies in the cache: a row a space."""
    from fewtag.research.features.room import old_folders, pieces, space_folders
    from fewtag.research.features.store import open_space

    sizes: dict[Path, int] = {}
    used: dict[Path, float] = {}
    for piece in pieces(root):
        folder = piece.path if piece.path.is_dir() else piece.path.parent
        sizes[folder] = sizes.get(folder, 0) + piece.size
        used[folder] = max(used.get(folder, 0.0), piece.used)

    def row(folder: Path, kind: str, what: str, rows: int | None) -> dict[str, Any]:
        last = datetime.fromtimestamp(used[folder]).isoformat(" ", "seconds") if used.get(folder) else None
        facts = {"folder": str(folder.relative_to(root)), "kind": kind, "what": what, "rows": rows}
        return facts | {"bytes": sizes.get(folder, 0), "used": last}

    found = []
    for folder in space_folders(root):
        space = open_space(folder)
        known = ("damaged", "its description cannot be read", None)
        found.append(row(folder, *(known if space is None else (space.about.kind, space.about.what, len(space)))))
    return found + [row(folder, "old format", "of an older fewtag, not used", None) for folder in old_folders(root)]


def _check(root: Path) -> int:
    """How many damaged rows were dropped."""
    from fewtag.cli.terminal import Bars
    from fewtag.research.features.room import space_folders
    from fewtag.research.features.store import open_space

    spaces: list[Space] = [space for folder in space_folders(root) if (space := open_space(folder)) is not None]
    with Bars() as bars:
        bars.start("checking", sum(len(space) for space in spaces))
        return sum(space.check(bars.advance) for space in spaces)


def _show(found: list[dict[str, Any]]) -> None:
    from fewtag.cli.terminal import show
    from fewtag.research.features.room import format_size

    rows = {
        row["folder"]: {
            "kind": row["kind"],
            "what": row["what"],
            "rows": row["rows"],
            "size": format_size(row["bytes"]),
            "used": row["used"],
        }
        for row in found
    }
    show(rows, as_json=False, title="what is kept" if rows else "nothing is kept yet")
