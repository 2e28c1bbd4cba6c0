"""The site builds without a connection, strictly, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
# whatever a browser fetches by itself; links that a person may follow are not among it
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*\bhref=[\"']?(?:https?:)?//"
)
STYLED = re.compile(r"(?:@import\s*[\"']?|url\([\"']?)(?:https?:)?//")
UNREACHABLE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason='the site needs: pip install "fewtag[docs]"')
    folder = tmp_path_factory.mktemp("site")
    # without --quiet, by which MkDocs counts no warnings, and so builds what CI refuses
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | UNREACHABLE | quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_the_repository_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"SECURITY", "CONTRIBUTING", "CHANGELOG"}
    assert {path.parent.name for path in site.glob("*/index.html")} >= pages
    assert "one example each" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "examples" / "demo.jpg").is_file()
    assert (site / "results" / "plots" / "coco.png").is_file()


def test_the_python_page_shows_what_each_method_is_for(site: Path) -> None:
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    for name in ("partial_fit", "predict_proba", "explain", "save", "load"):
        assert f'id="fewtag.tagger.tagger.Tagger.{name}"' in page
    assert "Calibrated probabilities" in page
    assert "&gt;&gt;&gt;" in page  # a doctest, as code
    assert "<blockquote>" not in page


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix == ".html":
            assert not LOADED.findall(path.read_text(encoding="utf-8")), path.name
        if path.suffix in {".html", ".css"}:
            assert not STYLED.findall(path.read_text(encoding="utf-8")), path.name


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f" {path.name}\n" not in menu] == []
