"""The command line as a whole: every command explains itself, quickly, and what is mistyped ends with 2."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import draw

import fewtag
from fewtag.cli import main as command_line

Cli = Callable[..., Any]


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"fewtag {fewtag.__version__}\n", "")


def test_every_command_explains_itself(cli: Cli) -> None:
    whole = cli("--help", "labels").out  # of all commands, since the name comes after
    for command in (each.__name__ for commands in command_line.COMMANDS.values() for each in commands):
        assert f"fewtag {command} [OPTIONS]" in cli(command, "--help").out
        assert command in whole


def test_what_typer_refuses_ends_with_2(cli: Cli) -> None:
    assert cli("bench").code == 2
    wrong = cli("brench")
    assert (wrong.code, "Did you mean 'bench'?" in wrong.err) == (2, True), "all commands are known, not one alone"


SLOW_TO_IMPORT = {
    "torch",
    "timm",
    "pydantic",
    "pyarrow",
    "onnxruntime",
    "fastapi",
    "lightning_fabric",
    "matplotlib",
    "ray",
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "needless"),
    [
        ("--help", {"numpy", "PIL"}),
        ("labels pets.fewtag", {"PIL", "importlib.metadata"}),
        ("define pets.fewtag zebra", {"urllib.request", "pi_heif"}),
        ("forget pets.fewtag dog", {"fewtag.tagging", "urllib.request", "pi_heif"}),
    ],
)
@pytest.mark.usefixtures("bank")
def test_a_light_command_imports_nothing_heavy(command: str, needless: set[str]) -> None:
    arguments = [sys.executable, "-X", "importtime", "-m", "fewtag", *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "fewtag.cli.main" in loaded
    assert not loaded & (SLOW_TO_IMPORT | needless)


def test_names_that_the_terminal_has_no_letters_for_end_no_command(
    bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where output that goes to a file is cp1252."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    draw(100, "dog").save(folder / "犬.png")
    (folder / "truth.csv").write_text("image,labels\n犬.png,dog\n", encoding="utf-8")
    (folder / os.fsdecode(b"caf\xe9.png")).write_bytes(b"")

    def said(*arguments: object) -> str:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2))
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        monkeypatch.setattr("sys.argv", ["fewtag", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        for stream in (out, err):
            stream.flush()
        assert ended.value.code in (0, 1, None), err.buffer.getvalue()  # type: ignore[attr-defined]
        return (out.buffer.getvalue() + err.buffer.getvalue()).decode("cp1252")  # type: ignore[attr-defined]

    lines = said("tag", bank, folder, "--json").splitlines()
    found = {row["image"]: row for row in map(json.loads, lines)}
    assert "the name of the file caf\\udce9.png is no UTF-8 text" in found[os.fsdecode(b"caf\xe9.png")]["failure"]
    assert found["犬.png"]["tags"] == ["dog"]
    assert r"\u72ac.png: dog" in said("tag", bank, folder)
    assert "picture" in said("check", bank, folder / "truth.csv")
