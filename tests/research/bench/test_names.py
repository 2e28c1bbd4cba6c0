"""Class names, whitened rivals, names alone and single-label supports, from the recipe to the rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from fewtag.errors import InputError
from fewtag.research.bench import measure
from fewtag.research.bench.distributed import Bench
from fewtag.research.bench.evaluate import Pool
from fewtag.research.bench.experiment import Experiment
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.bench.results import read_rows
from fewtag.research.data.sampling import Draw
from fewtag.research.data.splits import class_names, overlapping_classes
from fewtag.research.features.rows import MemoryRows, take_all
from fewtag.research.methods import Base
from fewtag.research.methods.closed_form import ClosedForm

Cli = Callable[..., Any]
RECIPE = Path(__file__).parents[3] / "recipes" / "posterior.toml"
NAMES = ('names={classifier="test_resnet", weights="random", size=64}',)
CLOSED = ("method={name='closed-form', space=16}",)


@pytest.fixture(autouse=True)
def look_for_no_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of these tests know two classes; suggestions for the 998 others would take seconds."""
    monkeypatch.setattr("fewtag.words.vectors.spelt_like", lambda *_: [])


def opened(shapes: Path, *changes: str) -> Experiment:
    ((_, recipe),) = load_recipes(shapes / "recipe.toml", only=["protonet"], changes=changes)
    return Experiment(recipe, shapes, shapes)


def know_some_classes(shapes: Path) -> None:
    """Words for ImageNet's first two classes, and for the last synonym of a third."""
    path = shapes / "words.txt"
    rows = [f"{word} " + " ".join(["0.5"] * 15 + [str(number)]) for number, word in enumerate(("tench", "goldfish"))]
    path.write_text(path.read_text() + "\n".join([*rows, "torpedo " + " ".join(["1"] * 16)]) + "\n")


def test_classes_are_known_by_their_first_three_synonyms(shapes: Path) -> None:
    know_some_classes(shapes)
    words, numbers = opened(shapes, *NAMES).class_words()
    assert numbers == [0, 1], "torpedo is the fourth name of the electric ray"
    assert words[:, -1].tolist() == [0, 1]


def test_words_that_know_no_class_are_refused(shapes: Path) -> None:
    with pytest.raises(InputError, match="know no class name of 'imagenet-1k'"):
        opened(shapes, *NAMES).class_words()


def test_clean_names_leave_out_what_overlaps_the_splits_new_labels() -> None:
    def numbers(variant: str) -> list[int]:
        ((_, recipe),) = load_recipes(RECIPE, only=[f"posterior-{variant}-1-shots"])
        return Experiment(recipe, RECIPE.parent, RECIPE.parent).class_words()[1]

    left_out = overlapping_classes("imagenet-1k", "coco")
    everything, clean = numbers("all"), numbers("clean")
    assert len(everything) > 0.9 * len(class_names("imagenet-1k"))
    assert clean == [number for number in everything if number not in left_out]


def test_names_change_a_method_with_words_and_are_told_in_its_rows(cli: Cli, shapes: Path) -> None:
    know_some_classes(shapes)
    common = ("bench", shapes / "recipe.toml", "--only", "protonet")

    def rows(out: str, *changes: str) -> list[Any]:
        told = cli(*common, "--out", out, *(part for change in changes for part in ("--set", change)))
        assert told.code == 0, told.err
        return read_rows(Path(out) / "recipe" / "protonet.test.parquet")

    alone = (*CLOSED, "evaluation.shots=0")
    plain, named = rows("plain", *alone), rows("named", *alone, NAMES[0].replace("}", ", weight=9.0}"))
    assert ({row.names for row in plain}, {row.names for row in named}) == ({None}, {"all"})
    assert [row.micro_ap for row in plain] != [row.micro_ap for row in named]
    assert {row.names for row in rows("protonet", *NAMES)} == {None}, "it uses no words"
    whitened = rows("whitened", "space.size=16")
    assert {row.space for row in whitened} == {"16, shrinkage 2"}
    assert whitened[0].base_pictures, "the space is solved on them"
    assert [row.micro_ap for row in whitened] != [row.micro_ap for row in rows("as-they-are")]


def test_runs_on_the_same_base_pictures_and_network_read_their_features_once(
    cli: Cli, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []
    read = measure.global_features
    monkeypatch.setattr(measure, "global_features", lambda rows: (times.append(1), read(rows))[1])
    monkeypatch.setattr(measure, "_base_features", {})
    recipe = ("bench", shapes / "recipe.toml", "--only", "protonet", "--set", "space.size=8", "--force")
    said = [cli(*recipe, "--json", "--set", f"seed={seed}") for seed in (0, 0, 1)]
    assert [each.code for each in said] == [0, 0, 0]
    assert said[0].out == said[1].out
    assert len(times) == 2, "another seed has other random weights"


def test_a_class_has_the_chances_in_the_column_of_its_number(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, given = opened(shapes, *CLOSED, *NAMES), list[Base]()
    bench = Bench(Fabric(accelerator="cpu", devices=1), shapes / "features")
    soft = measure.read_features(experiment.phase("train"), experiment.build_classifier(), bench, "chances")
    monkeypatch.setattr(experiment, "class_words", lambda: (torch.zeros(2, 16), [7, 3]))
    monkeypatch.setattr(ClosedForm, "prepare", lambda _, base: given.append(base))
    backbone, method = experiment.build()
    measure.solve(method, experiment, backbone, bench)
    (base,) = given
    assert base.names is not None
    assert torch.equal(base.names.chances, torch.cat(list(take_all(soft))).float()[:, [7, 3]])


def test_a_classifier_of_other_classes_is_refused(shapes: Path) -> None:
    changed = NAMES[0].replace("}", ', classes="imagenet-22k"}')
    with pytest.raises(InputError, match="'test_resnet' has 1000 classes, 'imagenet-22k' has 21"):
        opened(shapes, changed).build_classifier()


def test_names_alone_are_measured_on_the_queries_of_one_shot(shapes: Path) -> None:
    one, none = (opened(shapes, *CLOSED, f"evaluation.shots={shots}").test_draws("test") for shots in (1, 0))
    assert [draw.query for draw in none] == [draw.query for draw in one]
    assert {draw.support for draw in none} == {()}


def test_a_single_label_support_names_the_label_that_each_picture_was_drawn_for(shapes: Path) -> None:
    changes = ("evaluation.shots=2", "evaluation.supports=single")
    complete, single = (opened(shapes, *some).test_draws("test") for some in (changes[:1], changes))
    assert [(draw.support, draw.query) for draw in single] == [(draw.support, draw.query) for draw in complete]
    assert {draw.named for draw in single} == {(0, 0, 1, 1)}


def test_what_a_support_picture_does_not_name_is_not_among_its_targets() -> None:
    targets = torch.ones(4, 2, dtype=torch.bool)
    pool = Pool(("a", "b"), MemoryRows(torch.zeros(4, 1, 1, 1)), torch.zeros(2, 3), targets)
    episode = pool.episode(Draw((0, 1), (2, 3), named=(0, 1)))
    assert episode.support.targets.tolist() == [[True, False], [False, True]]
    assert episode.targets.all()
    assert pool.episode(Draw((0, 1), (2, 3))).support.targets.all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("evaluation.supports=single", "evaluation.sampling=halves"), "needs sampling = 'per-label', found 'halves'"),
        (("evaluation.shots=0", "evaluation.sampling=at-least"), "shots = 0 needs sampling"),
        (("evaluation.shots=0", "method.name=protonet"), "method 'protonet' knows no label by its name alone"),
        (("space.size=8", "training.episodes=3"), r"\[space\] is for methods that train nothing"),
        (("names.variant=some",), r"names\.variant: .*'clean', found 'some'"),
        (("names.classifer=x",), "unknown key 'names.classifer'; did you mean 'classifier'"),
    ],
)
def test_settings_that_rule_each_other_out_are_refused(shapes: Path, changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        opened(shapes, *changes)


def test_settings_that_came_later_leave_the_digest_of_a_recipe_as_it_was(shapes: Path) -> None:
    def digest(*changes: str) -> str:
        return opened(shapes, *changes).recipe.digest

    plain = digest()
    assert digest("evaluation.supports=complete") == plain
    later = {digest(*NAMES), digest("space.size=8"), digest("sessions.seeds=2"), digest("evaluation.supports=single")}
    assert len(later - {plain}) == 4


def test_halves_are_measured_like_episodes(cli: Cli, shapes: Path) -> None:
    changes = ("evaluation.sampling=halves", "evaluation.shots=3", "evaluation.episodes=2")
    recipe = ("bench", shapes / "recipe.toml", "--only", "protonet")
    assert cli(*recipe, *(part for change in changes for part in ("--set", change))).code == 0
    rows = read_rows(Path("results/recipe/protonet.test.parquet"))
    assert [(row.sampling, row.shots) for row in rows] == [("halves", 3)] * 2
    assert cli("report", "results").code == 0
    page = Path("results/RESULTS.md").read_text()
    assert "## Examples at the pictures' own frequencies" in page
    assert f"{100 * np.mean([row.macro_ap for row in rows]):.2f} ±" in page
