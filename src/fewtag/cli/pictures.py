"""Commands that look at pictures with a bank: tag, check, explain, export."""

import itertools
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fewtag.cli.terminal import (
    AsJson,
    Bank,
    Bars,
    Cache,
    DataFolder,
    Device,
    NoCache,
    Root,
    SkipBad,
    check_page,
    note,
    printable,
    refuse_given,
    show,
)
from fewtag.errors import InputError, nearest, plural

if TYPE_CHECKING:
    from fewtag.tagging.page import Card
    from fewtag.tagging.run import Cluster, Options

ENGINES = ("local", "ray")


def tag(
    bank: Bank,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURES...",
            help="Pictures, folders, a .txt list, a .tar, MegaDetector's .json, a Parquet table, or s3://, gs://, https://.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The table: .csv, .jsonl or .parquet; or a folder (parts/) of Parquet parts. Else: the terminal.",
        ),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Every label's probability too.")] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Give a label from this probability on.", show_default="each label's own"),
    ] = None,
    prior: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="How common a label is: a share of the pictures (0.01), estimate (by a sample of them), or bank.",
        ),
    ] = "estimate",
    page: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Also a page to look at (.html): pictures with their tags.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a table that this command did not write, or was changed since.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Pictures in the network at once.")] = 32,
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="local: this process. ray: the workers of a Ray cluster.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Ray: an existing cluster; auto finds it.", show_default="one of its own"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Ray: how many.", show_default="one a GPU, or else a core")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(min=1, help="Pictures finished at a time.", show_default="256; ray: at most 1024")
    ] = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Tag pictures: a row for each. Run again after a kill, it goes on where it stopped.

    Probabilities depend on how common a label is. Where the bank has no prior of its own for it, that is estimated by a
    sample of 256 pictures, or the bank's default where there are fewer than a hundred; a share that is given is fitted
    to the sample, so that probabilities add up to it. Pictures that cannot be read are listed in FILE.failures.csv, and
    the exit code is 1. A picture that was seen before, wherever it lay and whatever it is called, does not go through
    the network again.

    Example: fewtag tag pets.fewtag photos/ --out tags.csv

    Example: fewtag tag pets.fewtag garden.jpg kitchen.jpg

    Example: fewtag tag pets.fewtag s3://bucket/photos --out s3://bucket/tags --engine ray --address auto
    """
    from fewtag.tagging.page import MOST, write_page
    from fewtag.tagging.run import Cluster, Options

    kept = cache_folder(cache, no_cache)
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}; {nearest(engine, ENGINES)}")
    if engine == "local" and (address or workers):
        refuse_given({"--address": address, "--workers": workers}, "is for --engine ray; add that, or leave it out")
    if page is not None:
        check_page(page, out)
    options = Options(scores, threshold, read_prior(prior), batch, device, kept, shard)
    cards: list[Card] | None = None if page is None else []
    if out is None:
        if engine == "ray":
            raise InputError("--engine ray needs --out: a table, or a folder for Parquet parts")
        failed = _to_terminal(bank, sources, options, cards, as_json=as_json)
    else:
        ray = Cluster(address, workers) if engine == "ray" else None
        failed = _to_table(bank, sources, out, options, ray, cards, force=force, as_json=as_json)
    if page is not None and cards is not None:
        facts = f"{plural(len(cards), 'picture')}, tagged by {bank.name}"
        write_page(page, bank.stem, facts + (f"; only the first {MOST} are shown" if len(cards) == MOST else ""), cards)
        print(f"the page: {page}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def cache_folder(cache: Path | None, no_cache: bool = False) -> Path | None:
    """The cache folder that --cache and --no-cache ask for; None for no cache."""
    from fewtag.files import user_cache_folder

    if cache is not None and no_cache:
        raise InputError("--cache and --no-cache exclude each other; give one of them")
    return None if no_cache else (cache or user_cache_folder()).resolve()


def read_prior(text: str) -> "float | Literal['estimate', 'bank']":
    """The prior that --prior asks for."""
    if text in {"estimate", "bank"}:
        return cast("Literal['estimate', 'bank']", text)
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise InputError(f"--prior {text} is no share of pictures; give one such as 0.01, or estimate, or bank")
    return share


def _to_table(
    bank: Path,
    sources: list[str],
    out: str,
    options: "Options",
    ray: "Cluster | None",
    cards: "list[Card] | None",
    *,
    force: bool,
    as_json: bool,
) -> int:
    from fewtag.tagging.page import MOST, tagged_card
    from fewtag.tagging.run import Rows
    from fewtag.tagging.run import tag as tag_all
    from fewtag.tagging.tables import failures_of

    def look(rows: Rows) -> None:
        assert cards is not None
        cards.extend(tagged_card(item, row) for item, row in itertools.islice(rows, MOST))

    with Bars() as bars:
        shown = None if cards is None else look
        done = tag_all(bank, sources, out, options, ray=ray, force=force, begin=bars.begin, look=shown)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        pictures = "picture" if done.pictures == 1 else "pictures"
        typer.echo(f"{out}: {done.tagged} of {done.pictures} {pictures} tagged in {done.seconds:.1f} s")
    if done.failed:
        print(f"{plural(done.failed, 'picture')} could not be read: see {failures_of(out)}", file=sys.stderr)
    return done.failed


def _to_terminal(
    bank: Path, sources: list[str], options: "Options", cards: "list[Card] | None", *, as_json: bool
) -> int:
    """Prints a line for each picture as soon as it is known, a single one by its path as given; or JSON in ASCII."""
    from fewtag.pictures.files import is_image_name
    from fewtag.tagging.page import MOST, tagged_card
    from fewtag.tagging.run import tag_rows
    from fewtag.tagging.tables import record

    failed = 0
    alone = sources[0] if len(sources) == 1 and is_image_name(sources[0]) and Path(sources[0]).is_file() else None
    with ExitStack() as bars:
        # of the sample alone, and only where there is one: a single picture does not wait for the import of rich
        rows = tag_rows(bank, sources, options, lambda *task: bars.enter_context(Bars()).begin(*task))
        for item, row in rows:
            bars.close()
            failed += bool(row.failure)
            if cards is not None and len(cards) < MOST:
                cards.append(tagged_card(item, row))
            if as_json:
                facts = {"image": row.image, "failure": row.failure} if row.failure else record(row, list(row.scores))
                print(json.dumps(facts), flush=True)
            elif row.failure:
                note(row.failure)
            else:
                shown = [name for name in row.scores if name in row.tags] if not options.scores else list(row.scores)
                ranked = sorted(shown, key=lambda name: -row.scores[name])
                tags = ", ".join(f"{name} {row.scores[name]:.2f}" for name in ranked) or "–"
                typer.echo(f"{printable(alone or row.image)}: {printable(tags)}")
    return failed


def check(
    bank: Bank,
    truth: Annotated[
        Path,
        typer.Argument(
            metavar="TRUTH", help="Pictures with all they show: a CSV, a folder per label, or a data set's JSON."
        ),
    ],
    root: Root = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Of a table that `tag` wrote, rows that nobody changed are right, too.")
    ] = False,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="How common a label is, as for `fewtag tag`: a share, estimate, or bank.",
            show_default="estimate; bank with --set-…",
        ),
    ] = None,
    set_thresholds: Annotated[
        bool, typer.Option("--set-thresholds", help="Keep, in the bank, the threshold with the best F1 for each label.")
    ] = False,
    set_priors: Annotated[
        bool, typer.Option("--set-priors", help="Keep, in the bank, the share of these pictures that shows each label.")
    ] = False,
    skip_bad: SkipBad = False,
    cache: Cache = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Measure a bank on labelled pictures of one's own: precision, recall, average precision, and reliability.

    A picture counts as not showing whatever label it does not name. Take pictures that the bank was not taught with,
    and for --set-priors ones that were drawn by chance. What is measured is what `fewtag tag` does: from a hundred
    pictures on, it estimates how common each label is. Thresholds and priors to keep are for the bank's own.

    Example: fewtag check pets.fewtag truth.csv
    """
    from fewtag.cli.banks import check_writable, read_shown
    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.check import check_bank, priors_of
    from fewtag.tagging.examples import missing
    from fewtag.tagging.run import Options

    setting = set_thresholds or set_priors
    if setting and prior not in {None, "bank"}:
        raise InputError(f"--prior {prior} is for measuring; what is kept is for the bank's own: leave it out")
    if setting:
        check_writable(bank)
    asked, kept = read_prior(prior or ("bank" if setting else "estimate")), cache_folder(cache, no_cache)
    shown = read_shown([truth], (), (), root, complete=True, all_rows=all_rows)
    if not skip_bad and (error := missing(shown)):
        raise InputError(f"{error} (--skip-bad leaves out what cannot be read)")
    tagger = Tagger.load(bank)
    with Bars() as bars:
        priors = priors_of(shown, tagger, Options(prior=asked, cache=kept), bars.begin)
        measure = partial(check_bank, tagger, shown, cache=kept, skip_bad=skip_bad)
        found = measure(prior=asked, priors=priors, progress=bars.begin("checking", len(shown)))
        if set_priors:
            tagger.set_priors(found.priors)
        if set_priors and set_thresholds:  # thresholds must fit the probabilities under the new priors
            found = measure(progress=bars.begin("checking again with these priors", len(shown)))
    if set_thresholds:
        tagger.set_thresholds(found.best_thresholds)
    if setting:
        tagger.save(bank)
    if as_json:
        print(json.dumps(asdict(found), indent=2, allow_nan=False))
        return
    show(found.table(), as_json=False, title=f"{plural(found.pictures, 'picture')}, {bank}")
    for line in found.sentences():
        typer.echo(printable(line))
    if set_priors:
        none = [repr(label) for label, each in found.labels.items() if not each.pictures]
        rare = f"; no picture shows {', '.join(none)}: taken for rare from now on" if none else ""
        typer.echo(printable(f"{bank}: the priors of {plural(len(found.priors), 'label')} are kept{rare}"))
    if set_thresholds:
        typer.echo(f"{bank}: the best thresholds of {plural(len(found.best_thresholds), 'label')} are kept")


def explain(
    model: Annotated[Path, typer.Argument(metavar="BANK", help="A bank; or a trained run's folder.")],
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="The picture.")],
    labels: Annotated[list[str], typer.Option("--label", help="The label to look for; repeat it for a grid.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The heat-map over the picture: .png, .jpg or .webp.")],
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show where a label is seen in a picture, as a heat-map: bright where it is, dark where nothing speaks for it.

    With --json: out, and the probability of each label (of a bank; a trained run has none).

    Example: fewtag explain pets.fewtag garden.jpg --label dog --out heat.png
    """
    from fewtag.tagger.explain import is_heat, save_heat

    if out.suffix.lower() not in {".png", ".jpg", ".jpeg", ".webp"}:
        raise InputError(f"--out {out} ends in none of .png, .jpg and .webp; name it heat.png, for example")
    if out.exists() and image.exists() and out.samefile(image):
        raise InputError(f"--out {out} is the picture itself; name another file, such as heat.png")
    if out.exists() and not is_heat(out):
        raise InputError(f"--out {out} exists and is no heat-map of fewtag's; name another, or delete it first")
    if not model.exists():
        raise InputError(f"there is no bank or trained run {model}; make one with fewtag learn, or with fewtag train")
    if model.is_dir() and not (model / "bank.fewtag").exists():
        from fewtag.cli.research import explain_run

        explain_run(model, image, labels, out, data)
        typer.echo(json.dumps({"out": str(out), "probabilities": {}}) if as_json else out)
        return
    from fewtag.pictures.files import Picture
    from fewtag.tagger.tagger import Tagger

    tagger, picture = Tagger.load(model), Picture(image).open()
    heats, chances = tagger.explain_all(picture, labels)
    save_heat(out, picture, heats, chances)
    said = printable(", ".join(f"{label} {chance:.0%}" for label, chance in chances.items()))
    typer.echo(json.dumps({"out": str(out), "probabilities": chances}) if as_json else f"{out}: {said}")


def export(
    source: Annotated[Path, typer.Argument(metavar="BANK|TABLE", help="A bank, or a table that `tag` wrote.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; others there stay.")],
    form: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="Of a bank: onnx, onnx-fixed. Of a table: imagefolder, fiftyone, label-studio, coco, megadetector.",
        ),
    ] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Also a graph with products in int8, as shipped models' are already: faster.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="PICTURES", help="A folder or a picture to compare on, beside random pixels."),
    ] = None,
    root: Root = None,
    boxes: Annotated[bool, typer.Option("--boxes", help="coco: a box around the whole picture for each tag.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that `export` did not write, or that were changed since.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a bank as an ONNX graph and its labels, to tag without fewtag; or a table as a data set.

    tagger.onnx and labels.npz: labels are data. After learning more of them, export again, and only labels.npz changes.
    With --as onnx-fixed the labels are part of the graph, which has one input and one output, for programs that run
    any classifier: fixed.onnx and labels.txt. A graph is checked against the tagger, and refused if a probability
    differs by more than 0.001.

    Example: fewtag export pets.fewtag pets-onnx/ --check photos/

    Example: fewtag export tags.jsonl pets-fiftyone/ --as fiftyone
    """
    from fewtag.interop.datasets import EVERY_FORM, export_set
    from fewtag.tagging.examples import TABLES

    graphs = ("onnx", "onnx-fixed")
    if form not in (*graphs, *EVERY_FORM):
        raise InputError(f"there is no format {form!r}; {nearest(form, (*graphs, *EVERY_FORM))}")
    if form != "coco":
        refuse_given({"--boxes": boxes}, "goes with --as coco; leave it out")
    is_table = source.name.lower().endswith(TABLES)
    if form in EVERY_FORM and not is_table:
        bank = "BANK" if source.is_dir() else source  # a folder of parts, as Ray writes
        raise InputError(f"--as {form} takes a table; make one: fewtag tag {bank} PICTURES --out tags.jsonl")
    if form in graphs and is_table:
        raise InputError(f"{source} is a table; say which data set to make of it, such as --as coco")
    if form in EVERY_FORM:
        refuse_given({"--int8": int8, "--check": check}, f"is for a bank's graph, not for --as {form}; leave it out")
        files = export_set(source, folder, form, root, boxes=boxes, force=force)
        typer.echo(json.dumps({"files": list(map(str, files))}) if as_json else ", ".join(map(str, files)))
        return
    refuse_given({"--root": root}, f"is for a table, not for --as {form}; leave it out")
    if form == "onnx-fixed":
        refuse_given({"--int8": int8}, "does not go with --as onnx-fixed; leave it out")
    _export_graph(source, folder, check, fixed=form == "onnx-fixed", int8=int8, force=force, as_json=as_json)


def _export_graph(
    bank: Path, folder: Path, check: Path | None, *, fixed: bool, int8: bool, force: bool, as_json: bool
) -> None:
    from fewtag.files import format_size
    from fewtag.tagger.export import FIXED, GRAPH, INT8
    from fewtag.tagger.export import export as export_tagger
    from fewtag.tagger.tagger import Tagger
    from fewtag.tagging.sources import open_source

    tagger = Tagger.load(bank)
    compared = [] if check is None else [entry.item().image for entry in open_source([str(check)]).entries]
    with Bars() as bars:
        advance = bars.begin("comparing", len(compared)) if compared else lambda _count: None
        done = export_tagger(tagger, folder, fixed=fixed, int8=int8, pictures=compared, advance=advance, force=force)
    if as_json:
        print(json.dumps({"bank": str(bank), "folder": str(folder), **asdict(done)}))
        return
    seen = f"random pixels and {done.pictures} pictures" if done.pictures else "random pixels"
    fate = "of the same model, kept as it is" if done.kept else "written"
    told = dict.fromkeys((GRAPH, FIXED), f"{fate}; greatest difference {done.difference:.1g} on {seen}")
    if done.int8_difference is not None:
        expected = f"greatest difference {done.int8_difference:.1g}, which int8 is expected to make"
        same = f"the same as {GRAPH}, whose products are in int8 already"
        told[INT8] = f"written; {same if done.int8_is_same else expected}"
    for name, size in done.sizes.items():
        labels = "" if name in told else f"{done.labels} labels, "
        typer.echo(f"{folder / name}: {labels}{format_size(size)}, {told.get(name, 'written')}")
