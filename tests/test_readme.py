"""What the README shows, works."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


def test_the_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = python_blocks(ROOT / "README.md")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("rex.jpg", "living-room.jpg", "garden.jpg")):
        Image.effect_noise((40, 30), 10 + 60 * number).convert("RGB").save(name)
    names: dict[str, Any] = {}
    exec(example, names)
    tagger = names["Tagger"].load("pets.fewtag")
    assert tagger.classes_ == ("cat", "dog", "sofa", "zebra")
    assert tagger.predict_proba(["garden.jpg"]).shape == (1, 4)


def test_the_quickstarts_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = python_blocks(ROOT / "docs" / "quickstart.md")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("heron.jpg", "pond.jpg")):
        Image.effect_noise((40, 30), 10 + 60 * number).convert("RGB").save(name)
    from fewtag import Tagger

    Tagger().define("zebra").save("album.fewtag")
    exec(example, {})
    assert Tagger.load("album.fewtag").classes_ == ("bird", "zebra")


def test_no_page_has_a_gap_left_to_fill() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        assert not re.findall(r"\b[A-Z]+_[A-Z_0-9]+\b", re.sub(r"`[^`]*`", "", page.read_text())), page.name


def test_the_method_of_the_docs_keeps_the_contract_in_one_file() -> None:
    _, example = python_blocks(ROOT / "docs" / "add-a-method.md")
    names: dict[str, Any] = {}
    exec(example, names)
    from fewtag.research.methods import Support

    method = names["MixedPrototypes"](4, 3)
    support = Support(("a", "b"), torch.randn(2, 3), torch.rand(2, 4, 2, 2), torch.eye(2, dtype=torch.bool))
    assert method.adapt(support)(torch.rand(5, 4, 2, 2)).shape == (5, 2)


def test_every_file_that_the_docs_link_to_is_there() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
