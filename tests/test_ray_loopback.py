"""A Ray cluster that fewtag starts by itself cannot be reached from another machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

# in a process of its own, since an earlier import of Ray decides where it listens
LISTENING = """
import psutil
from fewtag.tagging.ray_engine import open_cluster

found = []
with open_cluster(None):
    for process in psutil.Process().children(recursive=True):
        for socket in process.net_connections(kind="inet"):
            if socket.status == psutil.CONN_LISTEN:
                found.append((process.name(), socket.laddr.ip))
for name, address in found:
    print(name, address)
"""


@pytest.mark.slow
def test_it_listens_on_the_loopback_alone() -> None:
    ray = pytest.importorskip("ray")
    bundled = Path(ray.__file__).parent / "thirdparty_files"  # Ray brings a psutil of its own
    places = os.pathsep.join([str(bundled), *sys.path])
    command = [sys.executable, "-c", LISTENING]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True, timeout=300)
    found = [line.split() for line in done.stdout.splitlines()]
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}, done.stderr
    assert {address for _, address in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, found
