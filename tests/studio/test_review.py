"""Review: questions in an order that helps, and numbers that hold."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from album import answer_page, digests, say, shows
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.core.calibration import log_odds
from fewtag.core.metrics import average_precision
from fewtag.errors import InputError
from fewtag.studio import review
from fewtag.studio.review import NO, YES, Ground
from fewtag.studio.studio import Studio
from fewtag.studio.values import ReviewPage


def ground(chances: np.ndarray, threshold: float = 0.5, words: dict[int, int] | None = None, **more: object) -> Ground:
    count = len(chances)
    said = np.zeros(count, np.int8)
    for row, word in (words or {}).items():
        said[row] = word
    nothing = np.zeros(count, np.bool_)
    logits = log_odds(np.clip(chances, 1e-6, 1 - 1e-6))
    facts = {"audited": nothing, "never": nothing, "alive": ~nothing, "logits": logits, **more}
    return Ground(chances.astype(np.float32), said, threshold=threshold, **facts)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(1, 500), st.floats(0, 1))
def test_the_wilson_interval_solves_its_equation(count: int, share: float) -> None:
    """Its ends are the shares that the sample is just 1.96 standard deviations away from."""
    right = round(share * count)
    found = review.wilson(right, count)
    assert found is not None
    assert found.low <= found.precision <= found.high
    for end in (found.low, found.high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(right / count - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / count), abs=1e-9)


def test_nothing_audited_has_no_precision() -> None:
    assert review.wilson(0, 0) is None


def test_the_wilson_interval_is_the_textbooks() -> None:
    found = review.wilson(9, 10)
    assert found is not None
    assert (round(found.low, 3), round(found.high, 3)) == (0.596, 0.982)


def test_orders_ask_what_they_say() -> None:
    chances = np.array([0.95, 0.7, 0.55, 0.45, 0.3, 0.05, 0.99])
    about = ground(chances, words={6: YES})
    whole, digests = np.eye(7, dtype=np.float32), [str(number) for number in range(7)]

    def asked(order: str) -> list[int]:
        return review.ask(order, about, whole, "", digests)[0].tolist()  # type: ignore[arg-type]

    assert asked("sure") == [0, 1, 2]
    assert asked("unsure")[:2] == [2, 3]
    assert sorted(asked("unsure")) == [0, 1, 2, 3, 4, 5]
    assert asked("missed")[0] == 3
    assert sorted(asked("missed")) == [3, 4, 5]
    assert sorted(asked("audit")) == [0, 1, 2]
    with pytest.raises(InputError, match="no order"):
        review.choose_order("best", about)


def test_what_is_unsure_is_the_classifiers_own_word_while_little_was_said() -> None:
    chances, logits = np.linspace(0.05, 0.95, 60), np.linspace(-4, 2, 60)  # of a label that is rare

    def first(answers: int) -> int:
        about = ground(chances, 0.7, words=dict.fromkeys(range(answers), NO), logits=logits)
        return int(review.ask("unsure", about, np.eye(60, dtype=np.float32), "", list(map(str, range(60))))[0][0])

    assert first(1) == first(review.SINGLY) == int(np.abs(logits).argmin())
    assert first(review.SINGLY + 1) == int(np.abs(chances - 0.7).argmin())


def test_missed_begins_with_what_is_like_the_confirmed() -> None:
    whole = np.eye(6, dtype=np.float32)
    whole[4] = whole[0]
    about = ground(np.array([0.9, 0.4, 0.3, 0.2, 0.01, 0.02]), words={0: YES})
    assert review.ask("missed", about, whole, "", list("abcdef"))[0].tolist()[:2] == [1, 4]


@settings(deadline=None)
@given(st.integers(8, 200), st.integers(0, 5))
def test_every_beginning_of_an_audit_is_spread_over_the_scores(count: int, seed: int) -> None:
    chances = np.random.default_rng(seed).uniform(0.5, 1, count)
    about, names = ground(chances), [f"{number}" for number in range(count)]
    whole = np.zeros((count, 1), np.float32)
    rows = review.ask("audit", about, whole, str(seed), names)[0]
    again = review.ask("audit", about, whole, str(seed), names)[0]
    assert rows.tolist() == again.tolist(), "the same lots each time"
    assert sorted(rows.tolist()) == list(range(count))
    rank = np.argsort(np.argsort(-chances))
    quarters = rank[rows[: 4 * (count // 8)]] * 4 // count
    assert np.ptp(np.bincount(quarters, minlength=4)) <= 1


@pytest.mark.slow
def test_an_audit_is_a_fair_sample() -> None:
    """Of pictures of which nine in ten are right, audits of 40 say so on average, and their intervals mostly hold."""
    generator = np.random.default_rng(0)
    held, said = 0, []
    for trial in range(500):
        chances = generator.uniform(0.5, 1, 400)
        truth = generator.random(400) < chances
        whole = np.zeros((400, 1), np.float32)
        rows = review.ask("audit", ground(chances), whole, str(trial), [str(n) for n in range(400)])[0][:40]
        words = {row: YES if truth[row] else NO for row in rows.tolist()}
        audited = np.isin(np.arange(400), rows)
        found = review.audit(ground(chances, words=words, audited=audited))
        assert found is not None
        assert found.count == 40
        held += found.low <= truth.mean() <= found.high
        said.append(found.precision - truth.mean())
    assert abs(float(np.mean(said))) < 0.01
    assert held >= 460


def test_an_audit_of_other_tags_is_not_shown() -> None:
    chances = np.linspace(0.2, 1, 400)
    asked = np.arange(400) >= 380  # by a threshold of 0.96
    words = dict.fromkeys(range(380, 400), YES)
    high, low = (ground(chances, words=words, audited=asked, threshold=at) for at in (0.96, 0.5))
    assert review.audit(high) == review.wilson(20, 20)
    assert review.audit(low) is None
    assert not review.enough(low, "heron").startswith("Look again")


def test_what_a_person_has_answered_whole_is_done_whatever_the_audit_found() -> None:
    chances = np.where(np.arange(160) < 30, 0.97, 0.01)
    words = dict.fromkeys(range(30), NO) | dict.fromkeys(range(5), YES)
    asked = np.arange(160) < 30
    assert review.enough(ground(chances, words=words, audited=asked), "heron").startswith("Done:")


def test_answers_that_are_no_audit_measure_nothing() -> None:
    assert review.audit(ground(np.array([0.9, 0.8]), words={0: YES, 1: NO})) is None


def test_the_curve_counts_what_each_threshold_tags() -> None:
    chances = np.array([0.9, 0.7, 0.6, 0.2, 0.1])
    about = ground(chances, words={2: NO, 4: YES})
    curve = {point.threshold: point for point in review.curve(about)}
    assert 0.5 in curve
    assert len(curve) in (49, 50)
    middle = curve[0.5]
    assert middle.tags == 3, "two over it, and the confirmed one below; the refused one never"
    assert middle.expected_precision == pytest.approx((0.9 + 0.7 + 1) / 3)
    assert middle.recall == pytest.approx((0.9 + 0.7 + 1) / (0.9 + 0.7 + 0.2 + 1))
    tags = [point.tags for point in review.curve(about)]
    assert tags == sorted(tags, reverse=True)
    assert review.expected_precision(about) == pytest.approx(middle.expected_precision, abs=1e-4)


def test_the_histogram_holds_every_picture_once() -> None:
    found = review.histogram(ground(np.linspace(0, 1, 101), words={0: YES, 100: NO}))
    assert (sum(found.model), sum(found.yes), sum(found.no)) == (99, 1, 1)
    assert len(found.edges) == len(found.model) + 1


def test_enough_is_said_in_the_end() -> None:
    many = np.concatenate([np.full(60, 0.97), np.full(100, 0.001)])
    assert review.enough(ground(many), "heron").startswith("Not yet: 10 more answers")
    some = dict.fromkeys(range(12), YES)
    assert review.enough(ground(many, words=some), "heron").startswith(
        "Sure enough: 48 more above the threshold, about 1"
    )
    every = dict.fromkeys(range(60), YES)
    assert review.enough(ground(many, words=every), "heron").startswith("Done: every picture")
    unsure = np.concatenate([np.full(60, 0.6), np.full(100, 0.001)])
    assert "about 19 are wrong" in review.enough(ground(unsure, words=some), "heron")
    audited = np.arange(160) < 30
    wrong = some | dict.fromkeys(range(12, 30), NO)
    assert review.enough(ground(many, words=wrong, audited=audited), "heron").startswith("Look again: 97% right")


def test_the_default_order_asks_the_unsure_then_the_sure_then_the_missed() -> None:
    chances, ten = np.array([0.99] * 12 + [0.5] + [0.01] * 7), dict.fromkeys(range(10), YES)
    assert review.choose_order("auto", ground(chances)) == "unsure"
    assert review.choose_order("auto", ground(chances, words=ten)) == "unsure", "one could go either way"
    assert review.choose_order("auto", ground(chances, words=ten | {12: NO})) == "sure"
    assert review.choose_order("auto", ground(chances, words=ten | {12: NO, 10: YES, 11: YES})) == "missed"


def test_review_begins_with_the_unsure_and_never_asks_twice(studio: Studio) -> None:
    studio.define("dog")
    first = studio.review("dog", size=12)
    assert (first.order, first.question) == ("unsure", "Is there a dog?")
    answer_page(studio, "dog", size=12)
    after = studio.review("dog", "sure")
    assert after.answered.yes + after.answered.no == 12
    assert {cell.digest for cell in after.pictures}.isdisjoint({cell.digest for cell in first.pictures})
    assert all(cell.marked for cell in after.pictures), "what is tagged is marked so, whatever the threshold"
    unsure = studio.review("dog", "unsure", 12).pictures
    assert all(cell.marked == (cell.p is not None and cell.p >= 0.5) for cell in unsure)


def test_unsure_ones_come_singly_and_then_by_pages_that_grow_with_what_was_said(studio: Studio) -> None:
    studio.define("dog")
    sizes = []
    for _ in range(12):
        page = studio.review("dog", "unsure", 12).pictures
        studio.answer([say(cell.digest, "dog", "yes" if shows(cell.name, "dog") else "no") for cell in page])
        sizes.append(len(page))
    assert sizes == [1] * 9 + [9, 12, 12]
    studio.define("cat")
    assert len(studio.review("cat", "missed", 12).pictures) == 12, "the other orders' pages are as long as one sees"


def test_a_label_is_no_rarer_than_what_was_confirmed(studio: Studio) -> None:
    """Estimated shares of hard labels would else fall to nothing, and all that is tagged with them."""
    found = list(digests(studio).values())
    for count in (30, len(found)):
        share = studio.teach("SKU-4711", found[:count]).prior
        assert share is not None
        assert min(0.99, count / len(found)) - 1e-6 <= share < 1


def test_the_share_follows_answers_to_what_review_chose_and_not_to_what_a_person_chose(studio: Studio) -> None:
    """A person who looks for a label's pictures finds more of them than there are."""
    studio.teach("dog", [next(digest for name, digest in digests(studio).items() if shows(name, "dog"))])
    page = studio.review("dog", "unsure", 4).pictures
    shares: dict[tuple[str, str], float] = {}
    for source in ("click", "page"):
        for word in ("yes", "no"):
            studio.answer([say(cell.digest, "dog", word, source) for cell in page])
            shares[source, word] = studio.label("dog").prior or 0
            studio.undo()
    assert shares["page", "yes"] > shares["click", "yes"]
    assert shares["page", "no"] < shares["click", "no"]


def test_audits_measure_and_teach_nothing(studio: Studio) -> None:
    studio.define("dog")
    answer_page(studio, "dog", size=20)
    before = studio.review("dog", "audit", 12)
    chances = studio.ranking.scores.kept["dog"].chances.copy()
    answer_page(studio, "dog", "audit", size=12)
    after = studio.review("dog", "sure")
    # scored again in other pieces, whose sums are rounded otherwise
    np.testing.assert_allclose(studio.ranking.scores.kept["dog"].chances, chances, atol=1e-5)
    assert after.audited is not None
    right = sum(shows(cell.name, "dog") for cell in before.pictures)
    assert (after.audited.count, after.audited.precision) == (12, pytest.approx(right / 12))
    assert after.answered.yes + after.answered.no == 32, "they are facts all the same"


def settled(studio: Studio, label: str) -> ReviewPage:
    """A page with its influences, which come a moment later."""
    for _ in range(2_000):
        if (page := studio.review(label)).settled:
            return page
        time.sleep(0.05)
    raise AssertionError("the influences were never worked out")


def test_a_page_tells_when_no_more_influences_will_come(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(digests(studio).values())
    studio.teach("dog", names[:1])
    assert not studio.review("dog").settled
    assert [each.influence for each in settled(studio, "dog").examples] == [None], "it has nothing to compare with"
    studio.teach("dog", names[:30])
    assert sum(each.influence is None for each in settled(studio, "dog").examples) == 6, "24 are enough"
    monkeypatch.setattr(review, "CROWD", 30)
    studio.teach("dog", names[:31])
    assert {each.influence for each in settled(studio, "dog").examples} == {None}, "one of so many changes nothing"


def test_influence_tells_a_wrong_example_from_right_ones(studio: Studio) -> None:
    names = digests(studio)
    dogs = [digest for name, digest in names.items() if name.endswith(" dog.png")]
    wrong = next(digest for name, digest in names.items() if name.endswith(" cat sofa.png"))
    cats = [digest for name, digest in names.items() if name.partition(" ")[2] in ("cat.png", "sofa.png")]
    studio.teach("dog", [*dogs[:6], wrong])
    studio.answer([say(digest, "dog", "no") for digest in cats[:8]])
    values = {each.digest: each.influence for each in settled(studio, "dog").examples}
    assert None not in values.values()
    assert min(values, key=lambda digest: values[digest] or 0) == wrong
    assert (values[wrong] or 0) < 0


def test_often_mistaken_for(studio: Studio) -> None:
    pictures = list(digests(studio).values())
    studio.teach("heron", pictures[:1])
    studio.teach("egret", pictures[1:4])
    studio.answer([say(picture, "heron", "no") for picture in pictures[1:3]])
    [mistaken] = studio.review("heron").mistaken_for
    assert (mistaken.label, mistaken.count) == ("egret", 2)


def test_a_pictures_reasons_are_examples_that_look_like_it(studio: Studio) -> None:
    names = digests(studio)
    dogs = [digest for name, digest in names.items() if shows(name, "dog")]
    studio.teach("dog", dogs[:5])
    studio.define("sofa")
    detail = studio.picture(dogs[7])
    by_label = {each.label: each for each in detail.labels}
    assert {because.digest for because in by_label["dog"].because} <= set(dogs[:5])
    weights = [because.weight for because in by_label["dog"].because]
    assert weights == sorted(weights, reverse=True)
    assert by_label["sofa"].because == ()
    assert studio.picture(dogs[0]).labels[0].answer == "yes"
    assert all(because.digest != dogs[0] for because in studio.picture(dogs[0]).labels[0].because)
    explained = studio.explain(dogs[0], "dog")
    assert {len(explained.heat), *map(len, explained.heat)} == {5}


def test_a_truthful_person_in_the_default_order_makes_it_better(studio: Studio) -> None:
    """On real pictures `scripts/measure_review.py` compares with sessions that learn each answer before the next."""
    shown = np.array(["cat" in studio.library.names[row] for row in range(120)])
    studio.teach("Rex", [studio.library.digests[int(np.flatnonzero(shown)[0])]])  # a name that says nothing

    def precision() -> float:
        return average_precision(studio.ranking.scores.kept["Rex"].logits, shown)

    before = precision()
    while len(studio.project.fold.about(studio.project.fold.find("Rex").id)) < 24:
        page = studio.review("Rex", size=8).pictures
        studio.answer([say(cell.digest, "Rex", "yes" if shows(cell.name, "cat") else "no") for cell in page])
    studio.label("Rex")
    assert precision() > before + 0.02


@pytest.mark.parametrize("order", ["unsure", "sure"])
@pytest.mark.parametrize("resident", [10_000, 40])
def test_a_page_is_what_brute_force_would_ask(
    open_studio: Callable[..., Studio], drawn_album: Path, order: str, resident: int
) -> None:
    """Each picture's half precision through the posterior itself, sorted in Python; past memory, those on the page."""
    studio = open_studio(drawn_album, resident=resident)
    studio.teach("dog", [digest for name, digest in digests(studio).items() if shows(name, "dog")][:1])
    for _ in range(3):
        answer_page(studio, "dog", size=6)
    page = studio.review("dog", order, 12)
    scorer = studio.scorer()
    half = studio.indexer.fetch(range(120))
    chances = scorer.probabilities(np.stack(half).astype(np.float32))[:, 0].astype(np.float64)  # type: ignore[arg-type]
    of_page = {studio.library.row_of[cell.digest]: cell.p for cell in page.pictures}
    for row, shown in of_page.items():
        assert shown == pytest.approx(chances[row], abs=1e-4), "the numbers that one sees are the tagger's own"
    if resident < 120:
        return
    threshold = float(scorer.thresholds[0])

    def distance(chance: float) -> float:
        return abs(math.log(chance / (1 - chance)) - math.log(threshold / (1 - threshold)))

    said = studio.project.fold.latest[studio.project.fold.find("dog").id]
    stacks = studio.library.stacks()
    done = {int(stacks[studio.library.row_of[digest]]) for digest in said}
    keys = {
        "unsure": {row: distance(chance) for row, chance in enumerate(chances) if chance},  # a refused one has none
        "sure": {row: -chance for row, chance in enumerate(chances) if chance >= threshold},
    }[order]
    ranked = [row for row in sorted(keys, key=keys.__getitem__) if int(stacks[row]) not in done]
    wanted = []
    for row in ranked:
        if int(stacks[row]) not in [int(stacks[other]) for other in wanted]:
            wanted.append(row)
    if order == "unsure":
        wanted = unlike(wanted, studio.library.features.means, 12)
    for asked, expected in zip(of_page, wanted[:12], strict=True):
        assert asked == expected or keys[asked] == pytest.approx(keys[expected], abs=1e-4)


def unlike(rows: list[int], whole: np.ndarray, size: int) -> list[int]:
    """The first one, and on and on the one that is least like its likest among those; in their order."""
    first = rows[: max(size, min(3 * size, len(rows) // 8))]
    found = first[:1]
    while len(found) < min(size, len(first)):
        rest = [row for row in first if row not in found]
        found.append(min(rest, key=lambda row: max(float(whole[row] @ whole[other]) for other in found)))
    return sorted(found, key=rows.index)


@settings(deadline=None)
@given(st.integers(1, 150), st.integers(1, 12), st.integers(0, 5))
def test_a_page_of_unsure_ones_is_spread_and_loses_none(count: int, size: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    whole = generator.normal(size=(150, 8)).astype(np.float32)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    rows = generator.permutation(150)[:count]
    found = review.spread(rows, whole, size)
    size = min(size, count)
    assert found[:size].tolist() == unlike(rows.tolist(), whole, size)
    assert found[size:].tolist() == [row for row in rows.tolist() if row not in found[:size]]
