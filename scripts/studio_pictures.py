"""Screenshots of the studio, made by a browser that a script's hands drive: for docs/studio.md and the README.

    python scripts/studio_pictures.py docs/pictures                       # the demo's album
    python scripts/studio_pictures.py /tmp/look --pictures FOLDER --label dog --example 12.jpg

It starts the real command on a new project, teaches a label from one picture, answers pages of Review by the truth (of
the album's own table; else as the model has marked them), opens a picture with its heat-map and delivers a table.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ALBUM = Path(__file__).parents[1] / "examples" / "album"
LIMIT = 150_000
"""Bytes of a screenshot."""
FILM_LIMIT = 3_000_000
FILM_WIDTH = 960


@dataclass
class Film:
    """Frames and how long each is seen; nothing is recorded where it is off."""

    page: Page
    on: bool
    frames: list[tuple[Image.Image, int]] = field(default_factory=list)

    def take(self, milliseconds: int) -> None:
        if self.on:
            self.frames.append((Image.open(BytesIO(self.page.screenshot())).convert("RGB"), milliseconds))

    def save(self, path: Path) -> None:
        """As an animated WebP, a little worse in quality until it is small enough."""
        frames = [shrink(frame, FILM_WIDTH) for frame, _ in self.frames]
        times = [time for _, time in self.frames]
        for quality in range(80, 20, -10):
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
def running_studio(pictures: Path, folder: Path) -> Iterator[str]:
    """The address that the command prints, with its token."""
    command = [sys.executable, "-m", "fewtag", "studio", folder / "album", pictures, "--no-browser", "--json", "--port", "0"]
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

    def picture(self, name: str) -> None:
        save_picture(self.page, self.out / f"studio-{name}{self.suffix}.webp")

    def settle(self) -> None:
        self.page.wait_for_load_state("networkidle") if not self.film.on else None
        self.page.wait_for_function("() => [...document.images].every((image) => image.complete)")
        self.page.wait_for_timeout(250)

    def library(self, url: str) -> None:
        self.page.goto(url)
        expect(self.page.get_by_role("heading", name="All pictures")).to_be_visible()
        self.page.wait_for_function("() => !document.querySelector('.indexing')", timeout=600_000)
        self.settle()
        self.film.take(1800)

    def teach(self, label: str, examples: list[str]) -> None:
        for example in examples:
            self.page.locator(f"button.picture[aria-label^='{example}']").first.click()
            self.film.take(700)
        self.settle()
        if label == "bird":
            self.picture("library")
        self.page.keyboard.press("n")
        for end in range(1, len(label) + 1):
            self.page.keyboard.press(label[end - 1])
            if end in (1, len(label)):
                self.film.take(500)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("button", name="Answer the page")).to_be_visible()
        self.settle()
        self.film.take(1800)

    def answer_page(self, label: str, shoot: str = "") -> None:
        for cell in self.page.locator("button.picture").all() if self.truth else []:
            name = (cell.get_attribute("aria-label") or "").split(":")[0]
            if (cell.get_attribute("aria-pressed") == "true") != (label in self.truth.get(name, ())):
                cell.click()
                self.film.take(350)
        self.settle()
        if shoot:
            self.picture(shoot)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("status").filter(has_text="Answered")).to_be_visible()
        self.settle()
        self.film.take(1500)

    def open_picture(self, name: str, label: str) -> None:
        self.page.goto(f"{self.page.url.split('#')[0]}#/")
        self.settle()
        self.page.locator(f"button.picture[aria-label^='{name}']").first.dblclick()
        row = self.page.locator(".belief", has=self.page.get_by_text(label, exact=True))
        expect(row).to_be_visible()
        self.settle()
        self.film.take(1200)
        row.hover()
        self.page.wait_for_function("() => document.querySelector('.heat')?.naturalWidth > 0")
        self.settle()
        self.film.take(2200)
        self.picture("picture")

    def deliver(self) -> None:
        self.page.mouse.move(5, 5)
        self.page.keyboard.press("d")
        expect(self.page.get_by_role("dialog").get_by_role("table")).to_be_visible()
        self.settle()
        self.film.take(1600)
        self.picture("deliver")
        self.page.get_by_role("dialog").get_by_role("button", name="Deliver").click()
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
    parser.add_argument("--label", default="bird")
    parser.add_argument("--example", default="003.jpg", help="the picture to teach it from")
    parser.add_argument("--show", default="020.jpg", help="the picture to open")
    parser.add_argument("--pages", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    looks = (("", 1280, 800, "light"), ("-dark", 1280, 800, "dark"), ("-phone", 390, 844, "light"))
    with sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=browser_path, args=arguments)
        for suffix, width, height, scheme in looks:
            with tempfile.TemporaryDirectory() as folder, running_studio(options.pictures, Path(folder)) as url:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                film = Film(page, on=not suffix)
                hands = Hands(page, film, options.out, suffix, read_truth(options.pictures))
                hands.library(url)
                hands.teach(options.label, [options.example])
                for number in range(options.pages):
                    hands.answer_page(options.label, shoot="review" if number == options.pages - 1 else "")
                hands.open_picture(options.show, options.label)
                hands.deliver()
                if film.on:
                    film.save(options.out / "studio.webp")
                page.close()


if __name__ == "__main__":
    main()
