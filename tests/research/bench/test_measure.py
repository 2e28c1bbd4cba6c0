"""Measuring: a row an episode, written whole or not at all, and never measured twice without need."""

import importlib
import json
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fewtag.cache_upkeep import CacheUpkeep
from fewtag.research.bench import measure as module
from fewtag.research.bench.recipe import Recipe
from fewtag.research.bench.results import METRICS, read_rows, write_rows
from fewtag.research.bench.train import prepare
from fewtag.research.methods import METHODS
from fewtag.research.methods.protonet import ProtoNet

Cli = Callable[..., Any]
ROW = {"method", "data", "split", "backbone", "words", "shots", "episode", "seed", "recipe_digest", "command", "commit"}


def rows_of(path: Path) -> list[dict[str, object]]:
    return [row.model_dump() for row in read_rows(path)]


@pytest.fixture
def bench(cli: Cli, shapes: Path):
    """Measures the run without training, which takes no time."""
    return lambda *more: cli("bench", shapes / "recipe.toml", "--only", "protonet", *more)


def test_a_row_an_episode_with_all_that_it_takes_to_repeat_it(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_COMMIT", "abc123")
    assert bench("--set", "seed=3").code == 0
    rows = rows_of(Path("results/recipe/protonet.test.parquet"))
    assert [row["episode"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows:
        assert {*METRICS, *ROW} <= set(row)
        assert all(0 <= float(str(row[name])) <= 1 for name in METRICS)
        assert (row["seed"], row["commit"], row["method"], row["shots"]) == (3, "abc123", "protonet", 1)
        assert (row["device"], row["torch"], row["timm"]) == ("cpu", version("torch"), version("timm"))
        assert str(row["command"]).startswith("fewtag bench ")
        assert str(row["command"]).endswith("--only protonet --set seed=3")
    assert [path.name for path in Path("results/recipe").iterdir()] == ["protonet.test.parquet"]


def test_what_is_measured_is_not_measured_again_unless_forced(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *given, **more: (times.append(1), evaluate(*given, **more))[1])
    first = bench("--json")
    assert (bench("--json").out, len(times)) == (first.out, 1)
    assert (bench("--json", "--force").out, len(times)) == (first.out, 2)


def test_copies_of_a_picture_among_the_measured_are_told_of(bench, shapes: Path) -> None:
    assert "copies" not in bench().err
    images, table = shapes / "images", shapes / "labels.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    one, other = [name for name, labels in rows if labels == "heart"][:2]
    (images / Path(other).name).write_bytes((images / Path(one).name).read_bytes())
    said = bench("--out", "again")
    assert said.code == 0
    assert f"are copies of others, such as {other!r} of {one!r}: one may be support" in said.err


def test_queries_that_a_method_learnt_from_are_told_of(bench, shapes: Path) -> None:
    learns, told = ("--set", "method.name=protonet-centred"), "are base pictures that the method learns from"
    table, split = shapes / "labels.csv", json.loads((shapes / "split.json").read_text())
    table.write_text(table.read_text().replace(",heart\n", ",heart;square\n"))
    assert told in bench(*learns).err
    assert told not in bench("--out", "learns-nothing").err
    split["phases"]["train"]["must_not_show"] = ["novel"]
    (shapes / "split.json").write_text(json.dumps(split))
    assert told not in bench(*learns, "--out", "apart").err


def test_rows_of_another_recipe_are_not_overwritten_unless_forced(bench) -> None:
    assert bench().code == 0
    (path,) = Path("results").glob("**/*.parquet")
    kept = path.read_bytes()
    said = bench("--set", "seed=1")
    assert (said.code, "holds rows of another recipe" in said.err, path.read_bytes()) == (2, True, kept)
    assert bench("--set", "seed=1", "--force").code == 0
    assert path.read_bytes() != kept


def test_json_is_strict_even_for_a_single_episode(bench) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    said = bench("--json", "--set", "evaluation.episodes=1").out
    (found,) = json.loads(said, parse_constant=refuse).values()
    assert set(found) == set(METRICS)
    assert found["macro_ap"]["interval"] is None


def test_json_gives_the_means_of_the_rows(bench) -> None:
    found = json.loads(bench("--json").out)["protonet on test"]
    values = [float(str(row["macro_ap"])) for row in rows_of(Path("results/recipe/protonet.test.parquet"))]
    assert math.isclose(found["macro_ap"]["mean"], sum(values) / 5)


def test_the_table_for_people_names_the_run(bench) -> None:
    said = bench()
    assert "protonet on test" in said.out
    assert "macro-AP" in said.out


def test_at_least_is_drawn_saved_trained_for_without_validation_and_measured(cli: Cli, shapes: Path) -> None:
    recipe = (shapes / "recipe.toml", "--set", "evaluation.sampling=at-least", "--set", "evaluation.shots=3")
    assert cli("draws", *recipe, "--out", shapes).out.strip() == str(shapes / "shapes-test-3-shots.json")
    assert json.loads((shapes / "shapes-test-3-shots.json").read_text())["sampling"] == "at-least"
    fixed = ("--set", "training.patience=0", "--set", "training.episodes=3")
    saved = ("--set", "evaluation.draws.test=shapes-test-3-shots.json")
    assert cli("bench", *recipe, *saved, *fixed, "--only", "attention").code == 0
    rows = rows_of(Path("results/recipe/attention.test.parquet"))
    assert [(row["shots"], row["trained_episodes"]) for row in rows] == [(3, 3)] * 5
    assert rows[0]["validation_macro_ap"] is None
    assert len({row["macro_ap"] for row in rows}) > 1


def test_draws_from_a_file_give_the_same_rows_whatever_the_seed(bench, cli: Cli, shapes: Path) -> None:
    assert cli("draws", shapes / "recipe.toml", "--out", shapes / "draws").code == 0
    saved = ("--set", "evaluation.draws.test=draws/shapes-test.json", "--json")
    by_seed, from_file = bench("--json"), bench(*saved, "--force")
    assert from_file.out == by_seed.out
    (shapes / "draws" / "shapes-test.json").rename(shapes / "draws" / "other.json")
    assert cli("draws", shapes / "recipe.toml", "--out", shapes / "draws", "--seed", "9").code == 0
    assert bench(*saved, "--force").out != by_seed.out


def test_draws_are_made_for_all_runs_and_a_name_that_two_claim_is_refused(cli: Cli, shapes: Path) -> None:
    runs = '[[runs]]\nname = "protonet-{shots}"\nmethod.name = "protonet"\ngrid.evaluation.shots = [1, 3]\n'
    common, _, _ = (shapes / "recipe.toml").read_text().partition("[[runs]]")
    (shapes / "grid.toml").write_text(common + runs)
    drawn = cli("draws", shapes / "grid.toml", "--out", shapes / "draws").out.split()
    assert drawn == [str(shapes / "draws" / name) for name in ("shapes-test.json", "shapes-test-3-shots.json")]
    other = '[[runs]]\nname = "other"\nmethod.name = "protonet"\nevaluation.queries = 1\n'
    (shapes / "grid.toml").write_text(common + runs + other)
    said = cli("draws", shapes / "grid.toml", "--out", shapes / "refused")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "the runs 'protonet-1' and 'other' ask for different draws of one name" in said.err
    assert "choose one with --only protonet-1" in said.err
    assert not (shapes / "refused").exists()
    one = cli("draws", shapes / "grid.toml", "--out", shapes / "one", "--only", "other")
    assert one.out.split() == [str(shapes / "one" / "shapes-test.json")]


def test_runs_that_are_measured_with_other_shots_share_one_training(
    cli: Cli, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = 'name = "attention-{shots}"\ngrid.evaluation.shots = [1, 3]'
    (shapes / "recipe.toml").write_text((shapes / "recipe.toml").read_text().replace('name = "attention"', grid))
    trained: list[str] = []
    monkeypatch.setattr(
        "fewtag.research.bench.train.prepare",
        lambda experiment, *given: (trained.append(experiment.recipe.name), prepare(experiment, *given))[1],
    )
    short = ("--set", "training.episodes=4", "--set", "training.validate_every=4")
    assert cli("bench", shapes / "recipe.toml", "--only", "attention-1", "--only", "attention-3", *short).code == 0
    assert trained == ["attention-1"]
    assert len(list(Path("runs").glob("*/"))) == 1
    first, second = (rows_of(Path(f"results/recipe/attention-{shots}.test.parquet"))[0] for shots in (1, 3))
    assert first["validation_macro_ap"] == second["validation_macro_ap"]
    assert (first["shots"], second["shots"]) == (1, 3)


def test_rows_do_not_pass_for_done_once_a_default_changes_in_code(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(ProtoNet):
        def __init__(self, channels: int, dimensions: int, *, scale: float = 1.0) -> None:
            super().__init__(channels, dimensions, scale=scale)

    assert bench().code == 0
    monkeypatch.setitem(METHODS, "protonet", Changed)
    said = bench()
    assert (said.code, "holds rows of another recipe" in said.err) == (2, True)


def test_rows_of_another_digest_are_refused(bench) -> None:
    assert bench().code == 0
    path = Path("results/recipe/protonet.test.parquet")
    write_rows(path, [row.model_copy(update={"recipe_digest": "0123456789ab"}) for row in read_rows(path)])
    assert bench().code == 2


@pytest.mark.parametrize(
    ("method", "file", "old", "new"),
    [
        ("protonet-centred", "labels.csv", "circle0.png,circle;", "circle0.png,"),
        ("protonet-centred", "words.txt", "0", "1"),
        ("protonet-centred", "split.json", '"name": "shapes"', '"name": "shapes", "words": {"heart": "star"}'),
        ("kggr", "labels.csv", "circle0.png,circle;", "circle0.png,"),  # its new labels' edges are as strong as these
    ],
)
def test_rows_of_other_base_pictures_or_other_words_are_refused(
    bench, shapes: Path, method: str, file: str, old: str, new: str
) -> None:
    learns = ("--set", f"method.name={method}")
    assert (bench(*learns).code, bench(*learns).code) == (0, 0)
    path = shapes / file
    path.write_text(path.read_text().replace(old, new))
    said = bench(*learns)
    assert (said.code, "of other data (base pictures" in said.err) == (2, True)
    assert bench(*learns, "--force").code == 0


def test_rows_of_a_method_whose_file_has_changed_are_refused(
    bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own_method.py"
    file.write_text("from fewtag.research.methods.protonet import ProtoNet\n\nclass Own(ProtoNet):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "own", importlib.import_module("own_method").Own)
    own = ("--set", "method.name=own")
    assert (bench(*own).code, bench(*own).code) == (0, 0)
    file.write_text(file.read_text() + "    scale = 2.0\n")
    assert (bench(*own).code, bench(*own, "--force").code) == (2, 0)


def test_a_write_that_fails_leaves_no_rows(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        said = bench()
    assert (said.code, "No space left on device" in said.err) == (2, True)
    assert not list(Path("results").glob("**/*.parquet"))
    assert bench().code == 0


def test_rows_cut_short_are_refused_until_forced(bench) -> None:
    assert bench().code == 0
    path = Path("results/recipe/protonet.test.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    said = bench()
    assert (said.code, "is no Parquet file, or a part of one; measure it again" in said.err) == (2, True)
    assert bench("--force").code == 0


def test_a_bad_protocol_is_refused_before_training(cli: Cli, shapes: Path) -> None:
    said = cli("bench", shapes / "recipe.toml", "--only", "attention", "--set", "evaluation.draws.test=gone.json")
    assert (said.code, "there is no file of draws" in said.err) == (2, True)
    assert not Path("runs").exists()


def test_end_to_end_a_run_is_trained_then_measured_with_its_own_backbone(cli: Cli, shapes: Path) -> None:
    changes = ("--set", "backbone.frozen=false", "--set", "training.episodes=2", "--set", "training.validate_every=2")
    assert cli("bench", shapes / "recipe.toml", "--only", "attention", *changes).code == 0
    (first, *_) = rows_of(Path("results/recipe/attention.test.parquet"))
    assert (first["frozen"], first["trained_episodes"], first["planned_episodes"]) == (False, 2, 2)
    assert not [space for space in CacheUpkeep(Path("cache/fewtag")).contents() if space.kind == "features"], (
        "used once"
    )


@pytest.mark.parametrize("change", ["backbone.weights=gone.pth", "backbone.name=resnet51", "words.source=gone.txt"])
def test_what_cannot_be_measured_leaves_no_folder(bench, change: str) -> None:
    assert bench("--set", change).code == 2
    assert not Path("results").exists()


def test_a_folder_that_was_there_stays(bench) -> None:
    Path("results/recipe").mkdir(parents=True)
    assert bench("--set", "backbone.weights=gone.pth").code == 2
    assert Path("results/recipe").is_dir()


def test_a_file_of_rows_holds_the_whole_recipe_with_every_default(bench) -> None:
    assert bench().code == 0
    path = Path("results/recipe/protonet.test.parquet")
    told = json.loads(pq.read_metadata(path).metadata[b"recipe"])
    assert (told["name"], told["backbone"]["size"], told["evaluation"]["sampling"]) == ("protonet", 64, "per-label")
    assert Recipe.model_validate(told).digest == rows_of(path)[0]["recipe_digest"]


def test_rows_tell_their_draws(bench, cli: Cli, shapes: Path) -> None:
    def digest(*more: str) -> object:
        assert bench(*more, "--force").code == 0
        return rows_of(Path("results/recipe/protonet.test.parquet"))[0]["draws_digest"]

    assert cli("draws", shapes / "recipe.toml", "--out", shapes / "draws").code == 0
    saved = ("--set", "evaluation.draws.test=draws/shapes-test.json")
    drawn = digest()
    assert digest(*saved, "--set", "seed=9") == drawn
    assert digest("--set", "seed=9") == drawn, "training seeds are compared on the same episodes"
    assert digest("--set", "evaluation.episodes=4") != drawn


def test_rows_of_draws_that_were_drawn_anew_are_not_taken_for_measured(bench, cli: Cli, shapes: Path) -> None:
    saved = ("--set", "evaluation.draws.test=draws/shapes-test.json")
    for seed in ("0", "0", "1"):
        assert cli("draws", shapes / "recipe.toml", "--out", shapes / "draws", "--seed", seed).code == 0
        said = bench(*saved)
        assert (said.code, "of other draws" in said.err) == ((2, True) if seed == "1" else (0, False))
    assert bench(*saved, "--force").code == 0


def test_only_pictures_that_are_drawn_are_encoded(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench().code == 0
    expected = rows_of(Path("results/recipe/protonet.test.parquet"))
    encoded: list[int] = []
    features = module.feature_rows
    monkeypatch.setattr(
        module,
        "feature_rows",
        lambda images, *given, **more: (encoded.append(len(images)), features(images, *given, **more))[1],
    )
    assert bench("--force", "--set", "evaluation.episodes=1").code == 0
    (row,) = rows_of(Path("results/recipe/protonet.test.parquet"))
    assert encoded == [2 * (row["shots"] + row["queries"])]  # two novel labels
    assert {name: row[name] for name in METRICS} == {name: expected[0][name] for name in METRICS}
