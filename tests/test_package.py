"""The wheel that people install: with its data, and of use away from this repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
import fewtag
import numpy as np
from fewtag.research.data.splits import Split
assert fewtag.__file__.startswith(sys.argv[1]), fewtag.__file__
print(len(Split.load("coco").labels), len(Split.load("voc").labels))
tagger = fewtag.Tagger().fit([np.zeros((32, 32, 3), np.uint8)], ["night"])
print(tagger.predict(np.zeros((32, 32, 3), np.uint8))[0][0])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    # from a copy, so that no build/ or *.egg-info is left in the repository
    names = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "src",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ]
    for name in subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=folder, capture_output=True, check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_carries_the_data_and_the_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    splits = {
        f"fewtag/research/data/splits/{path.name}" for path in (ROOT / "src/fewtag/research/data/splits").glob("*.json")
    }
    assert len(splits) >= 3
    assert names >= splits | {"fewtag/py.typed", "fewtag/research/bench/report/published.json"}
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").glob("fewtag/**/*.py")}
    assert modules <= names
    pages = [path for path in (ROOT / "src/fewtag/studio/web").rglob("*") if path.is_file()]
    assert len(pages) >= 15
    assert {path.relative_to(ROOT / "src").as_posix() for path in pages} <= names
    models = {f"{name}.safetensors" for name in ("default", "accurate", "accurate-336", "coco52", "words")} | {
        f"dinov2-{name}.onnx" for name in ("all80", "coco52")
    }
    models |= {"things.txt.gz", "translations.txt.gz"}
    assert names >= {f"fewtag/models/{name}" for name in models}
    assert not [name for name in names if name.startswith("tests/")]
    assert wheel.stat().st_size < 70_000_000


def test_the_wheel_offers_the_command(wheel: Path) -> None:
    (entry,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("entry_points.txt")]
    assert "fewtag = fewtag.cli.main:main" in zipfile.ZipFile(wheel).read(entry).decode()


def test_the_unpacked_wheel_finds_its_splits_and_its_model(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-c", CHECK, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["80", "20", "night"], done.stderr


def test_the_runtime_of_the_network_is_told_to_report_to_nobody(tmp_path: Path) -> None:
    """From its import on, onnxruntime 1.31 keeps a device's number and what it is about to send under these folders."""
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    places = dict.fromkeys(
        ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA"), str(tmp_path)
    )
    program = "import os, fewtag, onnxruntime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment | places, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert not list(tmp_path.rglob("*"))


def test_the_package_offers_its_names_and_nothing_else() -> None:
    import fewtag

    assert dir(fewtag) == sorted(fewtag.__all__) == ["InputError", "Tagged", "Tagger", "__version__"]
    assert all(getattr(fewtag, name) for name in fewtag.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Taggre'"):
        _ = fewtag.Taggre
