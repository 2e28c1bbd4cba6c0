"""Correction sessions against a plain loop, and through the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from synthetic import CHANNELS, DIMENSIONS, introduce, make_world

from fewtag.core.posterior import Classifiers, Pictures, fit_label
from fewtag.research.bench.recipe import SessionSettings
from fewtag.research.bench.results import SessionRow, read_rows_of
from fewtag.research.bench.sessions import Corrigible, Gallery, problems, run_sessions, summarise_sessions
from fewtag.research.methods import METHODS
from fewtag.research.methods.closed_form import ClosedForm, Posterior

Cli = Callable[..., Any]
WORLD = make_world(images_per_label=8, validation_labels=4)
POOL = WORLD.validation
TARGETS = POOL.targets.numpy()
FEW = SessionSettings(answers=[0, 6], seeds=2)


def opened(method: ClosedForm) -> tuple[ClosedForm, Gallery, np.ndarray]:
    introduce(method, WORLD.base)
    pictures = Pictures.of(method.local(POOL.rows.take(range(len(POOL.rows)))))
    return method, Gallery(pictures), method.word_prototypes(POOL.words)


def test_the_gallery_scores_as_the_core_does() -> None:
    method, gallery, word_prototypes = opened(Posterior(CHANNELS, DIMENSIONS))
    pictures = gallery.select(range(10))
    fitted = [method.fit_answers(pictures, TARGETS[:10, n], word_prototypes[n]) for n in range(4)]
    classifiers = Classifiers.of(fitted)
    expected = classifiers.logits(gallery.pictures.places, method.strengths)
    np.testing.assert_allclose(gallery.logits(classifiers, method.strengths).T, expected, atol=1e-4)


@pytest.mark.parametrize("order", ["likeliest", "unsure", "mixed"])
@pytest.mark.parametrize("examples", [0, 1])
def test_a_session_is_a_plain_loop_of_asking_and_learning(order: str, examples: int) -> None:
    method, gallery, word_prototypes = opened(Posterior(CHANNELS, DIMENSIONS))
    assert isinstance(method, Posterior)
    settings = FEW.model_copy(update={"examples": examples})
    started = problems(TARGETS, POOL.labels, settings, seed=3)
    found = np.stack(list(run_sessions(method, gallery, word_prototypes, started, order, most=6)))
    assert found.shape == (7, 8)

    problem, places = started[5], gallery.pictures.places
    asked = list(problem.first)
    for answer in range(7):
        shown, weights = problem.shown[asked], np.ones(len(asked), np.float32)
        fitted = fit_label(
            Pictures.of(places[asked]),
            shown,
            weights,
            word_prototypes[problem.label],
            method.strengths,
            method.evidence,
        )
        logits = Classifiers.of([fitted]).logits(places, method.strengths)[:, 0]
        held = ~problem.askable
        assert found[answer, 5] == pytest.approx(average_precision_score(problem.shown[held], logits[held]), abs=1e-6)
        free = [row for row in np.flatnonzero(problem.askable) if row not in asked]
        unsure = order == "unsure" or (order == "mixed" and answer % 2)
        asked.append(min(free, key=lambda row: abs(logits[row])) if unsure else max(free, key=lambda row: logits[row]))


def test_problems_begin_with_askable_examples_of_their_label() -> None:
    settings = FEW.model_copy(update={"examples": 2})
    started = problems(TARGETS, POOL.labels, settings, seed=0)
    assert [(problem.seed, problem.label) for problem in started] == [(seed, n) for seed in (0, 1) for n in range(4)]
    for problem in started:
        assert len(problem.first) == 2
        assert (problem.askable & problem.shown)[list(problem.first)].all()


def test_a_session_asks_about_no_picture_twice_and_ends_with_the_last() -> None:
    method, gallery, word_prototypes = opened(ClosedForm(CHANNELS, DIMENSIONS))
    seen: list[list[int]] = []
    select = gallery.select
    gallery.select = lambda rows: (seen.append(list(rows)), select(rows))[1]  # type: ignore[method-assign, func-returns-value]
    (problem, *_) = problems(TARGETS, POOL.labels, FEW, seed=0)
    askable = int(problem.askable.sum())
    precisions = list(run_sessions(method, gallery, word_prototypes, [problem], "likeliest", most=askable + 2))
    assert [len(rows) for rows in seen] == [*range(1, askable + 1), askable, askable, askable]
    assert set(seen[-1]) == set(np.flatnonzero(problem.askable))
    assert precisions[-1] == precisions[-2]


def test_means_are_told_by_order_and_number_of_answers() -> None:
    rows = [
        SessionRow.model_construct(order=order, answers=answers, ap=ap, label=label, session_seed=seed)
        for order, answers, ap, label, seed in [
            *(("unsure", 8, 0.2, "dog", 0), ("unsure", 8, 0.6, "dog", 1)),
            *(("unsure", 8, 0.1, "cat", 0), ("unsure", 8, 0.3, "cat", 1)),
            *(("likeliest", 0, 0.5, "dog", 0), ("unsure", 0, 0.1, "dog", 0)),
        ]
    ]
    found = summarise_sessions(rows)
    assert found["unsure"]["AP after 8"]["mean"] == pytest.approx(0.3)
    # over two labels, 0.4 and 0.2: other cuts of the same pictures are no labels more
    assert found["unsure"]["AP after 8"]["interval"] == pytest.approx(12.7062 * 0.1, rel=1e-4)
    assert list(found["unsure"]) == ["AP after 0", "AP after 8"]
    assert list(found["likeliest"]) == ["AP after 0"]


RUNS = """
[sessions]
answers = [0, 3]
seeds = 2
orders = ["mixed"]

[[runs]]
name = "posterior"
method = { name = "posterior", space = 16 }

[[runs]]
name = "closed-form"
method = { name = "closed-form", space = 16 }

[[runs]]
name = "logistic-regression"
method.name = "logistic-regression"
space = { size = 16 }

[[runs]]
name = "knn"
method.name = "knn"
"""


@pytest.fixture
def recipe(shapes: Path) -> Path:
    common, _, _ = (shapes / "recipe.toml").read_text().partition("[[runs]]")
    (shapes / "sessions.toml").write_text(common + RUNS)
    return shapes / "sessions.toml"


@pytest.mark.slow
def test_bench_writes_a_row_for_each_label_seed_and_number_of_answers(cli: Cli, recipe: Path) -> None:
    systems = [part for name in ("posterior", "closed-form", "logistic-regression") for part in ("--only", name)]
    said = cli("bench", recipe, *systems, "--json")
    assert said.code == 0, said.err
    rows = read_rows_of(SessionRow, Path("results/sessions/posterior.test.sessions.parquet"))
    told = [(row.session_seed, row.label, row.answers) for row in rows]
    assert told == [(seed, label, n) for seed in (0, 1) for label in ("heart", "arrow") for n in (0, 3)]
    assert all(0 <= row.least <= row.ap <= 1 for row in rows)
    mean = json.loads(said.out)["posterior on test, mixed first"]["AP after 3"]["mean"]
    assert mean == pytest.approx(np.mean([row.ap for row in rows if row.answers == 3]))
    again = cli("bench", recipe, *systems, "--json")
    assert again.out == said.out
    assert cli("bench", recipe, "--only", "posterior", "--set", "seed=1").code == 2

    recipe.write_text(
        recipe.read_text() + '[[runs]]\nname = "rocchio"\nmethod.name = "rocchio"\nsessions.answers = [2]\n'
    )
    table = cli("bench", recipe, "--only", "posterior", "--only", "rocchio")
    assert (table.code, "AP after 3" in table.out, "AP after 2" in table.out) == (0, True, True), table.err

    assert cli("report", "results").code == 0
    page = Path("results/RESULTS.md").read_text()
    theirs = read_rows_of(SessionRow, Path("results/sessions/closed-form.test.sessions.parquet"))
    lead = np.mean([one.ap - other.ap for one, other in zip(rows, theirs, strict=True) if one.answers == 3])
    (line,) = [line for line in page.splitlines() if line.startswith("| mixed | posterior |")]
    assert f"{100 * mean:.1f} ({100 * lead:+.1f} ±".replace("-", "−") in line
    (line,) = [line for line in page.splitlines() if line.startswith("| mixed | rocchio |")]
    assert re.fullmatch(r"\| mixed \| rocchio \| – \| [\d.]+ \| – \| – \|", line), "closed-form was not asked after 2"
    assert "### shapes, test: from 1 example (test_resnet, words.txt)" in page


@pytest.mark.parametrize(
    ("run", "changes", "said"),
    [
        ("knn", (), "method 'knn' cannot learn from answers"),
        ("logistic-regression", ("sessions.examples=0",), "'logistic-regression' cannot learn from a name alone"),
        ("logistic-regression", ("method.unit_length=false",), "only logistic-regression with unit_length = true"),
        ("posterior", ("space.size=8",), "'posterior' has a whitened space of its own; remove [space]"),
        ("posterior", ("training.episodes=3",), "[sessions] is for methods that train nothing"),
        ("posterior", ("seed=-1",), "seed: input should be greater than or equal to 0, found -1"),
        ("posterior", ("sessions.answers=[-1]",), "greater than or equal to 0, found -1"),
    ],
)
def test_what_cannot_be_asked_is_refused(cli: Cli, recipe: Path, run: str, changes: tuple[str, ...], said: str) -> None:
    ended = cli("bench", recipe, "--only", run, *(part for change in changes for part in ("--set", change)))
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_the_methods_that_learn_from_answers_are_those_with_words_and_a_space() -> None:
    found = {name for name, kind in METHODS.items() if isinstance(kind(CHANNELS, DIMENSIONS), Corrigible)}
    assert found == {"closed-form", "posterior", "rocchio"}
