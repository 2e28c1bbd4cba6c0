"""`fewtag export`: a bank for other runtimes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fewtag.cli.options import AsJson, Bank
from fewtag.errors import InputError


def export(
    bank: Bank,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where graph and labels go; other files stay.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Also a graph of a quarter the size, slightly less exact.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="PICTURES", help="A folder or a picture to compare on, beside random pixels."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a bank as an ONNX graph and its labels, to tag without fewtag: tagger.onnx and labels.npz.

    The graph is checked against the tagger, and refused if a probability differs by more than 0.001.

    Labels are data: after learning more of them, export again, and only labels.npz changes.

    Example: fewtag export pets.fewtag pets-onnx/ --check photos/
    """
    from fewtag.cli.banks import open_bank
    from fewtag.cli.terminal import Bars
    from fewtag.tagger.export import GRAPH, INT8, LABELS
    from fewtag.tagger.export import export as export_tagger
    from fewtag.tagging.sources import open_source

    if folder.is_file():
        raise InputError(f"{folder} is a file; name a folder to export to")
    tagger = open_bank(bank)
    compared = [] if check is None else [entry.item().image for entry in open_source([str(check)]).entries]
    with Bars() as bars:
        if compared:
            bars.start("comparing", len(compared))
        done = export_tagger(tagger, folder, int8=int8, pictures=compared, advance=bars.advance)
    if as_json:
        print(json.dumps({"bank": str(bank), "folder": str(folder), **asdict(done)}))
        return
    fate = "of the same model, kept as it is" if done.kept else "written"
    seen = f"random pixels and {done.pictures} pictures" if done.pictures else "random pixels"
    typer.echo(f"{folder / LABELS}: {done.labels} labels, {done.sizes[LABELS] / 1e3:.1f} KB, written")
    typer.echo(
        f"{folder / GRAPH}: {done.sizes[GRAPH] / 1e6:.1f} MB, {fate}; "
        f"greatest difference {done.difference:.1g} on {seen}"
    )
    if done.int8_difference is not None:
        typer.echo(
            f"{folder / INT8}: {done.sizes[INT8] / 1e6:.1f} MB, written; "
            f"greatest difference {done.int8_difference:.1g}, which int8 is expected to make"
        )
