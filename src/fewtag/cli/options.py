"""Options that several commands share, and what they say in the same words."""

from pathlib import Path
from typing import Annotated

import typer

from fewtag.errors import InputError

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


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "picture"), plural(3, "picture")
    ('1 picture', '3 pictures')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    typer.Option("--cache", metavar="DIR", help="Where features and decoded pictures are kept.", show_default=False),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither look in the cache nor keep anything.")]
