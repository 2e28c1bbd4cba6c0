"""What the benchmarks compare computes the same thing, and exponents are those of known curves."""

import pytest
import torch
from growth import Curve, exponent, figures, learn, random_bank, random_places
from rivals import (
    LABELS,
    Setting,
    easyfsl_scores,
    naive_closed_form,
    naive_scores,
    protonet_scores,
    scikit_learn_scores,
)

from fewtag import Tagger
from fewtag.research.bench.evaluate import score_draws
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.research.methods.logistic_regression import LogisticRegression
from fewtag.research.methods.protonet import ProtoNet
from research import make_method


@pytest.fixture(scope="module")
def setting() -> Setting:
    made = Setting.make(200, (2048, 1, 1))
    return made._replace(draws=made.draws[:2])


def test_a_naive_loop_has_protonets_scores(setting: Setting) -> None:
    method = ProtoNet(2048, 300)
    expected = torch.stack(naive_scores(setting, method.scale))
    torch.testing.assert_close(torch.stack(protonet_scores(method, setting)), expected, atol=1e-4, rtol=1e-4)


def test_scikit_learn_has_our_logistic_regressions_scores_once_it_is_as_exact(setting: Setting) -> None:
    method = LogisticRegression(2048, 300)
    theirs = torch.stack(scikit_learn_scores(setting, method, tolerance=1e-10))
    ours = torch.stack([logits for logits, _ in score_draws(method, setting.pooled, setting.draws)])
    torch.testing.assert_close(ours.double(), theirs, atol=0.01, rtol=0.01)


def test_easyfsl_is_near_the_picture_each_label_was_drawn_with(setting: Setting) -> None:
    pytest.importorskip("easyfsl", reason="it comes with fewtag[bench]")
    distances = -torch.stack(easyfsl_scores(setting))
    for draw, found in zip(setting.draws, distances, strict=True):
        support, query = setting.features[list(draw.support)], setting.features[list(draw.query)]
        assert found.shape == (len(draw.query), LABELS)
        torch.testing.assert_close(found, (query[:, None] - support[None]).norm(dim=-1), atol=1e-2, rtol=1e-3)


def test_a_naive_loop_has_the_taggers_scores() -> None:
    method = make_method("closed-form")
    assert isinstance(method, ClosedForm)
    places, prototypes = torch.randn(3, 5, method.space), torch.nn.functional.normalize(torch.randn(4, method.space))
    torch.testing.assert_close(method.score(places, prototypes), naive_closed_form(method, places, prototypes))


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_that_of_the_upper_half(power: float) -> None:
    points = [(size, 3.0 if size < 100 else 0.01 * size**power) for size in (1, 10, 100, 1_000, 10_000)]
    assert exponent(points) == pytest.approx(power)


def test_figures_are_flat() -> None:
    found = figures({"labels": Curve("scoring", "labels", [(1, 0.5), (10, 5.0), (100, 50.0)])})
    expected = {"growth_labels_exponent": 1.0, "growth_labels_seconds_at_1": 0.5, "growth_labels_seconds_at_100": 50.0}
    assert found == pytest.approx(expected)


def test_a_random_bank_learns_one_label_more() -> None:
    tagger = Tagger()
    bank = learn(tagger, random_bank(tagger, 3, examples=2), shots=4)
    assert {label: len(found) for label, found in bank.members.items()} == {
        "label 00000": 2,
        "label 00001": 2,
        "label 00002": 2,
        "zebra": 4,
    }


def test_labels_scored_in_parts_have_the_same_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = Tagger()
    tagger._bank, places = random_bank(tagger, 7), random_places(tagger, 3)
    whole = tagger.probabilities(places)
    monkeypatch.setattr("fewtag.tagger.tagger.LABELS_AT_ONCE", 3)
    assert tagger.probabilities(places) == pytest.approx(whole, abs=1e-6)
