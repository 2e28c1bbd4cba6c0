"""Which classifiers are fitted when: at the first question, those alone that something changed for."""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fewtag import Tagger
from fewtag.tagger import bank as bank_module
from fewtag.tagger.bank import ANSWERS, UNNAMED, Annotation, Bank, Definition, Example, Quantised
from fewtag.tagger.model import Model

Draw = Callable[..., Image.Image]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each fit looked at."""
    seen: list[int] = []
    fit = bank_module.fit_label

    def counted(pictures, *others, **options):  # type: ignore[no-untyped-def]
        seen.append(len(pictures.places))
        return fit(pictures, *others, **options)

    monkeypatch.setattr(bank_module, "fit_label", counted)
    return seen


@pytest.fixture
def pets(tagger: Tagger, draw: Draw) -> Tagger:
    return tagger.fit([draw(number, "dog") for number in range(3)], ["dog", "cat", "sofa"], complete=True)


def test_teaching_fits_nothing_until_someone_asks(pets: Tagger, draw: Draw, fits: list[int]) -> None:
    pets.partial_fit([draw(9)], ["dog"]).define("zebra").forget("cat").rename("sofa", "couch")
    assert not fits
    pets.predict([draw(5)])
    assert fits == [3, 3, 3], "the cat's own picture has gone with its label"
    pets.predict([draw(6)])
    assert len(fits) == 3, "once is enough"


def test_one_label_is_asked_for_alone(pets: Tagger, fits: list[int]) -> None:
    pets.bank_.classifier(pets.model, "dog")
    assert len(fits) == 1


def test_a_label_that_nothing_changed_for_is_not_fitted_again(pets: Tagger, draw: Draw, fits: list[int]) -> None:
    pets.predict([draw(5)])
    fits.clear()
    pets.set_thresholds({"dog": 0.5}).set_priors({"dog": 0.1}).define("zebra").predict([draw(5)])
    assert fits == [3], "the new label alone, with three that do not show it"
    fits.clear()
    pets.partial_fit([draw(0, "dog")], [[]], absent=[["cat"]]).predict([draw(5)])
    assert fits == [3], "it was complete; now that it was asked about, the cat's name is no longer compared by it"
    fits.clear()
    pets.partial_fit([draw(1, "dog")], [["zebra"]]).predict([draw(5)])
    assert fits == [3], "zebra alone"


def test_a_picture_more_changes_the_labels_that_it_is_silent_of_until_they_have_enough(
    pets: Tagger, draw: Draw, fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pets.predict([draw(5)])
    fits.clear()
    pets.partial_fit([draw(7)], ["dog"]).predict([draw(5)])
    assert len(fits) == 3
    monkeypatch.setattr(bank_module, "UNNAMED", 0)
    monkeypatch.setattr(bank_module, "COMPLETE", 0)
    pets.predict([draw(5)])
    fits.clear()
    pets.partial_fit([draw(8)], ["dog"]).predict([draw(5)])
    assert sorted(fits) == [1, 1, 3], "without silent ones the others are fitted once more, and then no more"
    fits.clear()
    pets.partial_fit([draw(10)], ["dog"]).predict([draw(5)])
    assert fits == [4]


def test_a_loaded_bank_is_not_fitted_again_and_a_change_fits_its_label_alone(
    pets: Tagger, draw: Draw, fits: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bank") / "pets.fewtag"
    pets.save(path)
    fits.clear()
    loaded = Tagger.load(path)
    loaded.predict([draw(5)])
    assert not fits
    loaded.partial_fit([draw(1, "dog")], ["dog"]).predict([draw(5)])
    assert fits == [3], "a complete picture more of it was none to the others before"


def test_who_reads_an_old_bank_sees_its_own_classifiers(pets: Tagger, draw: Draw) -> None:
    old = pets.bank_
    before = old.classifier(pets.model, "dog")
    pets.partial_fit([draw(9)], ["dog"])
    after = pets.bank_.classifier(pets.model, "dog")
    assert old.classifier(pets.model, "dog") is before
    assert not np.array_equal(after.attended_weights, before.attended_weights)


def numbered(model: Model, count: int, told: Callable[[int], Annotation]) -> dict[str, Example]:
    """Examples whose digests are spread as those of pictures are."""
    random = np.random.default_rng(0)
    keys = [random.bytes(32).hex() for _ in range(count)]
    codes, scales = np.ones((model.places, model.space.size), np.int8), np.ones(model.places, np.float32)
    return {key: Example(told(number), Quantised(codes, scales)) for number, key in enumerate(keys)}


def test_no_label_looks_at_more_than_its_share_of_answers_and_of_silent_pictures(model: Model) -> None:
    def told(number: int) -> Annotation:
        kind = number % 3
        one = frozenset({"dog"})
        return (
            Annotation(one)
            if kind == 0
            else Annotation(frozenset(), one)
            if kind == 1
            else Annotation(frozenset({"cat"}))
        )

    names = {"dog": Definition("none", explicit=True), "cat": Definition("none", explicit=True)}
    bank = Bank().learn(names, numbered(model, 1500, told), afresh=False)
    said = bank.fit_set("dog")
    assert (len(said.yes), len(said.no), len(said.unnamed)) == (ANSWERS, ANSWERS, UNNAMED)
    assert set(said.yes) <= set(bank.members["dog"])
    assert set(said.no) <= set(bank.refused["dog"])
    assert not set(said.unnamed) & {*bank.members["dog"], *bank.refused["dog"]}
    assert all(list(keys) == sorted(set(keys)) for keys in said)


def test_those_are_drawn_whose_digest_is_nearest_to_the_labels_own(model: Model) -> None:
    """By exclusive or of the first 64 bits, in plain Python."""
    names = {name: Definition("none", explicit=True) for name in ("dog", "cat", "sofa")}
    bank = Bank().learn(names, numbered(model, 300, lambda _: Annotation(frozenset({"dog"}))), afresh=False)
    drawn = {}
    for label in ("cat", "sofa"):
        own = int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "little")
        nearest = sorted(bank.examples, key=lambda key: int(key[:16], 16) ^ own)[:UNNAMED]
        drawn[label] = set(bank.fit_set(label).unnamed)
        assert drawn[label] == set(nearest)
    assert drawn["cat"] != drawn["sofa"], "another draw for each label"


def test_a_picture_more_seldom_changes_who_is_drawn(model: Model) -> None:
    names = {name: Definition("none", explicit=True) for name in ("dog", "cat")}
    examples = numbered(model, 1000, lambda _: Annotation(frozenset({"dog"})))
    drawn = [
        Bank().learn(names, dict(list(examples.items())[:count]), afresh=False).fit_set("cat").unnamed
        for count in range(900, 1000)
    ]
    changes = sum(one != other for one, other in itertools.pairwise(drawn))
    assert 0 < changes < 25, "64 of 900: 7 of 99 are expected"


def test_complete_pictures_count_in_full_up_to_a_limit_of_their_own(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank_module, "COMPLETE", 100)
    names = {name: Definition("none", explicit=True) for name in ("dog", "cat")}
    examples = numbered(model, 300, lambda number: Annotation(frozenset({"dog"}), complete=number % 2 == 0))
    said = Bank().learn(names, examples, afresh=False).fit_set("cat")
    assert (len(said.no), len(said.complete), len(said.unnamed)) == (0, 100, UNNAMED)
    assert all(examples[key].complete for key in said.complete)
    assert not any(examples[key].complete for key in said.unnamed)


def test_a_fit_looks_at_the_weights_of_each_kind(model: Model, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(_pictures, shown, weights, *_, **__):  # type: ignore[no-untyped-def]
        seen.append((shown.tolist(), weights.tolist()))
        raise KeyboardInterrupt

    monkeypatch.setattr(bank_module, "fit_label", spy)
    weak = replace(model, strengths=replace(model.strengths, unnamed=0.125))
    tagger = Tagger(weak).fit(
        [draw(number) for number in range(4)], [["dog"], ["cat"], ["cat"], ["dog", "cat"]], absent=[[], ["dog"], [], []]
    )
    with pytest.raises(KeyboardInterrupt):
        tagger.bank_.classifier(weak, "dog")
    assert seen == [([True, True, False, False], [1, 1, 1, 0.125])]
