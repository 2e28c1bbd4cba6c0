"""What README and docs show, works: every example runs, every command is one that fewtag takes."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from sidecars import digikam
from tiny import draw

from fewtag import Tagger
from fewtag.cli.main import make_app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
TOOLS = ("tags", "digikam", "darktable", "lightroom", "immich", "photoprism", "datasets", "export", "label-studio")
ELSEWHERE = ("fit mine", "s3://", "bench", "train", "report", "serve", "studio")
"""Commands that need a cluster, a data set or hours, or run until they are ended; they are parsed, not run."""


def blocks(page: Path, language: str) -> list[str]:
    """Those in lists too, which are indented."""
    fenced = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return [textwrap.dedent(block) for _, its_language, block in fenced if its_language == language]


def shell_lines(page: Path) -> Iterator[str]:
    """The lines of blocks without a language, long commands joined."""
    for block in blocks(page, ""):
        yield from block.replace("\\\n", " ").splitlines()


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `fewtag` command of a page, comments left out."""
    found = (re.match(r"(?:\$ )?(?:torchrun .*-m )?fewtag (.*)", line) for line in shell_lines(page))
    return [shlex.split(match[1], comments=True) for match in found if match]


def transcript(page: Path) -> list[tuple[list[str], list[str]]]:
    """Commands after a `$` with the lines that the page says they print."""
    shown: list[tuple[list[str], list[str]]] = []
    for block in blocks(page, ""):
        said: list[str] | None = None
        for line in block.splitlines():
            if line.startswith("$ fewtag "):
                said = []
                shown.append((shlex.split(line, comments=True)[2:], said))
            elif said is not None and line != "…":
                said.append(line)
    return shown


def write_pictures(*names: str) -> None:
    for number, name in enumerate(names):
        Path(name).parent.mkdir(exist_ok=True)
        Image.effect_noise((40, 30), 10 + 40 * number).convert("RGB").save(name)


def without_numbers(text: str) -> str:
    """Two decimals, sizes and seconds differ from machine to machine; words and counts do not."""
    return re.sub(r"\d+\.\d+|\d+%", "#", text)


def probabilities(line: str) -> list[float]:
    """Those in a line, of which seconds are none; machines differ in their third decimal at most."""
    found = re.findall(r"\d+\.\d+(?![\d ]* s\b)|\d+%", line)
    return [float(each[:-1]) / 100 if each.endswith("%") else float(each) for each in found]


def test_the_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    write_pictures("rex.jpg", "living-room.jpg", "garden.jpg")
    exec(example, {})
    tagger = Tagger.load("pets.fewtag")
    assert tagger.classes_ == ("cat", "dog", "sofa", "zebra")
    assert tagger.predict_proba(["garden.jpg"]).shape == (1, 4)


def test_the_readme_shows_the_scores_of_its_rows() -> None:
    given = {"its name, no picture": "name alone", "one picture and its name": "1 examples"}
    given |= {"five pictures and its name": "5 examples", "one picture, no name": "1 examples, no words"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "")
    files = (f"tagger-{name}coco52.json" for name in ("", "accurate-", "accurate-336-"))
    measured = [json.loads((ROOT / "results" / file).read_text()) for file in files]
    for what, row in given.items():
        found = [rows[f"test, {row}"] for rows in measured]
        scores = [f"{each['macro_ap']:.1f} / {each['micro_ap']:.1f}" for each in found]
        assert f"| {what} | {' | '.join(scores)} |" in readme


def test_the_pages_show_the_speeds_of_their_rows() -> None:
    figures = json.loads((ROOT / "results" / "speed.json").read_text(encoding="utf-8"))["figures"]
    measured = {row["what"]: row["value"] for row in figures}
    arrays = measured["`tagger.tag` of decoded arrays beside a bare onnxruntime session"]
    plain = measured["`fewtag tag` of files beside the best plain loop"]
    former = "`fewtag tag` of files beside the former torch engine:"
    same, today = measured[f"{former} EfficientNet-Lite2 in both"], measured[f"{former} today's network"]
    one, eight = (measured[f"HTTP, 16 clients, {some} a request, beside `fewtag tag`"] for some in ("one", "eight"))
    for page, sentence in (
        ("README.md", f"onnxruntime session around the same network ({arrays:.2f} ×)"),
        ("README.md", f"the best plain loop ({plain:.2f} ×)"),
        ("README.md", f"{one:.2f} of the speed of `fewtag tag` with one picture a request"),
        ("README.md", f"{measured['Ray with two workers beside the local engine']:.2f} of it over a minute"),
        ("docs/http.md", f"{one:.2f} of its pictures a second with one picture a request, {eight:.2f} with eight"),
        ("docs/scale-out.md", f"{same:.1f} times the speed of the torch engine"),
        ("docs/scale-out.md", f"`default` is {today:.2f} times as fast"),
    ):
        assert sentence in " ".join((ROOT / page).read_text(encoding="utf-8").split()), page


@pytest.mark.slow
def test_every_command_of_the_readme_runs(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pictures("rex.jpg", "max.jpg", "garden.jpg", "sofa.jpg", "photos/cat.jpg", "photos/sofa.jpg")
    (tmp_path / "examples.csv").write_text("image,labels\nphotos/cat.jpg,cat;sofa\nphotos/sofa.jpg,sofa\n")
    shutil.copy(tmp_path / "examples.csv", tmp_path / "truth.csv")
    ran = [line for line in commands(ROOT / "README.md") if not any(word in " ".join(line) for word in ELSEWHERE)]
    for arguments in ran:
        outcome = cli(*arguments)
        assert outcome.code == 0, (arguments, outcome.err)
    assert {"learn", "tag", "check", "explain", "define", "labels", "examples", "rename", "forget", "upgrade"} <= {
        arguments[0] for arguments in ran
    }
    assert Tagger.load("pets.fewtag").examples_("dog") == ("rex.jpg",)
    assert {"tags.csv", "tags.html", "heat.png", "pets-onnx"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_the_quickstart_prints_what_it_says_and_its_rows_are_right(cli: Callable[..., Any], tmp_path: Path) -> None:
    """They were wrong once: a newcomer compared them with the pictures."""
    shutil.copytree(ROOT / "examples" / "album", tmp_path / "examples" / "album")
    shown = transcript(ROOT / "docs" / "quickstart.md")
    assert len(shown) >= 18
    for arguments, said in shown:
        outcome = cli(*arguments)
        if arguments[0] == "tag" and "tags.csv" in arguments:
            table = (tmp_path / "tags.csv").read_text().splitlines()
            told = cli("tag", "album.fewtag", "examples/album", "--json").out.splitlines()
        printed = " ".join(without_numbers(outcome.out + outcome.err).split())
        for line in said:
            assert " ".join(without_numbers(line).split()) in printed, (arguments, outcome)
        refused = bool(said) and all(line.startswith("fewtag: ") for line in said)
        assert outcome.code == (2 if refused else 0), outcome
        for line in (outcome.out + outcome.err).splitlines():
            same = [each for each in said if without_numbers(each) == without_numbers(line)]
            assert same or refused or not line.startswith("fewtag: "), "a warning that the page does not show"
            assert not same or probabilities(line) == pytest.approx(probabilities(same[0]), abs=0.02)

    rows, mended = [block for block in blocks(ROOT / "docs" / "quickstart.md", "") if block.startswith("image,tags")]
    truth = dict(line.split(",")[:2] for line in Path("examples/album/album.csv").read_text().splitlines())
    for row in rows.splitlines()[1:]:
        assert row in table
        image, tags = row.split(",")
        assert set(tags.split(";")) == set(truth[image].split(";"))
    for row in mended.splitlines()[1:]:
        image, tags = row.split(",")
        right = set(truth[image].split(";"))
        assert {tag for tag in tags.split(";") if not tag.startswith("!")} == right
        assert not any(tag == f"!{label}" for tag in tags.split(";") for label in right)
    # more pictures than a batch, in which rows and pictures once fell out of step
    assert len(told) > 32
    assert [f"{row['image']},{';'.join(row['tags'])}" for row in map(json.loads, told)] == table[1:]


@pytest.mark.parametrize("page", TOOLS)
def test_the_commands_of_a_tools_page_run_in_their_order(
    page: str, cli: Callable[..., Any], tmp_path: Path, tiny_model: Path
) -> None:
    """On pictures that other programs tagged, by a small model; folders of their users are ours."""
    if page == "lightroom" and shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed")
    paths = [("Birds", "Heron"), ("animals", "birds", "gull"), ("Oma",)]
    for number, name in enumerate(["a.jpg", "b.jpg", "2024/c.jpg"]):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        draw(number, "dog").save(tmp_path / "photos" / name)
        (tmp_path / "photos" / f"{name}.xmp").write_bytes(digikam([paths[number], ("Birds",)], 0))
    write_pictures("rex-1.jpg", "rex-2.jpg", "shrek-1.jpg", "shrek-2.jpg")
    (tmp_path / "camera").mkdir()
    draw(9, "dog").save(tmp_path / "camera" / "a.jpg")
    boxes = {"file": "a.jpg", "detections": [{"category": "1", "conf": 0.9, "bbox": [0.1, 0.1, 0.5, 0.5]}]}
    info = {"format_version": "1.6"}
    detections = {"info": info, "detection_categories": {"1": "animal"}, "images": [boxes]}
    (tmp_path / "camera" / "detections.json").write_text(json.dumps(detections))
    for name in ("birds", "home", "pets", "animals"):
        Tagger(str(tiny_model)).fit([draw(20, "dog"), draw(21, "cat")], [["dog"], ["cat"]]).save(f"{name}.fewtag")
    lines = [line for line in commands(ROOT / "docs" / f"{page}.md") if line[0] not in ELSEWHERE]
    assert lines
    for arguments in lines:
        outcome = cli(*(re.sub(r"^(~/Pictures|/library|/originals)", "photos", each) for each in arguments))
        assert outcome.code == 0, (arguments, outcome.err)
    if any(line[-1] == "--undo" for line in lines):
        assert not [path for path in (tmp_path / "photos").rglob("*.xmp") if b"fewtag" in path.read_bytes()]


def test_the_python_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures("heron.jpg", "pond.jpg", "rex.jpg", "living-room.jpg", "garden.jpg", "sofa.jpg", "wall.jpg")
    Tagger().define("zebra").save("album.fewtag")
    for page in ("quickstart.md", "python.md"):
        names: dict[str, Any] = {}
        for example in blocks(ROOT / "docs" / page, "python"):
            exec(example, names)
    assert Tagger.load("album.fewtag").classes_ == ("heron", "zebra")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_that_fewtag_takes(page: Path) -> None:
    command_line = typer.main.get_command(make_app())
    for arguments in commands(page):
        if arguments[0].startswith("--"):
            assert arguments[0] in ("--help", "--version")
            continue
        command = command_line.commands[arguments[0]]  # type: ignore[attr-defined]
        command.make_context(arguments[0], list(arguments[1:]))  # refuses unknown options and missing arguments


def test_no_page_has_a_gap_left_to_fill() -> None:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        assert not re.findall(r"\b[A-Z]+_[A-Z_0-9]+\b", re.sub(r"`[^`]*`", "", text)), page.name


@pytest.mark.slow
def test_the_method_of_the_docs_keeps_the_contract_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, example, command = blocks(ROOT / "docs" / "add-a-method.md", "python")
    names: dict[str, Any] = {}
    exec(example, names)
    import torch

    from fewtag.research.methods import Support

    method = names["MixedPrototypes"](4, 3)
    support = Support(("a", "b"), torch.randn(2, 3), torch.rand(2, 4, 2, 2), torch.eye(2, dtype=torch.bool))
    assert method.adapt(support)(torch.rand(5, 4, 2, 2)).shape == (5, 2)

    from fewtag.research.bench.recipe_files import load_recipes
    from fewtag.research.methods import METHODS

    monkeypatch.setitem(METHODS, "mixed", names["MixedPrototypes"])
    (recipe,), (mine, *_) = (blocks(ROOT / "docs" / page, "toml") for page in ("add-a-method.md", "protocol.md"))
    (tmp_path / "mine.toml").write_text(mine)
    (tmp_path / "mixed.toml").write_text(recipe)
    names_of_runs = [f"mixed-{scale}-seed-{seed}" for scale in ("10.0", "20.0") for seed in range(5)]
    assert [run.name for _, run in load_recipes(tmp_path / "mixed.toml")] == names_of_runs

    (tmp_path / "mixed.py").write_text(example + command)
    asked = [sys.executable, "mixed.py", "bench", "mixed.toml", "--only", "mixed-30.0-seed-0"]
    said = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert "has no run 'mixed-30.0-seed-0'; did you mean 'mixed-20.0-seed-0'" in said.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_links_to_is_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_the_notebook_runs_and_holds_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((ROOT / "examples" / "fewtag.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    monkeypatch.chdir(shutil.copytree(ROOT / "examples", tmp_path / "examples"))
    names: dict[str, Any] = {"display": lambda _shown: None}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert names["tagger"].classes_[0] == "duck"
