"""The product wing by itself: without the research wing's packages, and on systems that are not POSIX."""

import ast
import csv
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiny import draw, write_tiny_model

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fewtag"
RUN = """
import json, runpy, sys, warnings
for number, arguments in enumerate(json.load(open(sys.argv[1]))):
    sys.argv = ["fewtag", *arguments]
    try:
        runpy.run_module("fewtag", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
"""
HEAVY = ("torch", "timm", "scipy", "pandas", "matplotlib", "pyarrow", "transformers", "jaxtyping", "sklearn")
"""Not pydantic, which the server needs; the contracts in pyproject.toml forbid it to the other modules."""
WITHOUT_RESEARCH = f"""
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r} or name.startswith("fewtag.research."):
            raise AssertionError(f"{{name}} was imported")
sys.meta_path.insert(0, Forbidden())
"""
WITHOUT_POSIX = """
import os, signal, sys
for name in ("sched_getaffinity", "setpriority", "getpriority", "fdatasync", "fork", "forkpty", "mkfifo", "getuid",
             "geteuid", "statvfs", "nice", "killpg", "getpgid", "setsid", "O_DIRECTORY", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
del signal.SIGKILL
"""


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a folder of pictures and a table of what they show."""
    folder = tmp_path_factory.mktemp("album")
    write_tiny_model(folder / "model")
    rows = ["image,labels"]
    for number, label in enumerate(["dog", "cat", "sofa"] * 2):
        draw(number, label).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{label}")
    (folder / "truth.csv").write_text("\n".join(rows) + "\n")
    return folder


def run(prelude: str, commands: list[list[str]], folder: Path, out: Path) -> str:
    """All of them in one process that begins with the prelude."""
    import json

    (out / "commands.json").write_text(json.dumps(commands))
    environment = {**os.environ, "HOME": str(out), "XDG_CACHE_HOME": str(out / "cache"), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", prelude + RUN, str(out / "commands.json")],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "bench", "report"])
def test_a_command_of_research_says_what_to_install(tmp_path: Path, command: str) -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r})); from fewtag.cli.main import main; main()"
    given = {"report": [str(tmp_path)]}.get(command, ["recipe.toml"])
    (tmp_path / "recipe.toml").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", program, command, *given], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert 'pip install "fewtag[research]"' in done.stderr


@pytest.mark.slow
def test_every_command_of_the_product_runs_without_the_research_wings_packages(album: Path, tmp_path: Path) -> None:
    bank, tags = str(tmp_path / "pets.fewtag"), tmp_path / "tags.csv"
    commands = [
        ["learn", bank, "truth.csv", "--model", "model/tiny.safetensors"],
        ["define", bank, "zebra"],
        ["define", bank, "ectopia lentis", "--like", "lens, eye"],
        ["tag", bank, ".", "--out", str(tags), "--scores"],
        ["tag", bank, "0.png"],
        ["explain", bank, "0.png", "--label", "dog", "--out", str(tmp_path / "heat.png")],
        ["labels", bank],
        ["forget", bank, "sofa", "--example", "1"],
        ["rename", bank, "cat", "kitten"],
        ["examples", bank, "dog", "--page", str(tmp_path / "dogs.html")],
        ["check", bank, "truth.csv"],
        ["upgrade", bank],
        ["export", bank, str(tmp_path / "onnx")],
        ["export", bank, str(tmp_path / "fixed"), "--as", "onnx-fixed"],
        ["export", str(tags), str(tmp_path / "out"), "--as", "fiftyone"],
        ["write", str(tags), ".", "--dry-run"],
        ["write", bank, "."],
        ["write", ".", "--undo"],
        ["cache"],
        ["--version"],
    ]
    said = run(WITHOUT_RESEARCH, commands, album, tmp_path)
    with tags.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [f"{number}.png" for number in range(6)]
    assert {"dog", "zebra"} <= rows[0].keys()
    assert "'cat' is called 'kitten' now" in said
    assert (tmp_path / "onnx" / "tagger.onnx").is_file()


@pytest.mark.slow
def test_learning_tagging_and_the_cache_need_nothing_of_posix(album: Path, tmp_path: Path) -> None:
    bank = str(tmp_path / "pets.fewtag")
    commands = [
        ["learn", bank, "truth.csv", "--model", "model/tiny.safetensors"],
        ["tag", bank, ".", "--out", str(tmp_path / "tags.csv")],
        ["tag", bank, ".", "--out", str(tmp_path / "again.csv")],
        ["cache", "--check"],
        ["cache", "--prune", "0B"],
        ["cache", "--clear"],
        ["labels", bank],
    ]
    run(WITHOUT_POSIX, commands, album, tmp_path)
    assert (tmp_path / "tags.csv").read_text() == (tmp_path / "again.csv").read_text()
    assert len((tmp_path / "tags.csv").read_text().splitlines()) == 7


@pytest.mark.slow
def test_the_server_loads_nothing_of_the_research_wing_and_needs_nothing_of_posix() -> None:
    program = "import fewtag.server.app; from fewtag.server.uploads import _allow_seconds, _restrict; "
    program += "_restrict(1); _allow_seconds(1.0)"  # a byte of memory, were there limits
    code = f"{WITHOUT_RESEARCH}{WITHOUT_POSIX}\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def brought_along(wanted: list[Requirement]) -> set[str]:
    """The distributions that pip installs for these, as far as they are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    seen = set[tuple[str, frozenset[str]]]()
    while wanted:
        one = wanted.pop()
        key = name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if key in seen:
            continue
        seen.add(key)
        if name == "fewtag":
            lines = [
                *project["dependencies"],
                *(line for each in extras for line in project["optional-dependencies"][each]),
            ]
        else:
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                continue
        for each in map(Requirement, lines):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                wanted.append(each)
    return {name for name, _ in seen}


def product_job() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]["product"]


def test_a_command_that_fails_ends_cis_job_on_every_system() -> None:
    job = product_job()
    assert any(len(step.get("run", "").splitlines()) > 1 for step in job["steps"])
    assert job["defaults"]["run"]["shell"] == "bash"  # which it runs with -e; PowerShell would go on


@pytest.mark.slow
@pytest.mark.processes
def test_what_ci_tests_of_the_product_needs_no_more_than_it_installs(tmp_path: Path) -> None:
    steps = [shlex.split(step.get("run", "")) for step in product_job()["steps"]]
    (install,) = (words[4:] for words in steps if words[:4] == ["python", "-m", "pip", "install"])
    (tests,) = (words[1:] for words in steps if words[:1] == ["pytest"])
    there = brought_along([Requirement(re.sub(r"^\.", "fewtag", word)) for word in install])
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & there
    }
    assert {"torch", "starlette", "ray"} <= absent
    assert not {"onnx", "pyarrow", "PIL", "typer"} & absent
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
    said = subprocess.run(
        [sys.executable, "-c", code, *tests, "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-1000:]


def test_the_client_runs_as_a_file_by_itself() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(SOURCE / "client.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def trees(folder: Path) -> Iterator[tuple[str, ast.Module, str]]:
    for path in sorted(folder.glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        yield str(path.relative_to(SOURCE)), ast.parse(text), text


POSIX_MODULES = {"fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "posix"}
POSIX_NAMES = {
    ("os", name) for name in ("fdatasync", "sched_getaffinity", "fork", "forkpty", "mkfifo", "statvfs", "nice")
}
POSIX_NAMES |= {("os", "setpriority"), ("os", "getpriority"), ("signal", "SIGKILL"), ("signal", "SIGHUP")}


@pytest.mark.slow
def test_what_only_posix_has_is_not_imported_and_asked_for_before_it_is_used() -> None:
    """By `hasattr` or `getattr` in the same file; and never when a module is imported."""
    for name, tree, text in trees(SOURCE):
        used = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & POSIX_MODULES, name
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in POSIX_MODULES, name
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used |= {node.attr} if (node.value.id, node.attr) in POSIX_NAMES else set()
        for attribute in used - {"getpriority"}:  # which comes with setpriority
            assert f'hasattr(os, "{attribute}")' in text, f"{name} uses {attribute}"


@pytest.mark.slow
def test_whatever_opens_a_picture_names_the_formats_that_it_may_have() -> None:
    """Else Pillow tries all its decoders, some of which start other programs."""
    opened = [
        (name, {each.arg for each in node.keywords})
        for name, tree, _ in trees(SOURCE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open"
    ]
    assert len(opened) > 3
    for name, arguments in opened:
        assert "formats" in arguments, name
