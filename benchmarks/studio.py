"""The studio's latencies and memory, on made-up features of ten and of a hundred thousand pictures.

    python benchmarks/studio.py --out results/studio.json [--quick]

A label is taught, then answered page by page; 95th percentiles, of the clock and of the processor. Each size is a
process of its own, so that memory is its own. Pictures are topics on a few places over noise, by seed; past what memory
holds, places come from a pool in memory, in place of the feature cache.

Where there is a Chromium, the command is started on a project of ten thousand known pictures and three labels
too, which a studio showed and closed before: by the round that is not counted. What is counted begins with the process
and ends when its page, in an empty tab of a browser that is open already, has painted pictures and answered a key; the
tab is sent there when the address is told, which is when the command itself would open it. Beside it stand the parts of
that, the time until the labels' numbers are there too, and the same with a browser that starts only then.
"""

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from drawn import write_jpegs
from measuring import Figure, answer, run
from numpy.typing import NDArray
from PIL import Image

from fewtag.core.posterior import unit
from fewtag.files import write_atomically
from fewtag.studio.project import FileRow, PictureRow
from fewtag.studio.studio import Studio
from fewtag.studio.values import PAGE, Answer, ReviewPage

SIZES = (10_000, 100_000)
TOPICS, MOST = 40, 1_500
PAGES, SCREEN = 12, 24
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LABELS = ("heron", "boat", "bridge", "dog", "cat", "bicycle", "pizza", "umbrella")


class Pool:
    """Places of made-up pictures: each shows one to three topics, on a few places each."""

    def __init__(self, count: int, places: int, size: int, topics: NDArray[np.float32]) -> None:
        generator, self.count = np.random.default_rng(0), min(count, MOST)
        self.shown = np.zeros((self.count, TOPICS), np.bool_)
        noise = generator.standard_normal((self.count, places, size), dtype=np.float32) / np.sqrt(size)
        for row in range(self.count):
            for topic in generator.choice(TOPICS, generator.integers(1, 4), replace=False):
                self.shown[row, topic] = True
                spot = generator.choice(places, generator.integers(2, places // 4), replace=False)
                noise[row, spot] += topics[topic] * generator.uniform(0.7, 1.5)
        self.places = noise.astype(np.float16)
        self.whole = unit(noise.mean(axis=1))


def fill(studio: Studio, count: int) -> Pool:
    """As many pictures as the library shall have."""
    model = studio.model
    words = [model.word_map.prototypes(model.words.vector(label)[None])[0] for label in LABELS]
    extra = unit(np.random.default_rng(1).standard_normal((TOPICS - len(LABELS), model.space.size), dtype=np.float32))
    pool = Pool(count, model.places, model.space.size, np.concatenate([np.stack(words), extra]).astype(np.float32))
    studio.indexer.fetch = lambda rows: [pool.places[row % pool.count] for row in rows]  # type: ignore[method-assign]
    generator = np.random.default_rng(2)
    for first in range(0, count, pool.count):
        rows = range(first, min(first + pool.count, count))
        pictures = [PictureRow(f"{row:032x}", 640, 480, None, 100_000) for row in rows]
        files = [
            FileRow(f"/made-up/{row:06d}.jpg", "/made-up", f"{row // 1000}/{row:06d}.jpg", f"{row:032x}", 1, 1)
            for row in rows
        ]
        some = len(rows)
        jitter = generator.standard_normal((some, model.space.size), dtype=np.float32) / np.sqrt(model.space.size)
        studio.library.add(pictures, unit(pool.whole[:some] + 0.3 * jitter), pool.places[:some])
        studio.library.set_files(files)
    return pool


def noise_jpeg() -> bytes:
    """A picture to open, as the others are made up."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (480, 640, 3), dtype=np.uint8)).save(content, "JPEG")
    return content.getvalue()


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, float, Any]:
    since, used = time.perf_counter(), clock()
    found = work()
    return time.perf_counter() - since, clock() - used, found


def measure(count: int, pages: int) -> dict[str, Any]:
    """Of one size, in this process."""
    with tempfile.TemporaryDirectory() as place:
        studio = Studio.open(Path(place) / "project", cache=Path(place) / "cache", index=False)
        studio.model.encode(np.zeros((1, 3, studio.model.size, studio.model.size), np.uint8))  # as its server begins
        pool, photograph = fill(studio, count), noise_jpeg()
        studio.indexer.read = lambda *_: photograph  # type: ignore[method-assign]
        clock = time.process_time  # of all threads, those behind the person's back too
        found: dict[str, list[tuple[float, float]]] = {}

        def note(what: str, work: Callable[[], Any]) -> Any:
            seconds, processor, result = timed(work, clock)
            found.setdefault(what, []).append((seconds, processor))
            return result

        note("library shown", studio.search)
        first = int(np.flatnonzero(pool.shown[:, 0])[0])
        note(
            "first label to ranked grid", lambda: (studio.teach(LABELS[0], [f"{first:032x}"]), studio.search(LABELS[0]))
        )
        for label in LABELS[1:]:
            studio.define(label)
        studio.labels()

        def answers(page: ReviewPage) -> list[Answer]:
            """The truth."""
            shown = [bool(pool.shown[int(cell.digest, 16) % pool.count, 0]) for cell in page.pictures]
            return [
                Answer(str(uuid.uuid4()), cell.digest, LABELS[0], "yes" if yes else "no", PAGE)
                for cell, yes in zip(page.pictures, shown, strict=True)
            ]

        while len((page := studio.review(LABELS[0], size=SCREEN)).pictures) == 1:  # the first ones come singly
            note("answer safe on disk", lambda page=page: studio.answer(answers(page)))  # type: ignore[misc]
        for number in range(pages):
            page = studio.review(LABELS[0], size=SCREEN)
            words = answers(page)
            for each in words[:2]:
                note("answer safe on disk", lambda each=each: studio.answer([each]))  # type: ignore[misc]
            note("page of answers safe on disk", lambda words=words: studio.answer(words[2:]))  # type: ignore[misc]
            note("page ranked again", lambda: studio.review(LABELS[0], size=SCREEN))
            note("library searched by label", lambda: studio.search(LABELS[0]))
            note("library searched by word", lambda number=number: studio.search(("red", "car", "tree")[number % 3]))  # type: ignore[misc]
            seen = page.pictures[0].digest
            note("first glance of a heat-map", lambda seen=seen: studio.heat(seen, LABELS[0], at_once=True))  # type: ignore[misc]
            note("heat-map of a picture just opened", lambda seen=seen: studio.heat(seen, LABELS[0]))  # type: ignore[misc]
            note("heat-map of another label", lambda seen=seen: studio.heat(seen, LABELS[1]))  # type: ignore[misc]
        note("undo", studio.undo)
        facts = {
            what: {
                "p95_ms": round(1000 * float(np.quantile([each[0] for each in times], 0.95)), 1),
                "p95_processor_ms": round(1000 * float(np.quantile([each[1] for each in times], 0.95)), 1),
                "median_ms": round(1000 * float(np.median([each[0] for each in times])), 1),
            }
            for what, times in found.items()
        }
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pool_size = pool.places.nbytes / 2**20
        studio.close()
    return {"pictures": count, "latencies": facts, "peak_mb": round(peak), "pool_mb": round(pool_size)}


def make_project(folder: Path, count: int) -> Sequence[str]:
    """A project whose pictures are all known, with the features of the pool in place of their own; how to open it."""
    album = write_jpegs(folder / "album", count, (320, 240))
    command = [str(folder / "project"), str(album), "--cache", str(folder / "cache")]
    with Studio.open(command[0], [album], cache=folder / "cache", index=False) as studio:
        model = studio.model
        topics = unit(np.random.default_rng(1).standard_normal((TOPICS, model.space.size), dtype=np.float32))
        pool = Pool(count, model.places, model.space.size, topics)
        # the network would take minutes
        fake = SimpleNamespace(size=model.size, encode=lambda squares: pool.places[: len(squares)])
        studio.indexer.model = fake  # type: ignore[assignment]
        studio.indexer.scan()
        digests = [cell.digest for cell in studio.search(limit=30).pictures]
        for number, label in enumerate(LABELS[:3]):
            studio.teach(label, digests[10 * number :][:2])
    return command


def usable(command: Sequence[str], environment: Mapping[str, str], open_page: Callable[[], Any]) -> Iterator[float]:
    """Seconds from the command's start until its address is told, its page shows pictures, takes a key, has labels."""
    since = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield time.perf_counter() - since
        page = open_page()
        page.goto(f"{told['url']}/#token={told['token']}", wait_until="commit")
        page.wait_for_function("() => [...document.querySelectorAll('.picture img')].some((i) => i.naturalWidth)")
        yield time.perf_counter() - since
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        yield time.perf_counter() - since
        page.wait_for_selector("nav.labels .pill", state="attached")
        yield time.perf_counter() - since
        page.close()
    finally:
        process.terminate()
        process.wait()


def start_figure(count: int, rounds: int, environment: Mapping[str, str], promise: str) -> Figure:
    """How soon the command's page is usable."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as starter:
        command = [sys.executable, "-m", "fewtag", "studio", *make_project(Path(place), count)]
        command += ["--no-browser", "--json", "--port", "0"]

        def launch() -> Any:  # as root it has no sandbox
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            return starter.chromium.launch(executable_path=CHROMIUM, args=arguments)

        browser = launch()
        tabs = iter([browser.new_page() for _ in range(rounds + 1)])
        every = [list(usable(command, environment, lambda: next(tabs))) for _ in range(rounds + 1)]
        browser.close()
        cold = [list(usable(command, environment, lambda: launch().new_page())) for _ in range(min(rounds, 3))]
    steps = 1000 * np.array(every[1:])  # one to warm up
    facts = {
        f"{what}_median_ms": round(float(median), 1)
        for what, median in zip(("address", "pictures", "key", "labels"), np.median(steps, axis=0), strict=True)
    }
    facts["key_with_browser_start_median_ms"] = round(1000 * float(np.median([each[2] for each in cold])), 1)
    late = round(float(np.quantile(steps[:, 2], 0.95)), 1)
    return Figure(f"studio, {count:,} pictures: page usable after start", late, "ms, 95th percentile", promise, facts)


def figures(*, quick: bool = False) -> Iterator[Figure]:
    """Both sizes, with what was promised of each; the page's start where there is a browser."""
    promises = {"answer safe on disk": 50, "page of answers safe on disk": 50}
    promises |= {"first glance of a heat-map": 150, "heat-map of another label": 150}
    # one thread for each product of matrices, as the command itself has it: threads of ours share the pictures
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    if CHROMIUM:
        yield start_figure(*((60, 1) if quick else (SIZES[0], PAGES)), environment, "" if quick else "≤ 1000")
    for count in (60,) if quick else SIZES:
        ranked = 200 if count <= SIZES[0] else 1000
        command = [sys.executable, __file__, "--one", str(count), *(["--quick"] if quick else [])]
        found = answer(run(command, environment))
        for what, facts in found["latencies"].items():
            limit = promises.get(what, ranked if "ranked again" in what else 1000 if "first" in what else None)
            promise = "" if quick or limit is None else f"≤ {limit}"
            yield Figure(f"studio, {count:,} pictures: {what}", facts["p95_ms"], "ms, 95th percentile", promise, facts)
        memory = found["peak_mb"] - found["pool_mb"]
        promise = "≤ 1000" if count == SIZES[0] else ""
        yield Figure(f"studio, {count:,} pictures: memory", memory, "MB", promise, {"peak": found["peak_mb"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="sixty pictures: that it works, not how fast it is")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, 1 if arguments.quick else PAGES)))
        return
    found = []
    if CHROMIUM is None:
        print("there is no chromium: how soon the page is usable is not measured; apt-get install chromium", flush=True)
    for figure in figures(quick=arguments.quick):
        found.append(figure.as_dict())
        kept = {True: "kept", False: "BROKEN", None: ""}[figure.kept]
        print(f"{figure.what}: {figure.value} {figure.unit} {figure.promise} {kept}", flush=True)
    if arguments.out:
        write_atomically(arguments.out, json.dumps(found, indent=1, ensure_ascii=False).encode())


if __name__ == "__main__":
    main()
