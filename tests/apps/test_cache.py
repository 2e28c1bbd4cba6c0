"""`fewtag cache`: what is kept, and less of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fewtag.research.features.store import About, Space, address

Cli = Callable[..., Any]
ROOT = Path("cache/fewtag")


def keep(what: str, count: int, used: float) -> Space:
    """A space of rows of 1,000 bytes, last used so many seconds after 1970."""
    space = Space(ROOT, About("features", what, what, (1000,), "uint8"))
    for start in range(0, count, 10):
        numbers = range(start, min(start + 10, count))
        space.append([address(f"{what} {number}".encode()) for number in numbers], np.zeros((len(numbers), 1000)))
    for path in space.folder.glob("*.rows"):
        os.utime(path, (used, used))
    return space


def old_folder() -> Path:
    folder = ROOT / "features-0123"
    folder.mkdir(parents=True)
    for name in ("header.json", "rows.bin", "done.bin"):
        (folder / name).write_bytes(bytes(100))
    return folder


def report(cli: Cli, *options: str) -> dict[str, Any]:
    said = cli("cache", "--json", *options)
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_an_empty_cache_is_no_error(cli: Cli) -> None:
    said = cli("cache")
    assert said.code == 0
    assert said.out.splitlines() == [
        "nothing is kept yet",
        f"{Path('cache/fewtag').absolute()}: 0 B of at most 10.0 GB",
    ]
    assert report(cli, "--clear")["freed"] == 0
    assert not Path("cache").exists()


def test_the_report_tells_spaces_rows_sizes_and_limit(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "2.5MB")
    one = keep("first network", 25, used=1e9)
    old = old_folder()
    found = report(cli)
    assert {key: found[key] for key in ("place", "limit", "total")} == {
        "place": str(tmp_path / "cache" / "fewtag"),
        "limit": 2_500_000,
        "total": 25 * 1020 + 300,
    }
    assert [(row["folder"], row["kind"], row["what"], row["rows"], row["bytes"]) for row in found["spaces"]] == [
        (one.folder.name, "features", "first network", 25, 25 * 1020),
        (old.name, "old format", "of an older fewtag, not used", None, 300),
    ]
    assert found["spaces"][0]["used"].startswith("2001-09-")
    shown = cli("cache").out
    assert "first network" in shown
    assert "old format" in shown
    assert shown.splitlines()[-1].endswith("25.8 KB of at most 2.5 MB")


def test_clear_removes_what_is_fewtags_and_nothing_else(cli: Cli) -> None:
    space, old = keep("network", 5, used=1e9), old_folder()
    (ROOT / "letter.txt").write_text("not a cache")
    (ROOT / "letters").mkdir()
    assert report(cli, "--clear")["freed"] == 5 * 1020 + 300
    assert not space.folder.exists()
    assert not old.exists()
    assert sorted(path.name for path in ROOT.iterdir()) == ["letter.txt", "letters"]
    space.append([address(b"again")], np.zeros((1, 1000)))
    assert [row["rows"] for row in report(cli)["spaces"]] == [1], "whoever has it open goes on"


def test_prune_takes_the_least_recently_used_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtag.research.features.store.SEGMENT_BYTES", 10_000)
    stale, fresh = keep("stale", 30, used=1e9), keep("fresh", 30, used=1.5e9)
    old_folder()
    found = report(cli, "--prune", "41KB")
    assert found["total"] == 4 * 10_200 == 61_500 - found["freed"]
    assert {row["what"]: row["rows"] for row in found["spaces"]} == {"stale": 10, "fresh": 30}
    # used again, it is no longer the first to go
    again = Space(ROOT, stale.about)
    assert sum(again.get(address(f"stale {number}".encode())) is not None for number in range(30)) == 10
    assert {row["what"]: row["rows"] for row in report(cli, "--prune", "31KB")["spaces"]} == {"stale": 10, "fresh": 20}
    assert fresh.folder.exists()
    said = cli("cache", "--prune", "much")
    assert (said.code, "--prune 'much' is no size" in said.err) == (2, True)


def test_the_cache_keeps_under_its_limit_by_itself(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "50KB")
    old = old_folder()
    for number in range(4):
        keep(f"network {number}", 20, used=1e9 + number)
        assert report(cli)["total"] <= 50_000
    assert not old.exists()
    rows = {row["what"]: row["rows"] for row in report(cli)["spaces"]}
    assert (rows["network 3"], rows["network 0"]) == (20, 0)


def test_check_drops_damaged_rows_and_says_how_many(cli: Cli) -> None:
    space = keep("network", 30, used=1e9)
    assert "every row is sound" in cli("cache", "--check").out
    (path,) = space.folder.glob("*.rows")
    assert path.stat().st_mtime == 1e9, "to look at rows is not to use them"
    content = bytearray(path.read_bytes())
    content[3500] ^= 1
    content[9999] ^= 1
    path.write_bytes(content)
    assert "2 damaged rows dropped" in cli("cache", "--check").out
    found = report(cli, "--check")
    assert (found["damaged"], found["spaces"][0]["rows"]) == (0, 28)


def test_a_damaged_description_is_told_and_cleared(cli: Cli) -> None:
    space = keep("network", 5, used=1e9)
    (space.folder / "space.json").write_text('{"kind')
    assert [row["kind"] for row in report(cli)["spaces"]] == ["damaged"]
    assert report(cli, "--clear")["spaces"] == []


def test_what_a_killed_run_kept_for_itself_alone_is_seen_too(cli: Cli) -> None:
    space = Space(ROOT / "tmp0a1b", About("features", "tuned", "key", (10,), "uint8"))
    space.append([address(b"")], np.zeros((1, 10)))
    assert report(cli)["spaces"][0]["folder"] == f"tmp0a1b/{space.folder.name}"
    assert report(cli, "--clear")["total"] == 0
    assert not list(ROOT.iterdir())


def test_one_wish_at_a_time(cli: Cli) -> None:
    said = cli("cache", "--clear", "--check")
    assert (said.code, "exclude each other" in said.err) == (2, True)


def test_a_file_is_no_cache(cli: Cli) -> None:
    Path("file").touch()
    said = cli("cache", "--cache", "file")
    assert (said.code, "--cache file is a file" in said.err) == (2, True)
