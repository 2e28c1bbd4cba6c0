"""How common a label is: as a person says, or by a sample; probabilities and thresholds follow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fewtag import InputError, Tagger
from fewtag.tagger.stream import Scorer

Draw = Callable[..., Image.Image]


@pytest.fixture
def pets(tagger: Tagger, draw: Draw) -> Tagger:
    labels = ["dog", "cat", "sofa"] * 2
    return tagger.fit([draw(number, label) for number, label in enumerate(labels)], labels).define("zebra")


def log_odds(values: Any) -> np.ndarray:
    values = np.asarray(values, np.float64)
    return np.log(values / (1 - values))


def test_without_a_word_of_it_the_models_own_share_is_taken(pets: Tagger) -> None:
    assert pets.priors_ == pytest.approx(dict.fromkeys(pets.classes_, 0.3))
    assert Tagger(pets.model).priors_ == {}


def test_a_prior_moves_the_log_odds_of_its_label_by_the_difference_and_no_other(pets: Tagger, draw: Draw) -> None:
    queries = [draw(number, "dog") for number in range(20, 25)]
    before = pets.predict_proba(queries)
    assert pets.set_priors({"dog": 0.07, "zebra": 0.6}) is pets
    assert pets.priors_ == pytest.approx({"cat": 0.3, "dog": 0.07, "sofa": 0.3, "zebra": 0.6})
    moved = log_odds(pets.predict_proba(queries)) - log_odds(before)
    shifts = [0, log_odds(0.07) - log_odds(0.3), 0, log_odds(0.6) - log_odds(0.3)]
    np.testing.assert_allclose(moved, np.tile(shifts, (5, 1)), atol=1e-4)
    pets.set_priors({"dog": None, "zebra": None})
    assert np.array_equal(pets.predict_proba(queries), before)


def test_thresholds_follow_the_prior_but_for_those_that_were_set(pets: Tagger) -> None:
    """The tiny model's table has 0.1 at a share of 0.01 and 0.3 at 0.3, without examples."""
    pets.set_thresholds({"cat": 0.77}).set_priors({"cat": 0.01, "zebra": 0.01})
    assert pets.thresholds_["zebra"] == pytest.approx(0.1)
    assert pets.thresholds_["cat"] == pytest.approx(0.77)
    pets.set_priors({"zebra": 0.06})
    part = (log_odds(0.06) - log_odds(0.01)) / (log_odds(0.3) - log_odds(0.01))
    assert pets.thresholds_["zebra"] == pytest.approx(0.8 * (0.1 + 0.2 * part), abs=1e-6)


def test_a_prior_outlives_a_new_meaning_a_new_name_and_new_examples(pets: Tagger, draw: Draw) -> None:
    pets.set_priors({"dog": 0.02}).define("dog", like="cat").partial_fit([draw(9)], ["dog"]).rename("dog", "hound")
    assert pets.priors_["hound"] == pytest.approx(0.02)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(pets: Tagger, share: float) -> None:
    before = pets.bank_
    with pytest.raises(InputError, match=r"the share of pictures with label 'dog' is .*; give one between 0 and 1"):
        pets.set_priors({"cat": 0.5, "dog": float(share)})
    assert pets.bank_ is before
    with pytest.raises(InputError, match="did you mean 'dog'"):
        pets.set_priors({"dgo": 0.5})


def test_a_scorer_takes_shares_for_labels_without_a_prior_of_their_own(pets: Tagger) -> None:
    pets.set_priors({"dog": 0.02})
    scorer = pets.scorer(priors={"dog": 0.9, "cat": 0.9})
    assert dict(zip(scorer.labels, scorer.priors.tolist(), strict=True)) == pytest.approx(
        {"cat": 0.9, "dog": 0.02, "sofa": 0.3, "zebra": 0.3}
    )
    assert pets.priors_["cat"] == pytest.approx(0.3), "the bank stays as it is"


def test_shares_are_estimated_from_a_sample_and_the_bank_stays_as_it_is(
    pets: Tagger, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the log-likelihood ratios of known shares in place of the classifiers': they are found again, nearly."""
    random = np.random.default_rng(0)
    shares = np.array([0.05, 0.2, 0.5, 0.7])
    shown = random.random((600, 4)) < shares
    evidence = (4 * (random.normal(size=shown.shape) + 4 * shown) - 8).astype(np.float32)
    rows = iter(evidence)

    def logits(_self: Scorer, places: np.ndarray) -> np.ndarray:
        return np.stack([next(rows) for _ in places]) + np.float32(log_odds(0.3))

    monkeypatch.setattr(Scorer, "logits", logits)
    before = pets.bank_
    found = pets.estimate_priors([draw(0)] * 600)
    assert list(found) == list(pets.classes_)
    ratio = np.array(list(found.values())) / shown.mean(axis=0)
    assert ((ratio > 0.5) & (ratio < 1)).all(), "all are drawn to the guess, 0.02"
    assert pets.bank_ is before


def test_an_estimate_does_not_depend_on_the_priors_so_far(pets: Tagger, draw: Draw) -> None:
    """A rare label's curve is steeper, and its evidence was taken as if that were so for any share."""
    sample = [draw(number, "dog") for number in range(30, 70)]
    before = pets.estimate_priors(sample)
    assert pets.set_priors(dict.fromkeys(pets.classes_, 0.001)).estimate_priors(sample) == pytest.approx(
        before, rel=1e-3
    )


def test_no_picture_is_no_sample(pets: Tagger) -> None:
    with pytest.raises(InputError, match="no picture to estimate priors from"):
        pets.estimate_priors([])


def test_what_is_estimated_may_be_kept(pets: Tagger, draw: Draw) -> None:
    found = pets.estimate_priors([draw(number, "dog") for number in range(30, 60)])
    assert all(0 < share < 1 for share in found.values())
    assert found["dog"] > found["sofa"]
    assert pets.set_priors(found).priors_ == pytest.approx(found)
