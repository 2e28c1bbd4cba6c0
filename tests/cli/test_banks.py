"""What a bank is told and tells: define, forget, rename, labels, examples, upgrade, explain."""

import json
import os
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny import draw, write_tiny_model

from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]


def known(cli: Cli, bank: Path | str) -> dict[str, int]:
    """How many examples of each label a bank has."""
    found = json.loads(cli("labels", bank, "--json").out)
    return {label: facts["examples"] for label, facts in found.items()}


def refused(said: Any, sentence: str) -> bool:
    last = said.err.rstrip("\n").split("\n")[-1]
    assert last.startswith("fewtag: "), said.err
    assert sentence in last
    return said.code == 2 and said.out == "" and "Traceback" not in said.err


class Page(HTMLParser):
    """What a page shows, and what it would load."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(Path(path).read_text(encoding="utf-8"))
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "!doctype"}:
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attributes if name in {"src", "href", "srcset", "data"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize(
    ("content", "options", "word"),
    [
        ("", (), "its name"),
        ("", ("--like", "star, heart"), "like star, heart"),
        ("1, 2 3\n" + "4 " * 381, ("--vector", "vector.txt"), "a vector of its own"),
        (np.ones(384), ("--vector", "vector.npy"), "a vector of its own"),
        ("", ("--no-words",), "pictures only"),
    ],
)
def test_define_in_every_way(cli: Cli, tiny_model: Path, content: Any, options: tuple[str, ...], word: str) -> None:
    np.save("vector.npy", content) if isinstance(content, np.ndarray) else Path("vector.txt").write_text(content)
    said = cli("define", "new.fewtag", "moon", "--model", tiny_model, *options)
    assert (said.code, said.out) == (0, f"new.fewtag: label 'moon' is defined: {word}\n")
    facts = json.loads(cli("labels", "new.fewtag", "--json").out)["moon"]
    threshold, trust = (None, None) if word == "pictures only" else (0.24, 1.0)
    assert facts == {"examples": 0, "absent": 0, "threshold": threshold, "word": word, "trust": trust}
    assert word in cli("labels", "new.fewtag").out


@pytest.mark.parametrize(
    ("label", "options", "sentence"),
    [
        ("moon", ("--like", "moon", "--no-words"), "--like, --vector and --no-words exclude each other"),
        ("moon", ("--like", " , "), "label 'moon' is like nothing; name at least one known word"),
        ("zzqxv flurbish", (), '(pictures only): --like "lens, eye", --vector FILE or --no-words'),
        ("moon", ("--like", "zzqxv"), ': --like "lens, eye", --vector FILE'),
        ("moon", ("--vector", "gone.npy"), "cannot read the vector gone.npy: No such file"),
        ("moon", ("--vector", "words.npy"), "words.npy holds no vector of numbers"),
        ("moon", ("--vector", "words.txt"), "words.txt holds no vector of numbers"),
        ("moon", ("--vector", "short.txt"), "has 2 numbers, words 'pieces' have 384"),
        ("moon", ("--model", "defualt"), "there is no model 'defualt'; did you mean 'default'"),
        ("moon;ring", (), "label 'moon;ring' contains \";\", which separates labels in tables; name it otherwise"),
    ],
)
def test_define_refuses(cli: Cli, bank: Path, label: str, options: tuple[str, ...], sentence: str) -> None:
    before = bank.read_bytes()
    Path("words.txt").write_text("one two")
    Path("words.npy").write_text("one two")
    Path("short.txt").write_text("1 2")
    assert refused(cli("define", bank, label, *options), sentence)
    assert bank.read_bytes() == before


def test_forget_a_label_or_one_example_of_it(cli: Cli, bank: Path, tmp_path: Path) -> None:
    picture = tmp_path / "examples" / "dog" / "0.png"
    assert cli("forget", bank, "dog", "--image", picture).code == 0
    assert known(cli, bank) == {"cat": 2, "dog": 1, "sofa": 2}
    assert refused(cli("forget", bank, "dog", "--image", picture), "is no example of label 'dog', which has 1")
    assert cli("forget", bank, "dog").out == f"{bank}: 'dog' is forgotten\n"
    assert refused(cli("forget", bank, "dgo"), "there is no label 'dgo'")
    assert known(cli, bank) == {"cat": 2, "sofa": 2}


def test_an_example_is_forgotten_by_name_or_number_when_its_picture_is_gone(
    cli: Cli, bank: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "examples")
    listed = json.loads(cli("examples", bank, "dog", "--json").out)
    assert sorted(facts["name"] for facts in listed.values()) == ["0.png", "3.png"]
    assert cli("forget", bank, "dog", "--example", "3.png").code == 0
    assert [facts["name"] for facts in json.loads(cli("examples", bank, "dog", "--json").out).values()] == ["0.png"]
    second = json.loads(cli("examples", bank, "cat", "--json").out)["2"]["name"]
    assert cli("forget", bank, "cat", "--example", "2").out == f"{bank}: {second} is no example of 'cat' now\n"
    assert second not in cli("examples", bank, "cat").out
    assert refused(cli("forget", bank, "cat", "--example", "2"), "has examples 1 to 1, there is no number 2")
    assert refused(cli("forget", bank, "cat", "--example", "x.png"), "no example of label 'cat' is called 'x.png'")
    assert refused(cli("forget", bank, "cat", "--example", "²"), "no example of label 'cat' is called '²'")
    assert refused(cli("forget", bank, "cat", "--example", "1", "--image", "x.png"), "is named twice")
    assert cli("define", bank, "zebra").code == 0
    assert refused(cli("forget", bank, "zebra", "--example", "1"), "label 'zebra' has no example, there is no number 1")
    assert refused(cli("forget", bank, "zebra", "--example", "x.png"), "is called 'x.png'; none is known yet")


def test_of_many_examples_a_wrong_name_is_told_the_nearest_alone(cli: Cli, bank: Path) -> None:
    """Complete pictures speak of every label, thousands of them perhaps."""
    for number in range(30):
        draw(900 + number, "dog").save(f"IMG_{number}.png")
    cli("learn", bank, *Path().glob("IMG_*.png"), "--label", "dog", "--complete")
    assert refused(cli("forget", bank, "cat", "--example", "IMG_7.pgn"), "'IMG_7.pgn'; did you mean 'IMG_7.png' or ")
    assert refused(cli("forget", bank, "cat", "--example", "x"), " and 12 more")


def test_of_two_examples_of_one_name_none_is_forgotten_by_it(cli: Cli, bank: Path) -> None:
    """Cameras begin anew with IMG_0001.jpg, and a bank keeps no folders."""
    for number, folder in enumerate(("2019", "2020")):
        Path(folder).mkdir()
        draw(700 + number, "dog").save(f"{folder}/IMG_0001.png")
        assert cli("learn", bank, f"{folder}/IMG_0001.png", "--label", "pup").code == 0
    said = cli("forget", bank, "pup", "--example", "IMG_0001.png")
    assert refused(said, "2 pictures that speak of label 'pup' are called 'IMG_0001.png'; give number 1 or 2")
    assert cli("forget", bank, "pup", "--example", "1").out == f"{bank}: IMG_0001.png is no example of 'pup' now\n"
    assert known(cli, bank)["pup"] == 1


def test_a_page_of_the_examples_shows_each_of_them(cli: Cli, bank: Path) -> None:
    said = cli("examples", bank, "dog", "--page", "dogs.html")
    assert (said.code, "the page: dogs.html" in said.err) == (0, True)
    page = Page("dogs.html")
    assert [source.startswith("data:image/webp;base64,") for source in page.loaded] == [True, True]
    shown = " ".join(page.text)
    assert all(name in shown for name in ("0.png", "3.png", "dog: 2 examples"))


def test_rename_and_merge(cli: Cli, bank: Path) -> None:
    said = cli("rename", bank, "dog", "hound")
    assert said.out == f"{bank}: 'dog' is called 'hound' now, with 2 examples\n"
    assert known(cli, bank) == {"cat": 2, "hound": 2, "sofa": 2}
    before = bank.read_bytes()
    assert refused(
        cli("rename", bank, "hound", "cat"), "label 'cat' already; choose another name, or merge the two (--merge)"
    )
    assert bank.read_bytes() == before
    assert cli("rename", bank, "hound", "cat", "--merge").code == 0
    assert known(cli, bank) == {"cat": 4, "sofa": 2}
    assert refused(cli("rename", bank, "gone", "lost"), "there is no label 'gone'")
    cli("rename", bank, "cat", "pets/cat")
    said = cli("rename", bank, "pets", "beasts")
    assert said.out == f"{bank}: 'pets' is called 'beasts' now, with 1 label under it\n"
    assert known(cli, bank) == {"beasts/cat": 4, "sofa": 2}


def test_rename_looks_the_new_name_up_in_word_vectors_of_ones_own(cli: Cli, tiny_model: Path) -> None:
    names = ("dog", "cat", "sofa", "hound")
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(names, np.eye(4), strict=True)]
    Path("words.txt").write_text("\n".join(lines) + "\n")
    options = ("--words", "words.txt")
    assert cli("define", "own.fewtag", "dog", "--model", tiny_model, *options).code == 0
    assert refused(cli("rename", "own.fewtag", "dog", "hound"), "which were not named now; name their file")
    assert cli("rename", "own.fewtag", "dog", "hound", *options).code == 0
    assert Tagger.load("own.fewtag").definitions_["hound"].words == ("hound",)


def test_what_was_done_to_a_bank_is_told_to_machines_too(cli: Cli, bank: Path, tmp_path: Path) -> None:
    def told(command: str, *arguments: object) -> Any:
        found = json.loads(cli(command, bank, *arguments, "--json").out)
        assert found.pop("bank") == str(bank)
        return found

    assert told("define", "zebra") == {"label": "zebra", "word": "its name"}
    assert told("rename", "dog", "hound") == {"label": "hound", "before": "dog", "examples": 2, "under": 0}
    assert told("forget", "hound", "--example", "1") == {"label": "hound", "example": "1"}
    assert told("forget", "hound") == {"label": "hound", "example": None}
    other = write_tiny_model(tmp_path / "model", "other", seed=1)
    assert told("upgrade", "--model", other) == {"labels": 3, "model": "other"}
    draw(300, "cat").save("garden.png")
    found = json.loads(cli("explain", bank, "garden.png", "--label", "cat", "--out", "heat.png", "--json").out)
    expected = Tagger.load(bank).predict_proba("garden.png")[0, 0]
    assert (found["out"], list(found["probabilities"])) == ("heat.png", ["cat"])
    assert found["probabilities"]["cat"] == pytest.approx(expected, abs=1e-5)


def test_labels_with_brackets_are_shown_as_they_are(cli: Cli, bank: Path) -> None:
    assert cli("define", bank, "[red]moon[/red]", "--no-words").code == 0
    assert "[red]moon[/red]" in cli("labels", bank).out


@pytest.mark.parametrize("command", [("labels",), ("forget", "moon"), ("tag", "examples", "--out", "tags.csv")])
@pytest.mark.usefixtures("bank")
def test_what_is_no_bank_is_refused(cli: Cli, command: tuple[str, ...], tmp_path: Path) -> None:
    name, *rest = command
    (tmp_path / "labels.csv").write_text("image,labels\n")
    assert refused(cli(name, "gone.fewtag", *rest), "there is no bank gone.fewtag")
    assert refused(cli(name, "labels.csv", *rest), "labels.csv cannot be read: it is no bank")
    assert refused(cli(name, "examples", *rest), "is a folder, not a bank")
    assert not [path for path in Path().iterdir() if path.name.startswith("tags")]


def test_a_bank_moves_to_another_model_by_the_copies_it_keeps(cli: Cli, bank: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "model", "other", seed=1)
    assert cli("define", bank, "zebra", "--no-words").code == 0
    assert refused(cli("learn", bank, "examples", "--model", other), "was made with another model 'tiny'")
    said = cli("upgrade", bank, "--model", other)
    assert (said.code, said.out) == (0, f"{bank}: 3 labels, model 'other'\n"), said.err
    assert ("learning again" in said.err, " 6/6 " in said.err) == (True, True)
    assert cli("upgrade", bank).err == "", "nothing is to be done"
    tagger = Tagger.load(bank)
    assert (tagger.model.name, dict(tagger.counts_)) == ("other", {"cat": 2, "dog": 2, "sofa": 2, "zebra": 0})
    assert tagger.predict(draw(300, "dog")) == [("dog",)]


def test_an_upgrade_that_could_not_be_saved_is_refused_before_the_work(
    cli: Cli, bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_model(tmp_path / "model", "other", seed=1)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "studio.sqlite").touch()
    bank = bank.rename(tmp_path / "project" / "bank.fewtag")
    monkeypatch.setattr("fewtag.tagger.stream.migrated", lambda *_: pytest.fail("before any work"))
    assert refused(cli("upgrade", bank, "--model", other), "is made of the answers in a studio's project")


def test_without_copies_a_bank_does_not_move(cli: Cli, tiny_model: Path, tmp_path: Path) -> None:
    draw(0, "dog").save("dog.png")
    assert cli("learn", "b.fewtag", "dog.png", "--label", "dog", "--no-pictures", "--model", tiny_model).code == 0
    before = Path("b.fewtag").read_bytes()
    other = write_tiny_model(tmp_path / "model", "other", seed=1)
    assert refused(cli("upgrade", "b.fewtag", "--model", other), "keeps no copies of 1 of its 1 examples")
    assert Path("b.fewtag").read_bytes() == before


def test_a_projects_bank_is_named_where_the_project_was(cli: Cli, bank: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    bank.rename(tmp_path / "project" / "bank.fewtag")
    options = ("--label", "dog", "--out", "heat.png")
    for command in (("labels",), ("explain", "garden.png", *options), ("tag", "garden.png")):
        said = cli(command[0], tmp_path / "project", *command[1:])
        assert refused(said, f"name its bank, {tmp_path / 'project' / 'bank.fewtag'}")


def test_explain_a_bank(cli: Cli, bank: Path) -> None:
    draw(300, "dog", size=(90, 60)).save("garden.jpg")
    said = cli("explain", bank, "garden.jpg", "--label", "dog", "--out", "one.png")
    assert said.out.startswith("one.png: dog ")
    assert cli("explain", bank, "garden.jpg", "--label", "dog", "--label", "cat", "--out", "two.jpg").code == 0
    with Image.open("one.png") as one, Image.open("two.jpg") as two:
        assert (one.format, two.format) == ("PNG", "JPEG")
        assert two.width > one.width
    said = cli("explain", bank, "garden.jpg", "--label", "dgo", "--out", "three.png")
    assert refused(said, "there is no label 'dgo'; did you mean 'dog'?")
    assert refused(cli("explain", bank, "gone.jpg", "--label", "dog", "--out", "three.png"), "no such file")
    assert refused(cli("explain", bank, "garden.jpg", "--label", "dog", "--out", "three.pdf"), "ends in none of")
    assert not list(Path().glob("three*"))


def test_a_heat_map_does_not_take_the_place_of_its_picture(cli: Cli, bank: Path) -> None:
    draw(300, "dog").save("mine.jpg")
    before = Path("mine.jpg").read_bytes()
    Path("link.jpg").symlink_to("mine.jpg")
    for out in ("mine.jpg", "./mine.jpg", "link.jpg"):
        said = cli("explain", bank, "mine.jpg", "--label", "dog", "--out", out)
        assert refused(said, "is the picture itself; name another file")
    assert Path("mine.jpg").read_bytes() == before


@pytest.mark.parametrize("name", ["other.jpg", "other.png", "other.webp"])
def test_explain_replaces_its_own_heat_map_and_no_other_file(cli: Cli, bank: Path, name: str) -> None:
    draw(1, "dog").save("garden.png")
    draw(2, "cat").save(name)
    for before in (Path(name).read_bytes(), b"", b"no picture"):
        Path(name).write_bytes(before)
        said = cli("explain", bank, "garden.png", "--label", "dog", "--out", name)
        assert refused(said, "exists and is no heat-map of fewtag's; name another")
        assert Path(name).read_bytes() == before
    Path(name).unlink()
    assert cli("explain", bank, "garden.png", "--label", "dog", "--out", name).code == 0
    assert cli("explain", bank, "garden.png", "--label", "cat", "--out", name).code == 0


def test_a_page_replaces_a_page_of_fewtag_and_no_other(cli: Cli, bank: Path) -> None:
    Path("mine.html").write_text("my own page")
    for command in (("examples", bank, "dog"), ("tag", bank, "examples"), ("tag", bank, "examples", "--out", "t.csv")):
        assert refused(cli(*command, "--page", "mine.html"), "exists and is no page of fewtag's; name another")
        assert cli(*command, "--page", "page.html").code == 0
    assert Path("mine.html").read_text() == "my own page"


@pytest.mark.parametrize(
    "make",
    [os.mkdir, pytest.param(getattr(os, "mkfifo", None), marks=pytest.mark.skipif(os.name == "nt", reason="no pipes"))],
)
def test_pages_and_heat_maps_are_refused_in_the_place_of_folders_and_pipes_before_any_work(
    cli: Cli, bank: Path, make: Callable[[str], None]
) -> None:
    draw(1, "dog").save("garden.png")
    for out, what, *command in (
        ("heat.png", "no heat-map", "explain", bank, "garden.png", "--label", "dog", "--out"),
        ("page.html", "no page", "tag", bank, "examples", "--out", "t.csv", "--page"),
    ):
        make(out)
        kind = Path(out).lstat().st_mode
        assert refused(cli(*command, out), f"{out} exists and is {what} of fewtag's; name another")
        assert Path(out).lstat().st_mode == kind
    assert not Path("t.csv").exists()


def test_a_page_does_not_take_the_place_of_what_is_none(cli: Cli, bank: Path) -> None:
    before = bank.read_bytes()
    for command in (("examples", bank, "dog"), ("tag", bank, "examples"), ("tag", bank, "examples", "--out", "t.csv")):
        assert refused(cli(*command, "--page", bank), "ends in neither .html nor .htm")
    assert bank.read_bytes() == before
    Path("t.html").mkdir()
    said = cli("tag", bank, "examples", "--out", "t.html", "--page", Path("t.html").absolute())
    assert refused(said, "--out and --page are both")
    assert not list(Path("t.html").iterdir())
    assert not Path("t.csv").exists()
