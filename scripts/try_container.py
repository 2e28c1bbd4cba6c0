"""Builds the image with docker or podman, and tries it and the compose files as their users would.

    python scripts/try_container.py
    python scripts/try_container.py --engine podman -- --network host        # what follows -- goes to `build`

Compose starts the studio of immich.yaml: it must become healthy by the image's own check, index pictures that it may
only read, learn a label, tag a picture, and end when it is told to. Then `write` puts sidecars beside the pictures as
their owner, and takes them back. The service of photoprism.yaml must answer by the name that PhotoPrism calls it.
Where no registry can be reached, `--base` makes the base image of a Python's folder and Debian's packages (mmdebstrap).
podman needs podman-compose beside it.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
CONTAINERS = REPOSITORY / "containers"
TOKEN = "a-token-of-the-trial-with-43-characters-abc"
NETWORK = "fewtag-trial"
PACKAGES = (
    "ca-certificates,netbase,tzdata,libssl3,libsqlite3-0,libffi8,libbz2-1.0,liblzma5,libreadline8,libncursesw6,zlib1g"
)


class Trial:
    """An engine, and a folder of pictures."""

    def __init__(self, engine: str, pictures: Path) -> None:
        self.engine, self.pictures = engine, pictures
        self.compose = ["docker", "compose"] if engine == "docker" else ["podman-compose"]
        owner = pictures.stat()
        self.environment = os.environ | {
            "FEWTAG_TOKEN": TOKEN,
            "PICTURES": str(pictures),
            "OWNER": f"{owner.st_uid}:{owner.st_gid}",
            "PHOTOPRISM_NETWORK": NETWORK,
        }

    def run(self, *command: object) -> str:
        """What it prints; ends the trial where it fails."""
        words = [self.engine, *map(str, command)]
        print("$", *words, flush=True)
        return subprocess.run(words, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def composed(self, file: str, *command: str) -> str:
        words = [*self.compose, "--file", str(CONTAINERS / file), *command]
        print("$", *words, flush=True)
        return subprocess.run(words, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def make_base(self, python: Path) -> None:
        """As the official image has it: Python under /usr/local of a small Debian."""
        (name,) = set(re.findall(r"^FROM (\S+:\S+)", (CONTAINERS / "Dockerfile").read_text(), re.MULTILINE))
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "base.tar")
            hooks = [f"--customize-hook=sync-in {python} /usr/local", '--customize-hook=chroot "$1" ldconfig']
            command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *hooks, "bookworm", str(archive)]
            subprocess.run(command, check=True)
            paths = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
            changes = [f"--change=ENV {pair}" for pair in ("LANG=C.UTF-8", paths)]
            self.run("import", *changes, archive, f"docker.io/library/{name}")

    def build(self, more: Sequence[str]) -> int:
        """The image's size; podman writes health checks in Docker's format alone."""
        form = ["--format", "docker"] if self.engine == "podman" else []
        self.run("build", *form, *more, "--file", CONTAINERS / "Dockerfile", "--tag", "fewtag", REPOSITORY)
        return int(self.run("inspect", "--format", "{{.Size}}", "fewtag"))

    def wait_until_healthy(self, container: str) -> None:
        """By the image's own check, run inside."""
        check = json.loads(
            self.run("inspect", "--type", "image", "--format", "{{json .Config.Healthcheck.Test}}", "fewtag")
        )
        assert check[0] == "CMD", check
        until = time.monotonic() + 300
        while subprocess.run([self.engine, "exec", container, *check[1:]], capture_output=True, check=False).returncode:
            assert time.monotonic() < until, self.run("logs", container)
            time.sleep(1)

    def container(self, service: str) -> str:
        """Compose's name for it."""
        names = self.run("ps", "--format", "{{.Names}}").split()
        (name,) = [name for name in names if re.search(rf"[_-]{service}[_-]1$", name)]
        return name


def ask(method: str, path: str, body: object = None, host: str = "127.0.0.1:8766") -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Host": host}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if isinstance(body, bytes):
        headers["Content-Type"] = "multipart/form-data; boundary=boundary"
    request = urllib.request.Request(f"http://127.0.0.1:8766{path}", data, headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
        return json.load(reply)


def form(picture: Path) -> bytes:
    """A file of a multipart request."""
    head = f'--boundary\r\nContent-Disposition: form-data; name="files"; filename="{picture.name}"\r\n\r\n'
    return head.encode() + picture.read_bytes() + b"\r\n--boundary--\r\n"


def digests(folder: Path) -> Mapping[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def try_immich(trial: Trial) -> list[str]:
    """The studio, and `write` when it is called."""
    before = digests(trial.pictures)
    trial.composed("immich.yaml", "up", "--detach")
    try:
        studio = trial.container("fewtag")
        trial.wait_until_healthy(studio)
        user = trial.run("exec", studio, "id", "-u").strip()
        closed = [
            "exec",
            studio,
            "sh",
            "-c",
            "for place in / /pictures /opt/fewtag; do touch $place/x && exit 1; done; true",
        ]
        trial.run(*closed)
        until = time.monotonic() + 300
        while ask("GET", "/v1/project")["indexed"] < len(before):
            assert time.monotonic() < until, "the pictures were not indexed"
            time.sleep(1)
        ask("POST", "/v1/labels", {"name": "bird"})
        (row,) = ask("POST", "/v1/tag", form(next(iter(sorted(trial.pictures.glob("*.jpg"))))))["rows"]
        assert set(row["scores"]) == {"bird"}, row
        trial.run("stop", "--time", "30", studio)
        status = trial.run("inspect", "--format", "{{.State.ExitCode}}", studio).strip()
        assert status in {"0", "143"}, f"it ended with {status}"  # uvicorn ends in order, and then by the signal
        assert digests(trial.pictures) == before
        trial.composed("immich.yaml", "--profile", "write", "run", "--rm", "write", "--threshold", "0")
        written = sorted(trial.pictures.glob("*.xmp"))
        assert len(written) == len(before), written
        owners = {f"{path.stat().st_uid}:{path.stat().st_gid}" for path in written}
        assert owners == {trial.environment["OWNER"]}, owners
        trial.composed("immich.yaml", "--profile", "write", "run", "--rm", "write", "--undo")
        assert digests(trial.pictures) == before
    finally:
        trial.composed("immich.yaml", "down", "--volumes")
    return [
        f"immich.yaml: healthy, as user {user}, on a root and pictures that may only be read",
        f"{len(before)} pictures indexed and left as they were; a label defined; one tagged: {row['scores']}",
        f"ended in good order by SIGTERM; write: {len(written)} sidecars as user {owners.pop()}, and taken back",
    ]


def try_photoprism(trial: Trial) -> list[str]:
    """What PhotoPrism would ask, by the name that it would use."""
    trial.run("network", "create", NETWORK)
    try:
        trial.composed("photoprism.yaml", "up", "--detach")
        trial.wait_until_healthy(trial.container("fewtag"))
        ask("POST", "/v1/labels", {"name": "bird"})
        picture = base64.b64encode(next(iter(sorted(trial.pictures.glob("*.jpg")))).read_bytes()).decode()
        asked = {"id": "1", "images": [f"data:image/jpeg;base64,{picture}"]}
        reply = ask("POST", "/photoprism/labels", asked, host="fewtag:8766")
        assert reply["code"] == 200, reply
        labels = [label["name"] for label in reply["result"]["labels"]]
    finally:
        trial.composed("photoprism.yaml", "down", "--volumes")
        trial.run("network", "rm", NETWORK)
    return [f"photoprism.yaml: healthy, and answers PhotoPrism's question with {labels}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    parser.add_argument("--engine", choices=["docker", "podman"], default=found, required=found is None)
    parser.add_argument("--base", type=Path, metavar="PREFIX", help="a Python's folder, such as /opt/python3.12")
    parser.add_argument("more", nargs="*", metavar="ARGUMENT", help="for `build`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fewtag-pictures-") as folder:
        pictures = Path(folder)
        for picture in sorted((REPOSITORY / "examples" / "album").rglob("*.jpg"))[:6]:
            shutil.copy(picture, pictures)
        pictures.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(pictures, 1000, 1000)
        trial = Trial(given.engine, pictures)
        if given.base is not None:
            trial.make_base(given.base)
        size = trial.build(given.more)
        said = [f"the image has {size / 1e6:.0f} MB", *try_immich(trial), *try_photoprism(trial)]
    print(*(f"- {sentence}" for sentence in said), sep="\n")


if __name__ == "__main__":
    main()
