"""The tagger's commands: teach a bank labels, tag a folder with it, show why."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fewtag.apps.cache import Cache, cache_folder
from fewtag.apps.options import AsJson, DataFolder, SkipBad, check_engine
from fewtag.errors import InputError

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="The file of learnt labels, such as pets.fewtag.")]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="A label's name.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="For a new bank: default, coco52 or the path of a fit.", show_default=False),
]
WordSource = Annotated[
    str | None, typer.Option("--words", metavar="FILE", help="For a new bank: word vectors of your own.")
]


def learn(
    bank: Bank,
    examples: Annotated[
        Path, typer.Argument(metavar="EXAMPLES", help="A CSV with columns image,labels, or a folder per label.")
    ],
    model: ModelName = None,
    words: WordSource = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Learn labels from example pictures, into a new or an existing bank.

    In the table several labels of a picture are joined by ";", and paths are relative to it.

    Example: fewtag learn pets.fewtag examples.csv
    """
    from fewtag.apps.banks import check_words, open_or_create, read_examples, teach
    from fewtag.apps.progress import Bars

    images = read_examples(examples)
    tagger = open_or_create(bank, model, words)
    known = set(tagger.classes_)
    options = [f"--{name}={value}" for name, value in (("model", model), ("words", words)) if value is not None]
    check_words(tagger, images.labels, bank, options)
    with Bars() as bars:
        bars.start("learning", len(images))
        skipped = teach(tagger, images, skip_bad=skip_bad, advance=bars.advance)
    tagger.save(bank)
    for reason in skipped:
        print(f"skipped: {reason}", file=sys.stderr)
    learnt = len(images) - len(skipped)
    new = [label for label in tagger.classes_ if label not in known]
    if as_json:
        facts = {"bank": str(bank), "pictures": learnt, "skipped": len(skipped), "new": new}
        print(json.dumps(facts | {"labels": len(tagger.classes_)}))
    else:
        left_out = f", {len(skipped)} skipped" if skipped else ""
        typer.echo(f"{bank}: {learnt} pictures learnt{left_out}; {len(tagger.classes_)} labels, {len(new)} of them new")


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
) -> None:
    """Say what a label's name means, before or after its examples; the name alone makes a label without a picture.

    Example: fewtag define pets.fewtag "ectopia lentis" --like "lens, eye"
    """
    from fewtag.apps.banks import clean_label, open_or_create, read_vector

    if sum((like is not None, vector is not None, no_words)) > 1:
        raise InputError("--like, --vector and --no-words exclude each other; give one of them")
    name = clean_label(label)
    names = None if like is None else [word.strip() for word in like.split(",") if word.strip()]
    if names == []:
        raise InputError(f'--like {like!r} names no word; give some, as in --like "lens, eye"')
    numbers = None if vector is None else read_vector(vector)
    tagger = open_or_create(bank, model, words)
    tagger.define(name, like=names, vector=numbers, words=not no_words)
    tagger.save(bank)
    typer.echo(f"{bank}: label {name!r} is defined: {tagger.definitions_[name]}")


def forget(
    bank: Bank,
    label: Label,
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Only this example of the label.")] = None,
) -> None:
    """Forget a label, or one example of it.

    Example: fewtag forget pets.fewtag sofa --image garden.jpg
    """
    from fewtag.apps.banks import open_bank

    tagger = open_bank(bank)
    tagger.forget(label, image)
    tagger.save(bank)
    typer.echo(
        f"{bank}: {label!r} is forgotten" if image is None else f"{bank}: {image} is no example of {label!r} now"
    )


def labels(bank: Bank, as_json: AsJson = False) -> None:
    """List what a bank knows: each label, from how many examples, its threshold, and what defines its word.

    Example: fewtag labels pets.fewtag
    """
    from fewtag.apps.banks import open_bank
    from fewtag.apps.progress import show

    tagger = open_bank(bank)
    found = {
        label: {
            "examples": tagger.counts_.get(label, 0),
            # a label without word or picture cannot be given yet
            "threshold": round(tagger.thresholds_[label], 6) if label in tagger.thresholds_ else None,
            "word": str(definition),
        }
        for label, definition in tagger.definitions_.items()
    }
    show(found, as_json=as_json, title=f"{len(found)} labels")


def tag(
    bank: Bank,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Pictures, sub-folders too; or one picture. With --engine ray also s3://, gs://, https:// or Parquet.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(metavar="FILE", help="The table: .csv, .jsonl or .parquet. With --engine ray a folder of shards."),
    ],
    scores: Annotated[bool, typer.Option("--scores", help="Every label's probability too.")] = False,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Give a label from this probability on (each label's own).")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Pictures in the network at once.")] = 32,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, or auto, a GPU where there is one (auto).", show_default=False)
    ] = None,
    engine: Annotated[str, typer.Option(help="local: this process. ray: the workers of a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ray: an existing cluster; auto finds it (one of its own).")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Ray: how many (one a GPU, or else a core).")] = None,
    shard: Annotated[int | None, typer.Option(min=1, help="Ray: pictures a shard (at most 1024).")] = None,
    cache: Cache = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither look in the cache nor keep anything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tag every picture of a folder: a row a picture. Run again after a kill, it goes on where it stopped.

    Pictures that cannot be read are listed in FILE.failures.csv, and the exit code is 1. A picture that was seen
    before, wherever it lay and whatever it is called, does not go through the network again.

    Example: fewtag tag pets.fewtag photos/ --out tags.csv

    Example: fewtag tag pets.fewtag s3://bucket/photos --out s3://bucket/tags --engine ray --address auto
    """
    from fewtag.apps.progress import Bars

    if cache is not None and no_cache:
        raise InputError("--cache and --no-cache exclude each other; give one of them")
    of_ray = {"--address": address, "--workers": workers, "--shard": shard}
    check_engine(engine, source, of_ray=of_ray, of_local={"--cache": cache, "--device": device})
    with Bars() as bars:
        if engine == "ray":
            from fewtag.apps.bulk.manifest import Options
            from fewtag.apps.bulk.output import failures_of
            from fewtag.apps.bulk.run import tag_archive

            options, failures = Options(scores, threshold, batch), failures_of(out)
            done: Any = tag_archive(
                bank, source, out, options, address=address, workers=workers, shard=shard, bars=bars
            )
        else:
            from fewtag.apps.folder_tags import failures_path, tag_folder

            table, failures = Path(out), str(failures_path(Path(out)))
            kept = None if no_cache else cache_folder(cache)
            done = tag_folder(
                bank,
                Path(source),
                table,
                scores=scores,
                threshold=threshold,
                batch=batch,
                bars=bars,
                cache=kept,
                device=device or "auto",
            )
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        typer.echo(f"{out}: {done.tagged} of {done.pictures} pictures tagged in {done.seconds:.1f} s")
    if done.failed:
        pictures = "1 picture" if done.failed == 1 else f"{done.failed} pictures"
        print(f"{pictures} could not be read: see {failures}", file=sys.stderr)
        raise typer.Exit(1)


def explain(
    model: Annotated[Path, typer.Argument(metavar="BANK", help="A bank; or a trained run's folder.")],
    image: Annotated[Path, typer.Argument(help="The picture.")],
    labels: Annotated[list[str], typer.Option("--label", help="The label to look for; repeat it for a grid.")],
    out: Annotated[Path, typer.Option(metavar="PNG", help="The heat-map over the picture.")],
    data: DataFolder = None,
) -> None:
    """Show where a label is seen in a picture, as a heat-map.

    Example: fewtag explain pets.fewtag garden.jpg --label dog --out heat.png
    """
    from fewtag.apps.heat import explain_bank, explain_run

    if model.is_file():
        explain_bank(model, image, labels, out)
    else:
        explain_run(model, image, labels, out, data)
    typer.echo(out)
