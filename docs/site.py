"""MkDocs hook: the README is the site's first page, and whatever pages link to in the repository is part of it."""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = [ROOT / name for name in PAGES] + sorted(DOCS.glob("*.md"))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():  # a link to nothing is told of by MkDocs itself
            continue
        seen.add(path)
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, _address(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += [(path.parent / link).resolve() for link in LINK.findall(path.read_text(encoding="utf-8"))]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links from where the page is in the repository become links from where it is in the site."""
    source, here = Path(str(page.file.abs_src_path)), Path(page.file.src_uri).parent

    def move(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        return Path(os.path.relpath(_address(target), here)).as_posix()

    return LINK.sub(move, markdown)


def _address(path: Path) -> str:
    """Where a file of the repository is in the site's sources."""
    if path == ROOT / "README.md":
        return "index.md"
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
