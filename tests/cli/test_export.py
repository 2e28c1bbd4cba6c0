"""`fewtag export`: a graph and labels that onnxruntime tags with as fewtag does, or a refusal that leaves nothing."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from tiny import draw

from fewtag import Tagger
from fewtag.tagger import export as exporting
from fewtag.tagger.export import KEY

Cli = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_tag.py"
# what the example must do without; a name that is None here cannot be imported
ALONE = """
import runpy, sys
sys.modules.update(torch=None, fewtag=None, timm=None)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
FILES = ["labels.npz", "tagger.onnx"]


@pytest.fixture
def exported(cli: Cli, bank: Path) -> Path:
    """A bank's export."""
    assert cli("export", bank, "pets-onnx").code == 0
    return Path("pets-onnx").absolute()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def disagreeing(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that answer with other probabilities from now on."""
    right = exporting.session

    def session(graph: bytes) -> exporting.Run:
        run = right(graph)
        return lambda pixels, labels: run(pixels, labels) + np.float32(by)

    monkeypatch.setattr(exporting, "session", session)


def tag_alone(graph: Path, *pictures: Path) -> list[dict[str, Any]]:
    """What the example says of pictures, where fewtag cannot be imported."""
    command = [sys.executable, "-c", ALONE, EXAMPLE, graph, *pictures]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.processes
def test_the_example_tags_as_the_tagger_does_without_fewtag(exported: Path, bank: Path, tmp_path: Path) -> None:
    turned, clear = tmp_path / "turned.jpg", tmp_path / "clear.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(50, "dog", size=(90, 60)).save(turned, exif=exif)
    draw(51, "cat").convert("RGBA").rotate(30, expand=True).save(clear)
    pictures = [turned, clear]
    for number in range(12):
        shown = [label for place, label in enumerate(["dog", "cat", "sofa"]) if number >> place & 1]
        draw(60 + number, *shown).save(tmp_path / f"{number}.png")
        pictures.append(tmp_path / f"{number}.png")
    tagger = Tagger.load(bank)
    found = tag_alone(exported / "tagger.onnx", *pictures)
    assert [row["image"] for row in found] == [str(picture) for picture in pictures]
    assert [tuple(row["tags"]) for row in found] == tagger.predict(pictures)
    given = {len(row["tags"]) for row in found}
    assert len(given) > 1, "pictures that all have the same tags would not show a threshold that is ignored"
    for row, probabilities in zip(found, tagger.predict_proba(pictures), strict=True):
        exact = dict(zip(tagger.classes_, probabilities.tolist(), strict=True))
        assert row["tags"] == pytest.approx({name: exact[name] for name in row["tags"]}, abs=1e-3)


def test_the_example_asks_for_products_that_do_not_overflow(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[onnxruntime.SessionOptions] = []
    opened = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda graph, options=None: asked.append(options) or opened(graph, options)
    )
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(exported / "tagger.onnx")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert asked[0].get_session_config_entry("session.x64quantprecision") == "1"


def test_the_example_fits_on_a_screen_and_imports_nothing_else() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 31
    imported = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported == {"json", "os", "sys", "pathlib", "numpy", "onnxruntime", "PIL"}


@pytest.mark.processes
def test_labels_of_another_model_are_refused_by_the_example(exported: Path, photos: Path) -> None:
    stored = dict(np.load(exported / "labels.npz"))
    np.savez(exported / "labels.npz", **stored | {"graph": np.array("another")})
    done = subprocess.run(
        [sys.executable, EXAMPLE, exported / "tagger.onnx", photos / "z.webp"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "labels.npz are of different models" in done.stderr


@pytest.mark.processes
def test_a_grown_bank_needs_no_new_graph(cli: Cli, exported: Path, bank: Path, photos: Path) -> None:
    before = (exported / "tagger.onnx").stat().st_mtime_ns
    assert cli("define", bank, "zebra").code == 0
    said = cli("export", bank, exported)
    assert "kept as it is" in said.out
    assert "4 labels" in said.out
    assert (exported / "tagger.onnx").stat().st_mtime_ns == before
    pictures = [photos / "b, c.png", photos / "z.webp"]
    found = [tuple(row["tags"]) for row in tag_alone(exported / "tagger.onnx", *pictures)]
    assert found == Tagger.load(bank).predict(pictures)
    assert list(np.load(exported / "labels.npz")["names"]) == ["cat", "dog", "sofa", "zebra"]


def test_facts_for_machines(cli: Cli, bank: Path, photos: Path) -> None:
    found = json.loads(cli("export", bank, "new/folder", "--int8", "--check", photos, "--json").out)
    assert (found["labels"], found["pictures"], found["kept"]) == (3, 4, False)
    assert 0 < found["difference"] < 1e-3
    assert found["difference"] < found["int8_difference"] < 1
    folder = Path("new/folder")
    assert names(folder) == ["labels.npz", "tagger-int8.onnx", "tagger.onnx"]
    assert found["sizes"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert found["sizes"]["tagger-int8.onnx"] < 0.55 * found["sizes"]["tagger.onnx"], (
        "half is nodes in a graph so small"
    )


def test_an_int8_graph_that_is_the_graph_itself_is_called_so(
    cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cli("export", bank, "floats", "--int8").out.splitlines()[-1]
    assert re.search(r"tagger-int8\.onnx: .*, written; greatest difference \S+, which int8 is expected to make$", other)
    monkeypatch.setattr("fewtag.graphs.to_int8", lambda graph: graph)  # as it is for a shipped model's
    said = cli("export", bank, "folder", "--int8")
    assert said.out.endswith("written; the same as tagger.onnx, whose products are in int8 already\n")
    assert json.loads(cli("export", bank, "folder", "--int8", "--json").out)["int8_is_same"]


def test_other_files_of_the_folder_stay(cli: Cli, bank: Path) -> None:
    Path("site").mkdir()
    Path("site/index.html").write_text("mine")
    assert cli("export", bank, "site").code == 0
    assert names(Path("site")) == ["index.html", *FILES]
    assert Path("site/index.html").read_text() == "mine"


def test_a_graph_that_disagrees_is_refused_and_nothing_of_it_is_left(
    cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disagreeing(0.002, monkeypatch)
    said = cli("export", bank, "pets-onnx", "--json")
    assert (said.code, said.out) == (2, "")
    assert re.search(r"disagrees with the tagger: probabilities differ by up to 0\.002\d*, at most 0\.001 is", said.err)
    assert "Traceback" not in said.err
    assert not Path("pets-onnx").exists()


@pytest.mark.parametrize("wrong", [0.0011, float("nan")])
def test_an_earlier_export_outlives_one_that_is_refused(
    cli: Cli, exported: Path, bank: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    disagreeing(wrong, monkeypatch)
    assert cli("define", bank, "zebra").code == 0
    said = cli("export", bank, exported)
    assert said.code == 2
    assert f"delete {exported / 'tagger.onnx'} to have it made anew" in said.err
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


def test_a_damaged_graph_is_written_anew(cli: Cli, exported: Path, bank: Path) -> None:
    whole = (exported / "tagger.onnx").read_bytes()
    (exported / "tagger.onnx").write_bytes(whole[: len(whole) // 2])
    said = cli("export", bank, exported)
    assert (said.code, "written" in said.out, "kept" in said.out) == (0, True, False)
    assert len((exported / "tagger.onnx").read_bytes()) == len(whole)


def test_a_full_disk_keeps_the_earlier_pair(
    cli: Cli, exported: Path, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name.startswith("tagger-int8.onnx"):
            write(path, content[:100])
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert cli("define", bank, "zebra").code == 0
    said = cli("export", bank, exported, "--int8")
    assert (said.code, "tagger-int8.onnx: No space left on device" in said.err) == (2, True)
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


def test_an_absent_package_is_named_with_what_to_install(cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = cli("export", bank, "pets-onnx")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert 'exporting needs onnx; install it with: pip install "fewtag[export]"' in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.fewtag", "out"), "there is no bank gone.fewtag"),
        (("pets.fewtag", "pets.fewtag"), "pets.fewtag is a file; name a folder to export to"),
        (("empty.fewtag", "out"), "no label is known yet"),
        (("tags.csv", "out"), "tags.csv is a table; say which data set to make of it"),
        (("pets.fewtag", "out", "--as", "coco"), "--as coco takes a table; make one: fewtag tag pets.fewtag PICTURES"),
        (("bad", "out", "--as", "coco"), "--as coco takes a table; make one: fewtag tag BANK PICTURES --out"),
        (("pets.fewtag", "out", "--check", "nowhere"), "there is no folder or picture nowhere"),
        (("pets.fewtag", "out", "--check", "bad"), "image torn.png cannot be decoded"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, bank: Path, arguments: tuple[str, ...], message: str) -> None:
    shutil.copy(bank, "empty.fewtag")
    for label in ("cat", "dog", "sofa"):
        assert cli("forget", "empty.fewtag", label).code == 0
    Path("bad").mkdir()
    Path("bad/torn.png").write_bytes(b"no picture")
    said = cli("export", *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err.splitlines()[-1]
    assert not Path("out").exists()


def test_the_labels_take_their_name_after_the_graph(cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in between then leaves labels of another graph, which say so."""
    named = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        named.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    assert cli("export", bank, "pets-onnx").code == 0
    assert named == ["tagger.onnx", "labels.npz"]


def test_an_int8_graph_goes_when_it_is_of_another_model_only(cli: Cli, exported: Path, bank: Path) -> None:
    small = exported / "tagger-int8.onnx"
    assert cli("export", bank, exported, "--int8").code == 0
    assert cli("export", bank, exported).code == 0
    assert small.exists(), "of the same model"
    proto = onnx.load(small)
    (key,) = [noted for noted in proto.metadata_props if noted.key == KEY]
    key.value = "another"
    onnx.save(proto, small)
    assert cli("export", bank, exported).code == 0
    assert not small.exists()
    small.write_text("somebody's own")
    assert cli("export", bank, exported).code == 0
    assert small.exists()
