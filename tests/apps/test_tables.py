"""What is written to a table is what is read from it, whatever the names."""

import csv
import json
import tempfile
from pathlib import Path

import pyarrow.parquet
from fewtag.apps.tables import Tagged, write_failures, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
labels = st.lists(texts.map(lambda text: text.replace(";", ",")), min_size=1, max_size=3, unique=True)
names = st.lists(texts, max_size=3, unique=True)


@settings(max_examples=40, deadline=None)
@given(names, labels.filter(lambda found: not {"image", "tags"} & set(found)), st.integers(0, 10**6))
def test_names_survive_every_format(images: list[str], known: list[str], millionths: int) -> None:
    scores = dict.fromkeys(known, millionths / 10**6)
    rows = [Tagged(image, tags=known, scores=scores) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        paths = {ending: Path(folder, f"tags{ending}") for ending in (".csv", ".jsonl", ".parquet")}
        for path in paths.values():
            write_table(path, iter(rows), known)
        with paths[".csv"].open(encoding="utf-8", newline="") as file:
            header, *cells = csv.reader(file)
        lines = paths[".jsonl"].read_text(encoding="utf-8").splitlines()
        table = pyarrow.parquet.read_table(paths[".parquet"]).to_pylist(maps_as_pydicts="strict")
    expected = [{"image": image, "tags": known, "scores": scores} for image in images]
    assert [json.loads(line) for line in lines] == expected
    assert table == expected
    assert header == ["image", "tags", *known]
    assert [(image, tags.split(";")) for image, tags, *_ in cells] == [(image, known) for image in images]
    assert all(float(cell) == millionths / 10**6 for _, _, *values in cells for cell in values)


@settings(max_examples=20, deadline=None)
@given(names, texts)
def test_failures_survive(images: list[str], reason: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_failures(Path(folder, "failures.csv"), [Tagged(image, failure=reason) for image in images])
        with Path(folder, "failures.csv").open(encoding="utf-8", newline="") as file:
            assert list(csv.reader(file)) == [["image", "reason"], *([image, reason] for image in images)]
