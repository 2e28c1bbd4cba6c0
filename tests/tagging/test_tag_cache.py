"""`fewtag tag` with the cache: a picture goes through the network once, and the table does not show it."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import count_encoded, draw, write_tiny_model

from fewtag import cache as cache_module
from fewtag.cache import FILE, ArrayRows
from fewtag.cache_upkeep import CacheUpkeep

Cli = Callable[..., Any]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the network gets."""
    return count_encoded(monkeypatch)


def tagged(cli: Cli, bank: Path, photos: Path, *options: object) -> tuple[str, int]:
    """The table, and how many pictures the cache knew."""
    said = cli("tag", bank, photos, "--out", "tags.csv", "--scores", "--json", *options)
    assert said.code == 0, said.err
    return Path("tags.csv").read_text(), json.loads(said.out)["cached"]


def change(statement: str) -> None:
    """In the cache, behind its back."""
    connection = sqlite3.connect(Path("cache/fewtag") / FILE)
    with connection:
        connection.execute(statement)
    connection.close()


def test_cold_warm_or_without_a_cache_every_digit_is_the_same(
    cli: Cli, bank: Path, photos: Path, encoded: list[int]
) -> None:
    without, cached = tagged(cli, bank, photos, "--no-cache")
    assert (cached, Path("cache/fewtag").exists()) == (0, False)
    assert tagged(cli, bank, photos) == (without, 0)
    assert tagged(cli, bank, photos) == (without, 4)
    assert tagged(cli, bank, photos, "--device", "cpu", "--force") == (without, 4), "where there is no other"
    assert encoded == [4, 4]


def test_pictures_that_moved_are_known_and_a_new_one_is_not(
    cli: Cli, bank: Path, photos: Path, encoded: list[int]
) -> None:
    tagged(cli, bank, photos)
    moved = Path(shutil.move(photos, "elsewhere"))
    (moved / "z.webp").rename(moved / "renamed.png")
    draw(200, "sofa").save(moved / "new.png")
    _, cached = tagged(cli, bank, moved, "--force")
    assert (cached, encoded) == (4, [4, 1])


def test_what_a_bank_learns_does_not_make_pictures_unknown(
    cli: Cli, bank: Path, photos: Path, encoded: list[int]
) -> None:
    tagged(cli, bank, photos)
    assert cli("define", bank, "zebra").code == 0
    table, cached = tagged(cli, bank, photos)
    assert (cached, encoded) == (4, [4])
    assert table.startswith("image,tags,cat,dog,sofa,zebra\n")
    assert tagged(cli, bank, photos, "--no-cache") == (table, 0)


def test_another_model_does_not_take_these_places_for_its_own(
    cli: Cli, bank: Path, photos: Path, tmp_path: Path
) -> None:
    tagged(cli, bank, photos)
    other = write_tiny_model(tmp_path / "model", "other", seed=1)
    assert cli("learn", "other.fewtag", tmp_path / "examples", "--model", other).code == 0
    table, cached = tagged(cli, Path("other.fewtag"), photos)
    assert cached == 0
    assert tagged(cli, Path("other.fewtag"), photos, "--no-cache") == (table, 0)


def test_several_are_looked_up_at_once(cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get_many, asked = ArrayRows.get_many, list[int]()

    def counting(space: ArrayRows, digests: Any) -> Any:
        asked.append(len(digests))
        return get_many(space, digests)

    monkeypatch.setattr(ArrayRows, "get_many", counting)
    for number in range(40):
        draw(number, "dog").save(photos / f"{number}.png")
    tagged(cli, bank, photos, "--batch", 16)
    assert sorted(asked) == [4, 8, 8, 8, 8, 8]


def test_the_commands_that_print_and_check_use_it_too(
    cli: Cli, bank: Path, photos: Path, encoded: list[int], tmp_path: Path
) -> None:
    tagged(cli, bank, photos)
    encoded.clear()
    assert cli("tag", bank, photos, "--page", "page.html").code == 0
    assert cli("check", bank, tmp_path / "examples").code == 0
    assert encoded == [6]
    assert cli("check", bank, tmp_path / "examples").code == 0
    assert encoded == [6]


def test_a_page_beside_a_table_costs_no_second_look(cli: Cli, bank: Path, photos: Path, encoded: list[int]) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    for out in ("tags.csv", "parts/"):
        encoded.clear()
        given = ("--out", out, "--page", "page.html", "--no-cache", "--shard", 3)
        assert cli("tag", bank, photos, *given).code == 1
        assert sum(encoded) == 4
        assert Path("page.html").read_text().count("<img") == 4
    assert Path("tags.csv").read_text().splitlines()[0] == "image,tags", "the page's scores are not the table's"


def test_a_cache_of_ones_own(cli: Cli, bank: Path, photos: Path) -> None:
    tagged(cli, bank, photos, "--cache", "here")
    assert not Path("cache").exists()
    assert tagged(cli, bank, photos, "--cache", "here")[1] == 4
    said = cli("tag", bank, photos, "--out", "tags.csv", "--cache", "here", "--no-cache")
    assert (said.code, "exclude each other" in said.err) == (2, True)


def test_a_damaged_row_is_computed_again_and_told_of_in_a_line(
    cli: Cli, bank: Path, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, _ = tagged(cli, bank, photos, "--batch", 1)
    change("UPDATE contents SET content = zeroblob(length(content)) WHERE id = 2")
    caplog.clear()
    assert tagged(cli, bank, photos, "--batch", 1) == (table, 3)
    assert ["damaged rows" in record.message for record in caplog.records] == [True]
    assert tagged(cli, bank, photos, "--batch", 1) == (table, 4)


def test_a_full_disk_is_a_warning_and_changes_nothing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table, _ = tagged(cli, bank, photos, "--no-cache", "--batch", 1)
    monkeypatch.setattr(cache_module, "_SETTINGS", (*cache_module._SETTINGS, "PRAGMA max_page_count = 5"))
    caplog.clear()
    assert tagged(cli, bank, photos, "--batch", 1) == (table, 0)
    assert ["disk is full; nothing more is kept" in record.getMessage() for record in caplog.records] == [True]


def test_a_tiny_limit_slows_down_but_changes_nothing(
    cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = tagged(cli, bank, photos, "--no-cache", "--batch", 1)
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "1B")
    for _ in range(2):
        assert tagged(cli, bank, photos, "--batch", 1)[0] == table
        assert len(CacheUpkeep(Path("cache/fewtag"))) == 0
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "a lot")
    said = cli("tag", bank, photos, "--out", "tags.csv")
    assert (said.code, "FEWTAG_CACHE_LIMIT 'a lot' is no size" in said.err) == (2, True)


@pytest.mark.slow
def test_of_more_pictures_than_fit_as_many_as_fit_are_kept(
    cli: Cli, bank: Path, tmp_path: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = tmp_path / "many"
    pictures.mkdir()
    for number in range(600):
        draw(number, size=(24, 24)).save(pictures / f"{number}.bmp")
    tagged(cli, bank, pictures, "--prior", "bank")  # no sample goes before
    size, count = CacheUpkeep(Path("cache/fewtag")).size, sum(encoded)
    shutil.rmtree("cache")
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", str(int(0.6 * size)))
    table, cached = tagged(cli, bank, pictures, "--prior", "bank")
    assert cached == 0
    encoded.clear()
    again, cached = tagged(cli, bank, pictures, "--prior", "bank")
    assert again == table
    assert 0.1 * count < cached < 0.7 * count, "going over them in turn does not remove each before it is asked for"
    assert sum(encoded) == count - cached


def test_a_cache_where_none_can_be_is_told_of_once_and_work_goes_on(
    cli: Cli, bank: Path, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, _ = tagged(cli, bank, photos, "--no-cache", "--batch", 1)
    Path("file").touch()
    caplog.clear()
    assert tagged(cli, bank, photos, "--cache", "file/cache", "--batch", 1) == (table, 0)
    (record,) = caplog.records
    assert (
        "Not a directory; nothing more is kept (name another with --cache, or give --no-cache)" in record.getMessage()
    )
