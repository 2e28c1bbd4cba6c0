"""Recipes: the paper's defaults, overrides, and one sentence for each mistake."""

import inspect
import json
import re
from itertools import starmap
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic.fields import FieldInfo

from fewtag.errors import InputError
from fewtag.research.bench.recipe import (
    BackboneSettings,
    Data,
    Evaluation,
    MethodSettings,
    NameSettings,
    Recipe,
    SessionSettings,
    Source,
    SpaceSettings,
    Training,
    WordSettings,
)
from fewtag.research.bench.recipe_files import load_recipes
from fewtag.research.data.splits import Split
from fewtag.research.methods import METHODS
from fewtag.research.methods.protonet import ProtoNet

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
DATA = """
[data]
name = "pets"
split = "coco"
sources = [{ format = "table", path = "labels.csv" }]
"""
METHOD_OF_RUN = 'method.name = "word-attention"\n'
METHOD = '[method]\nname = "word-attention"\n'


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "pets.toml"
        path.write_text(text)
        return path

    return write


def only(path: Path, *changes: str) -> Recipe:
    ((_, recipe),) = load_recipes(path, changes=changes)
    return recipe


def test_defaults_are_the_papers(write) -> None:
    recipe = only(write(DATA + METHOD + "[training]\n"))
    assert recipe.training is not None
    assert recipe.training.model_dump() == {
        "episodes": 80_000,
        "shots": 1,
        "queries": 4,
        "episodes_per_step": 1,
        "learning_rate": 1e-3,
        "warmup": 4_000,
        "warmup_from": 0.0,
        "validate_every": 50,
        "validation_episodes": 100,
        "patience": 10,
        "keep": "best",
        "cycle": 0,
        "backbone_share": 1.0,
        "checkpoint_every": 500,
    }
    assert (recipe.evaluation.episodes, recipe.evaluation.shots, recipe.evaluation.queries) == (200, 1, 4)
    assert (recipe.name, recipe.seed, recipe.backbone.size, recipe.words.source) == ("pets", 0, 224, "glove-50")


def test_without_a_training_table_nothing_is_trained(write) -> None:
    assert only(write(DATA + METHOD)).training is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 3\n" + DATA + METHOD, r"unknown key 'sed'; did you mean 'seed'\?"),
        (DATA + METHOD + "[training]\nepisode = 3\n", r"unknown key 'training\.episode'; did you mean 'episodes'"),
        (DATA.replace("path =", "pathh =") + METHOD, r"unknown key 'data\.sources\.0\.pathh'; did you mean 'path'"),
        (DATA + METHOD.replace("atten", "aten"), r"unknown method 'word-atention'; .*'word-attention'"),
        (DATA + METHOD + "head = 4\n", r"'word-attention' has no option 'head'; did you mean 'heads'"),
        (DATA + METHOD + "heads = 'four'\n", r"option 'heads' of method 'word-attention' is 'four'; .* 8"),
        (DATA + METHOD + "heads = true\n", r"option 'heads' of method 'word-attention' is True"),
        (DATA + METHOD + "[training]\nepisodes = 'many'\n", r"training\.episodes: .* integer.*, found 'many'"),
        (DATA + METHOD + "[training]\nepisodes = 0\n", r"training\.episodes: .* greater than 0, found 0"),
        (DATA + METHOD + "[evaluation]\nphases = []\n", r"evaluation\.phases: .* at least 1 item"),
        (DATA + METHOD + "[evaluation]\nsampling = 'all'\n", r"evaluation\.sampling: .*'halves', found 'all'"),
        (METHOD, "data: field required"),
        (DATA, "method: field required"),
        ("runs = []\n" + DATA + METHOD, r"`runs` is no list of tables; write \[\[runs\]\]"),
        (DATA + METHOD + "[runs]\nname = 'a'\n", "`runs` is no list of tables"),
        ("this is no TOML", r"pets\.toml is not TOML: .*line 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_in_one_sentence(write, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        load_recipes(write(text))
    assert "\n" not in str(refusal.value)


def source(settings: str) -> str:
    return DATA.replace('format = "table", path = "labels.csv"', settings) + METHOD


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("format='table', path=['a.csv', 'b.csv']", r"'table' takes one 'path', found 2; write one \[\[data\.sourc"),
        ("format='folders', path=['a', 'b']", "'folders' takes one 'path', found 2"),
        ("format='table', path='a.csv', images=['a', 'b']", "'table' takes one 'images', found 2"),
        ("format='table', path=[]", "'path' is an empty list"),
        ("format='table', path='a.csv', sets=['test']", "'table' takes no 'sets'; its keys are path, images, where"),
        ("format='folders', path='a', images='b'", "'folders' takes no 'images'; its keys are path, most_a_"),
        ("format='coco', path='a', images='b', where={a=['b']}", "'coco' takes no 'where'; its keys are path, images"),
        ("format='voc', path='a', images='b'", "'voc' takes no 'images'; its keys are path, sets, keep_difficult, "),
        ("format='coco', path='a', images='b', keep_difficult=true", "'coco' takes no 'keep_difficult'"),
        ("format='coco', path='a'", "'coco' has no 'images'; name the folders"),
    ],
)  # fmt: skip
def test_what_a_sources_reader_would_not_look_at_is_refused(write, settings: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"pets\.toml: data\.sources\.0: .*{message}") as refusal:
        load_recipes(write(source(settings)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "settings",
    [
        "format='table', path=['a.csv'], images=['b'], where={pack=['x']}",
        "format='coco', path=['a', 'b'], images=['c', 'd'], most_a_label=30",
        "format='voc', path=['a', 'b'], sets=['test'], keep_difficult=true, phases=['val']",
    ],
)
def test_a_source_takes_its_formats_keys_and_survives_being_saved_whole(write, settings: str) -> None:
    recipe = only(write(source(settings)))
    assert Recipe.model_validate(recipe.model_dump()) == recipe


def test_a_frozen_network_has_no_stage_to_tune(write) -> None:
    with pytest.raises(InputError, match="tuned = 'layer4' of a frozen backbone; write frozen = false"):
        load_recipes(write(DATA + METHOD + '[backbone]\ntuned = "layer4"\n'))


def test_a_frozen_network_has_no_share_of_the_rate(write) -> None:
    with pytest.raises(InputError, match="backbone_share is of a backbone that learns"):
        only(write(DATA + METHOD + "[training]\nbackbone_share = 0.5\n"))


def test_a_role_that_the_sampling_would_not_look_at_is_refused(write) -> None:
    text = source("format='table', path='a.csv', role='query'")
    with pytest.raises(InputError, match=r"pets\.toml: a source has the role 'query', which .* write sampling = "):
        load_recipes(write(text))
    assert only(write(text + '[evaluation]\nsampling = "at-least"\n')).data.sources[0].role == "query"


def test_a_file_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no recipe .*gone\.toml"):
        load_recipes(tmp_path / "gone.toml")
    with pytest.raises(InputError, match=f"cannot read the recipe {tmp_path}: Is a directory"):
        load_recipes(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"x\.toml is not TOML"):
        load_recipes(tmp_path / "x.toml")


def test_runs_override_the_common_settings_deeply(write) -> None:
    runs = """
    [training]
    episodes = 7
    patience = 3
    [[runs]]
    name = "small"
    method.heads = 2
    training.patience = 5
    [[runs]]
    name = "other"
    method.name = "protonet"
    """
    (_, small), (_, other) = load_recipes(write(DATA + METHOD + runs))
    assert (small.method.name, small.method.options) == ("word-attention", {"heads": 2})
    assert small.training is not None
    assert (small.training.episodes, small.training.patience) == (7, 5)
    assert other.training is not None
    assert (other.method.name, other.method.options, other.training.patience) == ("protonet", {}, 3)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("method.heads=4", lambda recipe: recipe.method.options == {"heads": 4}),
        ("method.dropout = 0.5", lambda recipe: recipe.method.options == {"dropout": 0.5}),
        ("method.name=protonet", lambda recipe: recipe.method.name == "protonet"),
        ('method.name="protonet"', lambda recipe: recipe.method.name == "protonet"),
        ("words.source=glove=6B.txt", lambda recipe: recipe.words.source == "glove=6B.txt"),
        ("backbone.frozen=false", lambda recipe: recipe.backbone.frozen is False),
        ("training.learning_rate=1e-4", lambda recipe: recipe.training.learning_rate == 1e-4),
        ("evaluation.phases=['val', 'test']", lambda recipe: recipe.evaluation.phases == ["val", "test"]),
        ("evaluation.draws.test=a.json", lambda recipe: recipe.evaluation.draws == {"test": "a.json"}),
        ("name=quick", lambda recipe: recipe.name == "quick"),
    ],
)
def test_a_setting_can_be_changed_from_the_command_line(write, change: str, read) -> None:
    path = write(DATA + METHOD)
    assert not read(only(path, "training.patience=3"))
    assert read(only(path, "training.patience=3", change))


def test_of_two_changes_the_later_one_counts(write) -> None:
    assert only(write(DATA + METHOD), "seed=1", "seed=2").seed == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nonsense", "--set 'nonsense' is not of the form key=value; write for example"),
        ("=4", "--set '=4' is not of the form key=value"),
        ("a b=4", "--set 'a b=4': 'a b' is no key of TOML"),
        ("method..heads=4", r"'method\.\.heads' is no key of TOML"),
        ("method=protonet", "method: .* found 'protonet'"),
        ("method.haeds=4", "has no option 'haeds'; did you mean 'heads'"),
        ("backbone.szie=4", r"unknown key 'backbone\.szie'; did you mean 'size'"),
        ("seed=soon", "seed: .* integer.* found 'soon'"),
    ],
)
def test_a_nonsensical_change_is_refused(write, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        only(write(DATA + METHOD), change)
    assert "\n" not in str(refusal.value)


def test_a_change_that_one_of_several_runs_cannot_take_names_that_run(write) -> None:
    runs = (
        '[[runs]]\nname = "plain"\nmethod.name = "protonet"\n[[runs]]\nname = "heads"\nmethod.name = "word-attention"\n'
    )
    recipe = write(DATA + runs)
    with pytest.raises(InputError, match=r"no option 'heads'.* \(of run 'plain'; --only chooses others\)"):
        load_recipes(recipe, changes=["method.heads=4"])
    with pytest.raises(InputError, match=r"unknown key 'seeed'; did you mean 'seed'\? \(of run 'plain'"):
        load_recipes(recipe, changes=["seeed=4"])
    assert len(load_recipes(recipe, changes=["method.heads=4"], only=["heads"])) == 1


def test_two_runs_of_one_name_are_refused(write) -> None:
    path = write(DATA + METHOD + '[[runs]]\nname = "a"\n[[runs]]\nname = "a"\nseed = 1\n')
    with pytest.raises(InputError, match=r"two runs of the name 'a'; give each its own"):
        load_recipes(path)


def test_a_recipe_may_consist_of_others(tmp_path: Path, write) -> None:
    (tmp_path / "one.toml").write_text(write(DATA + METHOD).read_text())
    (tmp_path / "two.toml").write_text(DATA + METHOD + '[[runs]]\nname = "a"\n[[runs]]\nname = "b"\n')
    (tmp_path / "all.toml").write_text('include = ["one.toml", "two.toml"]')
    found = [(file.stem, recipe.name) for file, recipe in load_recipes(tmp_path / "all.toml")]
    assert found == [("one", "one"), ("two", "a"), ("two", "b")]
    assert [recipe.name for _, recipe in load_recipes(tmp_path / "all.toml", only=["b"])] == ["b"]


def test_settings_beside_an_include_go_over_those_of_runs_but_for_a_runs_own_network(tmp_path: Path) -> None:
    runs = '[[runs]]\nname = "a"\nseed = 1\n[[runs]]\nname = "b"\nbackbone.name = "resnet18"\nnot_measured = "why"\n'
    (tmp_path / "one.toml").write_text(DATA + METHOD + "[backbone]\nsize = 96\n" + runs)
    over = 'seed = 2\nnot_measured = ""\n[backbone]\nname = "resnet50"\n'
    (tmp_path / "all.toml").write_text('include = ["one.toml"]\n' + over)
    (tmp_path / "outer.toml").write_text('include = ["all.toml"]\nseed = 3\n')
    for file, seed in (("all", 2), ("outer", 3)):
        found = [recipe for _, recipe in load_recipes(tmp_path / f"{file}.toml")]
        assert [(recipe.name, recipe.seed, recipe.not_measured) for recipe in found] == [
            ("a", seed, ""),
            ("b", seed, ""),
        ]
        assert [(recipe.backbone.name, recipe.backbone.size) for recipe in found] == [
            ("resnet50", 96),
            ("resnet18", 96),
        ]


def test_a_recipe_may_extend_another_whose_runs_it_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(DATA + METHOD + '[backbone]\nsize = 96\n[[runs]]\nname = "a"\nseed = 1\n')
    (tmp_path / "two.toml").write_text('extends = "one.toml"\nbackbone.name = "resnet18"\n[[runs]]\nname = "b"\n')
    ((file, recipe),) = load_recipes(tmp_path / "two.toml")
    assert (file.stem, recipe.name, recipe.seed) == ("two", "b", 0)
    assert (recipe.backbone.size, recipe.backbone.name) == (96, "resnet18")
    (tmp_path / "three.toml").write_text("extends = 3")
    with pytest.raises(InputError, match="`extends` is 3; name one recipe file"):
        load_recipes(tmp_path / "three.toml")


@pytest.mark.parametrize("text", ['include = "one.toml"', "include = []", 'include = ["one.toml"]\ngrid.seed = [1]'])
def test_an_include_that_is_no_list_or_has_runs_of_its_own_is_refused(write, text: str) -> None:
    with pytest.raises(InputError, match="`include` is a list of files"):
        load_recipes(write(text))


def test_only_keeps_the_runs_named_and_refuses_others(write) -> None:
    path = write(DATA + METHOD + '[[runs]]\nname = "frozen"\n[[runs]]\nname = "tuned"\n')
    assert [recipe.name for _, recipe in load_recipes(path, only=["tuned"])] == ["tuned"]
    with pytest.raises(InputError, match=r"has no run 'frozne'; did you mean 'frozen'\?"):
        load_recipes(path, only=["tuned", "frozne"])


def test_a_change_need_not_suit_the_runs_that_are_left_out(write) -> None:
    path = write(DATA + '[[runs]]\nname = "a"\nmethod.name = "protonet"\n[[runs]]\nname = "b"\n' + METHOD_OF_RUN)
    ((_, recipe),) = load_recipes(path, only=["b"], changes=["method.heads=4"])
    assert recipe.method.options == {"heads": 4}
    with pytest.raises(InputError, match="'protonet' has no option 'heads'"):
        load_recipes(path, changes=["method.heads=4"])


def names(path: Path) -> list[str]:
    return [recipe.name for _, recipe in load_recipes(path)]


def test_a_grid_makes_a_run_of_each_choice_of_values(write) -> None:
    grid = "[[runs]]\nname = '{method.name}-{shots}-of-{size}'\n"
    grid += "grid.method.name = ['protonet', 'knn']\ngrid.evaluation.shots = [1, 5]\ngrid.backbone.size = [96]\n"
    recipes = [recipe for _, recipe in load_recipes(write(DATA + grid))]
    assert [recipe.name for recipe in recipes] == [
        "protonet-1-of-96",
        "protonet-5-of-96",
        "knn-1-of-96",
        "knn-5-of-96",
    ]
    settings = [(recipe.method.name, recipe.evaluation.shots, recipe.backbone.size) for recipe in recipes]
    assert settings == [("protonet", 1, 96), ("protonet", 5, 96), ("knn", 1, 96), ("knn", 5, 96)]


def test_a_value_of_a_grid_may_be_a_table_of_settings_that_go_together(write) -> None:
    grid = "[[runs]]\nname = 'a-{shots}'\nevaluation.episodes = 7\n"
    grid += "grid.evaluation = [{shots = 5}, {shots = 10, queries = 3}]\n"
    recipes = [recipe for _, recipe in load_recipes(write(DATA + METHOD + grid))]
    found = [(each.name, each.evaluation.shots, each.evaluation.queries, each.evaluation.episodes) for each in recipes]
    assert found == [("a-5", 5, 4, 7), ("a-10", 10, 3, 7)]


def test_a_grid_of_the_file_is_every_runs_and_a_runs_own_comes_on_top(write) -> None:
    grid = "[grid.evaluation]\nshots = [1, 2]\n[[runs]]\nname = 'a-{shots}'\n"
    grid += "[[runs]]\nname = 'b-{shots}-{seed}'\ngrid.seed = [7, 8]\n"
    grid += "[[runs]]\nname = 'c-{shots}'\ngrid.evaluation.shots = [9]\n"
    assert names(write(DATA + METHOD + grid)) == ["a-1", "a-2", "b-1-7", "b-1-8", "b-2-7", "b-2-8", "c-9"]


def test_runs_of_a_grid_are_chosen_and_changed_like_others(write) -> None:
    path = write(DATA + METHOD + "[[runs]]\nname = 'heads-{heads}'\ngrid.method.heads = [1, 2, 4]\n")
    ((_, recipe),) = load_recipes(path, only=["heads-2"], changes=["seed=3"])
    assert (recipe.name, recipe.method.options, recipe.seed) == ("heads-2", {"heads": 2}, 3)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("name = 'a'\ngrid.method.heads = 4", r"`grid\.method\.heads` is 4; give it a list of values, such as"),
        ("name = 'a'\ngrid.method.heads = []", r"`grid\.method\.heads` is \[\]; give it a list"),
        ("name = 'a'\ngrid = [1]", r"`grid` is \[1\]; give it a list"),
        ("name = 'a'\ngrid.method.heads = [1, 2]", r"two runs of the name 'a'; .*of a grid: \"NAME-\{shots\}\""),
        ("name = 'a-{haeds}'\ngrid.method.heads = [1]", r"names 0 settings \{haeds\}; known: 'method\.heads'"),
        ("name = 'a-{heads}'", r"names 0 settings \{heads\}; the run has no grid"),
        ("name = '{name}'\ngrid.method.name = ['knn']\ngrid.backbone.name = ['x']", r"names 2 settings \{name\}"),
        ("name = 'a-{heads}'\ngrid.method.heads = ['x']", "option 'heads' of method 'word-attention' is 'x'"),
        ("name = 'a-{haeds}'\ngrid.method.haeds = [1]", "has no option 'haeds'; did you mean 'heads'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_grid_is_named_in_one_sentence(write, run: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        load_recipes(write(DATA + METHOD + "[[runs]]\n" + run))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("change", ["seed=7", "evaluation.shots=2"])
def test_what_a_grid_chose_is_not_changed_behind_the_runs_name(write, change: str) -> None:
    grid = "grid.seed = [0, 1]\ngrid.evaluation = [{ shots = 1 }, { shots = 5 }]\n"
    path = write(DATA + METHOD + "[[runs]]\nname = 'mine-{seed}-{shots}'\n" + grid)
    with pytest.raises(InputError, match=f"--set '{change}': 'mine-0-1' is one of a grid of runs, each with its own"):
        load_recipes(path, changes=[change])
    assert len(load_recipes(path, changes=["evaluation.queries=2"])) == 4


def test_the_digest_names_the_content(write) -> None:
    path = write(DATA + METHOD)
    assert only(path).digest == only(path).digest == only(path, "seed=0", "method.heads=8").digest
    assert only(path, "data.note=hello").digest == only(path).digest
    assert len({only(path, f"seed={seed}", f"method.heads={heads}").digest for seed in (0, 1) for heads in (2, 8)}) == 4


def test_settings_that_came_later_do_not_change_the_digests_of_before(write) -> None:
    path = write(DATA + "[method]\nname = 'pla'\n[training]\n[backbone]\nfrozen = false\n")
    recipe = only(path)
    trained = recipe.training_settings
    assert not {"cycle", "backbone_share", "keep", "encoder_episodes"} & {*trained["training"], *trained["method"]}
    later = ("training.cycle=4", "training.backbone_share=0.1", "method.encoder_episodes=9")
    assert len({recipe.digest, *(only(path, change).digest for change in later)}) == 4
    as_before = ("training.cycle=0", "training.backbone_share=1.0", "method.encoder_episodes=0")
    assert only(path, *as_before).digest == recipe.digest


@pytest.mark.slow
def test_published_rows_and_curves_are_of_the_recipes_we_ship() -> None:
    folder = RECIPES[0].parent
    rows, curves = ([*(folder.parent / "results").glob(f"*/*.{kind}")] for kind in ("parquet", "training.json"))
    assert len(rows) > 1000
    assert len(curves) > 200
    digests = {
        (name, recipe.name): recipe.digest
        for name in {path.parent.name for path in rows}
        for _, recipe in load_recipes(folder / f"{name}.toml")
    }
    for path in rows:  # of RUN.PHASE.parquet
        carried = pq.read_table(path, columns=["recipe_digest"])["recipe_digest"].unique().to_pylist()
        assert carried == [digests[path.parent.name, path.name.rsplit(".", 2)[0]]], path
    for path in curves:
        run = path.name.removesuffix(".training.json")
        assert json.loads(path.read_text())["recipe"] == digests[path.parent.name, run], path


def change_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody changed ProtoNet's default in code."""

    class Changed(ProtoNet):
        def __init__(self, channels: int, dimensions: int, *, scale: float = 21.0) -> None:
            super().__init__(channels, dimensions, scale=scale)

    monkeypatch.setitem(METHODS, "protonet", Changed)


def test_a_default_that_changes_in_code_changes_the_digest(write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(DATA + "[method]\nname = 'protonet'\n")
    before, explicit = only(path).digest, only(path, "method.scale=20.0").digest
    change_scale(monkeypatch)
    assert only(path).digest != before
    assert only(path, "method.scale=20.0").digest == explicit == before


def reference_row(key: str, field: FieldInfo) -> str:
    """How a line of the reference begins; a default that TOML cannot write is told in words."""
    if field.is_required():
        return f"| `{key}` | {'the file' if key == 'name' else 'required'}"
    default = field.get_default()
    return f"| `{key}` | " + ("" if default is None else f"`{json.dumps(default)}` |")


def test_the_protocol_lists_every_key_with_its_default_and_every_option() -> None:
    text = PROTOCOL.read_text()
    tables = {"data.": Data, "data.sources.": Source, "backbone.": BackboneSettings, "words.": WordSettings}
    tables |= {"names.": NameSettings, "space.": SpaceSettings, "method.": MethodSettings}
    tables |= {"training.": Training, "evaluation.": Evaluation, "sessions.": SessionSettings}
    keys = ("name", "seed", "names", "space", "training", "sessions", "not_measured")
    top = {key: Recipe.model_fields[key] for key in keys}
    below = {prefix + key: field for prefix, table in tables.items() for key, field in table.model_fields.items()}
    reference = text.partition("| key | default")[2].partition("| method |")[0]
    listed = re.findall(r"^\| `([a-z_.]+)` \|", reference, re.M)
    assert set(listed) == {*top, *below}
    assert [row for row in starmap(reference_row, (top | below).items()) if row not in text] == []
    of_files = text.partition("| key of a file |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z]+)` \|", of_files, re.M) == ["runs", "grid", "extends", "include"]
    for name, method in METHODS.items():
        options = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert f"| `{name}` | " + ", ".join(f"`{p.name} = {p.default}`" for p in options) + " |" in text


def test_the_protocols_split_and_recipe_are_valid(tmp_path: Path, write) -> None:
    text = PROTOCOL.read_text()
    (recipe, grid), (split,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("toml", "json"))
    (tmp_path / "split.json").write_text(split)
    assert [run.training is None for _, run in load_recipes(write(recipe))] == [True, False]
    assert names(write(DATA + grid)) == ["attention-1-shots", "attention-5-shots", "attention-10-shots"]
    assert set(Split.load(str(tmp_path / "split.json")).phases) == {"train", "val", "test", "mixed"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_we_ship_are_valid(path: Path) -> None:
    for _, recipe in load_recipes(path):
        for draws in recipe.evaluation.draws.values():
            assert not draws or (path.parent / draws).is_file()
        assert {*recipe.evaluation.draws, *recipe.evaluation.phases} <= set(Split.load(recipe.data.split).phases)


@pytest.mark.parametrize("name", ["coco", "voc", "laso"])
def test_the_original_downloads_have_the_runs_of_the_packs(name: str) -> None:
    folder = RECIPES[0].parent
    packs, originals = (
        [recipe for file, recipe in load_recipes(folder / f"{stem}.toml") if file.stem == name]
        for stem in (name, f"{name}-original")
    )
    keys = {"name", "method", "training", "seed"}
    assert [recipe.model_dump(include=keys) for recipe in packs] == [
        recipe.model_dump(include=keys) for recipe in originals
    ]
    assert [recipe.evaluation.phases for recipe in packs] == [recipe.evaluation.phases for recipe in originals]
    assert [recipe.backbone.frozen for recipe in packs] == [recipe.backbone.frozen for recipe in originals]


def test_the_papers_recipe_asks_for_nothing_but_what_others_publish() -> None:
    for _, recipe in load_recipes(RECIPES[0].parent / "paper.toml"):
        assert {source.format for source in recipe.data.sources} <= {"coco", "voc"}
        assert {*str(recipe.backbone.weights).split("+")} == {"timm"}
        assert re.fullmatch(r"glove\.6B\.(50|100|200|300)d\.txt", recipe.words.source)
        assert not any(recipe.evaluation.draws.values())
        assert not recipe.not_measured


def test_there_are_recipes_to_validate() -> None:
    assert {path.stem for path in RECIPES} >= {"coco", "coco-original", "voc", "voc-original"}
