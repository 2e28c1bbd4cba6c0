"""What `learn`, `check` and `write` read: tables of pictures and labels, label folders, or pictures of one label."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fewtag.errors import InputError
from fewtag.pictures import tables
from fewtag.pictures.files import Picture, is_image_name, walk
from fewtag.pictures.tables import ABSENT, COLUMNS, NOT, split_labels
from fewtag.tagger.bank import label_name
from fewtag.tagger.stream import Tagged
from fewtag.tagging.parquet import read_records
from fewtag.tagging.sources import is_url
from fewtag.tagging.tables import picture_mark, picture_name, read_record

CELLS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TABLES = (*CELLS, ".jsonl", ".parquet")


class Shown(NamedTuple):
    """A picture, the labels it shows and those that it does not show."""

    picture: Picture
    labels: frozenset[str]
    absent: frozenset[str] = frozenset()
    guessed: bool = False
    """By `tag`, in a table that nobody has changed in this row."""
    taken_out: frozenset[str] = frozenset()
    """Tags that `tag` had written there, and that are gone."""


def read_examples(
    sources: Sequence[Path],
    labels: Sequence[str] = (),
    root: Path | None = None,
    *,
    absent: Sequence[str] = (),
    complete: bool = False,
) -> list[Shown]:
    """With `labels` or `absent` the sources are pictures, or folders of them, that show these or do not; else a table
    or label folders. Rows without any label are left out, unless what is said is `complete`."""
    for source in sources:
        if not source.exists():
            raise InputError(f"there are no examples {source}; give pictures with --label, a CSV or a folder per label")
    if labels or absent:
        names, missing = (frozenset(clean_label(label) for label in some) for some in (labels, absent))
        return [Shown(picture, names, missing) for source in sources for picture in _pictures(source)]
    shown: list[Shown] = []
    for source in sources:
        if source.is_dir():
            shown += read_label_folders(source)
        elif is_image_name(source.name):
            raise InputError(f"{source} is a picture, and nothing says what it shows; add --label NAME")
        else:
            shown += read_table(source, root, complete=complete)
    return shown


def clean_label(label: str) -> str:
    """A label's name as it is kept; refuses what looks like several."""
    name = label_name(label)
    if re.search(r"\S,\S", name):
        raise InputError(f'label {name!r} contains a comma; several labels are joined by ";", as in "dog;sofa"')
    return name


def read_label_folders(folder: Path) -> list[Shown]:
    """A folder per label: "dog/1.jpg" and "dog/2021/2.jpg" show "dog"."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if loose := [entry.name for entry in entries if entry.is_file() and is_image_name(entry.name)]:
        raise InputError(
            f"{len(loose)} images lie in {folder} itself, the first is {loose[0]!r}; move them into a label's folder, "
            "or say with --label what all of them show"
        )
    named = [entry for entry in entries if entry.is_dir()]
    if not named:
        raise InputError(f"{folder} holds no label's folder; make one folder for each label and put its images there")
    shown = []
    for entry in named:
        pictures = _pictures(entry)
        if not pictures:
            raise InputError(f"label {entry.name!r} has no image: {entry} holds none; add one or remove the folder")
        shown += [Shown(picture, frozenset([clean_label(entry.name)])) for picture in pictures]
    return shown


def _pictures(source: Path) -> list[Picture]:
    """A folder's pictures, sub-folders too, or the one."""
    if not source.is_dir():
        return [Picture(source, name=str(source))]
    # one that is not read for its kind is taken too, so that it is refused by name rather than left out
    return [Picture(found.path, name=str(found.path)) for found in walk(source)]


def read_table(path: Path, root: Path | None = None, *, complete: bool = False) -> list[Shown]:
    """A table with the columns image, labels and, if need be, absent; one that `tag` wrote, too, with its tags.

    Paths are relative to `root`, or else to the folder that was tagged (several: where `tag` was run), or else to the
    table. Of a picture without labels nothing is known, and it is left out, unless the table is `complete` or `tag` had
    written some there.
    """
    place, guesses, shown = root or tagged_folder(path) or path.parent, _read_guesses(path), []
    for row in read_rows(path):
        if is_url(row.image):
            raise InputError(f"{path} line {row.line} names an address, {row.image!r}; download the picture first")
        name = picture_name(row.image)
        labels, absent = (frozenset(map(clean_label, some)) for some in (row.labels, row.absent))
        if both := sorted(labels & absent):
            raise InputError(
                f"{path} line {row.line} says both that {name!r} shows {both[0]!r} and that it does not; choose"
            )
        guess = guesses.get(picture_mark(name))
        spelt = {label.casefold() for label in labels}  # another case is another spelling, no refusal
        taken_out = frozenset(each for each in (guess or frozenset()) - labels - absent if each.casefold() not in spelt)
        if labels or absent or taken_out or complete:
            guessed = not absent and guess == labels
            shown.append(Shown(Picture(place / name, name=str(place / name)), labels, absent, guessed, taken_out))
    if not shown:
        raise InputError(f"no row of {path} has a label; fill in the column `labels`")
    return shown


def _read_guesses(table: Path) -> dict[str, frozenset[str]]:
    """The tags that `tag` wrote into this table, by `picture_mark`: whatever program saved it since, they are known."""
    record = read_record(table)
    try:
        labels, rows = list(map(str, record["labels"])), str(record["rows"]).split()
        found = (row.partition(":")[::2] for row in rows)
        return {mark: frozenset(labels[int(each)] for each in tags.split(".") if each) for mark, tags in found}
    except (LookupError, TypeError, ValueError):
        return {}


def tagged_folder(table: Path) -> Path | None:
    """Of a table that `tag` wrote, the folder that its pictures' names are relative to; None where it is gone."""
    record = read_record(table)
    try:
        sources = record["source"]
        given = str(sources[0] if len(sources) == 1 else record["cwd"])
    except (LookupError, TypeError):
        return None
    where = Path(given)
    return None if is_url(given) else where if where.is_dir() else where.parent if where.is_file() else None


class Row(NamedTuple):
    """A table's line: which picture, what it is said to show and not to, and with which probabilities."""

    line: int
    image: str
    labels: list[str]
    """In their order, which in a table of tags is the likeliest first; each once."""
    absent: list[str]
    """Those with "!" before them, and those in a column of their own."""
    scores: dict[str, float]

    @classmethod
    def of(cls, line: int, image: str, named: Iterable[str], absent: Iterable[str], scores: dict[str, float]) -> "Row":
        each_once = dict.fromkeys(named)
        refused = [name.removeprefix(NOT) for name in each_once if name.startswith(NOT)]
        return cls(line, image, [name for name in each_once if not name.startswith(NOT)], [*refused, *absent], scores)


def read_rows(path: Path) -> Iterator[Row]:
    """Of a table in whatever form; refuses a row without a picture, and a picture with two rows."""
    lines: dict[str, int] = {}
    for row in _read_cells(path) if path.name.lower().endswith(CELLS) else _read_facts(path):
        if not row.image:
            raise InputError(f"{path} line {row.line} names no image; fill in the column `image` or remove the line")
        name = picture_name(row.image)
        if (before := lines.setdefault(name, row.line)) != row.line:
            raise InputError(f"{path} lists image {name!r} twice, in lines {before} and {row.line}; join the two")
        yield row


def read_tagged(path: Path, threshold: float | None = None) -> list[Tagged]:
    """The rows of a table that `tag` wrote, or of one with the columns image and labels.

    With a threshold tags are what reaches it, but a person's word comes first: what was put in stays, and neither what
    was taken out nor a tag with "!" before it comes back.
    """
    rows = list(read_rows(path))
    scored = _scored(path, rows)
    if threshold is not None and not scored:
        raise InputError(f"{path} has no probabilities to compare with; tag with --scores, or leave --threshold out")
    guesses, found = _read_guesses(path), []
    for row in rows:
        refused = set(row.absent)
        tags = [tag for tag in row.labels if tag not in refused]
        scores = {label: score for label, score in row.scores.items() if label in scored}
        if threshold is not None:
            guess = guesses.get(picture_mark(picture_name(row.image)), frozenset(tags))
            own = [tag for tag in tags if tag not in guess or tag not in scores]
            refused |= guess - set(tags)
            over = [label for label, score in scores.items() if score >= threshold and label not in refused]
            tags = list(dict.fromkeys(over + own))
        found.append(Tagged(row.image, tuple(tags), scores))
    return found


def _scored(path: Path, rows: Sequence[Row]) -> set[str]:
    """The labels with probabilities: of all columns of numbers those that `tag` wrote, or could have written."""
    known = read_record(path).get("labels")
    if isinstance(known, list):
        return {label for row in rows for label in row.scores} & set(map(str, known))
    impossible = {label for row in rows for label, score in row.scores.items() if not 0 <= score <= 1}
    return {label for row in rows for label in row.scores} - impossible


def _read_facts(path: Path) -> Iterator[Row]:
    """Of JSON lines or Parquet."""
    if not path.name.lower().endswith(TABLES):
        raise InputError(f"the table {path} ends in none of {', '.join(TABLES)}; rename it")
    if path.suffix.lower() == ".parquet":
        facts: list[Any] = read_records(str(path))
    else:
        try:
            facts = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the table {path} ({error}); check the path") from error
    for number, each in enumerate(facts, 1):
        if isinstance(each, str) and not each.strip():
            continue
        try:
            row = json.loads(each) if isinstance(each, str) else each
            image = next(row[name] for name in COLUMNS["image"] if row.get(name))
            labels = next((row[name] for name in COLUMNS["labels"] if name in row), None)
            named, absent = (
                split_labels(path, number, some) if isinstance(some, str) else [*map(str, some or ())]
                for some in (labels, row.get(ABSENT))
            )
            scores = {str(label): float(score) for label, score in dict(row.get("scores") or {}).items()}
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise InputError(f"{path} line {number} is no row with image and tags; mend or remove it") from error
        yield Row.of(number, str(image), named, absent, scores)


def _read_cells(path: Path) -> Iterator[Row]:
    """Of CSV and TSV."""
    for line, cells in tables.read_cells(path):
        named, absent = (split_labels(path, line, cells.pop(key, "")) for key in ("labels", ABSENT))
        image, scores = cells.pop("image").strip(), {}
        for name, cell in cells.items():
            with suppress(ValueError):  # the columns that are probabilities
                scores[name] = float(cell)
        yield Row.of(line, image, named, absent, scores)
