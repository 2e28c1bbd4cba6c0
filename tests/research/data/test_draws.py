import json
from pathlib import Path

import numpy as np
import pytest

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import Draw, EpisodeSampler, load_draws, save_draws


@pytest.fixture
def images():
    ids = tuple(f"photo {number}.jpg" for number in range(30))
    targets = np.random.default_rng(0).random((30, 2)) < 0.7
    return LabelledImages(ids, tuple(Picture(Path(name)) for name in ids), ("dog", "cat"), targets)


@pytest.fixture
def saved(images, tmp_path):
    sampler = EpisodeSampler(images.targets, images.labels)
    draws = [sampler.draw(index) for index in range(3)]
    path = tmp_path / "draws.json"
    save_draws(path, draws, images, split="tiny", phase="test", shots=1, queries=4, seed=0)
    return path, draws


def test_draws_come_back_as_they_were(saved, images):
    path, draws = saved
    assert load_draws(path, images) == draws


def test_draws_follow_their_pictures_when_rows_move(saved, images):
    path, draws = saved
    rows = list(reversed(range(30)))
    assert [29 - row for row in load_draws(path, images.select(rows))[0].support] == list(draws[0].support)


def test_a_file_says_where_it_comes_from_with_a_line_a_draw(saved, images):
    path, draws = saved
    content = json.loads(path.read_text())
    assert {key: content[key] for key in ("split", "phase", "sampling", "shots", "queries", "seed")} == {
        "split": "tiny", "phase": "test", "sampling": "per-label", "shots": 1, "queries": 4, "seed": 0,
    }  # fmt: skip
    assert content["data"] == images.digest
    assert len(path.read_text().splitlines()) == len(draws) + 2
    assert [file.name for file in path.parent.iterdir()] == ["draws.json"]


def test_draws_of_different_sizes_come_back_as_they_were(images, tmp_path):
    draws = [Draw((0, 1), (2, 3, 4)), Draw((5,), (1, 0))]
    path = tmp_path / "sets.json"
    save_draws(path, draws, images, split="tiny", phase="test", sampling="at-least", shots=1, queries=1, seed=0)
    assert load_draws(path, images, "at-least") == draws
    assert json.loads(path.read_text())["sampling"] == "at-least"


def test_a_picture_may_come_twice_where_draws_are_with_replacement(images, tmp_path):
    draws, path = [Draw((0, 0), (0, 3, 4))], tmp_path / "again.json"
    about = {"split": "tiny", "phase": "test", "shots": 1, "queries": 1, "seed": 0}
    save_draws(path, draws, images, sampling="with-replacement", **about)
    assert load_draws(path, images, "with-replacement") == draws
    with pytest.raises(InputError, match="are by sampling 'with-replacement', not 'per-label'"):
        load_draws(path, images)


def test_draws_of_another_data_set_are_refused(saved, images):
    path, _ = saved
    with pytest.raises(InputError, match="are of another data set"):
        load_draws(path, images.select(range(29)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content["draws"][1]["query"].append("ghost.jpg"),
            r"draw 1 .* 'ghost\.jpg' is not in the data",
        ),
        (lambda content: content["draws"][0]["query"].append(content["draws"][0]["support"][0]), "draw 0 .* twice"),
        (lambda content: content["draws"][2].pop("query"), "draw 2 .* has no list of ids 'query'"),
        (lambda content: content.update(format=99), "have format 99"),
        (lambda content: content.pop("draws"), 'no list "draws"'),
    ],
)
def test_a_bad_file_is_refused(saved, images, change, message):
    path, _ = saved
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_draws(path, images)


def test_what_is_no_json_or_no_folder_is_refused(images, tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        load_draws(tmp_path / "x.json", images)
    with pytest.raises(InputError, match=r"there is no file of draws .*gone\.json"):
        load_draws(tmp_path / "gone.json", images)
    with pytest.raises(InputError, match="cannot make the folder"):
        save_draws(tmp_path / "x.json" / "y.json", [], images, split="", phase="", shots=1, queries=4, seed=0)
