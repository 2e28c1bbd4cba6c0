"""The image: what its file and the compose files promise; `scripts/try_container.py` builds and runs it."""

import json
import re
from typing import Any, NamedTuple

import pytest
import typer
from try_container import CONTAINERS, REPOSITORY

from fewtag.cli.main import make_app

DOCKERFILE = CONTAINERS / "Dockerfile"


class Step(NamedTuple):
    """An instruction and what comes after it."""

    word: str
    rest: str


def steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, without comments, long lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", "")
    return [Step(*line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]


STEPS = steps(DOCKERFILE.read_text(encoding="utf-8"))


def compose(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((REPOSITORY / "containers" / name).read_text(encoding="utf-8"))


def test_the_image_runs_as_a_user_without_rights_and_says_whether_it_is_well() -> None:
    words = [step.word for step in STEPS]
    assert words.count("USER") == words.count("HEALTHCHECK") == words.count("ENTRYPOINT") == 1
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", next(step.rest for step in STEPS if step.word == "USER"))
    assert words.index("USER") > max(at for at, word in enumerate(words) if word in {"RUN", "COPY"})


def test_nothing_is_downloaded_but_by_pip_when_it_is_built() -> None:
    assert "ADD" not in {step.word for step in STEPS}
    for step in STEPS:
        assert not re.search(r"curl|wget|apt|https?://(?!127\.0\.0\.1)", step.rest), step
    assert sum("pip install" in step.rest for step in STEPS) == 1


def test_what_is_copied_is_let_through_by_the_ignore_file() -> None:
    let = (REPOSITORY / "containers" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for step in STEPS:
        if step.word == "COPY" and not step.rest.startswith("--from"):
            for source in step.rest.split()[:-1]:
                assert f"!{source}" in let
                assert (REPOSITORY / source).exists()


@pytest.mark.parametrize("name", ["immich.yaml", "photoprism.yaml"])
def test_pictures_are_read_only_for_whatever_listens_and_ports_are_this_machines(name: str) -> None:
    for service, facts in compose(name)["services"].items():
        assert facts["read_only"] is True
        assert facts["cap_drop"] == ["ALL"]
        pictures = next(volume for volume in facts["volumes"] if ":/pictures" in volume)
        listens = "ports" in facts
        assert pictures.endswith(":ro") == listens, service
        assert all(port.startswith("127.0.0.1:") for port in facts.get("ports", ()))
        assert listens or facts["network_mode"] == "none"
        assert "FEWTAG_TOKEN" in facts["environment"] or not listens


@pytest.mark.parametrize("name", ["immich.yaml", "photoprism.yaml"])
def test_what_a_compose_file_names_is_there(name: str) -> None:
    """Commands that fewtag takes, volumes that are declared, folders and a port that the image has."""
    facts, words = compose(name), {step.word: step.rest for step in STEPS}
    folders = set(re.findall(r"install -d (?:-o \d+ -g \d+ )?(/\w+)", " ".join(step.rest for step in STEPS)))
    for service in facts["services"].values():
        command = service.get("entrypoint", ["fewtag"])[1:] + service.get("command", [])
        if command:
            command_line = typer.main.get_command(make_app())
            command_line.commands[command[0]].make_context(command[0], command[1:])  # type: ignore[attr-defined]
        for volume in service["volumes"]:
            source, folder = re.fullmatch(r"(\$\{[^}]+\}|\w+):(/\w+)(?::ro)?", volume).groups()  # type: ignore[union-attr]
            assert folder in folders
            assert source.startswith("${") or source in facts["volumes"]
        assert all(port.endswith(f":{words['EXPOSE']}") for port in service.get("ports", ()))
        build = service.get("build")
        assert build is None or (REPOSITORY / "containers" / build["context"] / build["dockerfile"]).samefile(
            DOCKERFILE
        )
    comments = (REPOSITORY / "containers" / name).read_text(encoding="utf-8")
    for called in re.findall(r"docker compose --file (\S+) run --rm (\w+)", comments):
        assert called[0] == f"containers/{name}"
        assert called[1] in facts["services"]


def test_the_health_check_asks_what_the_server_answers() -> None:
    check = next(step.rest for step in STEPS if step.word == "HEALTHCHECK")
    port = next(step.rest for step in STEPS if step.word == "EXPOSE")
    (path,) = re.findall(rf"http://127\.0\.0\.1:{port}(/\w+)", check)
    described = json.loads((REPOSITORY / "tests" / "server" / "openapi.json").read_text(encoding="utf-8"))
    assert f"GET {path}" in described


def test_photoprism_is_told_the_address_and_the_name_that_the_container_goes_by() -> None:
    command = compose("photoprism.yaml")["services"]["fewtag"]["command"]
    service = compose("photoprism-vision.yml")["Models"][0]["Service"]
    assert service["Uri"] == "http://fewtag:8766/photoprism/labels"
    assert "--allow-host=fewtag:8766" in command
    assert "--service=photoprism" in command
    assert service["FileScheme"] == "data"
