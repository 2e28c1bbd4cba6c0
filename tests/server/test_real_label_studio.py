"""Label Studio itself: a project through its API, predictions, an annotation, other predictions.

FEWTAG_LABEL_STUDIO names its executable (`pip install label-studio`, in an environment of its own); without it these
tests are skipped. With FEWTAG_RECORD=1 the exchange is written anew for the documentation and for its replay.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import Recorder
from serving import TOKEN, picture, serving_bank

from fewtag.server.label_studio import KEY_VARIABLE, OneHost
from fewtag.server.security import Settings

EXECUTABLE = os.environ.get("FEWTAG_LABEL_STUDIO", "")
KEY = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """<View>
  <Image name="image" value="$image"/>
  <Choices name="shown" toName="image" choice="multiple">
    <Choice value="Dog"/><Choice value="Cat"/><Choice value="Zebra"/>
  </Choices>
</View>"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(not EXECUTABLE, reason="FEWTAG_LABEL_STUDIO names no Label Studio"),
]


class LabelStudio:
    """Its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": f"Token {KEY}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            content = response.read()
        return json.loads(content) if content else None

    def upload(self, project: int, name: str, content: bytes) -> None:
        edge = uuid.uuid4().hex
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        body = f"{head}Content-Type: image/png\r\n\r\n".encode() + content + f"\r\n--{edge}--\r\n".encode()
        self.ask("POST", f"/api/projects/{project}/import", body, f"multipart/form-data; boundary={edge}")

    def predict(self, project: int) -> dict[int, dict[str, Any]]:
        """The latest prediction of each task."""
        asked = {"ordering": [], "selectedItems": {"all": True, "excluded": []}, "filters": {"conjunction": "and"}}
        asked["filters"]["items"] = []
        self.ask("POST", f"/api/dm/actions/?id=retrieve_tasks_predictions&project={project}", asked)
        found = self.ask("GET", f"/api/predictions/?project={project}")
        return {each["task"]: each for each in sorted(found, key=lambda each: each["id"])}


@pytest.fixture(scope="module")
def label_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabelStudio]:
    folder = tmp_path_factory.mktemp("label-studio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    local = {"ML_BLOCK_LOCAL_IP": "false", "SSRF_PROTECTION_ENABLED": "false", "COLLECT_ANALYTICS": "false"}
    keys = {"LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true", "LATEST_VERSION_CHECK": "false", "PYTHONPATH": ""}
    command = [EXECUTABLE, "start", "--no-browser", "--internal-host", "127.0.0.1", "--port", str(port)]
    command += ["--host", url, "--username", "someone@example.org", "--password", "a-password-1", "--user-token", KEY]
    environment = os.environ | local | keys | {"LABEL_STUDIO_BASE_DATA_DIR": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            for _ in range(300):
                time.sleep(1)
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=2).close()
                    break
                except OSError:
                    continue
            yield LabelStudio(url)
        finally:
            process.terminate()
            process.wait(30)


def test_an_annotation_changes_the_next_prediction(
    label_studio: LabelStudio, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    recorders: list[Recorder] = []

    def wrap(app: Any) -> Recorder:
        recorders.append(Recorder(app))
        return recorders[0]

    settings = Settings(TOKEN, services=("label-studio",), label_studio=label_studio.url)
    with serving_bank(pets, settings, wrap=wrap) as running:
        project = label_studio.ask("POST", "/api/projects/", {"title": "pets", "label_config": CONFIG})["id"]
        label_studio.upload(project, "first.png", picture(40, "zebra"))
        label_studio.upload(project, "second.png", picture(41, "zebra"))
        backend = {"url": f"{running.settings.url}/label-studio", "project": project, "title": "fewtag"}
        backend |= {"auth_method": "BASIC_AUTH", "basic_auth_user": "fewtag", "basic_auth_pass": TOKEN}
        connected = label_studio.ask("POST", "/api/ml/", backend)
        assert connected["state"] == "CO"

        before = label_studio.predict(project)
        first, second = sorted(before)
        assert "Zebra" not in chosen(before[second])

        hook = next(each for each in label_studio.ask("GET", f"/api/webhooks/?project={project}"))
        assert hook["url"] == f"{running.settings.url}/label-studio/webhook"
        bearer = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        label_studio.ask("PATCH", f"/api/webhooks/{hook['id']}/", bearer)
        said = {"from_name": "shown", "to_name": "image", "type": "choices", "value": {"choices": ["Zebra"]}}
        label_studio.ask("POST", f"/api/tasks/{first}/annotations/", {"result": [said]})
        labels = {label.name: label for label in running.client.labels()}
        assert (labels["Zebra"].examples, labels["dog"].absent, labels["cat"].absent) == (1, 1, 1)

        after = label_studio.predict(project)
        assert chosen(after[second]) == ["Zebra"]
        assert after[second]["model_version"] != before[second]["model_version"]

        link = label_studio.ask("GET", f"/api/tasks/{first}/")["data"]["image"]
        monkeypatch.setenv(KEY_VARIABLE, label_studio.ask("POST", "/api/token/", {})["token"])
        assert OneHost(label_studio.url, 1_000_000).fetch(link) == picture(40, "zebra")
    if os.environ.get("FEWTAG_RECORD"):
        recorders[0].save("label-studio.json", "/label-studio", program="Label Studio 1.23.2")


def chosen(prediction: dict[str, Any]) -> list[str]:
    return [name for item in prediction["result"] for name in item["value"]["choices"]]
