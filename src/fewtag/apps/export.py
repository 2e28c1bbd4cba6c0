"""`fewtag export`: a bank for runtimes without torch."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtag.apps.options import AsJson
from fewtag.apps.tagging import Bank
from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.tagger.export import Exported


def export(
    bank: Bank,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where graph and labels go; other files stay.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Also a graph of a quarter the size, slightly less exact.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="PICTURES", help="A folder or a picture to compare with torch on, beside random pixels."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a bank as an ONNX graph and its labels, to tag without torch: tagger.onnx and labels.npz.

    The graph is checked against torch, and refused if a probability differs by more than 0.001.

    Labels are data: after learning more of them, export again, and only labels.npz changes.

    Example: fewtag export pets.fewtag pets-onnx/ --check photos/
    """
    from fewtag.apps.banks import open_bank
    from fewtag.apps.folders import find_pictures
    from fewtag.apps.progress import Bars
    from fewtag.tagger.export import export as export_tagger
    from fewtag.tagger.graph import check_packages

    if folder.is_file():
        raise InputError(f"{folder} is a file; name a folder to export to")
    check_packages()
    tagger = open_bank(bank)
    pictures = [] if check is None else find_pictures(check)
    with Bars() as bars:
        if pictures:
            bars.start("comparing", len(pictures))
        done = export_tagger(
            tagger,
            folder,
            int8=int8,
            pictures=[picture.path for picture in pictures],
            say=lambda sentence: print(sentence, file=sys.stderr),
            advance=bars.advance,
        )
    if as_json:
        print(json.dumps({"bank": str(bank), "folder": str(folder), **asdict(done)}))
    else:
        for line in report(folder, done):
            typer.echo(line)


def report(folder: Path, done: "Exported") -> list[str]:
    """What was written, in a few lines."""
    from fewtag.tagger.export import GRAPH, INT8, LABELS

    fate = "of the same model, kept as it is" if done.kept else "written"
    seen = f"random pixels and {done.pictures} pictures" if done.pictures else "random pixels"
    lines = [
        f"{folder / LABELS}: {done.labels} labels, {done.sizes[LABELS] / 1e3:.1f} KB, written",
        f"{folder / GRAPH}: {done.sizes[GRAPH] / 1e6:.1f} MB, {fate}; "
        f"greatest difference from torch {done.difference:.1g} on {seen}",
    ]
    if done.int8_difference is not None:
        lines.append(
            f"{folder / INT8}: {done.sizes[INT8] / 1e6:.1f} MB, written; "
            f"greatest difference {done.int8_difference:.1g}, which int8 is expected to make"
        )
    return lines
