"""The command line as a whole: every command explains itself, quickly, and what is mistyped ends with 2."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import draw

import fewtag
from fewtag.cli import main as command_line
from fewtag.cli.terminal import Bars

Cli = Callable[..., Any]


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"fewtag {fewtag.__version__}\n", "")


def test_every_command_explains_itself(cli: Cli) -> None:
    whole = cli("--help", "labels").out  # of all commands, since the name comes after
    for command in (each.__name__ for commands in command_line.COMMANDS.values() for each in commands):
        assert f"fewtag {command} [OPTIONS]" in cli(command, "--help").out
        assert command in whole
    assert cli("labels", "-h") == cli("labels", "--help")
    usages = {"learn": "BANK EXAMPLES...", "tag": "BANK PICTURES..."}
    usages |= {"studio": "[PROJECT] [PICTURES...]", "mcp": "PROJECT [PICTURES...]"}
    for command, several in usages.items():  # what is required is in braces, but for older typers
        assert several in re.sub("[{}]", "", cli(command, "-h").out), "it takes several"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_cuts_nothing_whatever_the_width(
    cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """In a window a long name goes over several lines, in a pipe each row is one."""
    name = "birds/a name of forty letters, more or less"
    assert cli("define", bank, name, "--like", "zebra").code == 0
    monkeypatch.setenv("COLUMNS", "75")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
    lines = [line for line in cli("labels", bank).out.splitlines() if line.startswith("│")]
    cells = [line.strip("│").split("│")[0].strip() for line in lines]
    assert (name in cells, "…" in "".join(lines), max(map(len, lines)) <= 75) == (not terminal, False, terminal)
    assert name.replace(" ", "") in "".join(cells).replace(" ", "")


def test_help_fills_the_lines_of_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in cli("learn", "--help").out.splitlines()]
    first = next(place for place, line in enumerate(lines) if line.startswith("In a table several"))
    paragraph = lines[first : lines.index("", first)]
    words = [line.split()[0] for line in paragraph[1:]]
    assert all(len(line) + len(word) >= 77 for line, word in zip(paragraph, words, strict=False))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room is simulated by Linux")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_for_which_there_is_no_room_is_one_sentence(bank: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "fewtag", "labels", str(bank), *options]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "fewtag: the output cannot be written: No space left on device; free some room\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room is simulated by Linux")
@pytest.mark.parametrize(
    ("command", "done"),
    [
        (("forget", "pets.fewtag", "dog"), "pets.fewtag is saved"),
        (("write", "mine.csv", "photos"), "the work is done"),
    ],
)
def test_work_that_is_done_is_said_to_be_though_there_is_no_room_for_the_output(
    cli: Cli, bank: Path, command: tuple[str, ...], done: str
) -> None:
    Path("photos").mkdir()
    draw(0).save("photos/a.png")
    Path("mine.csv").write_text("image,tags\na.png,dog\n")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "fewtag", *command],
            cwd=bank.parent,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = f"fewtag: {done}, but the output cannot be written: No space left on device; free some room\n"
    assert (ended.returncode, ended.stderr.endswith(said)) == (1, True), ended.stderr
    if command[0] == "forget":
        assert "dog" not in json.loads(cli("labels", bank, "--json").out)
    else:
        assert Path("photos/a.png.xmp").exists()


def test_a_reader_that_left_is_nobodys_mistake(bank: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "fewtag", "labels", str(bank), "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_path_that_cannot_be_is_one_sentence(cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("labels", "x" * 300), ("learn", bank, "x" * 300), ("tag", bank, "x" * 300)):
        said = cli(*command)
        assert (said.code, said.err.count("\n"), "Traceback" in said.err) == (2, 1, False)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    Path("locked").mkdir()
    said = cli("learn", bank, "locked")
    assert (said.code, said.err.partition(";")[0]) == (2, "fewtag: cannot read the folder locked: Permission denied")
    monkeypatch.setattr(Path, "exists", denied)
    said = cli("labels", "locked/pets.fewtag")
    assert (said.code, "locked/pets.fewtag: Permission denied; check the path" in said.err) == (2, True)


def test_an_empty_argument_is_not_the_current_folder(cli: Cli, bank: Path) -> None:
    draw(0).save("a.jpg")
    Path("tags.csv").write_text("image,tags\na.jpg,dog\n")
    before = sorted(Path.cwd().rglob("*"))
    for command in (("tag", bank, ""), ("write", "tags.csv", ""), ("tag", bank, "a.jpg", "--out", "")):
        said = cli(*command)
        assert (said.code, said.out, "an argument is empty" in said.err) == (2, "", True)
    assert sorted(Path.cwd().rglob("*")) == before


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


def test_a_log_file_is_told_how_far_long_work_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, told in ((0.0, ["training mine: 50 of 2,000  loss 0.2500"]), (60.0, [])):
        monkeypatch.setattr("fewtag.cli.terminal.LOG_EVERY", seconds)
        with Bars() as bars:
            advance = bars.begin("training mine", 2000)
            advance(50, loss=0.25)
            assert capsys.readouterr().err.splitlines() == told
        capsys.readouterr()  # the bar, as it was at the end
