"""`fewtag cache`: what is kept, and less of it."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewtag.cache import FILE, PRIVATE_FILE, Cache, content_digest
from fewtag.studio.first_page import thumbnails

Cli = Callable[..., Any]
FOLDER = Path("cache/fewtag")
ROW = 30_000


def keep(what: str, count: int, used: float) -> None:
    """Rows of 30,000 bytes, last used so many seconds after 1970."""
    with Cache(FOLDER) as cache:
        digests = [content_digest(f"{what} {number}".encode()) for number in range(count)]
        cache.arrays("features", what, what, (ROW,), "uint8").put_many(digests, np.zeros((count, ROW)))
    change("UPDATE rows SET used = ? WHERE space = (SELECT id FROM spaces WHERE what = ?)", used, what)


def change(statement: str, *parameters: object) -> None:
    connection = sqlite3.connect(FOLDER / FILE)
    with connection:
        connection.execute(statement, parameters)
    connection.close()


def report(cli: Cli, *options: object) -> dict[str, Any]:
    said = cli("cache", "--json", *options)
    assert said.code == 0, said.err
    return json.loads(said.out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_empty_cache_is_no_error(cli: Cli) -> None:
    said = cli("cache")
    assert said.code == 0
    assert said.out.splitlines() == ["nothing is kept yet", f"{FOLDER.absolute()}: 0 B of at most 10.0 GB"]
    for options in (["--clear"], ["--prune", "1GB"]):
        assert report(cli, *options)["freed"] == 0
    assert report(cli, "--check")["damaged"] == 0
    assert not Path("cache").exists()


def test_the_report_tells_spaces_rows_sizes_and_limit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "2.5MB")
    keep("first network", 25, used=1e9)
    found = report(cli)
    assert (found["place"], found["limit"]) == (str(FOLDER.absolute()), 2_500_000)
    assert found["total"] == (FOLDER / FILE).stat().st_size > 25 * ROW
    (space,) = found["spaces"]
    assert space.pop("used").startswith("2001-09-")
    assert space == {"kind": "features", "what": "first network", "rows": 25, "bytes": 25 * ROW}
    shown = cli("cache").out
    assert "first network" in shown
    assert shown.splitlines()[-1].endswith("KB of at most 2.5 MB")


FOREIGN = ["mygame/space.json", "mygame/src/code.py", "tmp_old/thesis/space.json", "tmp_old/thesis/thesis.tex"]
FOREIGN += ["dataset/rows.bin", "dataset/done.bin", "dataset/important.csv", "features-0123/1.rows", "lock", "x.sqlite"]
FOREIGN += ["features.sqlite.txt", "rows.bin", "space.json", "thumbnails.sqlite", "thumbnails.sqlite-of-my-own"]


@pytest.mark.parametrize("options", [("--clear",), ("--prune", "0B"), ("--check",)])
@pytest.mark.parametrize("filled", [False, True])
def test_nothing_but_its_own_file_is_touched(cli: Cli, options: tuple[str, ...], filled: bool) -> None:
    for name in FOREIGN:
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"not a cache: {name}")
    before = files(FOLDER)
    if filled:
        keep("network", 5, used=1e9)
    report(cli, *options)
    after = files(FOLDER)
    assert {name: content for name, content in after.items() if name != FILE} == before
    assert (FILE in after) == (filled and options != ("--clear",))


def test_clear_removes_the_file(cli: Cli) -> None:
    keep("network", 5, used=1e9)
    size = (FOLDER / FILE).stat().st_size
    assert report(cli, "--clear") == {
        "place": str(FOLDER.absolute()), "limit": 10**10, "total": 0, "freed": size, "spaces": []
    }  # fmt: skip
    assert list(FOLDER.iterdir()) == []


def test_prune_takes_the_least_recently_used_first(cli: Cli) -> None:
    keep("stale", 30, used=1e9)
    keep("fresh", 30, used=1.5e9)
    before = report(cli)["total"]
    found = report(cli, "--prune", "1.5MB")
    assert found["total"] == before - found["freed"] <= 1.5e6 + 10**5
    rows = {space["what"]: space["rows"] for space in found["spaces"]}
    assert rows["fresh"] == 30
    assert 5 < rows["stale"] < 20
    # used again, they are no longer the first to go
    with Cache(FOLDER) as cache:
        cache.arrays("features", "stale", "stale", (ROW,), "uint8").get_many(
            [content_digest(f"stale {number}".encode()) for number in range(30)]
        )
    again = {space["what"]: space["rows"] for space in report(cli, "--prune", "1.2MB")["spaces"]}
    assert again["stale"] == rows["stale"]
    assert again["fresh"] < 30
    said = cli("cache", "--prune", "much")
    assert (said.code, "--prune 'much' is no size" in said.err) == (2, True)


def test_check_drops_damaged_rows_and_says_how_many(cli: Cli) -> None:
    keep("network", 30, used=1e9)
    assert "every row is sound" in cli("cache", "--check").out
    change("UPDATE contents SET content = zeroblob(30000) WHERE id IN (3, 9)")
    change("UPDATE rows SET checksum = 7 WHERE id IN (3, 9)")
    assert "2 damaged rows dropped" in cli("cache", "--check").out
    found = report(cli, "--check")
    assert (found["damaged"], found["spaces"][0]["rows"]) == (0, 28)


def test_a_broken_database_is_told_of_and_begun_anew(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    keep("network", 30, used=1e9)
    with (FOLDER / FILE).open("r+b") as file:
        file.seek(100)
        file.write(bytes(range(256)) * 60)
    assert report(cli)["spaces"] == []
    assert ["was damaged" in record.getMessage() for record in caplog.records] == [True]


def test_another_programs_database_is_refused_and_left_alone(cli: Cli) -> None:
    FOLDER.mkdir(parents=True)
    change("CREATE TABLE rows (mine)")
    before = files(FOLDER)
    for options in ((), ("--clear",), ("--prune", "0B"), ("--check",)):
        said = cli("cache", *options)
        assert (said.code, "it is another program's database; name another folder" in said.err) == (2, True)
    assert files(FOLDER) == before


def test_one_wish_at_a_time(cli: Cli) -> None:
    said = cli("cache", "--clear", "--check")
    assert (said.code, "exclude each other" in said.err) == (2, True)


def test_a_size_of_hundreds_of_digits_is_none(cli: Cli) -> None:
    said = cli("cache", "--prune", 400 * "9")
    assert (said.code, "is no size" in said.err) == (2, True)


def test_a_file_is_no_cache(cli: Cli) -> None:
    Path("file").touch()
    said = cli("cache", "--cache", "file")
    assert (said.code, "--cache file is a file" in said.err) == (2, True)


def small_copies(count: int) -> None:
    """As the studio keeps them, of 10,000 bytes each."""
    with Cache(FOLDER, private=True) as cache:
        for number in range(count):
            thumbnails(cache, 256).put_bytes({content_digest(bytes([number])): bytes(10_000)})


def test_the_studios_thumbnails_are_counted_pruned_and_cleared(cli: Cli) -> None:
    keep("network", 5, used=1e9)
    alone = report(cli)["total"]
    small_copies(40)
    found = report(cli)
    (space,) = [each for each in found["spaces"] if each["kind"] == "thumbnails"]
    assert (space["rows"], space["bytes"]) == (40, 400_000)
    assert found["total"] > alone + 400_000
    of_features, of_thumbnails = cli("cache").out.splitlines()[-2:]
    assert of_features.endswith("KB of at most 10.0 GB")
    assert re.fullmatch(r"thumbnails: \d+\.\d KB of at most 2\.0 GB", of_thumbnails)
    pruned = report(cli, "--prune", str(alone + 300_000))
    assert pruned["freed"] > 100_000
    assert pruned["total"] <= alone + 300_000
    with Cache(FOLDER, private=True) as left:
        assert content_digest(bytes([39])) in thumbnails(left, 256), "the newest stay"
        assert content_digest(bytes([0])) not in thumbnails(left, 256)
    assert report(cli, "--clear")["total"] == 0
    assert not list(FOLDER.glob("*.sqlite*"))


def test_damaged_thumbnails_are_told_of_and_begun_anew(cli: Cli) -> None:
    small_copies(3)
    with sqlite3.connect(FOLDER / PRIVATE_FILE) as connection:
        connection.execute("UPDATE contents SET content = x'00' WHERE id = 1")
    connection.close()
    assert report(cli, "--check")["damaged"] == 1
    (FOLDER / PRIVATE_FILE).write_bytes(b"rubbish" * 1000)
    assert report(cli)["spaces"] == []
    small_copies(1)
    assert [space["rows"] for space in report(cli)["spaces"]] == [1]
