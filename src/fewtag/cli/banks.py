"""Commands that teach a bank, and list what it knows."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtag.cli.terminal import (
    AsJson,
    Bank,
    Bars,
    Label,
    ModelName,
    Root,
    SkipBad,
    WordSource,
    check_page,
    note,
    printable,
    refuse_given,
    show,
    tell,
)
from fewtag.errors import InputError, TakenError, plural

if TYPE_CHECKING:
    import numpy as np

    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.examples import Shown


DOUBTFUL = 0.2
"""The probability that a name is right, below which a person is warned."""
MOST_TOLD = 5
"""The most labels that are listed one by one in a message."""


def learn(
    bank: Bank,
    examples: Annotated[
        list[Path],
        typer.Argument(
            metavar="EXAMPLES...", help="A table with columns image,labels; a folder per label; pictures; or JSON."
        ),
    ],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME", help="What all the pictures show; repeatable.")
    ] = None,
    absent: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="What none of the pictures shows; repeatable.")
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="The pictures show nothing but what is said: all else is absent.")
    ] = False,
    root: Root = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Of a table that `tag` wrote, rows too that nobody changed.")
    ] = False,
    from_tags: Annotated[
        bool, typer.Option("--from-tags", help="Learn the tags that the pictures carry, inside or in XMP sidecars.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="With --from-tags: this tag and those under it; repeatable."),
    ] = None,
    at_most: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --from-tags: about N pictures a tag, typical and varied ones."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from-tags: only show the table of what is found.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --from-tags: do not ask, even in a terminal.")] = False,
    no_words: Annotated[
        bool, typer.Option("--no-words", help="New labels mean nothing by their name: pictures only.")
    ] = False,
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="Keep no small copies of the examples in the bank.")
    ] = False,
    model: ModelName = None,
    words: WordSource = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Learn labels from example pictures, into a new or an existing bank; what is known already stays.

    In a table several labels of a picture are joined by ";", or have a line each, or a column each of 1 and 0; paths
    are relative to the table. "!cat" among them, or a column `absent`, says what a picture does not show; what is
    neither named nor absent is unknown. Labels that are given in several runs add up, with --complete too, which says
    so. Of a table that `fewtag tag` wrote, the rows are learnt that you changed; --all-rows says that you looked at the
    others too. The bank keeps a small copy of each example, so that it can show them and move to a newer model: share
    it like the pictures.

    With --from-tags the keywords that digiKam, Lightroom, darktable, Immich and others keep are learnt; "birds|heron"
    becomes the label "birds/heron". What `fewtag write` wrote is not. A table of what is found comes first.

    Example: fewtag learn pets.fewtag rex.jpg max.jpg --label dog

    Example: fewtag learn pets.fewtag sofa.jpg --absent dog

    Example: fewtag learn pets.fewtag examples.csv

    Example: fewtag learn birds.fewtag photos/ --from-tags --only birds --at-most 20
    """
    from fewtag.pictures.files import is_image_name
    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.examples import TABLES, missing

    has_table = any(each.name.lower().endswith((*TABLES, ".json")) for each in examples)
    said = {"--label": label, "--absent": absent}
    if from_tags:
        refuse_given({**said, "--root": root, "--all-rows": all_rows}, "does not go with --from-tags; leave it out")
    else:
        chosen = {"--only": only, "--at-most": at_most, "--dry-run": dry_run, "--yes": yes}
        refuse_given(chosen, "goes with --from-tags; add that, or leave it out")
    if has_table:
        refuse_given(said, "is for pictures, and a table says itself what they show; leave it out")
    else:
        refuse_given({"--root": root, "--all-rows": all_rows}, "is for a table, and none is learnt now; leave it out")

    def refuse(error: InputError) -> None:
        gone = has_table and root is None and "there is no such file" in str(error)
        moved = "--root names the folder of a table's pictures; " if gone else ""
        raise InputError(f"{error} ({moved}--skip-bad leaves out what cannot be read)") from error

    shown = []
    if not from_tags:  # before the model is loaded, so that a mistake in a table is reported at once
        shown = read_shown(examples, label or (), absent or (), root, complete=complete, all_rows=all_rows)
        if not skip_bad and (error := missing(shown)):
            refuse(error)
    if is_image_name(bank.name):
        first = f"fewtag learn pets.fewtag {shlex.quote(str(bank))}"
        raise InputError(f"{bank} is a picture's name, and the bank comes before the examples: {first} …")
    if not dry_run:
        check_writable(bank)
    tagger = Tagger.open(bank, model=model, words=words, keep_pictures=not no_pictures)
    if from_tags:
        shown, found = from_carried(tagger, examples, only or (), at_most, skip_bad=skip_bad)
        if dry_run or not as_json:
            show(found, as_json=as_json, title=f"{plural(len(shown), 'picture')}, {plural(len(found), 'tag')}")
        if dry_run or not agreed(yes=yes):
            return
    known, skipped = set(tagger.definitions_), list[InputError]()

    on_error = skipped.append if skip_bad else refuse
    teach(tagger, shown, complete=complete, no_words=no_words, on_error=on_error)
    new = sorted(set(tagger.definitions_) - known)  # before saving, which brings what other processes taught meanwhile
    tagger.save(bank)
    tell_meanings(bank, tagger, new)
    warn_of_names(bank, tagger, {name for each in shown for name in each.labels})
    for reason in skipped:
        print(f"skipped: {printable(str(reason))}", file=sys.stderr)
    learnt, total = len(shown) - len(skipped), len(tagger.classes_)
    left_out = f", {len(skipped)} skipped" if skipped else ""
    sentence = f"{plural(learnt, 'picture')} learnt{left_out}; {plural(total, 'label')}, {len(new)} of them new"
    facts = {"pictures": learnt, "skipped": len(skipped), "new": new, "labels": total}
    tell(bank, sentence, facts, as_json=as_json)


def read_shown(
    sources: list[Path],
    labels: Sequence[str],
    absent: Sequence[str],
    root: Path | None,
    *,
    complete: bool,
    all_rows: bool,
) -> "list[Shown]":
    """Examples from tables, label folders, pictures or data sets.

    Rows that are unchanged since `tag` wrote them say what the tagger thinks, not what a person saw, and would
    perpetuate its mistakes: they are left out, unless `all_rows` says that a person looked at them.
    """
    from fewtag.tagging.examples import read_examples

    sets = [each for each in sources if each.suffix.lower() == ".json"]
    if sets and len(sets) < len(sources):
        raise InputError(f"{sets[0]} is a data set's file, which is learnt by itself; give it to a run of its own")
    if sets:
        from fewtag.interop.datasets import read_set

        return [example for each in sets for example in read_set(each, root, complete=complete)]
    shown = read_examples(sources, labels, root, absent=absent, complete=complete)
    own = [each for each in shown if not each.guessed]
    if all_rows or len(own) == len(shown):
        return shown
    left_out = len(shown) - len(own)
    told = f"{plural(left_out, 'row')} as `fewtag tag` wrote {'it' if left_out == 1 else 'them'}"
    if not own:
        raise InputError(f"the table has nothing but {told}; mend it, or say --all-rows if you looked at all")
    note(f"left out {told}; --all-rows takes these too, if you looked at them")
    return own


def teach(
    tagger: "Tagger",
    shown: "Sequence[Shown]",
    *,
    complete: bool,
    no_words: bool,
    on_error: Callable[[InputError], None],
) -> None:
    """Teaches what pictures show and do not show: tags that a person took out are a 'no' to labels that are known."""
    names, known = {name for each in shown for name in each.labels}, set(tagger.definitions_)
    refused = [each.absent | (each.taken_out & (names | known)) for each in shown]
    if taken_out := sum(len(mine - each.absent) for mine, each in zip(refused, shown, strict=True)):
        note(f"{plural(taken_out, 'tag')} of `tag` that you took out: learnt as a 'no'")
    warn_of_case(names | known)
    warn_of_commas(names - known)
    if no_words:
        for name in sorted(names - known):
            tagger.define(name, words=False)
    with Bars() as bars:
        tagger.partial_fit(
            [each.picture for each in shown],
            [each.labels for each in shown],
            absent=refused,
            complete=complete,
            on_error=on_error,
            progress=bars.begin("learning", len(shown)),
        )


def from_carried(
    tagger: "Tagger",
    sources: list[Path],
    names: Sequence[str],
    most: int | None,
    *,
    skip_bad: bool,
) -> "tuple[list[Shown], dict[str, dict[str, Any]]]":
    """The examples to learn from the tags that pictures carry, and a table of what was found and chosen."""
    from fewtag.interop.from_tags import at_most, only, read_carried

    def skip(failures: Sequence[InputError]) -> None:
        if failures and not skip_bad:
            others = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
            raise InputError(f"{failures[0]}{others} (--skip-bad leaves out what cannot be read)")
        for reason in failures:
            print(f"skipped: {printable(str(reason))}", file=sys.stderr)

    carried = read_carried(sources)
    skip(carried.failures)
    for reason in carried.unusable.values():
        print(f"skipped: {printable(reason)}", file=sys.stderr)
    shown = only(carried.shown, names) if names else carried.shown
    if shown and most is not None and most < max(carried.counts.values()):
        with Bars() as bars:
            shown, failed = at_most(shown, most, tagger.model, bars.begin)
        skip(failed)
    if not shown:
        raise InputError(f"none of {plural(carried.pictures, 'picture')} carries a tag; tag some in your photo program")
    counts = Counter(name for each in shown for name in each.labels)
    carry = carried.counts
    return shown, {name: {"pictures": carry[name], "to_learn": counts[name]} for name in sorted(counts)}


def agreed(*, yes: bool) -> bool:
    """Whether to go on: asks only a person at a terminal."""
    return yes or not (sys.stdin.isatty() and sys.stdout.isatty()) or typer.confirm("learn these?")


def define(
    bank: Bank,
    label: Label,
    like: Annotated[
        str | None, typer.Option(metavar="WORDS", help='Known words that it is like: "lens, eye" (their mean).')
    ] = None,
    vector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its word vector: .npy, or a text file of numbers.")
    ] = None,
    no_words: Annotated[bool, typer.Option("--no-words", help="No word at all: its pictures alone.")] = False,
    model: ModelName = None,
    words: WordSource = None,
    as_json: AsJson = False,
) -> None:
    """Say what a label's name means, before or after its examples; the name alone makes a label without a picture.

    Example: fewtag define pets.fewtag "ectopia lentis" --like "lens, eye"
    """
    from fewtag.errors import UnknownWordError
    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.examples import clean_label

    if sum((like is not None, vector is not None, no_words)) > 1:
        raise InputError("--like, --vector and --no-words exclude each other; give one of them")
    name = clean_label(label)
    numbers = None if vector is None else read_vector(vector)
    tagger = Tagger.open(bank, model=model, words=words)
    try:
        tagger.define(name, like=like, vector=numbers, words=not no_words)
    except UnknownWordError as error:
        raise InputError(f'{error}: --like "lens, eye", --vector FILE or --no-words') from error
    tagger.save(bank)
    word = str(tagger.definitions_[name])
    tell(bank, f"label {name!r} is defined: {word}", {"label": name, "word": word}, as_json=as_json)


def forget(
    bank: Bank,
    label: Label,
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Only this example of the label.")] = None,
    example: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only the example of this name or number, as `fewtag examples` lists it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forget a label, or one example of it.

    Example: fewtag forget pets.fewtag sofa --example 2
    """
    from fewtag.tagger.tagger import Tagger

    tagger = Tagger.load(bank)
    named, known = image or example, tagger.bank_
    tagger.forget(label, image, example=example).save(bank)
    gone = named if example is None else known.examples[known.called(known.find(label), example)[0]].name
    said = f"{label!r} is forgotten" if gone is None else f"{gone} is no example of {label!r} now"
    tell(bank, said, {"label": label, "example": None if named is None else str(named)}, as_json=as_json)


def rename(
    bank: Bank,
    label: Label,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it shall be called.")],
    merge: Annotated[bool, typer.Option("--merge", help="NAME may be a label already: the two become one.")] = False,
    words: WordSource = None,
    as_json: AsJson = False,
) -> None:
    """Call a label something else, or merge it into another; those under it, such as "birds/heron", go along.

    Example: fewtag rename pets.fewtag couch sofa --merge
    """
    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.examples import clean_label

    tagger, new = Tagger.load(bank, words=words), clean_label(name)
    try:
        tagger.rename(label, new, merge=merge).save(bank)
    except TakenError as error:
        raise InputError(f"{error} (--merge)") from error
    count, under = tagger.counts_.get(new), sum(each.startswith(f"{new}/") for each in tagger.definitions_)
    has = [] if count is None else [plural(count, "example")]
    has += [f"{plural(under, 'label')} under it"] if under else []
    said = f"{label!r} is called {new!r} now, with {' and '.join(has)}"
    tell(bank, said, {"label": new, "before": label, "examples": count or 0, "under": under}, as_json=as_json)


def labels(bank: Bank, as_json: AsJson = False) -> None:
    """List what a bank knows: each label, from how many examples, its threshold, its word, and how far its pictures
    bear that out (1: as far as they can).

    Example: fewtag labels pets.fewtag
    """
    from fewtag.tagger.bank import Definition
    from fewtag.tagger.bank_file import read_header

    rows: dict[str, dict[str, Any]] = {
        label["name"]: {
            "examples": label["examples"],
            "absent": label.get("absent", 0),
            # a label without word or picture cannot be given yet
            "threshold": None if label["threshold"] is None else round(label["threshold"], 6),
            "word": str(Definition(label["kind"], tuple(label["words"]))),
            # how far the name is trusted; older banks do not record it
            "trust": None if label.get("trust") is None else round(label["trust"], 2),
        }
        for label in read_header(bank)["labels"]
    }
    show(rows, as_json=as_json, title=plural(len(rows), "label"))


def examples(
    bank: Bank,
    label: Label,
    page: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Also a page (.html) that shows the small copies kept of them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the examples of a label, by the numbers and names that `fewtag forget --example` takes.

    Example: fewtag examples pets.fewtag dog --page dogs.html
    """
    from fewtag.tagger.bank_file import read_bank
    from fewtag.tagging.page import Card, embed_bytes, write_page

    if page is not None:
        check_page(page)
    contents = read_bank(bank)[1]
    name = contents.find(label)
    members = [contents.examples[key] for key in contents.members[name]]
    rows: dict[str, dict[str, Any]] = {
        str(number): {"name": example.name, "shows": ", ".join(sorted(example.labels))}
        for number, example in enumerate(members, 1)
    }
    if page is not None:
        cards = [
            Card(
                f"{number}  {each.name}",
                embed_bytes(each.picture),
                [(each_label, "tag") for each_label in sorted(each.labels)],
            )
            for number, each in enumerate(members, 1)
        ]
        write_page(page, f"{name}: {plural(len(members), 'example')}", str(bank), cards)
        print(f"the page: {page}", file=sys.stderr)
    show(rows, as_json=as_json, title=f"{name}: {plural(len(members), 'example')}")


def upgrade(
    bank: Bank,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="To this one: default, accurate, accurate-336, coco52 or the path of a model.",
            show_default="its own, as it is now",
        ),
    ] = None,
    words: WordSource = None,
    as_json: AsJson = False,
) -> None:
    """Move a bank to the newest version of its model, or to another: its examples are learnt again from their copies.

    Example: fewtag upgrade pets.fewtag --model accurate
    """
    from fewtag.tagger.bank_file import read_header
    from fewtag.tagger.tagger import Tagger

    check_writable(bank)
    with Bars() as bars:
        # no bar if the bank is of this model already
        begun = cache(lambda: bars.begin("learning again", len(read_header(bank)["examples"])))
        tagger = Tagger.load(bank, model=model, words=words, upgrade=True, progress=lambda count: begun()(count))
    tagger.save(bank)
    count, name = len(tagger.classes_), tagger.model.name
    tell(bank, f"{plural(count, 'label')}, model {name!r}", {"labels": count, "model": name}, as_json=as_json)


def check_writable(bank: Path) -> None:
    """Refuses a bank that cannot be saved, before the work."""
    from fewtag import files
    from fewtag.tagger.bank_file import refuse_derived

    refuse_derived(bank)
    files.check_writable(bank)


def warn_of_case(names: set[str]) -> None:
    """Warns of labels that differ only in case, which are most likely meant as one."""
    by_case: dict[str, str] = {}
    for name in sorted(names):
        other = by_case.setdefault(name.casefold(), name)
        if other != name:
            note(f"{other!r} and {name!r} are two labels, which differ in case alone")


def tell_meanings(bank: Path, tagger: "Tagger", names: Sequence[str]) -> None:
    """Prints the English meanings that names of other languages are read as."""
    meant = {name: each.words for name in names if (each := tagger.definitions_[name]).kind == "name"}
    if foreign := [f"{name} = {words[1]}" for name, words in meant.items() if len(words) > 1]:
        others = f" and {plural(len(foreign) - MOST_TOLD, 'other')}" if len(foreign) > MOST_TOLD else ""
        note(
            f"read as English: {', '.join(foreign[:MOST_TOLD])}{others}; "
            f"if one is wrong: {shlex.join(['fewtag', 'define', str(bank)])} LABEL --like WORDS"
        )


def warn_of_commas(names: set[str]) -> None:
    """Warns of names with commas: several labels in one, or one such as "tench, Tinca tinca"; the person knows."""
    if found := sorted(name for name in names if ", " in name):
        others = f" ({plural(len(found), 'name')} with a comma)" if len(found) > 1 else ""
        note(f'{found[0]!r} is one label{others}; several are joined by ";", as in "dog;sofa"')


def warn_of_names(bank: Path, tagger: "Tagger", names: set[str]) -> None:
    """Warns of labels whose pictures do not look like what their name suggests."""
    doubtful = {name: trust for name, trust in tagger.trusts_.items() if name in names and trust < DOUBTFUL}
    for name, trust in list(doubtful.items())[:MOST_TOLD]:
        note(
            f"the pictures of {name!r} do not look like what its name suggests, so the name counts for "
            f"{trust:.0%} of what it could; say what it is like: "
            f"{shlex.join(['fewtag', 'define', str(bank), name])} --like WORDS, or --no-words"
        )
    if len(doubtful) > MOST_TOLD:
        so = f"so it is with {plural(len(doubtful) - MOST_TOLD, 'other label')}"
        note(f"{so}: {shlex.join(['fewtag', 'labels', str(bank)])} shows how far each name is trusted")


def read_vector(path: Path) -> "np.ndarray":
    """Reads a label's vector: .npy, or text of numbers separated by blanks or commas."""
    import numpy as np

    try:
        if path.suffix.lower() == ".npy":
            vector = np.load(path, allow_pickle=False)
        else:
            vector = np.array([float(number) for number in path.read_text(encoding="utf-8").replace(",", " ").split()])
    except OSError as error:
        raise InputError(f"cannot read the vector {path}: {error.strerror}; check the path") from error
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} holds no vector of numbers; give .npy, or numbers in a text file") from error
    return np.squeeze(vector)
