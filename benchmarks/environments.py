"""Where contenders run: a former commit from the project's own history, and the wheel alone in a new environment."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from drawn import LABELS, write_jpegs
from measuring import Figure, run

ROOT = Path(__file__).parents[1]
FORMER = "31a3b81"
FORMER_NETWORK = "tf_efficientnet_lite2"
UNWANTED = ("torch", "timm", "scipy", "pandas", "matplotlib", "pyarrow", "transformers")


def former_environment(folder: Path) -> dict[str, str]:
    """Has Python import the former commit's package, in the same virtual environment."""
    archive = subprocess.run(["git", "archive", FORMER, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return {**os.environ, "PYTHONPATH": str(folder / "src")}


def fit_former_network(folder: Path, environment: Mapping[str, str]) -> Path:
    """A model of today around the former commit's network; drawn base pictures do for speed."""
    for seed, label in enumerate(LABELS[:8]):
        write_jpegs(folder / "base" / label, 32, (256, 192), different=32, seed=seed)
    arguments = ("fit", folder / "former-network", folder / "base", "--network", FORMER_NETWORK)
    run([sys.executable, "-m", "fewtag", *map(str, arguments)], environment)
    return folder / "former-network.safetensors"


def install_wheel(folder: Path) -> Path:
    """The wheel of the working tree with its dependencies, in a virtual environment of its own; its Python."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "wheel"), str(tree)])
    run([sys.executable, "-m", "venv", str(folder / "venv")])
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    (wheel,) = (folder / "wheel").glob("*.whl")
    run([str(python), "-m", "pip", "install", "--quiet", str(wheel)])
    return python


def installed(folder: Path, python: Path) -> Iterator[Figure]:
    """How much the wheel and all it needs take; torch and its like must not be among it."""
    (wheel,) = (folder / "wheel").glob("*.whl")
    yield Figure("the wheel", wheel.stat().st_size / 1e6, "MB", "≤ 70")
    size = sum(path.stat().st_size for path in python.parents[1].rglob("*") if path.is_file() and not path.is_symlink())
    asked = f"import importlib.util as u; print(*[n for n in {UNWANTED!r} if u.find_spec(n)])"
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = run([str(python), "-c", asked], bare).output.split()
    yield Figure("a new virtual environment with the wheel alone", size / 1e6, "MB", "≤ 400")
    yield Figure(f"of {', '.join(UNWANTED)} in it", len(found), "", "≤ 0")
