"""Teaching a bank on the command line: learn, define, forget, labels, explain."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]


def known(cli: Cli, bank: Path | str) -> dict[str, int]:
    """How many examples of each label a bank has."""
    found = json.loads(cli("labels", bank, "--json").out)
    return {label: facts["examples"] for label, facts in found.items()}


def refused(said: Any, sentence: str) -> bool:
    """One sentence on standard error, after bars at most."""
    last = said.err.rstrip("\n").split("\n")[-1]
    assert last.startswith("fewtag: "), said.err
    assert sentence in last
    return said.code == 2 and said.out == "" and "Traceback" not in said.err


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def test_learn_makes_a_bank_from_a_table(cli: Cli, bank: Path) -> None:
    assert known(cli, bank) == {"arrow": 3, "heart": 3, "moon": 1}


def test_learn_adds_to_a_bank_and_says_what_is_new(cli: Cli, bank: Path, shapes: Path) -> None:
    (shapes / "more.tsv").write_text("image\tlabels\nimages/ring1.png\tring,cross\nimages/heart2.png\theart\n")
    said = cli("learn", bank, shapes / "more.tsv", "--json")
    assert json.loads(said.out) == {
        "bank": str(bank),
        "pictures": 2,
        "skipped": 0,
        "new": ["cross", "ring"],
        "labels": 5,
    }
    assert known(cli, bank) == {"arrow": 3, "cross": 1, "heart": 3, "moon": 1, "ring": 1}


def test_learn_takes_a_folder_per_label_and_a_picture_in_two_folders_shows_both(
    cli: Cli, shapes: Path, model_file: Path
) -> None:
    for label, names in {"heart": ("heart0.png", "heart2.png"), "arrow": ("heart0.png",)}.items():
        for name in names:
            Path("album", label).mkdir(parents=True, exist_ok=True)
            shutil.copy(shapes / "images" / name, Path("album", label, name))
    said = cli("learn", "new/pets.fewtag", "album", "--model", model_file)
    assert said.out == "new/pets.fewtag: 3 pictures learnt; 2 labels, 2 of them new\n"
    assert known(cli, "new/pets.fewtag") == {"arrow": 1, "heart": 2}


def test_more_examples_than_a_batch_keep_their_labels(cli: Cli, shapes: Path, model_file: Path) -> None:
    table = shapes / "images" / "labels.csv"
    shutil.move(shapes / "labels.csv", table)
    (shapes / "images" / "circle0.png").write_bytes(b"no picture")
    assert cli("learn", "all.fewtag", table, "--model", model_file, "--skip-bad").code == 0
    shown = [row.split(",") for row in table.read_text().splitlines()[1:]]
    expected = Counter(label for name, labels in shown if name != "circle0.png" for label in labels.split(";"))
    assert known(cli, "all.fewtag") == expected


def test_learning_the_same_again_changes_no_byte(cli: Cli, bank: Path, examples: Path, model_file: Path) -> None:
    before = bank.read_bytes()
    assert cli("learn", bank, examples, "--model", model_file).code == 0
    assert bank.read_bytes() == before


@pytest.mark.parametrize("spoil", [truncate, Path.unlink])
def test_learn_refuses_a_bad_picture_by_name_and_changes_nothing(
    cli: Cli, bank: Path, examples: Path, spoil: Callable[[Path], object], model_file: Path
) -> None:
    before = bank.read_bytes()
    spoil(examples.parent / "images" / "moon2.png")
    assert refused(cli("learn", bank, examples), "moon2.png")
    assert refused(cli("learn", "other.fewtag", examples, "--model", model_file), "--skip-bad")
    assert bank.read_bytes() == before
    assert not Path("other.fewtag").exists()


def test_skip_bad_leaves_bad_pictures_out_and_names_and_counts_them(cli: Cli, examples: Path, model_file: Path) -> None:
    truncate(examples.parent / "images" / "moon2.png")
    (examples.parent / "images" / "heart2.png").unlink()
    said = cli("learn", "pets.fewtag", examples, "--model", model_file, "--skip-bad")
    assert said.out == "pets.fewtag: 3 pictures learnt, 2 skipped; 2 labels, 2 of them new\n"
    skipped = [line for line in said.err.splitlines() if line.startswith("skipped: ")]
    assert ["heart2.png" in skipped[0], "moon2.png" in skipped[1]] == [True, True]
    assert known(cli, "pets.fewtag") == {"arrow": 3, "heart": 2}


def test_skip_bad_still_refuses_where_no_picture_is_left(cli: Cli, shapes: Path, model_file: Path) -> None:
    (shapes / "bad.csv").write_text("image,labels\nimages/gone.png,moon\n")
    said = cli("learn", "pets.fewtag", shapes / "bad.csv", "--model", model_file, "--skip-bad")
    assert refused(said, "none of the 1 pictures can be read; the first: cannot read image")
    assert not Path("pets.fewtag").exists()


def test_an_unknown_word_names_a_command_that_mends_it(cli: Cli, shapes: Path, model_file: Path) -> None:
    (shapes / "eyes.csv").write_text("image,labels\nimages/moon2.png,ectopia lentis\n")
    learn = ("learn", "eyes.fewtag", shapes / "eyes.csv", f"--model={model_file}")
    way_out = f"fewtag define eyes.fewtag 'ectopia lentis' --model={model_file} --like 'lens, eye'"
    said = cli(*learn)
    assert refused(said, f"or do without words (pictures only); for example run `{way_out}`, then learn again")
    assert not Path("eyes.fewtag").exists()
    assert cli("define", "eyes.fewtag", "ectopia lentis", f"--model={model_file}", "--like", "moon, ring").code == 0
    assert cli(*learn).code == 0
    facts = json.loads(cli("labels", "eyes.fewtag", "--json").out)["ectopia lentis"]
    assert facts == {"examples": 1, "threshold": 0.5, "word": "like moon, ring"}


def test_a_label_with_a_semicolon_is_refused(cli: Cli, bank: Path, shapes: Path) -> None:
    sentence = "label 'moon;ring' contains \";\", which separates labels in tables; name it otherwise"
    assert refused(cli("define", bank, "moon;ring"), sentence)
    shutil.copytree(shapes / "images", "album/moon;ring")
    assert refused(cli("learn", bank, "album"), sentence)


def test_a_bank_keeps_its_model(cli: Cli, bank: Path, shapes: Path, model_file: Path) -> None:
    before = bank.read_bytes()
    words = shapes / "others.txt"
    words.write_text((shapes / "words.txt").read_text())
    said = cli("define", bank, "ring", "--words", words)
    assert refused(said, f"bank {bank} was made with another model 'tiny' (words 'words.txt')")
    assert bank.read_bytes() == before
    assert cli("define", bank, "ring", "--model", model_file).code == 0


@pytest.mark.parametrize(
    ("content", "options", "word"),
    [
        ("", (), "its name"),
        ("", ("--like", "star, heart"), "like star, heart"),
        ("1, 2 3\n" + "4 " * 13, ("--vector", "vector.txt"), "a vector of its own"),
        (np.ones(16), ("--vector", "vector.npy"), "a vector of its own"),
        ("", ("--no-words",), "pictures only"),
    ],
)
def test_define_in_every_way(cli: Cli, model_file: Path, content: Any, options: tuple[str, ...], word: str) -> None:
    np.save("vector.npy", content) if isinstance(content, np.ndarray) else Path("vector.txt").write_text(content)
    said = cli("define", "new.fewtag", "moon", "--model", model_file, *options)
    assert (said.code, said.out) == (0, f"new.fewtag: label 'moon' is defined: {word}\n")
    facts = json.loads(cli("labels", "new.fewtag", "--json").out)["moon"]
    assert facts == {"examples": 0, "threshold": None if word == "pictures only" else 0.5, "word": word}
    assert word in cli("labels", "new.fewtag").out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--like", "moon", "--no-words"), "--like, --vector and --no-words exclude each other"),
        (("--like", " , "), "names no word"),
        (("--like", "ectopia"), "'ectopia' is unknown"),
        (("--like", "ectopia"), '(pictures only): --like "lens, eye", --vector FILE or --no-words'),
        (("--vector", "gone.npy"), "cannot read the vector gone.npy: No such file"),
        (("--vector", "words.npy"), "words.npy holds no vector of numbers"),
        (("--vector", "words.txt"), "words.txt holds no vector of numbers"),
        (("--vector", "short.txt"), "has 2 numbers, words 'words.txt' have 16"),
        (("--model", "defualt"), "there is no model 'defualt'; did you mean 'default'"),
    ],
)
def test_define_refuses(cli: Cli, bank: Path, options: tuple[str, ...], sentence: str) -> None:
    before = bank.read_bytes()
    Path("words.txt").write_text("one two")
    Path("words.npy").write_text("one two")
    Path("short.txt").write_text("1 2")
    assert refused(cli("define", bank, "ring", *options), sentence)
    assert bank.read_bytes() == before


def test_forget_a_label_or_one_example_of_it(cli: Cli, bank: Path, shapes: Path) -> None:
    picture = shapes / "images" / "heart0.png"
    assert cli("forget", bank, "heart", "--image", picture).code == 0
    assert known(cli, bank) == {"arrow": 3, "heart": 2, "moon": 1}
    assert refused(cli("forget", bank, "heart", "--image", picture), "is none of the 2 examples of label 'heart'")
    assert cli("forget", bank, "heart").out == f"{bank}: 'heart' is forgotten\n"
    assert refused(cli("forget", bank, "haert"), "there is no label 'haert'; known: 'arrow', 'moon'")
    assert known(cli, bank) == {"arrow": 3, "moon": 1}


def test_labels_with_brackets_are_shown_as_they_are(cli: Cli, bank: Path) -> None:
    assert cli("define", bank, "[red]moon[/red]", "--no-words").code == 0
    assert "[red]moon[/red]" in cli("labels", bank).out


def test_a_bank_without_labels_says_so(cli: Cli, model_file: Path, shapes: Path) -> None:
    Tagger(str(model_file)).save("empty.fewtag")
    assert "0 labels" in cli("labels", "empty.fewtag").out
    said = cli("tag", "empty.fewtag", shapes / "images", "--out", "tags.csv")
    assert refused(said, "the bank empty.fewtag knows no label yet; teach it some with fewtag learn")


@pytest.mark.parametrize("command", [("labels",), ("forget", "moon"), ("tag", "shapes/images", "--out", "tags.csv")])
def test_what_is_no_bank_is_refused(cli: Cli, shapes: Path, command: tuple[str, ...]) -> None:
    name, *rest = command
    sentence = "there is no bank gone.fewtag; make one with: fewtag learn gone.fewtag EXAMPLES"
    assert refused(cli(name, "gone.fewtag", *rest), sentence)
    assert refused(cli(name, shapes / "labels.csv", *rest), "labels.csv cannot be read: it is no bank")
    assert refused(cli(name, shapes, *rest), "is a folder, not a bank")
    assert not [path for path in Path().iterdir() if path.name.startswith("tags")]


def test_learn_refuses_examples_that_are_not_there(cli: Cli) -> None:
    assert refused(cli("learn", "pets.fewtag", "gone.csv"), "there are no examples gone.csv; give a CSV")
    assert not list(Path().iterdir())


def test_explain_a_bank(cli: Cli, bank: Path, shapes: Path) -> None:
    Image.open(shapes / "images" / "heart0.png").resize((90, 60)).save("garden.jpg")
    assert cli("explain", bank, "garden.jpg", "--label", "heart", "--out", "one.png").out == "one.png\n"
    assert cli("explain", bank, "garden.jpg", "--label", "heart", "--label", "moon", "--out", "two.png").code == 0
    with Image.open("one.png") as one, Image.open("two.png") as two:
        assert (one.format, one.size) == ("PNG", (90, 60))
        assert two.width > 3 * one.width
    said = cli("explain", bank, "garden.jpg", "--label", "haert", "--out", "three.png")
    assert refused(said, "there is no label 'haert'; did you mean 'heart'?")
    assert refused(cli("explain", bank, "gone.jpg", "--label", "heart", "--out", "three.png"), "no such file")
    assert not Path("three.png").exists()
