"""`fewtag serve` and `fewtag studio`, as commands."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import TOKEN, picture, serving_bank
from tiny import draw

from fewtag.client import ApiError, Client
from fewtag.server.dialects import MOST_JSON
from fewtag.server.front import Server, listen
from fewtag.server.security import Settings

Cli = Callable[..., Any]


@contextmanager
def started(*arguments: object, **environment: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """The command in a process of its own: what its first line says, and the process."""
    command = [sys.executable, "-m", "fewtag", *map(str, arguments), "--port", "0", "--json"]
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line, process.stderr.read() if process.stderr else ""
            yield json.loads(line), process
        finally:
            process.kill()


def closed_window() -> int:
    """The signal of a terminal whose window is closed; Ctrl-C's where there is none, or `nohup` has it ignored."""
    hang_up = getattr(signal, "SIGHUP", None)
    return hang_up if hang_up is not None and signal.getsignal(hang_up) is signal.SIG_DFL else signal.SIGINT


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """How the commands would serve: each ends where its server has begun."""
    found: list[Settings] = []

    def run(server: Server, _bound: object) -> None:
        found.append(server.front.settings)
        server._when_started(server.guard)

    monkeypatch.setattr("fewtag.server.front.run", run)
    return found


@pytest.mark.processes
def test_the_first_line_is_where_and_with_which_token_and_ctrl_c_ends_it_in_good_order(bank: Path) -> None:
    with started("serve", bank, "--no-cache", "--no-browser") as (first, process):
        assert first.keys() == {"url", "token"}
        assert first["url"].startswith("http://127.0.0.1:")
        client = Client(first["url"], first["token"])
        assert client.health()
        assert client.tag([picture(100, "dog")])[0].tags == ("dog",)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.processes
def test_a_studio_opens_checks_and_copies_its_project(cli: Cli, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    for number in range(3):
        draw(number, "dog").save(tmp_path / "album" / f"{number}.png")
    options = ("--model", tiny_model, "--cache", tmp_path / "cache")
    project = tmp_path / "project"
    with started("studio", project, tmp_path / "album", *options, "--no-browser") as (first, process):
        client = Client(first["url"], first["token"])
        while client.get("/v1/project")["indexing"]:
            time.sleep(0.02)
        client.teach_known("hound", [client.search()["pictures"][0]["digest"]])
        assert b"<!doctype html>" in client.get("/")
        process.send_signal(closed_window())
        assert process.wait(120) == 0, "it ended in good order"
    checked = cli("studio", project, "--check", "--cache", tmp_path / "cache")
    assert checked.code == 0, checked.err
    assert f"{project}: 3 pictures, 1 label, 1 answer; all is well" in checked.out
    assert cli("studio", project, "--backup", tmp_path / "copy.sqlite", "--cache", tmp_path / "cache").code == 0
    assert (tmp_path / "copy.sqlite").stat().st_size > 0
    assert cli("labels", project / "bank.fewtag").out.count("hound") == 1
    with started("serve", project, "--read-only", "--cache", tmp_path / "cache") as (first, process):
        client = Client(first["url"], first["token"])
        assert [label.name for label in client.labels()] == ["hound"]
        with pytest.raises(ApiError, match="only reads"):
            client.define("cat")


def test_a_port_in_use_is_one_sentence_and_makes_no_project(cli: Cli, bank: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        for command in (("serve", bank), ("studio", tmp_path / "new", bank.parent)):
            refused = cli(*command, "--port", taken.getsockname()[1])
            assert refused.code == 2
            assert "name another --port" in refused.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_told_as_that(cli: Cli, bank: Path, host: str) -> None:
    refused = cli("serve", bank, "--port", "0", "--allow-network", "--host", host)
    assert refused.code == 2
    assert "name an address of this machine by --host" in refused.err
    assert "another --port" not in refused.err


def test_a_server_needs_no_standard_output(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as where it was closed by whoever started the command
    with serving_bank(bank) as running:
        assert running.client.health()


def test_what_is_not_there_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    assert "fewtag learn" in cli("serve", tmp_path / "none.fewtag").err
    assert "there is no project" in cli("studio", tmp_path / "none", "--check").err
    assert "there is no picture folder" in cli("studio", tmp_path / "new", tmp_path / "nowhere").err


def test_a_folder_of_pictures_does_not_become_a_project_by_a_slip(cli: Cli, photos: Path, tmp_path: Path) -> None:
    before = sorted(photos.rglob("*"))
    for arguments in ([photos], [photos, tmp_path / "others"], [tmp_path]):
        refused = cli("studio", *arguments)
        assert refused.code == 2
        assert "name the project first: fewtag studio PROJECT" in refused.err
    assert f"is no project; name the project first: fewtag studio PROJECT {photos}" in cli("serve", photos).err
    assert sorted(photos.rglob("*")) == before


def test_without_the_extra_the_install_command_is_told(cli: Cli, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.cli.server.NEEDED", ("fastapi", "a_package_that_nobody_has"))
    for command in ("serve", "studio"):
        refused = cli(command, bank)
        assert refused.code == 2
        assert f'pip install "fewtag[{command}]"' in refused.err


def test_options_that_contradict_each_other_are_refused(cli: Cli, bank: Path, tmp_path: Path) -> None:
    assert "exclude each other" in cli("serve", bank, "--cache", tmp_path, "--no-cache").err
    (tmp_path / "project").mkdir()
    assert "leave --no-cache out" in cli("serve", tmp_path / "project", "--no-cache").err
    for instead in (("--check",), ("--backup", tmp_path / "copy.sqlite")):
        refused = cli("studio", tmp_path / "none", tmp_path, *instead)
        assert (refused.code, f"leave {tmp_path} out" in refused.err) == (2, True)


@pytest.mark.parametrize("address", ["ftp://x", "http://", "http://[x", "http://nowhere.invalid"])
def test_a_wrong_address_of_label_studio_is_refused_before_anything_is_served(
    cli: Cli, bank: Path, served: list[Settings], address: str
) -> None:
    refused = cli("serve", bank, "--port", 0, "--label-studio", address)
    assert (refused.code, refused.out, served) == (2, "", [])
    assert f"--label-studio '{address}'" in refused.err


def test_services_are_there_where_they_are_asked_for_and_take_pictures_in_json(
    cli: Cli, bank: Path, served: list[Settings]
) -> None:
    cli("serve", bank, "--port", 0, "--service", "kserve", "--label-studio", "http://127.0.0.1:1")
    cli("serve", bank, "--port", 0)
    asked, plain = served
    assert (asked.services, asked.label_studio) == (("kserve", "label-studio"), "http://127.0.0.1:1")
    assert (plain.services, plain.label_studio) == ((), "")
    assert asked.most_json == MOST_JSON > plain.most_json


def test_a_token_that_is_kept_is_not_printed(
    cli: Cli, bank: Path, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, shown in ((TOKEN, False), ("", True)):
        monkeypatch.setenv("FEWTAG_TOKEN", token)
        first = cli("serve", bank, "--port", 0).out
        assert "http://127.0.0.1:" in first
        assert ("#token=" in first, TOKEN in first) == (shown, False)
        assert ("FEWTAG_TOKEN" in first) != shown, "else it is told which one"
    assert [settings.token == TOKEN for settings in served] == [True, False]
