"""Choosing the closed form's strengths on the validation labels: one at a time, as long as anything is gained."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from fewtag.core.calibration import sigmoid
from fewtag.core.posterior import Space, fit_words
from fewtag.research.bench.results import episode_metrics
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.rows import Rows
from fewtag.research.methods.base import Base, places
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.research.methods.word_map import to_array
from fewtag.research.types import Targets, Words

Strengths = dict[str, Any]

GRID: Mapping[str, Sequence[float]] = {
    "ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0),
    "word_weight": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0),
    "word_decay": (0.5, 0.75, 1.0, 1.5),
    "support_focus": (2.0, 4.0, 6.0, 8.0, 12.0, 16.0),
    "query_focus": (4.0, 8.0, 16.0, 24.0, 32.0, 48.0),
    "query_local": (0.25, 0.4, 0.5, 0.6, 0.7),
    "separation": (5.0, 50.0, 200.0),
    "shrinkage": (1.0, 3.0, 5.0, 10.0, 30.0),
    "space": (256, 512, 768),
}


class Held(NamedTuple):
    """The validation labels' pictures, and the episodes to judge on: a list of draws for each number of shots."""

    labels: tuple[str, ...]
    words: Words
    rows: Rows
    targets: Targets
    draws: Mapping[int, Sequence[Draw]]


def build(base: Base, strengths: Strengths) -> ClosedForm:
    """The closed form with these strengths, fitted."""
    channels, dimensions = base.features.shape[1], base.words.shape[1]
    method = ClosedForm(channels, dimensions, **strengths).eval()
    method.prepare(base)
    return method


def project_all(space: Space, rows: Rows, numbers: Sequence[int], batch: int = 128) -> NDArray[np.float16]:
    """These pictures' places in the space, in half precision: images × places × space."""
    chunks = [numbers[start : start + batch] for start in range(0, len(numbers), batch)]
    maps = (to_array(places(rows.take(chunk).float())) for chunk in chunks)
    return np.concatenate([space.project(each).astype(np.float16) for each in maps])


def episode_scores(
    method: ClosedForm, local: NDArray[np.float16], held: Held, draw: Draw
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The query images' scores, before any scale or calibration, and what they show."""
    support, query = list(draw.support), list(draw.query)
    shown = to_array(held.targets)
    scorer = method.scorer(local[support].astype(np.float32), shown[support], to_array(held.words))
    return scorer(local[query].astype(np.float32)), shown[query]


def judge(method: ClosedForm, local: NDArray[np.float16], held: Held) -> dict[str, float]:
    """Macro- and micro-AP for each number of shots, and their mean: what the search raises."""
    found: dict[str, float] = {}
    for shots, draws in held.draws.items():
        metrics = []
        for draw in draws:
            scores, targets = episode_scores(method, local, held, draw)
            metrics.append(episode_metrics(sigmoid(method.scale * scores.astype(np.float64)), targets))
        for name in ("macro_ap", "micro_ap"):
            found[f"{name}_{shots}"] = sum(row[name] for row in metrics) / len(metrics)
    found["mean"] = sum(found.values()) / len(found)
    return found


@torch.inference_mode()
def search(
    base: Base,
    held: Held,
    *,
    grid: Mapping[str, Sequence[float]] = GRID,
    start: Strengths | None = None,
    rounds: int = 2,
    tell: Callable[[Strengths, dict[str, float]], None] = lambda _strengths, _found: None,
) -> tuple[Strengths, dict[str, float]]:
    """Tries every value of one strength with the others held, keeps the best, goes on with the next."""
    spaces: dict[tuple[Any, Any], tuple[Space, NDArray[np.float16]]] = {}
    features, targets = to_array(base.features), to_array(base.targets)

    def measure(strengths: Strengths) -> dict[str, float]:
        method = ClosedForm(features.shape[1], base.words.shape[1], **strengths)
        key = (method.shrinkage, method.space)  # nothing else moves the places
        if key not in spaces:
            spaces.clear()
            space = method.fit_space(features)
            spaces[key] = space, project_all(space, held.rows, range(len(held.rows)))
        method.space_, local = spaces[key]
        prototypes = method.base_prototypes(method.space_.project(features), targets)
        method.word_map_ = fit_words(to_array(base.words), prototypes, method.ridge)
        found = judge(method, local, held)
        tell(strengths, found)
        return found

    defaults = {name: option.default for name, option in inspect.signature(ClosedForm).parameters.items()}
    best: Strengths = dict(start or {})
    score = measure(best)
    for _ in range(rounds):
        before = score["mean"]
        for name, values in grid.items():
            now = best.get(name, defaults[name])
            for value in values:
                if value == now:
                    continue
                found = measure({**best, name: value})
                if found["mean"] > score["mean"]:
                    best, score = {**best, name: value}, found
        if score["mean"] <= before:
            break
    return best, score


class Scored(NamedTuple):
    """Pairs of image and label: their scores, and whether the image shows the label."""

    scores: Float[Tensor, "pairs"]
    shown: Bool[Tensor, "pairs"]


@torch.inference_mode()
def score_episodes(method: ClosedForm, held: Held, words_alone: bool = False) -> dict[int, Scored]:
    """All pairs of all episodes, for each number of shots; for 0 shots where words alone must do."""
    used = sorted({row for draws in held.draws.values() for draw in draws for row in (*draw.support, *draw.query)})
    place = {row: number for number, row in enumerate(used)}
    local = project_all(method.space_, held.rows, used)
    targets, words = to_array(held.targets)[used], to_array(held.words)
    found = {}
    for shots, draws in held.draws.items():
        scores, shown = [], []
        for draw in draws:
            support, query = [place[row] for row in draw.support], [place[row] for row in draw.query]
            known = targets[support] & (not words_alone)
            scorer = method.scorer(local[support].astype(np.float32), known, words)
            scores.append(scorer(local[query].astype(np.float32)).flatten())
            shown.append(targets[query].flatten())
        found[0 if words_alone else shots] = Scored(
            torch.from_numpy(np.concatenate(scores)), torch.from_numpy(np.concatenate(shown))
        )
    return found


def cross_fit(
    base: Base,
    rows: Rows,
    strengths: Strengths,
    *,
    folds: int = 4,
    shots: Sequence[int] = (1, 2, 5, 10),
    queries: int = 4,
    episodes: int = 25,
    seed: int = 0,
) -> dict[int, Scored]:
    """Scores of base labels under fits that never saw them: what calibration may look at.

    The labels are dealt into folds; each fold's labels are scored by a fit on the images that show none of them.
    """
    order = np.random.default_rng(seed).permutation(len(base.labels))
    found: dict[int, list[Scored]] = {}
    for fold in range(folds):
        inside = sorted(order[fold::folds].tolist())
        outside = sorted(set(range(len(base.labels))) - set(inside))
        shows = base.targets[:, inside].any(dim=1)
        kept = Base(
            tuple(base.labels[label] for label in outside),
            base.words[outside],
            base.targets[~shows][:, outside],
            base.features[~shows],
        )
        method = build(kept, strengths)
        labels = tuple(base.labels[label] for label in inside)
        targets = base.targets[:, inside]
        draws = {}
        for number in shots:
            sampler = EpisodeSampler(targets.numpy(), labels, shots=number, queries=queries, seed=seed)
            draws[number] = [sampler.draw(index) for index in range(episodes)]
        held = Held(labels, base.words[inside], rows, targets, draws)
        first = held._replace(draws={shots[0]: draws[shots[0]]})
        for scored in (score_episodes(method, held), score_episodes(method, first, words_alone=True)):
            for number, pairs in scored.items():
                found.setdefault(number, []).append(pairs)
    return {
        number: Scored(torch.cat([pairs.scores for pairs in parts]), torch.cat([pairs.shown for pairs in parts]))
        for number, parts in sorted(found.items())
    }
