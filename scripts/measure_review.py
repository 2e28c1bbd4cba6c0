"""Measures what the studio's own Review teaches: two simulated persons answer its questions, in its default order.

    python scripts/measure_review.py --data DIR --model coco52 --out results/review-coco52.json

The problems are those of `measure_sessions.py`, whose unsure order is run here too: half of a phase's pictures can be
asked about, the other half measures; a label begins with one example. One person answers picture after picture, the
other whole pages with one key, each as long as Review makes it on a screen for so many. AP is the mean over labels and
seeds; `less_sessions` is paired, with its 95 % interval.
"""

import json
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packs import Packs, packs_parser

from fewtag.cache import content_digest
from fewtag.core.metrics import average_precision
from fewtag.core.posterior import Classifiers, Pictures, Places, unit
from fewtag.files import write_atomically
from fewtag.research.bench.recipe import SessionSettings
from fewtag.research.bench.results import commit, mean_over_labels
from fewtag.research.bench.sessions import Gallery, Problem, problems, run_sessions
from fewtag.research.methods import METHODS
from fewtag.studio.project import FileRow, PictureRow, Project
from fewtag.studio.studio import Studio
from fewtag.studio.values import PAGE, Answer
from fewtag.tagger.bank import THING
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
    problem: Problem, label: str, model: Model, digests: Sequence[str], places: Places, screen: int
) -> Iterator[float]:
    """The average precision on the other half after each of ANSWERS, of a person whose screen has room for so many."""
    row_of = {digest: row for row, digest in enumerate(digests)}
    held, said = ~problem.askable, 0
    with tempfile.TemporaryDirectory() as place:
        studio = Studio(Project(Path(place) / "project"), model, Path(place) / "cache")
        studio.background._stop.set()  # no bank on disk: thousands of projects are made here
        studio._begin(index=False)
        fill(studio, np.flatnonzero(problem.askable).tolist(), digests, places)
        studio.teach(label, [digests[row] for row in problem.first])

        def precision() -> float:
            fitted = studio.ranking.bank().classifier(studio.model, label)
            logits = Classifiers.of([fitted]).logits(places[held], studio.model.strengths)[:, 0]
            return average_precision(logits, problem.shown[held])

        yield precision()
        while said < ANSWERS[-1]:
            for cell in studio.review(label, size=screen).pictures:
                word = "yes" if problem.shown[row_of[cell.digest]] else "no"
                studio.answer([Answer(str(uuid.uuid4()), cell.digest, label, word, PAGE)])
                said += 1
                if said in ANSWERS:  # nothing is asked for before the page's end: its pictures were chosen together
                    yield precision()
        studio.close()


def sessions(model: Model, guides: NDArray[np.float32], places: Places, started: Sequence[Problem]) -> Any:
    """answers × problems: the unsure order of `measure_sessions.py`, which learns each answer before the next."""
    method: Any = METHODS["posterior"](model.space.size, model.words.dimensions)
    method.strengths, method.evidence = model.strengths, replace(model.evidence, prior=THING)
    found = list(run_sessions(method, Gallery(Pictures.of(places)), guides, started, "unsure", ANSWERS[-1]))
    return 100 * np.stack(found)[list(ANSWERS)]


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--model", default="coco52")
    parser.add_argument("--phase", default="mixed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--screens", type=int, nargs="+", default=[1, 12, 24], help="pictures that each has room for")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    packs = Packs(arguments.data, arguments.cache)
    model, images = load_model(arguments.model), packs.images(arguments.phase)
    digests = [content_digest(picture.read()).hex() for picture in images.pictures]
    with cached_places(model, arguments.cache) as cached:
        places = np.concatenate(list(encode_stream(model, items_of(images.pictures), cache=cached)))
    started = problems(images.targets, images.labels, SessionSettings(examples=1, seeds=arguments.seeds), 0)
    keys = [(each.seed, str(each.label)) for each in started]
    guides = model.word_prototypes(model.words.vectors(packs.names(images.labels)))
    usual = sessions(model, guides, places, started)
    found: dict[str, Any] = {
        "commit": commit(),
        "command": shlex.join(["python", *sys.argv]),
        "model": model.name,
        "phase": arguments.phase,
    }
    found |= {"examples": 1, "seeds": arguments.seeds, "answers": ANSWERS}
    found["sessions, unsure"] = {"ap": usual.mean(axis=1).round(2).tolist()}
    for screen in arguments.screens:
        rows = [list(session(each, images.labels[each.label], model, digests, places, screen)) for each in started]
        ap = 100 * np.array(rows).T
        means = [mean_over_labels(dict(zip(keys, each.tolist(), strict=True))) for each in ap - usual]
        gains = [[round(value, 2) for value in mean] for mean in means]
        name = "Review, picture after picture" if screen == 1 else f"Review, pages on a screen for {screen}"
        found[name] = {"ap": ap.mean(axis=1).round(2).tolist(), "less_sessions": gains}
        print(name, found[name], flush=True)
        write_atomically(arguments.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
