"""The command that writes tags as XMP, where digiKam, Lightroom, darktable and Immich look for them."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtag.cli.terminal import AsJson, Bars, Device, note, say_done
from fewtag.errors import InputError, plural

if TYPE_CHECKING:
    from fewtag.interop.write import Change, Report
    from fewtag.interop.xmp import Wanted

SHOWN_FAILURES = 20


def write(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="BANK|PROJECT|TABLE",
            help="A bank, to tag with first; a studio's project; or a table that `tag` wrote.",
        ),
    ],
    photos: Annotated[
        Path | None,
        typer.Argument(metavar="PHOTOS", help="The folder that was tagged, or one picture.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would change.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what fewtag wrote beside PHOTOS; with --embed, into them.")
    ] = False,
    embed: Annotated[
        bool, typer.Option("--embed", help="Into the pictures, by exiftool, rather than beside them.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Write a label from this probability on.", show_default="each label's own"),
    ] = None,
    confirmed: Annotated[
        bool,
        typer.Option("--confirmed", help="Only what a person said, no guesses: of a bank's examples, or in a project."),
    ] = False,
    prefix: Annotated[
        str, typer.Option(metavar="BRANCH", help="Hang the labels under this branch of the tag tree.")
    ] = "",
    adobe_names: Annotated[
        bool, typer.Option("--adobe-names", help="New sidecars are called photo.xmp, not photo.jpg.xmp.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write tags where photo programs read them: XMP sidecars beside the pictures, or with --embed the pictures.

    Tags go into dc:subject, lr:hierarchicalSubject and digiKam:TagsList; a label called "birds/heron" is a heron among
    the birds. Your own tags stay as they are, and so does all else in a sidecar. What fewtag wrote is noted in the same
    file: --undo takes back just that, a later `write` replaces it, and a tag that you deleted is not written again.
    Pictures that could not be dealt with are listed, and the exit code is 1.

    Example: fewtag write tags.csv photos/ --dry-run

    Example: fewtag write pets.fewtag photos/ --threshold 0.8

    Example: fewtag write my-project photos/ --confirmed

    Example: fewtag write photos/ --undo
    """
    from fewtag.interop.write import Options, write_tags
    from fewtag.interop.write import undo as take_back

    if photos is None:
        if not undo:
            raise InputError(f"say which pictures: fewtag write {source} PHOTOS")
        photos = source
    if not photos.exists():
        raise InputError(f"there is no folder or picture {photos}; check the path")
    tell = _print_diff if dry_run and not as_json else lambda _: None
    with Bars(shown=not dry_run) as bars:
        options = Options(embed, adobe_names, dry_run, tell, bars.begin)
        if undo:
            report = take_back(photos, options)
            if not report.pictures and not embed:
                note(f"no sidecar of {photos} is fewtag's; --embed looks into the pictures")
        else:
            report = write_tags(photos, *_rows(source, photos, threshold, prefix, device, confirmed=confirmed), options)
    _say(report, photos, as_json=as_json)
    if report.failures:
        raise typer.Exit(1)


def _print_diff(change: "Change") -> None:
    if change.changes:
        print("".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in change.diff()), end="")


def _rows(
    source: Path, photos: Path, threshold: float | None, prefix: str, device: str, *, confirmed: bool
) -> "tuple[Iterator[tuple[str, Path, Wanted | InputError]], int]":
    """The tags wanted for each picture, and the number of pictures."""
    from fewtag.interop.xmp import Wanted
    from fewtag.tagger.bank import check_threshold
    from fewtag.tagging.examples import TABLES

    check_threshold(threshold)
    if confirmed and threshold is not None:
        raise InputError("--confirmed writes no guesses, and --threshold is for those; leave one of them out")
    former: Iterable[str] = ()
    if source.is_dir():
        (labels, rows, total), former = _of_project(source, photos, threshold, device, confirmed=confirmed)
    elif source.name.lower().endswith(TABLES):
        if confirmed:
            raise InputError("--confirmed needs a bank or a project: a table does not say who confirmed what")
        labels, rows, total = _of_table(source, photos, threshold)
    else:
        of_bank = _of_examples(source, photos) if confirmed else _of_bank(source, photos, threshold, device)
        labels, rows, total = of_bank
    wanted = Wanted.among(labels, former, prefix)
    return ((name, path, each if isinstance(each, InputError) else wanted(each)) for name, path, each in rows), total


Rows = tuple[Sequence[str], Iterable[tuple[str, Path, "Sequence[str] | InputError"]], int]
"""All labels under consideration; names, pictures and their labels, or why there are none; the number of pictures."""


def _of_table(source: Path, photos: Path, threshold: float | None) -> Rows:
    from fewtag.tagging.examples import name_in, read_tagged, tagged_folder
    from fewtag.tagging.tables import read_record

    table, known = read_tagged(source, threshold), read_record(source).get("labels")
    asked = set(map(str, known)) if isinstance(known, list) else set()  # those of the bank, given to a picture or not
    labels = sorted(asked.union(*((*row.tags, *row.scores) for row in table)))
    alone = not photos.is_dir()
    folder = Path(os.path.normpath((photos.parent if alone else photos).absolute()))
    tags: dict[Path, tuple[str, dict[str, None]]] = {}  # by path, since a table may spell one in several ways
    for row in table:
        name = name_in(folder, row.image)
        boxed = re.fullmatch(r"(.+)#[0-9]+", name)  # a detector's box: its tags are given to the whole picture
        name = boxed[1] if boxed and not (folder / name).exists() else name
        path = Path(os.path.normpath(folder / name))
        if not alone or path == folder / photos.name:
            tags.setdefault(path, (name, {}))[1].update(dict.fromkeys(row.tags))
    if not tags:
        raise InputError(f"{source} has no row of {photos}; give the folder that was tagged")
    if not any(map(os.path.lexists, tags)):  # of several folders names are relative to where `tag` was run
        tagged = tagged_folder(source)
        was = "" if tagged is None else f", which was {tagged}"
        raise InputError(f"there is no {min(tags)}, nor another picture of {source}; give the folder of its paths{was}")
    rows: list[tuple[str, Path, Sequence[str] | InputError]] = []
    for path, (name, found) in tags.items():
        outside = InputError(f"{name} lies outside of {folder}; give the folder that was tagged")
        rows.append((name, path, tuple(found) if path.is_relative_to(folder) else outside))
    return labels, rows, len(rows)


def _of_project(
    source: Path, photos: Path, threshold: float | None, device: str, *, confirmed: bool
) -> tuple[Rows, set[str]]:
    """A studio's answers and, unless only `confirmed` ones are wanted, its bank's tags, for pictures below PHOTOS.

    Also returns all names that its labels ever had.
    """
    from fewtag.studio.project import FILE
    from fewtag.studio.studio import Studio
    from fewtag.tagging.tables import MANIFEST

    if (source / MANIFEST).is_file():
        raise InputError(f"{source} is a folder of parts that `tag` wrote; tag into one table: --out tags.parquet")
    if not (source / FILE).is_file():
        raise InputError(f"{source} is no project of the studio; give a bank, a project or a table, then PHOTOS")
    with Studio.open(source, device=device) as studio:
        if not studio.wait(2.0):
            note(f"reading the pictures of {source}, which the cache does not have")
            studio.wait()
        found = studio.tags_by_file(confirmed_only=confirmed)
        labels, former = [label.name for label in studio.labels()], studio.names_ever
    root = photos.resolve()
    rows: list[tuple[str, Path, Sequence[str] | InputError]] = []
    for path, row in found.items():
        if path.is_relative_to(root):
            # a probability of 0 is a person's 'no'
            over = row.tags if threshold is None else [tag for tag, p in row.scores.items() if p and p >= threshold]
            rows.append((str(path.relative_to(root.parent if root.is_file() else root)), path, over))
    if not rows:
        raise InputError(f"the project {source} has no picture under {photos}; give a folder of its own")
    return (labels, rows, len(rows)), former


def _of_bank(source: Path, photos: Path, threshold: float | None, device: str) -> Rows:
    from fewtag.files import user_cache_folder
    from fewtag.tagger.bank_file import read_header
    from fewtag.tagging.run import Options, tag_rows
    from fewtag.tagging.sources import open_source

    labels = [label["name"] for label in read_header(source)["labels"]]
    options = Options(threshold=threshold, device=device, cache=user_cache_folder())
    folder = photos if photos.is_dir() else photos.parent
    pictures = open_source([str(photos)])

    def rows() -> Iterator[tuple[str, Path, Sequence[str] | InputError]]:
        for item, row in tag_rows(source, pictures, options):
            yield row.image, folder / item.name, InputError(row.failure) if row.failure else row.tags

    return labels, rows(), len(pictures)


def _of_examples(source: Path, photos: Path) -> Rows:
    """What a person said about the pictures that the bank was taught with."""
    from fewtag.pictures.decode import pixel_digest
    from fewtag.pictures.files import Picture, walk
    from fewtag.tagger.bank_file import read_bank

    bank = read_bank(source)[1]
    found = [(each.name, each.path) for each in walk(photos) if not each.problem] if photos.is_dir() else []
    pictures = found or [(photos.name, photos)]

    def rows() -> Iterator[tuple[str, Path, Sequence[str] | InputError]]:
        for name, path in pictures:
            try:
                example = bank.examples.get(pixel_digest(Picture(path).open()))
            except InputError as error:
                yield name, path, error
                continue
            yield name, path, () if example is None else sorted(example.labels)

    return list(bank.definitions), rows(), len(pictures)


def _say(report: "Report", photos: Path, *, as_json: bool) -> None:
    if as_json:
        say_done(json.dumps({"photos": str(photos), **asdict(report)}), "the work is done")
        return
    done = [f"{plural(report.written, 'file')} {'would be ' if report.dry_run else ''}written"]
    done += [f"{report.removed} removed"] if report.removed else []
    line = f"{photos}: {', '.join(done)}, {report.unchanged} unchanged"
    if report.dry_run:
        typer.echo(line, err=True)
    else:
        say_done(line, "the work is done")
    for failure in list(report.failures.values())[:SHOWN_FAILURES]:
        note(failure)
    if len(report.failures) > SHOWN_FAILURES:
        note(f"{len(report.failures) - SHOWN_FAILURES} more failed; --json lists them all")
