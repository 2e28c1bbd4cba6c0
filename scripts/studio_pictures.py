"""Screenshots of the studio, made by a browser that a script's hands drive: for docs/studio.md and the README.

    python scripts/studio_pictures.py docs/pictures --folder /home/anna   # the demo's album, as Anna's photos
    python scripts/studio_pictures.py look --pictures FOLDER --teach dog=12.jpg --show 40.jpg

It starts the real command on a new project, teaches labels from one picture each, answers pages of Review by the truth
(the table album.csv of the folder, with image and labels; else as the model has marked them), opens a picture with its
heat-map and delivers a table. The last label is the one that is reviewed and filmed.
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page, expect, sync_playwright

ALBUM = Path(__file__).parents[1] / "examples" / "album"
# of what a screen shows without scrolling
TAUGHT = [
    "owl=barred-owl.jpg",
    "hummingbird=broad-tailed-hummingbird.jpg",
    "goose=cackling-goose.jpg",
    "woodpecker=black-backed-woodpecker.jpg",
    "duck=canvasback.jpg",
]
DOCUMENTED = ("library", "review", "picture", "deliver", "review-dark", "review-phone")
LIMIT = 150_000
"""Bytes of a screenshot."""
FILM_LIMIT = 3_000_000
FILM_WIDTH = 960
POINTER = ((0, 0), (0, 19), (5, 15), (8, 22), (11, 21), (8, 14), (14, 14))


@dataclass
class Film:
    """Frames and how long each is seen; nothing is recorded where it is off."""

    page: Page
    on: bool
    frames: list[tuple[Image.Image, int]] = field(default_factory=list)
    pointer: tuple[float, float] = (640, 420)

    def take(self, milliseconds: int) -> None:
        if not self.on:
            return
        frame = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        left, top = self.pointer
        shape = [(left + x, top + y) for x, y in POINTER]
        ImageDraw.Draw(frame).polygon(shape, fill="black", outline="white", width=1)
        self.frames.append((frame, milliseconds))

    def point(self, element: Locator) -> None:
        """A browser's screenshot has no pointer."""
        box = element.bounding_box()
        assert box is not None
        self.pointer = box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.45

    def save(self, path: Path) -> None:
        """As an animated WebP, a little worse in quality until it is small enough."""
        frames = [shrink(frame, FILM_WIDTH) for frame, _ in self.frames]
        times = [time for _, time in self.frames]
        for quality in range(90, 20, -10):
            frames[0].save(
                path, "WEBP", save_all=True, append_images=frames[1:], duration=times, loop=0, quality=quality, method=6
            )
            if path.stat().st_size <= FILM_LIMIT:
                print(f"{path}: {sum(times) / 1000:.0f} s, {path.stat().st_size:,} bytes")
                return
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {FILM_LIMIT:,}; take fewer frames")


def shrink(image: Image.Image, width: int) -> Image.Image:
    return image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)


def save_picture(page: Page, path: Path) -> None:
    """As WebP, a little worse in quality until it is small enough."""
    image = Image.open(BytesIO(page.screenshot())).convert("RGB")
    for quality in range(86, 20, -8):
        image.save(path, "WEBP", quality=quality, method=6)
        if path.stat().st_size <= LIMIT:
            break
    print(f"{path}: {path.stat().st_size:,} bytes")


@contextmanager
def running_studio(pictures: Path, folder: Path, project: str) -> Iterator[str]:
    """The address that the command prints, with its token; of a copy, as the page tells where pictures are."""
    copy = folder / "photos"
    if not copy.exists():
        shutil.copytree(pictures, copy)
    command = [
        sys.executable,
        "-m",
        "fewtag",
        "studio",
        folder / project,
        copy,
        "--no-browser",
        "--json",
        "--port",
        "0",
    ]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield f"{told['url']}/#token={told['token']}"
    finally:
        process.terminate()
        process.wait()


@dataclass
class Hands:
    """A person with a label to teach, who knows what the pictures show."""

    page: Page
    film: Film
    out: Path
    suffix: str
    truth: dict[str, set[str]]
    """Labels by the picture's name; empty where nobody knows."""
    all: bool
    """Each screen in each look, not only those of the documentation."""

    def picture(self, name: str) -> None:
        if self.all or name + self.suffix in DOCUMENTED:
            save_picture(self.page, self.out / f"studio-{name}{self.suffix}.webp")

    def cell(self, name: str) -> Locator:
        found = self.page.locator(f"button.picture[aria-label^='{name}']").first
        self.film.point(found)
        return found

    def settle(self) -> None:
        self.page.wait_for_function("() => [...document.images].every((image) => image.complete)")
        self.page.wait_for_timeout(250)

    def library(self, url: str) -> None:
        self.page.goto(url)
        expect(self.page.get_by_role("heading", name="All pictures")).to_be_visible()
        self.page.wait_for_function("() => !document.querySelector('.indexing')", timeout=600_000)
        self.settle()
        self.film.take(1800)

    def teach(self, label: str, example: str, shoot: bool) -> None:
        self.page.goto(f"{self.page.url.split('#')[0]}#/")
        expect(self.page.locator("button.picture").first).to_be_visible()
        self.settle()
        self.film.take(1500)
        self.cell(example).click()
        self.settle()
        self.film.take(1500)
        if shoot:
            self.picture("library")
        self.page.keyboard.press("n")
        for end, letter in enumerate(label, 1):
            self.page.keyboard.type(letter)
            if end in (1, len(label)):
                self.film.take(400 if end == 1 else 1200)
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".bar.fixed")).to_be_visible()
        self.settle()
        self.film.take(2500)

    def answer_page(self, label: str, shoot: str = "") -> None:
        cells = self.page.locator("button.picture").all()
        single = len(cells) == 1
        for cell in cells if self.truth and not single else []:
            name = (cell.get_attribute("aria-label") or "").split(":")[0]
            if (cell.get_attribute("aria-pressed") == "true") != (label in self.truth.get(name, ())):
                self.film.point(cell)
                cell.click()
                self.film.take(700)
        self.settle()
        if shoot:
            self.picture(shoot)
        key = self.answer_of_one(cells[0], label) if single else "Enter"
        pressed = re.compile("No" if key == "x" else "Yes|Answer")
        self.film.point(self.page.locator(".bar.fixed button", has_text=pressed))
        self.film.take(300 if single else 700)
        self.page.keyboard.press(key)
        expect(self.page.get_by_role("status").filter(has_text="Answered")).to_be_visible()
        self.settle()
        self.film.take(600 if single else 2200)

    def answer_of_one(self, cell: Locator, label: str) -> str:
        """The key for a question about one picture, which is not marked: by the truth, else by its probability."""
        name, _, percent = (cell.get_attribute("aria-label") or "").rpartition(", ")
        right = label in self.truth.get(name, ()) if self.truth else int(percent.split()[0]) >= 50
        return "a" if right else "x"

    def open_picture(self, name: str, label: str) -> None:
        self.page.goto(f"{self.page.url.split('#')[0]}#/")
        self.settle()
        self.cell(name).click()
        self.page.get_by_role("button", name="Open", exact=False).filter(has_text="Open").click()
        row = self.page.locator(".belief", has=self.page.get_by_text(label, exact=True))
        expect(row).to_be_visible()
        self.settle()
        self.film.take(1800)
        row.hover()
        self.film.point(row)
        expect(self.page.get_by_text(f"Where “{label}” is seen")).to_be_attached(timeout=60_000)  # after a first glance
        self.settle()
        self.film.take(2800)
        self.picture("picture")

    def deliver(self) -> None:
        self.page.mouse.move(5, 5)
        self.page.keyboard.press("d")
        expect(self.page.get_by_role("dialog").get_by_role("table")).to_be_visible()
        self.settle()
        self.picture("deliver")
        button = self.page.get_by_role("dialog").get_by_role("button", name="Deliver")
        self.film.point(button)
        self.film.take(2200)
        button.click()
        expect(self.page.get_by_role("link", name="Download")).to_be_visible()
        self.film.take(2500)
        self.page.keyboard.press("Escape")


def read_truth(folder: Path) -> dict[str, set[str]]:
    """Of the demo's album: what each picture shows."""
    if not (folder / "album.csv").is_file():
        return {}
    with (folder / "album.csv").open(newline="", encoding="utf-8") as file:
        return {row["image"]: set(row["labels"].split(";")) for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pictures", type=Path, default=ALBUM)
    parser.add_argument("--teach", nargs="+", default=TAUGHT, metavar="LABEL=PICTURE")
    parser.add_argument("--show", default="american-wigeon.jpg", help="the picture to open")
    parser.add_argument("--pages", type=int, default=10, help="of each label; the first eight have one picture each")
    parser.add_argument("--all", action="store_true", help="each screen in each look")
    parser.add_argument("--folder", type=Path, help="a new one, for the while: an open picture shows its path")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="birds-")) if options.folder is None else options.folder
    if options.folder is not None:
        folder.mkdir(parents=True)
    options.out.mkdir(parents=True, exist_ok=True)
    browser_path = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    looks: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
        ("", 1280, 800, "light"),
        ("-dark", 1280, 800, "dark"),
        ("-phone", 390, 844, "light"),
    )
    taught = [pair.split("=") for pair in options.teach]
    label = taught[-1][0]
    with sync_playwright() as starter, ExitStack() as at_the_end:
        at_the_end.callback(shutil.rmtree, folder)
        browser = starter.chromium.launch(executable_path=browser_path, args=arguments)
        for suffix, width, height, scheme in looks:
            with running_studio(options.pictures, folder, f"album{suffix}") as url:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                film = Film(page, on=False)
                hands = Hands(page, film, options.out, suffix, read_truth(options.pictures), options.all)
                hands.library(url)
                for name, example in taught:
                    film.on = not suffix and name == label
                    hands.teach(name, example, shoot=name == label)
                    for number in range(options.pages):
                        hands.answer_page(name, shoot="review" if name == label and number == options.pages - 1 else "")
                hands.open_picture(options.show, label)
                hands.deliver()
                if film.on:
                    film.save(options.out / "studio.webp")
                page.close()


if __name__ == "__main__":
    main()
