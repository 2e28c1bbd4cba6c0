"""The main job on an album of birds: learn eleven labels from one or two photographs each, tag the rest, show why.

Run it with `make demo`. It prints each picture's tags beside the truth and writes one page, demo/index.html, with
heat-maps of a picture of each label: `fewtag explain` and the studio make one of any. None of the labels is one of
COCO's, which the model was fitted on: those know a bird, and nothing more of it.
"""

import argparse
import csv
import html
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fewtag import Tagged, Tagger
from fewtag.files import write_atomically
from fewtag.tagger.explain import Heat, overlay
from fewtag.tagging.page import embed_image

ALBUM = Path(__file__).parent / "album"


@dataclass(frozen=True)
class Entry:
    """One picture of the album, and what it shows."""

    path: Path
    labels: list[str]
    role: str


@dataclass
class Score:
    """Tags, counted against the truth."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def count(self, entry: Entry, tags: Sequence[str]) -> None:
        self.right += len(set(tags) & set(entry.labels))
        self.wrong += len(set(tags) - set(entry.labels))
        self.missed += len(set(entry.labels) - set(tags))

    def __str__(self) -> str:
        f1 = 2 * self.right / (2 * self.right + self.wrong + self.missed)
        return f"{self.right} tags right, {self.wrong} wrong, {self.missed} missed (F1 {f1:.2f})"


def read_album() -> list[Entry]:
    with (ALBUM / "album.csv").open(newline="") as file:
        return [
            Entry(ALBUM / row["image"], [name for name in row["labels"].split(";") if name], row["role"])
            for row in csv.DictReader(file)
        ]


def example_card(entry: Entry) -> str:
    names = html.escape(", ".join(entry.labels))
    return f'<figure><img alt="" src="{embed_image(Image.open(entry.path))}"><figcaption>{names}</figcaption></figure>'


def card(entry: Entry, row: Tagged, heats: dict[str, Heat]) -> str:
    """One picture of the page and its tags; with heat-maps a button for each, shown while that has pointer or focus."""
    picture = Image.open(entry.path).convert("RGB")
    chips = []
    for label in sorted({*row.tags, *entry.labels}, key=lambda name: -row.scores[name]):
        kind = "right" if label in row.tags and label in entry.labels else "wrong" if label in row.tags else "missed"
        name, chance = html.escape(label), f"{row.scores[label]:.0%}"
        chip = f'<span class="tag" title="{kind}"><b>{name}</b> {chance}</span>'
        if label in heats:
            chip = (
                f'<button type="button" class="tag" title="{kind}"><b>{name}</b> {chance}</button>'
                f'<figure><img alt="where {name} is seen" src="{embed_image(overlay(picture, heats[label]))}">'
                f"<figcaption>{name}: probability {chance}</figcaption></figure>"
            )
        chips.append(f'<li class="{kind}">{chip}</li>')
    shown = f'<img alt="{entry.path.name}" src="{embed_image(picture)}">'
    return f"<article>{shown}<ul>{''.join(chips)}</ul></article>"


def main(folder: Path) -> None:
    entries = read_album()
    examples = [entry for entry in entries if entry.role == "example"]
    tests = [entry for entry in entries if entry.role == "test"]
    start = time.perf_counter()
    # complete: what an example does not name, it does not show
    tagger = Tagger().fit([entry.path for entry in examples], [entry.labels for entry in examples], complete=True)
    names = ", ".join(f"{label} ({count})" for label, count in tagger.counts_.items())
    print(f"Learnt from {len(examples)} pictures in {time.perf_counter() - start:.1f} s, label (examples): {names}\n")

    start = time.perf_counter()
    rows = list(tagger.tag([entry.path for entry in tests]))
    rate = len(rows) / (time.perf_counter() - start)
    table, score, seen = Table("picture", "tags", "truth"), Score(), set[str]()
    explained, others = list[str](), list[str]()
    for entry, row in track(list(zip(tests, rows, strict=True)), "heat-maps", transient=True):
        score.count(entry, row.tags)
        colours = {label: "green" if label in entry.labels else "red" for label in row.tags}
        shown = "  ".join(f"[{colour}]{label} {row.scores[label]:.2f}[/]" for label, colour in colours.items())
        table.add_row(entry.path.name, shown, ", ".join(entry.labels))
        if seen.issuperset(entry.labels):
            others.append(card(entry, row, {}))
        else:  # a heat-map takes as long as tagging 37 pictures: the first picture of each label has them
            heats, _ = tagger.explain_all(entry.path, sorted({*row.tags, *entry.labels}))
            explained.append(card(entry, row, heats))
            seen.update(entry.labels)
    Console().print(table)
    page = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8")).substitute(
        labels=len(tagger.classes_),
        facts=html.escape(f"{score}; {rate:.0f} pictures a second"),
        examples="\n".join(example_card(entry) for entry in examples),
        explained="\n".join(explained),
        others="\n".join(others),
    )
    write_atomically(folder / "index.html", page.encode())
    print(f"\n{score}; {rate:.0f} pictures a second\nThe page: {folder / 'index.html'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo"), help="where the page goes")
    main(parser.parse_args().folder)
