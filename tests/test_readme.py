"""What the README shows, works."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


def test_the_readme_example_runs() -> None:
    (example,) = python_blocks(ROOT / "README.md")
    names = {
        "pixels": torch.zeros(2, 3, 224, 224, dtype=torch.uint8),
        "targets": torch.eye(2, dtype=torch.bool),
        "new_pixels": torch.zeros(3, 3, 224, 224, dtype=torch.uint8),
    }
    exec(example, names)
    assert names["probabilities"].shape == (3, 2)


def test_the_method_of_the_docs_keeps_the_contract_in_one_file() -> None:
    _, example = python_blocks(ROOT / "docs" / "add-a-method.md")
    names: dict[str, object] = {}
    exec(example, names)
    from fewtag.methods import Support

    method = names["MixedPrototypes"](4, 3)  # type: ignore[operator]
    support = Support(("a", "b"), torch.randn(2, 3), torch.rand(2, 4, 2, 2), torch.eye(2, dtype=torch.bool))
    assert method.adapt(support)(torch.rand(5, 4, 2, 2)).shape == (5, 2)


def test_every_file_that_the_docs_link_to_is_there() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
