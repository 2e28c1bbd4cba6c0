"""darktable itself, where it is installed: its sidecars get our tags, it reads them, and they go without a trace."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import draw

from fewtag.interop.keywords import fold
from fewtag.interop.xmp import Packet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(
        not (shutil.which("darktable") and shutil.which("xvfb-run")), reason="darktable or xvfb is not installed"
    ),
]
OWN = {"a.jpg": ["animals|birds|heron"], "b.jpg": ["Oma", "Places|Köln & Bonn"], "c.jpg": []}
PATIENCE = (20, 60, 120)
"""Seconds, one after the other: on a busy machine it may stand still for ever, and a new one does not."""
SCRIPT = """
local dt = require "darktable"
local out = io.open("{out}", "w")
for line in io.lines("{wanted}") do
  local words = {{}}
  for word in line:gmatch("[^\\t]+") do table.insert(words, word) end
  local image = dt.database.import(words[1])
  for place = 2, #words do dt.tags.attach(dt.tags.create(words[place]), image) end
  image.rating = 3
  for _, tag in ipairs(dt.tags.get_tags(image)) do out:write(image.filename, "\\t", tag.name, "\\n") end
end
out:close()
os.execute("sleep 1")  -- its threads write the sidecars
os.exit(0)
"""


def darktable(place: Path, album: Path, tags: dict[str, list[str]]) -> dict[str, set[str]]:
    """Imports an album into a new library and gives tags to its pictures; answers with all that it knows of each."""
    for seconds in PATIENCE:
        out = _darktable(place / f"{seconds}", album, tags, seconds)
        if out is not None:
            break
    else:
        raise TimeoutError("darktable stood still each time")
    found: dict[str, set[str]] = {name: set() for name in tags}
    for line in out.splitlines():
        name, tag = line.split("\t")
        found[name] |= {tag} if not tag.startswith("darktable|") else set()
    return found


def _darktable(place: Path, album: Path, tags: dict[str, list[str]], seconds: int) -> str | None:
    """What its script wrote; None where it had to be killed."""
    place.mkdir(parents=True)
    wanted, out, script = place / "wanted.tsv", place / "tags.tsv", place / "script.lua"
    wanted.write_text("".join("\t".join([str(album / name), *given]) + "\n" for name, given in tags.items()))
    script.write_text(SCRIPT.format(out=out, wanted=wanted))
    command = ["xvfb-run", "-a", "darktable", "--configdir", place / "conf", "--cachedir", place / "cache"]
    command += ["--library", place / "library.db", "--disable-opencl", "--conf", "write_sidecar_files=TRUE"]
    command += ["--luacmd", f"dofile('{script}')"]
    environment = {**os.environ, "HOME": str(place), "DBUS_SESSION_BUS_ADDRESS": "disabled:", "NO_AT_BRIDGE": "1"}
    said = place / "said.txt"
    with (
        said.open("w") as file,
        subprocess.Popen(
            [*map(str, command)], env=environment, stdout=file, stderr=file, start_new_session=True
        ) as run,
    ):
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return None
    assert out.exists(), said.read_text()
    return out.read_text()


def own(album: Path) -> dict[str, set[str]]:
    """A person's own tags, as fewtag reads them from the sidecars."""
    found = {name: Packet((album / f"{name}.xmp").read_bytes(), name) for name in OWN}
    assert all(packet.ledger is None for packet in found.values())
    return {name: {"|".join(path) for path in packet.tags().every} for name, packet in found.items()}


def test_its_sidecars_get_our_tags_it_reads_them_and_they_go_without_a_trace(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    if "Lua support enabled" not in subprocess.run(["darktable", "--version"], capture_output=True, text=True).stdout:
        pytest.skip("this darktable runs no scripts")
    album = tmp_path / "album"
    album.mkdir()
    for number, name in enumerate(OWN):
        draw(number, "dog").save(album / name)
    assert darktable(tmp_path / "first", album, OWN) == {name: set(given) for name, given in OWN.items()}
    before = {path.name: path.read_bytes() for path in album.iterdir()}
    assert own(album) == {name: set(given) for name, given in OWN.items()}
    Path("tags.csv").write_text("image,tags\n" + "".join(f"{name},water/pond;oma\n" for name in OWN))
    assert cli("write", "tags.csv", album).code == 0
    assert cli("write", album, "--undo").code == 0
    assert {path.name: path.read_bytes() for path in album.iterdir()} == before, "to the byte"

    assert cli("write", "tags.csv", album).code == 0
    expected = {name: {*given, "water|pond", *([] if "Oma" in given else ["oma"])} for name, given in OWN.items()}
    read = darktable(tmp_path / "second", album, {name: [] for name in OWN})  # which writes the sidecars anew
    assert {name: {fold((tag,)) for tag in tags} for name, tags in read.items()} == {
        name: {fold((tag,)) for tag in tags} for name, tags in expected.items()
    }
    report = json.loads(cli("write", "tags.csv", album, "--json").out)
    assert (report["failures"], report["pictures"]) == ({}, 3)
    assert cli("write", album, "--undo").code == 0
    assert own(album) == {name: set(given) for name, given in OWN.items()}
