"""Packs of the pictures that the given packs lack."""

import gzip
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import more_pictures
import pytest
from more_pictures import Line, balanced, base_alone, crowded, opened
from PIL import Image

from fewtag.research.data.splits import Split

LABELS = {
    "1": ("car",),
    "2": ("car", "dog"),
    "3": ("car", "person"),
    "4": ("dog",),
    "5": ("bird",),
    "6": ("bird", "dog"),
}


def lines() -> list[Line]:
    return [Line(image, "train2014", labels) for image, labels in LABELS.items()]


def test_crowded_pictures_show_validation_and_base_labels_and_no_novel_one() -> None:
    some = [
        *lines(),
        Line("7", "train2014", ("car", "cow", "person")),
        Line("8", "train2014", ("bird", "car", "person")),
    ]
    assert [(line.image, line.labels) for line in crowded(some, Split.load("coco"))] == [
        ("3", ("person",)),
        ("7", ("cow", "person")),
    ]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "repo" / "train2017"
    folder.mkdir(parents=True)
    for number, image in enumerate(LABELS):
        Image.new("RGB", (30 + number, 20), (40 * number, 0, 0)).save(folder / f"{image}.jpg")
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_pictures_of_base_labels_alone_are_wanted_unless_a_pack_has_them() -> None:
    assert [line.image for line in base_alone(lines(), ("car", "dog"), {"1"})] == ["2", "4"]


def test_the_label_shown_least_chooses_next() -> None:
    counts = Counter({"car": 9, "dog": 1, "person": 5, "bird": 5})
    assert "dog" in balanced(lines(), counts, 1)[0].labels
    assert len(balanced(lines(), counts, 3)) == 3
    assert [line.image for line in balanced(lines(), counts, 99)] == list(LABELS)


def test_the_same_pictures_are_drawn_in_whatever_order_they_come() -> None:
    assert balanced(lines(), Counter(), 3) == balanced(reversed(lines()), Counter(), 3)


def test_a_git_directory_reads_as_the_folder_it_holds(pictures: Path) -> None:
    repo = pictures.parent
    git(repo, "init")
    git(repo, "add", ".")
    git(repo, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", "pictures")
    with opened(pictures) as (there, read), opened(repo / ".git") as (stored, read_stored):
        assert there == stored == set(LABELS)
        assert [read_stored(image) for image in LABELS] == [read(image) for image in LABELS]


def test_packs_and_their_table_complete_the_given_ones(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, out = tmp_path / "packs", tmp_path / "out"
    packs.mkdir()
    given = "pack\timage\tsplit2014\tlabels\ntrain\t1\ttrain2014\tcar\nvocbase\t4\ttrain2014\tdog\n"
    (packs / "labels.tsv").write_text(given)
    rows = [f"{line.image}\t{line.split}\t{','.join(line.labels)}" for line in lines()]
    with gzip.open(tmp_path / "all.tsv.gz", "wt") as file:
        file.write("\n".join(["image_id\tsplit2014\tlabels", *rows, "7\tval2014\tcar"]) + "\n")
    monkeypatch.setattr(more_pictures, "LARGEST", 1500)  # one picture a tar
    command = ["more_pictures.py", pictures, "--packs", packs, "--labels", tmp_path / "all.tsv.gz", "--out", out]
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--every", "2"])
    more_pictures.main()
    table = (out / "labels.tsv").read_text()
    assert table.startswith(given)
    found: dict[str, list[str]] = {"more": [], "crowded": [], "every": []}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                found[path.name.split("-")[0]].append(member.name.removesuffix(".webp"))
                file = archive.extractfile(member)
                assert file is not None
                assert Image.open(file).size == (224, 224)
    assert found["more"] == ["2"]  # 4 is in a pack, 3, 5 and 6 show other labels, 7 is not among the pictures
    assert found["crowded"] == ["3"]
    assert len(found["every"]) == 2
    listed = [line.split("	")[1] for line in table.splitlines()[3:]]
    assert sorted(listed) == sorted(["4", *(image for pack in found.values() for image in pack)])
