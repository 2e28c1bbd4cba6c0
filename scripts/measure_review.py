"""Measures what the studio's own review teaches: a simulated person answers its pages, in its default order.

    python scripts/measure_review.py --data DIR --model coco52 --out results/review-coco52.json

The problems are those of `measure_sessions.py`: half of a phase's pictures can be asked about, the other half measures;
a label begins with one example. There each answer is learnt before the next question; here a page is. AP is the mean
over labels and seeds.
"""

import argparse
import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packs import Packs, add_arguments

from fewtag.cache import content_digest
from fewtag.core.metrics import average_precision
from fewtag.core.posterior import Classifiers, Places, unit
from fewtag.files import write_atomically
from fewtag.research.bench.recipe import SessionSettings
from fewtag.research.bench.results import commit
from fewtag.research.bench.sessions import Problem, problems
from fewtag.studio.project import FileRow, PictureRow, Project
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import cached_places, encode_stream, items_of

ANSWERS = (0, 8, 16, 32, 64)


def fill(studio: Studio, rows: Sequence[int], digests: Sequence[str], places: Places) -> None:
    """A library of these pictures, as if they had been indexed."""
    some = places[list(rows)]
    studio.library.add(
        [PictureRow(digests[row], 224, 224, None, 1) for row in rows], unit(some.mean(axis=1)), some.astype(np.float16)
    )
    studio.library.set_files([FileRow(f"/{row}", "/", f"{row:06d}", digests[row], 1, 1) for row in rows])


def session(
    problem: Problem, label: str, model: Model, digests: Sequence[str], places: Places, order: str, page: int
) -> Iterator[float]:
    """The average precision on the other half after each of ANSWERS."""
    row_of = {digest: row for row, digest in enumerate(digests)}
    held, said = ~problem.askable, 0
    with tempfile.TemporaryDirectory() as place:
        studio = Studio(Project(Path(place) / "project"), model, Path(place) / "cache")
        studio._stop.set()  # no bank on disk: thousands of projects are made here
        studio._begin(index=False)
        fill(studio, np.flatnonzero(problem.askable).tolist(), digests, places)
        studio.teach(label, [digests[row] for row in problem.first])
        for wanted in ANSWERS:
            while said < wanted:
                asked = studio.review(label, order, min(page, wanted - said)).pictures
                words = ["yes" if problem.shown[row_of[cell.digest]] else "no" for cell in asked]
                studio.answer(
                    [
                        Answer(str(uuid.uuid4()), cell.digest, label, word)
                        for cell, word in zip(asked, words, strict=True)
                    ]
                )
                said += len(asked)
            fitted = studio.tagger.bank_.classifier(studio.model, label)
            logits = Classifiers.of([fitted]).logits(places[held], studio.model.strengths)[:, 0]
            yield average_precision(logits, problem.shown[held])
        studio.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--model", default="coco52")
    parser.add_argument("--phase", default="mixed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--orders", nargs="+", default=["auto"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model, images = load_model(arguments.model), Packs(arguments.data, arguments.cache).images(arguments.phase)
    digests = [content_digest(picture.read()).hex() for picture in images.pictures]
    with cached_places(model, arguments.cache) as space:
        places = np.concatenate(list(encode_stream(model, items_of(images.pictures), space=space)))
    started = problems(images.targets, images.labels, SessionSettings(examples=1, seeds=arguments.seeds), 0)
    found: dict[str, Any] = {"commit": commit(), "model": model.name, "phase": arguments.phase}
    found |= {"examples": 1, "seeds": arguments.seeds, "answers": ANSWERS}
    for order in arguments.orders:
        for page in arguments.page:
            rows: list[list[float]] = [
                list(session(each, images.labels[each.label], model, digests, places, order, page)) for each in started
            ]
            ap: NDArray[np.float64] = 100 * np.array(rows)
            found[f"{order}, pages of {page}"] = {"ap": ap.mean(axis=0).round(2).tolist()}
            print(order, page, found[f"{order}, pages of {page}"], flush=True)
            write_atomically(arguments.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
