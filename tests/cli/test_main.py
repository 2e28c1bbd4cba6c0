"""The command line as a whole: every command explains itself, quickly, and what is mistyped ends with 2."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fewtag

Cli = Callable[..., Any]


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"fewtag {fewtag.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "bench",
        "draws",
        "report",
        "learn",
        "define",
        "forget",
        "labels",
        "tag",
        "explain",
        "export",
        "write",
        "cache",
    ],
)
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    assert f"fewtag {command} [OPTIONS]" in cli(command, "--help").out
    assert command in cli("--help").out


def test_what_typer_refuses_ends_with_2(cli: Cli) -> None:
    assert cli("bench").code == 2
    assert cli("brench").code == 2


def test_help_loads_neither_torch_nor_numpy() -> None:
    script = Path(sys.executable).parent / "fewtag"
    done = subprocess.run([sys.executable, "-X", "importtime", script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "bench" in done.stdout
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "fewtag.cli.main" in loaded
    assert not loaded & {"torch", "timm", "numpy", "pydantic", "lightning_fabric", "matplotlib"}
