"""`fewtag tag --page`: one HTML file with every picture and tag, which loads nothing from elsewhere."""

import io
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tiny import draw

from fewtag.tagging import page as pages

Cli = Callable[..., Any]


class Page(HTMLParser):
    """The articles of a page: what each shows and says."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.articles: list[dict[str, list[str]]] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(Path(path).read_text(encoding="utf-8"))
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "article":
            self.articles.append({"h2": [], "li": [], "img": []})
        if tag == "img":
            self.articles[-1]["img"].append(dict(attributes)["src"] or "")
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        self.loaded += [
            value or "" for name, value in attributes if name in {"src", "href", "srcset", "data", "action"}
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h2", "li"}:
            self.articles[-1][self.open[-1]].append(data)


def test_a_name_that_is_no_text_ends_no_page(cli: Cli, bank: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    try:
        (tmp_path / "in" / os.fsdecode(b"caf\xe9.png")).write_bytes(b"")
    except OSError:
        pytest.skip("no file can be called so here")
    draw(1, "dog").save(tmp_path / "in" / "dog.png")
    assert cli("tag", bank, "in", "--page", "page.html").code == 1
    assert [each["h2"] for each in Page("page.html").articles] == [[r"caf\udce9.png"], ["dog.png"]]


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Pictures whose names are markup."""
    folder = tmp_path / "evil"
    folder.mkdir()
    draw(100, "dog").save(folder / "<script>alert(1)<&script>.png")
    draw(101, "cat").save(folder / '" onerror="alert(1).png')
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def test_every_picture_and_tag_is_there_and_nothing_is_loaded(cli: Cli, bank: Path, evil: Path) -> None:
    said = cli("tag", bank, evil, "--out", "tags.csv", "--page", "page.html")
    assert (said.code, "the page: page.html" in said.err) == (1, True)
    page = Page("page.html")
    found = {"".join(article["h2"]): article for article in page.articles}
    assert list(found) == ['" onerror="alert(1).png', "<script>alert(1)<&script>.png", "broken.png"]
    first, second, third = found.values()
    assert [article["li"][0].split(" ")[0] for article in (first, second)] == ["cat", "dog"]
    assert re.fullmatch(r"cat \d+%", first["li"][0])
    assert third["img"] == []
    assert "cannot be decoded" in third["li"][0]
    assert all(source.startswith("data:image/webp;base64,") for source in page.loaded)
    assert "url(" not in Path("page.html").read_text()
    assert "@import" not in Path("page.html").read_text()
    assert "<script" not in Path("page.html").read_text()


def test_each_picture_stands_beside_its_own_tags_over_many_batches(cli: Cli, bank: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    labels = ["dog", "cat", "sofa"]
    for number in range(70):
        draw(number, labels[number % 3]).save(folder / f"{number:02d}-{labels[number % 3]}.png")
    said = cli("tag", bank, folder, "--page", "page.html")
    assert (said.code, len(said.out.splitlines())) == (0, 70)
    page = Page("page.html")
    assert len(page.articles) == len({article["img"][0] for article in page.articles}) == 70
    for article in page.articles:
        assert article["li"][0].split(" ")[0] == article["h2"][0].removesuffix(".png").split("-")[1]


def test_pictures_of_one_name_stand_beside_their_own_tags(cli: Cli, bank: Path) -> None:
    """Rows of a data set may repeat it."""
    contents = [b"no picture"]
    for number, label in enumerate(["dog", "cat"]):
        draw(number, label).save(content := io.BytesIO(), "png")
        contents.append(content.getvalue())
    rows = [{"image": {"bytes": content, "path": "img.png"}} for content in contents]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "set.parquet")
    assert cli("tag", bank, "set.parquet", "--out", "tags.csv", "--page", "page.html").code == 1
    broken, dog, cat = (article["li"][0] for article in Page("page.html").articles)
    assert "cannot be decoded" in broken
    assert [dog.split(" ")[0], cat.split(" ")[0]] == ["dog", "cat"]


def test_a_page_of_too_many_says_so(cli: Cli, bank: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 3)
    assert cli("tag", bank, photos, "--page", "page.html").code == 0
    assert len(Page("page.html").articles) == 3
    assert "only the first 3 are shown" in Path("page.html").read_text()
