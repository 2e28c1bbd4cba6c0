"""Runs the steps of containers/Dockerfile in a clean folder, where no container engine is at hand.

    python scripts/try_container.py
    python scripts/try_container.py --python /usr/bin/python3    # one that other users may run

Every COPY, RUN, ENV, USER, HEALTHCHECK, ENTRYPOINT and CMD is done as written, the image's folders under a new one.
Then it looks whether the server becomes healthy with proxies that lead nowhere, learns a label, leaves the pictures
alone and ends when it is told to; and whether `write` of immich.yaml writes sidecars as the user who
owns the pictures, and takes them back. It cannot show the base image, nor what an engine adds: the read-only root,
dropped capabilities, the network between containers.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = REPOSITORY / "containers" / "Dockerfile"
COMPOSE = REPOSITORY / "containers" / "immich.yaml"
FOLDERS = re.compile(r"(?<![\w./])/(?=(?:source|opt/fewtag|project|pictures)\b)")
TOKEN = "a-token-of-the-trial-with-43-characters-abc"
UNREACHABLE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
UNREACHABLE |= {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


class Step(NamedTuple):
    """An instruction and what comes after it."""

    word: str
    rest: str


def steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, without comments, long lines joined.

    >>> steps("# a\\nFROM x\\nRUN a && \\\\\\n  b\\n")
    [Step(word='FROM', rest='x'), Step(word='RUN', rest='a &&   b')]
    """
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", "")
    return [Step(*line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]


class Image:
    """What the instructions make: files under a folder, an environment, a user, commands."""

    def __init__(self, root: Path, python: Path) -> None:
        self.root, self.here, self.user = root, root, ""
        tools = root / "usr" / "local" / "bin"
        tools.mkdir(parents=True)
        (tools / "python").symlink_to(python)
        self.environment = {"PATH": f"{tools}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        self.commands: dict[str, list[str]] = {}

    def inside(self, text: str) -> str:
        """With the image's folders under ours."""
        return FOLDERS.sub(f"{self.root}/", text)

    def build(self, step: Step) -> None:
        if step.word == "WORKDIR":
            self.here = Path(self.inside(step.rest))
            self.here.mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY" and not step.rest.startswith("--from="):
            *sources, target = step.rest.split()
            for source in sources:
                found = REPOSITORY / source
                place = self.here / target / (source if len(sources) > 1 or found.is_file() else "")
                if found.is_dir():
                    shutil.copytree(found, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(found, place)
        elif step.word == "RUN":
            command = self.inside(step.rest)
            if os.geteuid() != 0:
                command = re.sub(r"-o \d+ -g \d+ ", "", command)  # nobody else can give files away
            subprocess.run(["bash", "-euc", command], cwd=self.here, env=self.installing(), check=True)
        elif step.word == "ENV":
            for pair in shlex.split(self.inside(step.rest)):
                name, _, value = pair.partition("=")
                self.environment[name] = value.replace("$PATH", self.environment["PATH"])
        elif step.word == "USER":
            self.user = step.rest
        elif step.word in {"CMD", "ENTRYPOINT", "HEALTHCHECK"}:
            self.commands[step.word] = json.loads(self.inside(step.rest[step.rest.index("[") :]))
        # FROM, EXPOSE, VOLUME: there is nothing to do

    def installing(self) -> dict[str, str]:
        """The installation may use this machine's package index, as an engine's build would use its own."""
        wanted = ("PIP_", "HTTP", "http", "SSL_", "REQUESTS_")
        return self.environment | {name: value for name, value in os.environ.items() if name.startswith(wanted)}

    def start(self, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        """As the image's user where we may, with no proxy that answers."""
        if os.geteuid() == 0:
            user, group = map(int, self.user.split(":"))
            options |= {"user": user, "group": group, "extra_groups": []}
        environment = self.environment | UNREACHABLE | {"FEWTAG_TOKEN": TOKEN}
        program = shutil.which(command[0], path=environment["PATH"])
        assert program is not None, command[0]
        return subprocess.Popen([program, *command[1:]], env=environment, cwd=self.root / "project", **options)


def ask(method: str, path: str, body: object = None) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:8766{path}", data, headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as reply:
        return json.load(reply)


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.jpg"))}


def try_write(image: Image) -> int:
    """What `docker compose run write` runs, as a user who may change the pictures and only read the project."""
    (entrypoint,) = re.findall(r"entrypoint: \[(.*)\]", COMPOSE.read_text(encoding="utf-8"))
    (image.user,) = re.findall(r"user: \$\{OWNER:-(.*)\}", COMPOSE.read_text(encoding="utf-8"))
    pictures, temporary = image.root / "pictures", image.root / "tmp"
    temporary.mkdir()
    image.environment["XDG_CACHE_HOME"] = str(temporary)
    if os.geteuid() == 0:
        for path in (pictures, temporary):
            os.chown(path, *map(int, image.user.split(":")))
    command = [image.inside(word.strip()) for word in entrypoint.split(",")]
    project = {path: path.stat().st_mtime_ns for path in (image.root / "project").rglob("*")}
    before, written = digests(pictures), 0
    for more in (["--threshold", "0"], ["--undo"]):
        assert image.start([*command, *more], stdout=subprocess.DEVNULL).wait(120) == 0
        written = max(written, len(list(pictures.glob("*.xmp"))))
    assert not list(pictures.glob("*.xmp")), "sidecars are left"
    assert digests(pictures) == before
    assert {path: path.stat().st_mtime_ns for path in (image.root / "project").rglob("*")} == project
    return written


def try_it(root: Path, python: Path) -> list[str]:
    """What was shown, a sentence each; an error where something was not."""
    image = Image(root, python)
    for step in steps(DOCKERFILE.read_text(encoding="utf-8")):
        print(f"{step.word} {step.rest}"[:110], flush=True)
        image.build(step)
    album = sorted((REPOSITORY / "examples" / "album").rglob("*.jpg"))[:6]
    for picture in album:
        shutil.copy(picture, root / "pictures")
    before = digests(root / "pictures")
    server = image.start([*image.commands["ENTRYPOINT"], *image.commands["CMD"]], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while image.start(image.commands["HEALTHCHECK"], stderr=subprocess.DEVNULL).wait(10):
            assert server.poll() is None, f"the server ended with {server.returncode}"
            assert time.monotonic() < until, "the health check never succeeded"
            time.sleep(1)
        while ask("GET", "/v1/project")["indexed"] < len(album):
            assert time.monotonic() < until, "the pictures were not indexed"
            time.sleep(1)
        ask("POST", "/v1/labels", {"name": "dog"})
        found = ask("POST", "/v1/search", {"query": ""})
        assert found["total"] == len(album), found
        owner = (root / "project" / "studio.sqlite").stat().st_uid
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(30)
    # uvicorn closes all in order, and then dies of the signal as it would have
    assert ended in {0, -signal.SIGTERM}, f"the server ended with {ended}"
    assert digests(root / "pictures") == before
    assert [path.name for path in root.rglob("*.fewtag")] == ["bank.fewtag"]
    written = try_write(image)
    assert written == len(album), written
    size = sum(path.stat().st_size for path in (root / "opt").rglob("*") if path.is_file() and not path.is_symlink())
    return [
        f"healthy, as user {owner}, with proxies that lead nowhere",
        f"{len(album)} pictures indexed and left as they were; a label defined; the bank written to /project",
        "ended in good order by SIGTERM",
        f"compose's write: {written} sidecars beside them as user {image.user}, and taken back",
        f"/opt/fewtag has {size / 1e6:.0f} MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(getattr(sys, "_base_executable", sys.executable)),
        help="stands for the base image's",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fewtag-container-") as folder:
        Path(folder).chmod(0o755)
        for sentence in try_it(Path(folder), arguments.python):
            print(f"- {sentence}")
    print("no container engine was used: the base image and an engine's isolation are not shown")


if __name__ == "__main__":
    main()
