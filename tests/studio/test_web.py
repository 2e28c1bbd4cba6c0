"""The studio's pages as files: what is vendored is what it says, types hold, nothing is loaded from elsewhere."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "src" / "fewtag" / "studio" / "web"
VENDOR = WEB / "vendor"
OURS = sorted(path for path in WEB.iterdir() if path.suffix in {".js", ".css", ".html"})
TSC = shutil.which("tsc") or shutil.which("tsc", path=ROOT / ".typescript" / "node_modules" / ".bin")


def without_comments(text: str) -> str:
    """And without indentation: what a browser has to read."""
    text = re.sub(r"(?s:/\*.*?\*/ ?)|^\s*//.*$", "", text, flags=re.M)
    return re.sub(r"\s*\n\s*", "\n", text)


def test_vendored_files_have_the_digests_that_are_listed() -> None:
    listed = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    present = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "NOTICE"}
    assert listed.keys() == present
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_every_vendored_script_has_its_licence_and_is_told_of() -> None:
    told = (VENDOR / "NOTICE").read_text(encoding="utf-8")
    for script in VENDOR.glob("*.js"):
        assert re.search(rf"^{re.escape(script.name)}\b|, {re.escape(script.name)}$", told, flags=re.M), script.name
    for licence in VENDOR.glob("*.LICENSE"):
        assert licence.name in told
    general = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert all(name in general for name in ("Preact", "htm", "src/fewtag/studio/web/vendor/NOTICE"))


def test_bare_imports_are_all_that_was_changed_in_what_is_vendored() -> None:
    told = (VENDOR / "NOTICE").read_text(encoding="utf-8")
    bare = {"./hooks.js": "preact/hooks", "./preact.js": "preact", "./signals-core.js": "@preact/signals-core"}
    for name in ("preact", "hooks", "signals", "signals-core"):
        text = (VENDOR / f"{name}.js").read_text(encoding="utf-8")
        for ours, theirs in bare.items():
            text = text.replace(f'from"{ours}"', f'from"{theirs}"')
        map_line = f"//# sourceMappingURL={name}.mjs.map\n"
        before = (text + map_line, text.removesuffix("\n") + map_line)
        assert any(hashlib.sha256(each.encode()).hexdigest() in told for each in before), name


def test_the_page_asks_for_all_its_modules_at_once() -> None:
    asked = re.findall(
        r'(?:modulepreload" href|module" src)="/static/([^"]+)"', (WEB / "index.html").read_text("utf-8")
    )
    assert sorted(asked) == sorted(path.relative_to(WEB).as_posix() for path in WEB.rglob("*.js"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_page_loads_nothing_from_elsewhere_and_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]{2,}/", text)
    # the policy forbids scripts and styles inside of markup; text never becomes markup
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=[\"']|\son[a-z]+=[\"']", text)


def test_the_pages_stay_small() -> None:
    scripts = sum(len(without_comments(path.read_text(encoding="utf-8"))) for path in WEB.glob("*.js"))
    assert 60_000 < scripts < 93_900
    style = without_comments((WEB / "style.css").read_text(encoding="utf-8"))
    assert len(re.sub(r"\s*([{};:,>])\s*", r"\1", style).replace(";}", "}")) < 15_200


def test_the_pictures_of_the_documentation_are_small() -> None:
    pictures = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").glob("studio*.webp")}
    assert pictures.pop("studio.webp") <= 3_000_000
    assert pictures
    assert max(pictures.values()) <= 150_000


@pytest.mark.skipif(TSC is None, reason="types of the pages are checked where tsc is: npm install typescript")
def test_the_types_of_the_pages_hold() -> None:
    assert TSC is not None
    done = subprocess.run([TSC, "--noEmit", "--project", ROOT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
