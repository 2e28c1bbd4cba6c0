"""`recipes/paper.toml` on COCO, VOC and GloVe as their owners lay them out, in little, with a random network."""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fewtag.research.bench.results import read_rows
from fewtag.research.data.splits import Split

Cli = Callable[..., Any]
PAPER = Path(__file__).parents[2] / "recipes" / "paper.toml"
TINY = {
    **{"backbone.name": "test_resnet", "backbone.weights": "random", "backbone.size": 32},
    **{"evaluation.episodes": 2, "evaluation.queries": 1},
}
SHORT = {f"training.{key}": 1 for key in ("episodes", "queries", "validate_every", "validation_episodes")}


def save(place: Path, number: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(place)


def write_coco(folder: Path, split: Split) -> None:
    """Of each year two pictures a label of every phase; those of `mixed` show a novel label and a base label."""
    names = sorted(chain(*split.groups.values()))
    shown = [(name,) for name in names] * 2 + [(name, "car") for name in split.groups["novel"]] * 2
    for year in ("train2014", "val2014"):
        files = [f"COCO_{year}_{number:012d}.jpg" for number in range(len(shown))]
        for number, file in enumerate(files):
            save(folder / year / file, number)
        # the last has no annotation, as some of COCO's
        images = [{"id": number, "file_name": file} for number, file in enumerate([*files, f"COCO_{year}_none.jpg"])]
        labels = [(number, names.index(name) + 1) for number, those in enumerate(shown) for name in those]
        content = {
            "images": images,
            "annotations": [{"image_id": image, "category_id": label, "iscrowd": 0} for image, label in labels],
            "categories": [{"id": number, "name": name} for number, name in enumerate(names, 1)],
        }
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"instances_{year}.json").write_text(json.dumps(content))


def write_voc(devkit: Path, split: Split) -> None:
    """A picture a label in each of 2007's sets, and one in 2012's, which has no public test set."""
    for year, name in (("VOC2007", "trainval"), ("VOC2007", "test"), ("VOC2012", "trainval")):
        labels = sorted(chain(*split.groups.values()))
        for number, label in enumerate(labels):
            save(devkit / year / "JPEGImages" / f"{name}_{label}.jpg", number)
            (devkit / year / "Annotations").mkdir(exist_ok=True)
            objects = f"<object><name>{label}</name><difficult>0</difficult></object>"
            (devkit / year / "Annotations" / f"{name}_{label}.xml").write_text(f"<annotation>{objects}</annotation>")
        lists = devkit / year / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{name}.txt").write_text("".join(f"{name}_{label}\n" for label in labels))


def write_glove(path: Path, labels: Iterable[str]) -> None:
    words = sorted({word for label in labels for word in label.split()})
    vectors = np.random.default_rng(0).normal(size=(len(words), 300)).round(3)
    lines = (" ".join([word, *map(str, vector)]) for word, vector in zip(words, vectors.tolist(), strict=True))
    path.write_text("\n".join(lines) + "\n")


def settings(*tables: Mapping[str, object]) -> list[str]:
    return [part for table in tables for key, value in table.items() for part in ("--set", f"{key}={value}")]


def runs(*names: str) -> list[str]:
    return [part for name in names for part in ("--only", name)]


@pytest.mark.slow
def test_the_papers_recipe_goes_from_the_owners_downloads_to_the_page_and_goes_on_after_a_stop(
    cli: Cli, tmp_path: Path
) -> None:
    data, out, coco, voc = tmp_path / "downloads", tmp_path / "rows", Split.load("coco"), Split.load("voc")
    write_coco(data, coco)
    spelt = [voc.spelt(label) for label in chain(*voc.groups.values())]
    write_glove(data / "glove.6B.300d.txt", [*chain(*coco.groups.values()), *spelt])
    bench = ("bench", PAPER, "--data", data, "--out", out, "--json")

    untrained = (*bench, *runs("protonet", "protonet-1-shot"), *settings(TINY))
    stopped = cli(*untrained)
    assert stopped.code == 2
    assert "VOCdevkit" in stopped.err
    measured = {path: path.stat().st_mtime_ns for path in out.glob("**/*.parquet")}
    assert sorted(path.name for path in measured) == [f"protonet.{phase}.parquet" for phase in ("any", "mixed", "test")]
    write_voc(data / "VOCdevkit", voc)
    found = json.loads(cli(*untrained).out)
    assert set(found) == {
        *(f"coco/protonet on {phase}" for phase in ("test", "mixed", "any")),
        *("voc/protonet on test", "laso/protonet-1-shot on test"),
    }
    assert {path: path.stat().st_mtime_ns for path in measured} == measured

    seeds = [f"word-attention{kind}-seed-{seed}" for kind in ("-frozen", "-1-shot") for seed in (0, 1)]
    assert cli(*bench, *runs(*seeds), *settings(TINY, SHORT)).code == 0
    rows = read_rows(out / "coco" / "word-attention-frozen-seed-1.test.parquet")
    assert (rows[0].data, rows[0].base_pictures) == ("coco-original", 4 * len(coco.groups["base"]))
    assert cli("report", out).code == 0
    page = (out / "RESULTS.md").read_text()
    for name in ("coco", "voc", "laso"):
        assert f"({name}-original)\n" in page
    assert page.count("| word-attention-frozen |") >= 2
    assert "2 seeds ± " in page
