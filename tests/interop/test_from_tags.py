"""`fewtag learn --from-tags`: what pictures carry is learnt as from a table, and what fewtag wrote is not."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sidecars import BEGUN, digikam, immich, lightroom
from tiny import draw, same_classifiers

from fewtag import Tagger
from fewtag.interop.from_tags import at_most, read_carried
from fewtag.pictures.prefetch import Advance
from fewtag.tagger.model import load_model

Cli = Callable[..., Any]
PACKS = Path(__file__).parents[2] / "data" / "coco"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Eight pictures as several programs left them, and a table that says the same."""
    folder, rows = tmp_path / "archive", ["image,labels"]
    folder.mkdir()
    shown = [("dog", "pets/dog"), ("cat", "pets/cat"), ("sofa", "sofa"), ("zebra", "wild/zebra")] * 2
    for number, (colour, tag) in enumerate(shown):
        path, kind = folder / f"{number}.jpg", number % 4
        packet = [digikam, lightroom, immich, digikam][kind]([tuple(tag.split("/"))], 0)
        draw(number, colour).save(path, **({"xmp": packet} if kind in {0, 3} else {}), quality=95)
        if kind in {1, 2}:
            path.with_name(f"{number}.jpg.xmp" if kind == 1 else f"{number}.xmp").write_bytes(packet)
        rows.append(f"archive/{number}.jpg,{tag}")
    draw(99, "ball").save(folder / "untagged.jpg")
    (folder / "untagged.jpg.xmp").write_bytes(BEGUN)
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_the_bank_is_the_one_that_a_table_makes(cli: Cli, archive: Path, tiny_model: Path) -> None:
    said = cli("learn", "tags.fewtag", archive, "--from-tags", "--model", tiny_model)
    assert said.code == 0, said.err
    assert "8 pictures, 4 tags" in said.out
    assert "tags.fewtag: 8 pictures learnt; 4 labels, 4 of them new" in said.out
    assert cli("learn", "table.fewtag", "table.csv", "--model", tiny_model).code == 0
    by_tags, by_table = Tagger.load("tags.fewtag"), Tagger.load("table.fewtag")
    assert by_tags.classes_ == ("pets/cat", "pets/dog", "sofa", "wild/zebra")
    assert same_classifiers(by_tags, by_table)


def test_a_raw_file_and_the_picture_made_of_it_are_one(cli: Cli, tiny_model: Path) -> None:
    for name in ("IMG_1", "IMG_2"):
        draw(1 if name == "IMG_1" else 2, "dog").save(f"{name}.JPG")
        Path(f"{name}.CR2").write_bytes(b"raw")
    Path("IMG_1.CR2.xmp").write_bytes(digikam([("pets", "dog")], 0))
    arguments = ("learn", "tags.fewtag", ".", "--from-tags", "--model", tiny_model)
    said = cli(*arguments)
    assert (said.code, "1 picture learnt; 1 label" in said.out) == (0, True), said.err
    said = cli("write", "tags.fewtag", ".", "--threshold", 0)
    assert (said.code, said.err.count("fewtag: ")) == (0, 0), said.err
    assert sorted(path.name for path in Path().glob("*.JPG.xmp")) == ["IMG_1.JPG.xmp", "IMG_2.JPG.xmp"]
    Path("lone.NEF").write_bytes(b"raw")
    for command in (arguments, ("write", "tags.fewtag", ".")):
        said = cli(*command)
        assert (said.code, "lone.NEF is of a kind that is not read" in said.err) == (
            2 if "learn" in command else 1,
            True,
        )


def test_the_word_of_a_path_is_its_last_name(tiny_model: Path) -> None:
    tagger = Tagger(str(tiny_model)).define("pets/dog").define("dog").define("dog/cat")
    known = tagger.definitions_
    assert np.array_equal(known["pets/dog"].vector, known["dog"].vector)
    assert not np.array_equal(known["dog/cat"].vector, known["dog"].vector)
    assert (known["pets/dog"].words, known["pets/dog"].thing) == (("dog",), known["dog"].thing)


def test_a_table_comes_first_and_a_dry_run_ends_there(cli: Cli, archive: Path, tiny_model: Path) -> None:
    arguments = ("learn", "tags.fewtag", archive, "--from-tags", "--model", tiny_model, "--dry-run")
    assert "pets/cat" in cli(*arguments).out
    found = json.loads(cli(*arguments, "--json").out)
    assert found["pets/dog"] == {"pictures": 2, "to_learn": 2}
    assert not Path("tags.fewtag").exists()


def test_what_fewtag_wrote_is_not_learnt(cli: Cli, archive: Path, tiny_model: Path) -> None:
    Path("guesses.csv").write_text("image,tags\nuntagged.jpg,ball\n0.jpg,ball\n")
    assert cli("write", "guesses.csv", archive).code == 0
    cli("learn", "tags.fewtag", archive, "--from-tags", "--model", tiny_model)
    assert Tagger.load("tags.fewtag").classes_ == ("pets/cat", "pets/dog", "sofa", "wild/zebra")


def test_only_takes_a_tag_and_what_is_under_it(cli: Cli, archive: Path, tiny_model: Path) -> None:
    arguments = ("learn", "some.fewtag", archive, "--from-tags", "--model", tiny_model, "--dry-run", "--json")
    assert list(json.loads(cli(*arguments, "--only", "Pets").out)) == ["pets/cat", "pets/dog"]
    assert list(json.loads(cli(*arguments, "--only", "pets/cat", "--only", "sofa").out)) == ["pets/cat", "sofa"]
    said = cli(*arguments, "--only", "pats")
    assert (said.code, said.out) == (2, "")
    assert "no picture carries the tag 'pats'; " in said.err


def test_at_most_so_many_typical_and_varied_ones(tmp_path: Path, tiny_model: Path) -> None:
    rows = [digikam([("pets", "dog")], 0), digikam([("cat",)], 0)]
    for number in range(30):
        colour = ("dog" if number < 24 else "zebra") if number < 26 else "cat"
        draw(number, colour).save(tmp_path / f"{number:02}.jpg", xmp=rows[number >= 26], quality=95)
    shown, model = read_carried([tmp_path]).shown, load_model(str(tiny_model))
    left = []

    def begin(_task: str, total: int) -> Advance:
        left.append(total)
        return lambda count: left.append(-count)

    chosen, failed = at_most(shown, 6, model, begin)
    assert (left[0], sum(left)) == (26, 0), "only the dogs are looked at"
    names = [each.picture.path.name for each in chosen]
    assert failed == []
    assert names == [each.picture.path.name for each in at_most(shown, 6, model)[0]], "the same each time"
    assert sum("pets/dog" in each.labels for each in chosen) == 6
    assert [name for name in names if name >= "26"] == ["26.jpg", "27.jpg", "28.jpg", "29.jpg"], "few stay as they are"
    places = {each.picture.path.name: model.encode(each.picture.pixels(model.size)[None])[0].mean(0) for each in shown}
    dogs = {name: place / np.linalg.norm(place) for name, place in places.items() if name < "26.jpg"}
    mean = np.mean(list(dogs.values()), axis=0)
    nearest = sorted(dogs, key=lambda name: -float(dogs[name] @ mean))[:3]
    assert set(nearest) <= set(names), "the most typical are among them"
    closest = sorted(dogs, key=lambda name: -float(dogs[name] @ mean))[:6]

    def spread(some: list[str]) -> float:
        gaps = (min(1 - float(dogs[one] @ dogs[other]) for other in some if other != one) for one in some)
        return float(np.mean(list(gaps)))

    assert spread([name for name in names if name in dogs]) > spread(closest), "they differ more than the typical"


def test_what_cannot_be_read_is_refused_or_counted(cli: Cli, archive: Path, tiny_model: Path) -> None:
    (archive / "raw.cr2").write_bytes(b"raw")
    (archive / "1.jpg.xmp").write_text("no xml")
    arguments = ("learn", "tags.fewtag", archive, "--from-tags", "--model", tiny_model)
    said = cli(*arguments)
    assert (said.code, said.out, Path("tags.fewtag").exists()) == (2, "", False)
    assert "1.jpg.xmp is no XML" in said.err
    assert "and 1 more (--skip-bad leaves out what cannot be read)" in said.err
    said = cli(*arguments, "--skip-bad", "--json")
    assert (said.code, json.loads(said.out)["pictures"]) == (0, 7)
    assert said.err.count("skipped: ") == 2


def test_a_raw_file_is_the_picture_beside_it_however_the_two_are_named(
    cli: Cli, archive: Path, tiny_model: Path
) -> None:
    """A drawing's own file is no RAW file: that it is not read is said."""
    (archive / "0.NEF").write_bytes(b"raw")
    (archive / "1.psd").write_bytes(b"layers")
    both = (archive / "0.NEF", archive / "0.jpg")
    for given, code in (((archive,), 2), (both, 0), (both[:1], 2), ((archive, "--skip-bad"), 0)):
        said = cli("learn", "tags.fewtag", *given, "--from-tags", "--model", tiny_model)
        assert said.code == code, said.err
        assert ("0.NEF" in said.err) == (given == both[:1])
        assert ("1.psd" in said.err) == (archive in given)
    bank = "tags.fewtag"
    assert json.loads(cli("write", bank, archive / "0.NEF", "--dry-run", "--json").out)["failures"], "by itself"
    found = json.loads(cli("write", bank, archive, "--dry-run", "--json").out)["failures"]
    assert [Path(name).name for name in found] == ["1.psd"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "dog"), "--only goes with --from-tags"),
        (("--at-most", "3"), "--at-most goes with --from-tags"),
        (("--from-tags", "--label", "dog"), "--label does not go with --from-tags"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    cli: Cli, archive: Path, tiny_model: Path, arguments: tuple[str, ...], said: str
) -> None:
    outcome = cli("learn", "tags.fewtag", archive, "--model", tiny_model, *arguments)
    assert (outcome.code, said in outcome.err) == (2, True), outcome.err


def test_pictures_without_tags_are_a_sentence(cli: Cli, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "plain").mkdir()
    draw(0, "dog").save(tmp_path / "plain" / "a.jpg")
    said = cli("learn", "tags.fewtag", "plain", "--from-tags", "--model", tiny_model)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "none of 1 picture carries a tag" in said.err


def test_tags_that_cannot_be_labels_are_left_out_by_name(cli: Cli, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "odd").mkdir()
    draw(0, "dog").save(tmp_path / "odd" / "a.jpg", xmp=digikam([("dog",), ("a;b",)], 0))
    said = cli("learn", "tags.fewtag", "odd", "--from-tags", "--model", tiny_model)
    assert (said.code, "skipped: label 'a;b' contains" in said.err) == (0, True)
    assert Tagger.load("tags.fewtag").classes_ == ("dog",)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not PACKS.is_dir(), reason="the measurement packs are absent")
def test_tags_of_real_pictures_teach_as_well_as_a_table(cli: Cli, tmp_path: Path) -> None:
    """200 pictures of COCO to learn from, half of their tags hierarchical, and 200 others to be tagged."""
    branch = {"dog": "animals", "cat": "animals", "horse": "animals", "pizza": "food/baked", "cake": "food/baked"}
    lines = (PACKS / "labels.tsv").read_text().splitlines()[1:]
    wanted = {*branch, "bus", "train", "bed", "umbrella", "laptop"}
    shown = {f"{image}.webp": sorted(wanted & set(labels.split(","))) for pack, image, _, labels in
             (line.split("\t") for line in lines) if pack == "train"}  # fmt: skip
    folders = {"learn": tmp_path / "learn", "check": tmp_path / "check"}
    tables = {name: ["image,labels"] for name in folders}
    with tarfile.open(PACKS / "train-0.tar") as pack:
        members = [member for member in pack if shown.get(member.name)][:400]
        for number, member in enumerate(members):
            name = "learn" if number < 200 else "check"
            folders[name].mkdir(exist_ok=True)
            image = Image.open(pack.extractfile(member)).convert("RGB")  # type: ignore[arg-type]
            paths = [
                (*branch[label].split("/"), label) if label in branch else (label,) for label in shown[member.name]
            ]
            file = folders[name] / f"{Path(member.name).stem}.jpg"
            embedded = name == "learn" and number % 2
            image.save(file, quality=95, **({"xmp": digikam(paths, 0)} if embedded else {}))
            if name == "learn" and not number % 2:
                file.with_name(f"{file.name}.xmp").write_bytes([lightroom, immich][number // 2 % 2](paths, 0))
            tables[name].append(f"{name}/{file.name},{';'.join('/'.join(path) for path in paths)}")
    for name, rows in tables.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    assert cli("learn", "tags.fewtag", folders["learn"], "--from-tags").code == 0
    assert cli("learn", "table.fewtag", "learn.csv").code == 0
    found = {name: json.loads(cli("check", f"{name}.fewtag", "check.csv", "--json").out) for name in ("tags", "table")}
    assert found["tags"]["pictures"] == 200
    assert found["tags"] == found["table"]
    assert found["tags"]["macro_average_precision"] > 0.8
