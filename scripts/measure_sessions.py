"""Measures correction sessions with a shipped model: the posterior and its rivals.

    python scripts/measure_sessions.py --data DIR --model coco52 --out results/sessions-coco52.json

As `fewtag bench recipes/sessions.toml` does, but in the model's own space, with its own words, strengths and evidence:
half of a phase's pictures can be asked about, the other half measures; a simulated person answers questions, and each
system asks its own. AP is the mean over labels and seeds; `gain` is paired, over the closed form of positives alone;
`least` is the lowest mean on the way, less the start. Pictures are scored on a GPU if there is one.

With `--archive` it is the pictures that can be asked about that measure: AP over an archive that a person is working
through, where a 'yes' stands first and a 'no' last, but for the closed form of positives alone, which forgets a 'no'.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure_tagger import Bench
from numpy.typing import NDArray
from packs import Packs, packs_parser

from fewtag.core.metrics import average_precision
from fewtag.core.posterior import Classifiers, Pictures, Strengths
from fewtag.files import write_atomically
from fewtag.research.bench.recipe import SessionSettings
from fewtag.research.bench.results import commit, mean_over_labels
from fewtag.research.bench.sessions import Gallery, Problem, held_precision, problems, run_sessions
from fewtag.research.methods import METHODS
from fewtag.tagger.bank import THING
from fewtag.tagger.model import load_model


class DeviceGallery(Gallery):
    """A gallery that is scored where its tensors are."""

    def __init__(self, pictures: Pictures, device: torch.device) -> None:
        self.pictures = pictures
        self.parts = [torch.from_numpy(part).to(device) for part in pictures]
        self.inner = self.parts[0] @ self.parts[0].mT

    def logits(self, classifiers: Classifiers, strengths: Strengths) -> NDArray[np.float32]:
        (places, lengths, whole), device = self.parts, self.inner.device
        guides, on_whole, focused = (
            torch.from_numpy(rows).to(device)
            for rows in (classifiers.prototypes, classifiers.mean_weights, classifiers.attended_weights)
        )
        found = []
        for first in range(0, len(places), 512):
            some = slice(first, first + 512)
            alike = places[some] @ guides.T / lengths[some].clamp_min(1e-12)[..., None]
            attention = (strengths.query_focus * alike).softmax(dim=1)
            along = (attention * (places[some] @ focused.T)).sum(dim=1)
            squares = ((self.inner[some] @ attention) * attention).sum(dim=1)
            found.append(along / squares.clamp_min(1e-12).sqrt() + whole[some] @ on_whole.T)
        return (torch.cat(found).cpu().numpy() + classifiers.bias).T.copy()


def archives(started: Sequence[Problem], pictures: Pictures) -> Iterator[tuple[Pictures, list[Problem]]]:
    """The pictures that each cut can ask about, with its problems among them."""
    for seed in dict.fromkeys(problem.seed for problem in started):
        mine = [problem for problem in started if problem.seed == seed]
        rows = np.flatnonzero(mine[0].askable)
        every = np.ones(len(rows), np.bool_)
        yield (
            Pictures(*(part[rows] for part in pictures)),
            [
                each._replace(askable=every, shown=each.shown[rows], first=tuple(np.searchsorted(rows, each.first)))
                for each in mine
            ],
        )


def archive_precision(logits: NDArray[np.float32], problem: Problem, asked: Sequence[int], *, noes: bool) -> float:
    """Average precision on all pictures, those answered included; whether a 'no' is remembered is the system's."""
    known, rows = logits.copy(), np.array(asked, np.int64)
    known[rows[problem.shown[rows]]] = np.inf
    if noes:
        known[rows[~problem.shown[rows]]] = -np.inf
    return average_precision(known, problem.shown)


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--model", default="coco52")
    parser.add_argument("--phase", default="mixed")
    parser.add_argument(
        "--examples", type=int, nargs="+", default=[1, 0], help="that a label begins with; 0: the name alone"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--orders", nargs="+", default=["likeliest", "unsure", "mixed"])
    parser.add_argument("--answers", type=int, nargs="+", default=[0, 8, 16, 32, 64])
    parser.add_argument("--archive", action="store_true", help="measure on the pictures that are asked about")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    answers: list[int] = arguments.answers
    model = load_model(arguments.model)
    bench = Bench(Packs(arguments.data, arguments.cache), model, arguments.phase)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures, guides = Pictures.of(bench.places), bench.words(clean=False)
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found |= {"commit": commit(), "model": model.name, "seeds": arguments.seeds, "answers": answers}
    most = max(answers)
    for examples, order in itertools.product(arguments.examples, arguments.orders):
        settings = SessionSettings(examples=examples, seeds=arguments.seeds)
        started = problems(bench.images.targets, bench.images.labels, settings, 0)
        keys = [(each.seed, str(each.label)) for each in started]
        parts = list(archives(started, pictures)) if arguments.archive else [(pictures, started)]
        precisions = {}
        for name in ("closed-form", "posterior"):
            method: Any = METHODS[name](model.space.size, model.words.dimensions)
            # the labels are words for things, which a bank trusts as much
            method.strengths, method.evidence = model.strengths, replace(model.evidence, prior=THING)
            measured = partial(archive_precision, noes=name == "posterior") if arguments.archive else held_precision
            runs = [
                np.stack(list(run_sessions(method, DeviceGallery(some, device), guides, mine, order, most, measured)))
                for some, mine in parts
            ]
            every = 100 * np.concatenate(runs, axis=1)
            precisions[name] = every[answers]
            facts: dict[str, Any] = {"ap": [round(float(each.mean()), 2) for each in precisions[name]]}
            facts["least"] = round(float((every.mean(axis=1) - every[0].mean()).min()), 2)
            if name != "closed-form":
                gains = precisions[name] - precisions["closed-form"]
                means = [mean_over_labels(dict(zip(keys, each.tolist(), strict=True))) for each in gains]
                facts["gain"] = [[round(value, 2) for value in mean] for mean in means]
            found[f"{arguments.phase}, from {examples}, {order}, {name}"] = facts
            print(examples, order, name, facts, flush=True)
            write_atomically(arguments.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
