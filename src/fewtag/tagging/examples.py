"""Reading labelled pictures for `learn`, `check` and `write`: tables, label folders, or pictures of one label."""

import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fewtag.errors import InputError, plural
from fewtag.files import digest
from fewtag.pictures import tables
from fewtag.pictures.files import Picture, is_image_name, own_entries, walk, why_unreadable
from fewtag.pictures.tables import ABSENT, COLUMNS, NOT, folded, split_labels
from fewtag.tagger.bank import path_name
from fewtag.tagger.stream import Tagged
from fewtag.tagging.parquet import read_records
from fewtag.tagging.sources import is_url, open_source
from fewtag.tagging.tables import picture_mark, picture_name, read_record

CELLS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TABLES = (*CELLS, ".jsonl", ".parquet")
SPLIT_FOLDERS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names under which data sets group the labels' folders."""


class Shown(NamedTuple):
    """A picture, the labels that it shows and those that it does not."""

    picture: Picture
    labels: frozenset[str]
    absent: frozenset[str] = frozenset()
    guessed: bool = False
    """Whether the labels are those that `tag` wrote, in a row that nobody has changed."""
    taken_out: frozenset[str] = frozenset()
    """Tags that `tag` wrote in this row and that were removed since."""


def read_examples(
    sources: Sequence[Path],
    labels: Sequence[str] = (),
    root: Path | None = None,
    *,
    absent: Sequence[str] = (),
    complete: bool = False,
) -> list[Shown]:
    """Reads pictures with their labels: with `labels` or `absent` the sources are pictures, or folders of them, that
    show or do not show these; otherwise they are tables or label folders. Rows without any label are left out, unless
    the table is `complete`."""
    for source in sources:
        if source.suffix == ".fewtag":
            raise InputError(f"{source} is a bank, which comes before the examples; change the order")
        if not source.exists():
            raise InputError(f"there is no table, folder or picture {source}; check the path")
    if labels or absent:
        if several := [label for label in (*labels, *absent) if re.search(r";|\S[,|]\S", label)]:
            raise InputError(f"{several[0]!r} looks like several labels; give each by itself: --label dog --label sofa")
        names, missing = (frozenset(clean_label(label) for label in some) for some in (labels, absent))
        return [Shown(picture, names, missing) for source in sources for picture in _pictures(source)]
    shown: list[Shown] = []
    for source in sources:
        if source.is_dir():
            shown += read_label_folders(source)
        elif is_image_name(source.name):
            raise InputError(f"{source} is a picture, and nothing says what it shows; to learn it, add --label NAME")
        else:
            shown += read_table(source, root, complete=complete)
    return shown


def missing(shown: Sequence[Shown]) -> InputError | None:
    """The error for pictures that do not exist, so that no work is spent on the others first; None if all exist."""
    gone = [each.picture.path for each in shown if not os.path.lexists(each.picture.path)]
    if not gone:
        return None
    found, others = gone[0].parent.glob("*") if gone[0].parent.is_dir() else (), len(gone) - 1
    near = [each.name for each in found if each.stem.casefold() == gone[0].stem.casefold() and is_image_name(each.name)]
    but = f", but {min(near)!r}" if near else ""
    count = (
        f", and {others} more of {plural(len(shown), 'picture')} {'is' if others == 1 else 'are'} missing"
        if others
        else ""
    )
    return InputError(f"cannot read image {gone[0]}: there is no such file{but}{count}; check the path")


def clean_label(label: str) -> str:
    """A label's name in its stored form; refuses what looks like several labels."""
    name = path_name(label)
    if found := re.search(r"\S(,|\|)\S", name):
        mark = "a comma" if found[1] == "," else '"|"'
        raise InputError(f'label {name!r} contains {mark}; several labels are joined by ";", as in "dog;sofa"')
    return name


def read_label_folders(folder: Path) -> list[Shown]:
    """A folder per label: "dog/1.jpg" and "dog/2021/2.jpg" show "dog"."""
    entries = own_entries(folder)
    if loose := [entry.name for entry in entries if entry.is_file() and is_image_name(entry.name)]:
        raise InputError(
            f"{len(loose)} images lie in {folder} itself, the first is {loose[0]!r}; move them into a label's folder, "
            "or tell `learn` with --label what all of them show"
        )
    named = [entry for entry in entries if entry.is_dir()]
    if not named:
        raise InputError(f"{folder} holds no label's folder; make one folder for each label and put its images there")
    if {each.name.lower() for each in named} <= SPLIT_FOLDERS and any(each.is_dir() for each in own_entries(named[0])):
        raise InputError(f"{folder} holds the parts of a data set; give the one to take, such as {named[0]}")
    shown = []
    for entry in named:
        pictures = _pictures(entry)
        if not pictures:
            raise InputError(f"label {entry.name!r} has no image: {entry} holds none; add one or remove the folder")
        shown += [Shown(picture, frozenset([clean_label(entry.name)])) for picture in pictures]
    return _joined(shown)


def _joined(shown: Sequence[Shown]) -> list[Shown]:
    """Merges copies of a file that lie in several labels' folders into one picture that shows all these labels."""
    sizes = Counter(each.picture.path.stat().st_size for each in shown if each.picture.path.is_file())
    found: dict[str, Shown] = {}
    for each in shown:
        path = each.picture.path
        key = str(path)
        with suppress(OSError):  # one that cannot be read is refused by name later
            key = digest(path.read_bytes()) if sizes[path.stat().st_size] > 1 else key
        before = found.get(key, each)
        found[key] = before._replace(labels=before.labels | each.labels)
    return list(found.values())


def _pictures(source: Path) -> list[Picture]:
    """The pictures of a folder and its sub-folders, or the one picture."""
    if not source.is_dir():
        return [Picture(source, name=str(source), problem=why_unreadable(str(source)) or "")]
    # pictures in a format that is not read are included, so that they are refused by name rather than left out
    return [Picture(found.path, name=str(found.path), problem=found.problem) for found in walk(source)]


def read_table(path: Path, root: Path | None = None, *, complete: bool = False) -> list[Shown]:
    """Reads a table with the columns image, labels and, optionally, absent; tables that `tag` wrote are read too.

    Paths are relative to `root`, or else to the folder that was tagged (if several were, to the folder in which `tag`
    was run), or else to the table; without `root`, those in an archive and a detector's boxes are looked for there. A
    picture without labels is left out, since nothing is known about it, unless the table is `complete` or `tag` had
    written tags there.
    """
    record = read_record(path)
    folder, guesses, shown = root or tagged_folder(path) or path.parent, _guesses(record), []
    inside = {} if root else _inside(record)
    known = record.get("labels")
    written = known if isinstance(known, list) else []  # a bank may have names that are refused in a table
    for row in read_rows(path):
        if is_url(row.image):
            raise InputError(f"{path} line {row.line} names an address, {row.image!r}; download the picture first")
        name = picture_name(row.image)
        labels, absent = _said(path, row, written)
        guess = guesses.get(picture_mark(name))
        spelt = {label.casefold() for label in labels}  # a tag whose case was changed was respelt, not removed
        taken_out = frozenset(each for each in (guess or frozenset()) - labels - absent if each.casefold() not in spelt)
        if labels or absent or taken_out or complete:
            guessed = not absent and guess == labels
            where = folder / name_in(folder, row.image)
            picture = inside.get(name) or Picture(where, name=str(where))
            shown.append(Shown(picture, labels, absent, guessed, taken_out))
    if not shown:
        raise InputError(f"no row of {path} has a label; fill in the column `labels`")
    return shown


def _inside(record: Mapping[str, Any]) -> dict[str, Picture]:
    """By name, pictures of a table of `tag` that are no files of their own: in an archive, or a detector's boxes."""
    sources = record.get("source")
    source = str(sources[0]) if isinstance(sources, list) and len(sources) == 1 else ""
    # an address is never asked: whoever sends a table with its record could name any
    if not source.lower().endswith((".tar", ".json")) or is_url(source):
        return {}
    try:
        entries = open_source([source]).entries
    except InputError:  # it is gone, say
        return {}
    return {picture_name(each.name): picture for each in entries if (picture := each.picture) is not None}


def name_in(folder: Path, image: str) -> str:
    """A picture's path relative to a folder, from a table's cell: it may start with "~/", use Windows separators, or
    spell accents as one character or, like a Mac, as two."""
    if image.startswith("~/"):
        return str(Path(image).expanduser())
    name = picture_name(image)
    if name.isascii() and "\\" not in image:
        return name
    if os.path.lexists(folder / image):
        return image
    found = PurePosixPath()
    for part in PurePosixPath(name).parts:  # a folder and what is in it may come from different computers
        spellings = (part, *(unicodedata.normalize(form, part) for form in ("NFC", "NFD")))
        found /= next((each for each in spellings if os.path.lexists(folder / found / each)), part)
    return found.as_posix()


def _said(path: Path, row: "Row", written: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The labels that a picture shows and those that it does not; lines that contradict each other are refused."""
    shown, absent = dict[str, int](), dict[str, int]()
    for names, lines in ((shown, row.labels), (absent, row.absent)):
        for label, line in lines.items():
            with suppress(UnicodeError):  # Excel opens UTF-8 as the code page of its country, unless told otherwise
                if label not in written and (meant := label.encode("cp1252").decode()) in written:
                    raise InputError(
                        f"{path} line {line} has {label!r}, which is {meant!r} opened in a wrong encoding; "
                        "open the table that `tag` wrote as UTF-8 (in Excel by Data, From Text/CSV), and mend that"
                    )
            try:
                names.setdefault(label if label in written else clean_label(label), line)
            except InputError as error:
                raise InputError(f"{path} line {line}: {error}") from error
    for label in sorted(shown.keys() & absent.keys()):
        name, yes, no = picture_name(row.image), shown[label], absent[label]
        if yes == no:
            raise InputError(f"{path} line {yes} says both that {name!r} shows {label!r} and that it does not; choose")
        raise InputError(
            f"{path} says in line {yes} that {name!r} shows {label!r} and in line {no} that it does not; choose"
        )
    return frozenset(shown), frozenset(absent)


def _guesses(record: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The tags that `tag` wrote into a table, by `picture_mark`, whatever program has saved it since."""
    try:
        labels, rows = list(map(str, record["labels"])), str(record["rows"]).split()
        found = (row.partition(":")[::2] for row in rows)
        return {mark: frozenset(labels[int(each)] for each in tags.split(".") if each) for mark, tags in found}
    except (LookupError, TypeError, ValueError):
        return {}


def tagged_folder(table: Path) -> Path | None:
    """The folder that names in a table of `tag` are relative to; None if it is gone, or it is no such table."""
    record = read_record(table)
    try:
        sources = record["source"]
        given = str(sources[0] if len(sources) == 1 else record["cwd"])
    except (LookupError, TypeError):
        return None
    where = Path(given)
    return None if is_url(given) else where if where.is_dir() else where.parent if where.is_file() else None


class Row(NamedTuple):
    """What a table says a picture shows and does not show, each with the line that says so, and its probabilities."""

    line: int
    image: str
    labels: dict[str, int]
    """In their order, which in a table of `tag` is likeliest first."""
    absent: dict[str, int]
    """Labels preceded by "!", and those in the column `absent`."""
    scores: dict[str, float]

    @classmethod
    def of(cls, line: int, image: str, named: Iterable[str], absent: Iterable[str], scores: dict[str, float]) -> "Row":
        each_once = dict.fromkeys(named)
        shown = [name for name in each_once if not name.startswith(NOT)]
        refused = [name.removeprefix(NOT) for name in each_once if name.startswith(NOT)]
        return cls(line, image, dict.fromkeys(shown, line), dict.fromkeys([*refused, *absent], line), scores)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table in any format, one per picture; lines about the same one, as one per label, are merged."""
    rows: dict[str, Row] = {}
    for row in _read_cells(path) if path.name.lower().endswith(CELLS) else _read_facts(path):
        if not row.image:
            raise InputError(f"{path} line {row.line} names no image; fill in the column `image` or remove the line")
        before = rows.setdefault(picture_name(row.image), row)
        if before is not row:
            before.labels.update(row.labels | before.labels)  # keeps the number of the first line that says it
            before.absent.update(row.absent | before.absent)
            before.scores.update(row.scores | before.scores)
    return list(rows.values())


def read_tagged(path: Path, threshold: float | None = None) -> list[Tagged]:
    """The rows of a table that `tag` wrote, or of any with the columns image and labels.

    With a threshold, tags are the labels that reach it, but a person's edits take precedence: tags that were added
    stay, and neither removed tags nor those with "!" come back.
    """
    rows, record = read_rows(path), read_record(path)
    scored = _scored(record, rows)
    if threshold is not None and not scored:
        raise InputError(f"{path} has no probabilities to compare with; tag with --scores, or leave --threshold out")
    guesses, found = _guesses(record), []
    for row in rows:
        refused = set(row.absent)
        tags = [tag for tag in row.labels if tag not in refused]
        scores = {label: score for label, score in row.scores.items() if label in scored}
        if threshold is not None:
            guess = guesses.get(picture_mark(picture_name(row.image)), frozenset(tags))
            own = [tag for tag in tags if tag not in guess or tag not in scores]
            refused |= guess - set(tags)
            # a probability of 0 is a person's 'no'
            over = [label for label, score in scores.items() if score and score >= threshold and label not in refused]
            tags = list(dict.fromkeys(over + own))
        found.append(Tagged(row.image, tuple(tags), scores))
    return found


def _scored(record: Mapping[str, Any], rows: Sequence[Row]) -> set[str]:
    """The labels with probabilities: of the numeric columns, those that `tag` wrote or could have written."""
    columns = {label for row in rows for label in row.scores}
    known = record.get("labels")
    if isinstance(known, list):
        return columns & set(map(str, known))
    named = {label for row in rows for label in row.labels}
    if named and not named & columns:  # other numbers, such as a width or a confidence
        return set()
    return columns - {label for row in rows for label, score in row.scores.items() if not 0 <= score <= 1}


def _read_facts(path: Path) -> Iterator[Row]:
    """The rows of JSON lines or Parquet."""
    if not path.name.lower().endswith(TABLES):
        raise InputError(f"the table {path} ends in none of {', '.join(TABLES)}; save it as CSV")
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
            cells = {folded(key): value for key, value in reversed(row.items())}
            image = next(cells[name] for name in COLUMNS["image"].split() if cells.get(name))
            labels = next((cells[name] for name in COLUMNS["labels"].split() if name in cells), None)
            named, absent = (_names(path, number, some) for some in (labels, cells.get(ABSENT)))
            scores = {str(label): float(score) for label, score in dict(cells.get("scores") or {}).items()}
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise InputError(f"{path} line {number} is no row with image and tags; mend or remove it") from error
        yield Row.of(number, str(image), named, absent, scores)


def _names(path: Path, line: int, some: Any) -> list[str]:
    """A row's labels, joined or in a list; refuses others, such as a mapping, which may say of some that they are not
    shown."""
    if isinstance(some, str):
        return split_labels(path, line, some)
    if some and not (isinstance(some, list) and all(isinstance(name, str | int) for name in some)):
        raise InputError(f'{path} line {line} has labels that are no list of names, such as ["dog", "sofa"]; mend it')
    return [*map(str, some or ())]


def _read_cells(path: Path) -> Iterator[Row]:
    """The rows of CSV and TSV."""
    for line, cells in tables.read_cells(path):
        named, absent = (split_labels(path, line, cells.pop(key, "")) for key in ("labels", ABSENT))
        image, scores = cells.pop("image").strip(), {}
        for name, cell in cells.items():
            with suppress(ValueError):  # keeps only numeric columns, which may be probabilities
                scores[name] = float(cell.replace(",", "."))  # with the decimal comma of many European spreadsheets
        yield Row.of(line, image, named, absent, scores)
