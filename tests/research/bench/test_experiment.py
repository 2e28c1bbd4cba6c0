"""What a recipe names, found and loaded; what it names wrongly, refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtag.errors import InputError
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.data.sampling import Draw, save_draws

COCO = 'data.sources=[{format="coco", path="coco.json", images="images"}]'
VOC = 'data.sources=[{format="voc", path="VOC2012"}]'


def open_experiment(shapes: Path, *changes: str, skip_bad: bool = False) -> Experiment:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=["attention"], changes=changes)
    return Experiment(recipe, shapes, shapes, skip_bad=skip_bad)


def save_test_draws(experiment: Experiment, episodes: int, seed: int = 0) -> None:
    draws = experiment.sample_draws("test", seed)[:episodes]
    path, images = experiment.root / "test.json", experiment.phase("test")
    save_draws(path, draws, images, split="shapes", phase="test", shots=1, queries=2, seed=0)


def test_each_phase_has_its_own_labels_and_pictures(shapes: Path) -> None:
    experiment = open_experiment(shapes)
    train, val = experiment.phase("train"), experiment.phase("val")
    assert train.labels == ("circle", "square", "triangle", "star")
    assert val.labels == ("cross", "ring", "moon")
    assert not set(train.ids) & set(val.ids)
    assert experiment.phase("train") is train


def test_random_weights_are_the_same_each_time(shapes: Path) -> None:
    first, method = open_experiment(shapes).build()
    second, again = open_experiment(shapes).build()
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != open_experiment(shapes, "seed=1").build()[0].fingerprint
    assert all(torch.equal(one, other) for one, other in zip(method.parameters(), again.parameters(), strict=True))


def test_words_come_in_the_order_asked_for(shapes: Path) -> None:
    lines = [line.split() for line in (shapes / "words.txt").read_text().splitlines()]
    table = {word: [float(number) for number in numbers] for word, *numbers in lines}
    found = open_experiment(shapes).words(["star", "circle"])
    assert torch.equal(found, torch.tensor([table["star"], table["circle"]]))


def test_files_count_in_the_digest_of_inputs_wherever_they_lie(shapes: Path) -> None:
    """A plus joins several sources, and may be a part of a folder's name."""
    folder = shapes.with_name("c++")
    shutil.copytree(shapes, folder)
    before = open_experiment(folder).inputs_digest
    assert before == open_experiment(shapes).inputs_digest
    with (folder / "words.txt").open("a") as file:
        file.write("more 1 2 3 4 5 6 7 8\n")
    assert open_experiment(folder).inputs_digest != before


def test_an_unknown_word_is_refused_with_the_recipes_way_out(shapes: Path) -> None:
    ways = r"'sofa' is unknown .*; in a recipe, map the label .* \(\"words\": .*\), or name another words\.source$"
    with pytest.raises(InputError, match=ways):
        open_experiment(shapes).words(["star", "sofa"])


def test_an_array_in_an_npz_file_is_found_beside_the_recipe(shapes: Path) -> None:
    np.savez(shapes / "words.npz", tiny=np.eye(2, dtype=np.float32), labels=np.array(["star", "ring"]))
    experiment = open_experiment(shapes, "words.source=words.npz#tiny")
    assert experiment.words(["ring"]).tolist() == [[0, 1]]


def test_a_phase_that_no_source_serves_is_refused(shapes: Path) -> None:
    sources = 'data.sources=[{format="table", path="labels.csv", images="images", phases=["train"]}]'
    experiment = open_experiment(shapes, sources)
    assert len(experiment.phase("train")) == 48
    with pytest.raises(InputError, match="no data source of recipe 'attention' serves phase 'val'"):
        experiment.phase("val")


def test_draws_from_a_file_are_used(shapes: Path) -> None:
    save_test_draws(open_experiment(shapes), episodes=5, seed=5)
    experiment = open_experiment(shapes, "evaluation.draws.test=test.json", "evaluation.episodes=3")
    assert experiment.test_draws("test") == experiment.sample_draws("test", 5)[:3]
    assert experiment.test_draws("test") != experiment.sample_draws("test")[:3]


def test_training_seeds_are_measured_on_the_same_episodes(shapes: Path) -> None:
    one, other = (open_experiment(shapes, f"seed={seed}").test_draws("test") for seed in (0, 1))
    assert one == other


def test_pictures_and_words_are_read_once_for_runs_that_share_them(shapes: Path) -> None:
    first = open_experiment(shapes)
    train, words = first.phase("train"), first.vectors
    same, others = open_experiment(shapes, "seed=1").share(first), open_experiment(shapes, COCO).share(first)
    assert same.phase("train") is train
    assert same.vectors is words is others.vectors
    assert others.recipe.data != first.recipe.data
    assert others._phases is not first._phases


@pytest.mark.parametrize(
    ("episodes", "change", "message"),
    [
        (2, "evaluation.episodes=3", "hold 2 episodes, the recipe asks for 3"),
        (2, "evaluation.shots=2", "draw 0 .* has 2 support images, the recipe asks for 4"),
        (2, "evaluation.queries=3", "draw 0 .* has 4 query images, the recipe asks for 6"),
        (2, "evaluation.sampling=with-replacement", "are by sampling 'per-label', not 'with-replacement'"),
        (0, "evaluation.episodes=1", "hold 0 episodes, the recipe asks for 1"),
    ],
)
def test_draws_that_do_not_fit_are_refused(shapes: Path, episodes: int, change: str, message: str) -> None:
    save_test_draws(open_experiment(shapes), episodes)
    with pytest.raises(InputError, match=message):
        open_experiment(shapes, "evaluation.draws.test=test.json", "evaluation.episodes=2", change).test_draws("test")


def test_draws_of_a_misspelt_phase_are_refused(shapes: Path) -> None:
    with pytest.raises(InputError, match=r"names 'tset', which is no phase of the split; did you mean 'test'\?"):
        open_experiment(shapes, "evaluation.draws.tset=test.json").test_draws("test")


def test_draws_for_labels_in_another_order_are_refused(shapes: Path) -> None:
    """A support picture that names one label names the one whose place it has."""
    save_test_draws(open_experiment(shapes), episodes=2)
    split = json.loads((shapes / "split.json").read_text())
    split["groups"]["novel"].reverse()
    (shapes / "split.json").write_text(json.dumps(split))
    with pytest.raises(InputError, match="in the place of a label that it does not show"):
        open_experiment(shapes, "evaluation.draws.test=test.json", "evaluation.episodes=2").test_draws("test")


def split_sides(shapes: Path) -> str:
    """Every other pair of pictures serves the support, the rest the query."""
    table = (shapes / "labels.csv").read_text().splitlines()
    for side, remainder in (("support", 0), ("query", 1)):
        kept = [line for line in table[1:] if int(re.findall(r"[0-9]+", line)[0]) // 2 % 2 == remainder]
        (shapes / f"{side}.csv").write_text("\n".join([table[0], *kept]) + "\n")
    sides = [f'{{format="table", path="{side}.csv", images="images", role="{side}"}}' for side in ("support", "query")]
    return f"data.sources=[{', '.join(sides)}]"


def at_least(shapes: Path, **settings: object) -> Experiment:
    changes = [f"evaluation.{key}={value}" for key, value in ({"sampling": "at-least"} | settings).items()]
    return open_experiment(shapes, split_sides(shapes), *changes)


def test_at_least_takes_support_and_query_from_their_own_sources(shapes: Path) -> None:
    experiment = at_least(shapes, shots=2, queries=3)
    images = experiment.phase("test")
    assert len(images) == 24
    for draw in experiment.test_draws("test"):
        for rows, least, remainder in ((draw.support, 2, 0), (draw.query, 3, 1)):
            assert images.targets[list(rows)].sum(axis=0).min() >= least
            assert {int(images.ids[row][5:-4]) // 2 % 2 for row in rows} == {remainder}


def save_at_least(experiment: Experiment, draws: list[Draw]) -> None:
    path = experiment.root / "test.json"
    about = {"split": "shapes", "phase": "test", "sampling": "at-least", "shots": 1, "queries": 2, "seed": 0}
    save_draws(path, draws, experiment.phase("test"), **about)


def test_draws_of_at_least_are_used_whatever_their_size(shapes: Path) -> None:
    drawn = at_least(shapes, shots=3, queries=3).sample_draws("test")
    assert {len(draw.support) for draw in drawn} != {2 * 3}
    save_at_least(at_least(shapes), drawn)
    other = at_least(shapes, **{"shots": 1, "queries": 3, "episodes": 4, "draws.test": "test.json"})
    assert other.test_draws("test") == drawn[:4] != other.sample_draws("test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 6}, "hold 5 episodes, the recipe asks for 6"),
        ({"shots": 3}, "shows a label in 2 support images, the recipe asks for at least 3; name other draws"),
        ({"queries": 4}, "shows a label in 3 query images, the recipe asks for at least 4; name other draws"),
    ],
)
def test_draws_that_show_a_label_too_seldom_are_refused(
    shapes: Path, settings: dict[str, object], message: str
) -> None:
    save_at_least(at_least(shapes), at_least(shapes, shots=2, queries=3).sample_draws("test"))
    with pytest.raises(InputError, match=message):
        at_least(shapes, **{"draws.test": "test.json"}, **settings).test_draws("test")


def test_draws_with_a_picture_on_the_wrong_side_are_refused(shapes: Path) -> None:
    turned = [Draw(draw.query, draw.support) for draw in at_least(shapes, queries=1).sample_draws("test")]
    save_at_least(at_least(shapes), turned)
    with pytest.raises(InputError, match=r"'\w+\.png' in the support, which its source does not serve"):
        at_least(shapes, **{"queries": 1, "draws.test": "test.json"}).test_draws("test")


def test_skip_bad_leaves_unreadable_pictures_out_and_says_which(shapes: Path) -> None:
    whole = open_experiment(shapes).phase("train")
    (shapes / "images" / "circle0.png").write_bytes(b"no picture")
    (shapes / "images" / "star3.png").unlink()
    experiment = open_experiment(shapes, skip_bad=True)
    assert set(whole.ids) - set(experiment.phase("train").ids) == {"circle0.png", "star3.png"}
    first, second = experiment.skipped
    assert "circle0.png cannot be decoded" in first
    assert "star3.png: there is no such file" in second


def test_every_reader_can_be_named(shapes: Path) -> None:
    folders = shapes / "folders"
    for label, name in (("cross", "cross0.png"), ("ring", "ring1.png"), ("moon", "moon2.png")):
        (folders / label).mkdir(parents=True)
        (shapes / "images" / name).rename(folders / label / name)
    found = open_experiment(shapes, 'data.sources=[{format="folders", path="folders"}]').phase("val")
    assert found.ids == ("cross/cross0.png", "moon/moon2.png", "ring/ring1.png")
    content = {
        "images": [{"id": 1, "file_name": "heart0.png"}, {"id": 2, "file_name": "arrow1.png"}],
        "annotations": [{"image_id": 1, "category_id": 7}, {"image_id": 2, "category_id": 8}],
        "categories": [{"id": 7, "name": "heart"}, {"id": 8, "name": "arrow"}],
    }
    (shapes / "coco.json").write_text(json.dumps(content))
    found = open_experiment(shapes, COCO).phase("test")
    assert found.ids == ("heart0.png", "arrow1.png")


def write_coco(shapes: Path) -> None:
    files = [f"{label}{number}.png" for label, number in (("heart", 0), ("arrow", 1), ("heart", 2), ("arrow", 3))]
    content = {
        "images": [{"id": number, "file_name": file} for number, file in enumerate(files)],
        "annotations": [{"image_id": number, "category_id": number % 2} for number in range(len(files))],
        "categories": [{"id": 0, "name": "heart"}, {"id": 1, "name": "arrow"}],
    }
    (shapes / "coco.json").write_text(json.dumps(content))


def write_voc(shapes: Path) -> None:
    folders = [shapes / "VOC2012" / name for name in ("ImageSets/Main", "Annotations", "JPEGImages")]
    for folder in folders:
        folder.mkdir(parents=True)
    images = {"heart0": "heart", "arrow1": "arrow", "heart2": "heart", "arrow3": "arrow"}
    (folders[0] / "trainval.txt").write_text("\n".join(images))
    for image, label in images.items():
        xml = f"<annotation><object><name>{label}</name></object></annotation>"
        (folders[1] / f"{image}.xml").write_text(xml)
        (shapes / "images" / f"{image}.png").rename(folders[2] / f"{image}.jpg")


@pytest.mark.parametrize(
    ("write", "source", "file"),
    [(write_coco, COCO, "images/heart2.png"), (write_voc, VOC, "VOC2012/JPEGImages/heart2.jpg")],
)
def test_coco_and_voc_pictures_that_are_missing_are_refused_or_skipped(shapes: Path, write, source, file) -> None:
    write(shapes)
    (shapes / file).unlink()
    with pytest.raises(InputError, match=r"1 of 4 images are missing, the first is .*heart2"):
        open_experiment(shapes, source).phase("test")
    experiment = open_experiment(shapes, source, skip_bad=True)
    assert len(experiment.phase("test")) == 3
    (reason,) = experiment.skipped
    assert "heart2" in reason
    assert "there is no such file" in reason
