"""The main job on a small album: learn eight labels from one or two pictures each, tag the rest, show why.

Run it with `make demo`. It prints each picture's tags beside the truth and writes one page, demo/index.html. Six of the
labels are unknown to the data that the model was fitted on (COCO has a bird and a sports ball).
"""

import base64
import csv
import html
import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from fewtag import Tagger
from fewtag.files import write_atomically
from fewtag.tagger.explain import overlay

ALBUM = Path(__file__).parent / "album"
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Entry:
    """One picture of the album: what it shows, and where."""

    path: Path
    boxes: dict[str, Box]
    role: str


def read_album() -> list[Entry]:
    with (ALBUM / "album.csv").open(newline="") as file:
        entries = []
        for row in csv.DictReader(file):
            corners = [tuple(int(number) for number in box.split()) for box in row["boxes"].split(";")]
            boxes = dict(zip(row["labels"].split(";"), corners, strict=True))
            entries.append(Entry(ALBUM / row["image"], boxes, row["role"]))  # type: ignore[arg-type]
        return entries


def peak_inside(heat: np.ndarray, box: Box) -> bool:
    """Whether the hottest place of a heat-map lies on the thing."""
    y, x = np.unravel_index(heat.argmax(), heat.shape)
    return bool(box[0] <= x < box[2] and box[1] <= y < box[3])


def embed(picture: Image.Image) -> str:
    """A picture as part of the page itself."""
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def card(entry: Entry, probabilities: dict[str, float], tags: tuple[str, ...], heats: dict[str, np.ndarray]) -> str:
    """One picture of the page: its tags, and for each a heat-map that shows while the pointer rests on it."""
    picture = Image.open(entry.path).convert("RGB")
    chips, layers = [], []
    for number, label in enumerate(sorted({*tags, *entry.boxes}, key=lambda name: -probabilities[name])):
        kind = "right" if label in tags and label in entry.boxes else "wrong" if label in tags else "missed"
        name = f"<b>{html.escape(label)}</b> {probabilities[label]:.0%}"
        chips.append(f'<li class="{kind}" data-layer="{number}" tabindex="0">{name}</li>')
        layers.append(f'<img class="heat" alt="{html.escape(label)}" src="{embed(overlay(picture, heats[label]))}">')
    return (
        f'<article><figure><img alt="{entry.path.name}" src="{embed(picture)}">{"".join(layers)}</figure>'
        f"<ul>{''.join(chips)}</ul></article>"
    )


def main(folder: Path) -> None:
    entries = read_album()
    examples = [entry for entry in entries if entry.role == "example"]
    tests = [entry for entry in entries if entry.role == "test"]
    tagger = Tagger()
    start = time.perf_counter()
    tagger.fit([entry.path for entry in examples], [list(entry.boxes) for entry in examples])
    learnt = time.perf_counter() - start
    names = ", ".join(f"{label} ({count})" for label, count in tagger.counts_.items())
    print(f"Learnt from {len(examples)} pictures in {learnt:.1f} s, label (examples): {names}\n")

    start = time.perf_counter()
    scores = tagger.predict_proba([entry.path for entry in tests])
    rate = len(tests) / (time.perf_counter() - start)
    tags = tagger.predict([entry.path for entry in tests])
    table, cards, peaks = Table("picture", "tags", "truth"), [], []
    right = wrong = missed = 0
    for entry, row, given in zip(tests, scores, tags, strict=True):
        probabilities = dict(zip(tagger.classes_, (float(value) for value in row), strict=True))
        heats = {label: tagger.explain(entry.path, label) for label in {*given, *entry.boxes}}
        peaks += [peak_inside(heats[label], box) for label, box in entry.boxes.items()]
        right += len(set(given) & set(entry.boxes))
        wrong += len(set(given) - set(entry.boxes))
        missed += len(set(entry.boxes) - set(given))
        shown = "  ".join(
            f"[{'green' if label in entry.boxes else 'red'}]{label} {probabilities[label]:.2f}[/]" for label in given
        )
        table.add_row(entry.path.name, shown, ", ".join(entry.boxes))
        cards.append(card(entry, probabilities, given, heats))
    Console().print(table)
    facts = (
        f"{right} tags right, {wrong} wrong, {missed} missed (F1 {2 * right / (2 * right + wrong + missed):.2f}); "
        f"the heat-map's peak lies on the thing in {np.mean(peaks):.0%} of {len(peaks)} cases; {rate:.0f} pictures/s"
    )
    shots = [f'<img title="{"; ".join(entry.boxes)}" src="{embed(Image.open(entry.path))}">' for entry in examples]
    page = Template((Path(__file__).parent / "page.html").read_text()).substitute(
        facts=html.escape(facts), examples="".join(shots), cards="".join(cards), labels=len(tagger.classes_)
    )
    write_atomically(folder / "index.html", page.encode())
    print(f"\n{facts}\nThe page: {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
