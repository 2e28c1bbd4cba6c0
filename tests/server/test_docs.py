"""What docs/http.md shows, works: each curl line is replayed, and its reply has the fields that the page shows."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from serving import Running
from tiny import draw

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
BLOCKS = re.findall(r"^```(sh|json|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, label) in enumerate({"garden": "dog", "kitchen": "cat", "heron": "ball"}.items()):
        draw(200 + number, label).save(tmp_path / f"{name}.jpg", quality=95)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def shape(value: Any, wanted: Any, where: str = "") -> None:
    """Asserts that a reply has all that the page shows of it; names of labels differ."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= value.keys(), where
        for key, each in wanted.items():
            shape(value[key], each, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        for mine, each in zip(value, wanted, strict=False):
            shape(mine, each, f"{where}[]")
    elif wanted is not None:
        assert isinstance(value, str) == isinstance(wanted, str), where


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("curl") or not shutil.which("sha256sum") or not Path("/proc/sys/kernel/random/uuid").exists(),
    reason="the page's lines are for a shell with curl and sha256sum",
)
def test_every_line_of_the_page_does_what_it_says(running: Running, folder: Path) -> None:
    environment = os.environ | {"FEWTAG": running.settings.url, "TOKEN": running.settings.token}
    before, checked = "", 0
    for number, (language, block) in enumerate(BLOCKS):
        if language != "sh":
            continue
        script = before + block.replace("curl -s ", "curl -sS --fail-with-body --noproxy '*' ")
        done = subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        before += "".join(line + "\n" for line in block.splitlines() if re.match(r"[A-Z]+=", line))
        if BLOCKS[number + 1][0] == "json":
            shape(json.loads(done.stdout), json.loads(BLOCKS[number + 1][1]))
            checked += 1
    assert checked >= 6
    assert "birds/heron" not in {label.name for label in running.client.labels()}


def test_the_pages_python_runs(running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (example,) = [block for language, block in BLOCKS if language == "python"]
    exec(example, {"url": running.settings.url, "token": running.settings.token})
    assert "kettle" in {label.name for label in running.client.labels()}
