"""Facts about the measurement packs; skipped where they are absent."""

import time
from pathlib import Path

import pytest

from fewtag.research.data.readers import read_table
from fewtag.research.data.sampling import EpisodeSampler, load_draws
from fewtag.research.data.splits import Split

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(("phase", "images"), [("train", 10723), ("val", 2181), ("test", 3773), ("mixed", 2608)])
def test_a_coco_pack_serves_its_phase_whole(packs, phase, images):
    read = read_table(packs / "coco" / "labels.tsv", where={"pack": [phase]})
    served = Split.load("coco").phase(read, phase)
    assert len(read) == len(served) == images
    assert served.pictures[0].pixels(224).shape == (3, 224, 224)
    sampler = EpisodeSampler(served.targets, served.labels)
    sampler.draw(0)
    begun = time.process_time()
    for index in range(20):
        sampler.draw(index)
    # under 3 ms here; ten times that, for slower machines
    assert (time.process_time() - begun) / 20 < 0.03


@pytest.mark.parametrize(("pack", "phase", "images"), [("vocbase", "train", 1470), ("vocval", "val", 403)])
def test_coco_pictures_serve_voc(packs, pack, phase, images):
    read = read_table(packs / "coco" / "labels.tsv", where={"pack": [pack]})
    assert len(Split.load("voc").phase(read, phase, other_labels="ignore")) == images


def test_voc_novel_pictures_may_show_other_labels(packs):
    read = read_table(packs / "voc" / "labels.tsv")
    assert [len(Split.load("voc").phase(read, phase)) for phase in ("test", "test-only")] == [788, 615]


def test_some_coco_images_stand_in_several_packs_with_the_same_labels(packs):
    lines = (packs / "coco" / "labels.tsv").read_text().splitlines()
    every = read_table(packs / "coco" / "labels.tsv")
    assert len(every) == len({line.split("\t")[1] for line in lines[1:]}) < len(lines) - 1


@pytest.mark.parametrize(("file", "shots", "sizes"), [("laso-test", 1, (10, 15)), ("laso-test-5-shots", 5, (54, 61))])
def test_lasos_draws_have_at_least_so_many_pictures_a_label_each_side_from_its_own_half(packs, file, shots, sizes):
    table, pack = packs / "coco" / "labels.tsv", ["test", "mixed"]
    images = Split.load("laso").phase(read_table(table, where={"pack": pack}), "test")
    halves = [read_table(table, where={"pack": pack, "split2014": [half]}) for half in ("train2014", "val2014")]
    draws = load_draws(Path(__file__).parents[3] / "recipes" / "draws" / f"{file}.json", images, "at-least")
    assert (len(images), len(draws)) == (6381, 10)
    assert (min(len(draw.support) for draw in draws), max(len(draw.support) for draw in draws)) == sizes
    for draw in draws:
        for rows, half, least in ((draw.support, halves[0], shots), (draw.query, halves[1], 137)):
            assert {images.ids[row] for row in rows} <= set(half.ids)
            assert images.targets[list(rows)].sum(axis=0).min() >= least
