"""What is written to a table is what is read from it, whatever the names."""

import csv
import io
import json
import tempfile
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.tagger.stream import Tagged
from fewtag.tagging.tables import failures_csv, write_table

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
labels = st.lists(texts.map(lambda text: text.replace(";", ",")), min_size=1, max_size=3, unique=True)
names = st.lists(texts, max_size=3, unique=True)


def same_path(cell: str, image: str) -> bool:
    """A name that a spreadsheet would run, or trim, gets a "./" before it, which changes no path."""
    return cell == image or (cell == f"./{image}" and image[0] in " =+-@\t\r")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(names, labels.filter(lambda found: not {"image", "tags"} & set(found)), st.integers(0, 10**6))
def test_names_survive_every_format(images: list[str], known: list[str], millionths: int) -> None:
    scores = dict.fromkeys(known, millionths / 10**6)
    rows = [Tagged(image, tags=tuple(known), scores=scores) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        paths = {ending: Path(folder, f"tags{ending}") for ending in (".csv", ".jsonl", ".parquet")}
        for path in paths.values():
            write_table(path, iter(rows), known)
        with paths[".csv"].open(encoding="utf-8", newline="") as file:
            header, *cells = csv.reader(file)
        lines = paths[".jsonl"].read_text(encoding="utf-8").splitlines()
        table = pyarrow.parquet.read_table(paths[".parquet"]).to_pylist()
    expected = [{"image": image, "tags": known, "scores": scores} for image in images]
    assert [json.loads(line) for line in lines] == expected
    assert table == expected
    assert header[:2] == ["image", "tags"]
    assert [name.removeprefix(" ") for name in header[2:]] == [name.removeprefix(" ") for name in known]
    for (image, tags, *values), name in zip(cells, images, strict=True):
        assert same_path(image, name)
        assert tags.removeprefix(" ").split(";") == [known[0].removeprefix(" "), *known[1:]]
        assert {float(cell) for cell in values} == {millionths / 10**6}
    assert not [cell for row in [header, *cells] for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


@settings(max_examples=20, deadline=None)
@given(names, texts)
def test_failures_survive(images: list[str], reason: str) -> None:
    content = failures_csv([Tagged(image, failure=reason) for image in images]).decode()
    header, *rows = csv.reader(io.StringIO(content, newline=""))
    assert header == ["image", "reason"]
    assert [why for _, why in rows] == [reason] * len(images)
    assert all(same_path(cell, image) for (cell, _), image in zip(rows, images, strict=True))
